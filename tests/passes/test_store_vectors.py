"""Accumulators that are stored through pointers: whole 16-byte vectors, lanes side by side, counted by the layouts."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.ir import walk
from tilejit.ir.text import parse_function
from tilejit.runtime.compile import tile_ir


@tilejit.kernel
def product(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, COLUMNS: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + m[:, None] * K + k[None, :])
    y = tl.load(b + n[:, None] * K + k[None, :])
    z = tl.dot(x, y.T)
    if COLUMNS:
        tl.store(c + m[:, None] + n[None, :] * M, z.to(c.dtype.element_ty))
    else:
        tl.store(c + m[:, None] * N + n[None, :], z.to(c.dtype.element_ty))


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("m, n, warps", [(64, 64, 4), (128, 128, 4), (128, 64, 8), (32, 64, 2), (64, 32, 1)])
def test_sectors(m, n, warps, dtype, columns):
    """Every instruction of a warp writes 512 bytes in 16 sectors; four lanes write 64 bytes side by side, or all that
    the warp has of a column (16 rows)."""
    k, size = 32, np.dtype(dtype).itemsize
    run = min(64, 16 * size) if columns else 64
    a, b = np.zeros((m, k), ml_dtypes.bfloat16), np.zeros((n, k), ml_dtypes.bfloat16)
    made = product.compile(a, b, np.zeros((m, n), dtype), m, n, k, columns, num_warps=warps)
    (store,) = [op for op in walk(tile_ir(made.kernel, made.args, made.options).body) if op.name == "store"]
    assert store.attrs["vec"] * size == 16 and "st.global.v4" in made.ptx
    table = store.operands[0].type.layout.table()
    address = (table[..., 0] + table[..., 1] * m if columns else table[..., 0] * n + table[..., 1]) * size
    for warp in range(warps):
        for first in range(0, address.shape[2], store.attrs["vec"]):
            touched = (address[warp, :, first, None] + np.arange(16)).ravel()
            assert len(set(touched // 32)) == 16 and len(set(touched // run)) == 512 // run


@tilejit.kernel
def turned(x, sxm, sxn, z, szm, szn, M: tl.constexpr, N: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    tl.store(z + m[:, None] * szm + n[None, :] * szn, tl.load(x + m[:, None] * sxm + n[None, :] * sxn))


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("m, n, warps", [(64, 64, 4), (128, 128, 4), (64, 128, 8), (32, 64, 1)])
def test_sectors_of_transposed_tiles(m, n, warps, dtype):
    """Loads and stores of whole 16-byte vectors, and 16 sectors an instruction, whichever of them goes along columns."""
    size = np.dtype(dtype).itemsize
    warps *= 2 if m * n * size > 1 << 16 else 1              # more than 128 elements of 8 bytes a thread spill
    x = np.arange(m * n).reshape(m, n).astype(dtype)
    z, back = np.zeros((n, m), dtype), np.zeros((m, n), dtype)
    with tilejit.knobs(target="emulator"):
        made = turned[(1,)](x, n, 1, z, 1, m, m, n, num_warps=warps)
        turned[(1,)](z, 1, m, back, n, 1, m, n, num_warps=warps)
    assert np.array_equal(z, x.T) and np.array_equal(back, x)
    for op in [op for op in walk(tile_ir(made.kernel, made.args, made.options).body) if op.name in ("load", "store")]:
        assert op.attrs["vec"] * size == 16
        table = op.operands[0].type.layout.table()
        address = (table[..., 0] * n + table[..., 1] if op.name == "load" else table[..., 1] * m + table[..., 0]) * size
        for first in range(0, address.shape[2], op.attrs["vec"]):
            touched = address[:, :, first, None] + np.arange(16)
            assert all(len(set((warp // 32).ravel())) == 16 for warp in touched)


@tilejit.kernel
def square(x, z, m, n, R: tl.constexpr):
    i, j = tl.arange(0, R), tl.arange(0, R)
    v = tl.load(x + i[:, None] * n + j[None, :], mask=(i[:, None] < m) & (j[None, :] < n))
    tl.store(z + j[:, None] * m + i[None, :], tl.trans(v), mask=(j[:, None] < n) & (i[None, :] < m))


@pytest.mark.parametrize("m, n", [(33, 40), (40, 33), (33, 31)])
def test_each_side_of_a_square_transpose_has_its_own_width(m, n):
    """Vectors where rows allow them, and whole sectors on either side."""
    x, z = np.arange(m * n, dtype=np.float32).reshape(m, n), np.zeros((n, m), np.float32)
    with tilejit.knobs(target="emulator"):
        made = square[(1,)](x, z, m, n, 64)
    assert np.array_equal(z, x.T)
    for op in [op for op in walk(tile_ir(made.kernel, made.args, made.options).body) if op.name in ("load", "store")]:
        assert op.attrs["vec"] == (4 if (n if op.name == "load" else m) == 40 else 1)
        table = op.operands[0].type.layout.table()[0, :, 0]
        assert len(set(map(tuple, (table // (1, 8)).tolist()))) == 4 * op.attrs["vec"]


def test_values_arrive():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((64, 32)).astype(ml_dtypes.bfloat16) for _ in range(2))
    want = a.astype(np.float32) @ b.astype(np.float32).T
    for dtype in (np.float32, ml_dtypes.bfloat16):
        for columns in (False, True):
            c = np.zeros((64, 64), dtype)
            with tilejit.knobs(target="emulator"):
                product[(1,)](a, b, c, 64, 64, 32, columns)
            assert np.allclose(c.T if columns else c, want.astype(dtype).astype(np.float32), rtol=1e-2, atol=1e-2)


@tilejit.kernel
def widened(x, y, z, n, BLOCK: tl.constexpr):
    """What is loaded in 2 bytes is stored in 2 and in 4 or 8."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    tl.store(y + at, v.to(y.dtype.element_ty) * 2, mask=at < n)
    tl.store(z + at, v + 1, mask=at < n)


@pytest.mark.parametrize("wide, elements", [(np.float32, 4), (np.float64, 2), (np.float16, 8)])
def test_wide_elements_fill_sectors_beside_narrow_ones(wide, elements):
    """A thread holds so many neighbours as one store of the widest ones takes, so that lanes write side by side."""
    x = np.arange(4096).astype(np.float16)
    y, z = np.zeros(4096, wide), np.zeros(4096, np.float16)
    with tilejit.knobs(target="emulator"):
        made = widened[(2,)](x, y, z, 4000, 2048)
    assert np.array_equal(y[:4000], x[:4000].astype(wide) * 2) and np.array_equal(z[:4000], x[:4000] + 1)
    assert not y[4000:].any() and not z[4000:].any()
    accesses = [op for op in walk(tile_ir(made.kernel, made.args, made.options).body) if op.name in ("load", "store")]
    assert {op.attrs["vec"] for op in accesses} == {elements}
    assert {op.operands[0].type.layout.contiguous_registers(0) for op in accesses} == {elements}


def test_registers_of_scanned_tiles():
    """Along the rows that lanes read side by side they stay so; down columns a thread has neighbours."""
    @tilejit.kernel
    def scanned(x, y, ROWS: tl.constexpr, COLUMNS: tl.constexpr, AXIS: tl.constexpr):
        at = tl.arange(0, ROWS)[:, None] * 4096 + tl.arange(0, COLUMNS)[None, :]
        tl.store(y + at, tl.cumsum(tl.load(x + at), axis=AXIS))

    def layout(axis, **sizes):
        made = scanned.compile("*fp32", "*fp32", AXIS=axis, num_warps=1, **sizes)
        fn = parse_function(made.scheduled)
        return next(op.result.type.layout for op in walk(fn.body) if op.name == "scan")

    assert layout(0, ROWS=64, COLUMNS=32).bases_of("register")[2:] == ((1, 0), (2, 0), (4, 0), (8, 0))
    assert layout(1, ROWS=1, COLUMNS=512).bases_of("lane")[0] == (0, 4)


@tilejit.kernel
def gated(a, g, b, c, n, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, i, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    z = tl.zeros((M, N), tl.float32)
    for t in range(n):
        at = m[:, None] + (t * K + k)[None, :] * M
        x = tl.load(a + at) * tl.exp2(tl.load(g + at))
        y = tl.load(b + (t * K + k)[:, None] * N + i[None, :])
        z = tl.dot(x.to(tl.bfloat16), y, z)
    tl.store(c + m[:, None] * N + i[None, :], z)


@pytest.mark.parametrize("m, k, warps", [(32, 64, 1), (64, 64, 4), (32, 16, 1)])
def test_copies_of_whole_sectors(m, k, warps):
    """Beside narrower elements fp32 was copied 16 bytes of each 32 at a time, so that every sector was moved twice."""
    a, g = np.zeros((k, m), ml_dtypes.bfloat16), np.zeros((k, m), np.float32)
    made = gated.compile(a, g, a, np.zeros((m, 32), np.float32), 7, m, 32, k, num_warps=warps, pointer_tma=False)
    loads = [op for op in walk(tile_ir(made.kernel, made.args, made.options).body) if "copy" in op.attrs]
    assert sorted(op.result.tile.elem.bits for op in loads) == [16, 16, 32]
    for op in loads:
        size, (fast, slow) = op.result.tile.elem.bits // 8, op.attrs["copy"]
        at = op.operands[0].tile.layout.table()[0, :, 0]
        address = (at[:, fast] + at[:, slow] * op.result.tile.shape[fast]) * size
        assert op.attrs["vec"] * size == 16 and len({*(address // 32).tolist()}) == 16, "two lanes a sector"


@tilejit.kernel
def both_sums(a_desc, b_desc, sums, out):
    """Fragments of two warpgroups: as integers in an order in which a warp adds 128 contiguous bytes, and as they are
    in one of 16 contiguous bytes a thread."""
    z = tl.dot(a_desc.load([0, 0]), b_desc.load([0, 0]).T)
    parts = z.reshape([1, 4, 2, 8, 2, 4, 4, 2])
    at = tl.arange(0, 4096)
    tl.atomic_add(sums + at, parts.to(tl.int32).permute(5, 2, 7, 0, 4, 1, 3, 6).reshape([4096]), sem="relaxed")
    tl.store(out + at, parts.permute(5, 0, 4, 1, 3, 6, 2, 7).reshape([4096]))


def test_additions_keep_an_order_that_suits_them():
    """Whatever others of their shape take: integers are added one by one."""
    desc = "desc<bf16[64x64]>"
    made = both_sums.compile(desc, desc, "*int32", "*fp32", num_warps=8)
    assert "convert" not in made.report() and "st.global.v4" in made.ptx
