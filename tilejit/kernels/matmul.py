"""Matrix product C = act(scale * A @ B + bias): persistent, operands through TMA descriptors, any major order."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels import division, streamk
from tilejit.kernels._calls import Call, Launch, facts_of, infos_of, place, run
from tilejit.kernels._operands import DTYPES, Matrix, in_reach, order_of, tensor_scales
from tilejit.kernels.activations import ACTIVATIONS, store_tile, tensor_scale
from tilejit.kernels.copy import Copy, copy_matrices, pitched, pitched_facts
from tilejit.kernels.order import tile_at
from tilejit.kernels.tiles import LAUNCH, SINGLE_TILES, TILES, choose_tiles, divide_result, raggedness, suited
from tilejit.kernels.way import Part, Way


@tilejit.kernel
def block_of(desc, at, k, ROWS: tl.constexpr):
    """The block of an operand at `at` and k, which lies in memory as it is, or as its transpose."""
    if ROWS:
        return desc.load([at, k])
    return desc.load([k, at]).T


@tilejit.kernel(do_not_specialize=("M", "N", "K", "M0", "N0"))
def matmul_kernel(a_desc, b_desc, c_desc, bias, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                  GROUP: tl.constexpr, A_ROWS: tl.constexpr, B_ROWS: tl.constexpr, ACTIVATION: tl.constexpr, M0=0,
                  N0=0, C_ROWS: tl.constexpr = True, TAIL: tl.constexpr = 0, scale_a=None, scale_b=None):
    """Each program walks tiles in groups of GROUP tile rows, so that a wave's operands stay in L2.

    The result's rows M0 to M and columns N0 to N. A_ROWS: a_desc sees A as [M, K], else as its transpose [K, M].
    B_ROWS: b_desc sees [K, N], else [N, K]. C_ROWS: c_desc sees [M, N], else [N, M], and bias has a value per row.
    TAIL: 0, or K does not divide into blocks, and what is left of it is so much, or less, filled up with zeros.
    scale_a, scale_b: None, or where a number is that the sums are multiplied by."""
    tiles_m = tl.cdiv(M - M0, BM)
    tiles_n = tl.cdiv(N - N0, BN)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
        row, column = tile_at(tile, tiles_m, tiles_n, GROUP)
        m = M0 + row * BM
        n = N0 + column * BN
        acc = tl.zeros((BM, BN), tl.float32)
        blocks = K // BK if TAIL > 0 else tl.cdiv(K, BK)
        for k in range(0, blocks):
            a = block_of(a_desc, m, k * BK, A_ROWS)
            b = block_of(b_desc, n, k * BK, not B_ROWS).T
            acc = tl.dot(a, b, acc)
        if TAIL > 0:
            for k in range(blocks, blocks + 1):      # as a loop: in the slots of the one before
                a = block_of(a_desc, m, k * BK, A_ROWS)
                b = block_of(b_desc, n, k * BK, not B_ROWS).T
                acc = tl.dot(a, b, acc, depth=TAIL)
        store_tile(acc, c_desc, tensor_scale(scale_a, scale_b), bias, m, n, M, N, BM, BN, C_ROWS, ACTIVATION)


#: For operands that TMA cannot read: tiles pass through registers, so they are small.
POINTER_TILES = Way(64, 64, 8, k_bytes=64)
#: Cycles of such a tile, beside a block of K of it, whose numbers come one by one (on an H200); tiles that a
#: multiprocessor has at once.
POINTER_TILE, POINTER_BLOCK, AT_ONCE = 3500, 1800, 2
#: Rows up to which products are handed on: always, or from so many blocks of K on (on an H200 10 to 40% faster at four
#: shapes of 1 to 32 rows and 1024 to 1536 of K, not at 64 rows).
SHORT, NARROW, NARROW_FROM = 32, 64, 32
#: Cycles that `matmul_streamk` takes longer for a tile of few rows or columns that it does not divide.
WALKED = 1000


def _rows_first(name: str, x: ArrayInfo) -> bool:
    """True for a row-major matrix, False for a column-major one."""
    shape, strides = x.shape, x.strides
    if len(shape) != 2:
        raise tilejit.LaunchError(f"matmul: {name} must be a matrix, found shape {shape}")
    if strides[1] == 1 and strides[0] >= shape[1]:
        return True
    if strides[0] == 1 and strides[1] >= shape[0]:
        return False
    if strides[1] == 1 or shape[1] == 1:
        return True
    raise tilejit.LaunchError(f"matmul: {name} has strides {strides}: one of them must be 1")


def _descriptor(x: ArrayInfo, rows_first: bool, rows: int, columns: int) -> tilejit.TensorDescriptor:
    """Blocks of rows x columns of a matrix, or of its transpose if that is the contiguous one."""
    return Matrix(x, x.shape, x.strides, rows_first).descriptor(rows, columns)


@lru_cache(maxsize=1024)
def _orders(a: ArrayInfo, b: ArrayInfo, bias: ArrayInfo | None, c: ArrayInfo,
            activation: str | None) -> tuple[bool, bool]:
    """Whether a and b are row-major. Raises LaunchError for arrays that do not go together."""
    if str(a.dtype) not in DTYPES or (a.dtype != b.dtype and not (a.dtype.is_fp8() and b.dtype.is_fp8())):
        raise tilejit.LaunchError(f"matmul: {a.dtype} x {b.dtype} is not supported; use {', '.join(DTYPES)}")
    orders = _rows_first("a", a), _rows_first("b", b)
    if a.shape[1] != b.shape[0]:
        raise tilejit.LaunchError(f"matmul: a is {list(a.shape)}, b is {list(b.shape)}: {a.shape[1]} != {b.shape[0]}")
    m, n = a.shape[0], b.shape[1]
    if activation not in ACTIVATIONS:
        raise tilejit.LaunchError(f"matmul: activation {activation!r} is not one of {ACTIVATIONS}")
    if bias is not None and bias.shape != (n,):
        raise tilejit.LaunchError(f"matmul: bias must have shape ({n},), found {bias.shape}")
    if c.shape != (m, n) or c.strides[1] != 1 and n > 1:
        raise tilejit.LaunchError(f"matmul: out must be a row-major [{m}, {n}] matrix, found {c.shape}")
    return orders


@dataclass(frozen=True)
class Step:
    """One launch of a product, for a, b and the result, or where its way is swapped for b^T, a^T and its transpose."""

    launch: Launch
    way: Way

    def call(self, arrays: tuple[Any, Any, Any], infos: tuple[ArrayInfo, ...], bias: Any,
             scales: dict[str, Any]) -> Call:
        """The launch and its arguments for a, b and the result, with `tensor_scales`."""
        a, b, out = arrays
        more = (bias,)
        if self.way.stream:
            more = (*streamk.meeting("matmul", a, self.way, None), bias)
        if self.way.swap:
            arrays, infos = (b, a, out), (infos[1], infos[0], infos[2])
        return self.launch, (arrays, infos, *more), scales


@lru_cache(maxsize=1024)
def _launches(a: ArrayInfo, b: ArrayInfo, bias: ArrayInfo | None, c: ArrayInfo, activation: str | None, sms: int,
              chip: str = "sm_90a", scaled: bool = False) -> tuple[Step, ...]:
    """The launches of one problem, one for each part of the result; `scaled`: with `tensor_scales`."""
    in_place = _in_place(a, *_orders(a, b, bias, c, activation))
    m, n = c.shape
    made = []
    if in_place:
        parts = _parts(a, b, bias is not None, c, activation, sms, chip, scaled)
        made = [_step(part, a, b, c, activation, sms) for part in parts]
    if not in_place or not all(d.tma for step in made for d in step.launch.descriptors):
        made = [_step(Part(0, 0, m, n, POINTER_TILES), a, b, c, activation, sms)]
    return tuple(made)


def _in_place(a: ArrayInfo, a_rows: bool, b_rows: bool) -> bool:
    """Whether wgmma reads both operands: 16-bit ones in either order, 8- and 32-bit ones with K contiguous only."""
    return a.dtype.bytes == 2 or a_rows and not b_rows


def _parts(a: ArrayInfo, b: ArrayInfo, biased: bool, c: ArrayInfo, activation: str | None, sms: int, chip: str,
           scaled: bool) -> tuple[Part, ...]:
    """The parts of a product of whole tiles."""
    (m, k), n = a.shape, b.shape[1]
    blocks, ragged = tilejit.cdiv(k * a.dtype.bytes, 128), _ragged(a, b)
    if chip != "sm_90a":
        return (Part(0, 0, m, n, choose_tiles(m, n, blocks, sms, ragged, SINGLE_TILES)),)
    ended = biased or activation is not None
    # Of the transpose a bias has a value a row, which takes few registers (beside scales ptxas takes more).
    straight, turned = (suited(TILES, side_by_side, ragged, size if ended else None, scaled) for side_by_side, size in
                        ((_rows_first("b", b), c.dtype.bytes), (not _rows_first("a", a), 4 if scaled else 2)))
    return divide_result(m, n, blocks, sms, ragged, straight, turned, _ragged(c) > 0, activation in ("gelu", "silu"))


def _transpose(x: ArrayInfo) -> ArrayInfo:
    """The same memory seen as the transposed matrix."""
    return x._replace(shape=x.shape[::-1], strides=x.strides[::-1])


def _step(part: Part, a: ArrayInfo, b: ArrayInfo, c: ArrayInfo, activation: str | None, sms: int) -> Step:
    """The launch for a part of the result."""
    m0, n0, m1, n1, t = part
    if t.swap:
        a, b = _transpose(b), _transpose(a)
    a_rows, b_rows = _rows_first("a", a), _rows_first("b", b)
    k = a.shape[1]
    bk = t.k_bytes // a.dtype.bytes
    descriptors = (_descriptor(a, a_rows, t.m, bk), _descriptor(b, b_rows, bk, t.n),
                   _descriptor(c, True, *t.computed(t.m, t.n)))
    count = tilejit.cdiv(m1 - m0, t.m) * tilejit.cdiv(n1 - n0, t.n)
    grid = count if t == POINTER_TILES else min(t.room(sms), count)      # those wait a lot: many at once
    constants = dict(M=m1, N=n1, K=k, BM=t.m, BN=t.n, BK=bk, GROUP=t.group(m1 - m0, tilejit.cdiv(k, bk)),
                     A_ROWS=a_rows, B_ROWS=b_rows, C_ROWS=not t.swap, ACTIVATION=activation, **t.options)
    if t.stream:
        kernel = streamk.streamk_kernel.partial(stream_tiles=t.stream, ADD=False, ORDERED=True, **constants)
    else:
        kernel = matmul_kernel.partial(M0=m0, N0=n0, TAIL=_tail(k, a.dtype.bytes, t, activation), **constants)
    return Step(Launch(kernel, (grid,), descriptors), t)


def _tail(k: int, size: int, t: Way, activation: str | None = None) -> int:
    """What is left of K behind whole blocks, in steps of the tensor cores, where a loop of its own can go on in the
    slots of the blocks' (consumers that take tiles in turn, and loads by cp.async, would need other slots), and finds
    registers (beside an activation some tiles have none)."""
    left = tilejit.cdiv(k * size % t.k_bytes, 32) * 32
    fits = not t.in_turn and t != POINTER_TILES and tilejit.chip() == "sm_90a" and activation is None
    return left // size if fits and 0 < left < t.k_bytes < k * size else 0


def _ragged(*matrices: ArrayInfo) -> float:
    """How ragged the rows of the matrices are (columns, of a column-major matrix)."""
    return max(raggedness(max(x.strides) * x.dtype.bytes) for x in matrices)


def _empty(a: Any, b: Any, dtype: Any = None) -> Any:
    """An array for a result of the inputs' dtype (bf16 for fp8), or another one."""
    ia, ib = infos_of(a, b)
    if len(ia.shape) != 2 or len(ib.shape) != 2:
        raise tilejit.LaunchError(f"matmul: a and b must be matrices, found shapes {ia.shape} and {ib.shape}")
    return tilejit.empty_like(a, (ia.shape[0], ib.shape[1]), dtype or (tl.bfloat16 if ia.dtype.is_fp8() else ia.dtype))


@tilejit.torch_op("tilejit::matmul", "(Tensor a, Tensor b, Tensor? bias=None, str? activation=None, ScalarType? "
                  "out_dtype=None, Tensor? scale_a=None, Tensor? scale_b=None) -> Tensor",
                  fake=lambda a, b, bias=None, activation=None, out_dtype=None, **scales: _empty(a, b, out_dtype),
                  replay=True)
def matmul(a: Any, b: Any, bias: Any = None, activation: str | None = None, out: Any = None, out_dtype: Any = None, *,
           scale_a: Any = None, scale_b: Any = None) -> Any:
    """activation(scale_a * scale_b * (a @ b) + bias) with fp32 sums.

    a [M, K], b [K, N]: bf16, fp16, fp32 (tf32 products) or fp8, each row- or column-major; fp8 and fp32 are
    read fastest with K contiguous in both (a row-major, b column-major). scale_a, scale_b: arrays of one fp32 number, 1
    without (`fused_matmul` takes one per row and column). bias [N]. The result has the inputs'
    dtype (bf16 for fp8) unless `out` or `out_dtype` says otherwise. Arrays whose rows do not start at multiples of 16
    bytes, and fp8 or fp32 without contiguous K, are copied first (small ones pass through registers instead). Few rows
    or columns, and few tiles with a deep K, are handed to `matmul_streamk`, whose sums may have no fixed order.
    Raises LaunchError for what does not fit."""
    ia, ib, ibias = infos_of(a, b, bias)
    if out is None:
        out = _empty(a, b, out_dtype)
    ic = tilejit.array_info(out)
    scales = tensor_scales("matmul", scale_a, scale_b)
    found = launches((a, b, bias, out), (ia, ib, ibias, ic), activation, **scales)
    if found is None:
        _copied((a, b, bias, out), (ia, ib, ibias, ic), activation, scales)
        return out
    run(*found)
    return out


def launches(arrays: tuple[Any, ...], infos: tuple[ArrayInfo | None, ...], activation: str | None,
             **scales: Any) -> list[Call] | None:
    """What `matmul` of a, b, bias (or None) and out, of which `infos` says what they are, and of `tensor_scales`
    launches. None where an array is copied first."""
    (a, b, bias, out), (ia, ib, _, io) = arrays, infos
    assert ia is not None and ib is not None and io is not None
    way, steps = _plan(*facts_of(*infos), activation, bool(scales), *place(ia))
    if way == "copied":
        return None
    if way == "divided":
        return streamk.launches(arrays, infos, activation, **scales)
    return [step.call((a, b, out), (ia, ib, io), bias, scales) for step in steps]


def _copied(arrays: tuple[Any, ...], infos: tuple[Any, ...], activation: str | None, scales: dict[str, Any]) -> None:
    """The product of copies of what TMA cannot read, or into what is copied to a result that it cannot write."""
    (a, b, bias, out), (ia, ib, ibias, io) = arrays, infos
    orders = _orders(*facts_of(*infos), activation)
    copies: list[Copy] = []
    made = []
    for x, info, rows_first, k_last in ((a, ia, orders[0], True), (b, ib, orders[1], False)):
        if not _as_is(info, rows_first, k_last):
            base, copy = pitched(x, info, _copy_order(info, rows_first, k_last))
            copies.append((x, info, base, copy))
            x, info = base, copy
        made.append((x, info))
    if copies:
        copy_matrices(*copies)
    (a, ia), (b, ib) = made
    target, into = out, io
    found = launches((a, b, bias, out), (ia, ib, ibias, io), activation, **scales)
    if found is None:
        target, into = pitched(out, io, True)
        found = launches((a, b, bias, target), (ia, ib, ibias, into._replace(spare=True)), activation, **scales)
        assert found is not None
    run(*found)
    if target is not out:
        copy_matrices((target, into, out, io))


@lru_cache(maxsize=1024)
def _plan(a: ArrayInfo, b: ArrayInfo, bias: ArrayInfo | None, c: ArrayInfo, activation: str | None, scaled: bool,
          sms: int, knobs: Any) -> tuple[str, tuple[Step, ...]]:
    """How a product is computed: "copied" operands or result, K "divided" (or few rows turned), or "plain", and by
    which launches then. Raises LaunchError for arrays that do not go together."""
    orders, chip = _orders(a, b, bias, c, activation), tilejit.chip()
    readable = _as_is(a, orders[0], True) and _as_is(b, orders[1], False)
    if not (readable and in_reach(c)) and _worth_copying(a, b, c, orders, sms):
        way = ("divided" if readable and _stored_in_parts(a, b, orders, sms) else "copied")
        return way, ()
    if all(map(in_reach, (a, b, c))) and order_of(c) and _in_place(a, *orders) and handed_on(
            a, b, lambda: _parts(a, b, bias is not None, c, activation, sms, chip, scaled), sms)[0]:
        return "divided", ()
    return "plain", _launches(a, b, bias, c, activation, sms, chip, scaled)


def _stored_in_parts(a: ArrayInfo, b: ArrayInfo, orders: tuple[bool, bool], sms: int) -> bool:
    """Whether the product of operands that TMA reads is handed on and stored in parts: their sum is written to a result
    that TMA cannot write."""
    (m, k), n = a.shape, b.shape[1]
    into = pitched_facts(ArrayInfo(0, a.dtype, (m, n), (n, 1), a.device), True)

    def whole() -> tuple[Part, ...]:
        return _parts(a, b, False, into, None, sms, tilejit.chip(), False)

    t = division.choose_for((m, k, n), a.dtype.bytes, orders, sms, read=division.reads(a, b))
    return t.parts > 0 and handed_on(a, b, whole, sms)[0]


def _worth_copying(a: ArrayInfo, b: ArrayInfo, c: ArrayInfo, orders: tuple[bool, bool], sms: int) -> bool:
    """Whether copies of what TMA cannot read or write, and the product of those, take less than pointer tiles, whose
    blocks of K come one after another."""
    (m, k), n, t = a.shape, b.shape[1], POINTER_TILES
    if not m * n * k:
        return False
    made, moved, calls = [], 0, 0
    for x, rows_first, k_last in ((a, orders[0], True), (b, orders[1], False)):
        as_is = _as_is(x, rows_first, k_last)
        made.append(x if as_is else pitched_facts(x, _copy_order(x, rows_first, k_last)))
        moved += 0 if as_is else x.shape[0] * x.shape[1] * x.dtype.bytes
    calls += moved > 0
    into = c
    if not in_reach(c):
        into, moved, calls = pitched_facts(c, True), moved + m * n * c.dtype.bytes, calls + 1
    tiles = tilejit.cdiv(m, t.m) * tilejit.cdiv(n, t.n)
    blocks = tilejit.cdiv(k * a.dtype.bytes, t.k_bytes)
    pointers = tilejit.cdiv(tiles, AT_ONCE * sms) * (POINTER_TILE + blocks * POINTER_BLOCK)
    copied = calls * division.SECOND + 2 * moved / (division.SHARE * sms)
    if copied >= pointers:
        return False
    ca, cb, cc = (x._replace(address=0) for x in (*made, into))
    product = estimate(ca, cb, cc, sms)
    return copied + product < pointers


def estimate(a: ArrayInfo, b: ArrayInfo, c: ArrayInfo, sms: int) -> float:
    """Cycles that a @ b is estimated to take where all three matrices are read and written in place; else infinite."""
    if 0 in (*a.shape, *c.shape) or not (all(map(in_reach, (a, b, c))) and _in_place(a, *_orders(a, b, None, c, None))):
        return inf

    def whole() -> tuple[Part, ...]:
        return _parts(a, b, False, c, None, sms, tilejit.chip(), False)

    found = handed_on(a, b, whole, sms)[1]
    return found if found < inf else _tiled(whole(), sms, a, b)


def handed_on(a: ArrayInfo, b: ArrayInfo, whole: Callable[[], tuple[Part, ...]], sms: int) -> tuple[bool, float]:
    """Whether `matmul_streamk` is faster than parts of whole tiles, as it is where rows, columns or tiles are few; and
    an estimate of the cycles of the faster way (infinite where no estimate was needed)."""
    (m, k), n, size = a.shape, b.shape[1], a.dtype.bytes
    if not m * n * k:
        return False, 0.0
    read = division.reads(a, b)
    t = division.choose_for((m, k, n), size, (_rows_first("a", a), _rows_first("b", b)), sms, read=read)
    cycles = division.cycles(t, m, n, k * size, sms, read)
    if m <= NARROW and (m <= SHORT or k * size >= NARROW_FROM * 128):
        return True, cycles
    if m <= NARROW:
        return False, inf
    other = _tiled(whole(), sms, a, b)
    few = min(m, n) <= division.SHALLOW
    if not few and (t.tiles(m, n) > sms or not (t.stream or t.k_ctas > 1)):      # tiles alone fill the chip
        return False, other
    more = 0.0 if t.stream or t.k_ctas > 1 else WALKED
    return cycles + more < other, min(cycles, other)


def _tiled(parts: tuple[Part, ...], sms: int, a: ArrayInfo, b: ArrayInfo) -> float:
    """An estimate of the cycles of launches of whole tiles, by which a is multiplied by b."""
    pitch, read = a.shape[1] * a.dtype.bytes, division.reads(a, b)
    return sum(tiled(part, sms, pitch, read) for part in parts) + LAUNCH * (len(parts) - 1)


def tiled(part: Part, sms: int, pitch: int, read: tuple[float, float] = (1.0, 1.0)) -> float:
    """An estimate of the cycles of a part of whole tiles, as `division` has them; `pitch`: bytes of a row of K; `read`:
    `division.reads` of the operands."""
    t, m, n = part.way, part.m1 - part.m0, part.n1 - part.n0
    return division.undivided(replace(t, programs=t.room(sms)), *t.computed(m, n), pitch, sms, not t.in_turn, read)


def _as_is(x: ArrayInfo, rows_first: bool, k_last: bool) -> bool:
    """Whether the tensor cores read an operand through TMA as it is."""
    return in_reach(x) and (x.dtype.bytes == 2 or rows_first == k_last)


def _copy_order(info: ArrayInfo, rows_first: bool, k_last: bool) -> bool:
    """Whether a copy of an operand is row-major: as it was, but with K contiguous for what is not 16 bits wide."""
    return rows_first if info.dtype.bytes == 2 else k_last
