"""Transposed matrices, written row by row."""
from __future__ import annotations

from math import prod

import tilejit
import tilejit.language as tl
from tilejit.kernels._operator import Array, gradient, operator
from tilejit.kernels.rows.matrices import contiguous

#: Rows and columns of a block, and its warps: lines of 256 bytes where elements have two.
SIDE, WARPS = 128, 8


@tilejit.kernel
def transpose_kernel(x, out, rows, columns, x_matrix, x_pitch, SIDE: tl.constexpr):
    across, down = tl.cdiv(columns, SIDE), tl.cdiv(rows, SIDE)
    pid = tl.program_id(0)
    which = (pid // (across * down)).to(tl.int64)
    r = (pid // across % down).to(tl.int64) * SIDE + tl.arange(0, SIDE)
    c = (pid % across).to(tl.int64) * SIDE + tl.arange(0, SIDE)
    inside = (r < rows)[:, None] & (c < columns)[None, :]
    v = tl.load(x + which * x_matrix + r[:, None] * x_pitch + c[None, :], inside)
    target = out + which * rows * columns + c[:, None] * rows + r[None, :]
    tl.store(target, tl.trans(v), (c < columns)[:, None] & (r < rows)[None, :])


@operator(out=lambda x: (x, (*x.shape[:-2], x.shape[-1], x.shape[-2]), None))
def transpose(out, x: Array) -> None:
    """A row-major copy of x [.., rows, columns] with its last two dimensions exchanged; any dtype."""
    _launch("transpose", out, x)


@gradient(transpose, "x")
@operator(dx=lambda grad: (grad, (*grad.shape[:-2], grad.shape[-1], grad.shape[-2]), None))
def transpose_gradient(dx, grad: Array) -> None:
    _launch("transpose_gradient", dx, grad)


def _launch(what: str, out: Array, x: Array) -> None:
    info = tilejit.array_info(x)
    if len(info.shape) < 2:
        raise tilejit.LaunchError(f"{what}: x must be [.., rows, columns], found shape {list(info.shape)}")
    rows, columns = info.shape[-2:]
    count = prod(info.shape[:-2])
    if len(info.shape) > 3 or info.strides[-1] != 1 and columns > 1:
        x = contiguous(x)
        info = tilejit.array_info(x)
    if count * rows * columns:
        few = info.dtype.bytes > 2 or min(rows, columns) <= SIDE // 2
        side, warps = (SIDE // 2, WARPS // 2) if few else (SIDE, WARPS)
        blocks = tilejit.cdiv(rows, side) * tilejit.cdiv(columns, side)
        apart = 0 if count == 1 else rows * columns if len(info.shape) > 3 else info.strides[0]
        transpose_kernel[(count * blocks,)](x, out, rows, columns, apart, info.strides[-2], SIDE=side, num_warps=warps)
