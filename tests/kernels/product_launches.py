"""Launches of products compiled from facts alone."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tilejit
from tilejit import ArrayInfo
from tilejit.kernels import chip as chips
from tilejit.kernels import launches, mixed
from tilejit.kernels._calls import At, Launch, Work
from tilejit.kernels.problem import call_of
from tilejit.kernels.way import Way

CHIP = chips.load(chips.FOLDER / "h200.json")


def info(dtype: str, *shape: int, rows_first: bool = True) -> ArrayInfo:
    """A dense array."""
    *stack, m, n = (1, *shape)
    strides = (n, 1) if rows_first else (1, m)
    outer: list[int] = []
    for size in reversed(stack):
        outer.insert(0, m * n if not outer else outer[0] * size)
    return ArrayInfo(0, getattr(tilejit.language, dtype), shape, (*outer, *strides)[-len(shape):], 0)


def work_of(t: Way, m: int, n: int, k: int, dtype: str = "bfloat16", out: str = "bfloat16", b_rows: bool = False,
            activation: str | None = None, bias: bool = False, into: bool = False) -> Work:
    """The launches of a way for such arrays: a, b, bias and result."""
    arrays = info(dtype, m, k), info(dtype, k, n, rows_first=b_rows), info(out, n) if bias else None, info(out, m, n)
    work = Work(4)
    launches.add(work, call_of("test", arrays, activation, CHIP.multiprocessors)._replace(chip=CHIP), t, into)
    return work


def typed(x: Any, pointers: Mapping[int, str]) -> Any:
    """An argument of a launch with descriptors without arrays, and types of pointers, by their places."""
    if isinstance(x, At):
        return x.descriptor or pointers[x.index]
    if not isinstance(x, tuple):
        return x
    inside = [typed(e, pointers) for e in x]
    return type(x)(*inside) if hasattr(x, "_fields") else tuple(inside)


def compiled(launch: Launch, pointers: Mapping[int, str], **options: Any) -> Any:
    """The kernel of a launch; `pointers`: types of its arrays, by their places."""
    with tilejit.knobs(target="emulator"):
        return launch.kernel.kernel.compile(*typed(launch.arguments, pointers), **{**launch.kernel.given, **options})


def weights(t: Way, dtype: str, bits: int, steps: int, zeros: bool, bias: bool, activation: str | None) -> Any:
    """The kernel that `weight_only_matmul` runs for a tile, a number for `steps` blocks (0: one for all)."""
    n, m, k = 2 * t.m, t.n, 2048
    scales = info("bfloat16", n, k // (steps * t.k_bytes // 2)) if steps else info("bfloat16", n)
    weight = info("int8", n, k) if bits == 8 else info("uint8", n, k // 2)
    infos = (info(dtype, m, k), weight, scales, scales if zeros else None, info("bfloat16", n) if bias else None,
             info(dtype, m, n))
    work = mixed._work(infos, activation, None, t, 132, None)
    return compiled(work.launches[0], {2: "*bf16", 3: "*bf16", 4: "*bf16"})
