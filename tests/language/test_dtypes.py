"""Element types as kernels and hosts see them: Triton's names, predicates and texts."""
import copy
import pickle
import re

import numpy as np
import pytest
from run import equal

import tilejit
import tilejit.language as tl
from tilejit.ir.types import DTYPES, DType

NUMBERS = [t for t in DTYPES.values() if t.name != "tf32"]


@pytest.mark.parametrize("t", NUMBERS, ids=str)
def test_predicates(t):
    """Each type is exactly one of those that its name says, and the kinds follow from the name."""
    for other in NUMBERS:
        assert getattr(t, f"is_{other.name}")() == (t is other)
    assert t.is_floating() == t.name.startswith(("fp", "bf")) == (not t.is_int())
    assert t.is_int_signed() == (t.name in ("int8", "int16", "int32", "int64"))
    assert t.is_int_unsigned() == (t.name.startswith("uint") or t.name == "int1")
    assert t.is_standard_floating() == (t.is_floating() and not t.is_fp8())
    assert t.primitive_bitwidth == t.bits == int("".join(c for c in re.sub("^fp8.*", "8", t.name) if c.isdigit()))
    assert not t.is_ptr() and not t.is_block() and t.scalar is t and str(t) == t.name
    assert eval(repr(t), {"triton": type("m", (), {"language": tl})}) is t
    assert hasattr(t, "fp_mantissa_width") == hasattr(t, "exponent_bias") == t.is_floating() != hasattr(t, "int_signedness")
    if t.is_int():
        assert t.int_signedness == tl.dtype.SIGNEDNESS["SIGNED" if t.is_int_signed() else "UNSIGNED"]
        info = np.iinfo({"int1": "bool"}.get(t.name, t.name)) if t.name != "int1" else None
        assert info is None or (t.get_int_max_value(), t.get_int_min_value()) == (info.max, info.min)


def test_a_pointer_type_takes_triton_s_arguments():
    assert tl.pointer_type(tl.int8, 1) == tl.pointer_type(tl.int8) and not tl.pointer_type(tl.int8, 1).is_const()
    assert tl.pointer_type(tl.int8, 1, True).is_const() and tl.pointer_type(tl.int8).address_space == 1


def test_a_pointer_type_answers_as_other_types_do():
    t = tl.pointer_type(tl.pointer_type(tl.float16))
    assert repr(t) == t.name == "pointer<pointer<fp16>>" and repr(tl.pointer_type(tl.int8, 1, True)) == "const_pointer<int8>"
    assert not (t.is_fp16() or t.is_fp8() or t.is_int_signed() or t.is_bool() or t.is_block()) and t.scalar is t


def test_there_is_one_object_of_each():
    assert DType("fp32") is tl.float32 and pickle.loads(pickle.dumps(tl.int8)) is tl.int8
    assert copy.deepcopy(tl.bfloat16) is tl.bfloat16
    with pytest.raises(ValueError, match="no dtype; there are int1"):
        DType("fp31")


@tilejit.kernel
def by_type(y, x, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at)
    if v.dtype.is_fp16() and v.type.scalar.is_floating() and not v.dtype.is_int():
        v = v.to(tl.float32) + v.dtype.primitive_bitwidth
    elif v.dtype.is_int_unsigned():
        v = v + 1
    if x.dtype.is_ptr() and x.dtype.element_ty == v.dtype:
        v = v * 2
    tl.store(y + at, v)


def test_kernels_choose_by_type():
    x = np.arange(32)
    equal(by_type, [(x + 16).astype(np.float32)], x.astype(np.float16), N=32)
    equal(by_type, [((x + 1) * 2).astype(np.uint32)], x.astype(np.uint32), N=32)
    equal(by_type, [x * 2], x, N=32)


@tilejit.kernel
def small_floats(wide, back, sums, x, y, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at).to(tl.float8e4b15, bitcast=True)
    tl.store(wide + at, v.to(tl.float32))
    tl.store(back + at, tl.load(y + at).to(tl.float8e4b15).to(tl.uint8, bitcast=True))
    tl.store(sums + at, tl.abs(v) + tl.full((N,), 0.5, tl.float8e4b15))


def test_fp8e4b15_is_converted():
    """All its numbers; floats at random, at the limits, and halves between numbers, which go away from zero."""
    bits = np.arange(256, dtype=np.uint8)
    exponent, mantissa = bits >> 3 & 15, bits & 7
    wide = np.where(exponent, np.ldexp(8.0 + mantissa, exponent.astype(int) - 18), np.ldexp(1.0 * mantissa, -17))
    wide = np.where(bits & 128, -wide, wide).astype(np.float32)
    rng = np.random.default_rng(0)
    y = np.concatenate([wide[:127] + (wide[1:128] - wide[:127]) / 2, -wide[:65],
                        rng.uniform(-1.7, 1.7, 60), [np.nan, np.inf, -np.inf, 5.0]]).astype(np.float16)
    nearest = np.floor(np.interp(np.abs(np.nan_to_num(y.astype(np.float64), nan=9)), wide[:127], np.arange(127)) + 0.5)
    back = nearest.astype(np.uint8) | np.where(np.signbit(y), 128, 0).astype(np.uint8)
    equal(small_floats, [wide, back, (np.abs(wide) + 0.5).astype(np.float16)], bits, y, N=256)
