"""fp8 matrix product with block scales: a scale per row and 128 of K for A, per 128 x 128 block for B.

After every 128 of K the tensor cores' sum is multiplied by its scales and added to an fp32 sum in registers: that is
the contract of DeepGEMM (github.com/deepseek-ai/DeepGEMM), and it also limits what the tensor cores' short fp8
accumulators lose.
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo, active_knobs
from tilejit.kernels._calls import Calls, Launch, facts_of, infos_of
from tilejit.kernels._operands import check_operands, operand, require_tma, result
from tilejit.kernels.order import tile_at

#: Elements of K, and columns of B, that share a scale.
SCALE_BLOCK = 128
_BLOCK = tl.constexpr(SCALE_BLOCK)


@tilejit.kernel(do_not_specialize=("N", "K", "b_down", "b_across"))
def block_scaled_kernel(a_desc, b_desc, c_desc, a_scale, b_scale, M, N, K, a_down, a_across, b_down, b_across,
                        BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """C [M, N] = sum over blocks of K of a_scale[m, block] * b_scale[n // 128, block] * (A @ B^T).

    a_desc sees A [M, K] in blocks [BM, 128], b_desc B^T [N, K] in blocks [BN, 128]; BN divides 128, K is not 0. The
    scales are fp32 with the given strides."""
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    steps = tl.cdiv(K, _BLOCK)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
        row, column = tile_at(tile, tiles_m, tiles_n, GROUP)
        m = row * BM
        n = column * BN
        a_scales = tl.minimum(m + tl.arange(0, BM), M - 1) * a_down          # rows beyond M are not stored
        b_scales = b_scale + n // _BLOCK * b_down
        acc = tl.zeros((BM, BN), tl.float32)
        of_a = tl.load(a_scale + a_scales)
        of_b = tl.load(b_scales)
        for k in range(0, steps):
            a = a_desc.load([m, k * _BLOCK])
            b = b_desc.load([n, k * _BLOCK])
            part = tl.dot(a, b.T)
            scale = of_a * of_b
            # The next block's scales arrive behind this block's product.
            after = tl.minimum(k + 1, steps - 1)
            of_a = tl.load(a_scale + (a_scales + after * a_across))
            of_b = tl.load(b_scales + after * b_across)
            acc = tl.fma(part, scale[:, None], acc)
        c_desc.store([m, n], acc.to(c_desc.dtype))


@dataclass(frozen=True)
class Config:
    """A tile of a program of `ctas` CTAs, and how it runs; `speed`: of that of 256x128, on an H200."""

    m: int
    n: int
    warps: int
    stages: int
    ctas: int = 1
    speed: float = 1.0


#: Largest first; clusters divide the rows and share B. A warpgroup has sums of 64 x 128 results, and of two each has a
#: product in flight beside the one that it adds to them; of three one adds while the others multiply.
TILES = (Config(384, 128, 12, 4, 2, 1.07), Config(256, 128, 8, 6, 2), Config(192, 128, 12, 4, speed=1.05),
         Config(128, 128, 8, 6, speed=0.95), Config(64, 128, 4, 8, speed=0.68), Config(64, 64, 4, 8, speed=0.48))
_FP8 = ("fp8e4nv", "fp8e5")
_WHAT = "matmul_blockscaled"
_calls = Calls()


@lru_cache(maxsize=1024)
def choose(m: int, n: int, multiprocessors: int) -> Config:
    """The tile with the least time: turns of the programs that run at once, at the tile's speed."""
    def time(t: Config) -> float:
        programs = multiprocessors // t.ctas
        return tilejit.cdiv(tilejit.cdiv(m, t.m) * tilejit.cdiv(n, t.n), programs) * t.m * t.n / t.ctas / t.speed

    return min((t for t in TILES if t.ctas <= multiprocessors), key=time)


def matmul_blockscaled(a: Any, b: Any, scale_a: Any, scale_b: Any, out: Any = None, out_dtype: Any = None) -> Any:
    """(a * scale_a) @ (b * scale_b^T), each scale spread over its block, with fp32 sums; bf16 unless out says so.

    a [M, K] fp8, row-major; b [K, N] fp8, column-major; rows of K bytes that are multiples of 16. scale_a fp32 [M,
    ceil(K / 128)]: one per row and 128 of K. scale_b fp32 [ceil(N / 128), ceil(K / 128)]: one per 128 x 128 block.
    Both scales may have any strides; those of A are read fastest column by column (M contiguous, as DeepGEMM has them).
    Raises LaunchError for what does not fit."""
    ia, ib, isa, isb = infos_of(a, b, scale_a, scale_b)
    if out is None:
        out = tilejit.empty_like(a, _checked(*facts_of(ia, ib)), out_dtype or tl.bfloat16)
    io = tilejit.array_info(out)
    key = ia, ib, isa, isb, io, active_knobs()
    if _calls.repeat(key):
        return out
    launch = _launch(*facts_of(ia, ib, isa, isb, io), tilejit.multiprocessors(ia.device))
    if launch is not None:
        _calls.run(key, (launch, ((a, b, out), (ia, ib, io), scale_a, scale_b), {}))
    return out


@lru_cache(maxsize=1024)
def _checked(a: ArrayInfo, b: ArrayInfo) -> tuple[int, int]:
    """The shape of the result. Raises LaunchError for operands that do not go together."""
    ma, mb = operand(_WHAT, "a", a), operand(_WHAT, "b", b)
    check_operands(_WHAT, ma, mb, _FP8)
    return ma.shape[0], mb.shape[1]


@lru_cache(maxsize=1024)
def _launch(a: ArrayInfo, b: ArrayInfo, scale_a: ArrayInfo, scale_b: ArrayInfo, out: ArrayInfo,
            multiprocessors: int) -> Launch | None:
    """The launch for a, b and the result; None where that is empty."""
    m, n = _checked(a, b)
    ma, mb, mc = operand(_WHAT, "a", a), operand(_WHAT, "b", b), result(_WHAT, out, (m, n))
    k = ma.shape[1]
    steps = tilejit.cdiv(k, SCALE_BLOCK)
    for name, info, shape in (("scale_a", scale_a, (m, steps)),
                              ("scale_b", scale_b, (tilejit.cdiv(n, SCALE_BLOCK), steps))):
        if info.dtype != tl.float32 or info.shape != shape:
            raise tilejit.LaunchError(f"{_WHAT}: {name} must be fp32 {list(shape)}, found {info.dtype} "
                                      f"{list(info.shape)}")
    if 0 in (m, n):
        return None
    t = choose(m, n, multiprocessors)
    descriptors = {"a": ma.descriptor(t.m, SCALE_BLOCK), "b": mb.descriptor(SCALE_BLOCK, t.n),
                   "out": mc.descriptor(t.m, t.n)}
    require_tma(_WHAT, **descriptors)
    grid = min(multiprocessors // t.ctas, tilejit.cdiv(m, t.m) * tilejit.cdiv(n, t.n))
    (a_down, a_across), (b_down, b_across) = scale_a.strides, scale_b.strides
    kernel = block_scaled_kernel.partial(
        M=m, N=n, K=k, a_down=a_down, a_across=a_across, b_down=b_down, b_across=b_across, BM=t.m, BN=t.n, GROUP=8,
        num_warps=t.warps, num_stages=t.stages, num_ctas=t.ctas)
    return Launch(kernel, (grid,), tuple(descriptors.values()))
