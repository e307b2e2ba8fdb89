"""The host's side of attention's gradient: rows, then keys and values, which add to queries' (docs/attention.md)."""
from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import tilejit
from tilejit import ArrayInfo
from tilejit.kernels._calls import infos_of
from tilejit.kernels.attention.backward_kernel import (
    Shares,
    bound_kernel,
    join_kernel,
    key_kernel,
    query_kernel,
    row_kernel,
    sum_kernel,
)
from tilejit.kernels.attention.cases import (
    WHAT,
    Case,
    Extras,
    blocks_of,
    check,
    factor,
    flat,
    options,
    split_of,
    width,
)
from tilejit.kernels.attention.forward import SEQUENCES, ragged_rows, sequences
from tilejit.kernels.attention.forward_kernel import share_kernel
from tilejit.kernels.attention.scores import Band, Options, Rows, Sequences
from tilejit.kernels.attention.scores import Shares as Share
from tilejit.kernels.rows.columns import column_sum

#: Bytes of sums of heads that share keys which a program may take on when all others have ended.
LAST = 1 << 19
#: Blocks of keys are listed where so many programs a multiprocessor would have none.
SAVED = 10
#: Shares of a block of keys at most; trips of the loop over queries in whose time they are begun and added up.
COUNT, JOINS = 32, 4.0
#: Numbers of a block that a program adds up.
PIECE = 4096


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
    """Queries and keys of a block, and warps; see docs/modules.md."""
    if added:
        return (128 if max(wide, wide_v) <= 64 else 64), 128, 8
    more = case.score is not None or case.dropout is not None or case.softcap is not None and case.deterministic
    return (64, 128, 8) if alone or max(wide, wide_v) <= (64 if more else 128) else (64, 64, 8)


def query_tiles(wide: int, plain: bool, few: bool = False) -> tuple[int, int, int]:
    """Queries and keys of a block of the queries' own kernel, and warps, by registers and shared memory."""
    if few:
        return 64, 64 if plain or wide <= 128 else 32, 4
    return 128, (128 if plain else 64) if wide <= 64 else 64 if wide <= 128 else 32, 8


def shares_of(programs: int, chip: int, blocks: int, group: int, part: float = 1.0) -> tuple[int, int, int]:
    """Programs with whole blocks of keys, shares of the others, and of the heads; see docs/modules.md."""
    over = programs % chip if part == 1 or programs < chip else 0

    def cost(way: tuple[int, int]) -> float:
        count = way[0] * way[1]
        return tilejit.cdiv(over * count, chip) * tilejit.cdiv(blocks, way[1]) * part * group / way[0] + \
            JOINS * (count > 1)

    heads, parts = min(((h, n) for h in range(1, group + 1) if group % h == 0 for n in range(1, blocks + 1)
                        if h * n <= COUNT), key=cost) if over else (1, 1)
    return (programs - over, heads * parts, heads) if heads * parts > 1 else (programs, 1, 1)


def _listed(like: Any, blocks: int, work: Work) -> Options:
    """With a list of sequences' blocks of keys, at most so many, those that most queries see first."""
    opts, batch = work.opts, work.batch
    size, table = sequences(batch), tilejit.empty_like(like, (blocks, 10), tilejit.language.int32)
    shares = Share(0, 0, blocks, table=table)
    turned = Options(Band(opts.band.right, opts.band.left), sequences=Sequences(*opts.sequences[1::-1]))
    share_kernel[(batch,)](shares, work.keys, work.queries, 1, batch, 1, turned, START=0, SHARE=0, JOIN=0, PARTS=1,
                           SIZE=size, BM=work.bn, BN=work.bm, num_warps=size // 32)
    return opts._replace(shares=shares)


class Work(NamedTuple):
    """One gradient: its sizes, and which kernels take what."""

    case: Case
    extras: Extras
    opts: Options
    batch: int
    queries: int  # of a sequence, at most
    keys: int
    heads: int
    group: int  # heads that share keys
    total: int  # rows of queries, of all sequences where they are packed
    wide: int  # columns of a block of queries and keys, and of values
    wide_v: int
    bm: int  # rows of a block of queries, and of keys
    bn: int
    warps: int
    packed: bool
    alone: bool  # keys and values have a kernel each
    together: bool  # the kernel of keys adds to the gradient of queries
    added: bool  # sums of products begin with the numbers of rows

    @property
    def exact(self) -> bool:
        """Whether the gradient of queries is added in integers: equal bits."""
        return self.together and self.case.deterministic

    @property
    def kv_heads(self) -> int:
        return self.heads // self.group

    @property
    def blocks(self) -> int:
        """Blocks of queries of a sequence."""
        return tilejit.cdiv(self.queries, self.bm)

    @property
    def steps(self) -> int:
        """Blocks of keys of a sequence."""
        return tilejit.cdiv(self.keys, self.bn)

    @property
    def programs(self) -> int:
        """Blocks of keys of all sequences and heads."""
        return self.steps * self.kv_heads * self.batch

    @property
    def spans(self) -> int:
        """Of a head's keys whose norms are bounded, a program each."""
        return 1 << min(4, (self.steps - 1).bit_length())

    @property
    def lines(self) -> int:
        """Rows of all blocks of queries."""
        return max(self.total // self.bm + self.batch if self.packed else self.batch * self.blocks, 1) * self.bm

    @property
    def early(self) -> bool | None:
        """Whether a kernel begins before the one before it ends: 1% (H100), but heads of 128 lose as much."""
        return max(self.wide, self.wide_v) <= 64 or None

    @property
    def settings(self) -> dict[str, Any]:
        """What the kernels of keys and of queries are compiled for."""
        # By a few, keys' or values' own kernel has the registers for products ahead.
        return dict(GROUP=self.group, D=self.wide, DV=self.wide_v, num_warps=self.warps,
                    num_stages=2 if self.bm == 128 else None, products_ahead=self.alone or None)

    def ways(self, chip: int) -> tuple[int, int, int]:
        """See `shares_of`."""
        if not self.blocks or self.packed:
            return self.programs, 1, 1
        return shares_of(self.programs, chip, self.blocks, self.group, 0.5 if self.case.high else 1.0)

    def masks(self, bn: int) -> dict[str, Any]:
        """Which blocks of so many keys are masked."""
        split = split_of(self.case, self.bm)
        tail = self.case.high or split != 1 or self.packed or self.keys % bn > 0 or self.extras.used is not None
        return dict(TAIL=tail, SPLIT=split)


class Scratch(NamedTuple):
    """What the kernels hand on; None where they do not."""

    stats: Any  # numbers of rows, as `_blocks` describes them
    sums: Any  # of the gradient of queries, and the units of integers
    units: Any
    bounds: Any  # of the norms of keys, and whether fp16 was too small
    lost: Any
    done: Any  # programs that have ended, of heads that share keys
    parts: Any  # of the gradient of sinks
    shares: Shares | None


def _work(sizes: tuple[int, ...], rows: int, packed: bool, case: Case, extras: Extras, opts: Options, chip: int,
          divisible: bool = False) -> Work:
    """divisible: widths are powers of two, for warpgroups with parts of the columns, and for sums in memory."""
    batch, queries, keys, heads, kv_heads, d, dv = sizes
    wide, wide_v = (tilejit.next_power_of_2(width(x)) if divisible else width(x) for x in (d, dv))
    most, group = max(wide, wide_v), heads // kv_heads
    alone, together = divided(case, extras, most, group), not apart(case, most, queries)
    added = together and most <= 128 and not case.changes and extras.slopes is None and (
        most > 64 or not case.low and case.mask is None)
    work = Work(case, extras, opts, batch, queries, keys, heads, group, rows if packed else queries, wide, wide_v,
                *tiles_of(wide, wide_v, case, alone, added), packed, alone, together, added)
    if 192 in (wide, wide_v) and (together or not alone or work.ways(chip)[1] > 1):
        return _work(sizes, rows, packed, case, extras, opts, chip, True)
    return work


def _scratch(q: Any, info: ArrayInfo, work: Work) -> Scratch:
    fp32, int32 = tilejit.language.float32, tilejit.language.int32
    sums, of_keys = work.lines // work.bm * work.heads, (work.batch, work.kv_heads)
    ends = work.together and work.steps and work.group * work.queries * work.wide * 4 <= LAST

    def empty(wanted: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        return tilejit.empty_like(q, shape, dtype) if wanted else None

    shares, ways = None, work.ways(tilejit.multiprocessors(info.device))
    if ways[1] > 1:
        size = (work.programs - ways[0]) * ways[1] * work.bn * (work.wide + work.wide_v)
        shares = Shares(*ways, empty(True, (size,), fp32))

    return Scratch(
        empty(work.added, (work.heads, work.lines, 16), tilejit.language.bfloat16) if work.added else
        empty(True, (work.heads, 2, work.lines), fp32),
        empty(work.together, (sums, work.bm * work.wide), int32 if work.exact else fp32),
        empty(work.exact, (sums, work.bm), fp32), empty(work.exact, (*of_keys, 2, work.spans), int32),
        empty(work.exact and info.dtype == tilejit.language.float16, of_keys, int32), empty(ends, of_keys, int32),
        empty(work.extras.sinks is not None, (work.blocks * work.batch, work.heads), fp32), shares)


def _blocks(arrays: tuple[Any, ...], stats: Any, work: Work, bm: int, bn: int) -> list[Any]:
    """Descriptors of blocks of queries, keys, values, the gradient of results, and the numbers of rows."""
    sizes = ((bm, work.wide), (bn, work.wide), (bn, work.wide_v), (bm, work.wide_v))
    heads, lines = work.heads, work.lines
    return [blocks_of(tilejit.array_info(x), *size).over(x) for x, size in zip(arrays, sizes)] + [
        tilejit.TensorDescriptor(stats, (heads, lines, 16), (16 * lines, 16, 1), (1, bm, 16)) if work.added else
        tilejit.TensorDescriptor(stats, (heads, 2, lines), (2 * lines, lines, 1), (1, 1, bm))]


def _rows_of(x: Any, packed: bool) -> Rows:
    info = tilejit.array_info(x)
    return Rows(x, 0 if packed else info.strides[0], info.strides[-3], info.strides[-2], info.shape[-1])


def _stored(x: Any, work: Work, rows: int, columns: int) -> Any:
    return (ragged_rows if work.packed else blocks_of)(tilejit.array_info(x), rows, columns).over(x)


@tilejit.replayed
def gradients(grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, lse_grad: Any, case: Case,
              extras: Extras) -> tuple[Any, Any, Any, Any]:
    """The gradients of q, k, v and of the sinks (None without any); lse_grad: that of the logarithms of sums, or None.

    Raises LaunchError for cases without a gradient.
    """
    iq, ik, iv, io = infos_of(q, k, v, out)
    infos = infos_of(*flat(extras))
    sizes = check(iq, ik, iv, case, infos)
    _check_gradient(case, extras, iq)
    work = _work(sizes, iq.shape[0], infos[3] is not None, case, extras, options(case, extras, infos),
                 tilejit.multiprocessors(iq.device))
    dq, dk, dv = (tilejit.empty_like(x, i.shape) for x, i in ((q, iq), (k, ik), (v, iv)))
    scratch = _scratch(q, iq, work)
    desc = _blocks((q, k, v, grad), scratch.stats, work, work.bm, work.bn)
    of_dq = _rows_of(dq, work.packed)
    if work.blocks and work.batch:
        columns = tilejit.next_power_of_2(work.wide_v)  # rows are read into registers
        rows = [blocks_of(i, work.bm, columns).over(x) for x, i in ((out, io), (grad, tilejit.array_info(grad)))]
        _of_rows(desc, rows, lse, lse_grad, work, scratch)
    if work.steps and work.batch:
        _of_keys(desc, of_dq if work.together else None, dk, dv, work, scratch)
    if work.blocks and work.batch and scratch.done is None:
        if work.together:
            _add(of_dq, work, scratch)
        else:
            _of_queries((q, k, v, grad), dq, work, scratch)
    return dq, dk, dv, None if scratch.parts is None else column_sum(scratch.parts, extras.sinks)


def _of_rows(desc: list[Any], rows: list[Any], lse: Any, lse_grad: Any, work: Work, scratch: Scratch) -> None:
    """The numbers of rows that the other kernels need."""
    case = work.case
    sizes = dict(GROUP=work.group, SPANS=work.spans, D=work.wide)
    if work.exact:
        bound_kernel[(work.spans, work.kv_heads, work.batch)](
            desc[1], desc[2], scratch.bounds, scratch.lost, work.total, work.keys, work.heads, work.opts.sequences,
            BN=work.bn, DV=work.wide_v, num_warps=8, **sizes)
    row_kernel[(work.blocks, work.heads, work.batch)](
        *rows, lse, lse_grad, scratch.stats, scratch.sums, scratch.units, scratch.bounds, scratch.done,
        work.extras.sinks, scratch.parts, work.total, work.keys, work.heads, work.lines,
        factor(case, work.extras), 1.0 / (1.0 - (case.dropout or 0.0)), work.opts.sequences, BM=work.bm,
        DV=tilejit.next_power_of_2(work.wide_v), ADDED=work.added, num_warps=4, launch_pdl=work.early, **sizes)


def _of_keys(desc: list[Any], of_dq: Rows | None, dk: Any, dv: Any, work: Work, scratch: Scratch) -> None:
    """The gradients of keys and values, and what they add to that of queries."""
    case, opts, shares, bn = work.case, work.opts, scratch.shares, work.bn
    info = tilejit.array_info(dk)
    chip = tilejit.multiprocessors(info.device)
    grid = (work.steps, work.kv_heads, work.batch)
    if shares is not None:
        grid = (shares.whole + (work.programs - shares.whole) * shares.count, 1, 1)
    there = info.shape[0] // bn + work.batch  # blocks of keys at most
    if work.packed and scratch.done is None and work.extras.used is None and work.batch <= SEQUENCES and \
            (work.steps * work.batch - there) * work.kv_heads > SAVED * chip:
        opts, grid = _listed(dk, there, work), (there, work.kv_heads, 1)
    to = _stored(dk, work, bn, work.wide), _stored(dv, work, bn, work.wide_v)
    for given in [(to[0], None), (None, to[1])] if work.alone else [to]:
        key_kernel[grid](
            *desc, scratch.sums, scratch.units, scratch.lost, *given, of_dq, scratch.done, shares, work.total,
            work.keys, factor(case, work.extras), case.scale, work.heads, opts, ADDED=work.added,
            AT_ONCE=2 if work.exact else 4, BM=work.bm, BN=bn, **work.settings, **work.masks(bn))
    if shares is not None:
        join_kernel[(work.programs - shares.whole, bn * (work.wide + work.wide_v) // PIECE)](
            shares, _rows_of(dk, False), _rows_of(dv, False), work.keys, case.scale, work.kv_heads, BN=bn, D=work.wide,
            DV=work.wide_v, PIECE=PIECE, num_warps=4, launch_pdl=work.early)


def _add(of_dq: Rows, work: Work, scratch: Scratch) -> None:
    """The gradient of queries, from what the kernel of keys added."""
    sum_kernel[(work.blocks, work.heads, work.batch)](
        of_dq, scratch.sums, scratch.units, scratch.lost, work.total, work.keys, work.case.scale, work.heads,
        work.opts.sequences, GROUP=work.group, BM=work.bm, D=work.wide, num_warps=8, launch_pdl=work.early)


def _of_queries(arrays: tuple[Any, ...], dq: Any, work: Work, scratch: Scratch) -> None:
    """The gradient of queries by itself."""
    case = work.case
    others, chip = work.heads * work.batch, tilejit.multiprocessors(tilejit.array_info(dq).device)
    bm, bn, warps = query_tiles(max(work.wide, work.wide_v), _plain(case, work.extras),
                                2 * tilejit.cdiv(work.queries, 128) * others <= chip)
    query_kernel[(tilejit.cdiv(work.queries, bm), work.heads, work.batch)](
        *_blocks(arrays, scratch.stats, work, bm, bn), _stored(dq, work, bm, work.wide), work.total, work.keys,
        factor(case, work.extras), case.scale, work.heads, work.opts, PAD=work.bm, BM=bm, BN=bn,
        **{**work.settings, "num_warps": warps}, **work.masks(bn))


def _check_gradient(case: Case, extras: Extras, q: ArrayInfo) -> None:
    for found, what in ((q.dtype.bytes == 1, "fp8"), (case.page, "pages"),
                        (case.score is not None and case.gradient is None, "a score_mod without score_gradient")):
        if found:
            raise tilejit.LaunchError(f"{WHAT}: {what} has no gradient")
