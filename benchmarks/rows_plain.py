"""Row kernels as people write them, one row a program: softmax and rmsnorm of a whole row, layernorm block by block.

The forms of Triton's tutorials 02 and 05; the same source runs under Triton (`peers.triton_twin`).
"""
from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl

#: Bytes of a row that a program of `plain_layernorm` has in one block at most, as in tutorial 05.
MOST_BYTES = 65536


@tilejit.kernel
def plain_softmax(out, x, x_stride, out_stride, columns, BLOCK: tl.constexpr):
    """One row a program."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    v = tl.load(x + row * x_stride + cols, mask=cols < columns, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * out_stride + cols, (e / tl.sum(e, axis=0)).to(out.dtype.element_ty), mask=cols < columns)


@tilejit.kernel
def plain_rmsnorm(out, x, w, x_stride, out_stride, columns, eps, BLOCK: tl.constexpr):
    """One row a program."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < columns
    v = tl.load(x + row * x_stride + cols, mask=mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(v * v, axis=0) / columns + eps)
    y = v * scale * tl.load(w + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + cols, y.to(out.dtype.element_ty), mask=mask)


@tilejit.kernel
def plain_layernorm(out, x, w, b, x_stride, out_stride, columns, eps, BLOCK: tl.constexpr):
    """One row a program, which goes over it three times: mean, variance, result."""
    row = tl.program_id(0)
    x += row * x_stride
    out += row * out_stride
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        total += tl.load(x + cols, mask=cols < columns, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / columns
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        v = tl.load(x + cols, mask=cols < columns, other=0.0).to(tl.float32)
        v = tl.where(cols < columns, v - mean, 0.0)
        squares += v * v
    scale = 1 / tl.sqrt(tl.sum(squares, axis=0) / columns + eps)
    for start in range(0, columns, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < columns
        v = tl.load(x + cols, mask=mask, other=0.0).to(tl.float32)
        y = (v - mean) * scale * tl.load(w + cols, mask=mask).to(tl.float32) + tl.load(b + cols, mask=mask).to(tl.float32)
        tl.store(out + cols, y.to(out.dtype.element_ty), mask=mask)


def calls(x: Any, w: Any, out: Any, kernels: dict[str, Any]) -> dict[str, Any]:
    """name -> a call of its plain form, with the warps that tutorials choose."""
    n, columns = x.shape
    block = tilejit.next_power_of_2(columns)
    part = min(block, MOST_BYTES // x.element_size())
    strides = x.stride(0), out.stride(0)
    softmax, rmsnorm, layernorm = (kernels.get(k.__name__) for k in (plain_softmax, plain_rmsnorm, plain_layernorm))
    warps = 4 if block < 2048 else 8 if block < 8192 else 16
    return {"softmax": softmax and (lambda: softmax[(n,)](out, x, *strides, columns, BLOCK=block, num_warps=warps)),
            "rmsnorm": rmsnorm and (lambda: rmsnorm[(n,)](out, x, w, *strides, columns, 1e-6, BLOCK=block,
                                                          num_warps=warps)),
            "layernorm": layernorm and (lambda: layernorm[(n,)](out, x, w, w, *strides, columns, 1e-5, BLOCK=part,
                                                                num_warps=min(max(part // 256, 1), 8)))}


#: The plain forms under tilejit, by name.
OURS = {k.__name__: k for k in (plain_softmax, plain_rmsnorm, plain_layernorm)}
