"""Atomics through descriptors (evaluator and emulator), squeezed blocks, and release after asynchronous stores."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.errors import CompilationError

desc = tilejit.TensorDescriptor.from_tensor


@pytest.fixture(autouse=True, params=["evaluator", "emulator"])
def target(request):
    """Where the test's launches run."""
    with tilejit.knobs(target=request.param):
        yield request.param


@tilejit.kernel
def combine(src, dst, KIND: tl.constexpr):
    x = src.load([tl.program_id(0) * 16, 0])
    if KIND == "add":
        dst.atomic_add([4, 0], x)
    elif KIND == "min":
        dst.atomic_min([4, 0], x)
    elif KIND == "max":
        dst.atomic_max([4, 0], x)
    elif KIND == "and":
        dst.atomic_and([4, 0], x)
    elif KIND == "or":
        dst.atomic_or([4, 0], x)
    else:
        dst.atomic_xor([4, 0], x)


FOLDS = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
         "xor": np.bitwise_xor}


@pytest.mark.parametrize("kind, dtype", [
    ("add", np.float32), ("add", ml_dtypes.bfloat16), ("add", np.int32), ("min", np.float16), ("max", np.int32),
    ("min", np.uint32), ("and", np.int32), ("or", np.uint32), ("xor", np.int64)])
@pytest.mark.parametrize("tma", [True, False])
def test_atomics(kind, dtype, tma):
    """Three programs combine blocks that hang over the end; through TMA, and through pointers."""
    if not tma and (np.dtype(dtype).itemsize < 4 or kind == "and"):
        pytest.skip("pointer atomics take 32- and 64-bit elements")
    rng = np.random.default_rng(0)
    width = 64 if tma else 66                     # rows of 66 elements have strides that TMA cannot take
    x = rng.integers(0, 100, (48, width)).astype(dtype)[:, :64]
    out = rng.integers(0, 100, (14, width)).astype(dtype)[:, :64]
    want = out.copy()
    for block in np.split(x, 3):
        want[4:] = FOLDS[kind](want[4:], block[:10])
    combine[(3,)](desc(x, (16, 64)), desc(out, (16, 64)), kind)
    assert np.array_equal(out, want)


def test_atomics_of_other_types():
    x = np.zeros((16, 64), np.float32)
    with pytest.raises(CompilationError, match="atomic_xor takes int32, uint32, int64, uint64; found fp32"):
        combine[(1,)](desc(x, (16, 64)), desc(x, (16, 64)), "xor")


@tilejit.kernel
def handed_on(src, dst, flags, partial, BLOCK: tl.constexpr):
    """Program i adds its block after program i - 1; the last one reads what all of them made."""
    i = tl.program_id(0)
    x = src.load([i * 16, 0])
    while tl.atomic_cas(flags, i, i, sem="acquire") != i:
        pass
    if i == 0:
        dst.store([0, 0], x)
    else:
        dst.atomic_add([0, 0], x)
    tl.atomic_xchg(flags, i + 1, sem="release")
    if i == tl.num_programs(0) - 1:
        at = tl.arange(0, 16)[:, None] * 64 + tl.arange(0, 64)[None, :]
        tl.store(flags + 16 + at, tl.load(partial + at).to(tl.int32))


def test_release_after_tma():
    """A release comes after the writes of TMA before it, so the next program (and the last's reads) see them."""
    x = np.random.default_rng(1).integers(0, 100, (64, 64)).astype(np.float32)
    sums, flags = np.full((16, 64), np.nan, np.float32), np.zeros(16 + 1024, np.int32)
    handed_on[(4,)](desc(x, (16, 64)), desc(sums, (16, 64)), flags, sums, 64)
    assert np.array_equal(flags[16:].reshape(16, 64), x.reshape(4, 16, 64).sum(0)) and flags[0] == 4


def test_release_waits_for_the_bulk_group():
    """Between the last TMA write and the atomic that releases: wait_group 0, not .read."""
    text = handed_on.compile("desc<fp32[16x64]>", "desc<fp32[16x64]>", "*int32", "*fp32", BLOCK=64).ptx
    lines = [line.strip() for line in text.splitlines()]
    release = next(i for i, line in enumerate(lines) if "atom.global.gpu.release" in line)
    waits = [i for i, line in enumerate(lines[:release]) if "wait_group" in line and ".read" not in line]
    stores = [i for i, line in enumerate(lines[:release]) if "reduce.async" in line]
    assert waits and stores and max(stores) < max(waits) < release


@tilejit.kernel
def squeezed(a, b, c, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i = tl.program_id(0)
    x = a.load([i, 0, 0]).reshape(BM, BK)
    y = tl.reshape(b.load([i, 0, 0]), (BK, BN))
    c.store([i, 0, 0], tl.dot(x, y).to(c.dtype)[None, :, :])


def test_squeezed_blocks():
    """Blocks [1, M, K] are multiplied in place, and matrices stored as such blocks."""
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal((2, 64, 64)).astype(np.float16) for _ in range(2))
    c = np.full((2, 64, 64), np.nan, np.float16)
    args = [tilejit.TensorDescriptor.from_tensor(x, (1, 64, 64)) for x in (a, b, c)]
    squeezed[(2,)](*args, 64, 64, 64)
    assert np.allclose(c, a.astype(np.float32) @ b.astype(np.float32), atol=0.05)
    text = squeezed.compile(*["desc<fp16[1x64x64]>"] * 3, BM=64, BN=64, BK=64).ptx
    assert "ld.shared" not in text and "tensor.3d.shared" in text and "tensor.3d.global" in text


@tilejit.kernel
def merged(a, b, c, N: tl.constexpr):
    y = b.load([0, 0, 0]).reshape(2 * N, 64)
    acc = tl.dot(a.load([0, 0]), y.T)
    c.store([0, 0, 0], acc.T.to(c.dtype).reshape(2, N, 64))


@pytest.mark.parametrize("n", [32, 128])
def test_merged_blocks(n):
    """A block [2, N, K] is one operand of 2 N rows; its first dimension has any stride."""
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((64, 64)).astype(np.float16), rng.standard_normal((2, n + 8, 64)).astype(np.float16)
    c = np.full((2, n, 64), np.nan, np.float16)
    merged[(1,)](desc(a, (64, 64)), desc(b[:, :n], (2, n, 64)), desc(c, (2, n, 64)), n)
    assert np.allclose(c, b[:, :n].astype(np.float32) @ a.astype(np.float32).T, atol=0.05)
    text = merged.compile("desc<fp16[64x64]>", *[f"desc<fp16[2x{n}x64]>"] * 2, N=n).ptx
    assert text.count("cp.async.bulk.tensor.3d.shared") == 1
