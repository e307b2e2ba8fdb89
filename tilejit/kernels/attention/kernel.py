"""The kernel of forward attention: a program has a block of queries of one head and walks the keys."""
from __future__ import annotations

import tilejit
import tilejit.language as tl


@tilejit.kernel
def step(q, k, v, acc, most, total, scale, keep, MASKED: tl.constexpr):
    """One block of keys and values: the sums, the greatest score and the sum of weights of every row so far.

    Scores are powers of two once they are scaled. keep (MASKED): which keys a row sees; a row may see none."""
    scores = tl.dot(q, k.T)
    if MASKED:
        scores = tl.where(keep, scores, float("-inf"))
    new = tl.maximum(most, tl.max(scores, 1) * scale)
    origin = new
    if MASKED:
        origin = tl.where(new == float("-inf"), 0.0, new)
    p = tl.exp2(scores * scale - origin[:, None])
    alpha = tl.exp2(most - origin)
    total = total * alpha + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
    return acc, new, total


@tilejit.kernel
def queries_of_a_head(q_desc, k_desc, v_desc, out_desc, lse, queries, keys, scale, first, head, batch, heads,
                      GROUP: tl.constexpr, CAUSAL: tl.constexpr, TAIL: tl.constexpr, LSE: tl.constexpr,
                      BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, DV: tl.constexpr):
    """BM queries of one head, from `first` on: blocks of keys that nothing masks, then the others."""
    q = q_desc.load([batch, first, head, 0]).reshape([BM, D])
    most = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, DV], tl.float32)
    clean = keys
    end = keys
    if CAUSAL:
        end = tl.minimum(keys, first + BM + keys - queries)
        clean = tl.minimum(keys, tl.maximum(first + 1 + keys - queries, 0))
    if TAIL:
        clean = clean // BN * BN
    for n in tl.range(0, clean, BN):
        k = k_desc.load([batch, n, head // GROUP, 0]).reshape([BN, D])
        v = v_desc.load([batch, n, head // GROUP, 0]).reshape([BN, DV])
        acc, most, total = step(q, k, v, acc, most, total, scale, None, False)
    if TAIL:
        rows, columns = first + tl.arange(0, BM), tl.arange(0, BN)
        for n in tl.range(clean, end, BN):
            keep = (n + columns < keys)[None, :]
            if CAUSAL:
                keep = keep & (n + columns[None, :] <= rows[:, None] + (keys - queries))
            k = k_desc.load([batch, n, head // GROUP, 0]).reshape([BN, D])
            v = v_desc.load([batch, n, head // GROUP, 0]).reshape([BN, DV])
            acc, most, total = step(q, k, v, acc, most, total, scale, keep, True)
    some = total > 0
    if LSE:
        at = first + tl.arange(0, BM)
        natural = tl.where(some, most * 0.6931471805599453 + tl.log(total), float("-inf"))
        tl.store(lse + (batch * heads + head) * queries + at, natural, at < queries)
    acc = acc * tl.where(some, 1.0 / total, 0.0)[:, None]
    out_desc.store([batch, first, head, 0], acc.to(out_desc.dtype).reshape([1, BM, 1, DV]))


@tilejit.kernel
def attention_kernel(q_desc, k_desc, v_desc, out_desc, lse, queries, keys, scale, heads, batches, GROUP: tl.constexpr,
                     CAUSAL: tl.constexpr, TAIL: tl.constexpr, LSE: tl.constexpr, PERSISTENT: tl.constexpr,
                     BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, DV: tl.constexpr):
    """Descriptors of [batch, sequence, heads, d] with blocks [1, BM or BN, 1, D or DV]; GROUP query heads share one of
    keys and values. CAUSAL: query i sees the keys up to i + keys - queries. TAIL: some block of keys is masked.

    Programs (query blocks, heads, batches), or fewer in one dimension that take one block after the other (PERSISTENT:
    the next one's keys are loaded while this one's result is stored). Blocks with the most keys come first."""
    if PERSISTENT:
        blocks = tl.cdiv(queries, BM)
        for tile in tl.range(tl.program_id(0), blocks * heads * batches, tl.num_programs(0)):
            head = tile // blocks
            queries_of_a_head(q_desc, k_desc, v_desc, out_desc, lse, queries, keys, scale,
                              (blocks - 1 - tile % blocks) * BM, head % heads, head // heads, heads, GROUP, CAUSAL,
                              TAIL, LSE, BM, BN, D, DV)
    else:
        queries_of_a_head(q_desc, k_desc, v_desc, out_desc, lse, queries, keys, scale,
                          (tl.num_programs(0) - 1 - tl.program_id(0)) * BM, tl.program_id(1), tl.program_id(2), heads,
                          GROUP, CAUSAL, TAIL, LSE, BM, BN, D, DV)
