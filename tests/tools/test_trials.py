"""Configurations that hang, fault or compute something else: contained, named and survived."""
from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.runtime.arrays import ArrayInfo, array_info
from tilejit.tools.agreement import Agreement
from tilejit.tools.costs import host_copies

HERE = Path(__file__).resolve().parent
STUB = HERE.parent / "runtime" / "libcuda_stub.c"


@pytest.fixture(scope="session")
def stub(tmp_path_factory):
    """A folder with a driver that only remembers, as libcuda.so.1."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler: the stub driver cannot be built")
    folder = tmp_path_factory.mktemp("stub")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(folder / "libcuda.so.1"), str(STUB), "-ldl"],
                   check=True)
    return folder


@pytest.mark.parametrize("check", ["planted", "nothing_works", "the_first_stands_alone", "hooks", "inside",
                                   "one_process_for_many", "tritons_tuner"])
def test_over_the_stub(check, stub, tmp_path):
    env = {k: v for k, v in os.environ.items() if not k.startswith("TILEJIT_")}
    env |= {"LD_LIBRARY_PATH": str(stub), "TILEJIT_CACHE_DIR": str(tmp_path / "cache"),
            "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), *sys.path])}
    done = subprocess.run([sys.executable, str(HERE / "trial_checks.py"), check], env=env, capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@tilejit.kernel
def planted(x, out, n, BAD: tl.constexpr, BLOCK: tl.constexpr):
    """Copies x; or something else, far outside of it, or for ever."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if BAD == "hang":
        while tl.atomic_add(out, 0.0) == tl.load(x):
            pass
    if BAD == "fault":
        tl.store(out + at + (1 << 40), 1.0)
    tl.store(out + at, tl.load(x + at, at < n) * (3 if BAD == "wrong" else 1), at < n)


def configurations(*bad):
    return [tilejit.Config({"BLOCK": 128, "BAD": b}) for b in ("", *bad)] + [tilejit.Config({"BLOCK": 256, "BAD": ""})]


def test_in_the_emulator(monkeypatch, tmp_path):
    """There a fault is a finding, and only that configuration's."""
    monkeypatch.setenv("TILEJIT_TARGET", "emulator")
    k = tilejit.autotune(configurations("fault", "wrong"), ["n"], cache_results=False, check=True)(planted)
    x, out = np.arange(300, dtype=np.float32), np.zeros(300, np.float32)
    k[lambda meta: (tilejit.cdiv(300, meta["BLOCK"]),)](x, out, 300)
    assert np.array_equal(x, out)
    (failures,), (times,), (notes,) = k.failures.values(), k.timings.values(), k.notes.values()
    found = {c.kwargs["BAD"]: str(e) for c, e in failures.items()}
    assert len(times) == 2 and "wrong: out[299] is 897, the first configuration has 299" in found["wrong"]
    assert set(found) == {"fault", "wrong"} and notes == ["measured in this process: there is no GPU"]


@pytest.mark.gpu
def test_on_the_gpu():
    torch = pytest.importorskip("torch")
    k = tilejit.autotune(configurations("hang", "fault", "wrong"), ["n"], cache_results=False, check=True,
                         timeout=3.0)(planted)
    n = 1 << 20
    x, out = torch.randn(n, device="cuda"), torch.zeros(n, device="cuda")
    x[0] = 0
    k[lambda meta: (tilejit.cdiv(n, meta["BLOCK"]),)](x, out, n)
    (failures,), (times,), (notes,) = k.failures.values(), k.timings.values(), k.notes.values()
    found = {c.kwargs["BAD"]: str(e).split(":")[0] for c, e in failures.items()}
    assert found == {"hang": "hung", "fault": "faulted", "wrong": "wrong"} and len(times) == 2 and notes == []
    torch.cuda.synchronize()
    assert torch.equal(x, out)


def test_what_agrees():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 64)).astype(np.float32)
    a = Agreement()
    assert a.problem({"c": x}) == "" and a.problem({"c": x * (1 + 1e-5)}) == ""
    other = x.copy()
    other[3, 5] += 0.1
    assert a.problem({"c": other}).startswith("wrong: c[3, 5] is ") and a.note() == ""
    loose = Agreement(0.2)
    assert not loose.problem({"c": x}) and not loose.problem({"c": other})
    nan = x.copy()
    nan[7, 7] = np.nan
    assert "c[7, 7] is nan" in a.problem({"c": nan})
    b = Agreement()
    assert not b.problem({"c": nan}) and not b.problem({"c": nan}), "the same NaN is the same"
    whole = Agreement()
    assert not whole.problem({"i": np.arange(5)}) and "i[0] is 1" in whole.problem({"i": np.arange(5) + 1})


def test_copies_of_arrays_of_the_gpu_come_through_its_driver(monkeypatch):
    """Their addresses mean nothing in host memory."""
    class OnGpu:
        __cuda_array_interface__ = {"shape": (3,), "typestr": "<i4", "data": (4096, False), "version": 3}

    def to_host(to, address, size):
        assert (address, size) == (4096, 12)
        ctypes.memmove(to, np.arange(7, 10, dtype=np.int32).ctypes.data, size)

    device = SimpleNamespace(synchronize=lambda: None, to_host=to_host)
    monkeypatch.setattr("tilejit.tools.costs.driver.device", lambda index: device)
    monkeypatch.setattr("tilejit.tools.costs.array_info", lambda x: ArrayInfo(4096, tl.int32, (3,), (1,), 0)
                        if isinstance(x, OnGpu) else array_info(x))
    here = np.arange(2)
    found = host_copies({"there": OnGpu(), "here": here})
    assert found["there"].tolist() == [7, 8, 9] and found["here"].tolist() == [0, 1] and found["here"] is not here
