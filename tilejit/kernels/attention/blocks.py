"""Lists of blocks that a mask leaves: which blocks of keys a block of queries sees whole, and which in part."""
from __future__ import annotations

from typing import Any, NamedTuple

import tilejit
import tilejit.language as tl
from tilejit.kernels.attention.cases import Case, Extras, options
from tilejit.kernels.attention.scores import band_of, place, seen


@tilejit.kernel
def list_kernel(out, queries, keys, heads, opts, width, BM: tl.constexpr, BN: tl.constexpr):
    """out [batch, heads, blocks of queries, width] as `scores.Lists`. Programs (blocks of queries, heads, batches)."""
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = place(batch, head, heads, queries, keys, opts.sequences)
    prefix = 0
    if opts.band.prefix is not None:
        prefix = tl.load(opts.band.prefix + batch)
    out += ((batch * heads + head) * tl.num_programs(0) + block).to(tl.int64) * width
    query = tl.minimum(block * BM + tl.arange(0, BM), queries - 1)[:, None]
    low, _ = band_of(block * BM, at, opts.band, prefix)
    _, high = band_of(tl.minimum(block * BM + BM, queries) - 1, at, opts.band, prefix)
    whole, some = 0, 0
    for n in range(low // BN * BN, high, BN):
        key = n + tl.arange(0, BN)[None, :]
        keep = seen(query, key, at, prefix, opts).to(tl.int32)
        count = tl.sum(tl.sum(keep.broadcast_to([BM, BN]), 1), 0)
        if count == BM * BN:
            tl.store(out + 2 + whole, n // BN)
            whole += 1
        elif count > 0:
            # From the end, as nobody knows yet how many whole ones there are.
            some += 1
            tl.store(out + width - some, n // BN)
    tl.store(out, whole)
    tl.store(out + 1, some)
    tl.debug_barrier()
    for i in range(0, some):
        number = tl.load(out + width - 1 - i)
        tl.debug_barrier()
        tl.store(out + 2 + whole + i, number)
        tl.debug_barrier()


class Blocks(NamedTuple):
    """Lists of blocks (`scores.Lists`, int32 [batch, heads, blocks of queries, 2 + 2 * blocks of keys]), and how many
    queries and keys a block has."""

    table: Any
    queries: int
    keys: int


def attention_blocks(like: Any, batch: int, heads: int, queries: int, keys: int, mask_mod: Any = None,
                     aux: tuple[Any, ...] = (), causal: bool = False,
                     window: tuple[int | None, int | None] | None = None,
                     block: tuple[int, int] = (128, 128)) -> Blocks:
    """What `attention(.., mask_mod, blocks=)` needs to skip blocks of which nothing is seen, as an array of the kind of
    `like`. batch and heads may be 1 where the mask does not depend on them. block: queries and keys of one, which are
    attention's tiles then (heads of more than 128 elements have registers for 64 keys). The rest as for `attention`."""
    bm, bn = block
    left, right = window or (None, None)
    case = Case(1.0, left, 0 if causal else right, mask=mask_mod)
    extras = Extras(aux=tuple(aux))
    across = tilejit.cdiv(keys, bn)
    rows = tilejit.cdiv(queries, bm)
    out = tilejit.empty_like(like, (batch, heads, rows, 2 + 2 * across), tilejit.language.int32)
    if rows and batch and heads:
        list_kernel[(rows, heads, batch)](out, queries, keys, heads, options(case, extras, (None,) * 8), 2 + 2 * across,
                                          BM=bm, BN=bn, num_warps=8)
    return Blocks(out, bm, bn)
