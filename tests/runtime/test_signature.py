"""Keys and descriptions: arguments that compile differently have different keys, others have equal ones."""
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilejit
import tilejit.language as tl
from tilejit.errors import LaunchError
from tilejit.frontend import Const, Param
from tilejit.ir.types import DTYPES, Desc, Ptr
from tilejit.runtime.compile import DescParam, plain
from tilejit.runtime.signature import ArgumentError, ArgumentKeys, ConstantKeys, common_device, describe_argument

KEYS = [ArgumentKeys(a, o) for a, o in ((True, True), (False, True), (False, False))]
FULL = KEYS[0]
int32, int64, uint64, fp32 = (DTYPES[n] for n in ("int32", "int64", "uint64", "fp32"))


@given(st.one_of(st.integers(-2 ** 63, 2 ** 64 - 1), st.integers(-40, 40)),
       st.one_of(st.integers(-2 ** 63, 2 ** 64 - 1), st.integers(-40, 40)), st.sampled_from(KEYS))
def test_integer_keys_follow_descriptions(a, b, keys):
    """Equal keys exactly where the compiler is told the same."""
    same = describe_argument("n", a, keys) == describe_argument("n", b, keys)
    assert (keys[int](a) == keys[int](b)) == same


@pytest.mark.parametrize("x,arg", [
    (1, Const(1)), (16, Param(int32, 16)), (17, Param(int32)), (0, Param(int32, 16)), (-16, Param(int32, 16)),
    (2 ** 31, Param(int64, 16)), (2 ** 31 - 1, Param(int32)), (-2 ** 31 - 1, Param(int64)),
    (2 ** 63, Param(uint64, 16)),
    (True, Param(DTYPES["int1"])), (1.0, Param(fp32)), (None, Const(None)), (tl.float16, Const(tl.float16)),
    ((1, 2), Const((1, 2))), (np.int64(32), Param(int32, 16)), (np.float32(2), Param(fp32)),
    (np.bool_(True), Param(DTYPES["int1"]))])
def test_descriptions(x, arg):
    assert describe_argument("x", x, FULL) == arg


def test_unspecialised_descriptions():
    values, plain_ints = KEYS[1], KEYS[2]
    assert describe_argument("n", 1, values) == Const(1) and describe_argument("n", 32, values) == Param(int32)
    assert describe_argument("n", 1, plain_ints) == Param(int32)
    x = np.zeros(64, np.float32)
    assert describe_argument("x", x, plain_ints) == Param(Ptr(fp32), 4)
    assert plain_ints[type(x)](x) == plain_ints[type(x)](x[1:])


def test_pointer_alignment():
    x = np.frombuffer(bytearray(256), np.float32)
    x = x[(-x.ctypes.data % 16) // 4:]
    assert describe_argument("x", x, FULL) == Param(Ptr(fp32), 16)
    assert describe_argument("x", x[1:], FULL) == Param(Ptr(fp32), 4)
    keys = [FULL[np.ndarray](v) for v in (x, x[4:], x[1:], x.view(np.int32))]
    assert keys[0] == keys[1] and len(set(keys)) == 3


CONSTANTS = [1, True, 1.0, "1", None, 0.0, -0.0, (1,), (True,), (1.0,), [1], tl.float32, tl.float16, tl.constexpr(2),
             2.0, "fp32", (1, (2, 3)), (1, (2, 3.0))]


def test_constants_differ_by_type_and_value():
    keys, hashable = ConstantKeys(), [c for c in CONSTANTS if not isinstance(c, list)]
    for (i, a), (j, b) in product(enumerate(hashable), repeat=2):
        assert (keys[type(a)](a) == keys[type(b)](b)) == (i == j), (a, b)
        assert (plain(a, "x") == plain(b, "x")) == (i == j), (a, b)


def test_constexpr_is_its_value():
    keys = ConstantKeys()
    assert keys[tl.constexpr](tl.constexpr(3)) == keys[int](3) and plain(tl.constexpr(3), "x") == plain(3, "x")
    nan = float("nan")
    assert keys[float](nan) == keys[float](float("nan")) and plain(nan, "x") == plain(float("nan"), "x")


def test_what_is_no_constant():
    with pytest.raises(LaunchError, match="'x': a dict"):
        plain({}, "x")


def test_text_of_a_launch_is_a_constant_and_never_collides():
    assert describe_argument("a", "int32", FULL) == Const("int32")
    assert len({FULL[type(v)](v) for v in ("i32", "1", "fp32", "int1", 5, 1, 1.0, True, None)}) == 9


@pytest.mark.parametrize("text,arg", [
    ("*bf16", Param(Ptr(DTYPES["bf16"]), 16)), ("*bf16:2", Param(Ptr(DTYPES["bf16"]), 2)), ("int32", Param(int32)),
    ("int64:16", Param(int64, 16)), ("desc<fp8e5[64x128]>", DescParam(Desc(DTYPES["fp8e5"], (64, 128)))),
    ("relu", Const("relu"))])
def test_types_as_text(text, arg):
    assert describe_argument("x", text, FULL, typed=True) == arg


@pytest.mark.parametrize("text", ["*float", "**fp32", "desc<fp32>", "desc<fp99[2x2]>"])
def test_bad_types_as_text(text):
    with pytest.raises(ArgumentError, match="unknown type"):
        describe_argument("x", text, FULL, typed=True)


def test_annotated_types():
    assert describe_argument("n", 5, FULL, int64) == Param(int64)
    assert describe_argument("n", 1, FULL, int32) == Param(int32)
    assert describe_argument("e", 5, FULL, DTYPES["fp64"]) == Param(DTYPES["fp64"])
    for x, t in ((300, DTYPES["int8"]), (-1, DTYPES["uint32"]), (1.5, int32), (np.zeros(2), int32)):
        with pytest.raises(ArgumentError, match=f"'n': .*{t}"):
            describe_argument("n", x, FULL, t)


def test_not_an_argument():
    with pytest.raises(TypeError, match="argument 'n': expected an array.*found object"):
        describe_argument("n", object(), FULL)
    with pytest.raises(LaunchError, match="64 bits"):
        describe_argument("n", 2 ** 64, FULL)


def test_descriptors_differ_by_what_is_compiled():
    x = np.zeros((64, 64), np.float16)
    make = tilejit.TensorDescriptor
    ds = [make(x, (64, 64), (64, 1), (8, 8)), make(x, (32, 64), (64, 1), (8, 8)), make(x, (64, 64), (64, 1), (8, 16)),
          make(x, (64, 64), (64, 1), (8, 8), "nan"), make(x, (64, 60), (60, 1), (8, 8))]
    keys = [FULL[make](d) for d in ds]
    assert keys[0] == keys[1] and len(set(keys)) == 4
    assert describe_argument("d", ds[3], FULL) == DescParam(Desc(DTYPES["fp16"], (8, 8), ds[3].tma), padding="nan")


def test_one_device():
    x, n = np.zeros(2, np.float32), 3
    assert common_device({"x": x, "n": n}) == -1 and common_device({"n": n}) is None

    class Elsewhere(tilejit.DeviceArray):
        def __init__(self):
            self.device, self._owner = 3, None

    with pytest.raises(ArgumentError, match="'x' on the cpu, 'y' on gpu 3"):
        common_device({"x": x, "y": Elsewhere()})
