"""The host's side of forward attention: tiles, descriptors and launches."""
from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import Any, NamedTuple

import numpy as np

import tilejit
from tilejit import ArrayInfo
from tilejit.kernels._calls import At, Launch, Work, facts_of, given, infos_of, place
from tilejit.kernels._operands import WRAP
from tilejit.kernels.attention.cases import (
    WHAT,
    Case,
    Extras,
    blocks_of,
    check,
    factor,
    filled,
    flat,
    keys_of_block,
    options,
    pitches,
    readable,
    split_of,
    width,
    with_rows,
)
from tilejit.kernels.attention.decode import decode, decodes
from tilejit.kernels.attention.forward_kernel import attention_kernel, join_kernel, share_kernel, turn_kernel
from tilejit.kernels.attention.scores import Shares

#: Programs take several blocks of queries where the longest one has at most so much of the average's work.
UNEQUAL = 1.11
#: Three warpgroups take 192 queries where padded rows are no more than this, by the bytes of an element.
PADDED = {1: 1.08, 2: 1.13}
#: Rows of three warpgroups, and of four with half as many keys, that take as long.
FOUR = 1.08
#: When warpgroups pass turns on, by the queries of a block (see `schedule/order.py`).
TURNS = {128: "scores", 192: "products", 256: True}
#: Bytes of keys and values that stay in L2 while their blocks are computed.
STAYS = 32 << 20
#: Keys from which on three warpgroups are faster with a causal mask, by the bytes of an element.
LONG = {1: 4096, 2: 8192}
#: What takes as long as so many blocks of keys: a program's start and end, those of a share, whose sums are written and
#: read, those of two shares of a program that goes on, and the launch that joins shares.
START, SHARE, TWO, JOIN = 2, 5, 6, 2
#: Shares of a block of queries.
PARTS = 16
#: Sequences whose blocks one launch lists, and the least blocks of keys of the longest one; it divides blocks of fewer
#: programs than FEW a multiprocessor.
SEQUENCES, LONGEST, FEW = 512, 12, 4
#: Places of arrays in a call.
_Q, _K, _V, _OUT, _LSE, _EXTRAS = range(6)


@tilejit.replayed
def forward(q: Any, k: Any, v: Any, case: Case, extras: Extras, out: Any = None, lse: Any = None,
            tiles: tuple[int, int] | None = None, persistent: bool | None = None) -> Any:
    iq, ik, iv = infos_of(q, k, v)
    more = flat(extras)
    infos = infos_of(*more)
    if out is None:
        if iv.shape[-1] % 8:
            raise tilejit.LaunchError(f"{WHAT}: results of {iv.shape[-1]} elements need padded rows: give `out` a view "
                                      "of rows of a multiple of 8 elements, or pad v with zeros")
        out = tilejit.empty_like(q, (*iq.shape[:-1], iv.shape[-1]), _result(iq))
    io, il = infos_of(out, lse)
    if tiles is None and not persistent and decodes(iq, ik, iv, case, infos):
        check_results(iq, iv, io, il, case, infos)
        decode(q, k, v, case, extras, out, lse)
        return out
    known = facts_of(iq, ik, iv, io, il)
    work = forward_work(*known, filled(extras, facts_of(*infos)), case, tiles, persistent, *place(iq))
    if work is not None:
        work.run(q, k, v, out, lse, *more)
    return out


def _turned(work: Work, v: ArrayInfo) -> tuple[int, ArrayInfo]:
    """Values in 8 bits as [batch, heads, dv, keys], along which products read them."""
    batch, keys, heads, dv = v.shape
    padded = _padded(keys, 32)
    shape = (batch, heads, dv, padded)
    at = work.new(shape, v.dtype)
    columns = gcd(width(dv), 128)
    work.launches.append(Launch(
        turn_kernel.partial(BLOCK=128, D=columns, num_warps=4),
        (tilejit.cdiv(padded, 128), tilejit.cdiv(dv, columns) * heads, batch),
        (At(_V), At(at), keys, padded, heads, *v.strides[:3], dv)))
    return at, v._replace(address=0, shape=shape, strides=_row_major(shape))


def _result(q: ArrayInfo) -> Any:
    return tilejit.language.bfloat16 if q.dtype.bytes == 1 else q.dtype


def _tiles(q: ArrayInfo, queries: int, keys: int, wide: int, wide_v: int, causal: bool, plain: bool, along: bool,
           most: int) -> tuple[int, int]:
    """Queries and keys (`most` at most) of a block, by registers and shared memory."""
    size = q.dtype.bytes
    if not along:
        most = min(most, max(32, int((EIGHT_ROOM - EIGHT_MORE - wide_v / 2) / (5 / 8 + wide_v / PASSED))))
    three = _padded(queries, 192)
    if max(wide, wide_v) <= 64 < keys and plain and (not causal or keys >= LONG[size]) and most >= 128 and \
            along and three <= PADDED[size] * _padded(queries, 128):
        if size > 1 and not causal and keys % 64 == 0 and three > FOUR * _padded(queries, 256):
            return 256, 64
        return 192, 128
    return 64 if queries <= 64 else 128, keys_of_tile(size, queries, keys, wide, wide_v, causal, plain, most)


#: What a block costs beside its keys, as much as so many keys, by the bytes of an element.
BESIDE = {1: 32, 2: 16}
#: Keys of a block beside as many as there is room for: few sizes, so that other lengths are not compiled anew.
SIZES = (64, 96, 128, 192, 256)
#: Registers of a thread for scores and weights in 8 bits, and sums; those of them that more than a causal mask takes.
EIGHT_ROOM, EIGHT_MORE = 204, 24
#: Elements of values that take a register where a product does not read them as they lie: they pass through registers.
PASSED = 160


def keys_of_tile(size: int, queries: int, keys: int, wide: int, wide_v: int, causal: bool, plain: bool,
                 most: int) -> int:
    """Keys of a block, at most `most`, of elements of `size` bytes: those with which blocks of all queries take
    least."""
    step = 32 // size
    if size == 1:
        most = min(most, (EIGHT_ROOM - 2 * causal - EIGHT_MORE * (not plain) - wide_v // 2) * 8 // 5)
    else:
        most = min(most, 128 if wide_v <= 128 and wide <= 192 else 80 if wide_v > 192 else 64)
    even = all(n & (n - 1) == 0 for n in (wide, wide_v))  # a block has one size that is no power of two
    every = 128 * max(1, tilejit.cdiv(queries, 128 * 64))  # of the blocks of queries 64 at most are looked at
    ends = range(every, queries + every, every) if causal else (queries,)
    seen = [max(1, min(keys, keys - queries + end)) for end in ends]
    sizes = {min(n, most // step * step) for n in SIZES}
    return min((n for n in sorted(sizes) if even or n & (n - 1) == 0),
               key=lambda n: sum(_padded(x, n) for x in seen) * (1 + BESIDE[size] / n))


def _shared(lengths: Any, whole: int, chip: int, several: bool) -> Shares | None:
    """Where it takes less time to divide blocks of queries behind `whole` other ones."""
    over, length, found = len(lengths), int(max(lengths, default=0)), []
    for parts in range(2, min(PARTS, length) + 1):
        quota = tilejit.cdiv(length, parts)
        if several:
            quota = max(quota, tilejit.cdiv(over * length, chip))
            found.append((quota + TWO, length, quota))
        else:
            left = lengths - quota * np.arange(parts)[:, None]
            times = np.sort(np.minimum(left[left > 0], quota) + SHARE)[::-1]
            found.append((int(_shares(times, chip).max()), parts * quota, quota))
    time, each, quota = min(found, default=(length + START, 0, 0))
    return Shares(whole, each, quota) if time + JOIN < length + START else None


def _shares(work: Any, programs: int) -> Any:
    """What each of so many programs has of the work, dealt to and fro."""
    rounds = np.append(work, np.zeros(-len(work) % programs, int)).reshape(-1, programs)
    rounds[1::2] = rounds[1::2, ::-1]
    return rounds.sum(0)


def _padded(n: int, block: int) -> int:
    return tilejit.cdiv(n, block) * block


def _dealt(heads: int, size: int, blocks: int, programs: int) -> tuple[int, float]:
    """Heads of a section, the fewest whose programs have about equal shares of causal blocks while keys and values
    (`size` bytes each) stay in L2, 1 for blocks in pairs; what the longest program has of the average's work."""
    whole = heads * blocks * (blocks + 1) / 2 / programs
    found = {1: tilejit.cdiv(tilejit.cdiv(blocks, 2) * heads, programs) * (blocks + 1) / whole}
    for together in range(2, min(heads, STAYS // size) + 1):
        if heads % together == 0:
            shares = _shares(np.repeat(np.arange(blocks, 0, -1), together), programs)
            sections = heads // together
            found[together] = int((shares * -(-sections // 2) + shares[::-1] * (sections // 2)).max()) / whole
    return next((n, x) for n, x in found.items() if x <= min(found.values()) + 0.005)


class Call(NamedTuple):
    """What launches follow from."""

    case: Case
    infos: tuple[ArrayInfo | None, ...]
    batch: int
    queries: int
    keys: int
    heads: int
    group: int
    wide: int
    wide_v: int
    size: int
    plain: bool
    alike: bool
    eight: bool
    bm: int
    bn: int
    pair: int
    chip: int

    @property
    def blocks(self) -> int:
        return tilejit.cdiv(self.queries, self.bm)

    @property
    def programs(self) -> int:
        return self.blocks * self.heads * self.batch


def _call(q: ArrayInfo, k: ArrayInfo, v: ArrayInfo, infos: tuple[ArrayInfo | None, ...], case: Case,
          tiles: tuple[int, int] | None, chip: int) -> Call:
    batch, queries, keys, heads, kv_heads, d, dv = check(q, k, v, case, infos)
    packed, wide, wide_v = infos[3] is not None, width(d), width(dv)
    plain = not case.changes and case.mask is None and infos[1] is None
    # Random numbers take registers, and distances of keys some.
    most = 64 if case.dropout is not None else 112 if infos[1] is not None and max(wide, wide_v) > 64 else 256
    eight = v.dtype.bytes == 1 and not case.page and not packed and dv % 4 == 0
    narrow = plain and not (case.low or case.page)  # no producer reads tables of pages for three warpgroups
    bm, bn = case.block or tiles or _tiles(q, queries, keys, wide, wide_v, case.high, narrow,
                                           eight or v.dtype.bytes > 1, most)
    if not tiles:
        bn = min(bn, most)
    bn = keys_of_block(case, bn)
    if eight and bn % 32:
        raise tilejit.LaunchError(f"{WHAT}: blocks of {bn} keys; values in 8 bits need a multiple of 32")
    alike = not (packed or case.page or infos[2] is not None or infos[5] is not None)
    return Call(case, infos, batch, queries, keys, heads, heads // kv_heads, wide, wide_v, q.dtype.bytes, plain, alike,
                eight, bm, bn, (wide + wide_v) * k.dtype.bytes, chip)


def _programs(c: Call, asked: bool | None, tiles: Any) -> tuple[int, bool]:
    """Heads whose blocks are dealt together, and whether programs take several blocks."""
    together, unequal = _dealt(c.heads * c.batch, c.keys * c.pair, c.blocks, c.chip) if c.case.high else (1, 1.0)
    persistent = asked
    if persistent is None:
        narrow = max(c.wide, c.wide_v) <= (128 if c.size == 1 else 192)
        persistent = c.plain and split_of(c.case, c.bn) == 1 and c.alike and not (c.case.dropout or tiles) and (
            narrow or not c.case.high and c.bn <= 64) and (c.bm > 128 or c.programs > c.chip and unequal <= UNEQUAL)
    if not persistent and c.case.high:
        together = _in_l2(c.heads, c.keys * c.pair)
    return together, persistent


def _in_l2(heads: int, size: int) -> int:
    """A power of two of heads."""
    return min(heads & -heads, 1 << max(1, STAYS // max(1, size)).bit_length() - 1)


def _walks(c: Call) -> Any:
    """Blocks of keys of each block of queries, the last one's first."""
    end = np.minimum(np.arange(c.blocks, 0, -1) * c.bm, c.queries)
    shift, case = c.keys - c.queries, c.case
    first, last = np.arange(c.blocks - 1, -1, -1) * c.bm + shift, end - 1 + shift
    high = np.clip(last + 1 + (case.right if case.right is not None else c.keys), 0, c.keys)
    low = np.zeros_like(high) if case.left is None else np.maximum(first - case.left, 0)
    if case.chunk is not None:
        low = np.maximum(low, np.maximum(first, 0) // case.chunk * case.chunk)
    return -(-np.maximum(high - low // c.bn * c.bn, 0) // c.bn)


def _divided(c: Call, persistent: bool) -> Shares | None:
    """Shares of blocks that would leave multiprocessors idle at the end."""
    if not c.alike or c.infos[7] or persistent and (c.case.high or c.wide_v > 192):  # registers
        return None
    if c.case.high or c.case.low:  # those of fewer blocks than multiprocessors, which are not alike
        lengths = np.repeat(_walks(c), c.heads * c.batch if c.programs <= c.chip else 0)
    else:
        lengths = np.full(c.programs % c.chip, tilejit.cdiv(c.keys, c.bn))
    return _shared(lengths, c.programs - len(lengths), c.chip, persistent)


def _listed(c: Call, persistent: bool, rows: int, key_rows: int) -> Shares | None:
    """Room for what `share_kernel` says of sequences whose lengths are in memory, where there may be something to gain.
    rows, key_rows: of all sequences."""
    if c.alike or persistent or c.infos[7] or c.batch > SEQUENCES:
        return None
    blocks = min(c.batch * c.blocks, tilejit.cdiv(rows + c.batch * (c.bm - 1), c.bm))
    uneven = c.infos[3] is None or max(c.batch * c.queries / rows, c.batch * c.keys / key_rows) > UNEQUAL
    few = blocks * c.heads < FEW * c.chip
    if (uneven or few) and c.keys >= LONGEST * c.bn or c.programs > blocks * c.heads + 2 * c.chip:
        parts = FEW * c.chip // c.heads if few else 0
        return Shares(parts, 0, _padded(blocks + parts, 16))
    return None


def sequences(batch: int) -> int:
    """SIZE of `share_kernel`, of a thread each."""
    return max(32, tilejit.next_power_of_2(batch))


@lru_cache(maxsize=1024)
def forward_work(q: ArrayInfo, k: ArrayInfo, v: ArrayInfo, out: ArrayInfo, lse: ArrayInfo | None, extras: Extras,
                 case: Case, tiles: tuple[int, int] | None, persistent: bool | None, chip: int,
                 knobs: Any) -> Work | None:
    infos = flat(extras)
    c = _call(q, k, v, infos, case, tiles, chip)
    check_results(q, v, out, lse, case, infos)
    if 0 in out.shape or not c.queries or not c.batch:
        return None
    together, persistent = _programs(c, persistent, tiles)
    shares, packed = _divided(c, persistent), infos[3] is not None
    rows, key_rows = (x.shape[0] if packed else c.batch * n for x, n in ((q, c.queries), (k, c.keys)))
    listed = _listed(c, persistent, rows, key_rows)
    work = Work(_EXTRAS + len(infos))
    opts = options(case, filled(extras, [given(_EXTRAS + i, x) for i, x in enumerate(infos)]), infos)
    grid: tuple[int, ...] = (c.blocks * together, c.heads // together, c.batch)
    if persistent:
        grid = (min(chip, c.programs),)
    if listed is not None:
        size = sequences(c.batch)
        at = work.new((listed.quota, 10), tilejit.language.int32)
        shares = _with_sums(work, c, listed._replace(table=At(at)), listed.whole * c.heads)
        together = c.heads if listed.whole else _in_l2(c.heads, key_rows * c.pair)  # all at once, or so many
        grid, joins = (listed.quota * together, c.heads // together), (listed.whole, c.heads)
        work.launches.append(Launch(
            share_kernel.partial(START=START, SHARE=SHARE, JOIN=JOIN, PARTS=PARTS if listed.whole else 1, BM=c.bm,
                                 BN=c.bn, SIZE=size, num_warps=size // 32),
            (c.batch,), (shares, c.queries, c.keys, c.heads, c.batch, chip, opts)))
    elif shares is not None:
        over = c.programs - shares.whole
        programs = tilejit.cdiv(over * shares.length, shares.quota)
        grid = (chip if persistent and shares.whole else shares.whole + programs,)
        shares, joins = _with_sums(work, c, shares, programs + over), (over, c.bm // 16)
    opts = opts._replace(shares=shares)
    values = At(_V, blocks_of(v, c.bn, c.wide_v))
    if c.eight:
        at, turned = _turned(work, v)
        values = At(at, tilejit.TensorDescriptor.template(turned, turned.shape, turned.strides, (1, 1, c.wide_v, c.bn)))
    work.launches.append(Launch(_kernel(c, together, persistent), grid, (
        At(_Q, blocks_of(q, c.bm, c.wide)), At(_K, blocks_of(k, c.bn, c.wide)), values, At(_OUT, _rows(c, out, c.bm)),
        given(_LSE, lse), q.shape[0] if packed else c.queries, c.keys, factor(case, extras), c.heads, c.batch,
        with_rows(opts, case, At(_K), At(_V), k, v))))
    if shares is not None and shares.sums is not None:
        work.launches.append(Launch(
            join_kernel.partial(RAISED=v.dtype.bytes == 1, GROUP=c.group, BM=c.bm, DV=c.wide_v, num_warps=4,
                                launch_pdl=True),
            joins, (At(_OUT, _rows(c, out, 16)), given(_LSE, lse), q.shape[0] if packed else c.queries, c.keys, c.heads,
                    c.batch, opts)))
    return work


def _with_sums(work: Work, c: Call, shares: Shares, slots: int) -> Shares:
    if not slots:
        return shares
    sums, rows = (At(work.new((slots, n, c.bm), tilejit.language.float32)) for n in (c.wide_v, 2))
    return shares._replace(sums=sums, rows=rows)


def _kernel(c: Call, together: int, persistent: bool) -> Any:
    ends = c.keys % c.bn > 0 or c.infos[3] is not None or c.infos[5] is not None or c.case.page > 0
    split = split_of(c.case, c.bn)
    # No registers for scores ahead where three warpgroups also have ends or several blocks.
    ahead = c.bm > 128 and not ends and not any(c.infos)
    turns = c.plain and max(c.wide, c.wide_v) <= (128 if c.eight else 64) and TURNS.get(c.bm, False)
    return attention_kernel.partial(
        GROUP=c.group, PACK=1, TAIL=c.case.high or ends or split != 1, SPLIT=split, PARTED=False, PERSISTENT=persistent,
        TURNED=c.eight, BM=c.bm, BN=c.bn, D=c.wide, DV=c.wide_v, num_warps=c.bm // 16, products_ahead=ahead or None,
        ping_pong=turns, TOGETHER=together)


def _rows(c: Call, out: ArrayInfo, rows: int) -> tilejit.TensorDescriptor:
    return (blocks_of if c.infos[3] is None else ragged_rows)(out, rows, c.wide_v)


def check_results(q: ArrayInfo, v: ArrayInfo, out: ArrayInfo, lse: ArrayInfo | None, case: Case,
                  infos: tuple[ArrayInfo | None, ...]) -> None:
    shape = (*q.shape[:-1], v.shape[-1])
    if out.shape != shape or out.dtype != _result(q):
        raise tilejit.LaunchError(f"{WHAT}: out must be {list(shape)} of {_result(q)}, found {list(out.shape)} of "
                                  f"{out.dtype}")
    readable("out", out)
    logs = (q.shape[1], q.shape[0]) if infos[3] is not None else (q.shape[0], q.shape[2], q.shape[1])
    if lse is not None and (lse.shape != logs or lse.dtype != tilejit.language.float32
                            or 0 not in logs and lse.strides != _row_major(logs)):
        raise tilejit.LaunchError(f"{WHAT}: lse must be a contiguous fp32 array {list(logs)}, found "
                                  f"{list(lse.shape)} of {lse.dtype}")


def ragged_rows(x: ArrayInfo, rows: int, columns: int) -> tilejit.TensorDescriptor:
    n, heads, d = x.shape
    down, across, _ = pitches(x)
    return tilejit.TensorDescriptor.template(x, (WRAP + 1, n + 1, WRAP, heads, d),
                                             (2 ** 34 - down, down, down, across, 1), (1, 1, rows, 1, columns))


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for n in reversed(shape[1:]):
        strides.insert(0, strides[0] * n)
    return tuple(strides)
