"""tilejit's side of the matmul benchmark: one function for each kind of case, absent where the library lacks it."""
from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from contender import Absent


def find(*names: str) -> Callable[..., Any]:
    """The first of these that exists, as `module.function` below tilejit.kernels. Raises Absent if none does."""
    for name in names:
        module, function = name.split(".")
        try:
            return getattr(importlib.import_module(f"tilejit.kernels.{module}"), function)
        except (ImportError, AttributeError):
            continue
    raise Absent(f"tilejit.kernels has no {' or '.join(names)}")


def plain(a: Any, b: Any, out: Any) -> Callable[[], Any]:
    """a @ b."""
    fn = find("matmul.matmul")
    return lambda: fn(a, b, out=out)


def fp8(a: Any, b: Any, scale_a: Any, scale_b: Any, out: Any) -> Callable[[], Any]:
    """(a @ b) * scale_a * scale_b with scales of one element, on the device."""
    fn = find("matmul.matmul")
    return lambda: fn(a, b, scale_a=scale_a, scale_b=scale_b, out=out)


def fp8_block(a: Any, b: Any, scale_a: Any, scale_b: Any, out: Any) -> Callable[[], Any]:
    """fp8 with scales of 1x128 of A [M, K/128] and of 128x128 of B [N/128, K/128]."""
    fn = find("blockscaled.matmul_blockscaled", "blockscaled.matmul", "fp8.matmul_blockscaled",
              "matmul.matmul_blockscaled", "scaled.matmul_blockscaled")
    return lambda: fn(a, b, scale_a, scale_b, out=out)


def streamk(a: Any, b: Any, out: Any) -> Callable[[], Any]:
    """a @ b where few tiles or few rows leave the chip idle."""
    fn = find("streamk.matmul_streamk")
    return lambda: fn(a, b, out=out)


def batched(a: Any, b: Any, out: Any) -> Callable[[], Any]:
    """a [B, M, K] @ b [B, K, N]."""
    fn = find("batched.batched_matmul")
    return lambda: fn(a, b, out=out)


def grouped(a: Any, b: Any, offsets: Any, out: Any) -> Callable[[], Any]:
    """Groups of rows of a [T, K], from and to `offsets` (int32, one more than groups), each with its own b [E, K, N]."""
    fn = find("grouped.grouped_matmul")
    return lambda: fn(a, b, offsets, out=out)


def bias_gelu(a: Any, b: Any, bias: Any, out: Any) -> Callable[[], Any]:
    """gelu(a @ b + bias)."""
    fn = find("matmul.matmul")
    return lambda: fn(a, b, bias=bias, activation="gelu", out=out)


def swiglu(a: Any, b: Any, out: Any) -> Callable[[], Any]:
    """silu(a @ gate) * (a @ up) for b = [gate | up]."""
    fn = find("gated.matmul_swiglu", "swiglu.matmul_swiglu", "matmul.matmul_swiglu", "gated.swiglu", "fused.swiglu")
    return lambda: fn(a, b, out=out)


def residual(a: Any, b: Any, plus: Any, out: Any) -> Callable[[], Any]:
    """a @ b + plus."""
    fn = find("fused.fused_matmul")
    return lambda: fn(a, b, residual=plus, out=out)


def weights(x: Any, weight: Any, scales: Any, out: Any) -> Callable[[], Any]:
    """x @ w^T for a weight of int8, or of two numbers of 4 bits a byte, and its scales."""
    fn = find("mixed.weight_only_matmul")
    return lambda: fn(x, weight, scales, out=out)


@dataclass(frozen=True)
class Variant:
    """One way to launch the matmul kernel: launch options and compile-time arguments by name, over the defaults."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)


def _steps() -> tuple[Variant, ...]:
    """The lines of the ablation: for each tile of a CTA (the first word of a name), each adds one thing to the line
    above, or (-) takes it away.

    Groups that take turns need a whole tile each, so they are of the smaller tile; a cluster has two tiles of M."""
    lines = []
    for bm, bn, turns in ((128, 128, True), (128, 256, False)):
        tile = f"{bm}x{bn}"
        options: dict[str, Any] = dict(num_warps=8, warp_specialize=False, store_stages=1, store_role=False)
        constants = dict(BM=bm, BN=bn, GROUP=1)
        lines.append(Variant(f"{tile} inline", options, constants))
        options = {**options, "warp_specialize": True, "num_consumer_groups": 1}
        lines.append(Variant(f"{tile} specialised", options, constants))
        if turns:
            options = {**options, "num_warps": 4, "num_consumer_groups": 2}
            lines.append(Variant(f"{tile} + ping-pong", options, constants))
        alone, one = options, constants
        options, constants = {**options, "num_ctas": 2}, {**constants, "BM": 2 * bm}
        lines.append(Variant(f"{tile} + cluster", options, constants))
        options = {**options, "store_stages": 2}
        lines.append(Variant(f"{tile} + store overlap", options, constants))
        lines.append(Variant(f"{tile} + raster", options, {**constants, "GROUP": 8}))
        lines.append(Variant(f"{tile} - cluster", {**alone, "store_stages": 2}, {**one, "GROUP": 16}))
        lines.append(Variant(f"{tile} + store role", {**alone, "store_stages": 2, "store_role": True}, {**one, "GROUP": 16}))
    return tuple(lines)


ABLATION = _steps()


def launched(a: Any, b: Any, variant: Variant, out: Any) -> Callable[[], Any]:
    """The matmul kernel launched in a variant's way, other things as the library chooses them; a, b of order NT.

    Raises Absent for options that neither the kernel nor its launch knows."""
    import tilejit
    from tilejit.kernels.chip import current
    from tilejit.kernels.planning import LARGE, choose, table
    from tilejit.kernels.problem import Problem
    from tilejit.kernels.product.plain import matmul_kernel as kernel
    from tilejit.runtime.jit import OPTIONS
    unknown = [o for o in variant.options if o not in OPTIONS] + [
        c for c in variant.constants if c not in inspect.signature(kernel.fn).parameters]
    if unknown:
        raise Absent(f"the kernel does not know {', '.join(unknown)}")
    (m, k), n = a.shape, b.shape[1]
    sms, size = tilejit.multiprocessors(), tilejit.array_info(a).dtype.bytes
    problem = Problem(m, n, k, size, True, False, (k * size, k * size, 2 * n))
    t = choose(problem, current(), split=1, tiles=table(LARGE)).way
    given = {"BM": t.m, "BN": t.n, "BK": t.k_bytes // size, "GROUP": 16, "A_ROWS": True, "B_ROWS": False,
             "ACTIVATION": None, "num_warps": t.warps, "num_ctas": 1, **variant.constants, **variant.options}
    bm, bn, bk = (given[x] for x in ("BM", "BN", "BK"))
    d = tilejit.TensorDescriptor.from_tensor
    descs = d(a, (bm, bk)), d(b.T, (bn, bk)), d(out, (bm, bn))
    grid = (min(sms // given["num_ctas"], tilejit.cdiv(m, bm) * tilejit.cdiv(n, bn)),)

    def run() -> Any:
        kernel[grid](*descs, None, m, n, k, **given)
        return out

    return run
