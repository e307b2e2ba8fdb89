"""Casts between every pair of dtypes, and bitcasts, against their numpy meaning."""
import numpy as np
import pytest
from hand_built import Kernel, same

from tilejit.ir import numeric
from tilejit.ir import types as T

ALL = [t for t in T.DTYPES.values() if t not in (T.tf32, T.fp8e4b15)]
N = 256


def values(t, seed=0):
    """N values: edges, ties of every narrower format, and random ones of all magnitudes."""
    dtype, rng = numeric.np_dtype(t), np.random.default_rng(seed)
    if t.family == "bool":
        return rng.random(N) < 0.5
    if t.is_int():
        a = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, N, dtype, endpoint=True)
        a >>= rng.integers(0, t.bits, N).astype(dtype)
        a[:6] = [0, 1, 2, 100, np.iinfo(dtype).min, np.iinfo(dtype).max]
        if t.bits >= 32:        # a tie of bf16 and of fp16, and just above it, which fp32 cannot tell apart
            a[6:10] = [(1 << 30) + (1 << 22), (1 << 30) + (1 << 22) + 1, 2049, 4098]
        return a
    if t.is_fp8():
        return np.arange(N, dtype=np.uint8).view(dtype)
    a = rng.normal(size=N) * 2.0 ** rng.integers(-12, 20, N)
    a[:12] = [0.0, -0.0, np.inf, -np.inf, np.nan, 0.4, -0.6, 1e9, -1e9, 3e9, 1.5, 2.5]
    for i, bits in enumerate((2, 3, 7, 10)):         # ties of the mantissas of e5m2, e4m3, bf16, fp16
        a[12 + 4 * i:16 + 4 * i] = [1 + 2.0 ** -(bits + 1) * k for k in (1, 3, 5, -1)]
        a[28 + 4 * i:32 + 4 * i] = a[12 + 4 * i:16 + 4 * i] * (1 + 2.0 ** -30)
    with np.errstate(over="ignore"):
        return numeric.round_to(a, t)


@pytest.mark.parametrize("registers", [4, 1])
@pytest.mark.parametrize("src", ALL, ids=str)
def test_casts(src, registers):
    """Four registers of neighbours a thread (converted in pairs where PTX can), and one."""
    x = values(src)
    others = [t for t in ALL if t != src]
    kernel = Kernel(N // 32 // registers, x=(x, src),
                    **{t.name: (np.zeros(N, numeric.np_dtype(t)), t) for t in others})
    v = kernel.load("x", kernel.layout((N,), registers))
    assert v.type.layout.num_registers == registers
    for t in others:
        kernel.store(t.name, kernel("cast", v, dtype=t))
    same(*kernel.run())


def test_scalar_cast():
    kernel = Kernel(1, {"n": (-7, T.int32), "f": (2.75, T.fp32)}, **{
        t.name: (np.zeros(1, numeric.np_dtype(t)), t) for t in ALL}, g=(np.zeros(1, np.int64), T.int64))
    for t in ALL:
        kernel.store(t.name, kernel("cast", kernel.args["n" if t.is_float else "f"], dtype=t))
    kernel.store("g", kernel("cast", kernel.args["f"], dtype=T.int64))
    same(*kernel.run())


@pytest.mark.parametrize("src", [T.fp64, T.fp32, T.fp16, T.bf16], ids=str)
@pytest.mark.parametrize("registers", [2, 1])
def test_toward_zero(src, registers):
    narrower = [t for t in ALL if t.is_float and t.bits < src.bits]
    kernel = Kernel(4, x=(values(src), src), **{t.name: (np.zeros(N, numeric.np_dtype(t)), t) for t in narrower})
    v = kernel.load("x", kernel.layout((N,), registers))
    for t in narrower:
        kernel.store(t.name, kernel("cast", v, dtype=t, rounding="rtz"))
    same(*kernel.run())


@pytest.mark.parametrize("dst", [T.fp8e4nv, T.fp8e5, T.fp16, T.bf16], ids=str)
def test_toward_zero_is_the_largest_not_above(dst):
    """The meaning of rtz itself, by search among all numbers of the type."""
    dtype = numeric.np_dtype(dst)
    every = np.arange(2 ** dst.bits).astype(f"u{dst.bytes}").view(dtype).astype(np.float64)
    every = np.sort(every[np.isfinite(every) & (every >= 0)])
    x = np.abs(values(T.fp32).astype(np.float64))
    x = x[np.isfinite(x)]
    expected = every[np.searchsorted(every, x, side="right") - 1]
    found = numeric.cast(x.astype(np.float32), T.fp32, dst, "rtz").astype(np.float64)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(numeric.cast(-x.astype(np.float32), T.fp32, dst, "rtz").astype(np.float64), -expected)


def test_tf32_rounds_to_ten_bits():
    x = values(T.fp32)
    kernel = Kernel(2, x=(x, T.fp32), y=(np.zeros(N, np.float32), T.fp32))
    t = kernel("cast", kernel.load("x", kernel.layout((N,))), dtype=T.tf32)
    kernel.store("y", kernel("cast", t, dtype=T.fp32))
    same(*kernel.run())


WIDTHS = {8: [T.int8, T.uint8, T.fp8e4nv, T.fp8e5], 16: [T.int16, T.uint16, T.fp16, T.bf16],
          32: [T.int32, T.uint32, T.fp32], 64: [T.int64, T.uint64, T.fp64]}


@pytest.mark.parametrize("src", [t for row in WIDTHS.values() for t in row], ids=str)
def test_bitcasts(src):
    """The bits survive, and the register form of 8-bit types is the new type's: it is widened afterwards."""
    others = [t for t in WIDTHS[src.bits] if t != src]
    kernel = Kernel(1, x=(values(src), src), **{t.name: (np.zeros(N, numeric.np_dtype(t)), t) for t in others},
                    **{f"wide_{t.name}": (np.zeros(N, np.int64), T.int64) for t in others if t.is_int()})
    v = kernel.load("x", kernel.layout((N,)))
    for t in others:
        w = kernel("bitcast", v, dtype=t)
        kernel.store(t.name, w)
        if t.is_int():
            kernel.store(f"wide_{t.name}", kernel("cast", w, dtype=T.int64))
    same(*kernel.run())


def test_pairs_are_converted_together():
    """fp32 to 16-bit floats takes one instruction for two elements."""
    kernel = Kernel(1, x=(values(T.fp32), T.fp32), y=(np.zeros(N, np.float16), T.fp16))
    kernel.store("y", kernel("cast", kernel.load("x", kernel.layout((N,), 2)), dtype=T.fp16))
    text, _ = kernel.ptx()
    assert text.count("cvt.rn.f16x2.f32") == N // 32 // 2


def test_pointers_are_64_bit_integers():
    x = np.arange(64, dtype=np.int32)
    kernel = Kernel(1, x=(x, T.int32), y=(np.zeros(64, np.int32), T.int32), z=(np.zeros(64, np.int32), T.int32))
    layout = kernel.layout((64,))
    ptr = kernel.pointers("x", layout)
    number = kernel("cast", ptr, dtype=T.int64)
    moved = kernel("xor", number, kernel.const(4, number.type))              # neighbours change places
    kernel.store("y", kernel("load", kernel("cast", moved, dtype=T.Ptr(T.int32))))
    low = kernel("cast", kernel("sub", number, kernel.tile("splat", kernel("cast", kernel.args["x"], dtype=T.int64),
                                                           layout=layout, shape=(64,))), dtype=T.int32)
    kernel.store("z", low)
    same(*kernel.run())
