"""The host's side of attention's gradient: rows, then keys and values, which add to queries' (docs/products.md)."""
from __future__ import annotations

from functools import lru_cache
from typing import Any

import tilejit
from tilejit import ArrayInfo
from tilejit.kernels._calls import infos_of
from tilejit.kernels.attention.backward_kernel import (
    SHARED,
    Shares,
    bound_kernel,
    key_kernel,
    query_kernel,
    row_kernel,
    sum_kernel,
)
from tilejit.kernels.attention.cases import WHAT, Case, Extras, blocks_of, check, factor, flat, options, split_of
from tilejit.kernels.attention.forward import SEQUENCES, ragged_rows, sequences
from tilejit.kernels.attention.forward_kernel import share_kernel
from tilejit.kernels.attention.scores import Band, Options, Rows, Sequences
from tilejit.kernels.attention.scores import Shares as Share
from tilejit.kernels.rows.columns import column_sum

#: Bytes of sums of heads that share keys which a program may take on when all others have ended.
LAST = 1 << 19
#: Blocks of keys are listed where so many programs a multiprocessor would have none.
SAVED = 10
#: Shares of the blocks of keys that would leave multiprocessors idle at the end.
COUNT = 3


def _plain(case: Case, extras: Extras) -> bool:
    return not (case.low or case.changes or case.mask is not None or extras.slopes is not None or case.max_queries)


def apart(case: Case, wide: int, queries: int) -> bool:
    """Whether queries have their own kernel: faster for wide heads, whose sums leave no shared memory for a second
    block, and for few queries. Sums of what a `score_mod` changes have no bound."""
    few = 512 * (case.deterministic + (wide > 64))
    return wide > 128 or queries <= few or case.deterministic and case.score is not None


def divided(case: Case, extras: Extras, wide: int, group: int) -> bool:
    """Whether keys and values have a kernel each, for blocks of 128 keys where heads are wide: shared memory and
    registers have no room for both unless scores and masks are plain."""
    return wide > 128 and _plain(case, extras) and not (case.high and group > 1)


@lru_cache(maxsize=64)
def tiles_of(wide: int, wide_v: int, case: Case, alone: bool, added: bool) -> tuple[int, int, int]:
    """Queries and keys of a block, and warps, so that sums find registers. alone: keys and values have a kernel
    each. added: products' sums begin with rows' numbers, which then take no registers."""
    if added:
        return (128 if max(wide, wide_v) <= 64 else 64), 128, 8
    more = case.score is not None or case.dropout is not None or case.softcap is not None and case.deterministic
    return (64, 128, 8) if alone or max(wide, wide_v) <= (64 if more else 128) else (64, 64, 8)


def query_tiles(wide: int, plain: bool) -> tuple[int, int]:
    """Queries and keys of a block of the queries' own kernel, by registers and shared memory. plain: only a causal
    mask."""
    return 128, (128 if plain else 64) if wide <= 64 else 64 if wide <= 128 else 32


def _shares(like: Any, programs: int, chip: int, elements: int) -> Shares | None:
    """Shares of the last blocks of keys, where that saves a round. elements: of a block's keys, or values."""
    over = programs % chip
    if not 0 < COUNT * over <= (COUNT - 1) * chip or over > SHARED:
        return None
    return Shares(programs - over, tilejit.empty_like(like, (SHARED,), tilejit.language.int32), tilejit.empty_like(
        like, (over * COUNT * 2 * elements,), tilejit.language.float32), tilejit.language.constexpr(COUNT))


def _listed(like: Any, opts: Options, blocks: int, queries: int, keys: int, batch: int, bm: int, bn: int) -> Options:
    """With a list of sequences' blocks of keys, at most so many, those that most queries see first."""
    size, table = sequences(batch), tilejit.empty_like(like, (blocks, 10), tilejit.language.int32)
    shares = Share(0, 0, blocks, table=table)
    turned = Options(Band(opts.band.right, opts.band.left), sequences=Sequences(*opts.sequences[1::-1]))
    share_kernel[(batch,)](shares, keys, queries, 1, batch, 1, turned, START=0, SHARE=0, JOIN=0, PARTS=1, SIZE=size,
                           BM=bn, BN=bm, num_warps=size // 32)
    return opts._replace(shares=shares)


@tilejit.replayed
def gradients(grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, lse_grad: Any, case: Case,
              extras: Extras) -> tuple[Any, Any, Any, Any]:
    """The gradients of q, k, v and of the sinks (None without any); lse_grad: that of the logarithms of sums, or None.

    Raises LaunchError for cases without a gradient.
    """
    iq, ik, iv, io, ig = infos_of(q, k, v, out, grad)
    infos = infos_of(*flat(extras))
    batch, queries, keys, heads, kv_heads, d, dv = check(iq, ik, iv, case, infos)
    _check_gradient(case, extras, iq)
    packed = infos[3] is not None
    wide, wide_v = (64 if x <= 64 else 128 if x <= 128 else 256 for x in (d, dv))
    most = max(wide, wide_v)
    group = heads // kv_heads
    alone, together = divided(case, extras, most, group), not apart(case, most, queries)
    added = together and most <= 128 and not case.changes and extras.slopes is None and (
        most > 64 or not case.low and case.mask is None)
    bm, bn, warps = tiles_of(wide, wide_v, case, alone, added)
    opts = options(case, extras, infos)
    dq, dk, dv_out = (tilejit.empty_like(x, i.shape) for x, i in ((q, iq), (k, ik), (v, iv)))
    blocks, steps = tilejit.cdiv(queries, bm), tilejit.cdiv(keys, bn)
    rows = (iq.shape[0] // bm + batch) * bm if packed else batch * blocks * bm
    fp32, lines = tilejit.language.float32, max(rows, bm)
    stats = tilejit.empty_like(q, (heads, lines, 16), tilejit.language.bfloat16) if added else \
        tilejit.empty_like(q, (heads, 2, lines), fp32)
    count, exact = max(rows // bm, 1) * heads, together and case.deterministic
    sums = tilejit.empty_like(q, (count, bm * wide), tilejit.language.int32 if exact else fp32) if together else None
    units = tilejit.empty_like(q, (count, bm), fp32) if exact else None
    spans = 1 << min(4, (steps - 1).bit_length())  # of a head's keys, a program each
    bounds = tilejit.empty_like(q, (batch, kv_heads, 2, spans), tilejit.language.int32) if exact else None
    lost = tilejit.empty_like(q, (batch, kv_heads), tilejit.language.int32) if exact and iq.dtype == \
        tilejit.language.float16 else None
    ends = together and steps and group * queries * wide * 4 <= LAST
    done = tilejit.empty_like(q, (batch, kv_heads), tilejit.language.int32) if ends else None
    strides = tilejit.array_info(dq).strides
    of_dq = Rows(dq, 0 if packed else strides[0], strides[-3], strides[-2], d) if together else None
    split = split_of(case, bm)
    tail = case.high or split != 1 or packed or keys % bn > 0 or extras.used is not None
    programs, shares = steps * kv_heads * batch, None
    if added and not (ends or tail) and wide == wide_v:
        shares = _shares(q, programs, tilejit.multiprocessors(iq.device), bn * wide)
    early = most <= 64 or None  # 1% (H100), but heads of 128 lose as much
    parts = None if extras.sinks is None else tilejit.empty_like(q, (blocks * batch, heads), fp32)
    desc = [blocks_of(x, n, w).over(a) for x, n, w, a in (
        (iq, bm, wide, q), (ik, bn, wide, k), (iv, bn, wide_v, v), (ig, bm, wide_v, grad), (io, bm, wide_v, out))]
    of_rows = tilejit.TensorDescriptor(stats, (heads, lines, 16), (16 * lines, 16, 1), (1, bm, 16)) if added else \
        tilejit.TensorDescriptor(stats, (heads, 2, lines), (2 * lines, lines, 1), (1, 1, bm))
    total = iq.shape[0] if packed else queries
    if exact and batch:
        bound_kernel[(spans, kv_heads, batch)](
            desc[1], desc[2], bounds, lost, total, keys, heads, opts.sequences, GROUP=group, SPANS=spans, BN=bn, D=wide,
            DV=wide_v, num_warps=8)
    if blocks and batch:
        row_kernel[(blocks, heads, batch)](
            desc[4], desc[3], lse, lse_grad, stats, sums, units, bounds, done, shares and shares.arrived, extras.sinks,
            parts, total, keys, heads, lines, factor(case, extras), 1.0 / (1.0 - (case.dropout or 0.0)),
            opts.sequences, GROUP=group, SPANS=spans, BM=bm, DV=wide_v, D=wide, ADDED=added, num_warps=4,
            launch_pdl=early)
    settings = dict(GROUP=group, BM=bm, BN=bn, D=wide, DV=wide_v, num_warps=warps,
                    num_stages=2 if bm == 128 else None,
                    products_ahead=alone or None)  # it has the registers, by a few
    if steps and batch:
        to = [(ragged_rows if packed else blocks_of)(tilejit.array_info(x), bn, w).over(x)
              for x, w in ((dk, wide), (dv_out, wide_v))]
        grid = (steps, kv_heads, batch) if shares is None else (shares.whole + (programs - shares.whole) * COUNT, 1, 1)
        there = ik.shape[0] // bn + batch  # blocks of keys at most
        if packed and done is None and extras.used is None and batch <= SEQUENCES and \
                (steps * batch - there) * kv_heads > SAVED * tilejit.multiprocessors(iq.device):
            opts, grid = _listed(q, opts, there, queries, keys, batch, bm, bn), (there, kv_heads, 1)
        for given in [(to[0], None), (None, to[1])] if alone else [to]:
            key_kernel[grid](
                *desc[:4], of_rows, sums, units, lost, *given, of_dq, done, shares, total, keys, factor(case, extras),
                case.scale, heads, opts, TAIL=tail, SPLIT=split, ADDED=added, AT_ONCE=2 if exact else 4, **settings)
    if sums is not None and done is None and blocks and batch:
        sum_kernel[(blocks, heads, batch)](
            of_dq, sums, units, lost, total, keys, case.scale, heads, opts.sequences, GROUP=group, BM=bm, D=wide,
            num_warps=8, launch_pdl=early)
    elif sums is None and blocks and batch:
        pad, (bm, bn) = bm, query_tiles(most, _plain(case, extras))
        tail = case.high or split != 1 or packed or keys % bn > 0 or extras.used is not None
        query_kernel[(tilejit.cdiv(queries, bm), heads, batch)](
            *(blocks_of(x, n, w).over(a) for x, n, w, a in (
                (iq, bm, wide, q), (ik, bn, wide, k), (iv, bn, wide_v, v), (ig, bm, wide_v, grad))),
            tilejit.TensorDescriptor(stats, (heads, 2, lines), (2 * lines, lines, 1), (1, 1, bm)),
            (ragged_rows if packed else blocks_of)(tilejit.array_info(dq), bm, wide).over(dq), total, keys,
            factor(case, extras), case.scale, heads, opts, TAIL=tail, SPLIT=split, PAD=pad,
            **{**settings, "BM": bm, "BN": bn})
    of_sinks = None if parts is None else column_sum(parts, extras.sinks)
    return dq, dk, dv_out, of_sinks


def _check_gradient(case: Case, extras: Extras, q: ArrayInfo) -> None:
    for found, what in ((q.dtype.bytes == 1, "fp8"), (case.page, "pages"),
                        (case.score is not None and case.gradient is None, "a score_mod without score_gradient")):
        if found:
            raise tilejit.LaunchError(f"{WHAT}: {what} has no gradient")
