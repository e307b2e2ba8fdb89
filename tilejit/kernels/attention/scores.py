"""What lies between a product of queries and keys and the softmax."""
from __future__ import annotations

from typing import Any, NamedTuple

import tilejit
import tilejit.language as tl

LOG2E = 1.4426950408889634
_LOG2E = tl.constexpr(LOG2E)


class Band(NamedTuple):
    """None where there is no such limit. Query i is at key t = i + keys - queries; it sees keys from t - left to t +
    right, of its own chunk (t // chunk) only, and the first `prefix` [batch] keys whatever `right` says."""

    left: Any = None
    right: Any = None
    chunk: Any = None
    prefix: Any = None


class Mods(NamedTuple):
    """Changes of scores; see docs/modules.md."""

    softcap: Any = None
    slopes: Any = None
    score: Any = None
    gradient: Any = None
    mask: Any = None
    aux: tuple[Any, ...] = ()
    dropout: Any = None
    seed: Any = None
    exact: Any = tl.constexpr(True)


class Sequences(NamedTuple):
    """Several lengths, None where all have the same; see docs/modules.md."""

    queries: Any = None
    keys: Any = None
    used: Any = None


class Rows(NamedTuple):
    """Keys, or values, as a pointer with the distances of pages, keys and heads, and how many elements a head has."""

    pointer: Any
    page: Any
    row: Any
    head: Any
    d: Any


class Pages(NamedTuple):
    """Pages of `size` keys (a constexpr)."""

    table: Any
    stride: Any
    size: Any
    keys: Rows | None = None
    values: Rows | None = None


class Lists(NamedTuple):
    """Blocks of keys for each block of queries; see docs/modules.md."""

    table: Any
    batch: Any
    head: Any
    block: Any


class Shares(NamedTuple):
    """Parts of blocks of keys, a program each, and where those leave what they find; see docs/modules.md."""

    whole: Any
    length: Any
    quota: Any
    sums: Any = None
    rows: Any = None
    table: Any = None


class Options(NamedTuple):
    """What may be asked beside plain arrays. sinks [heads]: scores of a key whose value is zero. descales: q [batch,
    heads], k, v [batch, kv heads]."""

    band: Band = Band()
    mods: Mods = Mods()
    sequences: Sequences = Sequences()
    pages: Pages | None = None
    lists: Lists | None = None
    sinks: Any = None
    descales: tuple[Any, Any, Any] | None = None
    shares: Shares | None = None


class Place(NamedTuple):
    """A sequence of the batch: where it, its queries and its keys start, how many there are; a head and how many
    there are."""

    batch: Any
    row: Any
    first_query: Any
    queries: Any
    first_key: Any
    keys: Any
    head: Any
    heads: Any


@tilejit.kernel
def place(batch, head, heads, queries, keys, sequences):
    row, first_query, first_key = batch, 0, 0
    if sequences.queries is not None:
        row = 0
        first_query = tl.load(sequences.queries + batch)
        queries = tl.load(sequences.queries + batch + 1) - first_query
        first_key = tl.load(sequences.keys + batch)
        keys = tl.load(sequences.keys + batch + 1) - first_key
    if sequences.used is not None:
        keys = tl.minimum(keys, tl.load(sequences.used + batch))
    return Place(batch, row, first_query, queries, first_key, keys, head, heads)


@tilejit.kernel
def band_of(query, at, limits, prefix):
    """The first key that a query sees, and the one behind its last."""
    t = query + (at.keys - at.queries)
    first, end = 0, at.keys
    if limits.right is not None:
        end = tl.minimum(end, t + limits.right + 1)
    if limits.prefix is not None:
        end = tl.maximum(end, tl.minimum(prefix, at.keys))
    if limits.left is not None:
        first = tl.maximum(t - limits.left, 0)
    if limits.chunk is not None:
        first = tl.maximum(first, tl.maximum(t, 0) // limits.chunk * limits.chunk)
    return first, end


@tilejit.kernel
def queries_of(key, at, limits, prefix):
    shift = at.keys - at.queries
    first, end = 0, at.queries
    if limits.right is not None:
        first = tl.maximum(key - limits.right - shift, 0)
    if limits.prefix is not None:
        first = tl.where(key < prefix, 0, first)
    if limits.left is not None:
        end = tl.minimum(end, key + limits.left - shift + 1)
    if limits.chunk is not None:
        end = tl.minimum(end, (key // limits.chunk + 1) * limits.chunk - shift)
    return tl.where(key < at.keys, first, at.queries), end


@tilejit.kernel
def inside(query, key, at):
    """Queries and keys that are there, for functions that read arrays by them; what they say of others is not used."""
    return tl.minimum(query, tl.maximum(at.queries - 1, 0)), tl.minimum(key, tl.maximum(at.keys - 1, 0))


@tilejit.kernel
def seen(query, key, at, prefix, opts):
    """Which keys are seen by which queries: a column of queries and a row of keys, or the other way round."""
    shift = at.keys - at.queries
    keep = key < at.keys
    if opts.band.right is not None:
        if query.shape[0] == 1 and opts.band.prefix is None:  # a thread has fewer keys, which nothing else needs
            near = key - (shift + opts.band.right) <= query
        else:
            near = key <= query + (shift + opts.band.right)
        if opts.band.prefix is not None:
            near = near | (key < prefix)
        keep = keep & near
    if opts.band.left is not None:
        keep = keep & (key >= query + (shift - opts.band.left))
    if opts.band.chunk is not None:
        keep = keep & (key >= tl.maximum(query + shift, 0) // opts.band.chunk * opts.band.chunk)
    if opts.mods.mask is not None:
        keep = keep & opts.mods.mask(at.batch, at.head, *inside(query, key, at), *opts.mods.aux)
    return keep


@tilejit.kernel
def changes(mods):
    return mods.softcap is not None or mods.slopes is not None or mods.score is not None


@tilejit.kernel
def capped(x, mods):
    if mods.softcap is not None:
        x = x * (1.0 / mods.softcap)
        if mods.exact:
            x = tl.tanh(x)
        else:
            x = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
        x = x * mods.softcap
    return x


@tilejit.kernel
def sloped(x, query, key, at, mods):
    """A score with its bias by distance: exact for 2^24 keys, with a conversion a key and not one a score."""
    if mods.slopes is not None:
        t = query + (at.keys - at.queries)
        x = x + tl.load(mods.slopes + at.head) * (key.to(tl.float32) - t.to(tl.float32))
    return x


@tilejit.kernel
def changed(x, query, key, at, mods):
    x = sloped(capped(x, mods), query, key, at, mods)
    if mods.score is not None:
        x = mods.score(x, at.batch, at.head, *inside(query, key, at), *mods.aux)
    return x


@tilejit.kernel
def change_gradient(grad, x, query, key, at, mods):
    y = capped(x, mods)
    if mods.score is not None:
        y_sloped = sloped(y, query, key, at, mods)
        grad = mods.gradient(grad, y_sloped, at.batch, at.head, *inside(query, key, at), *mods.aux)
    if mods.softcap is not None:
        z = y * (1.0 / mods.softcap)
        grad = grad * (1.0 - z * z)
    return grad


@tilejit.kernel
def kept(query, key, at, mods):
    bits = tl.philox(mods.seed, query, key, at.batch * at.heads + at.head, 0, 7)[0]
    return tl.uint_to_uniform_float(bits) >= mods.dropout
