"""Masks that end among the elements of a vector: vectors that they have whole, and elements of the others."""
import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.ir import walk
from tilejit.runtime.compile import schedule, tile_ir


@tilejit.kernel
def scaled(x, y, out, n, begin, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (i >= begin) & (i < n)
    a = tl.load(x + i, inside, other=2.0)
    b = tl.exp2(tl.load(y + i, inside, other=2.0).to(tl.float32))
    tl.store(out + i, (a.to(tl.float32) * b).to(out.dtype.element_ty), inside)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.int8])
@pytest.mark.parametrize("n, begin", [(3001, 0), (1001, 3), (5, 2), (7, 3), (601, 593), (1023, 1022), (9, 7), (1025, 1023)])
def test_values(n, begin, dtype):
    """A run of elements that begins and ends anywhere, whole vectors of it or none; nothing beside it."""
    rng = np.random.default_rng(0)
    x, y, out = rng.integers(-5, 6, n).astype(dtype), rng.integers(-2, 3, n).astype(dtype), np.full(n, 3, dtype)
    args = x, y, out, n, begin
    with tilejit.knobs(target="emulator"):
        tilejit.check(scaled, (tilejit.cdiv(n, 1024),), *args, BLOCK=1024, seeds=[0]).check()
        made = scaled[(tilejit.cdiv(n, 1024),)](*args, BLOCK=1024)
    want = np.full(n, 3, dtype)
    want[begin:] = (x.astype(np.float32) * np.exp2(y.astype(np.float32)))[begin:].astype(dtype)
    np.testing.assert_array_equal(out.astype(np.float32), want.astype(np.float32))
    assert ".v4.b32" in made.ptx if dtype != np.int8 else ".v2.b32" in made.ptx


def test_loads_come_first():
    """No load waits for what is computed of the one ahead of it: the branch of its ends would."""
    made = scaled.compile("*bf16", "*bf16", "*bf16", 3001, 0, BLOCK=1024)
    names = [op.name for op in walk(schedule(tile_ir(made.kernel, made.args, made.options)).body)]
    assert names.index("exp2") > max(i for i, name in enumerate(names) if name == "load")


@tilejit.kernel
def total(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, i < n, other=0)
    tl.store(out + i, v / tl.sum(v, 0), i < n)


def test_threads_that_store_nothing_leave():
    """Ahead of the first load, where no other thread waits for them (`test_values` runs it)."""
    alone = scaled.compile("*bf16", "*bf16", "*bf16", "int32", "int32", BLOCK=1024).ptx
    assert alone.index(" ret;") < alone.index("ld.global") and alone.count(" ret;") == 2
    assert total.compile("*fp32", "*fp32", "int32", BLOCK=1024).ptx.count(" ret;") == 1


@tilejit.kernel
def weighted(x, w, out, n, pitch, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * pitch + i, i < n) * tl.load(w + i, i < n)
    tl.store(out + tl.program_id(0) * pitch + i, v, i < n)


def test_beside_single_elements():
    """Rows that begin anywhere are loaded element by element, lanes side by side, and so are weights beside them."""
    made = weighted.compile("*bf16", "*bf16", "*bf16", 1001, 1001, BLOCK=1024)
    found = [op.attrs["vec"] for op in walk(tile_ir(made.kernel, made.args, made.options).body)
             if op.name in ("load", "store")]
    assert found == [1, 1, 1]
