"""Matrix product C = act(A @ B + bias): persistent, operands through TMA descriptors, any major order."""
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tilejit
import tilejit.language as tl

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
def _launch(a: Facts, b: Facts, bias: Facts | None, c: Facts, activation: str | None, sms: int) -> tuple[
        tuple[int], tuple[tilejit.TensorDescriptor, ...], tuple[int, int, int], dict[str, Any]]:
    """Grid, descriptors to put over the arrays, M, N, K, and constants of one problem."""
    a_rows, b_rows = _orders(a, b, bias, c, activation)
    dtype, (m, k), n = a[0], a[1], b[1][1]
    # wgmma reads 16-bit operands in either order, 8- and 32-bit ones with K contiguous only.
    in_place = dtype.bytes == 2 or (a_rows and not b_rows)
    for tiles in (choose_tiles(m, n, sms), POINTER_TILES) if in_place else (POINTER_TILES,):
        bk = tiles.k_bytes // dtype.bytes
        descriptors = (_descriptor(a, a_rows, tiles.m, bk), _descriptor(b, b_rows, bk, tiles.n),
                       _descriptor(c, True, tiles.m, tiles.n))
        if all(d.tma for d in descriptors):
            break
    grid = min(sms, tilejit.cdiv(m, tiles.m) * tilejit.cdiv(n, tiles.n))
    return (grid,), descriptors, (m, n, k), dict(
        BM=tiles.m, BN=tiles.n, BK=bk, GROUP=16, A_ROWS=a_rows, B_ROWS=b_rows, ACTIVATION=activation,
        num_warps=tiles.num_warps, num_stages=tiles.num_stages)


def matmul(a: Any, b: Any, bias: Any = None, activation: str | None = None, out: Any = None,
           out_dtype: Any = None) -> Any:
    """activation(a @ b + bias) with fp32 sums.

    a [M, K], b [K, N]: bf16, fp16, fp32 (tf32 products) or fp8, each row- or column-major; fp8 and fp32 are
    read fastest with K contiguous in both (a row-major, b column-major). bias [N]. The result has the inputs'
    dtype (bf16 for fp8) unless `out` or `out_dtype` says otherwise. Raises LaunchError for what does not fit."""
    ia, ib = tilejit.array_info(a), tilejit.array_info(b)
    if out is None:
        if len(ia.shape) != 2 or len(ib.shape) != 2:
            raise tilejit.LaunchError(f"matmul: a and b must be matrices, found shapes {ia.shape} and {ib.shape}")
        out = tilejit.empty_like(a, (ia.shape[0], ib.shape[1]),
                                 out_dtype or (tl.bfloat16 if ia.dtype.is_fp8 else ia.dtype))
    ic = tilejit.array_info(out)
    grid, (da, db, dc), sizes, constants = _launch(
        _facts(ia), _facts(ib), None if bias is None else _facts(tilejit.array_info(bias)), _facts(ic), activation,
        tilejit.multiprocessors())
    matmul_kernel[grid](da.over(a, ia), db.over(b, ib), dc.over(out, ic), bias, *sizes, **constants)
    return out
