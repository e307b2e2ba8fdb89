from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._operator import Array, DType, operator
from tilejit.kernels.rows.matrices import Matrix, elements, launch_of, matrix, result
from tilejit.kernels.rows.tiles import element_tile, put, put_rows, row_max, row_tile
from tilejit.language.extra import libdevice

#: Columns of a block with a scale; greatest numbers of the dtypes; programs of the search for the greatest.
SCALE_BLOCK, MOST, PROGRAMS = 128, {"fp8e4nv": 448.0, "fp8e5": 57344.0, "int8": 127.0}, 256


@tilejit.kernel
def narrow(x, inverse, DTYPE: tl.constexpr, MOST: tl.constexpr):
    """x * inverse in 8 bits, clamped to what those have; of integers the nearest one."""
    y = tl.clamp(x * inverse, -MOST, MOST, tl.PropagateNan.ALL)
    if DTYPE == tl.int8:
        y = libdevice.rint(y)
    return y.to(DTYPE)


@tilejit.kernel
def inverse_of(greatest, MOST: tl.constexpr):
    """What numbers whose greatest is this are multiplied by; 0 for nothing but zeros."""
    return tl.where(greatest > 0.0, MOST / greatest, 0.0)


@tilejit.kernel
def quantise_rows_kernel(x, q, scale, n, columns, x_pitch, q_pitch, MOST: tl.constexpr, BLOCK: tl.constexpr,
                         ROWS: tl.constexpr):
    row, cols, inside = row_tile(n, columns, BLOCK, ROWS)
    v = tl.load(x + row * x_pitch + cols, inside, other=0.0).to(tl.float32)
    greatest = row_max(tl.abs(v), ROWS)
    put_rows(scale, greatest / MOST, row, n, ROWS)
    tl.store(q + row * q_pitch + cols, narrow(v, inverse_of(greatest, MOST), q.dtype.element_ty, MOST), inside)


@tilejit.kernel
def long_quantise_rows_kernel(x, q, scale, n, columns, x_pitch, q_pitch, MOST: tl.constexpr, BLOCK: tl.constexpr,
                              ROWS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    most = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        v = tl.load(x + row * x_pitch + start + cols, start + cols < columns, other=0.0).to(tl.float32)
        most = tl.maximum(most, tl.abs(v))
    greatest = tl.max(most, 0)
    tl.store(scale + row, greatest / MOST)
    for start in range(0, columns, BLOCK):
        inside = start + cols < columns
        v = tl.load(x + row * x_pitch + start + cols, inside, other=0.0).to(tl.float32)
        tl.store(q + row * q_pitch + start + cols, narrow(v, inverse_of(greatest, MOST), q.dtype.element_ty, MOST),
                 inside)


@tilejit.kernel
def quantise_blocks_kernel(x, q, scale, n, columns, x_pitch, q_pitch, MOST: tl.constexpr, SIZE: tl.constexpr,
                           BLOCK: tl.constexpr, ROWS: tl.constexpr):
    row, cols, inside = element_tile(n, columns, BLOCK, ROWS)
    v = tl.load(x + row * x_pitch + cols, inside, other=0.0).to(tl.float32)
    v = tl.reshape(v, (ROWS, BLOCK // SIZE, SIZE))
    greatest = tl.max(tl.abs(v), 2)
    first = tl.program_id(0) % tl.cdiv(columns, BLOCK) * (BLOCK // SIZE)
    block = first + tl.arange(0, BLOCK // SIZE)[None, :]
    tl.store(scale + row * tl.cdiv(columns, SIZE) + block, greatest / MOST, (row < n) & (block * SIZE < columns))
    y = narrow(v, inverse_of(greatest, MOST)[:, :, None], q.dtype.element_ty, MOST)
    put(q + row * q_pitch + cols, tl.reshape(y, inside.shape), inside)


@tilejit.kernel
def greatest_kernel(x, parts, n, columns, x_pitch, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    across = tl.cdiv(columns, BLOCK)
    blocks = across * tl.cdiv(n, ROWS)
    most = tl.zeros((ROWS, BLOCK), tl.float32)
    for i in tl.range(tl.program_id(0), blocks, tl.num_programs(0)):
        row = ((i // across).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
        cols = (i % across * BLOCK + tl.arange(0, BLOCK))[None, :]
        v = tl.load(x + row * x_pitch + cols, (row < n) & (cols < columns), other=0.0).to(tl.float32)
        most = tl.maximum(most, tl.abs(v))
    tl.store(parts + tl.program_id(0), tl.max(tl.max(most, 1), 0))


@tilejit.kernel
def quantise_tensor_kernel(x, q, scale, parts, count, n, columns, x_pitch, q_pitch, MOST: tl.constexpr,
                           PARTS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    i = tl.arange(0, PARTS)
    greatest = tl.max(tl.load(parts + i, i < count, other=0.0), 0)
    if tl.program_id(0) == 0:
        tl.store(scale, greatest / MOST)
    row, cols, inside = element_tile(n, columns, BLOCK, ROWS)
    v = tl.load(x + row * x_pitch + cols, inside, other=0.0).to(tl.float32)
    tl.store(q + row * q_pitch + cols, narrow(v, inverse_of(greatest, MOST), q.dtype.element_ty, MOST), inside)


@tilejit.kernel
def dequantise_kernel(q, scale, out, n, columns, q_pitch, out_pitch, across, size, BLOCK: tl.constexpr,
                      ROWS: tl.constexpr):
    """q times the scale of its row and block of `size` columns, `across` scales a row (0: one for all)."""
    row, cols, inside = element_tile(n, columns, BLOCK, ROWS)
    s = tl.load(scale + row * across + cols // size, inside, other=0.0)
    put(out + row * out_pitch + cols, tl.load(q + row * q_pitch + cols, inside, other=0.0).to(tl.float32) * s, inside)


def _scales(x: Any, of: str) -> Any:
    shape = {"tensor": (1,), "row": (*x.shape[:-1], 1),
             "block": (*x.shape[:-1], -(-x.shape[-1] // SCALE_BLOCK))}.get(of, (1,))
    return x, shape, tl.float32


@operator(q=lambda x, dtype: (x, None, dtype), scale=_scales)
def quantise(q, scale, x: Array, of: str, dtype: DType) -> None:
    """(q, scale) of x [.., columns]: x is about q * scale, in fp8 (e4m3 or e5m2) or int8. scale, fp32: `of` "tensor"
    [1], "row" [.., 1], or "block" [.., columns / 128], of 1 x 128 elements each. A scale is the greatest absolute value
    over the greatest number of the dtype; numbers are rounded to nearest, NaN stays NaN in fp8."""
    most = MOST.get(str(tilejit.array_info(q).dtype))
    if most is None or of not in ("tensor", "row", "block"):
        raise tilejit.LaunchError(f"quantise: to {', '.join(MOST)}, with scales of a tensor, row or block; found "
                                  f"{tilejit.array_info(q).dtype}, {of!r}")
    m, o = matrix("quantise", x), result("quantise", q, "q")
    if not m.n * m.columns:
        return
    if of == "row":
        launch = launch_of(m)
        kernel = quantise_rows_kernel if launch.whole else long_quantise_rows_kernel
        kernel[launch.grid](m.array, o.array, scale, m.n, m.columns, m.pitch, o.pitch, MOST=most, ROWS=launch.rows,
                            **launch.options)
    elif of == "block":
        (m, o), grid, sizes = elements(m, o, flat=m.columns % SCALE_BLOCK == 0)
        quantise_blocks_kernel[grid](m.array, o.array, scale, m.n, m.columns, m.pitch, o.pitch, MOST=most,
                                     SIZE=min(SCALE_BLOCK, sizes["BLOCK"]), **sizes)
    else:
        _tensor(m, o, scale, most)


def _tensor(m: Matrix, o: Matrix, scale: Any, most: float) -> None:
    (m, o), grid, sizes = elements(m, o)
    count = min(PROGRAMS, grid[0])
    parts = tilejit.empty_like(m.array, (count,), tl.float32)
    greatest_kernel[(count,)](m.array, parts, m.n, m.columns, m.pitch, **sizes)
    quantise_tensor_kernel[grid](m.array, o.array, scale, parts, count, m.n, m.columns, m.pitch, o.pitch, MOST=most,
                                 PARTS=PROGRAMS, **sizes)


@operator(out=lambda q, dtype: (q, None, dtype))
def dequantise(out, q: Array, scale: Array, dtype: DType) -> None:
    """q * scale in a dtype, for scales as `quantise` gives them."""
    m, o = matrix("dequantise", q, "q"), result("dequantise", out)
    s = matrix("dequantise", scale, "scale")
    across = 0 if s.n * s.columns == 1 else s.columns
    if across and (s.n != m.n or s.columns not in (1, tilejit.cdiv(m.columns, SCALE_BLOCK))) or s.pitch != s.columns:
        raise tilejit.LaunchError(f"dequantise: no scales of a tensor, of rows or of 1 x {SCALE_BLOCK} blocks for q "
                                  f"{list(q.shape)}: {list(scale.shape)}")
    _, grid, sizes = elements(m, o, flat=False)
    dequantise_kernel[grid](m.array, s.array, o.array, m.n, m.columns, m.pitch, o.pitch, across,
                            SCALE_BLOCK if across > 1 else max(1, m.columns), **sizes)
