"""fp8 matrix product with block scales (`scaled.py`) for few rows, whose time is that of B's way from memory.

C^T = B^T A^T: tiles of 64 or 128 columns of B, which share a scale, and of as many rows of A as there are. Where tiles
do not fill the chip their blocks of K are divided between programs, and `parts.py` sums the parts.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels.division import IDLE, Config
from tilejit.kernels.order import tile_at

#: Elements of K, and columns of B, that share a scale.
SCALE_BLOCK = 128
_BLOCK = tl.constexpr(SCALE_BLOCK)


@tilejit.kernel
def scales_of(a_scales, b_scales, k, steps, a_across, b_across):
    """The scales of block k of K, or of the last one: of the rows of A, and of the columns of B."""
    at = tl.minimum(k, steps - 1)
    return tl.load(a_scales + at * a_across), tl.load(b_scales + at * b_across)


@tilejit.kernel(do_not_specialize=("M", "N", "K", "a_down", "a_across", "b_down", "b_across"))
def few_rows_kernel(b_desc, a_desc, out_desc, a_scale, b_scale, M, N, K, a_down, a_across, b_down, b_across,
                    BM: tl.constexpr, BN: tl.constexpr, BLOCKS: tl.constexpr, GROUP: tl.constexpr, PARTS: tl.constexpr):
    """C [M, N] as `block_scaled_kernel` has it, or with several PARTS its parts, of tiles of C^T.

    b_desc sees B^T [N, K] in blocks [BN, 128], a_desc A [M, K] in blocks [BM, 128]; BN divides 128. out_desc: C in
    blocks [BM, BN]; or fp32 parts, PARTS times [BN, BM] for every tile, one below the other. A part has every PARTS'th
    block of K, or with BLOCKS = 2 pair of blocks, and programs side by side have the same part (see `split_kernel`)."""
    tiles_n = tl.cdiv(N, BN)
    tiles_m = tl.cdiv(M, BM)
    tiles = tiles_m * tiles_n
    steps = tl.cdiv(K, _BLOCK)
    for i in tl.range(tl.program_id(0), tiles * PARTS, tl.num_programs(0)):
        tile = i % tiles
        share = i // tiles
        column, row = tile_at(tile, tiles_n, tiles_m, GROUP)
        n = column * BN
        m = row * BM
        a_scales = a_scale + tl.minimum(m + tl.arange(0, BM), M - 1) * a_down        # rows beyond M are not stored
        b_scales = b_scale + n // _BLOCK * b_down
        acc = tl.zeros((BN, BM), tl.float32)
        of_a, of_b = scales_of(a_scales, b_scales, share * BLOCKS, steps, a_across, b_across)
        if BLOCKS == 2:
            next_a, next_b = scales_of(a_scales, b_scales, share * BLOCKS + 1, steps, a_across, b_across)
        for k in range(share * BLOCKS, steps, PARTS * BLOCKS):
            b = b_desc.load([n, k * _BLOCK])
            a = a_desc.load([m, k * _BLOCK])
            if BLOCKS == 2:                       # beyond K there are zeros
                second_b = b_desc.load([n, (k + 1) * _BLOCK])
                second_a = a_desc.load([m, (k + 1) * _BLOCK])
            part = tl.dot(b, a.T)
            # The next scales arrive behind these products. Further ahead one by one would not help: ptxas counts all
            # such loads on one scoreboard, so that whoever waits for some waits for the latest.
            scale = of_a * of_b
            if BLOCKS == 2:
                second = tl.dot(second_b, second_a.T)
                next_scale = next_a * next_b
            of_a, of_b = scales_of(a_scales, b_scales, k + PARTS * BLOCKS, steps, a_across, b_across)
            if BLOCKS == 2:
                next_a, next_b = scales_of(a_scales, b_scales, k + PARTS * BLOCKS + 1, steps, a_across, b_across)
            acc = tl.fma(part, scale[None, :], acc)
            if BLOCKS == 2:
                acc = tl.fma(second, next_scale[None, :], acc)
        if PARTS > 1:
            out_desc.store([(tile * PARTS + share) * BN, 0], acc)
        else:
            out_desc.store([m, n], acc.to(out_desc.dtype).T)


#: Tiles by the rows of A that they hold, of 64 columns of B and of 128; and of those two blocks at a time, where a
#: thread has at most 32 results.
SINGLES = (Config(64, 16, 4, True), Config(64, 32, 4, True), Config(64, 64, 4, True), Config(128, 16, 4, True),
           Config(128, 32, 4, True), Config(128, 64, 8, True), Config(128, 128, 8, True))
TILES = (*SINGLES, *(replace(t, k_bytes=2 * SCALE_BLOCK) for t in SINGLES if t.m * t.n <= t.warps * 1024))
#: Rows up to which two programs of 4 warps fit a multiprocessor, if they have so many products at a time.
PAIRED, _PRODUCTS = 32, 4096
#: Rows that fill a wide tile half: from there on two narrower ones are an alternative.
_HALF = 64
#: Bytes of shared memory of a multiprocessor for blocks and staging; the rest is barriers and alignment.
_SHARED = 222 * 1024
#: A part of fewer blocks costs more to sum than to compute.
_LEAST_BLOCKS = 4
#: Cycles that a program takes at least for a block, or two at a time, while the next scales arrive (blocks of 64 x 64
#: took 450 and 850 on an H200, at 16x4096x7168, which stays in L2, and at 1x7168x16384).
ANSWER = 600
#: Bytes a cycle that a multiprocessor gets, and its share of what memory gives to all; how much longer that takes where
#: multiprocessors are idle. Cycles of a second launch, and for each part of a result that it sums.
_RECEIVED, _MEMORY, _UNEVEN, _SECOND, _PARTED = 39, 17, 1.07, 5600, 0.33


def ways(m: int, n: int, k: int, multiprocessors: int) -> Iterator[Config]:
    """What there is to choose from for an m x n x k product; of those with equal estimates the first is taken."""
    width = min((t.n for t in TILES if m <= t.n), default=max(t.n for t in TILES))
    for t in TILES:
        if t.n != width and not _HALF <= t.n < width:
            continue
        count = t.tiles(m, n)
        most = together(replace(t, programs=2 * multiprocessors), multiprocessors)
        for programs in range(multiprocessors, (most + 1) * multiprocessors, multiprocessors):
            parts = min(programs // count, tilejit.cdiv(k, SCALE_BLOCK) // _LEAST_BLOCKS)
            yield replace(t, programs=min(count, programs))
            if parts > 1:
                yield t.split(n, m, parts)


def together(t: Config, multiprocessors: int) -> int:
    """Programs that share a multiprocessor."""
    two = t.warps == 4 and t.n <= PAIRED and t.m * t.n * t.k_bytes <= _PRODUCTS * SCALE_BLOCK
    return min(tilejit.cdiv(t.programs, multiprocessors), 2 if two else 1)


def memory_cycles(m: int, n: int, k: int, programs: int, multiprocessors: int) -> float:
    """What memory takes for both operands, in cycles."""
    memory = (m + n) * k / (_MEMORY * multiprocessors)
    return memory * _UNEVEN if programs < (1 - IDLE / 2) * multiprocessors else memory


def cycles(t: Config, m: int, n: int, k: int, multiprocessors: int) -> float:
    """An estimate of what a product takes: turns of the programs, each as long as a program's blocks take, or as memory
    takes for those of all; and what it takes to sum parts."""
    parts = max(1, t.parts)
    shares = t.tiles(m, n) * parts
    blocks = max(ANSWER, (t.m + t.n) * t.k_bytes * together(t, multiprocessors) / _RECEIVED)
    least, memory = tilejit.cdiv(t.blocks(k), parts) * blocks, memory_cycles(m, n, k, t.programs, multiprocessors)

    def turn(programs: int) -> float:
        return max(least, memory * programs / shares) if programs else 0

    meet = (_SECOND + _PARTED * t.m * t.n * t.programs / multiprocessors) * (parts > 1)
    return shares // t.programs * turn(t.programs) + turn(shares % t.programs) + meet


def check(what: str, t: Config, m: int, n: int) -> None:
    """Raises LaunchError for a configuration that the kernel does not have for an m x n result."""
    tile = replace(t, programs=1, stream_tiles=0)
    other = replace(tile, warps=12 - t.warps)
    if tile not in TILES and (other not in TILES or t.m != 128 or t.m * t.n * t.k_bytes > t.warps * 2048 * SCALE_BLOCK):
        raise tilejit.LaunchError(f"{what}: config is none of scaled_rows.TILES: {t}")
    if t.stream_tiles not in (0, t.tiles(m, n)) or t.stream_tiles and not t.parts:
        raise tilejit.LaunchError(f"{what}: config divides {t.stream_tiles} tiles among {t.programs} programs, the "
                                  f"result has {t.tiles(m, n)} tiles: see Config.split")


def options(t: Config, m: int, n: int, out_bytes: int, multiprocessors: int) -> dict[str, Any]:
    """Options of the launch for an m x n result."""
    parts, shared = max(1, t.parts), together(t, multiprocessors)
    alone = t.warps > 4 or shared > 1 or t.tiles(m, n) * parts <= t.programs         # else groups take tiles in turn
    staged = t.m * min(t.n, 32) * 4 * (1 + (t.n > 32)) if parts > 1 else t.m * t.n * out_bytes
    stages = min(12, (_SHARED // shared - (1 if alone else 2) * staged) // ((t.m + t.n) * t.k_bytes))
    made: dict[str, Any] = dict(num_warps=t.warps, num_stages=stages, num_consumer_groups=1 if alone else 2,
                                launch_pdl=t.programs >= (1 - IDLE) * multiprocessors)
    if shared > 1:                       # half of the registers each: where those do not hold two products, the other
        made.update(maxnreg=128, products_ahead=t.m * t.n <= 2048)   # program's is in flight while sums are made
    return made
