"""Attention to keys and values that are one and the same latent vector (multi-head latent attention, arXiv 2405.04434).
"""
from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._calls import infos_of
from tilejit.kernels.attention.cases import LEAST_KEYS, readable
from tilejit.kernels.attention.decode import FEW, combine, parts_of
from tilejit.kernels.attention.forward_kernel import along
from tilejit.kernels.attention.scores import LOG2E, Pages, Rows

_LN2 = tl.constexpr(1 / LOG2E)
WHAT = "latent_attention"
#: Rows and keys of a block; elements of a key that one product multiplies, and of the rest that is no value.
ROWS, KEYS, PIECE, REST = 64, 64, 256, 64
# Scores do not overlap with values (`products_ahead=False`): that would hold both blocks that there is room for.
#: Where several programs read the keys, so products bound: from so many keys a program on, keys of a block that has
#: shared memory for itself, and its pieces.
LONG, LONG_KEYS, LONG_PIECE = 1024, 128, 128

#: Keys of a block where each is looked up: they pass through registers.
LOOKED_UP = 32


@tilejit.kernel
def part_of_keys(desc, n, column, batch, count, pages, BN: tl.constexpr, D: tl.constexpr):
    if pages is None:
        return desc.load([batch, n, column]).reshape([BN, D])
    key = n + tl.arange(0, BN)
    if pages.keys is None:
        page = tl.load(pages.table + batch * pages.stride + n // pages.size)
        return desc.load([page, n % pages.size, column]).reshape([BN, D])
    columns, some = column + tl.arange(0, D), key < count
    page = tl.load(pages.table + batch * pages.stride + key // pages.size, some, other=0).to(tl.int64)
    start = pages.keys.pointer + (page * pages.keys.page + (key % pages.size) * pages.keys.row)
    return tl.load(start[:, None] + columns[None, :], some[:, None] & (columns < pages.keys.d)[None, :], other=0.0)


@tilejit.kernel
def fetch(keys, pitch, count, DV: tl.constexpr):
    """One thread has L2 fetch so many keys, to the last one's values."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 t; mov.u32 t, %tid.x; setp.eq.u32 p, t, 0; setp.gt.and.s32 p, $2, 0, p; "
        "@p cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0; }", "=r,l,r",
        [keys, ((count - 1) * pitch + DV) * 2], tl.int32, is_pure=False, pack=1)


@tilejit.kernel
def latent_kernel(q_desc, q_rest, cache, cache_rest, out, logs, used, pages, queries, keys, scale, heads, batches,
                  ahead, down, pitch, CAUSAL: tl.constexpr, PARTED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
                  DV: tl.constexpr, PIECE: tl.constexpr, REST: tl.constexpr, FEW: tl.constexpr = False):
    """Latent attention of a block of rows (docs/modules.md)."""
    begin, batch, part = tl.program_id(0) * BM, tl.program_id(2), tl.program_id(1)
    count = keys
    if used is not None:
        count = tl.minimum(keys, tl.load(used + batch))
    row = begin + tl.arange(0, BM)
    low = 0
    high = count
    if PARTED:
        each = tl.cdiv(tl.cdiv(count, BN), tl.num_programs(1)) * BN
        low, high = part * each, tl.minimum(count, part * each + each)
    q, acc = (), ()
    for i in tl.static_range(DV // PIECE):
        q = q + (q_desc.load([batch, begin, i * PIECE]).reshape([BM, PIECE]),)
        acc = acc + (tl.zeros([PIECE, BM] if FEW else [BM, PIECE], tl.float32),)
    q_last = q_rest.load([batch, begin, DV]).reshape([BM, REST])
    most = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BN, BM] if FEW else [BM], tl.float32)
    last = count
    if CAUSAL:
        last = row // heads + (count - queries) + 1
    else:
        last = count + row * 0
    for n in tl.range(low, high, BN, split_masks=False):
        values = ()
        scores = tl.zeros([BN, BM] if FEW else [BM, BN], tl.float32)
        for i in tl.static_range(DV // PIECE):
            k = part_of_keys(cache, n, i * PIECE, batch, count, pages, BN, PIECE)
            scores = tl.dot(k, q[i].T, scores) if FEW else tl.dot(q[i], k.T, scores)
            values = values + (k,)
        k_last = part_of_keys(cache_rest, n, DV, batch, count, pages, BN, REST)
        scores = tl.dot(k_last, q_last.T, scores) if FEW else tl.dot(q_last, k_last.T, scores)
        if ahead is not None:
            share = tl.cdiv(BN, tl.num_programs(0))
            first = n + BN + tl.program_id(0) * share
            start = ahead + (batch.to(tl.int64) * down + first.to(tl.int64) * pitch)
            fetch(start, pitch, tl.minimum(share, high - first), DV)
        seen = along(n + tl.arange(0, BN), not FEW) < along(last, FEW)
        scores = tl.where(seen, scores, float("-inf"))
        new = tl.maximum(most, tl.max(scores, 0 if FEW else 1) * scale)
        origin = tl.where(new == float("-inf"), 0.0, new)
        p = tl.exp2(scores * scale - along(origin, FEW))
        alpha = tl.exp2(most - origin)
        total = total * alpha[None, :] + p if FEW else total * alpha + tl.sum(p, 1)
        weights = p.to(k_last.dtype)
        sums = ()
        for i in tl.static_range(DV // PIECE):
            now = acc[i] * along(alpha, FEW)
            sums = sums + (tl.dot(values[i].T, weights, now) if FEW else tl.dot(weights, values[i], now),)
        acc = sums
        most = new
    if FEW:
        total = tl.sum(total, 0)
    some = total > 0
    over = tl.where(some, 1.0 / total, 0.0)[:, None]
    where = ((part * batches + batch) * heads + row % heads) * queries + row // heads
    tl.store(logs + where, tl.where(some, most * _LN2 + tl.log(total), float("-inf")), row < queries * heads)
    to = part * batches + batch
    start = to.to(tl.int64) * queries * heads + row
    for i in tl.static_range(DV // PIECE):
        x = (acc[i].T if FEW else acc[i]) * over
        if PARTED:
            columns = i * PIECE + tl.arange(0, PIECE)
            tl.store(out + start[:, None] * DV + columns[None, :], x, (row < queries * heads)[:, None])
        else:
            out.store([to, begin, i * PIECE], x.to(out.dtype).reshape([1, BM, PIECE]))


@tilejit.replayed
def latent_attention(q: Any, cache: Any, dv: int = 512, causal: bool = False, scale: float | None = None, *,
                     used_keys: Any = None, pages: Any = None, return_lse: bool = False, out: Any = None,
                     lse: Any = None, parts: int = 0) -> Any:
    """softmax(scale * q @ cache^T) @ cache[.., :dv] for every head, with fp32 sums; all heads share the cache.

    q [batch, queries, heads, d] with the heads of a query one behind the other, cache [batch, keys, d], fp16 or bf16;
    dv 512 and d up to 576 (their difference is what says where a key is). Gives [batch, queries, heads, dv]. causal:
    query i sees the keys up to i + keys - queries. scale: 1/sqrt(d) if None (of a model whose keys are projected to
    latent vectors, that of its own keys is wanted). return_lse: also the logarithms of the sums, fp32 [batch, heads,
    queries]. used_keys: int32 [batch], so many keys are there. pages: int32 [batch, pages of a sequence]; the cache is
    [pages, keys of a page, d] then, with used_keys. out, lse: where results go. parts: of the keys, instead of a
    choice. No gradient. Raises LaunchError for what does not fit.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    if out is None and lse is None and not parts:
        result, logs = operator(q, cache, used_keys, pages, dv, causal, scale)
    else:
        result, logs = _run(q, cache, used_keys, pages, dv, causal, scale, out, lse, parts)
    return (result, logs) if return_lse else result


def _like(q: Any, cache: Any, used_keys: Any, pages: Any, dv: int, causal: bool, scale: float) -> tuple[Any, Any]:
    batch, queries, heads, _ = q.shape
    return tilejit.empty_like(q, (batch, queries, heads, dv)), tilejit.empty_like(q, (batch, heads, queries),
                                                                                  tilejit.language.float32)


@tilejit.torch_op("tilejit::latent_attention", "(Tensor q, Tensor cache, Tensor? used_keys, Tensor? pages, int dv, "
                  "bool causal, float scale) -> (Tensor, Tensor)", fake=_like)
def operator(q: Any, cache: Any, used_keys: Any, pages: Any, dv: int, causal: bool, scale: float) -> tuple[Any, Any]:
    return _run(q, cache, used_keys, pages, dv, causal, scale)


@tilejit.replayed
def _run(q: Any, cache: Any, used_keys: Any, pages: Any, dv: int, causal: bool, scale: float, out: Any = None,
         lse: Any = None, parts: int = 0) -> tuple[Any, Any]:
    iq, ic, iu, ip = infos_of(q, cache, used_keys, pages)
    batch, queries, heads, d = _check(iq, ic, iu, ip, dv)
    keys = ic.shape[1] if pages is None else ip.shape[1] * ic.shape[1]
    page = 0 if pages is None else ic.shape[1]
    bn, piece = KEYS if not page else min(KEYS, page & -page), PIECE  # warpgroups divide them: powers of two
    if page % LEAST_KEYS:
        bn = LOOKED_UP
    fp32, rows = tilejit.language.float32, queries * heads
    if out is None:
        out = tilejit.empty_like(q, (batch, queries, heads, dv))
    if lse is None:
        lse = tilejit.empty_like(q, (batch, heads, queries), fp32)
    if not rows or not batch:
        return out, lse
    programs, chip = tilejit.cdiv(rows, ROWS) * batch, tilejit.multiprocessors(iq.device)
    parts = parts or parts_of(programs, tilejit.cdiv(keys, bn), chip)
    long = rows > ROWS and not page and keys >= LONG * parts and tilejit.chip() != "sm_80"
    if long:
        bn, piece = LONG_KEYS, LONG_PIECE
    few = rows <= FEW and bn == KEYS  # products take 64 rows
    bm = max(8, tilejit.next_power_of_2(rows)) if few else ROWS
    near = cache if long and ic.strides[1] <= dv + REST else None  # between keys L2 would fetch what nobody wants
    to, logs = out, lse
    if parts > 1:
        to = tilejit.empty_like(q, (parts * batch, queries, heads, dv), fp32)
        logs = tilejit.empty_like(q, (parts, batch, heads, queries), fp32)

    def blocks(x: Any, n: int, wide: int, shape: tuple[int, ...], pitch: tuple[int, ...]) -> Any:
        return tilejit.TensorDescriptor(x, shape, pitch, (1, n, wide))

    of_q, io = ((batch, rows, d), (iq.strides[0], iq.strides[2], 1)), tilejit.array_info(out)
    of_cache = ic.shape, ic.strides
    listed = None
    if page:
        each = Rows(cache, ic.strides[0], ic.strides[1], 0, d) if page % LEAST_KEYS else None
        listed = Pages(pages, ip.strides[0], tilejit.language.constexpr(page), each)
    latent_kernel[(tilejit.cdiv(rows, ROWS), parts, batch)](
        blocks(q, bm, piece, *of_q), blocks(q, bm, REST, *of_q), blocks(cache, bn, piece, *of_cache),
        blocks(cache, bn, REST, *of_cache),
        to if parts > 1 else blocks(out, bm, piece, (batch, rows, dv), (io.strides[0], io.strides[2], 1)), logs,
        used_keys, listed, queries, keys, scale * LOG2E, heads, batch, near, *ic.strides[:2], CAUSAL=causal,
        PARTED=parts > 1, BM=bm, BN=bn, DV=dv, PIECE=piece, REST=REST, FEW=few, num_warps=4 if few else 8,
        products_ahead=False, pointer_tma=False)
    if parts > 1:
        combine(to, logs, out, lse, None, parts, few or 2 * programs * parts <= chip)
    return out, lse


def _check(q: Any, cache: Any, used: Any, pages: Any, dv: int) -> tuple[int, int, int, int]:
    lang = tilejit.language
    if len(q.shape) != 4 or len(cache.shape) != 3 or q.shape[3] != cache.shape[2] or q.dtype != cache.dtype or \
            q.dtype not in (lang.float16, lang.bfloat16):
        raise tilejit.LaunchError(f"{WHAT}: expected q [batch, queries, heads, d] and a cache [batch, keys, d], both "
                                  f"fp16 or bf16; found {list(q.shape)} of {q.dtype} and {list(cache.shape)} of "
                                  f"{cache.dtype}")
    batch, queries, heads, d = q.shape
    if dv != 2 * PIECE or not dv <= d <= dv + REST:
        raise tilejit.LaunchError(f"{WHAT}: values of {dv} elements in keys of {d}; expected {2 * PIECE} in at most "
                                  f"{2 * PIECE + REST}")
    if pages is None and cache.shape[0] != batch or (pages is not None) and (
            used is None or len(pages.shape) != 2 or pages.shape[0] != batch or pages.dtype != lang.int32):
        raise tilejit.LaunchError(f"{WHAT}: pages must be int32 [{batch}, pages of a sequence], with used_keys; "
                                  f"without pages the cache has a batch of {batch}")
    if used is not None and (used.shape != (batch,) or used.dtype != lang.int32):
        raise tilejit.LaunchError(f"{WHAT}: used_keys must be int32 [{batch}]")
    if queries > 1 and q.strides[1] != heads * q.strides[2]:
        raise tilejit.LaunchError(f"{WHAT}: the heads of a query must lie one behind the other: copy q")
    readable("q", q)
    readable("cache", cache)
    return batch, queries, heads, d
