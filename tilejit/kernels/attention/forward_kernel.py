"""The kernel of forward attention: a program has a block of queries of one head and walks the keys."""
from __future__ import annotations

import tilejit
import tilejit.language as tl
from tilejit.kernels._operands import WRAP
from tilejit.kernels.attention.scores import LOG2E, Place, band_of, changed, changes, kept, place, seen

_LOG2E, _LN2, _WRAP = tl.constexpr(LOG2E), tl.constexpr(1 / LOG2E), tl.constexpr(WRAP)
#: The greatest score of none: finite, so that none of it need be told from others.
_LEAST = tl.constexpr(-(2.0 - 2.0 ** -23) * 2.0 ** 127)
#: Greatest scores stay until a block's is 2^8 times as great; of weights in fp8 2^4 times, and these are as many times
#: greater, so that small ones are not zero, which falls out with their sum.
_STAY, _RAISED = tl.constexpr(8.0), tl.constexpr(4.0)


@tilejit.kernel
def paired(x):
    """Values in 8 bits in the order in which a thread holds sums of scores: 4 neighbouring first operands are
    numbers 0, 1, 8 and 9 (PTX ISA, wgmma.mma_async)."""
    columns: tl.constexpr = x.shape[1]
    return x.reshape([x.shape[0], columns // 32, 2, 2, 4, 2]).permute(0, 1, 2, 4, 3, 5).reshape([x.shape[0], columns])


@tilejit.kernel
def merged(a, b, BYTES: tl.constexpr):
    return tl.inline_asm_elementwise("prmt.b32 $0, $1, $2, " + BYTES + ";", "=r,r,r", [a, b], tl.int32, True, 1)


@tilejit.kernel
def turn_kernel(v, out, keys, padded, heads, batch_stride, row_stride, head_stride, d, BLOCK: tl.constexpr,
                D: tl.constexpr):
    """Values in 8 bits with keys last, `paired` (docs/modules.md)."""
    first = tl.program_id(0) * (BLOCK // 4)
    head, left, batch = tl.program_id(1) % heads, tl.program_id(1) // heads * D, tl.program_id(2).to(tl.int64)
    group, word = tl.arange(0, BLOCK // 4), left // 4 + tl.arange(0, D // 4)
    key = (first + group // 4 * 4) * 4 + group % 4 * 2
    row, line = row_stride >> 2, padded >> 2
    start = (v + (batch * batch_stride + head * head_stride)).to(tl.pointer_type(tl.int32), bitcast=True)
    where = start + key.to(tl.int64)[:, None] * row + word[None, :]
    some = (word < d >> 2)[None, :]
    x0 = tl.load(where, (key < keys)[:, None] & some, other=0)
    x1 = tl.load(where + row, (key + 1 < keys)[:, None] & some, other=0)
    x8 = tl.load(where + row * 8, (key + 8 < keys)[:, None] & some, other=0)
    x9 = tl.load(where + row * 9, (key + 9 < keys)[:, None] & some, other=0)
    low, high = merged(x0, x1, "0x5140"), merged(x8, x9, "0x5140")  # bytes 0 of both, and bytes 1
    more, most = merged(x0, x1, "0x7362"), merged(x8, x9, "0x7362")  # 2, and 3
    even = tl.join(merged(low, high, "0x5410"), merged(more, most, "0x5410"))
    odd = tl.join(merged(low, high, "0x7632"), merged(more, most, "0x7632"))
    turned = tl.join(even, odd).permute(1, 2, 3, 0).reshape([D, BLOCK // 4])
    columns = left + tl.arange(0, D)
    to = (out + (batch * heads + head) * d * padded).to(tl.pointer_type(tl.int32), bitcast=True)
    tl.store(to + columns.to(tl.int64)[:, None] * line + (first + group)[None, :], turned,
             (columns < d)[:, None] & (first + group < line)[None, :])


@tilejit.kernel
def along(x, FEW: tl.constexpr):
    return x[None, :] if FEW else x[:, None]


@tilejit.kernel
def step(q, k, v, acc, most, total, scale, query, n, columns, prefix, at, opts, MASKED: tl.constexpr,
         TURNED: tl.constexpr, FEW: tl.constexpr):
    """Keys and values from the n-th on."""
    key = n + columns
    if MASKED:
        keep = seen(query, key, at, prefix, opts)
    scores = tl.dot(k, q.T) if FEW else tl.dot(q, k.T)
    factor = scale
    if changes(opts.mods):
        scores = changed(scores * scale, query, key, at, opts.mods)
        factor = _LOG2E
    if MASKED:
        scores = tl.where(keep, scores, float("-inf"))
    if FEW:
        new = tl.max(scores, 0) * factor
    else:  # Threads fold what they hold first: a turn of warpgroups ends ahead of the last (`schedule/order.py`).
        own = tl.max(tl.max(scores.reshape([scores.shape[0], scores.shape[1] // 16, 2, 4, 2]), 4), 2)
        new = tl.max(tl.max(own, 1), 1) * factor
    eight: tl.constexpr = v.dtype.primitive_bitwidth == 8
    new = tl.where(new > most + (_RAISED if eight else _STAY), new, most)
    raised = new
    if eight:
        raised = new - _RAISED
    p = tl.exp2(scores * factor - along(raised, FEW))
    alpha = tl.exp2(most - new)
    if FEW:
        return tl.dot(v.T, p.to(v.dtype), acc * alpha[None, :]), new, total * alpha[None, :] + p
    total = total * alpha + tl.sum(p, 1)
    if opts.mods.dropout is not None:
        p = tl.where(kept(query, key, at, opts.mods), p, 0.0)
    if TURNED:
        p = paired(p)
        v = v.T
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
    return acc, new, total


@tilejit.kernel
def rows_of_pages(rows, n, head, at, pages, BN: tl.constexpr, D: tl.constexpr):
    key, columns = n + tl.arange(0, BN), tl.arange(0, D)
    some = key < at.keys
    page = tl.load(pages.table + at.batch * pages.stride + key // pages.size, some, other=0).to(tl.int64)
    start = rows.pointer + (page * rows.page + (key % pages.size) * rows.row + head * rows.head)
    return tl.load(start[:, None] + columns[None, :], some[:, None] & (columns < rows.d)[None, :], other=0.0)


@tilejit.kernel
def block(desc, n, head, at, pages, rows, BN: tl.constexpr, D: tl.constexpr):
    if pages is None:
        return desc.load([at.row, at.first_key + n, head, 0]).reshape([BN, D])
    if rows is not None:
        return rows_of_pages(rows, n, head, at, pages, BN, D)
    page = tl.load(pages.table + at.batch * pages.stride + n // pages.size)
    return desc.load([page, n % pages.size, head, 0]).reshape([BN, D])


@tilejit.kernel
def walk(q, k_desc, v_desc, acc, most, total, start, stop, numbers, scale, begin, prefix, head, at, opts,
         PACK: tl.constexpr, TURNED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
         DV: tl.constexpr, MASKED: tl.constexpr, WIDENED: tl.constexpr, FEW: tl.constexpr):
    """The keys from `start` to `stop`; with numbers, the blocks whose numbers lie there from `start` to `stop`."""
    columns = along(tl.arange(0, BN), not FEW)
    query = begin // PACK + along(tl.arange(0, BM), FEW) // PACK
    for i in tl.range(start, stop, BN if numbers is None else 1, split_masks=False):
        n = i
        if numbers is not None:
            n = tl.load(numbers + i) * BN
        of_keys, of_values = None, None
        if opts.pages is not None:
            of_keys, of_values = opts.pages.keys, opts.pages.values
        k = block(k_desc, n, head, at, opts.pages, of_keys, BN, D)
        if TURNED:
            v = v_desc.load([at.row, head, 0, n]).reshape([DV, BN])
        else:
            v = block(v_desc, n, head, at, opts.pages, of_values, BN, DV)
            if WIDENED:
                v = v.to(tl.float16)
        acc, most, total = step(q, k, v, acc, most, total, scale, query, n, columns, prefix, at, opts, MASKED, TURNED,
                                FEW)
    return acc, most, total


@tilejit.kernel
def give(acc, most, total, RAISED: tl.constexpr, out_desc, lse, queries, begin, head, kv_head, batch, part, heads,
         batches, at, opts, GROUP: tl.constexpr, PACK: tl.constexpr, BM: tl.constexpr, DV: tl.constexpr,
         PARTED: tl.constexpr = False):
    """Store BM rows from `begin` on, and the logarithms of their sums (RAISED: as `step` has them for values in 8
    bits)."""
    rows = tl.arange(0, BM)
    if RAISED:
        most = most - _RAISED
    of_rows = head
    if PACK > 1:
        of_rows = head * PACK + rows % PACK
    if opts.sinks is not None:
        sink = tl.load(opts.sinks + of_rows).to(tl.float32) * _LOG2E
        new = tl.maximum(most, sink)
        shrunk = tl.exp2(most - new)
        total = total * shrunk + tl.exp2(sink - new)
        acc = acc * shrunk[:, None]
        most = new
    some = total > 0
    if lse is not None:
        natural = tl.where(some, most * _LN2 + tl.log(total), float("-inf"))
        query = begin // PACK + tl.arange(0, BM) // PACK
        where = ((part * batches + batch) * heads + of_rows) * queries + query
        if opts.sequences.queries is not None:
            where = of_rows * queries + at.first_query + query
        tl.store(lse + where, natural, query < at.queries)
    over = tl.where(some, 1.0 / total, 0.0)
    if opts.descales is not None:
        over = over * tl.load(opts.descales[2] + batch * (heads // GROUP) + kv_head)
    if opts.mods.dropout is not None:
        over = over * (1.0 / (1.0 - opts.mods.dropout))
    if PARTED:
        # Through shared memory and TMA rows that nobody asks for would go, too.
        query, columns = begin // PACK + tl.arange(0, BM) // PACK, tl.arange(0, DV)
        start = out_desc.pointer + ((part * batches + batch).to(tl.int64) * out_desc.page + query * out_desc.row
                                    + of_rows * out_desc.head)
        tl.store(start[:, None] + columns[None, :], acc * over[:, None],
                 (query < queries)[:, None] & (columns < out_desc.d)[None, :])
        return
    out = (acc * over[:, None]).to(out_desc.dtype)
    if PACK > 1:
        out_desc.store([part * batches + batch, begin // PACK, head, 0, 0], out.reshape([1, BM // PACK, 1, PACK, DV]))
    elif opts.sequences.queries is not None:
        # Rows behind the sequence's end are outside of what this descriptor stores (`_operands.ragged`).
        length = at.first_query + at.queries
        out_desc.store([_WRAP, length, _WRAP - at.queries + begin, head, 0], out.reshape([1, 1, BM, 1, DV]))
    else:
        out_desc.store([part * batches + batch, begin, head, 0], out.reshape([1, BM, 1, DV]))


@tilejit.kernel
def queries_of_a_head(q_desc, k_desc, v_desc, out_desc, lse, queries, keys, scale, begin, head, batch, part, heads,
                      batches, opts, GROUP: tl.constexpr, PACK: tl.constexpr, TAIL: tl.constexpr, SPLIT: tl.constexpr,
                      PARTED: tl.constexpr, TURNED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
                      DV: tl.constexpr, slot=-1, start=0, stop=0, BEHIND: tl.constexpr = False, at=None,
                      WIDENED: tl.constexpr = False, FEW: tl.constexpr = False):
    """Queries of a head (docs/modules.md)."""
    rows = tl.arange(0, BM)
    if at is None:
        at = place(batch, head, heads, queries, keys, opts.sequences)
    if PACK > 1:
        q = q_desc.load([at.row, begin // PACK, head, 0, 0]).reshape([BM, D])
        kv_head = head
        at = place(batch, along(head * PACK + rows % PACK, FEW), heads, queries, keys, opts.sequences)
    else:
        q = q_desc.load([at.row, at.first_query + begin, head, 0]).reshape([BM, D])
        kv_head = head // GROUP
    least, last = begin // PACK, begin // PACK + (BM - 1) // PACK
    most = tl.full([BM], _LEAST, tl.float32)
    total = tl.zeros([BN, BM] if FEW else [BM], tl.float32)
    acc = tl.zeros([DV, BM] if FEW else [BM, DV], tl.float32)
    prefix = 0
    if opts.band.prefix is not None:
        prefix = tl.load(opts.band.prefix + batch)
    # Some row sees the keys from `low` to `high`, every row those from `full` to `clean`.
    low, clean = band_of(least, at, opts.band, prefix)
    full, high = band_of(tl.minimum(last, at.queries - 1), at, opts.band, prefix)
    if BEHIND or opts.sequences.queries is not None:
        high = tl.where(least < at.queries, high, 0)
    if opts.descales is not None:
        of_q, of_k, _ = opts.descales
        kv_at = batch * (heads // GROUP) + kv_head
        scale = scale * tl.load(of_q + batch * heads + kv_head * GROUP) * tl.load(of_k + kv_at)
    if opts.lists is not None:
        own = opts.lists.table + batch * opts.lists.batch + head * opts.lists.head + begin // BM * opts.lists.block
        clean = tl.load(own)
        high = clean + tl.load(own + 1)
        acc, most, total = walk(q, k_desc, v_desc, acc, most, total, 0, clean, own + 2, scale, begin,
                                prefix, kv_head, at, opts, PACK, TURNED, BM, BN, D, DV, False, WIDENED, FEW)
        acc, most, total = walk(q, k_desc, v_desc, acc, most, total, clean, high, own + 2, scale, begin,
                                prefix, kv_head, at, opts, PACK, TURNED, BM, BN, D, DV, True, WIDENED, FEW)
    else:
        low = low // BN * BN
        if PARTED:
            each = tl.cdiv(tl.cdiv(tl.maximum(high - low, 0), BN), tl.num_programs(0)) * BN
            low = low + part * each
            high = tl.minimum(high, low + each)
        if opts.shares is not None:
            low, high = low + start, tl.minimum(high, low + stop)
        if SPLIT == 2:
            full = tl.minimum(tl.maximum(low, tl.cdiv(full, BN) * BN), high)
            acc, most, total = walk(q, k_desc, v_desc, acc, most, total, low, full, None, scale, begin,
                                    prefix, kv_head, at, opts, PACK, TURNED, BM, BN, D, DV, True, WIDENED, FEW)
            low = full
        if SPLIT:
            clean = tl.minimum(clean, high)
            if TAIL:
                clean = tl.maximum(low, clean // BN * BN)
            acc, most, total = walk(q, k_desc, v_desc, acc, most, total, low, clean, None, scale, begin,
                                    prefix, kv_head, at, opts, PACK, TURNED, BM, BN, D, DV, False, WIDENED, FEW)
            low = clean
        if TAIL:
            acc, most, total = walk(q, k_desc, v_desc, acc, most, total, low, high, None, scale, begin,
                                    prefix, kv_head, at, opts, PACK, TURNED, BM, BN, D, DV, True, WIDENED, FEW)
    if FEW:
        acc, total = acc.T, tl.sum(total, 0)
    if slot < 0:
        give(acc, most, total, k_desc.dtype.primitive_bitwidth == 8 and not WIDENED, out_desc, lse, queries, begin,
             head, kv_head, batch, part, heads, batches, at, opts, GROUP, PACK, BM, DV, PARTED)
    elif opts.shares is not None:
        where = rows[:, None] * DV + tl.arange(0, DV)[None, :]
        tl.store(opts.shares.sums + slot.to(tl.int64) * (BM * DV) + where, acc)
        row = opts.shares.rows + slot * (2 * BM) + rows
        tl.store(row, most)
        tl.store(row + BM, total)


@tilejit.kernel
def numbered(tile, blocks, heads, band):
    """Head and number of a block of queries; with a causal mask the longest come first."""
    head, number = tile // blocks, tile % blocks
    if band.right is not None:
        head, number = tile % heads, blocks - 1 - tile // heads
    return head, number


@tilejit.kernel
def part_of(j, i, shares, BN: tl.constexpr):
    """Of the i-th block of queries of which program j has a share: its number, slot, and keys from where to where."""
    first = j * shares.quota
    block = first // shares.length + i
    start = tl.maximum(first - block * shares.length, 0)
    stop = tl.minimum(first + shares.quota - block * shares.length, shares.length)
    return shares.whole + block, j + block, start * BN, stop * BN


@tilejit.kernel
def walked(number, at, band, prefix, BM: tl.constexpr, BN: tl.constexpr):
    """How many blocks of keys the number-th block of queries of a sequence walks."""
    low, _ = band_of(number * BM, at, band, prefix)
    _, high = band_of(tl.minimum(number * BM + BM, at.queries) - 1, at, band, prefix)
    return tl.cdiv(tl.maximum(high - low // BN * BN, 0), BN)


@tilejit.kernel
def sequence(batch, queries, keys, opts, BM: tl.constexpr, BN: tl.constexpr):
    """Where sequences are; blocks of queries, and of keys that the longest and the average one of those walk."""
    at, prefix = place(batch, 0, 1, queries, keys, opts.sequences), 0
    if opts.band.prefix is not None:
        prefix = tl.load(opts.band.prefix + batch)
    blocks = tl.cdiv(at.queries, BM)
    first, last = walked(0, at, opts.band, prefix, BM, BN), walked(blocks - 1, at, opts.band, prefix, BM, BN)
    return at, prefix, blocks, tl.where(blocks > 0, tl.maximum(first, last), batch * 0), (first + last + 1) // 2


@tilejit.kernel
def share_kernel(shares, queries, keys, heads, batches, chip, opts, START: tl.constexpr, SHARE: tl.constexpr,
                 JOIN: tl.constexpr, PARTS: tl.constexpr, SIZE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Writes `shares.table`."""
    own, batch = tl.program_id(0), tl.arange(0, SIZE)
    some = batch < batches
    batch = tl.where(some, batch, 0)
    _, _, _, n, _ = sequence(batch, queries, keys, opts, BM, BN)
    order = tl.sort(tl.where(some, n * SIZE + batch, -1), descending=True)
    batch = tl.maximum(order, 0) % SIZE
    _, _, blocks, n, mean = sequence(batch, queries, keys, opts, BM, BN)
    blocks = tl.where(order < 0, 0, blocks)
    n = tl.maximum(n, 1)
    # Ways side by side: so many shares of a block with the most keys.
    way = tl.arange(1, PARTS + 1)
    each = tl.cdiv(tl.max(n, 0), way)
    parts = tl.cdiv(n[:, None], each[None, :])
    shared, count = parts > 1, blocks[:, None] * parts
    end, beside = tl.cumsum(count, 0), tl.where(shared, SHARE, START)
    turns = tl.cdiv(end * heads, chip) - tl.cdiv((end - count) * heads, chip)
    time = tl.maximum(tl.sum(turns * (tl.cdiv(mean[:, None], parts) + beside), 0),
                      tl.max(tl.cdiv(n[:, None], parts) + beside, 0)) + tl.where(way > 1, JOIN, 0)
    time = tl.where(tl.sum(tl.where(shared, count, 0), 0) > shares.whole, 1 << 30, time)
    quota = tl.min(tl.where(time == tl.min(time, 0), each, 1 << 30), 0)
    parts = tl.cdiv(n, quota)
    count = blocks * parts
    mine = tl.arange(0, SIZE) == own
    if own == 0:  # behind all there is nothing to do
        for i in tl.range(tl.sum(count), shares.quota, 128):
            note(shares, i + tl.arange(0, 128), shares.quota, (0, 0, 0, 0, 0, tl.cdiv(queries, BM), 0, 0, 0, 1))
    first = tl.sum(tl.where(mine, tl.cumsum(count) - count, 0))
    batch, parts = tl.sum(tl.where(mine, batch, 0)), tl.sum(tl.where(mine, parts, 0))
    at, prefix, blocks, _, _ = sequence(batch, queries, keys, opts, BM, BN)
    count = blocks * parts
    for i in tl.range(0, count, 128):
        j = i + tl.arange(0, 128)
        number = j // parts
        if opts.band.right is not None:  # the last ones walk most
            number = blocks - 1 - number
        each = tl.cdiv(walked(number, at, opts.band, prefix, BM, BN), parts) * BN
        start = j % parts * each
        note(shares, first + j, first + count, (
            batch, at.first_query, at.queries, at.first_key, at.keys, number, start, start + each,
            first + j // parts * parts, parts))


@tilejit.kernel
def note(shares, i, end, facts):
    for n in tl.static_range(0, 10):
        tl.store(shares.table + i * 10 + n, facts[n], i < end)


@tilejit.kernel
def share_of(i, head, heads, opts):
    """Share i: its sequence, block of queries, keys from where to where, the block's first share, how many it has."""
    at = opts.shares.table + i * 10
    batch = tl.load(at)
    row = batch
    if opts.sequences.queries is not None:
        row = 0
    return (Place(batch, row, tl.load(at + 1), tl.load(at + 2), tl.load(at + 3), tl.load(at + 4), head, heads),
            tl.load(at + 5), tl.load(at + 6), tl.load(at + 7), tl.load(at + 8), tl.load(at + 9))


@tilejit.kernel
def join_kernel(out_desc, lse, queries, keys, heads, batches, opts, RAISED: tl.constexpr, GROUP: tl.constexpr,
                BM: tl.constexpr, DV: tl.constexpr):
    """The results of blocks in shares, in the order of their keys."""
    i, chunk, shares = tl.program_id(0), tl.program_id(1), opts.shares
    if shares.table is not None:
        at, number, _, _, first, parts = share_of(i, chunk, heads, opts)
        start, apart, chunk = first * heads + chunk, heads, i - first
        stop = tl.where(parts > 1, BM // 16, 0)
    else:
        head, number = numbered(shares.whole + i, tl.cdiv(queries, BM), heads * batches, opts.band)
        at = place(head // heads, head % heads, heads, queries, keys, opts.sequences)
        first = i * shares.length // shares.quota
        start, apart, parts = first + i, 1, ((i + 1) * shares.length - 1) // shares.quota + 1 - first
        stop = chunk + 1
    for n in tl.range(chunk, stop, parts):
        rows = n * 16 + tl.arange(0, 16)
        most, total = tl.full([16], float("-inf"), tl.float32), tl.zeros([16], tl.float32)
        acc = tl.zeros([16, DV], tl.float32)
        where = rows[:, None] * DV + tl.arange(0, DV)[None, :]
        for part in tl.range(0, parts):
            slot = start + part * apart
            x = tl.load(shares.sums + slot.to(tl.int64) * (BM * DV) + where)
            own = tl.load(shares.rows + slot * (2 * BM) + rows)
            new = tl.maximum(most, own)
            origin = tl.where(new == float("-inf"), 0.0, new)
            before, now = tl.exp2(most - origin), tl.exp2(own - origin)
            acc = acc * before[:, None] + x * now[:, None]
            total = total * before + tl.load(shares.rows + slot * (2 * BM) + BM + rows) * now
            most = new
        give(acc, most, total, RAISED, out_desc, lse, queries, number * BM + n * 16, at.head, at.head // GROUP,
             at.batch, 0, heads, batches, at, opts, GROUP, 1, 16, DV)


@tilejit.kernel
def attention_kernel(q_desc, k_desc, v_desc, out_desc, lse, queries, keys, scale, heads, batches, opts,
                     GROUP: tl.constexpr, PACK: tl.constexpr, TAIL: tl.constexpr, SPLIT: tl.constexpr,
                     PARTED: tl.constexpr, PERSISTENT: tl.constexpr, TURNED: tl.constexpr, BM: tl.constexpr,
                     BN: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, TOGETHER: tl.constexpr = 1,
                     WIDENED: tl.constexpr = False, FEW: tl.constexpr = False):
    """Attention of blocks of queries (docs/modules.md)."""
    if PERSISTENT:
        blocks, each, own, shares = tl.cdiv(queries, BM), tl.num_programs(0), tl.program_id(0), opts.shares
        slot, start, stop = -1, 0, keys
        if opts.band.right is None:
            tiles = blocks * heads * batches
            rounds = tl.cdiv(tiles - own, each)
            count = rounds
            if shares is not None:
                rounds, end = shares.whole // each, (tiles - shares.whole) * shares.length
                last = (tl.minimum((own + 1) * shares.quota, end) - 1) // shares.length
                count = rounds + tl.maximum(last + 1 - own * shares.quota // shares.length, 0)
        elif TOGETHER > 1:
            # Dealt to and fro, and every other section of heads from its other end, so that all have as much to do.
            other = each - 1 - own
            sections = heads * batches // TOGETHER
            tiles = blocks * TOGETHER
            rounds, odd = tiles // each, tiles // each % 2 == 1
            rest = tiles - rounds * each
            first = rounds + (tl.where(odd, other, own) < rest)
            both = first + rounds + (tl.where(odd, own, other) < rest)
            count = sections // 2 * both + sections % 2 * first
        else:
            # The block with the most keys goes with the one with the fewest, and so on: all pairs have as many.
            pairs = tl.cdiv(blocks, 2)
            count = tl.cdiv(pairs * heads * batches - own, each) * 2
        for i in tl.range(0, count, num_stages=1 if D > 192 or DV > 192 else None):
            if opts.band.right is None:
                tile = own + i * each
                if shares is not None:
                    slot, start, stop = -1, 0, keys
                    if i >= rounds:
                        tile, slot, start, stop = part_of(own, i - rounds, shares, BN)
                head, number = tile // blocks, tile % blocks
            elif TOGETHER > 1:
                at = i % both
                section = i // both * 2 + (at >= first)
                at = tl.where(at >= first, at - first, at)
                tile = at * each + tl.where((at + section) % 2 == 0, own, other)
                head, number = section * TOGETHER + tile % TOGETHER, blocks - 1 - tile // TOGETHER
            else:
                pair = own + i // 2 * each
                head, first = pair // pairs, pair % pairs
                number = tl.where(i % 2 == 0, blocks - 1 - first, first)
                number = tl.where((i % 2 == 1) & (first == blocks - 1 - first), blocks, number)
            queries_of_a_head(q_desc, k_desc, v_desc, out_desc, lse, queries, keys, scale, number * BM, head % heads,
                              head // heads, 0, heads, batches, opts, GROUP, PACK, TAIL, SPLIT, PARTED, TURNED, BM, BN,
                              D, DV, slot, start, stop, opts.band.right is not None and TOGETHER == 1)
    else:
        number, head = (tl.num_programs(0) - 1 - tl.program_id(0)) // TOGETHER, tl.program_id(0) % TOGETHER
        head, batch, part = tl.program_id(1) * TOGETHER + head, tl.program_id(2), 0
        if PARTED:
            number, head, part = 0, tl.program_id(1), tl.program_id(0)
        slot, start, stop, at = -1, 0, keys, None
        if opts.shares is not None and opts.shares.table is not None:
            share = tl.program_id(0) // TOGETHER
            at, number, start, stop, _, parts = share_of(share, head, heads, opts)
            batch = at.batch
            if opts.shares.sums is not None:
                slot = tl.where(parts > 1, share * heads + head, -1)
        elif opts.shares is not None:
            tile = tl.program_id(0)
            if tile >= opts.shares.whole:
                tile, slot, start, stop = part_of(tile - opts.shares.whole, 0, opts.shares, BN)
            head, number = numbered(tile, tl.cdiv(queries, BM), heads * batches, opts.band)
            head, batch = head % heads, head // heads
        queries_of_a_head(q_desc, k_desc, v_desc, out_desc, lse, queries, keys, scale, number * BM, head, batch, part,
                          heads, batches, opts, GROUP, PACK, TAIL, SPLIT, PARTED, TURNED, BM, BN, D, DV, slot, start,
                          stop, at is not None, at, WIDENED, FEW)
