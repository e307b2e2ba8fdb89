"""Matrix product C = act(A @ B + bias): persistent, operands through TMA descriptors, any major order."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilejit
import tilejit.language as tl


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


#: Largest first: the first that gives every multiprocessor a tile is taken, else the last.
TILES = (Tiles(128, 256, 8, 4), Tiles(128, 128, 8, 5), Tiles(64, 128, 4, 6), Tiles(64, 64, 4, 6))
#: For operands that TMA cannot read: tiles pass through registers, so they are small.
POINTER_TILES = Tiles(64, 64, 8, 2, 64)
ACTIVATIONS = (None, "relu", "gelu", "silu")
_INPUTS = ("bf16", "fp16", "fp8e4nv", "fp8e5", "fp32")


def choose_tiles(m: int, n: int, multiprocessors: int) -> Tiles:
    """The tile shape for an m x n result."""
    for t in TILES:
        if tilejit.cdiv(m, t.m) * tilejit.cdiv(n, t.n) >= multiprocessors:
            return t
    return TILES[-1]


def _rows_first(info: Any, name: str) -> bool:
    """True for a row-major matrix, False for a column-major one."""
    if len(info.shape) != 2:
        raise tilejit.LaunchError(f"matmul: {name} must be a matrix, found shape {info.shape}")
    if info.strides[1] == 1 and info.strides[0] >= info.shape[1]:
        return True
    if info.strides[0] == 1 and info.strides[1] >= info.shape[0]:
        return False
    if info.strides[1] == 1 or info.shape[1] == 1:
        return True
    raise tilejit.LaunchError(f"matmul: {name} has strides {info.strides}: one of them must be 1")


def _descriptor(x: Any, info: Any, rows_first: bool, block: tuple[int, int]) -> tilejit.TensorDescriptor:
    """A descriptor of x, or of its transpose if that is the contiguous one; `block` is (rows, columns) of x."""
    order = (0, 1) if rows_first else (1, 0)
    shape = tuple(info.shape[i] for i in order)
    strides = (info.strides[order[0]] if shape[0] > 1 else shape[1], 1)
    return tilejit.TensorDescriptor(x, shape, strides, tuple(block[i] for i in order))


def matmul(a: Any, b: Any, bias: Any = None, activation: str | None = None, out: Any = None,
           out_dtype: Any = None) -> Any:
    """activation(a @ b + bias) with fp32 sums.

    a [M, K], b [K, N]: bf16, fp16, fp32 (tf32 products) or fp8, each row- or column-major; fp8 and fp32 are
    read fastest with K contiguous in both (a row-major, b column-major). bias [N]. The result has the inputs'
    dtype (bf16 for fp8) unless `out` or `out_dtype` says otherwise. Raises LaunchError for what does not fit."""
    ia, ib = tilejit.array_info(a), tilejit.array_info(b)
    if str(ia.dtype) not in _INPUTS or (ia.dtype != ib.dtype and not (ia.dtype.is_fp8 and ib.dtype.is_fp8)):
        raise tilejit.LaunchError(f"matmul: {ia.dtype} x {ib.dtype} is not supported; use {', '.join(_INPUTS)}")
    if activation not in ACTIVATIONS:
        raise tilejit.LaunchError(f"matmul: activation {activation!r} is not one of {ACTIVATIONS}")
    a_rows, b_rows = _rows_first(ia, "a"), _rows_first(ib, "b")
    (m, k), (k2, n) = ia.shape, ib.shape
    if k != k2:
        raise tilejit.LaunchError(f"matmul: a is {list(ia.shape)}, b is {list(ib.shape)}: {k} != {k2}")
    if out is None:
        dtype = out_dtype or (tl.bfloat16 if ia.dtype.is_fp8 else ia.dtype)
        out = tilejit.empty_like(a, (m, n), dtype)
    ic = tilejit.array_info(out)
    if ic.shape != (m, n) or ic.strides[1] != 1 and n > 1:
        raise tilejit.LaunchError(f"matmul: out must be a row-major [{m}, {n}] matrix, found {ic.shape}")
    sms = tilejit.multiprocessors()
    tiles = choose_tiles(m, n, sms)
    for _ in range(2):
        bk = tiles.k_bytes // ia.dtype.bytes
        descs = (_descriptor(a, ia, a_rows, (tiles.m, bk)), _descriptor(b, ib, b_rows, (bk, tiles.n)),
                 _descriptor(out, ic, True, (tiles.m, tiles.n)))
        in_place = ia.dtype.bytes == 2 or (a_rows and not b_rows)
        if all(d.tma for d in descs) and in_place:
            break
        tiles = POINTER_TILES
    grid = min(sms, tilejit.cdiv(m, tiles.m) * tilejit.cdiv(n, tiles.n))
    matmul_kernel[(grid,)](*descs, bias, m, n, k, BM=tiles.m, BN=tiles.n, BK=bk, GROUP=8, A_ROWS=a_rows, B_ROWS=b_rows,
                           ACTIVATION=activation, num_warps=tiles.num_warps, num_stages=tiles.num_stages)
    return out
