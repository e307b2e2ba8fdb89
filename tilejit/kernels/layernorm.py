"""Layer normalisation along the rows of a matrix, computed in fp32."""
from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._host import MAX_ROW, row_launch, rows


@tilejit.kernel
def layernorm_kernel(x, weight, bias, out, columns, x_stride, out_stride, eps, BLOCK: tl.constexpr):
    """One row a program; `weight` and `bias` may be None."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < columns
    v = tl.load(x + row * x_stride + cols, mask, other=0.0).to(tl.float32)
    mean = tl.sum(v, 0) / columns
    centred = tl.where(mask, v - mean, 0.0)
    y = centred * tl.rsqrt(tl.sum(centred * centred, 0) / columns + eps)
    if weight is not None:
        y = y * tl.load(weight + cols, mask, other=0.0).to(tl.float32)
    if bias is not None:
        y = y + tl.load(bias + cols, mask, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + cols, y.to(out.dtype.element_ty), mask)


def layernorm(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, out: Any = None) -> Any:
    """(x - mean) / sqrt(var + eps) * weight + bias for every row of x [rows, columns <= 32768]."""
    n, columns, stride = rows(x, "layernorm")
    if columns > MAX_ROW:
        raise tilejit.LaunchError(f"layernorm: rows of {columns} columns; at most {MAX_ROW} fit one tile")
    out = tilejit.empty_like(x) if out is None else out
    block, warps, _ = row_launch(columns)
    layernorm_kernel[(n,)](x, weight, bias, out, columns, stride, rows(out, "layernorm")[2], float(eps), BLOCK=block,
                           num_warps=warps)
    return out
