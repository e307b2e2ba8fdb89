from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels._calls import At, Launch, Work
from tilejit.kernels._operands import Matrix
from tilejit.kernels.chip import Chip
from tilejit.kernels.estimate import LINE, overlapping
from tilejit.kernels.problem import Call, End, Problem
from tilejit.kernels.product import ends, loads, steps, walks
from tilejit.kernels.product.kernel import product_kernel
from tilejit.kernels.product.sums import sum_parts_kernel
from tilejit.kernels.way import Way

#: Rows of tiles of a group where K is divided.
GROUP = 8
#: Bytes of a batch's operands up to which L2 holds all of them; then two rows of tiles at a time: programs side by side
#: share columns as well.
IN_L2, FEW_ROWS = 8 * 2 ** 20, 2
#: Pieces of 32 columns of a part that wait to be stored.
STORE_STAGES = 8
#: Numbers that a program that sums parts reads at once, at least and at most, and the least elements it makes of them.
LEAST, MOST, NARROW = 512, 1024, 64
#: Columns, at most, that a program sums of a tile of the result's transpose: read in lines, written in columns.
COLUMNS = 32
#: Programs that are enough for a sum, so that all of the parts are on their way at once; and those that are too few.
PROGRAMS, FEW = 1024, 256
#: A function of a product's kernel, and its tuple.
Piece = tuple[Any, tuple[Any, ...]]


def stored(end: End, out: At) -> Piece:
    """Into a result, as an END."""
    return ends.store, (out, *end)


def load(x: Matrix, rows: int, bk: int, eviction: str = "", threads: int = 0) -> Piece:
    """Of rows of an operand [rows, K], or of stacks; threads: bytes that those copy at once, 0: TMA does."""
    rows_first = tl.constexpr(x.rows_first)
    if threads:
        apart = x.strides[0] if len(x.shape) == 3 and x.shape[0] > 1 else None
        return loads.pieces, (At(x.at), apart, x.pitch, *x.lines, rows_first, tl.constexpr(threads // x.dtype.bytes))
    return loads.block, (x.descriptor(rows, bk), rows_first, eviction)


def whole(group: int, batches: int | None = None) -> Piece:
    """Over all tiles of a result, or of so many of them, so many rows of tiles at a time."""
    return walks.whole, (tl.constexpr(group), None, batches, None)


def multiply(work: Work, call: Call, t: Way, *, programs: int = 0, walk: Piece = whole(GROUP), a: Piece | None = None,
             b: Piece | None = None, step: Piece = (steps.accumulate, steps.SUMS), last: Piece | None = None,
             beside: bool = False, **options: Any) -> None:
    """Add the launch of a call's result by a way, of the LOADs of a and b (None: TMA)."""
    p, c = call.problem, call.c
    (high, wide), bk = t.computed(t.m, t.n), t.step(p.size)
    a, b = a or load(call.a, high, bk), b or load(call.b.T, wide, bk)
    summed, straight = bool(t.parts) and last is None, a[0] is b[0] is loads.pieces
    if summed:
        at, last = parts(work, t)
        walk = walks.parts, tuple(map(tl.constexpr, (t.parts, GROUP, beside)))
    functions, pieces = zip(walk, *((b, a) if t.swap else (a, b)), step,
                            last or stored(call.end, c.descriptor(high, wide)))
    if loads.pieces in (a[0], b[0]):
        options = {**options, "pointer_tma": False}
    kernel = product_kernel.partial(
        **dict(zip("MNK", (*t.computed(p.m, p.n), p.k))), BM=t.m, BN=t.n, BK=bk, SWAP=t.swap,
        **dict(zip(("WALK", "LOAD_A", "LOAD_B", "STEP", "END"), functions)), **{**t.options(straight), **options})
    programs = programs or t.launched(p.m, p.n, call.chip.multiprocessors, p.batches)
    work.launches.append(Launch(kernel, (programs,), pieces))
    if summed:
        work.launches.append(sum_parts(at, c, t, call.end))


def add(work: Work, call: Call, t: Way, into: bool = False) -> None:
    """Add the launches of a way. into: the product is added to what the result holds."""
    a, b, c, p, chip, end = call
    (high, wide), bk, stack = t.computed(t.m, t.n), t.step(p.size), len(c.shape) == 3
    blocks, programs = tilejit.cdiv(p.k, bk), t.launched(p.m, p.n, chip.multiprocessors, p.batches)
    group = GROUP if not stack and (t.stream or t.k_ctas > 1) else t.group(*t.computed(p.m, p.n), blocks)
    options: dict[str, Any] = dict(num_stages=t.depth(c.dtype.bytes, copied=blocks * all(p.units)),
                                   launch_pdl=overlapping(p, t, programs, chip))
    walk, last, left, evict = whole(group), None, 0, ["", ""]
    if stack:
        # Programs of one CTA take longer if a launch begins while another ends; a tile that is hidden is best staged
        # whole.
        walk = whole(FEW_ROWS if (p.m + p.n) * p.k_bytes <= IN_L2 else group, p.batches)
        options.update(launch_pdl=t.ctas > 1 or t.alone, store_stages=None if t.alone else 1 if t.in_turn else 2)
    elif into or t.stream and not t.parts:
        walk, last = (walks.stream, (t.stream, tl.constexpr(group))), handed(work, t, c, end, into)
    elif t.parts:
        # Operands of parts leave L2 first: they are read once or twice, and parts that stay need not go to memory. But
        # the next block, another part's, may begin within the line that one ends in.
        evict = ["" if along and pitch % LINE else "evict_first"
                 for along, pitch in zip((p.a_rows, not p.b_rows), p.pitches)]
        options.update(store_stages=STORE_STAGES)
    else:
        left = tail(p, t, chip, end.activation or end.own)
    multiply(work, call, t, programs=programs, walk=walk, a=load(a, high, bk, evict[0], p.units[0]),
             b=load(b.T, wide, bk, evict[1], p.units[1]), step=(steps.accumulate, (tl.float32, tl.constexpr(left))),
             last=last, **options)


def handed(work: Work, t: Way, c: Matrix, end: End, into: bool) -> Piece:
    """Of tiles that are shared out: added to what c holds, or handed on from program to program."""
    seen = c.descriptor(*t.computed(t.m, t.n))
    if into:
        return ends.added, (seen,)
    at, (_, descriptors) = parts(work, t)
    return ends.handed, (*descriptors, At(at), At(work.new((t.stream,), tl.int32, True)), *stored(end, seen))


def parts(work: Work, t: Way) -> tuple[int, Piece]:
    """New memory for the parts of tiles, and the END that stores them."""
    rows = t.m * (t.programs if t.parts else t.stream)
    at, info = work.new((rows, t.n), tl.float32), ArrayInfo(0, tl.float32, (rows, t.n), (t.n, 1), 0)
    return at, (ends.part, (Matrix(info, at=at).descriptor(t.m, t.n),))


def sum_parts(at: int, c: Matrix, t: Way, end: End) -> Launch:
    """Of the parts of c's tiles, array `at`, in a fixed order."""
    m, n = t.computed(*c.shape)
    down, across = t.computed(*c.strides)
    tiles = tilejit.cdiv(m, t.m) * tilejit.cdiv(n, t.n)
    columns = min(COLUMNS, t.n & -t.n) if t.swap else 0
    whole = tiles * t.m * t.n
    elements = most = min(max(LEAST, tilejit.next_power_of_2(whole // PROGRAMS)), MOST, t.m * (columns or t.n))
    while elements > NARROW and whole // elements < FEW and 8 * most // elements <= t.parts:
        elements //= 2
    kernel = sum_parts_kernel.partial(
        M=m, N=n, down=down, across=across, BM=t.m, BN=t.n, GROUP=GROUP, PARTS=t.parts, COLUMNS=columns,
        ELEMENTS=elements, WAYS=most // elements, num_warps=8, launch_pdl=True)
    return Launch(kernel, (whole // elements,), (At(at), At(c.at), tuple(end)))


def tail(problem: Problem, t: Way, chip: Chip, end: Any = None) -> int:
    """What is left of K behind whole blocks, in steps of the tensor cores, where another loop can go on in the same
    slots and finds registers."""
    left = tilejit.cdiv(problem.k_bytes % t.k_bytes, 32) * 32
    fits = not t.in_turn and t.k_ctas == 1 and not any(problem.units) and chip.hopper and end is None
    return left // problem.size if fits and 0 < left < t.k_bytes < problem.k_bytes else 0
