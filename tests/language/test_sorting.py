"""Sorting, selecting and flipping against numpy."""
import numpy as np
import pytest
from run import equal

import tilejit
import tilejit.language as tl

SHAPES = [((256,), 4), ((16, 64), 4), ((4, 8, 32), 2), ((8, 1), 1), ((2, 64), 1)]
DTYPES = [np.int32, np.float16, np.uint8, np.float32, np.int64]


def values(shape, dtype, seed=1):
    rng = np.random.default_rng(seed)
    return rng.integers(-50, 50, shape).astype(dtype) if dtype != np.uint8 else rng.integers(0, 255, shape, dtype)


@tilejit.kernel
def sorts(y, z, x, N: tl.constexpr, SHAPE: tl.constexpr):
    at = tl.reshape(tl.arange(0, N), SHAPE)
    v = tl.load(x + at)
    tl.store(y + at, tl.sort(v))
    tl.store(z + at, v.sort(descending=True))


@pytest.mark.parametrize("shape,warps,dtype", [(*s, t) for s, t in zip(SHAPES, DTYPES)])
def test_sort(shape, warps, dtype):
    x = values(shape, dtype)
    up = np.sort(x, -1)
    equal(sorts, [up, np.ascontiguousarray(up[..., ::-1])], x, N=x.size, SHAPE=shape, num_warps=warps)


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
def test_nothing_is_lost_beside_nan(target):
    x = np.array([np.nan, 1, 0, -0.0, np.nan, -3, 2, 5, 7, -np.inf, 4, 4, np.nan, 0, 6, -0.0], np.float32)
    up, down = np.zeros_like(x), np.zeros_like(x)
    with tilejit.knobs(target=target):
        sorts[(1,)](up, down, x, N=16, SHAPE=(16,))
    for found in (up, down):
        assert sorted(found.view(np.uint32)) == sorted(x.view(np.uint32))


@tilejit.kernel
def selects(y, x, N: tl.constexpr, SHAPE: tl.constexpr, M: tl.constexpr, OUT: tl.constexpr, K: tl.constexpr,
            DOWN: tl.constexpr):
    v = tl.load(x + tl.reshape(tl.arange(0, N), SHAPE))
    tl.store(y + tl.reshape(tl.arange(0, M), OUT), tl.topk(v, K, descending=DOWN))


@pytest.mark.parametrize("k,down", [(1, True), (2, False), (8, True), (64, False)])
def test_topk(k, down):
    x = values((8, 64), np.float32, 2)
    best = np.sort(x, -1)
    best = np.ascontiguousarray((best[:, ::-1] if down else best)[:, :k])
    equal(selects, [best], x, N=x.size, SHAPE=x.shape, M=best.size, OUT=best.shape, K=k, DOWN=down)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.int16, np.uint32, np.float32, np.float64])
def test_topk_over_warps(dtype):
    """Which way a run goes is told by its register, its lane, or its warp."""
    x = values((2, 512), dtype, 5)
    for k in (4, 128):
        best = np.ascontiguousarray(np.sort(x, -1)[:, ::-1][:, :k])
        equal(selects, [best], x, N=x.size, SHAPE=x.shape, M=best.size, OUT=best.shape, K=k, DOWN=True, num_warps=8)


@tilejit.kernel
def least_of_negations(y, x):
    tl.store(y + tl.arange(0, 256), tl.sort(-tl.load(x + tl.arange(0, 256))))


def test_sorted_negations():
    """Minima of them keep their signs (tests/runtime/test_miscompiles.py)."""
    x = values((256,), np.int32, 6)
    equal(least_of_negations, [np.sort(-x)], x)
    assert "prmt.b32" in least_of_negations.compile("*int32", "*int32").ptx


def test_pairs_in_a_thread_are_a_minimum_and_a_maximum():
    """Two instructions for a pair of 32-bit integers in one thread, three for others."""
    kernel = sorts.compile("*int32", "*int32", "*int32", N=128, SHAPE=(16, 8), num_warps=1)
    text = [x.split()[0] for x in kernel.ptx.splitlines() if x.strip()]
    assert text.count("min.s32") == text.count("max.s32") > 0
    assert len([x for x in text if x.startswith("setp")]) <= 2 * (6 + 6 * 2)


@tilejit.kernel
def flips(y, x, N: tl.constexpr, SHAPE: tl.constexpr, DIM: tl.constexpr):
    at = tl.reshape(tl.arange(0, N), SHAPE)
    tl.store(y + at, tl.flip(tl.load(x + at), DIM))


@pytest.mark.parametrize("dtype,shape,warps", [(np.bool_, (64,), 4), (np.int8, (8, 32), 2), (np.float64, (2, 4, 8), 1)])
def test_flip(dtype, shape, warps):
    x = values(shape, dtype, 3)
    for dim in (None, *range(-len(shape), len(shape) - 1)):
        equal(flips, [np.ascontiguousarray(np.flip(x, -1 if dim is None else dim))], x, N=x.size, SHAPE=shape,
              DIM=dim, num_warps=warps)


def test_more_than_shared_memory_takes_at_once():
    """Of 32 registers in 32 warps 16 are exchanged at a time: 64 KB."""
    x = values((32768,), np.int32, 3)
    equal(flips, [np.ascontiguousarray(x[::-1])], x, N=x.size, SHAPE=x.shape, DIM=0, num_warps=32)
    made = flips.compile("*int32", "*int32", N=32768, SHAPE=(32768,), DIM=0, num_warps=32)
    assert made.ptx.count("bar.sync") >= 4


@tilejit.kernel
def gathers(y, x, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y + at, tl.gather(tl.cumsum(tl.load(x + at)), (at * 7) % N, 0))


def test_what_shared_memory_cannot_hold_is_named():
    with pytest.raises(tilejit.errors.SharedMemoryError, match="262144 bytes needed") as e:
        gathers.compile("*fp32", "*fp32", N=65536)
    assert "tl.gather(tl.cumsum(" in str(e.value) and "use smaller tiles" in str(e.value)


@tilejit.kernel
def merges(y, x, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y + at, tl.bitonic_merge(tl.load(x + at)))


def test_bitonic_merge():
    x = np.sort(values((128,), np.int32, 4))
    x[64:] = x[64:][::-1].copy()
    equal(merges, [np.sort(x)], x, N=128)


@pytest.mark.parametrize("k,message", [(3, "power of two"), (0, "greater than 0"), (128, "must not exceed")])
def test_bad_k(k, message):
    with pytest.raises(tilejit.CompilationError, match=message):
        equal(selects, [np.zeros((8, 1), np.float32)], values((8, 64), np.float32), N=512, SHAPE=(8, 64), M=8,
              OUT=(8, 1), K=k, DOWN=True)


@tilejit.kernel
def other_of_pairs(x, dim: tl.constexpr):
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ tl.xor_sum(bits, dim, True)).to(x.dtype, bitcast=True)


@tilejit.kernel
def exchanged(x, ids, flip, dim: tl.constexpr, right: tl.constexpr):
    y, other = other_of_pairs(x, dim), other_of_pairs(ids, dim)
    change = (x > y) != (flip ^ tl.arange(0, 2).reshape(right))
    return tl.where(change, y, x), tl.where(change, other, ids)


@tilejit.kernel
def by_hand(x, ids, LOG: tl.constexpr, FALLING: tl.constexpr):
    at = tl.arange(0, 2 ** LOG)
    v, i = tl.load(x + at).reshape([2] * LOG), at.reshape([2] * LOG)
    for stage in tl.static_range(1, LOG + 1):
        if stage < LOG:
            flip = tl.arange(0, 2).reshape([1] * (LOG - stage - 1) + [2] + [1] * stage)
        else:
            flip = FALLING
        for j in tl.static_range(stage):
            dim: tl.constexpr = LOG - stage + j
            v, i = exchanged(v, i, flip, dim, [1] * dim + [2] + [1] * (LOG - 1 - dim))
    tl.store(x + at, v.reshape([2 ** LOG]))
    tl.store(ids + at, i.reshape([2 ** LOG]))


@pytest.mark.parametrize("warps", [1, 4])
@pytest.mark.parametrize("target", ["evaluator", "emulator"])
def test_a_network_written_by_hand(target, warps):
    """Exchanges by the xor of pairs, as Triton's library has had them: no reductions are left."""
    x, ids = np.random.default_rng(0).standard_normal(256).astype(np.float32), np.zeros(256, np.int32)
    with tilejit.knobs(target=target):
        by_hand[(1,)](v := x.copy(), ids, LOG=8, FALLING=1, num_warps=warps)
    assert np.array_equal(v, np.sort(x)[::-1]) and np.array_equal(ids, np.argsort(-x))
    kernel = by_hand.compile("*fp32:16", "*int32:16", LOG=8, FALLING=0, num_warps=warps)
    assert "reduce" not in kernel.ir
    if warps == 1:
        assert kernel.ptx.count("\n") < 36 * 8 * 9
