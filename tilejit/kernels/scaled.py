"""fp8 matrix product with block scales: a scale per row and 128 of K for A, per 128 x 128 block for B.

After every 128 of K the tensor cores' sum is multiplied by its scales and added to an fp32 sum in registers: that is
the contract of DeepGEMM (github.com/deepseek-ai/DeepGEMM), and it also limits what the tensor cores' short fp8
accumulators lose. Tiles of few rows are transposed, and where tiles do not fill the chip their blocks of K are divided
between programs; `parts.py` sums the parts.
"""
from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels._calls import Launch, facts_of, infos_of, run
from tilejit.kernels._operands import check_operands, operand, require_tma, result
from tilejit.kernels.chip import Chip, current
from tilejit.kernels.order import tile_at
from tilejit.kernels.parts import sum_parts
from tilejit.kernels.planning import LEAST_BLOCKS
from tilejit.kernels.steps import GROUP, meeting
from tilejit.kernels.way import SHARED, Way, staged_part

#: Elements of K, and columns of B, that share a scale.
SCALE_BLOCK = 128
_BLOCK = tl.constexpr(SCALE_BLOCK)


@tilejit.kernel(do_not_specialize=("N", "K", "b_down", "b_across"))
def block_scaled_kernel(a_desc, b_desc, c_desc, scale_desc, a_scale, b_scale, M, N, K, a_down, a_across, b_down,
                        b_across, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr, SWAP: tl.constexpr,
                        PARTS: tl.constexpr):
    """C [M, N] = sum over blocks of K of a_scale[m, block] * b_scale[n // 128, block] * (A @ B^T).

    a_desc sees A [M, K] in blocks [BM, 128], b_desc B^T [N, K] in blocks [BN, 128]; BN divides 128, K is not 0. The
    scales are fp32 with the given strides; scale_desc: None, or sees those of A, transposed, in blocks [1, BM]. SWAP:
    the tensor cores compute transposed tiles, so that BM may be as small as 16 (and holds all rows, with PARTS). PARTS:
    1, or programs that each have every so many'th block of K; c_desc sees fp32 parts then, so many tiles for every tile
    of C, as they are computed, one below the other."""
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    steps = tl.cdiv(K, _BLOCK)
    tiles = tiles_m * tiles_n
    for i in tl.range(tl.program_id(0), tiles * PARTS, tl.num_programs(0)):
        tile = i % tiles
        share = i // tiles
        row, column = tile_at(tile, tiles_m, tiles_n, GROUP)
        m = row * BM
        n = column * BN
        a_scales = tl.minimum(m + tl.arange(0, BM), M - 1) * a_down          # rows beyond M are not stored
        b_scales = b_scale + n // _BLOCK * b_down
        if SWAP:
            acc = tl.zeros((BN, BM), tl.float32)
        else:
            acc = tl.zeros((BM, BN), tl.float32)
        first = tl.minimum(share, steps - 1)
        if scale_desc is None:
            of_a = tl.load(a_scale + (a_scales + first * a_across))
        of_b = tl.load(b_scales + first * b_across)
        for k in range(share, steps, PARTS):
            if scale_desc is not None:
                of_a = scale_desc.load([k, m]).reshape(BM)
            a = a_desc.load([m, k * _BLOCK])
            b = b_desc.load([n, k * _BLOCK])
            if SWAP:
                part = tl.dot(b, a.T)
            else:
                part = tl.dot(a, b.T)
            scale = of_a * of_b
            # The next block's scales arrive behind this block's product.
            after = tl.minimum(k + PARTS, steps - 1)
            if scale_desc is None:
                of_a = tl.load(a_scale + (a_scales + after * a_across))
            of_b = tl.load(b_scales + after * b_across)
            if SWAP:
                acc = tl.fma(part, scale[None, :], acc)
            else:
                acc = tl.fma(part, scale[:, None], acc)
        if PARTS > 1:
            c_desc.store([(tile * PARTS + share) * (BN if SWAP else BM), 0], acc)
        elif SWAP:
            c_desc.store([m, n], acc.to(c_desc.dtype).T)
        else:
            c_desc.store([m, n], acc.to(c_desc.dtype))


def by_tma(t: Way) -> bool:
    """Whether the scales of A come with their blocks, if TMA reads them: where products are short, those that are
    loaded one block ahead are waited for. (Three warpgroups do not wait, and clusters share their loads of B.)"""
    return t.ctas == 1 and t.warps < 12


def options(t: Way, coming: bool, out_bytes: int) -> dict[str, Any]:
    """Options of a launch. coming: scales of A come with their blocks, of which there are as many as fit beside what
    is staged, twice where groups take tiles in turn."""
    alone, stages = t.swap or t.parts > 1, t.stages
    if coming:
        staged = staged_part(t.m, t.n) if t.parts > 1 else t.m * t.n * out_bytes
        free = SHARED - staged * (2 if t.warps == 4 and not alone else 1)
        stages = min(12, free // ((t.m + t.n) * SCALE_BLOCK + 4 * t.computed(t.m, t.n)[0]))
    return {**t.options, "num_stages": stages, **(dict(num_consumer_groups=1) if alone else {})}


#: Largest first; clusters divide the rows and share B. A warpgroup has sums of 64 x 128 results, and of two each has a
#: product in flight beside the one that it adds to them; of three one adds while the others multiply. With their
#: speeds, of that of 256x128, where there are many, on an H200.
SPEEDS = {Way(384, 128, 12, 2, stages=4): 1.07, Way(256, 128, 8, 2, stages=6): 1.0, Way(192, 128, 12, stages=4): 1.05,
          Way(128, 128, 8, stages=6): 0.95, Way(64, 128, 4, stages=8): 0.68, Way(64, 64, 4, stages=8): 0.48}
TILES = tuple(SPEEDS)
#: Those for up to as many rows as one of them holds.
FEW_ROWS = tuple(Way(m, n, 4, swap=True, stages=10) for n in (16, 32) for m in (64, 128))
#: Rows up to which parts and the tiles of few rows are considered.
SHORT = 512
#: Nanoseconds of a block on an H200, and of each of its results, where scales come by TMA; of a result at a speed of 1
#: elsewhere; and of a row outside of the matrix, which TMA fills with zeros. The exponent of the sum of products and
#: memory, which hide each other in part.
_COMING, _ADDED, _RESULT, _OUTSIDE, _HIDING = 245, 0.01225, 0.025, 1.8, 4.3
_FP8 = ("fp8e4nv", "fp8e5")
_WHAT = "matmul_blockscaled"


@lru_cache(maxsize=1024)
def choose(m: int, n: int, k: int, chip: Chip) -> Way:
    """The tile with the least time: turns of the programs that run at once, at the tile's speed. Up to `SHORT` rows an
    estimate in nanoseconds instead, for parts of K and tiles of few rows too."""
    multiprocessors = chip.multiprocessors

    def turns(t: Way) -> int:
        return tilejit.cdiv(t.tiles(m, n) * max(1, t.parts), t.room(multiprocessors))

    def time(t: Way) -> float:
        return turns(t) * t.m * t.n / t.ctas / SPEEDS[t]

    def ns(t: Way) -> float:
        parts, results = max(1, t.parts), t.m * t.n
        block = _COMING + _ADDED * results if by_tma(t) else _RESULT * results / t.ctas / SPEEDS[t]
        block += (-m % t.m) / t.ctas * _OUTSIDE * (not t.swap)
        computed = turns(t) * tilejit.cdiv(tilejit.cdiv(k, SCALE_BLOCK), parts) * block
        sums = 2 * chip.second + 8 * m * n * parts / (chip.part * multiprocessors) if parts > 1 else 0
        return float((computed ** _HIDING + memory ** _HIDING) ** (1 / _HIDING) + sums)

    memory = (m + n) * k / (chip.memory * multiprocessors)
    fitting = [t for t in TILES if t.ctas <= multiprocessors]
    return min(fitting, key=time) if m > SHORT else min(_ways(m, n, k, multiprocessors), key=ns)


def _ways(m: int, n: int, k: int, multiprocessors: int) -> Iterator[Way]:
    """What there is to choose from for few rows; of those with equal estimates the first is taken."""
    for t in (*FEW_ROWS, *TILES):
        if t.ctas > multiprocessors or t.swap and m > t.n:
            continue
        yield t
        parts = min(multiprocessors // t.tiles(m, n), tilejit.cdiv(k, SCALE_BLOCK) // LEAST_BLOCKS)
        if by_tma(t) and parts > 1:
            yield t.divided(m, n, parts)


@tilejit.replayed
def matmul_blockscaled(a: Any, b: Any, scale_a: Any, scale_b: Any, out: Any = None, out_dtype: Any = None, *,
                       config: Way | None = None) -> Any:
    """(a * scale_a) @ (b * scale_b^T), each scale spread over its block, with fp32 sums; bf16 unless out says so.

    a [M, K] fp8, row-major; b [K, N] fp8, column-major; rows of K bytes that are multiples of 16. scale_a fp32 [M,
    ceil(K / 128)]: one per row and 128 of K. scale_b fp32 [ceil(N / 128), ceil(K / 128)]: one per 128 x 128 block.
    Both scales may have any strides; those of A are read fastest column by column (M contiguous, columns at multiples
    of 16 bytes, as DeepGEMM has them). config: instead of a choice. Raises LaunchError for what does not fit."""
    ia, ib, isa, isb = infos_of(a, b, scale_a, scale_b)
    if out is None:
        out = tilejit.empty_like(a, _checked(*facts_of(ia, ib)), out_dtype or tl.bfloat16)
    io = tilejit.array_info(out)
    plan = _plan(*facts_of(ia, ib, isa, isb, io), config, tilejit.multiprocessors(ia.device))
    if plan is None:
        return out
    t, launch, view = plan
    scales = (None, scale_a, scale_b) if view is None else (view.over(scale_a, isa), None, scale_b)
    if not t.parts:
        launch((a, b, out), (ia, ib, io), *scales)
    else:
        meet, parts, _ = meeting(_WHAT, a, t, None)
        run((launch, ((a, b), (ia, ib), meet, *scales), {}),
            sum_parts(parts, out, io, None, None, (t.m, t.n), t.parts, GROUP, t.swap))
    return out


@lru_cache(maxsize=1024)
def _checked(a: ArrayInfo, b: ArrayInfo) -> tuple[int, int]:
    """The shape of the result. Raises LaunchError for operands that do not go together."""
    ma, mb = operand(_WHAT, "a", a), operand(_WHAT, "b", b)
    check_operands(_WHAT, ma, mb, _FP8)
    return ma.shape[0], mb.shape[1]


@lru_cache(maxsize=1024)
def _plan(a: ArrayInfo, b: ArrayInfo, scale_a: ArrayInfo, scale_b: ArrayInfo, out: ArrayInfo, config: Way | None,
          multiprocessors: int) -> tuple[Way, Launch, tilejit.TensorDescriptor | None] | None:
    """How it is computed, the launch for a, b and the result (or parts), and how TMA sees the scales of a, if it does;
    None where the result is empty."""
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
    t = config or choose(m, n, k, current(a.device, multiprocessors))
    if t.swap and t.parts and m > t.n:
        raise tilejit.LaunchError(f"{_WHAT}: transposed tiles of parts hold all rows, {m} are more than {t.n}")
    bm, bn = t.computed(t.m, t.n)
    descriptors = {"a": ma.descriptor(bm, SCALE_BLOCK), "b": mb.descriptor(SCALE_BLOCK, bn),
                   "out": mc.descriptor(bm, bn)}
    require_tma(_WHAT, **descriptors)
    (a_down, a_across), (b_down, b_across) = scale_a.strides, scale_b.strides
    view = None
    if by_tma(t) and a_down == 1 and steps > 0:
        view = tilejit.TensorDescriptor.template(scale_a, (steps, m), (a_across, 1), (1, bm))
    view = view if view is not None and view.tma else None
    kernel = block_scaled_kernel.partial(
        M=m, N=n, K=k, a_down=a_down, a_across=a_across, b_down=b_down, b_across=b_across, BM=bm, BN=bn, GROUP=GROUP,
        SWAP=t.swap, PARTS=max(1, t.parts), **options(t, view is not None, mc.dtype.bytes))
    grid = t.programs if t.parts else min(t.room(multiprocessors), t.tiles(m, n))
    return t, Launch(kernel, (grid,), tuple(descriptors.values())[:2 if t.parts else 3]), view
