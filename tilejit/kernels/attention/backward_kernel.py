"""The kernels of attention's gradient: what a row needs, keys and values (and queries, by additions in L2), queries."""
from __future__ import annotations

from typing import Any, NamedTuple

import tilejit
import tilejit.language as tl
from tilejit.kernels._operands import WRAP
from tilejit.kernels.attention.forward_kernel import share_of
from tilejit.kernels.attention.scores import (
    LOG2E,
    band_of,
    capped,
    change_gradient,
    changed,
    changes,
    kept,
    place,
    queries_of,
    seen,
)
from tilejit.language.extra.libdevice import float2int_rn

_LOG2E, _WRAP = tl.constexpr(LOG2E), tl.constexpr(WRAP)


class Shares(NamedTuple):
    """Programs from `whole` on have blocks of keys in `count` shares each: `by_heads` of the heads that share keys, of
    which each has the same part of the queries."""

    whole: Any
    count: Any
    by_heads: Any
    sums: Any


@tilejit.kernel
def padded_row(at, queries, sequences, BM: tl.constexpr):
    """Where a sequence starts in arrays of whole blocks of BM queries: those of `queries` each, or its own."""
    row = at.batch * (tl.cdiv(queries, BM) * BM)
    if sequences.queries is not None:
        row = (at.first_query // BM + at.batch) * BM
    return row


@tilejit.kernel
def held(x, BM: tl.constexpr, D: tl.constexpr):
    """[BM, D] in the order of two warpgroups' fragments (PTX ISA, wgmma.mma_async, D): 16 contiguous bytes a thread."""
    return x.reshape([BM // 64, 4, 2, 8, 128 // BM, D * BM // 1024, 4, 2]).permute(5, 0, 4, 1, 3, 6, 2, 7).reshape(
        [BM * D])


@tilejit.kernel
def add_held(sums, units, x, block, BM: tl.constexpr, D: tl.constexpr):
    """Add [BM, D], 64 or 128 rows, to a block of sums as `held`, nothing through shared memory."""
    if units is not None:
        x = float2int_rn(x * tl.load(units + block * BM + tl.arange(0, BM))[:, None])
        x = x.reshape([BM // 64, 4, 2, 8, 128 // BM, D * BM // 1024, 4, 2]).permute(5, 2, 7, 0, 4, 1, 3, 6)
    else:
        x = held(x, BM, D)
    to = sums + block.to(tl.int64) * (BM * D) + tl.arange(0, BM * D)
    tl.atomic_add(to, x.reshape([BM * D]), sem="relaxed")


@tilejit.kernel
def by_rows(x, N: tl.constexpr, BM: tl.constexpr, D: tl.constexpr):
    if x.dtype == tl.float32:
        x = x.reshape([N, D * BM // 1024, BM // 64, 128 // BM, 4, 8, 4, 2, 2]).permute(0, 2, 4, 7, 5, 3, 1, 6, 8)
    else:
        x = x.reshape([N, D * BM // 1024, 2, 2, BM // 64, 128 // BM, 4, 8, 4]).permute(0, 4, 6, 2, 7, 5, 1, 8, 3)
    return x.reshape([N * BM, D])


@tilejit.kernel
def pieces(x, y):
    """[n] and [n] as [n, 16] in bf16; see docs/modules.md."""
    column = tl.arange(0, 16)[None, :]
    x = tl.where(column < 8, x[:, None], tl.clamp(y, -3e38, 3e38, tl.PropagateNan.ALL)[:, None])
    high = x.to(tl.bfloat16)
    rest = tl.where(tl.abs(x) == float("inf"), 0.0, x - high.to(tl.float32))
    mid = rest.to(tl.bfloat16)
    low = (rest - mid.to(tl.float32)).to(tl.bfloat16)
    piece = column % 8
    return tl.where(piece == 0, high, tl.where(piece == 1, mid, tl.where(piece == 2, low, 0.0)))


@tilejit.kernel
def bound_kernel(k_desc, v_desc, bounds, lost, queries, keys, heads, sequences, GROUP: tl.constexpr,
                 SPANS: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, DV: tl.constexpr):
    """Bounds of the norms of keys and values; see docs/modules.md."""
    span, kv_head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = place(batch, kv_head * GROUP, heads, queries, keys, sequences)
    of_keys, of_values = tl.zeros([BN], tl.int32), tl.zeros([BN], tl.int32)
    for n in tl.range(span * BN, at.keys, SPANS * BN):
        k = k_desc.load([at.row, at.first_key + n, kv_head, 0]).reshape([BN, D])
        v = v_desc.load([at.row, at.first_key + n, kv_head, 0]).reshape([BN, DV])
        there = n + tl.arange(0, BN) < at.keys
        of_keys = tl.maximum(of_keys, tl.where(there, greatest(k), 0))
        of_values = tl.maximum(of_values, tl.where(there, greatest(v), 0))
    to = bounds + (batch * tl.num_programs(1) + kv_head) * (2 * SPANS) + span
    tl.store(to, tl.max(of_keys, 0))
    tl.store(to + SPANS, tl.max(of_values, 0))
    if lost is not None and span == 0:
        tl.store(lost + batch * tl.num_programs(1) + kv_head, 0)


@tilejit.kernel
def greatest(x):
    """The greatest elements of rows, without signs, as integers, of which NaN is the greatest."""
    return tl.max(x.to(tl.float32).to(tl.int32, bitcast=True) & 0x7fffffff, 1)


@tilejit.kernel
def row_kernel(out_desc, grad_desc, lse, lse_grad, stats, sums, units, bounds, done, sinks, sink_parts, queries,
               keys, heads, rows, factor, dropout, sequences, GROUP: tl.constexpr, SPANS: tl.constexpr,
               BM: tl.constexpr, DV: tl.constexpr, D: tl.constexpr, ADDED: tl.constexpr):
    """What products and sums of queries' gradients begin with, of BM rows of a head; see docs/modules.md."""
    batch, head = tl.program_id(2), tl.program_id(1)
    begin = tl.program_id(0) * BM
    at = place(batch, head, heads, queries, keys, sequences)
    index = begin + tl.arange(0, BM)
    inside = index < at.queries
    where = (batch * heads + head) * queries + index
    if sequences.queries is not None:
        where = head * queries + at.first_query + index
    o = out_desc.load([at.row, at.first_query + begin, head, 0]).reshape([BM, DV]).to(tl.float32)
    g = grad_desc.load([at.row, at.first_query + begin, head, 0]).reshape([BM, DV]).to(tl.float32)
    delta = tl.where(inside, tl.sum(o * g, 1), 0.0)
    log = tl.load(lse + where, inside, other=float("-inf"))
    log = tl.where(log == float("-inf"), float("inf"), log * _LOG2E)
    of_lse = 0.0
    if lse_grad is not None:
        of_lse = tl.load(lse_grad + where, inside, other=0.0)
        delta = delta - of_lse
    if sinks is not None:
        weight = tl.exp2(tl.load(sinks + head).to(tl.float32) * _LOG2E - log)
        program = batch * tl.num_programs(0) + tl.program_id(0)
        tl.store(sink_parts + program * heads + head, -tl.sum(weight * delta, 0))
    to = padded_row(at, queries, sequences, BM) + index
    if done is not None and tl.program_id(0) == 0 and head % GROUP == 0:
        tl.store(done + batch * (heads // GROUP) + head // GROUP, 0)
    if ADDED:
        inside = begin < at.queries + index[:, None] * 0
        line = stats + (head.to(tl.int64) * rows + to)[:, None] * 16 + tl.arange(0, 16)[None, :]
        tl.store(line, pieces(-delta, log / -factor), inside)
    elif sequences.queries is not None:
        inside = begin < at.queries + index * 0
        tl.store(stats + head * 2 * rows + to, log, inside)
        tl.store(stats + (head * 2 + 1) * rows + to, delta, inside)
    else:
        tl.store(stats + head * 2 * rows + to, log)
        tl.store(stats + (head * 2 + 1) * rows + to, delta)
    if sums is not None:
        block = (padded_row(at, queries, sequences, BM) + begin) // BM * heads + head
        start = sums + block.to(tl.int64) * (BM * D)
        if sequences.queries is None or begin < at.queries:
            tl.store(start + tl.arange(0, BM)[:, None] * D + tl.arange(0, D)[None, :],
                     tl.zeros([BM, D], sums.dtype.element_ty))
            if units is not None:
                # Products with values are on average no further from delta, their average, than half of their range.
                span = bounds + (batch * (heads // GROUP) + head // GROUP) * (2 * SPANS) + tl.arange(0, SPANS)
                key = tl.max(tl.load(span), 0).to(tl.float32, bitcast=True)
                value = tl.max(tl.load(span + SPANS), 0).to(tl.float32, bitcast=True)
                most = (tl.sum(tl.abs(g), 1) * (value * dropout) + tl.abs(of_lse)) * key
                finite = (most < float("inf")) & (log == log) & (delta == delta)
                unit = tl.where(finite, 2.0 ** 30 / tl.maximum(most, 2.0 ** -80), float("nan"))
                tl.store(units + block * BM + tl.arange(0, BM), unit)


@tilejit.kernel
def weights(scores, log, factor, query, key, keep, at, opts, MASKED: tl.constexpr):
    if changes(opts.mods):
        p = tl.exp2(changed(scores * factor, query, key, at, opts.mods) * _LOG2E - log)
        if MASKED:
            p = tl.where(keep, p, 0.0)
    else:
        if MASKED:
            scores = tl.where(keep, scores, float("-inf"))
        scores *= factor
        p = tl.exp2(scores if log is None else scores - log)
    return p


@tilejit.kernel
def dropped(x, query, key, at, mods):
    if mods.dropout is not None:
        x = tl.where(kept(query, key, at, mods), x * (1.0 / (1.0 - mods.dropout)), 0.0)
    return x


@tilejit.kernel
def steep(p, scores, factor, mods):
    if mods.softcap is not None and mods.score is None:
        z = capped(scores * factor, mods) * (1.0 / mods.softcap)
        p = tl.where(p > 0, p * (1.0 - z * z), 0.0)
    return p


@tilejit.kernel
def score_gradient(p, weight_grad, delta, scores, factor, query, key, at, opts):
    grad = p * (dropped(weight_grad, query, key, at, opts.mods) - delta)
    if opts.mods.score is not None:
        grad = tl.where(p > 0, change_gradient(grad, scores * factor, query, key, at, opts.mods), 0.0)
    return grad


@tilejit.kernel
def queries_of_keys(q_desc, grad_desc, stats, sums, units, k, v, dk, dv, last, block, start, stop, low, factor, key,
                    prefix, head, at, opts, ADDED: tl.constexpr, BM: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
                    MASKED: tl.constexpr):
    """Add to dk and dv (or the one given) what queries from `start` to `stop` give."""
    columns = tl.arange(0, BM)[None, :]
    for m in tl.range(start, stop, BM, split_masks=False):
        less_log, less_delta = None, None
        if ADDED:
            ones = tl.where(tl.arange(0, 16)[None, :] + key * 0 < 3, 1.0, 0.0).to(tl.bfloat16)
            less_log = tl.dot(ones, stats.load([head, low + m, 8]).reshape([BM, 16]).T)
        q = q_desc.load([at.row, at.first_query + m, head, 0]).reshape([BM, D])
        scores = tl.dot(k, q.T, less_log)
        grad = grad_desc.load([at.row, at.first_query + m, head, 0]).reshape([BM, DV])
        if ADDED:
            less_delta = tl.dot(ones, stats.load([head, low + m, 0]).reshape([BM, 16]).T)
        if dk is not None:
            weight_grad = tl.dot(v, grad.T, less_delta)
        log, keep = None, None
        if not ADDED:
            log = stats.load([head, 0, low + m]).reshape([1, BM])
        if MASKED:
            keep = seen(m + columns, key, at, prefix, opts)
        p = weights(scores, log, factor, m + columns, key, keep, at, opts, MASKED)
        # The tensor cores multiply while scores' gradients are computed.
        if dv is not None:
            dv = tl.dot(dropped(p, m + columns, key, at, opts.mods).to(grad.dtype), grad, dv)
        if dk is not None:
            if ADDED:
                ds = (p * weight_grad).to(k.dtype)
            else:
                p = steep(p, scores, factor, opts.mods)
                # Not earlier: a thread has registers for one such row only.
                delta = stats.load([head, 1, low + m]).reshape([1, BM])
                ds = score_gradient(p, weight_grad, delta, scores, factor, m + columns, key, at, opts).to(k.dtype)
            if sums is not None:
                dq = tl.dot(last.T, k)
            dk = tl.dot(ds, q, dk)  # under which sums go out
            if sums is not None:
                add_held(sums, units, dq, block, BM, D)
                last, block = ds, (low + m) // BM * at.heads + head
    return dk, dv, last, block


@tilejit.kernel
def give_keys(desc, x, n, head, at, opts):
    x = x.to(desc.dtype)
    if opts.sequences.keys is not None:
        length, count = at.first_key + at.keys, at.keys
        if opts.sequences.used is not None:  # keys that are not used get zeros
            length = tl.load(opts.sequences.keys + at.batch + 1)
            count = length - at.first_key
        desc.store([_WRAP, length, _WRAP - count + n, head, 0], x.reshape([1, 1, x.shape[0], 1, x.shape[1]]))
    else:
        desc.store([at.row, n, head, 0], x.reshape([1, x.shape[0], 1, x.shape[1]]))


@tilejit.kernel
def give_queries(to, sums, units, lost, begin, queries, scale, head, at, sequences, N: tl.constexpr,
                 BM: tl.constexpr, D: tl.constexpr):
    """Sums of N blocks of BM queries from `begin` on, times the scale, as gradients of queries (`to`: Rows, of which
    pages are batches)."""
    first = (padded_row(at, queries, sequences, BM) + begin) // BM
    index, columns = begin + tl.arange(0, N * BM), tl.arange(0, D)
    block = (first + tl.arange(0, N)) * at.heads + head
    there = begin + tl.arange(0, N) * BM < at.queries
    x = tl.load((sums + block.to(tl.int64) * (BM * D))[:, None] + tl.arange(0, BM * D)[None, :], there[:, None])
    x = by_rows(x, N, BM, D)
    if units is not None:
        unit = tl.load((units + block * BM)[:, None] + tl.arange(0, BM)[None, :], there[:, None], other=1.0)
        scale = scale / unit.reshape([N * BM])[:, None]
        if lost is not None:
            scale = tl.where(tl.load(lost) == 0, scale, float("nan"))
    inside = (index < at.queries)[:, None] & (columns < to.d)[None, :]
    row = (at.first_query + index).to(tl.int64) * to.row + head * to.head
    if sequences.queries is None:
        row = row + at.batch.to(tl.int64) * to.page
    tl.store(to.pointer + row[:, None] + columns[None, :], (x * scale).to(to.pointer.dtype.element_ty), inside)


@tilejit.kernel
def keep_share(shares, x, place, before, BN: tl.constexpr, D: tl.constexpr, SIZE: tl.constexpr):
    """Store [BN, D] for `join_kernel`, as `held`."""
    tl.store(shares.sums + place.to(tl.int64) * SIZE + before + tl.arange(0, BN * D), held(x, BN, D))


@tilejit.kernel
def join(shares, to, block, piece, before, n, kv_head, batch, keys, scale, BN: tl.constexpr, D: tl.constexpr,
         PIECE: tl.constexpr, SIZE: tl.constexpr):
    at = shares.sums + (block * shares.count).to(tl.int64) * SIZE + before + piece * PIECE + tl.arange(0, PIECE)
    x = tl.load(at)
    for i in range(1, shares.count):
        x += tl.load(at + i * SIZE)
    # Of `held`, so many numbers are all rows of some columns; where rows are 64, of as many in both halves.
    x, some = by_rows(x, 1, BN, PIECE // BN), tl.arange(0, PIECE // BN)
    columns = (some // (PIECE // 128) * (D * BN // 128) + piece * (PIECE // 128) + some % (PIECE // 128))[None, :]
    row = (n * BN + tl.arange(0, BN)).to(tl.int64)[:, None]
    where = to.pointer + batch.to(tl.int64) * to.page + row * to.row + kv_head * to.head + columns
    tl.store(where, (x * scale).to(to.pointer.dtype.element_ty), (row < keys) & (columns < to.d))


@tilejit.kernel
def join_kernel(shares, dk, dv, keys, scale, kv_heads, BN: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
                PIECE: tl.constexpr):
    """Add up what shares of a block of keys have stored; see docs/modules.md."""
    block, piece = tl.program_id(0), tl.program_id(1)
    n, steps = shares.whole + block, tl.cdiv(keys, BN)
    kv_head, batch, n = n // steps % kv_heads, n // (steps * kv_heads), n % steps
    of_keys = BN * D // PIECE
    if piece < of_keys:
        join(shares, dk, block, piece, 0, n, kv_head, batch, keys, scale, BN, D, PIECE, BN * (D + DV))
    else:
        join(shares, dv, block, piece - of_keys, BN * D, n, kv_head, batch, keys, 1.0, BN, DV, PIECE, BN * (D + DV))


@tilejit.kernel
def queries_of_share(n, shares, share, at, opts, prefix, GROUP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Some key from n on is seen by the queries from `begin` to `end`, every one by those from `whole` to `part`; of
    the heads from `first_head` to `end_head`."""
    begin, part = queries_of(n, at, opts.band, prefix)
    whole, end = queries_of(tl.minimum(n + BN, at.keys) - 1, at, opts.band, prefix)
    begin = begin // BM * BM
    first_head, end_head = 0, GROUP
    if shares is not None:
        if share >= 0:
            each = tl.cdiv(tl.maximum(end - begin, 0), shares.count // shares.by_heads * BM) * BM
            begin += share // shares.by_heads * each
            end = tl.minimum(end, begin + each)
            if GROUP > 1:
                end_head = GROUP // shares.by_heads
                first_head = share % shares.by_heads * end_head
                end_head += first_head
    return begin, whole, part, end, first_head, end_head


@tilejit.kernel
def end_keys(sums, units, lost, dk, dv, dk_desc, dv_desc, to, done, shares, share, over, n, kv_head, kv_heads, batch,
             steps, queries, keys, scale, heads, at, opts, GROUP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
             D: tl.constexpr, DV: tl.constexpr, AT_ONCE: tl.constexpr):
    """Give a block of keys, or what a share of it has; the last program of a head its gradients of queries."""
    alone, ended, ends = True, 1, steps
    if shares is not None:
        alone, ends = share < 0, steps * shares.count
        ended = tl.where(alone, shares.count, 1)
        if share >= 0:
            if dk is not None:
                keep_share(shares, dk, over, 0, BN, D, BN * (D + DV))
            if dv is not None:
                keep_share(shares, dv, over, BN * D, BN, DV, BN * (D + DV))
    if alone:
        if dk_desc is not None:
            give_keys(dk_desc, dk * scale, n, kv_head, at, opts)
        if dv_desc is not None:
            give_keys(dv_desc, dv, n, kv_head, at, opts)
    if done is not None:
        before = tl.atomic_add(done + batch * kv_heads + kv_head, ended, sem="acq_rel")
        if before == ends - ended:
            if lost is not None:
                lost += batch * kv_heads + kv_head
            for g in tl.range(0, GROUP):
                at = place(batch, kv_head * GROUP + g, heads, queries, keys, opts.sequences)
                for m in tl.range(0, at.queries, AT_ONCE * BM):
                    give_queries(to, sums, units, lost, m, queries, scale, at.head, at, opts.sequences, AT_ONCE, BM, D)


@tilejit.kernel
def key_kernel(q_desc, k_desc, v_desc, grad_desc, stats, sums, units, lost, dk_desc, dv_desc, to, done, shares, queries,
               keys, factor, scale, heads, opts, GROUP: tl.constexpr, TAIL: tl.constexpr, SPLIT: tl.constexpr,
               BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, ADDED: tl.constexpr = False,
               AT_ONCE: tl.constexpr = 1):
    """Gradients of BN keys and values of one head (dk_desc or dv_desc is None: of the others only); those of queries,
    without their scale, are added to `sums` if it is given; see docs/modules.md."""
    steps, kv_heads, share, over = tl.cdiv(keys, BN), heads // GROUP, -1, 0
    n, kv_head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if opts.shares is not None:
        place_of, n, _, _, _, _ = share_of(n, 0, 1, opts)
        batch = place_of.batch
    if shares is not None:
        over = n - shares.whole
        if over >= 0:
            n, share = shares.whole + over // shares.count, over % shares.count
        kv_head, batch, n = n // steps % kv_heads, n // (steps * kv_heads), n % steps
    n *= BN
    at = place(batch, kv_head * GROUP, heads, queries, keys, opts.sequences)
    prefix = 0
    if opts.band.prefix is not None:
        prefix = tl.load(opts.band.prefix + batch)
    k = k_desc.load([at.row, at.first_key + n, kv_head, 0]).reshape([BN, D])
    v, dk, dv = None, None, None
    if dk_desc is not None:
        v = v_desc.load([at.row, at.first_key + n, kv_head, 0]).reshape([BN, DV])
        dk = tl.zeros([BN, D], tl.float32)
    if dv_desc is not None:
        dv = tl.zeros([BN, DV], tl.float32)
    begin, whole, part, end, first_head, end_head = queries_of_share(n, shares, share, at, opts, prefix, GROUP, BM, BN)
    key = (n + tl.arange(0, BN))[:, None]
    whole = tl.where(n + BN <= at.keys, tl.maximum(begin, tl.minimum(tl.cdiv(whole, BM) * BM, end)), end)
    part = tl.maximum(whole, tl.minimum(part // BM * BM, end))
    low = padded_row(at, queries, opts.sequences, BM)
    last, block = None, None
    if sums is not None:  # the first block gets zeros
        last = tl.zeros([BN, BM], k.dtype)
        block = (low + tl.minimum(begin, tl.maximum(at.queries - 1, 0) // BM * BM)) // BM * heads + kv_head * GROUP
    for g in tl.range(first_head, end_head):
        head = kv_head * GROUP + g
        at = place(batch, head, heads, queries, keys, opts.sequences)
        if TAIL:
            dk, dv, last, block = queries_of_keys(
                q_desc, grad_desc, stats, sums, units, k, v, dk, dv, last, block, begin, whole if SPLIT else end, low,
                factor, key, prefix, head, at, opts, ADDED, BM, D, DV, True)
        if SPLIT:
            dk, dv, last, block = queries_of_keys(
                q_desc, grad_desc, stats, sums, units, k, v, dk, dv, last, block, whole if TAIL else begin,
                part if SPLIT == 2 else end, low, factor, key, prefix, head, at, opts, ADDED, BM, D, DV, False)
        if SPLIT == 2:
            dk, dv, last, block = queries_of_keys(
                q_desc, grad_desc, stats, sums, units, k, v, dk, dv, last, block, part, end, low, factor, key, prefix,
                head, at, opts, ADDED, BM, D, DV, True)
    if sums is not None:
        add_held(sums, units, tl.dot(last.T, k), block, BM, D)
    if dk_desc is not None and lost is not None:
        nothing = tl.sum(tl.sum(dk * 0.0, 1), 0)
        if nothing != nothing:
            tl.atomic_add(lost + batch * kv_heads + kv_head, 1, sem="relaxed")
    end_keys(sums, units, lost, dk, dv, dk_desc, dv_desc, to, done, shares, share, over, n, kv_head, kv_heads, batch,
             steps, queries, keys, scale, heads, at, opts, GROUP, BM, BN, D, DV, AT_ONCE)


@tilejit.kernel
def keys_of_queries(k_desc, v_desc, q, grad, log, delta, dq, start, stop, factor, query, prefix, head, at, opts,
                    BN: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, MASKED: tl.constexpr):
    columns = tl.arange(0, BN)[None, :]
    for n in tl.range(start, stop, BN, split_masks=False):
        k = k_desc.load([at.row, at.first_key + n, head, 0]).reshape([BN, D])
        v = v_desc.load([at.row, at.first_key + n, head, 0]).reshape([BN, DV])
        scores = tl.dot(q, k.T)
        weight_grad = tl.dot(grad, v.T)
        keep = None
        if MASKED:
            keep = seen(query, n + columns, at, prefix, opts)
        p = weights(scores, log, factor, query, n + columns, keep, at, opts, MASKED)
        p = steep(p, scores, factor, opts.mods)
        ds = score_gradient(p, weight_grad, delta, scores, factor, query, n + columns, at, opts)
        dq = tl.dot(ds.to(k.dtype), k, dq)
    return dq


@tilejit.kernel
def query_kernel(q_desc, k_desc, v_desc, grad_desc, stats, dq_desc, queries, keys, factor, scale, heads, opts,
                 GROUP: tl.constexpr, TAIL: tl.constexpr, SPLIT: tl.constexpr, PAD: tl.constexpr, BM: tl.constexpr,
                 BN: tl.constexpr, D: tl.constexpr, DV: tl.constexpr):
    """Gradients of BM queries of one head, in the order of the keys."""
    begin = (tl.num_programs(0) - 1 - tl.program_id(0)) * BM
    head, batch = tl.program_id(1), tl.program_id(2)
    at = place(batch, head, heads, queries, keys, opts.sequences)
    prefix = 0
    if opts.band.prefix is not None:
        prefix = tl.load(opts.band.prefix + batch)
    query = begin + tl.arange(0, BM)[:, None]
    low = padded_row(at, queries, opts.sequences, PAD)
    q = q_desc.load([at.row, at.first_query + begin, head, 0]).reshape([BM, D])
    grad = grad_desc.load([at.row, at.first_query + begin, head, 0]).reshape([BM, DV])
    log = stats.load([head, 0, low + begin]).reshape([BM, 1])
    delta = stats.load([head, 1, low + begin]).reshape([BM, 1])
    # Some row sees the keys from `start` to `stop`, every row those from `full` to `clean`.
    start, clean = band_of(begin, at, opts.band, prefix)
    full, stop = band_of(tl.minimum(begin + BM, at.queries) - 1, at, opts.band, prefix)
    if opts.sequences.queries is not None:
        stop = tl.where(begin < at.queries, stop, 0)
    dq = tl.zeros([BM, D], tl.float32)
    start = start // BN * BN
    if SPLIT == 2:
        full = tl.minimum(tl.maximum(start, tl.cdiv(full, BN) * BN), stop)
        dq = keys_of_queries(k_desc, v_desc, q, grad, log, delta, dq, start, full, factor, query, prefix, head // GROUP,
                             at, opts, BN, D, DV, True)
        start = full
    if SPLIT:
        clean = tl.minimum(clean, stop)
        if TAIL:
            clean = tl.maximum(start, clean // BN * BN)
        dq = keys_of_queries(k_desc, v_desc, q, grad, log, delta, dq, start, clean, factor, query, prefix,
                             head // GROUP, at, opts, BN, D, DV, False)
        start = clean
    if TAIL:
        dq = keys_of_queries(k_desc, v_desc, q, grad, log, delta, dq, start, stop, factor, query, prefix, head // GROUP,
                             at, opts, BN, D, DV, True)
    dq = (dq * scale).to(dq_desc.dtype)
    if opts.sequences.queries is not None:
        length = at.first_query + at.queries
        dq_desc.store([_WRAP, length, _WRAP - at.queries + begin, head, 0], dq.reshape([1, 1, BM, 1, D]))
    else:
        dq_desc.store([at.row, begin, head, 0], dq.reshape([1, BM, 1, D]))


@tilejit.kernel
def sum_kernel(to, sums, units, lost, queries, keys, scale, heads, sequences, GROUP: tl.constexpr, BM: tl.constexpr,
               D: tl.constexpr):
    """sums [padded rows / BM, heads] of blocks that `add_held` adds to, times the scale, as gradients of queries.
    Programs (blocks of BM queries, heads, batches)."""
    begin, head, batch = tl.program_id(0) * BM, tl.program_id(1), tl.program_id(2)
    at = place(batch, head, heads, queries, keys, sequences)
    if lost is not None:
        lost += batch * (heads // GROUP) + head // GROUP
    if begin < at.queries:
        give_queries(to, sums, units, lost, begin, queries, scale, head, at, sequences, 1, BM, D)
