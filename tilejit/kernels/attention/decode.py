"""Few queries, many keys (decoding): heads that share keys are rows of one tile, and programs have parts of the keys.
"""
from __future__ import annotations

from functools import lru_cache
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels._calls import infos_of
from tilejit.kernels.attention.cases import (
    Case,
    Extras,
    blocks_of,
    check,
    factor,
    flat,
    keys_of_block,
    options,
    pitches,
    width,
    with_rows,
)
from tilejit.kernels.attention.forward_kernel import attention_kernel
from tilejit.kernels.attention.scores import Rows

#: Rows of a tile at most, one warpgroup's, and keys of a block: what follows the last one's arrival is waited for.
ROWS, KEYS = 64, 64
#: So many rows at most are columns of products instead, whose rows are keys and elements of values.
FEW = 16
#: Bytes of blocks of keys, and of values, that are under way: the next launch's programs find room beside.
UNDER_WAY = 48 << 10
#: Parts of the keys at most.
PARTS = 128
#: What takes as long as so many blocks of keys: a program's start and end, the launch that combines parts, and what
#: the part of one program adds to it.
START, COMBINE, PART = 2.0, 1.5, 0.016
#: Numbers that a program weighs at once, at most: a thread has registers for 64 of them.
WEIGHED = 8192


@tilejit.kernel
def combine_kernel(parts, logs, out, lse, sinks, number, queries, heads, batches, d, batch_stride, row_stride,
                   head_stride, COUNT: tl.constexpr, PIECES: tl.constexpr, D: tl.constexpr):
    """What parts sum up to (docs/modules.md)."""
    i, head, batch = tl.program_id(0) // PIECES, tl.program_id(1), tl.program_id(2)
    part, columns = tl.arange(0, COUNT), tl.program_id(0) % PIECES * D + tl.arange(0, D)
    where = ((part * batches + batch) * heads + head) * queries + i
    log = tl.load(logs + where, part < number, other=float("-inf"))
    # Parts are read before it is known what they weigh; those without keys are zero.
    row = ((part * batches + batch) * queries + i).to(tl.int64) * heads + head
    inside = (part < number)[:, None] & (columns < d)[None, :]
    x = tl.load(parts + (row * d)[:, None] + columns[None, :], inside, other=0.0)
    most = tl.max(log, 0)
    if sinks is not None:
        sink = tl.load(sinks + head).to(tl.float32)
        most = tl.maximum(most, sink)
    origin = tl.where(most == float("-inf"), 0.0, most)
    weight = tl.exp(log - origin)
    total = tl.sum(weight, 0)
    if sinks is not None:
        total = total + tl.exp(sink - origin)
    mean = tl.sum(x * weight[:, None], 0) * tl.where(total > 0, 1.0 / total, 0.0)
    to = batch.to(tl.int64) * batch_stride + i.to(tl.int64) * row_stride + head * head_stride
    tl.store(out + to + columns, mean.to(out.dtype.element_ty), columns < d)
    if lse is not None:
        tl.store(lse + (batch * heads + head) * queries + i, tl.where(total > 0, most + tl.log(total), most),
                 tl.program_id(0) % PIECES == 0)


@lru_cache(maxsize=1024)
def parts_of(programs: int, blocks: int, chip: int) -> int:
    """How many programs share a row of tiles of so many blocks of keys: what should take least time."""
    if programs >= 0.8 * chip:
        return 1

    def time(n: int) -> float:
        waves = tilejit.cdiv(programs * n, chip)
        return waves * (START + tilejit.cdiv(blocks, n)) + (COMBINE + PART * programs * n if n > 1 else 0)

    return min(range(1, max(1, min(PARTS, blocks)) + 1), key=time)


def decodes(q: ArrayInfo, k: ArrayInfo, v: ArrayInfo, case: Case, infos: tuple[ArrayInfo | None, ...]) -> bool:
    if infos[3] is not None or infos[7] is not None or case.dropout is not None:
        return False
    if v.dtype.bytes == 1 and 128 < v.shape[-1] <= 192:  # what passes through registers has powers of two
        return False
    return bool(q.shape[1]) and q.shape[1] * (q.shape[2] // max(1, k.shape[-2])) <= ROWS


def decode(q: Any, k: Any, v: Any, case: Case, extras: Extras, out: Any, lse: Any, parts: int = 0) -> None:
    iq, ik, iv = infos_of(q, k, v)
    infos = infos_of(*flat(extras))
    batch, queries, keys, heads, kv_heads, d, dv = check(iq, ik, iv, case, infos)
    if 0 in iq.shape or not dv:
        return
    group = heads // kv_heads
    pack = group if group & (group - 1) == 0 else 1
    wide, wide_v = width(d), width(dv)
    eight = iv.dtype.bytes == 1
    bn = keys_of_block(case, 2 * KEYS if eight and max(wide, wide_v) == 128 else KEYS)
    parts = parts or parts_of(heads // pack * batch, tilejit.cdiv(keys, bn), tilejit.multiprocessors(iq.device))
    # Products take 64 rows, or twice or four times as many.
    few = bn % KEYS == 0 and wide_v & (wide_v - 1) == 0 and queries * pack <= FEW
    rows = max(8, tilejit.next_power_of_2(queries * pack)) if few else ROWS
    to, logs, fp32 = _rows(infos_of(out)[0], pack, rows, wide_v).over(out), lse, tilejit.language.float32
    opts = with_rows(options(case, extras, infos), case, k, v, ik, iv)
    if parts > 1:
        opts = opts._replace(sinks=None)
        to = Rows(tilejit.empty_like(q, (parts * batch, queries, heads, dv), fp32), queries * heads * dv, heads * dv,
                  dv, dv)
        logs = tilejit.empty_like(q, (parts, batch, heads, queries), fp32)
    ends = case.high or keys % bn > 0 or extras.used is not None or case.page > 0
    masked = case.low or case.mask is not None
    attention_kernel[(parts, heads // pack, batch)](
        _rows(iq, pack, rows, wide).over(q), blocks_of(ik, bn, wide).over(k), blocks_of(iv, bn, wide_v).over(v),
        to, logs, queries, keys, factor(case, extras), heads, batch, opts, GROUP=group, PACK=pack, TAIL=ends or masked,
        SPLIT=0 if masked else 1, PARTED=parts > 1, PERSISTENT=False, TURNED=False, BM=rows, BN=bn, D=wide, DV=wide_v,
        WIDENED=eight, FEW=few, num_warps=4, launch_pdl=parts > 1 or None,
        num_stages=max(2, UNDER_WAY // (2 * bn * max(wide, wide_v))) if few and not eight else None)
    if parts > 1:
        combine(to.pointer, logs, out, lse, extras.sinks, parts, True)


def combine(of_parts: Any, logs: Any, out: Any, lse: Any, sinks: Any, parts: int, early: bool) -> None:
    """early: programs start before parts are there, all of them on the few multiprocessors that have room for them."""
    io, = infos_of(out)
    batch, queries, heads, dv = io.shape
    count, wide = tilejit.next_power_of_2(parts), tilejit.next_power_of_2(dv)
    chip = tilejit.multiprocessors(io.device)
    warps = 1 if count <= 16 and batch * queries * heads <= chip else 4  # few programs meet less
    columns = max(16, min(wide, WEIGHED * warps // (4 * count)))
    while columns > 32 and batch * queries * heads * tilejit.cdiv(dv, columns) < chip:
        columns //= 2
    pieces = tilejit.cdiv(dv, columns)
    combine_kernel[(queries * pieces, heads, batch)](
        of_parts, logs, out, lse, sinks, parts, queries, heads, batch, dv, *io.strides[:3], COUNT=count, PIECES=pieces,
        D=columns, num_warps=warps, launch_pdl=early or None)


def _rows(x: ArrayInfo, pack: int, rows: int, columns: int) -> tilejit.TensorDescriptor:
    if pack == 1:
        return blocks_of(x, rows, columns)
    (batch, n, heads, d), (down, row, across, one) = x.shape, pitches(x)
    return tilejit.TensorDescriptor.template(
        x, (batch, n, heads // pack, pack, d), (down, row, across * pack, across, one),
        (1, rows // pack, 1, pack, columns))
