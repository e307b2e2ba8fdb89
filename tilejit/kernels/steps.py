"""From a way to the launches that compute a product by it."""
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels._calls import Call, Launch
from tilejit.kernels._operands import Matrix, Workspace
from tilejit.kernels.chip import Chip
from tilejit.kernels.estimate import overlapping
from tilejit.kernels.parts import sum_parts
from tilejit.kernels.problem import Problem
from tilejit.kernels.product import matmul_kernel, split_kernel, streamk_kernel
from tilejit.kernels.way import Part, Way

#: For operands that TMA cannot read: tiles pass through registers, so they are small.
POINTERS = Way(64, 64, 8, k_bytes=64)
#: Rows of tiles of a group where K is divided: a wave's operands stay in L2.
GROUP = 8
#: Pieces of 32 columns of a part that wait to be stored: as many as the widest tile has.
STORE_STAGES = 8


@dataclass(frozen=True)
class Step:
    """One launch of a product, for a, b and the result, or where its way is swapped for b^T, a^T and its transpose; and
    the sum behind it of the parts that its programs store, if they do (`summed`). `shares`: programs share tiles."""

    launch: Launch
    way: Way
    activation: str | None = None
    end: Any = None
    shares: bool = False
    summed: bool = False

    def calls(self, arrays: tuple[Any, Any, Any], infos: tuple[ArrayInfo, ...], bias: Any,
              named: dict[str, Any], meet: tuple[Any, Any, Any]) -> list[Call]:
        """The launches and their arguments for a, b and the result, with `tensor_scales` and the arguments of a
        caller's end by name. meet: where parts of a tile meet, as `meeting` says."""
        (a, b, out), t = arrays, self.way
        if t.swap:
            arrays, infos = (b, a, out), (infos[1], infos[0], infos[2])
        if self.summed:
            return [(self.launch, (arrays, infos, meet[0]), {}),
                    sum_parts(meet[1], out, infos[2], bias, self.activation, (t.m, t.n), t.parts, GROUP, t.swap,
                              self.end, **named)]
        return [(self.launch, (arrays, infos, *(meet if self.shares else ()), bias), named)]


def step(problem: Problem, part: Part, a: Matrix, b: Matrix, c: Matrix, activation: str | None, chip: Chip,
         add: bool = False, ordered: bool = True, end: Any = None) -> Step:
    """The launch for a part of the result. add: it is added to what the result holds; ordered: parts of a tile meet in
    a fixed order. end: a caller's, instead of a bias and an activation."""
    m0, n0, m1, n1, t = part
    if t.swap:
        a, b = b.transposed(), a.transposed()
    size = a.dtype.bytes
    bk = t.k_bytes * t.k_ctas // size
    da, db, dc = a.descriptor(t.m, bk), b.descriptor(bk, t.n), c.descriptor(*t.computed(t.m, t.n))
    count = tilejit.cdiv(m1 - m0, t.m) * tilejit.cdiv(n1 - n0, t.n)
    room = t.room(chip.multiprocessors)
    grid = t.programs or (count if t == POINTERS else min(room, count))      # those wait a lot: many at once
    shared = t.stream > 0 or t.k_ctas > 1
    constants: dict[str, Any] = dict(
        M=m1, N=n1, K=problem.k, BM=t.m, BN=t.n, BK=bk, A_ROWS=a.rows_first, B_ROWS=b.rows_first,
        GROUP=GROUP if shared else t.group(m1 - m0, tilejit.cdiv(problem.k, bk)),
        num_stages=t.depth(c.dtype.bytes), launch_pdl=overlapping(problem, t, grid, chip), **t.options)
    if t.parts and not add:
        kernel = split_kernel.partial(PARTS=t.parts, store_stages=STORE_STAGES, **constants)
        return Step(Launch(kernel, (grid,), (da, db)), t, activation, end, summed=True)
    constants.update(C_ROWS=not t.swap, ACTIVATION=activation)
    if t.stream or add:
        kernel = streamk_kernel.partial(stream_tiles=t.stream, ADD=add, ORDERED=ordered, **constants)
    else:
        kernel = matmul_kernel.partial(M0=m0, N0=n0, TAIL=tail(problem, t, activation or end), END=end, **constants)
    return Step(Launch(kernel, (grid,), (da, db, dc)), t, activation, end, shares=t.stream > 0 or add)


def tail(problem: Problem, t: Way, end: Any = None) -> int:
    """What is left of K behind whole blocks, in steps of the tensor cores, where a loop of its own can go on in the
    slots of the blocks' (consumers that take tiles in turn, and loads by cp.async, would need other slots), and finds
    registers (beside an `end` some tiles have none)."""
    left = tilejit.cdiv(problem.k_bytes % t.k_bytes, 32) * 32
    fits = not t.in_turn and t.k_ctas == 1 and t != POINTERS and tilejit.chip() == "sm_90a" and end is None
    return left // problem.size if fits and 0 < left < t.k_bytes < problem.k_bytes else 0


def meeting(what: str, like: Any, t: Way, workspace: Workspace | None) -> tuple[Any, Any, Any]:
    """Where the parts of a tile meet: descriptor and array of the partial sums, and the flags; None without parts."""
    if not t.met:
        return None, None, None
    if workspace is None and (t.parts or t.beside):         # written before they are read
        parts = tilejit.empty_like(like, (t.met * t.m, t.n), tl.float32)
        flags = None if t.parts else tilejit.zeros_like(like, (t.stream,), tl.int32)
        return _stored_parts(t.met, t.m, t.n, tilejit.array_info(parts).device).over(parts), parts, flags
    w = workspace_of(t, like) if workspace is None else workspace.check(what, t.met * t.m * t.n, t.stream)
    return w.tiles(t.met, t.m, t.n), w.parts_array, w.flags_array


def workspace_of(t: Way, like: Any) -> Workspace:
    """A new workspace for tiles that meet."""
    return Workspace(like, t.met * t.m * t.n, t.stream)


@lru_cache(maxsize=1024)
def _stored_parts(count: int, m: int, n: int, device: int) -> tilejit.TensorDescriptor:
    """A descriptor of `count` tiles of m x n, one below the other, to put over an array."""
    info = ArrayInfo(0, tl.float32, (count * m, n), (n, 1), device)
    return tilejit.TensorDescriptor.template(info, info.shape, info.strides, (m, n))
