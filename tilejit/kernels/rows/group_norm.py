from __future__ import annotations

from math import prod
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._operator import Array, gradient, operator
from tilejit.kernels.rows.columns import sum_columns, sums_like
from tilejit.kernels.rows.matrices import Matrix, contiguous, launch_of, number, result, same, share, vector
from tilejit.kernels.rows.norm_gradients import long_norm_gradient_kernel
from tilejit.kernels.rows.norms import long_norm_kernel, norm_kernel
from tilejit.kernels.rows.tiles import put, wide, wide_type

#: Places of a channel that a program has at a time, at most; elements of long rows.
PLACES, BLOCK = 2048, 4096


@tilejit.kernel
def channel_gradient_kernel(x, grad, stats, dw, db, samples, channels, places, per, ROWS: tl.constexpr,
                            BLOCK: tl.constexpr):
    """ROWS channels of a sample a program: sums of grad times the normalised x, and of grad, to [samples, channels]."""
    blocks = tl.cdiv(channels, ROWS)
    sample = (tl.program_id(0) // blocks).to(tl.int64)
    channel = (tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS))[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    here = (sample * channels + channel) * places
    group = (sample * channels + channel) // per
    mean = tl.load(stats + group * 2, channel < channels, other=0.0)
    r = tl.load(stats + group * 2 + 1, channel < channels, other=0.0)
    products = tl.zeros((ROWS, BLOCK), wide_type(x))
    sums = tl.zeros((ROWS, BLOCK), wide_type(x))
    for start in range(0, places, BLOCK):
        inside = (channel < channels) & (start + cols < places)
        g = wide(tl.load(grad + here + start + cols, inside, other=0.0))
        v = wide(tl.load(x + here + start + cols, inside, other=0.0))
        products += g * (v - mean)
        sums += g
    put(dw + sample * channels + channel, tl.sum(products, 1)[:, None] * r, channel < channels)
    put(db + sample * channels + channel, tl.sum(sums, 1)[:, None], channel < channels)


@operator(out=lambda x: x)
def group_norm(out, x: Array, groups: int, weight: Array | None = None, bias: Array | None = None,
               eps: float = 1e-5) -> None:
    """(x - mean) / sqrt(var + eps) * weight + bias for x [samples, channels, ..], with mean and variance of each
    sample's groups of channels; weight, bias [channels]."""
    x, m, per, places = _rows("group_norm", x, groups)
    weight, bias = vector("group_norm", weight, per * groups, "weight"), vector("group_norm", bias, per * groups,
                                                                                "bias")
    o = result("group_norm", out)
    if not m.n * m.columns:
        return
    launch = launch_of(m)
    args = m.array, weight, bias, o.array, m.columns, m.columns, m.columns, number(eps, x)
    given: dict[str, Any] = dict(CENTRED=True, per=per, HEADS=groups, SPAN=places)
    if launch.whole:
        norm_kernel[launch.grid](*args, n=m.n, ROWS=launch.rows, **given, **launch.options)
    else:
        long_norm_kernel[launch.grid](*args, **given, BLOCK=BLOCK // share(x), num_warps=8)


@gradient(group_norm, "x", "weight", "bias")
@operator(dx=lambda x: x, dw=lambda weight: weight, db=lambda bias: bias)
def group_norm_gradient(dx, dw, db, grad: Array, x: Array, groups: int, weight: Array | None, bias: Array | None,
                        eps: float) -> None:
    what = "group_norm_gradient"
    same(what, x, grad, "grad")
    x, m, per, places = _rows(what, x, groups)
    grad, channels = contiguous(grad), per * groups
    if not m.n * m.columns:
        for out in (dw, db):
            if out is not None:
                sum_columns(out, Matrix(m.array, 0, channels, 0))
        return
    stats = sums_like(x, (m.n, 2))
    pitch = m.columns
    long_norm_gradient_kernel[(m.n,)](
        x, vector(what, weight, channels, "weight"), grad, None, dx, stats, pitch, pitch, pitch, 0, pitch,
        number(eps, x), None, per, CENTRED=True, HEADS=groups, SPAN=places,
        BLOCK=min(BLOCK // share(x), max(16, tilejit.next_power_of_2(pitch))), num_warps=8)
    if dw is None and db is None:
        return
    samples = m.n // groups
    parts = [sums_like(x, (samples, channels)) for _ in range(2)]
    block = min(PLACES, max(16, tilejit.next_power_of_2(places)))
    rows = min(PLACES // block, tilejit.next_power_of_2(channels))
    channel_gradient_kernel[(samples * tilejit.cdiv(channels, rows),)](x, grad, stats, *parts, samples, channels,
                                                                       places, per, ROWS=rows, BLOCK=block)
    for out, part in zip((dw, db), parts):
        if out is not None:
            sum_columns(out, Matrix(part, samples, channels, channels))


def _rows(what: str, x: Any, groups: int) -> tuple[Any, Matrix, int, int]:
    shape = tuple(x.shape)
    if len(shape) < 2 or groups < 1 or shape[1] % groups:
        raise tilejit.LaunchError(f"{what}: x must be [samples, channels, ..] with channels that {groups} groups "
                                  f"divide, found shape {list(shape)}")
    x, places = contiguous(x), prod(shape[2:])
    columns = shape[1] // groups * places
    return x, Matrix(x, shape[0] * groups, columns, columns), shape[1] // groups, places
