from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._operator import Array, operator
from tilejit.kernels.rows.matrices import is_contiguous
from tilejit.kernels.rows.tiles import put, wide

#: Elements of a program's block, and programs that the sums of squares are of.
BLOCK, PARTS, WARPS = 2048, 1024, 8


@tilejit.kernel
def tensor_at(table, index, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    pointer = tl.load(table + index).to(tl.pointer_type(TYPE))
    return tl.multiple_of(pointer, 16) if ALIGNED else pointer


@tilejit.kernel
def adamw_block(param, grad, first, second, inside, by, keep, rate, new1, beta2, new2, correction, eps):
    p = wide(tl.load(param, inside))
    g = tl.load(grad, inside).to(p.dtype)
    m = tl.load(first, inside).to(p.dtype)
    v = tl.load(second, inside).to(p.dtype)
    if by is not None:
        g = g * by
    m = m + new1.to(p.dtype) * (g - m)
    v = beta2.to(p.dtype) * v + new2.to(p.dtype) * g * g
    p = p * keep.to(p.dtype)
    p = p - rate.to(p.dtype) * m / (tl.sqrt(v / correction.to(p.dtype)) + eps.to(p.dtype))
    put(param, p, inside)
    put(first, m, inside)
    put(second, v, inside)


@tilejit.kernel
def adamw_kernel(table, blocks, count, keep: tl.float64, rate: tl.float64, new1: tl.float64,  # type: ignore
                 beta2: tl.float64, new2: tl.float64, correction: tl.float64, eps: tl.float64,  # type: ignore
                 factor, P: tl.constexpr, G: tl.constexpr, M: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    tensor = tl.load(blocks + tl.program_id(0).to(tl.int64) * 2)
    start = tl.load(blocks + tl.program_id(0).to(tl.int64) * 2 + 1) * BLOCK
    param = tensor_at(table, tensor, P, ALIGNED) + start
    grad = tensor_at(table, count + tensor, G, ALIGNED) + start
    first = tensor_at(table, 2 * count + tensor, M, ALIGNED) + start
    second = tensor_at(table, 3 * count + tensor, M, ALIGNED) + start
    left = tl.load(table + 4 * count + tensor) - start
    by = None if factor is None else tl.load(factor)
    at = tl.arange(0, BLOCK)
    if left >= BLOCK:  # without a mask, 16 bytes at a time
        adamw_block(param + at, grad + at, first + at, second + at, None, by, keep, rate, new1, beta2, new2,
                    correction, eps)
    else:
        adamw_block(param + at, grad + at, first + at, second + at, at < left, by, keep, rate, new1, beta2,
                    new2, correction, eps)


@tilejit.kernel
def squares_kernel(table, blocks, count, programs, parts, G: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(tl.program_id(0), programs, tl.num_programs(0)):
        tensor = tl.load(blocks + i.to(tl.int64) * 2)
        at = tl.load(blocks + i.to(tl.int64) * 2 + 1) * BLOCK + tl.arange(0, BLOCK)
        grad = tensor_at(table, tensor, G, ALIGNED) + at
        g = tl.load(grad, at < tl.load(table + count + tensor), other=0.0).to(tl.float32)
        total += g * g
    tl.store(parts + tl.program_id(0), tl.sum(total, 0))


@tilejit.kernel
def norm_kernel(parts, norm, factor, count, most, PARTS: tl.constexpr):
    i = tl.arange(0, PARTS)
    n = tl.sqrt(tl.sum(tl.load(parts + i, i < count, other=0.0), 0))
    tl.store(norm, n)
    tl.store(factor, tl.minimum(1.0, most / (n + 1e-6), tl.PropagateNan.ALL))


@tilejit.kernel
def scale_kernel(table, blocks, count, factor, G: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    by = tl.load(factor)
    if by != 1.0:
        tensor = tl.load(blocks + tl.program_id(0).to(tl.int64) * 2)
        at = tl.load(blocks + tl.program_id(0).to(tl.int64) * 2 + 1) * BLOCK + tl.arange(0, BLOCK)
        inside = at < tl.load(table + count + tensor)
        grad = tensor_at(table, tensor, G, ALIGNED) + at
        tl.store(grad, (tl.load(grad, inside, other=0.0).to(tl.float32) * by).to(G), inside)


@operator(replay=False, mutates=["params", "moments1", "moments2"])
def adamw_(params: list[Array], grads: list[Array], moments1: list[Array], moments2: list[Array], step: int,
           lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8, weight_decay: float = 1e-2,
           factor: Array | None = None) -> None:
    """One step (counted from 1) of AdamW, in place, for lists of contiguous tensors of equal shapes; parameters of one
    dtype, gradients of one, moments of one. weight_decay 0 is Adam. factor: one fp32 number that gradients are
    multiplied by on the way, as `clip_factor` gives it."""
    what = "adamw_"
    lists = params, grads, moments1, moments2
    if any(len(x) != len(params) for x in lists):
        raise tilejit.LaunchError(f"{what}: lists of one length expected, found {[len(x) for x in lists]}")
    kinds = [_kind(what, name, x, params) for name, x in zip(("params", "grads", "moments1", "moments2"), lists)]
    if kinds[2] != kinds[3]:
        raise tilejit.LaunchError(f"{what}: moments of one dtype expected, found {kinds[2]} and {kinds[3]}")
    table, blocks, programs, aligned = _table(lists)
    if programs:
        adamw_kernel[(programs,)](table, blocks, len(params), 1.0 - lr * weight_decay, lr / (1.0 - beta1 ** step),
                                  1.0 - beta1, float(beta2), 1.0 - beta2, 1.0 - beta2 ** step, float(eps), factor,
                                  P=kinds[0], G=kinds[1], M=kinds[2], ALIGNED=aligned, BLOCK=BLOCK, num_warps=WARPS)


@operator(replay=False, norm=lambda grads: (grads[0], (1,), tl.float32), factor=lambda grads: (grads[0], (1,),
                                                                                               tl.float32))
def clip_factor(norm, factor, grads: list[Array], max_norm: float) -> None:
    """(the 2-norm of all gradients together, min(1, max_norm / (norm + 1e-6))): fp32 numbers on the device."""
    kind = _kind("clip_factor", "grads", grads, grads)
    table, blocks, programs, aligned = _table((grads,))
    count = max(1, min(PARTS, programs))
    parts = tilejit.empty_like(grads[0], (count,), tl.float32)
    squares_kernel[(count,)](table, blocks, len(grads), programs, parts, G=kind, ALIGNED=aligned, BLOCK=BLOCK,
                             num_warps=WARPS)
    norm_kernel[(1,)](parts, norm, factor, count, float(max_norm), PARTS=PARTS)


@operator(replay=False, mutates=["grads"])
def scale_all_(grads: list[Array], factor: Array) -> None:
    """Times one fp32 number on the device, in place."""
    kind = _kind("scale_all_", "grads", grads, grads)
    table, blocks, programs, aligned = _table((grads,))
    if programs:
        scale_kernel[(programs,)](table, blocks, len(grads), factor, G=kind, ALIGNED=aligned, BLOCK=BLOCK,
                                  num_warps=WARPS)


def clip_grad_norm_(grads: list[Array], max_norm: float) -> Any:
    """Scale a list of gradients in place so that their 2-norm is at most max_norm; returns what it was, on the
    device."""
    norm, factor = clip_factor(grads, max_norm)
    scale_all_(grads, factor)
    return norm


def _kind(what: str, name: str, tensors: list[Any], like: list[Any]) -> Any:
    infos = [tilejit.array_info(x) for x in tensors]
    if not infos:
        raise tilejit.LaunchError(f"{what}: {name} is empty")
    if any(i.dtype != infos[0].dtype or not i.dtype.is_floating() for i in infos):
        raise tilejit.LaunchError(f"{what}: {name} must be floats of one dtype, found "
                                  f"{', '.join(sorted({str(i.dtype) for i in infos}))}")
    for n, (info, other) in enumerate(zip(infos, like)):
        if not is_contiguous(info) or info.shape != tuple(other.shape):
            raise tilejit.LaunchError(f"{what}: {name}[{n}] must be contiguous, of shape {list(other.shape)}, found "
                                      f"shape {list(info.shape)} and strides {list(info.strides)}")
    return infos[0].dtype


def _table(lists: tuple[list[Any], ...]) -> tuple[Any, Any, int, bool]:
    """(addresses and lengths [lists + 1, count], tensor and number of each block [programs, 2], programs, whether
    all are 16-byte aligned); the first two where the tensors are."""
    import numpy

    infos = [[tilejit.array_info(x) for x in tensors] for tensors in lists]
    sizes = [int(numpy.prod(i.shape, dtype=numpy.int64)) for i in infos[0]]
    rows = [[i.address for i in row] for row in infos]
    counts = [tilejit.cdiv(n, BLOCK) for n in sizes]
    blocks = numpy.empty((sum(counts), 2), numpy.int64)
    blocks[:, 0] = numpy.repeat(numpy.arange(len(counts)), counts)
    blocks[:, 1] = numpy.arange(len(blocks)) - numpy.repeat(numpy.cumsum(counts) - counts, counts)
    return (*(_placed(lists[0][0], x) for x in (numpy.array([*rows, sizes], numpy.int64), blocks)), len(blocks),
            all(a % 16 == 0 for row in rows for a in row))


def _placed(like: Any, x: Any) -> Any:
    if hasattr(like, "new_tensor"):
        import torch

        return torch.from_numpy(x).to(like.device, non_blocking=True)
    return x if hasattr(like, "ctypes") else tilejit.to_device(x)
