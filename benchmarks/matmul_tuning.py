"""The best of many ways to run the library's matmul kernel: what its choice for a shape is held against.

Every tile that the library knows, with other numbers of tile rows walked together, stages and consumer groups. All are
compiled at once (the assembler is a process of its own), each is looked at once, and the best few race.
"""
from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from contender import Absent, Contender, race

import tilejit
from tilejit.testing import Burst


@dataclass(frozen=True)
class Way:
    """A block of the result, bytes of K in a block, and launch options; None leaves an option to the compiler."""

    m: int
    n: int
    warps: int
    ctas: int = 1
    group: int = 16
    k_bytes: int = 128
    stages: int | None = None
    turns: int | None = None

    @property
    def label(self) -> str:
        """Short text for tables."""
        marks = [f"{self.m}x{self.n}x{self.k_bytes}B", f"w{self.warps}", f"g{self.group}"]
        marks += [f"c{self.ctas}"] * (self.ctas > 1) + [f"s{self.stages}"] * (self.stages is not None)
        return " ".join(marks + [f"t{self.turns}"] * (self.turns is not None))


def library() -> Any:
    """The module of the library's kernel (its package has a function of the same name)."""
    return importlib.import_module("tilejit.kernels.matmul")


def ways() -> list[Way]:
    """What is tried: the library's tiles in several rasters, and other pipelines of the larger ones."""
    found = [Way(t.m, t.n, t.num_warps, t.ctas, group // t.ctas, t.k_bytes) for t in library().TILES
             for group in (16, 8, 32)]
    found += [Way(128, 256, 8, stages=3), Way(128, 256, 8, k_bytes=64), Way(256, 128, 8), Way(256, 128, 8, group=8),
              Way(128, 128, 8), Way(128, 128, 8, k_bytes=256), Way(128, 128, 4, turns=1), Way(64, 256, 4, turns=1),
              Way(256, 128, 8, 2, 8), Way(128, 256, 4, 2, 8)]
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Launch:
    """A launch of the library's kernel: grid, arguments, options."""

    grid: tuple[int]
    args: tuple[Any, ...]
    options: dict[str, Any]


def launch_of(a: Any, b: Any, out: Any, way: Way) -> Launch:
    """How `way` multiplies a [M, K] row-major with b [K, N] column-major into out [M, N]."""
    (m, k), n = a.shape, b.shape[1]
    size = tilejit.array_info(a).dtype.bytes
    bk = way.k_bytes // size
    d = tilejit.TensorDescriptor.from_tensor
    tiles = tilejit.cdiv(m, way.m) * tilejit.cdiv(n, way.n)
    options = {"num_warps": way.warps, "num_ctas": way.ctas, "num_stages": way.stages, "num_consumer_groups": way.turns}
    return Launch((min(tilejit.multiprocessors() // way.ctas, tiles),),
                  (d(a, (way.m, bk)), d(b.T, (way.n, bk)), d(out, (way.m, way.n)), None, m, n, k),
                  {"BM": way.m, "BN": way.n, "BK": bk, "GROUP": way.group, "A_ROWS": True, "B_ROWS": False,
                   "ACTIVATION": None, **{o: v for o, v in options.items() if v is not None}})


def prepared(launches: dict[str, Launch]) -> dict[str, str]:
    """Compile all of them, side by side; why some cannot be."""
    kernel, failed = library().matmul_kernel, {}

    def one(launch: Launch) -> str:
        try:
            kernel.prepare(*launch.args, **launch.options)()
            return ""
        except tilejit.TileJitError as error:
            return str(error).split("\n")[0]

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for name, why in zip(launches, pool.map(one, launches.values())):
            if why:
                failed[name] = why
    return failed


def best(a: Any, b: Any, out: Any, others: dict[str, Callable[[], Any]], burst: Callable[[Callable[[], Any]], Burst],
         choice: list[Way] | None = None) -> Contender:
    """The fastest of all ways, and of `others` (calls that write `out`), as a contender whose note names it.

    Raises Absent if none works."""
    kernel = library().matmul_kernel
    launches = {way.label: launch_of(a, b, out, way) for way in choice or ways()}
    failed = prepared(launches)
    calls: dict[str, Callable[[], Any]] = {
        name: lambda x=x: kernel[x.grid](*x.args, **x.options) for name, x in launches.items() if name not in failed}
    calls |= others
    found = race({name: (lambda call=call: burst(call)) for name, call in calls.items()})
    if not found.order:
        raise Absent(f"no way works; {next(iter({**failed, **found.failed}.items()), '')}")
    name = found.order[0]

    def call() -> Any:
        calls[name]()
        return out

    return Contender(call, out, note=f"{name}, best of {len(calls) - len(found.failed)}")


def chosen(m: int, n: int, k: int, size: int, ragged: bool) -> str:
    """The library's own tiles for operands of `size` bytes an element, as in notes."""
    t = library().choose_tiles(m, n, tilejit.cdiv(k * size, 128), tilejit.multiprocessors(), ragged)
    return Way(t.m, t.n, t.num_warps, t.ctas, 16 // t.ctas, t.k_bytes).label
