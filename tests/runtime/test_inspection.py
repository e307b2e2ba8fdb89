"""What a compiled kernel and a launch show of themselves: Triton's attributes, hooks with metadata, NVTX ranges."""
from __future__ import annotations

import sys
import types

import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.runtime.signature import ArgumentError


@tilejit.kernel
def scale(x, out, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) * FACTOR, at < n)


@pytest.fixture(autouse=True)
def evaluator(monkeypatch):
    monkeypatch.setenv("TILEJIT_TARGET", "evaluator")


def test_tritons_attributes():
    made = scale.warmup("*fp32", "*fp32", "int32", FACTOR=3, BLOCK=256, num_warps=2, grid=(1,))
    assert made.n_regs == made.resources.registers > 0 and made.n_spills == 0 and made.n_max_threads == 64
    m = made.metadata
    assert (m.shared, m.num_warps, m.num_ctas, m.num_stages, m.name, m.cluster_dims) == (0, 2, 1, 1, "scale", (1, 1, 1))
    assert set(made.asm) == {"source", "ttir", "ttgir", "llir", "ptx", "cubin", "sass"}
    assert made.asm["ptx"] == made.ptx and made.asm["cubin"][:4] == b"\x7fELF" and "store" in made.asm["ttir"]


def test_a_compiled_kernel_launches():
    """With the constants and options that it was compiled with; the rest is given."""
    made = scale.compile("*fp32", "*fp32", "int32", FACTOR=3, BLOCK=256, num_warps=2)
    x, out = np.arange(300, dtype=np.float32), np.zeros(300, np.float32)
    launched = made[(2,)](x, out, 300)
    assert np.array_equal(out, 3 * x) and launched.metadata.num_warps == 2
    made[lambda meta: (tilejit.cdiv(meta["n"], meta["BLOCK"]),)](x, out, 300, 5, 64)
    assert np.array_equal(out, 5 * x)
    with pytest.raises(ArgumentError, match=r"argument 'x': ptr<fp16>; scale was compiled for ptr<fp32>"):
        made[(2,)](x.astype(np.float16), out, 300)


def test_hooks_are_told_of_a_launch():
    told, after = [], []
    counted = tilejit.kernel(launch_metadata=lambda grid, kernel, arguments: {
        "flops32": grid[0] * arguments["n"], "warps": kernel.num_warps})(scale.fn)
    x, out = np.arange(300, dtype=np.float32), np.zeros(300, np.float32)
    enter, leave = tilejit.hooks.enter(told.append), tilejit.hooks.exit(lambda launch: after.append(out[1]))
    try:
        counted[(3,)](x, out, 300, 2, 128)
    finally:
        tilejit.hooks.remove(enter), tilejit.hooks.remove(leave)
    counted[(3,)](x, out, 300, 2, 128)
    (launch,) = told
    assert (launch.name, launch.grid, launch.bytes, launch.flops) == ("scale", (3, 1, 1), 2 * 1200, 900)
    assert launch.metadata["warps"] == 4 and launch.compiled.metadata.shared == 0
    assert launch.arguments["BLOCK"] == 128 and launch.arguments["x"] is x
    assert after == [2.0]


def test_ranges_in_a_profilers_timeline(monkeypatch):
    from tilejit.runtime import hooks

    seen = []
    nvtx = types.ModuleType("nvtx")
    nvtx.push_range, nvtx.pop_range = seen.append, lambda: seen.append("end")
    monkeypatch.setitem(sys.modules, "nvtx", nvtx)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ZeroDivisionError), hooks.nvtx_range("scale"):
        1 / 0  # noqa: B018
    assert seen == ["scale", "end"]
