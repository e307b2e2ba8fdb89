"""Compiling costs work in proportion to what is emitted: counted in Python calls, which no load on the machine changes."""
from __future__ import annotations

import cProfile
import gc
import pstats
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest

import tilejit
from tilejit import passes
from tilejit.frontend import build
from tilejit.kernels import fused, matmul_kernel
from tilejit.kernels._calls import At
from tilejit.kernels.way import Way
from tilejit.runtime import compile as line

tl = tilejit.language


@tilejit.kernel
def chain(x, y, BLOCK: tl.constexpr, LENGTH: tl.constexpr):
    """LENGTH exponentials, one after the other."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at)
    for _ in tl.static_range(LENGTH):
        v = tl.exp(v)
    tl.store(y + at, v)


@tilejit.kernel
def many_loads(x, y, BLOCK: tl.constexpr, LENGTH: tl.constexpr):
    """A sum of LENGTH blocks, with an index computation each."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(LENGTH):
        total += tl.load(x + at * (i + 2))
    tl.store(y + at, total)


def cost(kernel: Any, *args: Any, **constants: Any) -> tuple[int, int]:
    """(instructions, calls of Python functions) of one compilation to PTX; the first one, which fills caches, is left
    out."""
    plan, flat = kernel._bound(args, constants)
    described, options = kernel.describe(plan, flat, typed=True), kernel.options(plan, flat)

    def run() -> str:
        return line.emit(line.schedule(passes.run(build(kernel.source, dict(described), dict(options)))))[0]

    run()
    profile = cProfile.Profile()
    with line.collector_paused():  # what others have left behind is not this kernel's
        ptx = profile.runcall(run)
    return sum(x.endswith(";") for x in ptx.splitlines()), pstats.Stats(profile).total_calls  # type: ignore[attr-defined]


def slopes(points: list[tuple[int, int]]) -> list[float]:
    """Calls an additional instruction, from each point to the next."""
    return [(c1 - c0) / (n1 - n0) for (n0, c0), (n1, c1) in zip(points, points[1:])]


@pytest.mark.parametrize("kernel, lengths", [(chain, (16, 32, 64, 128)), (many_loads, (8, 16, 32, 64))])
def test_linear_in_the_length_of_a_kernel(kernel: Any, lengths: tuple[int, ...]) -> None:
    """Twice the ops: twice the work, in every pass. (Whether tiles should go through a loop is asked of long code only.)
    """
    calls = [cost(kernel, "*fp32", "*fp32", BLOCK=1024, LENGTH=n)[1] for n in lengths]
    found = [more / few for few, more in zip(calls, calls[1:])]
    assert max(found) <= 2.3 and found[-1] <= 2.1, found


def test_elements_are_cheap() -> None:
    """A tile of more registers repeats text: less than a call for two instructions, however many."""
    found = slopes([cost(chain, "*fp32", "*fp32", BLOCK=n, LENGTH=64) for n in (2048, 4096, 8192)])
    assert max(found) < 0.5, found


def product(m: int, n: int, warps: int, activation: str | None) -> tuple[int, int]:
    """The cost of a matrix product with an epilogue."""
    return cost(matmul_kernel, f"desc<bf16[{m}x64]>", f"desc<bf16[{n}x64]>", f"desc<bf16[{m}x{n}]>", None, "int32",
                "int32", "int32", BM=m, BN=n, BK=64, GROUP=16, A_ROWS=True, B_ROWS=False, ACTIVATION=activation,
                num_warps=warps)


def test_linear_in_the_tile_of_a_product() -> None:
    """Beside a height that all tiles share, an instruction of the epilogue costs no more in a larger tile."""
    found = slopes([product(64, n, 4, "gelu") for n in (64, 128, 256)])
    assert max(found) < 4 and found[1] <= 1.1 * found[0], found


def test_the_greatest_kernel() -> None:
    """The fused product with everything at 128 x 256."""
    info = tilejit.ArrayInfo
    bf16, fp32 = tl.bfloat16, tl.float32
    m, n, k = 512, 1024, 512
    flat = info(0, bf16, (m, n), (n, 1), 0)
    extras = (info(0, fp32, (m, 1), (1, 1), 0), info(0, fp32, (1, n), (n, 1), 0), info(0, bf16, (n,), (1,), 0), flat, flat,
              info(0, fp32, (m,), (1,), 0))
    with patch.object(fused, "choose", lambda *_, **__: (Way(128, 256, 8), 0.0)), patch.object(fused, "_apart", lambda *_: False):
        (launch,) = fused._work((info(0, bf16, (m, k), (k, 1), 0), info(0, bf16, (k, n), (1, k), 0), flat, *extras),
                                "fused_matmul", "gelu", "max", 132, None).launches
    types = {3: "*fp32", 4: "*fp32", 5: "*bf16", 6: "*bf16", 8: "*fp32"}

    def typed(x: Any) -> Any:
        if isinstance(x, tuple):
            inside = [typed(e) for e in x]
            return type(x)(*inside) if hasattr(x, "_fields") else tuple(inside)
        return x if not isinstance(x, At) else x.descriptor or types[x.index]

    count, calls = cost(launch.kernel.kernel, *typed(launch.arguments), **launch.kernel.given)
    # 44.6 an instruction: 39.6, and what looking for the depth of its ring takes
    assert count > 4000 and calls <= 46 * count, (count, calls)


@tilejit.kernel
def sorts(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.sort(tl.load(x + at, mask=at < n, other=0)))


def test_a_sorting_network_is_one_op() -> None:
    """Its steps are text: few calls an instruction, fewer the longer it is."""
    (few, calls), (many, more) = (cost(sorts, "*int32", "*int32", "int32", BLOCK=n) for n in (256, 4096))
    assert many > 4 * few and (more - calls) / (many - few) < 10, (few, calls, many, more)


def test_the_collector_rests_meanwhile() -> None:
    """It is on again after the last of compilations at the same time, and after one that failed; off stays off."""
    assert gc.isenabled()
    one, other = ExitStack(), ExitStack()
    for stack in (one, other):
        stack.enter_context(line.collector_paused())
        assert not gc.isenabled()
    one.close()
    other.close()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="in a pass"), line.collector_paused():
        raise ValueError("in a pass")
    assert gc.isenabled()
    gc.disable()
    try:
        with line.collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
