"""Rotary position embedding."""
from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._operator import Array, gradient, operator
from tilejit.kernels.rows.matrices import contiguous, matrix, result
from tilejit.kernels.rows.tiles import put, wide

ELEMENTS = 2048


@tilejit.kernel
def rope_kernel(x, cos, sin, positions, out, n, heads, length, columns, half, x_batch, x_token, x_head, cos_pitch,
                INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr,
                ROWS: tl.constexpr, WIDE: tl.constexpr):
    first = (tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)) * ROWS
    row = (first + tl.arange(0, ROWS))[:, None]
    token = row // heads
    sequence = token // length
    at = (token - sequence * length).to(tl.int64)
    source = x + sequence.to(tl.int64) * x_batch + at * x_token + (row - token * heads).to(tl.int64) * x_head
    target = out + row.to(tl.int64) * columns
    if positions is not None:
        at = tl.load(positions + token, row < n, other=0).to(tl.int64)
    pair = tl.arange(0, PAIRS)[None, :]
    inside = (row < n) & (pair < half)
    c = wide(tl.load(cos + at * cos_pitch + pair, inside, other=0.0))
    s = wide(tl.load(sin + at * cos_pitch + pair, inside, other=0.0))
    if INVERSE:
        s = -s
    if INTERLEAVED:
        both = tl.arange(0, 2 * PAIRS)[None, :]
        whole = (row < n) & (both < 2 * half)
        a, b = tl.split(tl.reshape(tl.load(source + both, whole, other=0.0), (ROWS, PAIRS, 2)))
        a, b = wide(a), wide(b)
        turned = tl.join(a * c - b * s, b * c + a * s)
        put(target + both, tl.reshape(turned, (ROWS, 2 * PAIRS)), whole)
    else:
        a = wide(tl.load(source + pair, inside, other=0.0))
        b = wide(tl.load(source + half + pair, inside, other=0.0))
        put(target + pair, a * c - b * s, inside)
        put(target + half + pair, b * c + a * s, inside)
    if REST:
        rest = 2 * half + tl.arange(0, REST)[None, :]
        kept = (row < n) & (rest < columns)
        put(target + rest, tl.load(source + rest, kept, other=0.0), kept)


@operator(out=lambda x: x)
def rope(out, x: Array, cos: Array, sin: Array, positions: Array | None = None, interleaved: bool = False) -> None:
    """x [batch, length, heads, columns] with its pairs turned by the angles of their positions; any strides but the
    last, so slices of a joint projection are read in place.

    cos, sin: [positions, pairs], of 2 * pairs <= columns; the columns behind those are as they were. Pairs are (i,
    pairs + i) (GPT-NeoX, Llama), or interleaved (2 i, 2 i + 1) (GPT-J). positions: [batch, length] of integers, without
    which they count from 0 in each sequence. A position without a row in cos is not checked.
    """
    launch("rope", out, x, cos, sin, positions, interleaved, False)


@gradient(rope, "x")
@operator(dx=lambda grad: grad)
def rope_gradient(dx, grad: Array, cos: Array, sin: Array, positions: Array | None, interleaved: bool) -> None:
    """grad turned back."""
    launch("rope_gradient", dx, grad, cos, sin, positions, interleaved, True)


def launch(what: str, out: Array, x: Array, cos: Array, sin: Array, positions: Array | None, interleaved: bool,
           inverse: bool) -> None:
    info = tilejit.array_info(x)
    if len(info.shape) != 4:
        raise tilejit.LaunchError(f"{what}: x must be [batch, length, heads, columns], found shape {list(info.shape)}")
    batch, length, heads, columns = info.shape
    c, s = matrix(what, cos, "cos"), matrix(what, sin, "sin")
    if tuple(cos.shape) != tuple(sin.shape) or 2 * c.columns > columns or positions is None and c.n < length:
        raise tilejit.LaunchError(f"{what}: cos and sin must be [positions, pairs] of at least {length} positions and "
                                  f"at most {columns // 2} pairs, found {list(cos.shape)} and {list(sin.shape)}")
    if c.pitch != s.pitch:
        c, s = (m._replace(array=contiguous(m.array), pitch=m.columns) for m in (c, s))
    if positions is not None:
        _check_positions(what, positions, batch, length)
        positions = contiguous(positions)
    if info.strides[3] != 1 and columns > 1:
        x = contiguous(x)
        info = tilejit.array_info(x)
    if result(what, out).pitch != columns and batch * length * heads > 1:
        raise tilejit.LaunchError(f"{what}: out must be contiguous")
    n = batch * length * heads
    if not n * columns:
        return
    pairs = max(1, tilejit.next_power_of_2(c.columns))
    rest = columns - 2 * c.columns
    rows = max(1, min(ELEMENTS // max(16, tilejit.next_power_of_2(columns)), tilejit.next_power_of_2(n)))
    rope_kernel[(tilejit.cdiv(n, rows),)](
        x, c.array, s.array, positions, out, n, heads, length, columns, c.columns, *info.strides[:3], c.pitch,
        INTERLEAVED=interleaved, INVERSE=inverse, PAIRS=pairs, REST=tilejit.next_power_of_2(rest) if rest else 0,
        ROWS=rows, WIDE=n + rows >= 1 << 31)


def _check_positions(what: str, positions: Any, batch: int, length: int) -> None:
    if tuple(positions.shape) != (batch, length) or not tilejit.array_info(positions).dtype.is_int():
        raise tilejit.LaunchError(f"{what}: positions must be integers of shape {[batch, length]}, found "
                                  f"{tilejit.array_info(positions).dtype} {list(positions.shape)}")
