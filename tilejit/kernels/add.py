from __future__ import annotations

from math import prod

import tilejit
import tilejit.language as tl
from tilejit.kernels._operator import Array, operator


@tilejit.kernel
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    """BLOCK elements a program."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out + offs, tl.load(x + offs, mask) + tl.load(y + offs, mask), mask)


@operator(out=lambda x: x)
def add(out, x: Array, y: Array) -> None:
    """x + y for contiguous arrays of one shape and dtype. Raises LaunchError if they differ."""
    a, b = tilejit.array_info(x), tilejit.array_info(y)
    if a.shape != b.shape or a.dtype != b.dtype or a.strides != b.strides:
        raise tilejit.LaunchError(f"add: {a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)} must agree")
    n = prod(a.shape)
    add_kernel[lambda meta: (tilejit.cdiv(n, meta["BLOCK"]),)](x, y, out, n, BLOCK=1024)


add.register_autograd(lambda ctx, grad: (grad, grad))
