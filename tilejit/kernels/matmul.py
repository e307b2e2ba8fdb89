"""Matrix product C = act(A @ B + bias): persistent, operands through TMA descriptors, any major order."""
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tilejit
import tilejit.language as tl

#: dtype, shape and strides (elements) of an array.
Facts = tuple[Any, tuple[int, ...], tuple[int, ...]]


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
    """A tile shape and how it is run; `k_bytes` is the K extent of a block, in bytes of an operand's row."""

    m: int
    n: int
    num_warps: int
    num_stages: int
    k_bytes: int = 128


#: Largest first.
TILES = (Tiles(128, 256, 8, 4), Tiles(128, 128, 8, 5), Tiles(64, 128, 4, 6), Tiles(64, 64, 4, 6))
#: For operands that TMA cannot read: tiles pass through registers, so they are small.
POINTER_TILES = Tiles(64, 64, 8, 2, 64)
ACTIVATIONS = (None, "relu", "gelu", "silu")
_INPUTS = ("bf16", "fp16", "fp8e4nv", "fp8e5", "fp32")


@lru_cache(maxsize=1024)
def choose_tiles(m: int, n: int, multiprocessors: int) -> Tiles:
    """The tile shape for an m x n result: the one with the least time, the larger of two equals.

    Every multiprocessor works on one tile at a time, so all tiles take `waves` turns; a turn is as long as its
    operands take to arrive from L2, which goes with (rows + columns) of the tile."""
    def turns(t: Tiles) -> int:
        waves = tilejit.cdiv(tilejit.cdiv(m, t.m) * tilejit.cdiv(n, t.n), multiprocessors)
        return waves * (t.m + t.n)

    return min(TILES, key=turns)


@lru_cache(maxsize=1024)
def _orders(a: Facts, b: Facts) -> tuple[bool, bool]:
    """Whether a and b are row-major. Raises LaunchError for operands that do not go together."""
    (a_dtype, a_shape, _), (b_dtype, b_shape, _) = a, b
    if str(a_dtype) not in _INPUTS or (a_dtype != b_dtype and not (a_dtype.is_fp8 and b_dtype.is_fp8)):
        raise tilejit.LaunchError(f"matmul: {a_dtype} x {b_dtype} is not supported; use {', '.join(_INPUTS)}")
    orders = _rows_first("a", a), _rows_first("b", b)
    if a_shape[1] != b_shape[0]:
        raise tilejit.LaunchError(f"matmul: a is {list(a_shape)}, b is {list(b_shape)}: {a_shape[1]} != {b_shape[0]}")
    return orders


def _rows_first(name: str, facts: Facts) -> bool:
    """True for a row-major matrix, False for a column-major one."""
    _, shape, strides = facts
    if len(shape) != 2:
        raise tilejit.LaunchError(f"matmul: {name} must be a matrix, found shape {shape}")
    if strides[1] == 1 and strides[0] >= shape[1]:
        return True
    if strides[0] == 1 and strides[1] >= shape[0]:
        return False
    if strides[1] == 1 or shape[1] == 1:
        return True
    raise tilejit.LaunchError(f"matmul: {name} has strides {strides}: one of them must be 1")


def _descriptor(x: Any, facts: Facts, rows_first: bool, rows: int, columns: int) -> tilejit.TensorDescriptor:
    """A descriptor of x in blocks of rows x columns, or of its transpose if that is the contiguous one."""
    _, (m, n), (down, across) = facts
    if rows_first:
        return tilejit.TensorDescriptor(x, (m, n), (down if m > 1 else n, 1), (rows, columns))
    return tilejit.TensorDescriptor(x, (n, m), (across if n > 1 else m, 1), (columns, rows))


def matmul(a: Any, b: Any, bias: Any = None, activation: str | None = None, out: Any = None,
           out_dtype: Any = None) -> Any:
    """activation(a @ b + bias) with fp32 sums.

    a [M, K], b [K, N]: bf16, fp16, fp32 (tf32 products) or fp8, each row- or column-major; fp8 and fp32 are
    read fastest with K contiguous in both (a row-major, b column-major). bias [N]. The result has the inputs'
    dtype (bf16 for fp8) unless `out` or `out_dtype` says otherwise. Raises LaunchError for what does not fit."""
    ia, ib = tilejit.array_info(a), tilejit.array_info(b)
    dtype = ia.dtype
    fa, fb = (dtype, ia.shape, ia.strides), (ib.dtype, ib.shape, ib.strides)
    a_rows, b_rows = _orders(fa, fb)
    if activation not in ACTIVATIONS:
        raise tilejit.LaunchError(f"matmul: activation {activation!r} is not one of {ACTIVATIONS}")
    (m, k), n = ia.shape, ib.shape[1]
    if bias is not None and tilejit.array_info(bias).shape != (n,):
        raise tilejit.LaunchError(f"matmul: bias must have shape ({n},), found {tilejit.array_info(bias).shape}")
    if out is None:
        out = tilejit.empty_like(a, (m, n), out_dtype or (tl.bfloat16 if dtype.is_fp8 else dtype))
    ic = tilejit.array_info(out)
    if ic.shape != (m, n) or ic.strides[1] != 1 and n > 1:
        raise tilejit.LaunchError(f"matmul: out must be a row-major [{m}, {n}] matrix, found {ic.shape}")
    fc = (ic.dtype, ic.shape, ic.strides)
    sms = tilejit.multiprocessors()
    # wgmma reads 16-bit operands in either order, 8- and 32-bit ones with K contiguous only.
    in_place = dtype.bytes == 2 or (a_rows and not b_rows)
    for tiles in (choose_tiles(m, n, sms), POINTER_TILES) if in_place else (POINTER_TILES,):
        bk = tiles.k_bytes // dtype.bytes
        descs = (_descriptor(a, fa, a_rows, tiles.m, bk), _descriptor(b, fb, b_rows, bk, tiles.n),
                 _descriptor(out, fc, True, tiles.m, tiles.n))
        if all(d.tma for d in descs):
            break
    grid = min(sms, tilejit.cdiv(m, tiles.m) * tilejit.cdiv(n, tiles.n))
    matmul_kernel[(grid,)](*descs, bias, m, n, k, BM=tiles.m, BN=tiles.n, BK=bk, GROUP=8, A_ROWS=a_rows, B_ROWS=b_rows,
                           ACTIVATION=activation, num_warps=tiles.num_warps, num_stages=tiles.num_stages)
    return out
