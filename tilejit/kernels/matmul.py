"""Matrix product C = act(A @ B + bias): persistent, operands through TMA descriptors, any major order."""
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels.copy import copy_matrix, pitched
from tilejit.kernels.streamk import matmul_streamk

#: dtype, shape, strides (elements), device, and whether the address is a multiple of 16.
Facts = tuple[Any, tuple[int, ...], tuple[int, ...], int, bool]


@tilejit.kernel(do_not_specialize=("M", "N", "K"))
def matmul_kernel(a_desc, b_desc, c_desc, bias, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                  GROUP: tl.constexpr, A_ROWS: tl.constexpr, B_ROWS: tl.constexpr, ACTIVATION: tl.constexpr):
    """Each program walks tiles in groups of GROUP tile rows, so that a wave's operands stay in L2.

    A_ROWS: a_desc sees A as [M, K], else as its transpose [K, M]. B_ROWS: b_desc sees [K, N], else [N, K]."""
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
        first = tile // (GROUP * tiles_n) * GROUP
        height = tl.minimum(tiles_m - first, GROUP)
        rest = tile % (GROUP * tiles_n)
        m = (first + rest % height) * BM
        n = rest // height * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, tl.cdiv(K, BK)):
            if A_ROWS:
                a = a_desc.load([m, k * BK])
            else:
                a = a_desc.load([k * BK, m]).T
            if B_ROWS:
                b = b_desc.load([k * BK, n])
            else:
                b = b_desc.load([n, k * BK]).T
            acc = tl.dot(a, b, acc)
        if bias is not None:
            cols = n + tl.arange(0, BN)
            acc = acc + tl.load(bias + cols, cols < N, other=0.0).to(tl.float32)[None, :]
        if ACTIVATION == "relu":
            acc = tl.maximum(acc, 0.0)
        elif ACTIVATION == "gelu":
            acc = 0.5 * acc * (1.0 + tl.erf(acc * 0.7071067811865476))
        elif ACTIVATION == "silu":
            acc = acc * tl.sigmoid(acc)
        c_desc.store([m, n], acc.to(c_desc.dtype))


@dataclass(frozen=True)
class Tiles:
    """A tile shape of a program of `ctas` CTAs, and how it is run; `k_bytes`: bytes of a row of K in a block.

    `speed`: products in the loop over K, of the tensor cores' most; `ragged`: the same where rows of operands do not
    start at multiples of 32 bytes, so that TMA reads more sectors of L2 than it needs (both measured on an H200)."""

    m: int
    n: int
    num_warps: int
    ctas: int = 1
    speed: float = 1.0
    ragged: float = 1.0
    k_bytes: int = 128


#: The larger of two equals first. Those of 4 warps are run by two groups of consumers in turn.
TILES = (Tiles(128, 256, 8, 1, 1.0, 0.64), Tiles(256, 256, 8, 2, 0.98, 0.8), Tiles(128, 128, 4, 1, 0.93, 0.6),
         Tiles(64, 256, 4, 1, 0.92, 0.6), Tiles(64, 128, 4, 1, 0.75, 0.5), Tiles(64, 64, 4, 1, 0.5, 0.4))
#: Those of a single CTA, for chips without clusters.
SINGLE_TILES = tuple(t for t in TILES if t.ctas == 1)
#: For operands that TMA cannot read: tiles pass through registers, so they are small.
POINTER_TILES = Tiles(64, 64, 8, k_bytes=64)
#: Multiplications from which on copying an operand that TMA cannot read costs less than reading it as it is.
COPIED_FROM = 2 ** 27
#: Blocks of K from which on tiles that leave half of the multiprocessors idle are divided between them.
DEEP_FROM = 128
ACTIVATIONS = (None, "relu", "gelu", "silu")
_INPUTS = ("bf16", "fp16", "fp8e4nv", "fp8e5", "fp32")


def choose_tiles(m: int, n: int, blocks: int, multiprocessors: int, ragged: bool = False,
                 tiles: tuple[Tiles, ...] = TILES) -> Tiles:
    """The tiles with the least estimated time for an m x n result and `blocks` blocks of K.

    In cycles of a multiprocessor: a block takes 1 per 32 results at full speed; storing a tile takes 1 per 20
    results and a round trip, which a second group of consumers hides. All programs run at once, in waves."""
    def cycles(t: Tiles) -> float:
        waves = tilejit.cdiv(tilejit.cdiv(m, t.m) * tilejit.cdiv(n, t.n), multiprocessors // t.ctas)
        mine = t.m * t.n / t.ctas
        store = 500 if t.num_warps == 4 and waves > 1 else 1000 + mine / 20
        return waves * (blocks * mine / 32 / (t.ragged if ragged else t.speed) + store)

    return min(tiles, key=cycles)


def _rows_first(name: str, facts: Facts) -> bool:
    """True for a row-major matrix, False for a column-major one."""
    _, shape, strides = facts[:3]
    if len(shape) != 2:
        raise tilejit.LaunchError(f"matmul: {name} must be a matrix, found shape {shape}")
    if strides[1] == 1 and strides[0] >= shape[1]:
        return True
    if strides[0] == 1 and strides[1] >= shape[0]:
        return False
    if strides[1] == 1 or shape[1] == 1:
        return True
    raise tilejit.LaunchError(f"matmul: {name} has strides {strides}: one of them must be 1")


def _descriptor(x: Facts, rows_first: bool, rows: int, columns: int) -> tilejit.TensorDescriptor:
    """Blocks of rows x columns of a matrix, or of its transpose if that is the contiguous one."""
    dtype, (m, n), (down, across), device, aligned = x
    info = tilejit.ArrayInfo(0 if aligned else 1, dtype, (m, n), (down, across), device)
    if rows_first:
        return tilejit.TensorDescriptor.template(info, (m, n), (down if m > 1 else n, 1), (rows, columns))
    return tilejit.TensorDescriptor.template(info, (n, m), (across if n > 1 else m, 1), (columns, rows))


def _facts(info: tilejit.ArrayInfo) -> Facts:
    """All but the address, of which TMA only needs to know whether it is a multiple of 16."""
    return (*info[1:], info.address & 15 == 0)


@lru_cache(maxsize=1024)
def _orders(a: Facts, b: Facts, bias: Facts | None, c: Facts, activation: str | None) -> tuple[bool, bool]:
    """Whether a and b are row-major. Raises LaunchError for arrays that do not go together."""
    (a_dtype, a_shape), (b_dtype, b_shape), (c_shape, c_strides) = a[:2], b[:2], c[1:3]
    if str(a_dtype) not in _INPUTS or (a_dtype != b_dtype and not (a_dtype.is_fp8 and b_dtype.is_fp8)):
        raise tilejit.LaunchError(f"matmul: {a_dtype} x {b_dtype} is not supported; use {', '.join(_INPUTS)}")
    orders = _rows_first("a", a), _rows_first("b", b)
    if a_shape[1] != b_shape[0]:
        raise tilejit.LaunchError(f"matmul: a is {list(a_shape)}, b is {list(b_shape)}: {a_shape[1]} != {b_shape[0]}")
    m, n = a_shape[0], b_shape[1]
    if activation not in ACTIVATIONS:
        raise tilejit.LaunchError(f"matmul: activation {activation!r} is not one of {ACTIVATIONS}")
    if bias is not None and bias[1] != (n,):
        raise tilejit.LaunchError(f"matmul: bias must have shape ({n},), found {bias[1]}")
    if c_shape != (m, n) or c_strides[1] != 1 and n > 1:
        raise tilejit.LaunchError(f"matmul: out must be a row-major [{m}, {n}] matrix, found {c_shape}")
    return orders


@lru_cache(maxsize=1024)
def _launch(a: Facts, b: Facts, bias: Facts | None, c: Facts, activation: str | None, sms: int,
            chip: str = "sm_90a") -> tuple[
        tuple[int], tuple[tilejit.TensorDescriptor, ...], tuple[int, int, int], dict[str, Any]]:
    """Grid, descriptors to put over the arrays, M, N, K, and constants of one problem."""
    a_rows, b_rows = _orders(a, b, bias, c, activation)
    dtype, (m, k), n = a[0], a[1], b[1][1]
    # wgmma reads 16-bit operands in either order, 8- and 32-bit ones with K contiguous only.
    in_place = dtype.bytes == 2 or (a_rows and not b_rows)
    for tiles in (choose_tiles(m, n, tilejit.cdiv(k * dtype.bytes, 128), sms, _ragged(a) or _ragged(b),
                               TILES if chip == "sm_90a" else SINGLE_TILES),
                  POINTER_TILES) if in_place else (POINTER_TILES,):
        bk = tiles.k_bytes // dtype.bytes
        descriptors = (_descriptor(a, a_rows, tiles.m, bk), _descriptor(b, b_rows, bk, tiles.n),
                       _descriptor(c, True, tiles.m, tiles.n))
        if all(d.tma for d in descriptors):
            break
    grid = min(sms // tiles.ctas, tilejit.cdiv(m, tiles.m) * tilejit.cdiv(n, tiles.n))
    return (grid,), descriptors, (m, n, k), dict(
        BM=tiles.m, BN=tiles.n, BK=bk, GROUP=16 // tiles.ctas, A_ROWS=a_rows, B_ROWS=b_rows, ACTIVATION=activation,
        num_warps=tiles.num_warps, num_ctas=tiles.ctas)


def _ragged(x: Facts) -> bool:
    """Whether rows (columns, of a column-major matrix) start elsewhere than at multiples of 32 bytes."""
    return max(x[2]) * x[0].bytes % 32 != 0


def matmul(a: Any, b: Any, bias: Any = None, activation: str | None = None, out: Any = None,
           out_dtype: Any = None) -> Any:
    """activation(a @ b + bias) with fp32 sums.

    a [M, K], b [K, N]: bf16, fp16, fp32 (tf32 products) or fp8, each row- or column-major; fp8 and fp32 are
    read fastest with K contiguous in both (a row-major, b column-major). bias [N]. The result has the inputs'
    dtype (bf16 for fp8) unless `out` or `out_dtype` says otherwise. Arrays whose rows do not start at multiples of 16
    bytes, and fp8 or fp32 without contiguous K, are copied first (small ones pass through registers instead). Few tiles
    with a deep K are handed to `matmul_streamk`, whose sums have no fixed order.
    Raises LaunchError for what does not fit."""
    ia, ib = tilejit.array_info(a), tilejit.array_info(b)
    if out is None:
        if len(ia.shape) != 2 or len(ib.shape) != 2:
            raise tilejit.LaunchError(f"matmul: a and b must be matrices, found shapes {ia.shape} and {ib.shape}")
        out = tilejit.empty_like(a, (ia.shape[0], ib.shape[1]),
                                 out_dtype or (tl.bfloat16 if ia.dtype.is_fp8 else ia.dtype))
    ic = tilejit.array_info(out)
    bias_facts = None if bias is None else _facts(tilejit.array_info(bias))
    orders = _orders(_facts(ia), _facts(ib), bias_facts, _facts(ic), activation)
    base_a, base_b, target, target_info = a, b, out, ic
    if ia.shape[0] * ia.shape[1] * ib.shape[1] >= COPIED_FROM:
        base_a, ia = _readable(a, ia, orders[0], True)
        base_b, ib = _readable(b, ib, orders[1], False)
        if not _pitched(_facts(ic)):
            target, target_info = pitched(out, ic, True)
    if base_a is a and base_b is b and target is out and _deep(_facts(ia), _facts(ib), tilejit.multiprocessors()):
        return matmul_streamk(a, b, bias, activation, out)
    grid, (da, db, dc), sizes, constants = _launch(
        _facts(ia), _facts(ib), bias_facts, _facts(target_info), activation, tilejit.multiprocessors(),
        tilejit.chip())
    matmul_kernel[grid](da.over(base_a, ia), db.over(base_b, ib), dc.over(target, target_info), bias, *sizes,
                        **constants)
    if target is not out:
        copy_matrix(target, target_info, out, ic)
    return out


@lru_cache(maxsize=1024)
def _deep(a: Facts, b: Facts, sms: int) -> bool:
    """Whether a product has so few tiles, and so deep ones, that dividing K pays."""
    (m, k), n, size = a[1], b[1][1], a[0].bytes
    in_place = size == 2 or (_rows_first("a", a) and not _rows_first("b", b))
    blocks = tilejit.cdiv(k * size, 128)
    if blocks < DEEP_FROM or not in_place or not (_pitched(a) and _pitched(b)):
        return False
    t = choose_tiles(m, n, blocks, sms, _ragged(a) or _ragged(b))
    return 2 * t.ctas * tilejit.cdiv(m, t.m) * tilejit.cdiv(n, t.n) <= sms


def _pitched(x: Facts) -> bool:
    """Whether TMA can read and write the matrix: lines at multiples of 16 bytes."""
    return x[4] and all(s == 1 or s * x[0].bytes % 16 == 0 for s in x[2])


def _readable(x: Any, info: tilejit.ArrayInfo, rows_first: bool, k_last: bool) -> tuple[Any, tilejit.ArrayInfo]:
    """The operand itself, or a copy of it in an order and with lines that the tensor cores read through TMA."""
    wanted = rows_first if info.dtype.bytes == 2 else k_last
    if _pitched(_facts(info)) and wanted == rows_first:
        return x, info
    base, copy = pitched(x, info, wanted)
    copy_matrix(x, info, base, copy)
    return base, copy
