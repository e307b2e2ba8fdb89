"""How tensor cores add (vm/tensor.py), against a model in rational numbers. That the H200 adds so is shown by the
recordings of tests/conformance."""
from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from ptx_programs import kernel, pointer

from tilejit.emulator import Program


def multiply(a: np.ndarray, b: np.ndarray, c: np.float32) -> np.float32:
    """Element (0, 0) of mma.sync m16n8k16 of two float16 vectors of 16 and an accumulator."""
    y = np.zeros(1, np.float32)
    body = ("mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 4; setp.eq.u32 %p2, %r1, 0; mov.b32 %r10, 0; mov.b32 %r11, 0; mov.b32 %r12, 0;"
            "mov.b32 %r13, 0; mov.b32 %r14, 0; ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [y]; mad.wide.u32 %rd1, %r1, 4, %rd1;"
            "mad.wide.u32 %rd2, %r1, 4, %rd2; @%p1 ld.global.b32 %r10, [%rd1]; @%p1 ld.global.b32 %r12, [%rd1+16]; @%p1 ld.global.b32 %r13, [%rd2];"
            f"@%p1 ld.global.b32 %r14, [%rd2+16]; mov.f32 %f1, 0f00000000; @%p2 mov.b32 %f1, {int(np.float32(c).view(np.uint32))};"
            "mov.f32 %f2, 0f00000000; mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f3, %f4, %f5, %f6}, {%r10, %r11, %r12, %r11}, {%r13, %r14}, {%f1, %f2, %f2, %f2};"
            "@%p2 st.global.f32 [%rd3], %f3;")
    text = kernel(body.replace("; ", ";\n").replace(";@", ";\n@").replace(";m", ";\nm"), [".param .u64 a", ".param .u64 b", ".param .u64 y"])
    Program(text).launch((1,), 32, [pointer(a), pointer(b), pointer(y)], memory=[a, b, y]).check()
    return y[0]


def towards_zero(x: Fraction, unit: Fraction) -> Fraction:
    """x cut to a multiple of unit."""
    return (abs(x) // unit) * unit * (1 if x > 0 else -1)


def model(a: np.ndarray, b: np.ndarray, c: np.float32) -> float:
    """The sum with terms cut 25 bits below the largest exponent, and the result cut to 24 bits."""
    terms = [(Fraction(float(x)) * Fraction(float(y)), np.frexp(np.float64(x))[1] + np.frexp(np.float64(y))[1] - 2) for x, y in zip(a, b)]
    terms.append((Fraction(float(c)), np.frexp(np.float64(c))[1] - 1))
    exponents = [int(e) for t, e in terms if t]
    if not exponents:
        return 0.0
    total = sum((towards_zero(t, Fraction(2) ** (max(exponents) - 25)) for t, _ in terms), Fraction(0))
    if not total:
        return 0.0
    return float(towards_zero(total, Fraction(2) ** (int(np.frexp(float(abs(total)))[1]) - 24)))


@pytest.mark.parametrize("seed", range(12))
def test_a_sum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    spread = (0, 2, 6, 10)[seed % 4]
    a, b = ((rng.standard_normal(16) * np.exp2(rng.integers(-spread, spread + 1, 16))).astype(np.float16) for _ in range(2))
    c = np.float32(rng.standard_normal() * 2.0 ** rng.integers(-spread, spread + 1))
    if seed >= 8:                                        # cancels to what the small terms leave
        a[8:], b[8:] = -a[:8], b[:8]
        a[15] = np.float16(0.001)
    assert float(multiply(a, b, c)) == model(a, b, c)


def test_small_terms_are_cut_one_by_one() -> None:
    ones, small = np.ones(16, np.float16), np.full(16, 2.0**-13, np.float16)
    small[0] = 1
    assert multiply(small, np.where(ones == 1, small, 0).astype(np.float16), np.float32(0)) == 1            # 15 times 2^-26
    small[1:] = 2.0**-12
    assert multiply(small, small, np.float32(0)) == 1 + np.float32(15 * 2.0**-24 // 2.0**-23 * 2.0**-23)    # 15 times 2^-24


def test_special_values() -> None:
    zero, one, inf = (np.full(16, v, np.float16) for v in (0, 1, np.inf))
    minus = -zero
    assert not np.signbit(multiply(minus, one, np.float32(-0.0)))
    assert multiply(inf, one, np.float32(1)) == np.inf and multiply(one, one, np.float32(-np.inf)) == -np.inf
    for got in (multiply(inf, zero, np.float32(0)), multiply(inf, one, np.float32(-np.inf))):
        assert got.view(np.uint32) == 0x7FFFFFFF
