"""fp8 matrix product with block scales: a scale per row and 128 of K for A, per 128 x 128 block for B.

After every 128 of K the tensor cores' sum is multiplied by its scales and added to an fp32 sum in registers: that is
the contract of DeepGEMM (github.com/deepseek-ai/DeepGEMM), and it also limits what the tensor cores' short fp8
accumulators lose. Few rows have a kernel of their own (`scaled_rows.py`).
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo, active_knobs
from tilejit.kernels import division, scaled_rows
from tilejit.kernels._calls import Calls, Launch, facts_of, infos_of
from tilejit.kernels._operands import check_operands, operand, require_tma, result
from tilejit.kernels.division import GROUP
from tilejit.kernels.order import tile_at
from tilejit.kernels.parts import sum_parts
from tilejit.kernels.scaled_rows import SCALE_BLOCK
from tilejit.kernels.streamk import meeting

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
#: Cycles of a multiprocessor for a result and block of K at a speed of 1: 1.6 times what the tensor cores need.
_RESULT = 0.05
#: How a product is computed: by `block_scaled_kernel`, or by that for few rows.
Way = Config | division.Config
_FP8 = ("fp8e4nv", "fp8e5")
_WHAT = "matmul_blockscaled"
_calls = Calls()


@lru_cache(maxsize=1024)
def choose(m: int, n: int, k: int, multiprocessors: int) -> Way:
    """The tile with the least time: turns of the programs that run at once, at the tile's speed. Up to
    `division.SHALLOW` rows one of `scaled_rows.ways` instead, where that is estimated to take less."""
    def turns(t: Config) -> int:
        return tilejit.cdiv(tilejit.cdiv(m, t.m) * tilejit.cdiv(n, t.n), multiprocessors // t.ctas)

    def time(t: Config) -> float:
        return turns(t) * t.m * t.n / t.ctas / t.speed

    def cycles(t: division.Config) -> float:
        return scaled_rows.cycles(t, m, n, k, multiprocessors)

    best = min((t for t in TILES if t.ctas <= multiprocessors), key=time)
    if m > division.SHALLOW:
        return best
    few = min(scaled_rows.ways(m, n, k, multiprocessors), key=cycles)
    block = max(time(best) * _RESULT, turns(best) * scaled_rows.ANSWER)
    memory = scaled_rows.memory_cycles(m, n, k, tilejit.cdiv(m, best.m) * tilejit.cdiv(n, best.n) * best.ctas,
                                       multiprocessors)
    return few if cycles(few) <= max(tilejit.cdiv(k, SCALE_BLOCK) * block, memory) else best


def matmul_blockscaled(a: Any, b: Any, scale_a: Any, scale_b: Any, out: Any = None, out_dtype: Any = None, *,
                       config: Way | None = None) -> Any:
    """(a * scale_a) @ (b * scale_b^T), each scale spread over its block, with fp32 sums; bf16 unless out says so.

    a [M, K] fp8, row-major; b [K, N] fp8, column-major; rows of K bytes that are multiples of 16. scale_a fp32 [M,
    ceil(K / 128)]: one per row and 128 of K. scale_b fp32 [ceil(N / 128), ceil(K / 128)]: one per 128 x 128 block.
    Both scales may have any strides; those of A are read fastest column by column (M contiguous, as DeepGEMM has them).
    config: instead of a choice, how it is computed: a `scaled.Config`; or for few rows one of `scaled_rows.TILES` with
    its programs, or with programs that divide K between them (`division.Config.split`).
    Raises LaunchError for what does not fit."""
    ia, ib, isa, isb = infos_of(a, b, scale_a, scale_b)
    if out is None:
        out = tilejit.empty_like(a, _checked(*facts_of(ia, ib)), out_dtype or tl.bfloat16)
    io = tilejit.array_info(out)
    key = ia, ib, isa, isb, io, config, active_knobs()
    if _calls.repeat(key):
        return out
    plan = _plan(*facts_of(ia, ib, isa, isb, io), config, tilejit.multiprocessors(ia.device))
    if plan is not None:
        t, launch = plan
        if isinstance(t, division.Config) and t.parts > 1:
            meet, parts, _ = meeting(_WHAT, a, t, None)
            _calls.run(None, (launch, ((b, a), (ib, ia), meet, scale_a, scale_b), {}),
                       sum_parts(parts, out, io, None, None, (t.m, t.n), t.parts, GROUP, True))
        else:
            over, of = ((a, b, out), (ia, ib, io)) if isinstance(t, Config) else ((b, a, out), (ib, ia, io))
            _calls.run(key, (launch, (over, of, scale_a, scale_b), {}))
    return out


@lru_cache(maxsize=1024)
def _checked(a: ArrayInfo, b: ArrayInfo) -> tuple[int, int]:
    """The shape of the result. Raises LaunchError for operands that do not go together."""
    ma, mb = operand(_WHAT, "a", a), operand(_WHAT, "b", b)
    check_operands(_WHAT, ma, mb, _FP8)
    return ma.shape[0], mb.shape[1]


@lru_cache(maxsize=1024)
def _plan(a: ArrayInfo, b: ArrayInfo, scale_a: ArrayInfo, scale_b: ArrayInfo, out: ArrayInfo,
          config: Way | None, multiprocessors: int) -> tuple[Way, Launch] | None:
    """Tile, and the launch for a, b (few rows: b, a) and the result; None where that is empty."""
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
    t = config or choose(m, n, k, multiprocessors)
    few = isinstance(t, division.Config)
    rows, columns = (t.n, t.m) if few else (t.m, t.n)
    descriptors = {"a": ma.descriptor(rows, SCALE_BLOCK), "b": mb.descriptor(SCALE_BLOCK, columns),
                   "out": mc.descriptor(rows, columns)}
    require_tma(_WHAT, **descriptors)
    da, db, dc = descriptors.values()
    (a_down, a_across), (b_down, b_across) = scale_a.strides, scale_b.strides
    sizes = dict(M=m, N=n, K=k, a_down=a_down, a_across=a_across, b_down=b_down, b_across=b_across, GROUP=GROUP)
    if isinstance(t, division.Config):
        scaled_rows.check(_WHAT, t, m, n)
        kernel = scaled_rows.few_rows_kernel.partial(
            **sizes, BM=t.n, BN=t.m, BLOCKS=t.k_bytes // SCALE_BLOCK, PARTS=max(1, t.parts),
            **scaled_rows.options(t, m, n, mc.dtype.bytes, multiprocessors))
        return t, Launch(kernel, (t.programs,), (db, da) if t.parts > 1 else (db, da, dc))
    grid = min(multiprocessors // t.ctas, tilejit.cdiv(m, t.m) * tilejit.cdiv(n, t.n))
    kernel = block_scaled_kernel.partial(**sizes, BM=t.m, BN=t.n, num_warps=t.warps, num_stages=t.stages,
                                         num_ctas=t.ctas)
    return t, Launch(kernel, (grid,), (da, db, dc))
