"""Scalar instructions against numpy, exact to the bit (approximate functions: within their documented error)."""
from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from ptx_programs import lanes

RNG = np.random.default_rng(7)
EDGES32 = np.array([0, 1, 2, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF, 0xFFFFFFFE, 12345], np.uint32)


def pairs32() -> tuple[np.ndarray, np.ndarray]:
    a, b = np.meshgrid(EDGES32, EDGES32)
    more = RNG.integers(0, 1 << 32, (2, 200), dtype=np.uint32)
    return np.concatenate([a.ravel(), more[0]]), np.concatenate([b.ravel(), more[1]])


def pairs64() -> tuple[np.ndarray, np.ndarray]:
    a, b = pairs32()
    return a.astype(np.uint64) << np.uint64(32) | b, b.astype(np.uint64) << np.uint64(31) ^ a


def s(x: np.ndarray) -> list[int]:
    return [int(v) for v in x.view(f"int{8 * x.itemsize}")]


def u(x: np.ndarray) -> list[int]:
    return [int(v) for v in x]


def trunc_div(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return -q if (a < 0) != (b < 0) else q


CASES = {
    "add.u32": lambda a, b: a + b, "sub.s32": lambda a, b: a - b, "mul.lo.u32": lambda a, b: a * b,
    "mul.hi.u32": lambda a, b: a * b >> 32, "mul.hi.s32": lambda a, b: a * b >> 32,
    "and.b32": lambda a, b: a & b, "or.b32": lambda a, b: a | b, "xor.b32": lambda a, b: a ^ b,
    "min.u32": min, "max.u32": max, "min.s32": min, "max.s32": max,
    "shl.b32": lambda a, b: a << min(b, 64), "shr.u32": lambda a, b: a >> min(b, 64),
    "add.u64": lambda a, b: a + b, "sub.u64": lambda a, b: a - b, "mul.lo.u64": lambda a, b: a * b,
    "mul.hi.u64": lambda a, b: a * b >> 64, "mul.hi.s64": lambda a, b: a * b >> 64,
    "min.s64": min, "max.u64": max, "xor.b64": lambda a, b: a ^ b,
    "add.sat.s32": lambda a, b: max(-2**31, min(2**31 - 1, a + b)),
    "sub.sat.s32": lambda a, b: max(-2**31, min(2**31 - 1, a - b)),
}


@pytest.mark.parametrize("op", CASES)
def test_integer_binary(op: str) -> None:
    a, b = pairs64() if op.endswith("64") else pairs32()
    read = s if ".s" in op[3:] else u
    got = lanes(f"{op} %d, %a0, %a1;", [a, b], a.dtype.name)
    want = [CASES[op](x, y) & ((1 << 8 * a.itemsize) - 1) for x, y in zip(read(a), read(b))]
    assert u(got) == want


@pytest.mark.parametrize("bits", (16, 32, 64))
@pytest.mark.parametrize("sign", "su")
def test_division(bits: int, sign: str) -> None:
    a, b = pairs64() if bits == 64 else pairs32()
    a, b = a.astype(f"uint{bits}"), b.astype(f"uint{bits}")
    keep = b != 0
    a, b = a[keep], b[keep]
    read, mask = (s if sign == "s" else u), (1 << bits) - 1
    q = lanes(f"div.{sign}{bits} %d, %a0, %a1;", [a, b], a.dtype.name)
    r = lanes(f"rem.{sign}{bits} %d, %a0, %a1;", [a, b], a.dtype.name)
    assert u(q) == [trunc_div(x, y) & mask for x, y in zip(read(a), read(b))]
    assert u(r) == [(x - y * trunc_div(x, y)) & mask for x, y in zip(read(a), read(b))]


def test_multiply_add_wide() -> None:
    a, b = pairs32()
    c = RNG.integers(0, 1 << 63, len(a), dtype=np.uint64)
    got = lanes("mad.wide.s32 %d, %a0, %a1, %a2;", [a, b, c], "uint64")
    assert u(got) == [(x * y + z) & (2**64 - 1) for x, y, z in zip(s(a), s(b), u(c))]
    got = lanes("mul.wide.u32 %d, %a0, %a1;", [a, b], "uint64")
    assert u(got) == [x * y for x, y in zip(u(a), u(b))]
    got = lanes("mad.hi.u32 %d, %a0, %a1, %a1;", [a, b], "uint32")
    assert u(got) == [((x * y >> 32) + y) & 0xFFFFFFFF for x, y in zip(u(a), u(b))]


def test_carry_chain() -> None:
    a, b = pairs64()
    got = lanes("mov.b64 {%r1, %r2}, %a0; mov.b64 {%r3, %r4}, %a1; add.cc.u32 %r1, %r1, %r3; addc.u32 %r2, %r2, %r4;"
                "mov.b64 %d, {%r1, %r2};", [a, b], "uint64")
    assert u(got) == [(x + y) & (2**64 - 1) for x, y in zip(u(a), u(b))]
    got = lanes("mov.b64 {%r1, %r2}, %a0; mov.b64 {%r3, %r4}, %a1; sub.cc.u32 %r1, %r1, %r3; subc.u32 %r2, %r2, %r4;"
                "mov.b64 %d, {%r1, %r2};", [a, b], "uint64")
    assert u(got) == [(x - y) & (2**64 - 1) for x, y in zip(u(a), u(b))]


def test_bit_operations() -> None:
    a, b = pairs32()
    assert u(lanes("popc.b32 %d, %a0;", [a], "uint32")) == [bin(x).count("1") for x in u(a)]
    assert u(lanes("clz.b32 %d, %a0;", [a], "uint32")) == [32 - x.bit_length() for x in u(a)]
    assert u(lanes("brev.b32 %d, %a0;", [a], "uint32")) == [int(f"{x:032b}"[::-1], 2) for x in u(a)]
    assert u(lanes("bfind.u32 %d, %a0;", [a], "uint32")) == [(x.bit_length() - 1) & 0xFFFFFFFF for x in u(a)]
    assert u(lanes("not.b32 %d, %a0;", [a], "uint32")) == [~x & 0xFFFFFFFF for x in u(a)]
    assert u(lanes("neg.s32 %d, %a0;", [a], "uint32")) == [-x & 0xFFFFFFFF for x in u(a)]
    assert u(lanes("abs.s32 %d, %a0;", [a], "uint32")) == [abs(x) & 0xFFFFFFFF for x in s(a)]
    assert u(lanes("shr.s32 %d, %a0, %a1;", [a, b], "uint32")) == [
        (x >> min(y, 31)) & 0xFFFFFFFF for x, y in zip(s(a), u(b))]
    assert u(lanes("bfe.u32 %d, %a0, 5, 9;", [a], "uint32")) == [x >> 5 & 511 for x in u(a)]
    assert u(lanes("bfe.s32 %d, %a0, 5, 9;", [a], "uint32")) == [
        ((x >> 5 & 511) - (512 if x >> 13 & 1 else 0)) & 0xFFFFFFFF for x in u(a)]
    assert u(lanes("bfi.b32 %d, %a0, %a1, 4, 12;", [a, b], "uint32")) == [
        y & ~(4095 << 4) | (x & 4095) << 4 for x, y in zip(u(a), u(b))]
    assert u(lanes("shf.l.wrap.b32 %d, %a0, %a1, 7;", [a, b], "uint32")) == [
        ((y << 32 | x) << 7 >> 32) & 0xFFFFFFFF for x, y in zip(u(a), u(b))]
    assert u(lanes("shf.r.clamp.b32 %d, %a0, %a1, 40;", [a, b], "uint32")) == u(b)
    assert u(lanes("prmt.b32 %d, %a0, %a1, 0x7410;", [a, b], "uint32")) == [
        x & 0xFFFF | (y & 255) << 16 | (y >> 24) << 24 for x, y in zip(u(a), u(b))]
    assert u(lanes("prmt.b32 %d, %a0, 0, 0xba98;", [a], "uint32")) == [
        sum((255 if x >> (8 * i + 7) & 1 else 0) << 8 * i for i in range(4)) for x in u(a)]
    for table in (0x96, 0xE8, 0x1B):
        want = [sum((table >> ((x >> i & 1) * 4 + (y >> i & 1) * 2 + (x >> (31 - i) & 1)) & 1) << i for i in range(32))
                for x, y in zip(u(a), u(b))]
        assert u(lanes(f"brev.b32 %r1, %a0; lop3.b32 %d, %a0, %a1, %r1, {table};", [a, b], "uint32")) == want
    assert u(lanes("dp4a.s32.u32 %d, %a0, %a1, 5;", [a, b], "uint32")) == [
        (5 + sum(((x >> i & 255) - (256 if x >> i & 128 else 0)) * (y >> i & 255) for i in (0, 8, 16, 24))) & 0xFFFFFFFF
        for x, y in zip(u(a), u(b))]


@pytest.mark.parametrize("cmp,fn", [("eq", lambda a, b: a == b), ("ne", lambda a, b: a != b), ("lt", lambda a, b: a < b),
                                    ("le", lambda a, b: a <= b), ("gt", lambda a, b: a > b), ("ge", lambda a, b: a >= b)])
def test_compare(cmp: str, fn) -> None:  # type: ignore[no-untyped-def]
    a, b = pairs32()
    for kind, read in (("u32", u), ("s32", s)):
        got = lanes(f"setp.{cmp}.{kind} %p1, %a0, %a1; selp.u32 %d, 1, 0, %p1;", [a, b], "uint32")
        assert u(got) == [int(fn(x, y)) for x, y in zip(read(a), read(b))]
    x, y = (np.array(v, np.float32) for v in zip(*[(p, q) for p in (0., -0., 1., math.nan, math.inf) for q in
                                                    (0., 2., 1., math.nan, -math.inf)]))
    got = lanes(f"setp.{cmp}.f32 %p1, %a0, %a1; selp.u32 %d, 1, 0, %p1;", [x, y], "uint32")
    ordered = ~(np.isnan(x) | np.isnan(y))
    assert u(got) == [int(bool(fn(p, q)) and bool(o)) for p, q, o in zip(x, y, ordered)]
    got = lanes(f"setp.{cmp}u.f32 %p1, %a0, %a1; selp.u32 %d, 1, 0, %p1;", [x, y], "uint32")
    assert u(got) == [int(bool(fn(p, q)) or not bool(o)) for p, q, o in zip(x, y, ordered)]


def test_setp_combines_and_complements() -> None:
    a, b = pairs32()
    got = lanes("setp.gt.u32 %p3, %a0, 100; setp.lt.and.u32 %p1|%p2, %a0, %a1, !%p3; selp.u32 %r1, 2, 0, %p2;"
                "selp.u32 %d, 1, 0, %p1; or.b32 %d, %d, %r1;", [a, b], "uint32")
    assert u(got) == [int(x < y and x <= 100) + 2 * int(x >= y and x <= 100) for x, y in zip(u(a), u(b))]


FLOATS = np.array([0.0, -0.0, 1.0, -1.5, 3.1415927, 1e-40, -1e-45, 1e38, 3.4e38, 1.1754944e-38, math.inf, -math.inf,
                   math.nan, 16777217.0, 0.1], np.float32)


def float_pairs() -> tuple[np.ndarray, np.ndarray]:
    a, b = np.meshgrid(FLOATS, FLOATS)
    more = RNG.standard_normal((2, 300)).astype(np.float32) * np.exp2(RNG.integers(-60, 60, (2, 300))).astype(np.float32)
    return np.concatenate([a.ravel(), more[0]]), np.concatenate([b.ravel(), more[1]])


def same_bits(got: np.ndarray, want: np.ndarray) -> None:
    """Equal bits, where any NaN must be the canonical one."""
    kind = f"uint{8 * got.itemsize}"
    nan = np.isnan(want)
    canonical = {2: 0x7FFF, 4: 0x7FFFFFFF, 8: 0x7FF8000000000000}[got.itemsize]
    assert (got.view(kind)[nan] == canonical).all()
    bad = np.flatnonzero((got.view(kind) != want.view(kind)) & ~nan)
    assert not len(bad), [(int(i), got[i], want[i]) for i in bad[:5]]


@pytest.mark.parametrize("op,fn", [("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div", np.divide)])
@pytest.mark.parametrize("dtype", (np.float32, np.float64))
def test_float_rounds_to_nearest(op: str, fn, dtype) -> None:  # type: ignore[no-untyped-def]
    a, b = (x.astype(dtype) for x in float_pairs())
    kind = "f32" if dtype == np.float32 else "f64"
    with np.errstate(all="ignore"):
        same_bits(lanes(f"{op}.rn.{kind} %d, %a0, %a1;", [a, b], np.dtype(dtype).name), fn(a, b))


def flush(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < np.float32(1.1754944e-38), np.copysign(np.float32(0), x), x)


def test_ftz_and_sat() -> None:
    a, b = float_pairs()
    with np.errstate(all="ignore"):
        same_bits(lanes("mul.rn.ftz.f32 %d, %a0, %a1;", [a, b], "float32"), flush(flush(a) * flush(b)))
        want = a + b
        want = np.where(np.isnan(want) | (want <= 0), np.float32(0), np.minimum(want, 1)).astype(np.float32)
        same_bits(lanes("add.rn.sat.f32 %d, %a0, %a1;", [a, b], "float32"), want)


@pytest.mark.parametrize("mode", ("rz", "rm", "rp"))
def test_directed_rounding(mode: str) -> None:
    """Against exact rational arithmetic."""
    from fractions import Fraction

    a, b = float_pairs()
    keep = np.isfinite(a) & np.isfinite(b) & (np.abs(a) < 1e30) & (np.abs(b) < 1e30)
    a, b = a[keep], b[keep]
    for op in ("add", "mul", "fma"):
        body = f"fma.{mode}.f32 %d, %a0, %a1, %a1;" if op == "fma" else f"{op}.{mode}.f32 %d, %a0, %a1;"
        got = lanes(body, [a, b], "float32")
        for x, y, r in zip(a, b, got):
            fx, fy = Fraction(float(x)), Fraction(float(y))
            exact = fx + fy if op == "add" else (fx * fy if op == "mul" else fx * fy + fy)
            if not np.isfinite(r):
                continue
            got_exact = Fraction(float(r))
            up, down = np.nextafter(r, np.float32(np.inf)), np.nextafter(r, np.float32(-np.inf))
            lower = mode == "rm" or (mode == "rz" and exact > 0)
            if got_exact == exact:
                continue
            assert (got_exact < exact) == lower, (op, x, y, r)
            other = up if lower else down
            if np.isfinite(other):
                assert (Fraction(float(other)) > exact) == lower, (op, x, y, r)


def test_fma_is_fused() -> None:
    a = np.array([1 + 2**-23], np.float32)
    c = np.array([-(1 + 2**-22)], np.float32)
    got = lanes("fma.rn.f32 %d, %a0, %a0, %a1;", [a, c], "float32")
    assert got[0] == np.float32(2.0**-46)


def test_min_max() -> None:
    a, b = float_pairs()
    with np.errstate(all="ignore"):
        same_bits(lanes("max.f32 %d, %a0, %a1;", [a, b], "float32")[a != b], np.fmax(a, b)[a != b])
        same_bits(lanes("min.NaN.f32 %d, %a0, %a1;", [a, b], "float32")[a != b], np.minimum(a, b)[a != b])
    zero = np.array([0.0, -0.0], np.float32)
    assert u(lanes("min.f32 %d, %a0, %a1;", [zero, zero[::-1].copy()], "float32").view(np.uint32)) == [1 << 31] * 2
    assert u(lanes("max.f32 %d, %a0, %a1;", [zero, zero[::-1].copy()], "float32").view(np.uint32)) == [0, 0]


@pytest.mark.parametrize("kind,dtype", [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_half_arithmetic(kind: str, dtype) -> None:  # type: ignore[no-untyped-def]
    """Exactly rounded: the f64 sum or product of two halves is exact enough to round once."""
    bits = RNG.integers(0, 1 << 16, (3, 3000), dtype=np.uint16)
    a, b, c = (x.view(dtype).astype(np.float64) for x in bits)
    with np.errstate(all="ignore"):
        for op, want in (("add", a + b), ("sub", a - b), ("mul", a * b)):
            got = lanes(f"{op}.rn.{kind} %d, %a0, %a1;", list(bits[:2]), "uint16").view(dtype)
            same_bits(got, want.astype(dtype))
        got = lanes(f"fma.rn.{kind}x2 %r3, %r1, %r2, %r4; mov.b32 {{%d, _}}, %r3;".replace(
            "fma", "mov.b32 %r1, {%a0, %a0}; mov.b32 %r2, {%a1, %a1}; mov.b32 %r4, {%a2, %a2}; fma", 1),
            list(bits), "uint16").view(dtype)
        with np.errstate(all="ignore"):
            small = np.abs(a * b + c) < 3e38
            close = np.isclose(got.astype(np.float64)[small], (a * b + c)[small].astype(dtype).astype(np.float64),
                               rtol=1e-2, atol=1e-38, equal_nan=True)
        assert close.all()


ALL16 = np.arange(1 << 16, dtype=np.uint16)


@pytest.mark.parametrize("kind,dtype", [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_widen_half(kind: str, dtype) -> None:  # type: ignore[no-untyped-def]
    got = lanes(f"cvt.f32.{kind} %d, %a0;", [ALL16], "float32")
    want = ALL16.view(dtype).astype(np.float32)
    nan = np.isnan(want)
    assert np.isnan(got[nan]).all() and (got.view(np.uint32)[~nan] == want.view(np.uint32)[~nan]).all()


@pytest.mark.parametrize("kind,dtype", [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_narrow_to_half(kind: str, dtype) -> None:  # type: ignore[no-untyped-def]
    x = np.concatenate([FLOATS, RNG.integers(0, 1 << 32, 5000, dtype=np.uint32).view(np.float32),
                        ALL16[::7].view(dtype).astype(np.float32) * np.float32(1 + 2**-8)])
    with np.errstate(all="ignore"):
        same_bits(lanes(f"cvt.rn.{kind}.f32 %d, %a0;", [x], "uint16").view(dtype), x.astype(dtype))
        got = lanes(f"cvt.rn.{kind}x2.f32 %d, %a0, %a1;", [x, x[::-1].copy()], "uint32")
        same_bits((got >> 16).astype(np.uint16).view(dtype), x.astype(dtype))
        same_bits((got & 0xFFFF).astype(np.uint16).view(dtype), x[::-1].astype(dtype))


@pytest.mark.parametrize("kind,dtype,top", [("e4m3", ml_dtypes.float8_e4m3fn, 448.0),
                                            ("e5m2", ml_dtypes.float8_e5m2, 57344.0)])
def test_fp8(kind: str, dtype, top: float) -> None:  # type: ignore[no-untyped-def]
    x = np.concatenate([FLOATS, RNG.standard_normal(3000).astype(np.float32) * 100, np.linspace(-600, 600, 2000,
                                                                                              dtype=np.float32)])
    with np.errstate(all="ignore"):
        want = np.clip(x, -top, top).astype(dtype).view(np.uint8)
    want[np.isnan(x)] = 0x7F
    got = lanes(f"cvt.rn.satfinite.{kind}x2.f32 %d, 0f00000000, %a0;", [x], "uint16")
    assert (got & 0xFF == want).all() and (got >> 8 == 0).all()
    codes = np.arange(256, dtype=np.uint16)
    wide = lanes(f"cvt.rn.f16x2.{kind}x2 %r1, %a0; mov.b32 {{%d, _}}, %r1;", [codes], "uint16").view(np.float16)
    same_bits(wide, codes.astype(np.uint8).view(dtype).astype(np.float16))


@pytest.mark.parametrize("dst", ("s32", "u32", "s64", "u64", "s16", "u8"))
@pytest.mark.parametrize("mode,fn", [("rzi", math.trunc), ("rni", round), ("rmi", math.floor), ("rpi", math.ceil)])
def test_float_to_int(dst: str, mode: str, fn) -> None:  # type: ignore[no-untyped-def]
    x = np.concatenate([FLOATS, np.array([0.5, 1.5, 2.5, -0.5, -2.5, 2**31, -2**31, 2**32, 2**63, 2**64, -1, 300, 40000],
                                         np.float32), (RNG.standard_normal(300) * 1e4).astype(np.float32)])
    bits = int(dst[1:])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if dst[0] == "s" else (0, (1 << bits) - 1)
    want = []
    for v in x:
        if math.isnan(v):
            want.append(1 << bits - 1 if bits == 64 else 0)
        elif math.isinf(v):
            want.append(high if v > 0 else low)
        else:
            want.append(min(max(fn(float(v)), low), high))
    out = {8: "uint16", 16: "uint16", 32: "uint32", 64: "uint64"}[bits]
    got = lanes(f"cvt.{mode}.{dst}.f32 %d, %a0;", [x], out)
    assert [int(g) & ((1 << bits) - 1) for g in got] == [w & ((1 << bits) - 1) for w in want]


def test_int_to_float_and_int() -> None:
    a, b = pairs64()
    same_bits(lanes("cvt.rn.f32.s64 %d, %a0;", [a], "float32"), a.view(np.int64).astype(np.float32))
    same_bits(lanes("cvt.rn.f32.u64 %d, %a0;", [a], "float32"), a.astype(np.float32))
    same_bits(lanes("cvt.rn.f64.u64 %d, %a0;", [a], "float64"), a.astype(np.float64))
    i = pairs32()[0]
    same_bits(lanes("cvt.rn.f32.s32 %d, %a0;", [i], "float32"), i.view(np.int32).astype(np.float32))
    same_bits(lanes("cvt.rn.f16.s32 %d, %a0;", [i], "uint16").view(np.float16),
              i.view(np.int32).astype(np.float64).astype(np.float16))
    assert u(lanes("cvt.s64.s32 %d, %a0;", [i], "uint64")) == [x & (2**64 - 1) for x in s(i)]
    assert u(lanes("cvt.u32.u64 %d, %a0;", [a], "uint32")) == [x & 0xFFFFFFFF for x in u(a)]
    assert u(lanes("cvt.sat.s8.s32 %d, %a0;", [i], "uint32")) == [max(-128, min(127, x)) & 0xFFFFFFFF for x in s(i)]
    h = i.astype(np.uint16)
    assert u(lanes("cvt.s16.s8 %d, %a0;", [h], "uint16")) == [(x & 255) - (256 if x & 128 else 0) & 0xFFFF for x in u(h)]


def test_round_to_integral() -> None:
    x = np.concatenate([FLOATS, np.array([0.5, 1.5, -0.5, -0.4, 2.5], np.float32)])
    for mode, fn in (("rni", np.rint), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil)):
        same_bits(lanes(f"cvt.{mode}.f32.f32 %d, %a0;", [x], "float32"), fn(x))


@pytest.mark.parametrize("op,fn,bound", [
    ("ex2.approx.ftz.f32", np.exp2, 2**-22), ("lg2.approx.f32", np.log2, 2**-21), ("rsqrt.approx.f32", lambda x: x**-0.5, 2**-22),
    ("rcp.approx.f32", lambda x: 1 / x, 2**-23), ("sqrt.approx.f32", np.sqrt, 2**-22), ("tanh.approx.f32", np.tanh, 2**-10),
    ("sin.approx.f32", np.sin, 2**-19), ("cos.approx.f32", np.cos, 2**-19)])
def test_approximate_functions(op: str, fn, bound: float) -> None:  # type: ignore[no-untyped-def]
    x = RNG.uniform(0.01, 3, 500).astype(np.float32)
    want = fn(x.astype(np.float64))
    got = lanes(f"{op} %d, %a0;", [x], "float32")
    assert (np.abs(got - want) <= bound * np.maximum(np.abs(want), 1)).all()


def test_testp() -> None:
    want = {"finite": np.isfinite(FLOATS), "infinite": np.isinf(FLOATS), "notanumber": np.isnan(FLOATS),
            "normal": np.isfinite(FLOATS) & ((np.abs(FLOATS) >= 2.0**-126) | (FLOATS == 0)),
            "subnormal": (FLOATS != 0) & (np.abs(FLOATS) < 2.0**-126)}
    for test, mask in want.items():
        got = lanes(f"testp.{test}.f32 %p1, %a0; selp.u32 %d, 1, 0, %p1;", [FLOATS], "uint32")
        assert (got == mask).all(), test


def test_tf32() -> None:
    x = RNG.standard_normal(500).astype(np.float32)
    got = lanes("cvt.rna.tf32.f32 %d, %a0;", [x], "uint32")
    want = (x.view(np.uint32) + 0x1000) & 0xFFFFE000
    assert (got == want).all()
