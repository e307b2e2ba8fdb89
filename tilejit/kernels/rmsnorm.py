"""Root-mean-square normalisation along the rows of a matrix, computed in fp32."""
from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._host import MAX_ROW, row_launch, rows


@tilejit.kernel
def rmsnorm_kernel(x, weight, out, columns, x_stride, out_stride, eps, BLOCK: tl.constexpr):
    """One row a program; `weight` may be None."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < columns
    v = tl.load(x + row * x_stride + cols, mask, other=0.0).to(tl.float32)
    y = v * tl.rsqrt(tl.sum(v * v, 0) / columns + eps)
    if weight is not None:
        y = y * tl.load(weight + cols, mask, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + cols, y.to(out.dtype.element_ty), mask)


def rmsnorm(x: Any, weight: Any = None, eps: float = 1e-6, out: Any = None) -> Any:
    """x / sqrt(mean(x^2) + eps) * weight for every row of x [rows, columns <= 32768]."""
    n, columns, stride = rows(x, "rmsnorm")
    if columns > MAX_ROW:
        raise tilejit.LaunchError(f"rmsnorm: rows of {columns} columns; at most {MAX_ROW} fit one tile")
    out = tilejit.empty_like(x) if out is None else out
    block, warps, _ = row_launch(columns)
    rmsnorm_kernel[(n,)](x, weight, out, columns, stride, rows(out, "rmsnorm")[2], float(eps), BLOCK=block,
                         num_warps=warps)
    return out
