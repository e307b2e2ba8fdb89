"""fp8 matrix product with block scales: a scale per row and 128 of K for A, per 128 x 128 block for B.

Tiles of few rows are transposed, and where tiles do not fill the chip their blocks of K are divided between programs.
"""
from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels._calls import At, Work, called
from tilejit.kernels._operands import Matrix, new
from tilejit.kernels.chip import Chip, current
from tilejit.kernels.launches import GROUP, Piece, load, multiply, whole
from tilejit.kernels.problem import checked
from tilejit.kernels.product import steps
from tilejit.kernels.product.steps import SCALE_BLOCK
from tilejit.kernels.way import Way

_WHAT = "matmul_blockscaled"
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


@lru_cache(maxsize=1024)
def choose(m: int, n: int, k: int, chip: Chip) -> Way:
    """The tile with the least time: turns of the programs that run at once, at the tile's speed. Up to `SHORT` rows an
    estimate in nanoseconds instead, for parts of K and tiles of few rows too."""
    multiprocessors = chip.multiprocessors

    def time(t: Way) -> float:
        return t.turns(m, n, multiprocessors) * t.m * t.n / t.ctas / SPEEDS[t]

    def ns(t: Way) -> float:
        parts, results = max(1, t.parts), t.m * t.n
        block = _COMING + _ADDED * results if by_tma(t) else _RESULT * results / t.ctas / SPEEDS[t]
        block += (-m % t.m) / t.ctas * _OUTSIDE * (not t.swap)
        computed = t.turns(m, n, multiprocessors) * tilejit.cdiv(tilejit.cdiv(k, SCALE_BLOCK), parts) * block
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
        parts = t.most_parts(m, n, tilejit.cdiv(k, SCALE_BLOCK), multiprocessors)
        if by_tma(t) and parts > 1:
            yield t.divided(m, n, parts)


def by_tma(t: Way) -> bool:
    """Whether the scales of A come with their blocks, if TMA reads them: where products are short, those that are
    loaded one block ahead are waited for. (Three warpgroups do not wait, and clusters share their loads of B.)"""
    return t.ctas == 1 and t.warps < 12


def options(t: Way, coming: bool, out_bytes: int) -> dict[str, Any]:
    """Options of a launch. coming: scales of A come with their blocks, of which there are as many as fit beside what
    is staged, twice where groups take tiles in turn."""
    alone, stages = t.swap or t.parts > 1, t.stages
    if coming:
        block = (t.m + t.n) * SCALE_BLOCK + 4 * t.computed(t.m, t.n)[0]
        stages = t.slots(block, out_bytes, 2 if t.warps == 4 and not alone else 1)
    return {"num_stages": stages, **(dict(num_consumer_groups=1) if alone else {})}


@tilejit.replayed
def matmul_blockscaled(a: Any, b: Any, scale_a: Any, scale_b: Any, out: Any = None, out_dtype: Any = None, *,
                       config: Way | None = None) -> Any:
    """(a * scale_a) @ (b * scale_b^T), each scale spread over its block, with fp32 sums; bf16 unless out says so.

    a [M, K] fp8, row-major; b [K, N] fp8, column-major; rows of K bytes that are multiples of 16. scale_a fp32 [M,
    ceil(K / 128)]: one per row and 128 of K. scale_b fp32 [ceil(N / 128), ceil(K / 128)]: one per 128 x 128 block.
    Both scales may have any strides; those of A are read fastest column by column (M contiguous, columns at multiples
    of 16 bytes, as DeepGEMM has them). config: instead of a choice. Raises LaunchError for what does not fit."""
    out = new(a, b, out_dtype) if out is None else out
    called(_work, (a, b, scale_a, scale_b, out), config)
    return out


def scale_steps(what: str, *scales: tuple[ArrayInfo | None, tuple[int, ...]]) -> tuple[ArrayInfo, ...]:
    """The scales of both operands, checked: of operands [..., rows, K] and [..., N, K], one a row or one for
    `SCALE_BLOCK` of N, for as many of K."""
    found = []
    for i, (info, (*outer, k)) in enumerate(scales):
        lines = outer[-1] if i == 0 else tilejit.cdiv(outer[-1], SCALE_BLOCK)
        wanted = *outer[:-1], lines, tilejit.cdiv(k, SCALE_BLOCK)
        if info is None or info.dtype != tl.float32 or info.shape != wanted:
            there = "none" if info is None else f"{info.dtype} {list(info.shape)}"
            raise tilejit.LaunchError(f"{what}: scale_{'ab'[i]} must be fp32 {list(wanted)}, found {there}")
        found.append(info)
    return tuple(found)


def promoted(rows: int, row_scales: int, strides: tuple[int, ...], block_scales: int, block_strides: tuple[int, ...],
             seen: At | None = None) -> Piece:
    """The STEP for scales in arrays of a call: of so many rows, down and across, and of blocks, from matrix to matrix
    (if there are several), down and across. seen: what TMA sees of those of rows."""
    apart, down, across = block_strides if len(block_strides) == 3 else (0, *block_strides)
    side_by_side = tl.constexpr(1) if strides[0] == 1 else strides[0]
    return steps.promote, (seen, At(row_scales), rows, side_by_side, strides[1], At(block_scales), apart, down, across)


@lru_cache(maxsize=1024)
def _work(a: ArrayInfo, b: ArrayInfo, scale_a: ArrayInfo, scale_b: ArrayInfo, out: ArrayInfo, config: Way | None,
          multiprocessors: int, knobs: Any) -> Work:
    """The launches. Raises LaunchError for arrays that do not go together."""
    work, (ma, mb, mc) = Work(5), checked(_WHAT, a, b, None, out, None, 4, dtypes=("fp8e4nv", "fp8e5"))
    (m, k), n = ma.shape, mb.shape[1]
    scale_steps(_WHAT, (scale_a, (m, k)), (scale_b, (n, k)))
    if 0 in (m, n):
        return work
    t = config or choose(m, n, k, current(a.device, multiprocessors))
    if t.swap and t.parts and m > t.n:
        raise tilejit.LaunchError(f"{_WHAT}: transposed tiles of parts hold all rows, {m} are more than {t.n}")
    (high, wide), (down, across), view = t.computed(t.m, t.n), scale_a.strides, None
    if by_tma(t) and down == 1 and k > 0:
        shape = tilejit.cdiv(k, SCALE_BLOCK), m
        view = Matrix(scale_a, shape, (across, 1), True, 2).seen(shape, (across, 1), (1, high))
        view = view if view.descriptor is not None and view.descriptor.tma else None
    multiply(work, t, (m, n, k), SCALE_BLOCK, t.launched(m, n, multiprocessors), whole(GROUP),
             load(ma, high, SCALE_BLOCK), load(mb.T, wide, SCALE_BLOCK),
             promoted(m, 2, (down, across), 3, scale_b.strides, view), mc,
             **options(t, view is not None, mc.dtype.bytes))
    return work
