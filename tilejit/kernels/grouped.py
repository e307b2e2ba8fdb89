"""Grouped matrix products: many problems C[e] = A[e] @ B[e] of unequal numbers of rows, as in mixtures of experts.

One persistent kernel walks the tiles of all problems; every program reads the groups' sizes on its way, so they may be
computed on the device by the kernel before. Tiles that hang over the end of a group read rows of the next one and
store none of them (a descriptor that clips at any row, `_operands.ragged`).
"""
from __future__ import annotations

from functools import lru_cache
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels._calls import Launch, facts_of, infos_of
from tilejit.kernels._operands import (
    DTYPES,
    K_BYTES,
    WRAP,
    Matrix,
    check_operands,
    new,
    operand,
    ragged,
    require_tma,
    result,
)
from tilejit.kernels.scaled import SCALE_BLOCK
from tilejit.kernels.way import Way

_WRAP = tl.constexpr(WRAP)
_BLOCK = tl.constexpr(SCALE_BLOCK)


@tilejit.kernel(do_not_specialize=("groups", "N", "K", "capacity", "a_down", "a_across", "b_group", "b_down",
                                   "b_across"))
def grouped_kernel(a_desc, b_desc, c_desc, sizes, a_scale, b_scale, groups, N, K, capacity, a_down, a_across, b_group,
                   b_down, b_across, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, B_ROWS: tl.constexpr,
                   MASKED: tl.constexpr, SWAP: tl.constexpr):
    """a_desc: [rows, K] in blocks [BM, BK]; b_desc: [groups, K, N] in blocks [1, BK, BN], or without B_ROWS
    [groups, N, K] in blocks [1, BN, BK]; c_desc: ragged, blocks [1, 1, BM, BN].

    MASKED: group e has sizes[e] rows from row e * capacity on; else rows sizes[e] to sizes[e + 1]. SWAP: the tensor
    cores compute transposed tiles, so that BM may be as small as 16. a_scale, b_scale: None, or scales of blocks as in
    `scaled.py`, a_scale a row of A, b_scale a matrix a group; BK is 128 then, and BN divides 128."""
    tiles_n = tl.cdiv(N, BN)
    steps = tl.cdiv(K, BK)
    programs = tl.num_programs(0)
    tile = tl.program_id(0)                   # the next one of this program, counted from the group's first
    for e in range(0, groups):
        if MASKED:
            start = e * capacity
            rows = tl.load(sizes + e)
        else:
            start = tl.load(sizes + e)
            rows = tl.load(sizes + e + 1) - start
        tiles_m = tl.cdiv(rows, BM)
        tiles = tiles_m * tiles_n
        for t in tl.range(tile, tiles, programs):
            m = t % tiles_m * BM
            n = t // tiles_m * BN
            if SWAP:
                acc = tl.zeros((BN, BM), tl.float32)
            else:
                acc = tl.zeros((BM, BN), tl.float32)
            if a_scale is not None:
                inside = m + tl.arange(0, BM) < rows
                a_scales = a_scale + (start + m + tl.arange(0, BM)) * a_down
                b_scales = b_scale + e * b_group + n // _BLOCK * b_down
                of_b = tl.load(b_scales)
            for k in range(0, steps):
                if a_scale is not None:
                    of_a = tl.load(a_scales + k * a_across, inside, other=0.0)
                    # One number goes through no ring: the next block's arrives while this one is multiplied.
                    next_b = tl.load(b_scales + (k + 1) * b_across, k + 1 < steps, other=0.0)
                a = a_desc.load([start + m, k * BK])
                if B_ROWS:
                    b = b_desc.load([e, k * BK, n]).reshape(BK, BN)
                else:
                    b = b_desc.load([e, n, k * BK]).reshape(BN, BK).T
                if a_scale is None:
                    if SWAP:
                        acc = tl.dot(b.T, a.T, acc)
                    else:
                        acc = tl.dot(a, b, acc)
                else:
                    if SWAP:
                        part = tl.dot(b.T, a.T)
                        acc = tl.fma(part, (of_a * of_b)[None, :], acc)
                    else:
                        part = tl.dot(a, b)
                        acc = tl.fma(part, (of_a * of_b)[:, None], acc)
                    of_b = next_b
            c = acc.to(c_desc.dtype)
            if SWAP:
                c = c.T
            c_desc.store([_WRAP, start + rows, _WRAP - rows + m, n], c.reshape(1, 1, BM, BN))
        tile += tl.cdiv(tl.maximum(tiles - tile, 0), programs) * programs - tiles


WIDE, MEDIUM = Way(128, 256, 8, stages=4), Way(64, 256, 8, stages=4)
#: With scales of blocks: two sums fill the registers at 128 x 128.
SCALED, SCALED_MEDIUM = Way(128, 128, 8, stages=6), Way(64, 128, 4, stages=8)
#: Speeds of the narrower ones where there are many, of that of the wider ones, on an H200.
_SPEED = {MEDIUM: 0.925, SCALED_MEDIUM: 0.72}
#: Computed transposed, for few rows a group.
SMALL = tuple(Way(128, m, 4, swap=True, stages=stages) for m, stages in ((16, 10), (32, 9), (64, 7)))


@lru_cache(maxsize=1024)
def choose(rows: int, groups: int, n: int, multiprocessors: int, scaled: bool = False) -> Way:
    """The tile for groups of `rows` rows on average. Small groups are bound by the bytes of B: one tile holds all
    their rows where it can. Larger ones take the tile of which groups of the average take the least time."""
    average = tilejit.cdiv(rows, max(1, groups))
    # Groups differ: a tile that holds twice the average holds most of them (6% faster for 64 uneven groups on an H200).
    most = min(2 * average, max(average, SMALL[-1].n))
    for t in SMALL:
        if most <= t.n:
            return t

    def time(t: Way) -> float:
        turns = tilejit.cdiv(groups * tilejit.cdiv(average, t.m) * tilejit.cdiv(n, t.n), multiprocessors)
        return turns * t.m / _SPEED.get(t, 1.0)

    return min((SCALED, SCALED_MEDIUM) if scaled else (WIDE, MEDIUM), key=time)


@tilejit.replayed
def grouped_matmul(a: Any, b: Any, offsets: Any, out: Any = None, out_dtype: Any = None, *, scale_a: Any = None,
                   scale_b: Any = None, config: Way | None = None) -> Any:
    """out[offsets[e]:offsets[e + 1]] = a[offsets[e]:offsets[e + 1]] @ b[e] for every group e (contiguous form).

    a [rows, K], row-major; b [groups, K, N], each matrix row- or column-major (fp8 and fp32: column-major); bf16,
    fp16, fp32 (tf32 products) or fp8; fp32 sums. offsets: int32 [groups + 1] on the device, ascending, at most `rows`;
    groups may be empty and start at any row. Rows outside all groups are not written. scale_a [rows, ceil(K / 128)]
    and scale_b [groups, ceil(N / 128), ceil(K / 128)], both or none: fp32 scales of blocks of fp8 operands, as for
    `matmul_blockscaled`. The result [rows, N] has the inputs' dtype (bf16 for fp8) unless `out` or `out_dtype` says
    otherwise. Raises LaunchError for what does not fit."""
    return _run("grouped_matmul", a, b, out, out_dtype, offsets, (scale_a, scale_b), False, None, config)


@tilejit.replayed
def masked_grouped_matmul(a: Any, b: Any, counts: Any, out: Any = None, out_dtype: Any = None, *, scale_a: Any = None,
                          scale_b: Any = None, expected: int | None = None, config: Way | None = None) -> Any:
    """out[e, :counts[e]] = a[e, :counts[e]] @ b[e] for every group e (masked form; other rows are not written).

    a [groups, capacity, K] and the result [groups, capacity, N] are contiguous stacks of row-major matrices; b as for
    `grouped_matmul`; counts: int32 [groups] on the device, at most `capacity`. scale_a [groups, capacity, ceil(K /
    128)], the groups stacked as densely, and scale_b: as for `grouped_matmul`. expected: rows of a usual group, which
    chooses the tile (default: the capacity)."""
    return _run("masked_grouped_matmul", a, b, out, out_dtype, counts, (scale_a, scale_b), True, expected, config)


def _run(what: str, a: Any, b: Any, out: Any, out_dtype: Any, sizes: Any, scales: tuple[Any, Any], masked: bool,
         expected: int | None, config: Way | None) -> Any:
    """Both forms; `sizes` are the groups' offsets or, masked, their rows. Returns the result."""
    ia, ib, isizes = infos_of(a, b, sizes)
    if out is None:
        shape = _checked(what, *facts_of(ia, ib, isizes), masked)
        out = tilejit.empty_like(a, shape, out_dtype) if out_dtype else new(a, shape, ia.dtype)
    io = tilejit.array_info(out)
    iscales = infos_of(*scales)
    launch = _launch(what, *facts_of(ia, ib, io, isizes), facts_of(*iscales), masked, expected, config,
                     tilejit.multiprocessors(ia.device))
    if launch is not None:
        launch((a, b, out), (ia, ib, io), sizes, *scales)
    return out


def _flat(what: str, name: str, x: Matrix) -> Matrix:
    """A contiguous stack of row-major matrices as one matrix."""
    groups, rows, columns = x.shape
    if not x.rows_first or groups > 1 and x.strides[0] != rows * x.strides[1]:
        raise tilejit.LaunchError(f"{what}: {name} must be a contiguous stack of row-major matrices, found strides "
                                  f"{list(x.strides)} for shape {list(x.shape)}")
    return Matrix(x.info, (groups * rows, columns), x.strides[1:], True)


def _operands(what: str, a: ArrayInfo, b: ArrayInfo, masked: bool) -> tuple[Matrix, Matrix]:
    ma = _flat(what, "a", operand(what, "a", a, 3)) if masked else operand(what, "a", a)
    return ma, operand(what, "b", b, 3)


@lru_cache(maxsize=1024)
def _checked(what: str, a: ArrayInfo, b: ArrayInfo, sizes: ArrayInfo, masked: bool) -> tuple[int, ...]:
    """The shape of the result. Raises LaunchError for arrays that do not go together."""
    ma, mb = _operands(what, a, b, masked)
    check_operands(what, ma, mb, DTYPES)
    groups = mb.shape[0]
    if not ma.rows_first:
        raise tilejit.LaunchError(f"{what}: a must be row-major, found strides {list(ma.strides)}")
    if masked and a.shape[0] != groups:
        raise tilejit.LaunchError(f"{what}: a has {a.shape[0]} groups, b {groups}")
    name, length = ("counts", groups) if masked else ("offsets", groups + 1)
    if sizes.dtype != tl.int32 or sizes.shape != (length,) or sizes.strides[0] != 1 and length > 1:
        raise tilejit.LaunchError(f"{what}: {name} must be int32 [{length}], found {sizes.dtype} {list(sizes.shape)}")
    return *a.shape[:-1], mb.shape[2]


def _scale_strides(what: str, a: ArrayInfo, n: int, groups: int, scales: tuple[ArrayInfo | None, ...],
                   masked: bool) -> tuple[int, ...]:
    """Strides of the scales: of A down and across, of B from group to group, down and across; zeros without scales."""
    steps = tilejit.cdiv(a.shape[-1], SCALE_BLOCK)
    wanted = (*a.shape[:-1], steps), (groups, tilejit.cdiv(n, SCALE_BLOCK), steps)
    if scales == (None, None):
        return (0,) * 5
    if not a.dtype.is_fp8():
        raise tilejit.LaunchError(f"{what}: scales of blocks are for fp8 operands, found {a.dtype}")
    strides: list[tuple[int, ...]] = []
    for name, info, shape in zip(("scale_a", "scale_b"), scales, wanted):
        if info is None or info.dtype != tl.float32 or info.shape != shape:
            found = "none" if info is None else f"{info.dtype} {list(info.shape)}"
            raise tilejit.LaunchError(f"{what}: {name} must be fp32 {list(shape)}, found {found}")
        strides.append(info.strides)
    if masked and groups > 1 and strides[0][0] != a.shape[1] * strides[0][1]:
        raise tilejit.LaunchError(f"{what}: scale_a must be a dense stack, found strides {list(strides[0])}")
    return *strides[0][-2:], *strides[1]


@lru_cache(maxsize=1024)
def _launch(what: str, a: ArrayInfo, b: ArrayInfo, out: ArrayInfo, sizes: ArrayInfo,
            scales: tuple[ArrayInfo | None, ...], masked: bool, expected: int | None, config: Way | None,
            multiprocessors: int) -> Launch | None:
    """The launch for a, b and the result; None where that is empty."""
    mc = result(what, out, _checked(what, a, b, sizes, masked))
    ma, mb = _operands(what, a, b, masked)
    if masked:
        mc = _flat(what, "out", mc)
    (rows, k), (groups, _, n) = ma.shape, mb.shape
    if 0 in (rows, n, groups):
        return None
    strides = a_down, a_across, b_group, b_down, b_across = _scale_strides(what, a, n, groups, scales, masked)
    usual = rows if expected is None else expected * groups
    t = config or choose(usual, groups, n, multiprocessors, any(strides))
    bk = K_BYTES // ma.dtype.bytes
    bm, bn = t.computed(t.m, t.n)
    descriptors = {"a": ma.descriptor(bm, bk), "b": mb.descriptor(bk, bn), "out": ragged(mc, bm, bn)}
    require_tma(what, **descriptors)
    tiles = (tilejit.cdiv(rows, bm) + groups) * tilejit.cdiv(n, bn)        # at most
    capacity = a.shape[1] if masked else 0
    kernel = grouped_kernel.partial(
        groups=groups, N=n, K=k, capacity=capacity, a_down=a_down, a_across=a_across, b_group=b_group, b_down=b_down,
        b_across=b_across, BM=bm, BN=bn, BK=bk, B_ROWS=mb.rows_first, MASKED=masked, SWAP=t.swap, num_warps=t.warps,
        num_stages=t.stages)
    return Launch(kernel, (min(multiprocessors, tiles),), tuple(descriptors.values()))
