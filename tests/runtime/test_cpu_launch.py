"""Launches where there is no GPU: specialisation, grids, options, captured constants, streams, bind, dumps."""
from __future__ import annotations

import threading
import types

import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.runtime.jit import StaleGlobalError
from tilejit.runtime.signature import ArgumentError

SHIFT = 1


@tilejit.kernel
def scale(x, out, n, factor, BLOCK: tl.constexpr = 32):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offs, tl.load(x + offs, mask=offs < n) * factor, mask=offs < n)


@tilejit.kernel(do_not_specialize=("n", 3))
def scale_any(x, out, n, factor, BLOCK: tl.constexpr = 32):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offs, tl.load(x + offs, mask=offs < n) * factor, mask=offs < n)


@tilejit.kernel
def shifted(out, n):
    tl.store(out + tl.arange(0, 16), tl.zeros([16], tl.int32) + SHIFT + n)


limits = types.ModuleType("limits")
limits.BIAS = 4


@tilejit.kernel
def biased(out, n):
    tl.store(out + tl.arange(0, 16), tl.zeros([16], tl.int32) + limits.BIAS + n)


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch, tmp_path):
    """No GPU, and a cache of the test's own."""
    monkeypatch.setenv("TILEJIT_TARGET", "evaluator")
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def arrays():
    x = np.arange(100, dtype=np.float32)
    return x, np.zeros_like(x)


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
def test_result(target, arrays, monkeypatch):
    """Both ways of running on the CPU compute the kernel; the last block is masked."""
    monkeypatch.setenv("TILEJIT_TARGET", target)
    x, out = arrays
    with tilejit.knobs(target=target):
        done = scale[lambda a: (tilejit.cdiv(a["n"], a["BLOCK"]),)](x, out, 100, 2.0)
    np.testing.assert_array_equal(out, 2 * x)
    assert done.name == "scale" and done.metadata.num_threads == 128


def test_specialisations(arrays):
    """One kernel for each of: 1, a multiple of 16, another number; not for each value."""
    x, out = arrays
    kernel = tilejit.kernel(scale.fn)
    for n in (1, 16, 32, 48, 5, 7, 100):
        kernel[(4,)](x, out, n, 1.0)
    assert len(kernel.entries) == 3
    for block in (32, 64):
        kernel[(4,)](x, out, 5, 1.0, BLOCK=block)
    assert len(kernel.entries) == 4, "64 is another constant; 32, by keyword, is the default"
    kernel = tilejit.kernel(scale.fn, do_not_specialize=("n",))
    for n in (1, 16, 5):
        kernel[(4,)](x, out, n, 1.0)
    assert len(kernel.entries) == 1


def test_unspecialised_result(arrays):
    """A parameter that is not specialised may be 1."""
    x, out = arrays
    for n in (1, 16, 7):
        out[:] = 0
        scale_any[(4,)](x, out, n, 3.0)
        np.testing.assert_array_equal(out, np.where(np.arange(100) < n, 3 * x, 0))


@pytest.mark.parametrize("grid", [(0,), (4, 0), (4, 1, 0), lambda a: (0,)])
def test_empty_grid(grid, arrays):
    """A grid without blocks launches nothing."""
    x, out = arrays
    assert scale[grid](x, out, 100, 2.0) is None and not out.any()
    assert scale.bind(grid, x, out, 100, 2.0)() is None and not out.any()


@pytest.mark.parametrize("grid", [(), (1, 2, 3, 4), "4", 1.5, (1.0,), (-1,), (1, 65536), (2 ** 31,), None,
                                  lambda a: None])
def test_wrong_grid(grid, arrays):
    """What is no grid is named."""
    with pytest.raises(tilejit.LaunchError, match="grid"):
        scale[grid](*arrays, 100, 2.0)


@pytest.mark.parametrize("args,options,hint", [
    ((1, 2.0), {"num_warp": 4}, "did you mean 'num_warps'"), ((1, 2.0), {"BLOK": 4}, "did you mean 'BLOCK'"),
    ((1,), {}, "'factor'"), ((), {}, "'n', 'factor'"), ((1, 2.0, 32, 4), {}, "takes 5 arguments"),
    ((1, 2.0), {"x": 3}, "'x'"), ((1, 2.0), {"BLOCK": {}}, "constant"),
    ((1, 2.0), {"zzzzzz": 3}, "zzzzzz")])
def test_wrong_arguments(args, options, hint, arrays):
    """Each is a TypeError and a LaunchError that says what to do."""
    with pytest.raises(ArgumentError, match=hint) as caught:
        scale[(1,)](*arrays, *args, **options)
    assert isinstance(caught.value, TypeError) and isinstance(caught.value, tilejit.LaunchError)


def test_clusters_of_some_sizes_only(arrays):
    """An option that the kernel cannot have is the compiler's to refuse."""
    with pytest.raises(tilejit.CompilationError, match="num_ctas=3 is not legal"):
        scale[(1,)](*arrays, 1, 2.0, num_ctas=3)


def test_partial(arrays):
    """Constants, options and numbers that are given once: the same kernel as for the whole call, and the same errors."""
    x, out = arrays
    kernel = tilejit.kernel(scale.fn)
    doubled = kernel.partial(n=100, num_warps=2).partial(factor=2.0, BLOCK=16)
    done = doubled[(7,)](x, out)
    np.testing.assert_array_equal(out, 2 * x)
    assert done.metadata.num_threads == 64
    kernel[(7,)](x, out, n=100, num_warps=2, factor=2.0, BLOCK=16)
    doubled[(7,)](out=out, x=x)
    assert len(kernel.entries) == 1, "by keyword or by position, it is one call"
    with pytest.raises(ArgumentError, match="multiple values for argument 'n'"):
        doubled[(7,)](x, out, 100)
    with pytest.raises(ArgumentError, match="multiple values for argument 'num_warps'"):
        doubled[(7,)](x, out, num_warps=4)
    with pytest.raises(ArgumentError, match="misses argument 'out'"):
        doubled[(7,)](x)
    with pytest.raises(ArgumentError, match="did you mean 'BLOCK'"):
        kernel.partial(BLOK=16)[(7,)](x, out, 100, 2.0)


def test_strided_views_and_keywords(arrays):
    """Arguments may come by name, and arrays may start anywhere."""
    x, out = arrays
    scale[(1,)](n=10, factor=2.0, out=out[3:], x=x[5:], num_warps=1)
    np.testing.assert_array_equal(out[3:13], 2 * x[5:15])
    assert not out[13:].any() and not out[:3].any()


def test_bind_repeats(arrays):
    """A bound launch sees what is in its arrays when it runs."""
    x, out = arrays
    again = scale.bind((4,), x, out, 100, 2.0)
    again()
    x += 1
    again()
    np.testing.assert_array_equal(out, 2 * x)


def test_captured_constant_stays_an_error(monkeypatch):
    """A global that changes after compilation is an error for old signatures and new ones; nothing runs stale."""
    kernel = tilejit.kernel(shifted.fn)
    out = np.zeros(16, np.int32)
    kernel[(1,)](out, 2)
    assert out[0] == 3
    monkeypatch.setitem(globals(), "SHIFT", 5)
    for n in (2, 32, 2, 1):
        with pytest.raises(StaleGlobalError, match="SHIFT has changed .* from 1 to 5"):
            kernel[(1,)](out, n)
    monkeypatch.setitem(globals(), "SHIFT", 1)
    kernel[(1,)](out, 32)
    assert out[0] == 33


def test_captured_constant_of_a_module():
    """A constant that is read through a module is watched like a global."""
    out = np.zeros(16, np.int32)
    biased[(1,)](out, 2)
    assert out[0] == 6
    limits.BIAS = 5
    try:
        with pytest.raises(StaleGlobalError, match="BIAS has changed .* from 4 to 5"):
            biased[(1,)](out, 2)
    finally:
        limits.BIAS = 4


def test_first_launch_from_threads(arrays):
    """Threads that meet a new signature together compile it once."""
    x, _ = arrays
    kernel, made = tilejit.kernel(scale.fn), []

    def work(factor: float) -> None:
        out = np.zeros_like(x)
        made.append(kernel[(4,)](x, out, 100, factor))
        np.testing.assert_array_equal(out, np.float32(factor) * x)

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(made) == 8 and len(set(map(id, made))) == 1


def test_disk_cache_and_dump(arrays, tmp_path):
    """A second kernel object finds the first one's code; a dump compiles again and shows every stage."""
    first = tilejit.kernel(scale.fn).compile("*fp32", "*fp32", "i32", "fp32")
    second = tilejit.kernel(scale.fn).compile("*fp32", "*fp32", "i32", "fp32")
    assert not first.from_cache and second.from_cache
    assert (first.ptx, first.cubin, first.metadata, first.resources, first.report()) == \
        (second.ptx, second.cubin, second.metadata, second.resources, second.report())
    assert not tilejit.kernel(scale.fn).compile("*fp32", "*fp32", "i32", "fp32", num_warps=8).from_cache
    with tilejit.knobs(dump=str(tmp_path / "dump")):
        assert not scale.compile("*fp32", "*fp32", "i32", "fp32").from_cache
    names = sorted(p.name for p in (tmp_path / "dump" / "scale").iterdir())
    assert names[0] == "00-frontend.tile" and names[-1].endswith("kernel.ptx") and len(names) >= 4


def test_stages_of_a_compiled_kernel():
    """Every stage of the line can be read."""
    k = scale.compile("*fp32", "*fp32", "i32", "fp32", BLOCK=128)
    assert "def scale" in k.source and ".entry scale" in k.ptx.replace("\n", " ")
    for text in (k.ir, k.scheduled, k.report()):
        assert "scale" in text


@tilejit.jit
def told_of_warps(x, n, num_warps: tl.constexpr, num_stages: tl.constexpr = 7):
    tl.store(x + tl.arange(0, 4), num_warps)


def test_constants_named_as_options_are_both():
    """As in Triton, which hands its compiler all keywords; not those that are left to their defaults."""
    for given in ({"num_warps": 8}, {"num_warps": 2, "num_stages": 3}):
        made = told_of_warps.compile("*int32", "int32", **given)
        assert {k: made.options.get(k) for k in ("num_warps", "num_stages")} == {"num_stages": None, **given}
    x = np.zeros(4, np.int32)
    told_of_warps[(1,)](x, 1, 8)
    assert x.tolist() == [8] * 4
