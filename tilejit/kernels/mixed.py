"""Matrix product of 16-bit numbers and a weight of 8- or 4-bit integers, widened on its way to the tensor cores.

C^T = W X^T: tiles of the weight come by TMA and become 16-bit numbers in the registers from which the products take
them, multiplied by the scales of groups of K there. A scale for all of K multiplies the sums instead. Where tiles of
few rows do not fill the chip, their blocks of K are divided between programs, and `parts.py` sums the parts.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels._calls import Call, Launch, facts_of, infos_of, run
from tilejit.kernels._operands import Workspace, check_vector, operand, require_tma, result
from tilejit.kernels.activations import ACTIVATIONS, store_tile
from tilejit.kernels.chip import Chip, current
from tilejit.kernels.order import tile_at
from tilejit.kernels.parts import sum_parts
from tilejit.kernels.planning import LEAST_BLOCKS
from tilejit.kernels.steps import GROUP, meeting
from tilejit.kernels.way import SHARED, Way, staged_part


@tilejit.kernel
def widened(x, BM: tl.constexpr, BK: tl.constexpr, BITS: tl.constexpr, DTYPE: tl.constexpr, scale=None, zero=None):
    """Integers [BM, BK] as DTYPE: int8, or bytes [BM, BK / 2] of two numbers of 4 bits each, the even one low; from
    those `zero` is subtracted, one per row (8 without). Then times `scale`, one per row (1 without)."""
    if BITS == 8:
        y = x.to(DTYPE)
    else:
        # In the mantissa of a power of two whose last place is 1, a number n is that power plus n: no conversion.
        bits: tl.constexpr = 0x4300 if DTYPE == tl.bfloat16 else 0x6400
        power: tl.constexpr = 128.0 if DTYPE == tl.bfloat16 else 1024.0
        both = (x.to(tl.int32) * 0x1001 & 0x000F000F) | (bits << 16 | bits)
        even, odd = both.to(tl.int16).to(DTYPE, bitcast=True), (both >> 16).to(tl.int16).to(DTYPE, bitcast=True)
        y = tl.join(even, odd).reshape(BM, BK)
        if zero is None:
            y = y - (power + 8.0)
        else:
            y = y - (zero.to(tl.float32) + power).to(DTYPE)[:, None]
    if scale is not None:
        y = y * scale.to(DTYPE)[:, None]
    return y


@tilejit.kernel
def multiplied(acc, w_desc, x_desc, m, n, k, BM: tl.constexpr, BK: tl.constexpr, BITS: tl.constexpr, scale=None,
               zero=None):
    """acc plus the product of block k of the weight's rows from m on and of the rows of x from n on."""
    w = w_desc.load([m, k * (BK * BITS // 8)])
    x = x_desc.load([n, k * BK])
    return tl.dot(widened(w, BM, BK, BITS, x_desc.dtype, scale, zero), x.T, acc)


@tilejit.kernel
def at_once(source, at, inside, RUN: tl.constexpr):
    """RUN numbers from each of source[at] on, as one integer of 64 bits; or one as it is. None for source None."""
    found = None
    if source is not None:
        if RUN > 1:
            found = tl.load((source + at).to(tl.pointer_type(tl.int64)), inside, other=0)
        else:
            found = tl.load(source + at, inside, other=0.0)
    return found


@tilejit.kernel
def one_of(run, index, source, RUN: tl.constexpr):
    """Number `index` of what `at_once` read from source."""
    x = run
    if run is not None and RUN > 1:
        bits: tl.constexpr = 64 // RUN
        x = (run >> (index * bits)).to(tl.int16 if bits == 16 else tl.int32).to(source.dtype.element_ty, bitcast=True)
    return x


@tilejit.kernel(do_not_specialize=("M", "N", "K", "down", "across"))
def mixed_kernel(w_desc, x_desc, out_desc, scales, zeros, bias, M, N, K, down, across, BM: tl.constexpr,
                 BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr, STEPS: tl.constexpr,
                 RUN: tl.constexpr, PARTS: tl.constexpr, ACTIVATION: tl.constexpr):
    """C^T [M, N] = act(scales * W [M, K] @ X^T [K, N] + bias), or with several PARTS the parts of W @ X^T.

    w_desc sees W in blocks [BM, BK] of BITS bits, x_desc X [N, K] in blocks [BN, BK]. scales and zeros (or None), with
    strides down and across: a number per row and STEPS blocks of K (0: per row), of which RUN lie side by side in each
    64 bits (1: they may lie anywhere). bias (or None): per row. out_desc: C in blocks [BN, BM]; or fp32 parts, PARTS
    times [BM, BN] for every tile, one below the other."""
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    steps = tl.cdiv(K, BK)
    for i in tl.range(tl.program_id(0), tiles_m * tiles_n * PARTS, tl.num_programs(0)):
        tile = i // PARTS
        part = i % PARTS
        row, column = tile_at(tile, tiles_m, tiles_n, GROUP)
        m = row * BM
        n = column * BN
        rows = m + tl.arange(0, BM)
        inside = rows < M
        acc = tl.zeros((BM, BN), tl.float32)
        if STEPS == 0:
            for k in range(part * steps // PARTS, (part + 1) * steps // PARTS):
                acc = multiplied(acc, w_desc, x_desc, m, n, k, BM, BK, BITS)
            acc *= tl.load(scales + rows * down, inside, other=0.0).to(tl.float32)[:, None]
        else:
            # The next numbers are on their way while those before are multiplied by.
            runs = tl.cdiv(steps, STEPS * RUN)
            begin = part * runs // PARTS
            end = (part + 1) * runs // PARTS
            at = rows * down + begin * RUN * across
            next_scale = at_once(scales, at, inside, RUN)
            next_zero = at_once(zeros, at, inside, RUN)
            for run in range(begin, end):
                scale, zero = next_scale, next_zero
                at = rows * down + tl.minimum(run + 1, end - 1) * RUN * across
                next_scale = at_once(scales, at, inside, RUN)
                next_zero = at_once(zeros, at, inside, RUN)
                for k in range(run * (STEPS * RUN), tl.minimum((run + 1) * (STEPS * RUN), steps)):
                    index = k // STEPS % RUN
                    acc = multiplied(acc, w_desc, x_desc, m, n, k, BM, BK, BITS, one_of(scale, index, scales, RUN),
                                     one_of(zero, index, zeros, RUN))
        if PARTS > 1:
            out_desc.store([i * BM, 0], acc)
        else:
            store_tile(acc, out_desc, None, bias, m, n, M, N, BM, BN, False, ACTIVATION)


def options(t: Way, bits: int, out_bytes: int) -> dict[str, Any]:
    """Options of a launch for a weight of so many bits: as many stages as fit beside what is staged."""
    staged = staged_part(t.m, t.n) if t.parts else t.m * t.n * out_bytes
    stages = (SHARED // t.together - staged) // (t.m * t.k_bytes * bits // 16 + t.n * t.k_bytes)
    return {**t.options, "num_consumer_groups": 1, "num_stages": min(12, stages)}


#: Tiles of C^T in blocks of so many bytes of x, with what 128 of K take each program on an H200, in nanoseconds.
BLOCKS = {Way(128, 16, 4, swap=True, k_bytes=256, together=2): 740,
          Way(128, 32, 4, swap=True, k_bytes=256, together=2): 855,
          Way(128, 64, 8, swap=True, k_bytes=256): 655, Way(128, 128, 8, swap=True, k_bytes=256): 855,
          Way(128, 160, 8, swap=True): 957, Way(128, 192, 8, swap=True): 1077, Way(128, 256, 8, swap=True): 1339}
#: Nanoseconds for each result of a tile that is stored as a part.
_STORED = 0.14
_WHAT = "weight_only_matmul"


@lru_cache(maxsize=1024)
def choose(m: int, n: int, k: int, group: int, bits: int, chip: Chip, split: int | None = None) -> Way:
    """The tile, its programs and their parts with the least time by an estimate, for x [m, k] and a weight [n, k] of so
    many bits with scales of `group` elements (0: of all)."""
    multiprocessors = chip.multiprocessors
    memory = (n * k * bits / 8 + m * k * 2) / (chip.memory * multiprocessors)

    def time(t: Way, block: int) -> float:
        parts = max(1, t.parts)
        turns = tilejit.cdiv(t.tiles(m, n) * parts, t.programs)
        sums = chip.second + 8 * m * n * parts / (chip.part * multiprocessors) + _STORED * t.m * t.n
        return max(memory, turns * k / 128 / parts * block) + (sums if parts > 1 else 0)

    return min(_ways(m, n, k, group, multiprocessors, split), key=lambda way: time(*way))[0]


def _ways(m: int, n: int, k: int, group: int, multiprocessors: int, split: int | None) -> Iterator[tuple[Way, int]]:
    """What there is to choose from, with their times; of those with equal estimates the first is taken."""
    for t, block in BLOCKS.items():
        bk = t.k_bytes // 2 if group % (t.k_bytes // 2) == 0 else 64
        t, steps = replace(t, k_bytes=2 * bk), max(1, tilejit.cdiv(k, bk))
        count, slots = t.tiles(m, n), t.room(multiprocessors)
        parts = min(slots // count, steps // LEAST_BLOCKS) if split is None else min(split, steps)
        if parts <= 1 or split is None:
            yield replace(t, programs=min(count, slots)), block
        if parts > 1:
            yield t.divided(m, n, parts), block


@tilejit.replayed
def weight_only_matmul(x: Any, weight: Any, scales: Any, zeros: Any = None, bias: Any = None,
                       activation: str | None = None, out: Any = None, *, split: int | None = None,
                       workspace: Workspace | None = None) -> Any:
    """activation(x @ w^T + bias), where w [N, K] are the weight's integers (less their zeros) times their scales.

    x [M, K]: bf16 or fp16, row-major. weight: int8 [N, K]; or uint8 [N, K / 2], two unsigned 4-bit numbers a byte, the
    one of even k low, from which 8 is subtracted, or zeros: integers as numbers of any float type, shaped and strided
    as the scales. scales: [N], or [N, K / group] where group is a multiple of 64 (floats; then they and w are rounded
    to x's dtype). Rows are multiples of 16 bytes. bias [N]. The result [M, N] has x's dtype unless out says otherwise.
    split: programs that divide K (default: chosen from the shape); their parts are summed in a fixed order. workspace:
    reused memory for the parts. Raises LaunchError for what does not fit."""
    ix, iw, iscales, izeros, ibias = infos_of(x, weight, scales, zeros, bias)
    if out is None:
        out = tilejit.empty_like(x, (*ix.shape[:1], *iw.shape[:1]), ix.dtype)
    io = tilejit.array_info(out)
    plan = _plan(*facts_of(ix, iw, iscales, izeros, ibias, io), activation, split, tilejit.multiprocessors(ix.device))
    if plan is not None:
        t, launch = plan
        calls: list[Call] = [(launch, ((weight, x, out), (iw, ix, io), scales, zeros, bias), {})]
        if t.parts:
            meet, parts, _ = meeting(_WHAT, x, t, workspace)
            calls = [(launch, ((weight, x), (iw, ix), meet, scales, zeros, None), {}),
                     sum_parts(parts, out, io, bias, activation, (t.m, t.n), t.parts, GROUP, True)]
        run(*calls)
    return out


@lru_cache(maxsize=1024)
def _plan(x: ArrayInfo, weight: ArrayInfo, scales: ArrayInfo, zeros: ArrayInfo | None, bias: ArrayInfo | None,
          out: ArrayInfo, activation: str | None, split: int | None,
          multiprocessors: int) -> tuple[Way, Launch] | None:
    """Tile, and the launch for weight, x and result; None where that is empty."""
    mx, mw = operand(_WHAT, "x", x), operand(_WHAT, "weight", weight)
    bits = {"int8": 8, "uint8": 4}.get(str(mw.dtype))
    if str(mx.dtype) not in ("bf16", "fp16") or bits is None:
        raise tilejit.LaunchError(f"{_WHAT}: x must be bf16 or fp16 and the weight int8 or uint8 (two numbers of 4 "
                                  f"bits a byte), found {mx.dtype} and {mw.dtype}")
    for name, matrix in (("x", mx), ("weight", mw)):
        if not matrix.rows_first:
            raise tilejit.LaunchError(f"{_WHAT}: {name} must be row-major, found strides {list(matrix.strides)}")
    (m, k), n = mx.shape, mw.shape[0]
    if mw.shape[1] * 8 != k * bits:
        raise tilejit.LaunchError(f"{_WHAT}: x is {list(mx.shape)}, the weight {list(mw.shape)} of {bits} bits: rows "
                                  f"of {k} and {mw.shape[1] * 8 // bits} elements")
    group, run, down, across = _groups(scales, zeros, n, k, bits)
    if activation not in ACTIVATIONS:
        raise tilejit.LaunchError(f"{_WHAT}: activation {activation!r} is not one of {ACTIVATIONS}")
    check_vector(_WHAT, "bias", bias, n)
    mc = result(_WHAT, out, (m, n))
    if 0 in (m, n):
        return None
    t = choose(m, n, k, group, bits, current(x.device, multiprocessors), split)
    parts, bk = t.parts, t.k_bytes // 2
    dw, dx, dc = mw.descriptor(t.m, bk * bits // 8), mx.descriptor(t.n, bk), mc.descriptor(t.n, t.m)
    require_tma(_WHAT, weight=dw, x=dx, out=dc)
    if t.together > 1 and (zeros is not None or bias is not None and not parts):
        run = 1                              # several take registers that those programs have not
    kernel = mixed_kernel.partial(
        M=n, N=m, K=k, down=down, across=across, BM=t.m, BN=t.n, BK=bk, GROUP=GROUP, BITS=bits, STEPS=group // bk,
        RUN=run, PARTS=max(1, parts), ACTIVATION=None if parts else activation, **options(t, bits, mc.dtype.bytes))
    return t, Launch(kernel, (t.programs,), (dw, dx) if parts else (dw, dx, dc))


def _groups(scales: ArrayInfo, zeros: ArrayInfo | None, n: int, k: int, bits: int) -> tuple[int, int, int, int]:
    """Elements of K that share a scale (0: all), scales in 64 bits that may be read at once (else 1), and their
    strides."""
    if scales.dtype not in (tl.bfloat16, tl.float16, tl.float32):
        raise tilejit.LaunchError(f"{_WHAT}: scales must be bf16, fp16 or fp32, found {scales.dtype}")
    if zeros is not None and (bits == 8 or (zeros.shape, zeros.strides) != (scales.shape, scales.strides)
                              or len(scales.shape) != 2):
        raise tilejit.LaunchError(f"{_WHAT}: zeros go with 4-bit weights, and have the shape [N, groups] and the "
                                  "strides of the scales")
    if scales.shape == (n,):
        return 0, 1, scales.strides[0], 0
    groups = scales.shape[1] if len(scales.shape) == 2 else 0
    if scales.shape != (n, groups) or groups < 1 or k % groups or k // groups % 64:
        raise tilejit.LaunchError(f"{_WHAT}: scales must have shape [{n}] or [{n}, groups] with groups of a multiple "
                                  f"of 64 elements of {k}, found {list(scales.shape)}")
    (down, across), run = scales.strides, 8 // scales.dtype.bytes
    words = across == 1 and down % run == 0 and groups % run == 0 and all(
        x.address % 8 == 0 and x.dtype.bytes == scales.dtype.bytes for x in (scales, zeros) if x is not None)
    return k // groups, run if words else 1, down, across
