"""Matrix product whose K loops are divided between programs: split-K, stream-K, and decode shapes.

All tiles together are tiles * steps blocks of K. The first `stream_tiles` tiles are cut into as many equal runs of
blocks as there are programs (stream-K: arXiv 2301.03598); split-K is the case in which the number of programs is a
multiple of the number of tiles. The rest are whole tiles, one a program at a time.

A run covers parts of tiles. Where every program has one part of one tile, that is another kernel (`splitk.py`): it
stores the part, and a second one sums the parts of each tile (`parts.py`). Otherwise parts of one tile meet in a
workspace tile of fp32, in one of three ways:

    ADD         the output is fp32 and holds numbers to add to: every part is added to it by TMA, in no fixed order
    ORDERED     part after part: each waits for the tile's flag to say that the blocks before its own are done, adds
                itself, and moves the flag on; the last one has the sum, runs the epilogue and clears the flag
    neither     parts are added in no fixed order and counted; who completes the count runs the epilogue, and leaves
                workspace and flag zero for the next launch

Where the tiles times 2, 4 or 8 are about as many as multiprocessors, nothing meets in memory: a program is a cluster of
so many CTAs, which divide K and sum their parts in shared memory (`cluster_split="K"`), always in the same order.

Programs take their last tile first: a tile's early parts are thus the first thing that a program does, and whoever
needs them waits only for what runs at the same time. All programs must be resident (at most one per multiprocessor).
"""
from __future__ import annotations

from functools import lru_cache
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels._calls import Call, Launch, facts_of, infos_of, place, run
from tilejit.kernels._operands import (
    DTYPES,
    Matrix,
    Workspace,
    check_operands,
    check_vector,
    new,
    operand,
    require_tma,
    result,
    tensor_scales,
)
from tilejit.kernels.activations import ACTIVATIONS, store_tile, tensor_scale
from tilejit.kernels.division import GROUP, IDLE, choose_for
from tilejit.kernels.order import tile_at
from tilejit.kernels.parts import sum_parts
from tilejit.kernels.splitk import STORE_STAGES, split_kernel
from tilejit.kernels.way import Way

_WHAT = "matmul_streamk"


@tilejit.kernel(do_not_specialize=("M", "N", "K", "stream_tiles"))
def streamk_kernel(a_desc, b_desc, c_desc, part_desc, parts, flags, bias, M, N, K, stream_tiles, BM: tl.constexpr,
                   BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, A_ROWS: tl.constexpr, B_ROWS: tl.constexpr,
                   C_ROWS: tl.constexpr, ACTIVATION: tl.constexpr, ADD: tl.constexpr, ORDERED: tl.constexpr,
                   scale_a=None, scale_b=None):
    """C [M, N] = act(A [M, K] @ B [K, N] + bias), or with ADD: C += A @ B. scale_a, scale_b: None, or where a number is
    that the product is multiplied by first (not with ADD).

    A_ROWS, B_ROWS, C_ROWS: the descriptor sees the matrix itself, else its transpose; with C_ROWS false bias has a
    value per row. parts: the workspace, fp32 [stream_tiles * BM, BN], seen by part_desc in blocks [BM, BN]; flags:
    int32 [stream_tiles], zero; None, all three: there are whole tiles only."""
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    steps = tl.cdiv(K, BK)
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    blocks = stream_tiles * steps
    share = blocks // programs
    extra = blocks % programs
    begin = pid * share + tl.minimum(pid, extra)
    end = begin + share + tl.where(pid < extra, 1, 0)
    last = (end - 1) // steps
    pieces = tl.where(end > begin, last - begin // steps + 1, 0)
    whole = tl.cdiv(tl.maximum(tiles_m * tiles_n - stream_tiles - pid, 0), programs)
    for i in tl.range(0, pieces + whole):
        tile = tl.where(i < pieces, last - i, stream_tiles + (i - pieces) * programs + pid)
        k0 = tl.where(i < pieces, tl.maximum(begin - tile * steps, 0), 0)
        k1 = tl.where(i < pieces, tl.minimum(end - tile * steps, steps), steps)
        row, column = tile_at(tile, tiles_m, tiles_n, GROUP)
        m = row * BM
        n = column * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(k0, k1):
            if A_ROWS:
                a = a_desc.load([m, k * BK])
            else:
                a = a_desc.load([k * BK, m]).T
            if B_ROWS:
                b = b_desc.load([k * BK, n])
            else:
                b = b_desc.load([n, k * BK]).T
            acc = tl.dot(a, b, acc)
        if ADD:
            if C_ROWS:
                c_desc.atomic_add([m, n], acc)
            else:
                c_desc.atomic_add([n, m], acc.T)
        else:
            finish = True
            if flags is not None:
                finish = k1 - k0 == steps
            if flags is not None and k1 - k0 < steps:
                if ORDERED:
                    finish = k1 == steps
                    if k0 > 0:
                        while tl.atomic_cas(flags + tile, k0, k0, sem="acquire") != k0:
                            pass
                    if k1 < steps:
                        if k0 == 0:
                            part_desc.store([tile * BM, 0], acc)
                        else:
                            part_desc.atomic_add([tile * BM, 0], acc)
                        tl.atomic_xchg(flags + tile, k1, sem="release")
                else:
                    part_desc.atomic_add([tile * BM, 0], acc)
                    finish = tl.atomic_add(flags + tile, k1 - k0, sem="acq_rel") + k1 - k0 == steps
                    if finish:
                        acc = tl.zeros((BM, BN), tl.float32)
            if finish:
                if flags is not None and k1 - k0 < steps:
                    mine = parts + tile * (BM * BN)
                    at = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
                    acc += tl.load(mine + at)
                    if not ORDERED:
                        tl.debug_barrier()           # a thread may clear what another one reads
                        tl.store(mine + at, tl.zeros((BM, BN), tl.float32))
                    tl.store(flags + tile, 0)
                store_tile(acc, c_desc, tensor_scale(scale_a, scale_b), bias, m, n, M, N, BM, BN, C_ROWS, ACTIVATION)


@tilejit.replayed
def matmul_streamk(a: Any, b: Any, bias: Any = None, activation: str | None = None, out: Any = None,
                   out_dtype: Any = None, *, scale_a: Any = None, scale_b: Any = None, accumulate: bool = False,
                   ordered: bool = False, split: int | None = None, ctas: int | None = None,
                   workspace: Workspace | None = None, config: Way | None = None) -> Any:
    """activation(scale_a * scale_b * (a @ b) + bias) with fp32 sums, for shapes whose tiles alone do not fill the chip.

    a [M, K], b [K, N]: bf16, fp16, fp32 (tf32 products) or fp8, each row- or column-major (fp8 and fp32: a row-major,
    b column-major); strides and addresses multiples of 16 bytes. scale_a, scale_b: arrays of one fp32 number (without:
    1). bias [N]. The result has the inputs' dtype (bf16 for fp8) unless `out` or `out_dtype` says otherwise.
    accumulate: out (fp32) += a @ b; no scales, bias, activation or workspace. ordered: sums in a fixed order, so that
    equal inputs give equal bits. split: programs a tile; ctas: 1, 2, 4 or 8 CTAs a program, which divide K (default of
    both: chosen from the shape). workspace: reused memory (`workspace_for`); without one each call clears its own.
    config: all of it, instead of a choice.
    Raises LaunchError for what does not fit. Stream-K: arXiv 2301.03598."""
    infos = infos_of(a, b, bias)
    if out is None:
        if accumulate:
            raise tilejit.LaunchError(f"{_WHAT}: accumulate adds to `out`")
        shape = _checked(*facts_of(*infos[:2]))
        out = tilejit.empty_like(a, shape, out_dtype) if out_dtype else new(a, shape, infos[0].dtype)
    scales = tensor_scales(_WHAT, scale_a, scale_b)
    if accumulate and scales:
        raise tilejit.LaunchError(f"{_WHAT}: accumulate adds the product itself, without scales")
    infos = *infos, tilejit.array_info(out)
    run(*launches((a, b, bias, out), infos, activation, accumulate, ordered, split, ctas, workspace, config, **scales))
    return out


def launches(arrays: tuple[Any, ...], infos: tuple[ArrayInfo | None, ...], activation: str | None,
             accumulate: bool = False, ordered: bool = False, split: int | None = None, ctas: int | None = None,
             workspace: Workspace | None = None, config: Way | None = None, **scales: Any) -> list[Call]:
    """What `matmul_streamk` of a, b, bias (or None) and out, of which `infos` says what they are, and of
    `tensor_scales` launches."""
    (a, b, bias, out), (ia, ib, _, io) = arrays, infos
    assert ia is not None and ib is not None and io is not None
    plan = _plan(*facts_of(*infos), activation, accumulate, ordered, split, ctas, config, *place(ia))
    if plan is None:
        return []
    t, launch = plan
    over, of = ((b, a, out), (ib, ia, io)) if t.swap else ((a, b, out), (ia, ib, io))
    meet = (None, None, None) if accumulate else meeting(_WHAT, a, t, workspace)
    calls: list[Call] = [(launch, (over, of, *meet, bias), scales)]
    if t.parts and not accumulate:
        calls = [(launch, (over, of, meet[0]), {}), sum_parts(
            meet[1], out, io, bias, activation, (t.m, t.n), t.parts, GROUP, t.swap, **scales)]
    return calls


@lru_cache(maxsize=1024)
def _checked(a: ArrayInfo, b: ArrayInfo) -> tuple[int, int]:
    """The shape of the result. Raises LaunchError for operands that do not go together."""
    ma, mb = operand(_WHAT, "a", a), operand(_WHAT, "b", b)
    check_operands(_WHAT, ma, mb, DTYPES)
    return ma.shape[0], mb.shape[1]


@lru_cache(maxsize=1024)
def _plan(a: ArrayInfo, b: ArrayInfo, bias: ArrayInfo | None, out: ArrayInfo, activation: str | None, accumulate: bool,
          ordered: bool, split: int | None, ctas: int | None, config: Way | None,
          multiprocessors: int, knobs: Any) -> tuple[Way, Launch] | None:
    """Tile, and the launch for the operands in the kernel's order and the result; None where that is empty."""
    if activation not in ACTIVATIONS:
        raise tilejit.LaunchError(f"{_WHAT}: activation {activation!r} is not one of {ACTIVATIONS}")
    ma, mb = operand(_WHAT, "a", a), operand(_WHAT, "b", b)
    (m, k), n = ma.shape, mb.shape[1]
    check_vector(_WHAT, "bias", bias, n)
    mc = result(_WHAT, out, (m, n))
    if accumulate and (bias is not None or activation is not None or ordered or mc.dtype != tl.float32):
        raise tilejit.LaunchError(f"{_WHAT}: accumulate adds to an fp32 `out`, without bias, activation or order; "
                                  f"found {mc.dtype}")
    if m == 0 or n == 0:
        return None
    if ctas not in (None, 1, 2, 4, 8) or (ctas or 1) > 1 and split is not None:
        raise tilejit.LaunchError(f"{_WHAT}: ctas is 1, 2, 4 or 8, and without split; found {ctas} and split={split}")
    t = config or _choice(ma, mb, multiprocessors, split, ctas)
    tiles = t.tiles(m, n)
    if t.stream > tiles or t.parts and t.stream < tiles:
        raise tilejit.LaunchError(f"{_WHAT}: config divides {t.stream} tiles, the result has {tiles} of "
                                  f"{t.m} x {t.n}: see Way.divided")
    if t.swap:
        ma, mb, m, n = mb.transposed(), ma.transposed(), n, m
    bk = t.k_bytes * t.k_ctas // ma.dtype.bytes
    da, db = ma.descriptor(t.m, bk), mb.descriptor(bk, t.n)
    dc = mc.descriptor(t.n, t.m) if t.swap else mc.descriptor(t.m, t.n)
    written = {} if t.parts and not accumulate else {"out": dc}          # the sum of parts is written through pointers
    require_tma(_WHAT, **{"b" if t.swap else "a": da, "a" if t.swap else "b": db}, **written)
    constants = dict(M=m, N=n, K=k, BM=t.m, BN=t.n, BK=bk, GROUP=GROUP, A_ROWS=ma.rows_first, B_ROWS=mb.rows_first,
                     num_stages=t.depth(mc.dtype.bytes),
                     launch_pdl=t.programs * t.ctas >= (1 - IDLE) * multiprocessors, **t.options)
    if t.parts and not accumulate:
        return t, Launch(split_kernel.partial(PARTS=t.parts, store_stages=STORE_STAGES, **constants), (t.programs,),
                         (da, db))
    ordered = t.beside or ordered and t.ctas == 1
    kernel = streamk_kernel.partial(stream_tiles=t.stream, C_ROWS=not t.swap, ACTIVATION=activation,
                                    ADD=accumulate, ORDERED=ordered, **constants)
    return t, Launch(kernel, (t.programs,), (da, db, dc))


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


def _choice(a: Matrix, b: Matrix, multiprocessors: int, split: int | None, ctas: int | None) -> Way:
    """`choose_for` two operands."""
    return choose_for((*a.shape, b.shape[1]), a.dtype.bytes, (a.rows_first, b.rows_first), multiprocessors, split, ctas)


def workspace_for(a: Any, b: Any, split: int | None = None, ctas: int | None = None,
                  config: Way | None = None) -> Workspace:
    """A workspace that is large enough for `matmul_streamk(a, b, split=split, ctas=ctas, config=config)`."""
    ma, mb = operand(_WHAT, "a", tilejit.array_info(a)), operand(_WHAT, "b", tilejit.array_info(b))
    return workspace_of(config or _choice(ma, mb, tilejit.multiprocessors(), split, ctas), a)
