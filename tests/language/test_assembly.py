"""Inline PTX: packing, several results, bodies of many instructions, and what cannot be."""
import numpy as np
import pytest
from run import equal

import tilejit
import tilejit.language as tl


@tilejit.kernel
def shifts(y, x, w, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y + at, tl.inline_asm_elementwise("shf.l.wrap.b32 $0, $1, $2, 5;", "=r,r,r", [tl.load(x + at), tl.load(w + at)],
                                               dtype=tl.int32, is_pure=True, pack=1))


def test_two_operands():
    x, w = np.random.default_rng(1).integers(-2 ** 31, 2 ** 31, (2, 256), dtype=np.int64).astype(np.int32)
    equal(shifts, [(w << 5) | (x.view(np.uint32) >> 27).view(np.int32)], x, w, N=256)


@tilejit.kernel
def widened(y, x, N: tl.constexpr):
    at = tl.arange(0, N)
    less = tl.inline_asm_elementwise("sub.s32 $0, $1, 8;", "=r,r", [tl.load(x + at)], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(y + at, less.to(tl.int64))


def test_results_may_be_negative():
    x = np.arange(16, dtype=np.int32)
    equal(widened, [x.astype(np.int64) - 8], x, N=16)


@tilejit.kernel
def bytes_added(y, x, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y + at, tl.inline_asm_elementwise("and.b32 $0, $1, 0x1F1F1F1F;", "=r,r", [tl.load(x + at)], dtype=tl.int8,
                                               is_pure=True, pack=4))


@pytest.mark.parametrize("n,warps", [(512, 4), (64, 4)])
def test_four_bytes_share_a_register(n, warps):
    """Also where a thread has fewer elements than a register takes."""
    x = np.random.default_rng(2).integers(-128, 128, n).astype(np.int8)
    equal(bytes_added, [x & 31], x, N=n, num_warps=warps)


@tilejit.kernel
def split_halves(lo, hi, x, N: tl.constexpr):
    at = tl.arange(0, N)
    low, high = tl.inline_asm_elementwise("""
    {
        // registers of the author's
        .reg .b32 t<2>;
        mov.b64 {t0, t1}, $2;
        add.s32 $0, t0, 1;
        cvt.rn.f32.s32 $1, t1;
    }""", "=r,=f,l", [tl.load(x + at)], dtype=(tl.int32, tl.float32), is_pure=True, pack=1)
    tl.store(lo + at, low)
    tl.store(hi + at, high)


def test_several_results_and_registers_of_its_own():
    x = np.random.default_rng(3).integers(-2 ** 40, 2 ** 40, 128)
    low = (x & 0xFFFFFFFF).astype(np.uint32).view(np.int32) + np.int32(1)
    equal(split_halves, [low, (x >> 32).astype(np.float32)], x, N=128)


@tilejit.kernel
def halves(y, x, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at)
    two = tl.inline_asm_elementwise("add.rn.f16x2 $0, $1, $1;", "=r,r", [v], dtype=tl.float16, is_pure=True, pack=2)
    one = tl.inline_asm_elementwise("neg.f16 $0, $1;", "=h,h", [two], dtype=tl.float16, is_pure=True, pack=1)
    tl.store(y + at, one)


def test_sixteen_bits_alone_and_in_pairs():
    x = np.random.default_rng(4).standard_normal(256).astype(np.float16)
    equal(halves, [-2 * x], x, N=256)


@tilejit.kernel
def places(y, N: tl.constexpr):
    lane = tl.inline_asm_elementwise("mov.u32 $0, %nsmid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    tl.store(y + tl.arange(0, N), tl.arange(0, N) + (lane - lane))


def test_no_operand_gives_a_number():
    equal(places, [np.arange(64, dtype=np.int32)], N=64)


@tilejit.kernel
def masked(y, x, w, MASK: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.inline_asm_elementwise("lop3.b32 $0, $1, $2, $3, $4;", "=r,r,n,r,n", [tl.load(x + at), MASK, tl.load(w + at), 0x6A],
                                  tl.int32, True, 1)
    tl.store(y + at, v)


def test_constants_stand_in_the_text():
    """0x6A: the third xor the first and the second."""
    x, w, y = np.arange(128, dtype=np.int32), np.arange(128, dtype=np.int32)[::-1].copy(), np.zeros(128, np.int32)
    masked[(1,)](y, x, w, 0x55, 128)
    assert (y == w ^ (x & 0x55)).all()


@tilejit.kernel
def computed(y, x):
    tl.store(y, tl.inline_asm_elementwise("add.s32 $0, $1, $2;", "=r,r,n", [1, tl.load(x)], tl.int32, True, 1))


def test_what_is_no_constant_is_said():
    with pytest.raises(tilejit.CompilationError, match=r"\$2 has the constraint n, a constant"):
        computed.compile("*int32", "*int32")


@tilejit.kernel
def doubled(y, x, CONSTRAINTS: tl.constexpr, PACK: tl.constexpr):
    at = tl.arange(0, 128)
    tl.store(y + at, tl.inline_asm_elementwise("add.s32 $0, $1, $1;", CONSTRAINTS, [tl.load(x + at)], tl.int32, True, PACK))


@pytest.mark.parametrize("constraints,pack,message", [
    ("=r,r,r", 1, "2 constraints of inputs, but 1"), ("=r,q", 1, "unknown constraint 'q'"), ("=r,r", 2, "but 2 registers"),
    ("=r,r", 3, "power of two"), ("=r,l", 1, "do not go into a register of 64")])
def test_what_does_not_fit_is_said(constraints, pack, message):
    with pytest.raises(tilejit.CompilationError, match=message), tilejit.knobs(target="emulator"):
        doubled[(1,)](np.zeros(128, np.int32), np.zeros(128, np.int32), CONSTRAINTS=constraints, PACK=pack)


LOCKED = tl.constexpr("""
    {
        .reg .u32 %got<1>;
        .reg .pred %p<1>;
        again:
        atom.global.ORDER.cas.b32 %got0, [$1], 0, 3;
        setp.ne.u32 %p0, %got0, 3;
        @%p0 bra again;
        mov.u32 $0, %got0;
    }""")


@tilejit.kernel
def locked(x, y, out, BODY: tl.constexpr):
    a = tl.inline_asm_elementwise(BODY, "=r,l", [x], dtype=tl.int32, is_pure=False, pack=1)
    b = tl.inline_asm_elementwise(BODY, "=r,l", [y], dtype=tl.int32, is_pure=False, pack=1)
    tl.store(out, a + b)


@pytest.mark.parametrize("order", ["relaxed.sys", "sys.relaxed"])
def test_labels_of_a_scope_are_its_own(order):
    x, y, out = np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32)
    with tilejit.knobs(target="emulator"):
        locked[(1,)](x, y, out, LOCKED.value.replace("ORDER", order), num_warps=1)
    assert (x[0], y[0], out[0]) == (3, 3, 6)
