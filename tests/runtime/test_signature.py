"""Keys and descriptions: arguments that compile differently have different keys, others have equal ones."""
from __future__ import annotations

import os
import subprocess
import sys
import types
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilejit
import tilejit.language as tl
from tilejit.errors import LaunchError
from tilejit.frontend import Const, Group, Param
from tilejit.ir.types import DTYPES, Desc, Ptr
from tilejit.runtime.compile import plain
from tilejit.runtime.signature import (
    ArgumentError,
    ArgumentKeys,
    ConstantKeys,
    WrongDevice,
    _torch_key,
    _torch_key_plain,
    common_device,
    describe_argument,
)

KEYS = [ArgumentKeys(a, o) for a, o in ((True, True), (False, True), (False, False))]
FULL = KEYS[0]
int1, int32, int64, uint64, fp16, fp32 = (DTYPES[n] for n in ("int1", "int32", "int64", "uint64", "fp16", "fp32"))
PLUS, PLUS16 = Param(int32, 1, True), Param(int32, 16, True)      # what is known of integers above 1
RAW = np.zeros(256, np.uint8)
START = -RAW.ctypes.data % 16
ALIGNED = RAW[START:START + 64].view(np.float16)
SHIFTED = RAW[START + 2:START + 66].view(np.float16)


def key(keys, x):
    return keys[type(x)](x)


# -- what the compiler is told ------------------------------------------------------------------------------
@pytest.mark.parametrize("x,told", [
    (1, Const(1)), (2, PLUS), (16, PLUS16), (17, PLUS), (0, PLUS16),
    (-16, Param(int32, 16)), (2 ** 31 - 1, PLUS), (2 ** 31, Param(int64, 16, True)), (-2 ** 31 - 1, Param(int64)),
    (2 ** 63, Param(uint64, 16, True)), (True, Param(int1)), (np.bool_(True), Param(int1)), (1.0, Param(fp32)),
    (np.int64(5), PLUS), (np.int64(32), PLUS16), (np.float32(2), Param(fp32)),
    (np.float64(5), Param(fp32)), (None, Const(None)), ((1, 2), Group(tuple, (Const(1), PLUS))), (tl.float16, Const(fp16)),
    (ALIGNED, Param(Ptr(fp16), 16)), (SHIFTED, Param(Ptr(fp16), 2))], ids=repr)
def test_described(x, told):
    """Specialisation follows Triton."""
    assert describe_argument("x", x, FULL) == told


def test_do_not_specialize():
    """An argument that is left alone has one kernel for all values and alignments."""
    values, alone = KEYS[1], KEYS[2]
    assert describe_argument("n", 1, values) == Const(1) and describe_argument("n", 32, values) == Param(int32)
    assert describe_argument("n", 1, alone) == describe_argument("n", 16, alone) == Param(int32)
    assert describe_argument("x", ALIGNED, alone) == Param(Ptr(fp16), 2)
    assert len({key(alone, n) for n in (1, 2, 16)}) == len({key(alone, x) for x in (ALIGNED, SHIFTED)}) == 1


@pytest.mark.parametrize("text,told", [
    ("*fp32", Param(Ptr(fp32), 16)), ("*bf16:2", Param(Ptr(DTYPES["bf16"]), 2)), ("*i8", Param(Ptr(DTYPES["int8"]), 16)),
    ("i32", Param(int32)), ("int32", Param(int32)), ("int64:16", Param(int64, 16)), ("i64:16", Param(int64, 16)),
    ("u8", Param(DTYPES["uint8"])), ("i1", Param(int1)), ("fp32", Param(fp32)), ("relu", Const("relu")),
    ("desc<fp8e5[64x128]>", Param(Desc(DTYPES["fp8e5"], (64, 128))))])
def test_types_as_text(text, told):
    """Text stands for a type where there is no array; other text, and any text of a launch, is a constant."""
    assert describe_argument("x", text, FULL, typed=True) == told
    assert describe_argument("x", text, FULL) == Const(text)


@pytest.mark.parametrize("text", ["*float", "*fp33", "**fp32", "desc<fp32>", "desc<fp99[2x2]>", "desc<bf16[axb]>"])
def test_wrong_types(text):
    """A type that is misspelt is no constant."""
    with pytest.raises(ArgumentError, match="unknown type"):
        describe_argument("x", text, FULL, typed=True)


def test_annotated_types():
    assert describe_argument("n", 5, FULL, int64) == Param(int64, 1, True)
    assert describe_argument("n", 1, FULL, int32) == Param(int32, 1, True)
    assert describe_argument("e", 5, FULL, DTYPES["fp64"]) == Param(DTYPES["fp64"])


def test_stand_in():
    """Compiling and launching take an object that only knows its dtype and an address."""
    mock = type("Address", (), {"dtype": np.dtype(np.float32), "data_ptr": lambda self: 4})()
    assert describe_argument("x", mock, FULL, typed=True) == Param(Ptr(fp32), 4)
    assert describe_argument("x", mock, FULL) == Param(Ptr(fp32), 4)


@pytest.mark.parametrize("x,annotated,hint", [
    (1.5, "int32", "int32"), (ALIGNED, "int32", "array of fp16"), (300, "int8", "does not fit int8"),
    (-1, "uint32", "does not fit uint32"), (2 ** 64, None, "64 bits"), ({}, None, "dict"),
    (object(), None, "expected an array.*found object")])
def test_refused(x, annotated, hint):
    """Each error names the argument and what is wrong."""
    with pytest.raises(ArgumentError, match=hint) as caught:
        describe_argument("width", x, FULL, DTYPES.get(annotated))
    assert "'width'" in str(caught.value) and isinstance(caught.value, TypeError)


# -- keys -----------------------------------------------------------------------------------------------------
@given(st.one_of(st.integers(-2 ** 63, 2 ** 64 - 1), st.integers(-40, 40)),
       st.one_of(st.integers(-2 ** 63, 2 ** 64 - 1), st.integers(-40, 40)), st.sampled_from(KEYS))
def test_integer_keys_follow_descriptions(a, b, keys):
    """Equal keys exactly where the compiler is told the same."""
    same = describe_argument("n", a, keys) == describe_argument("n", b, keys)
    assert (keys[int](a) == keys[int](b)) == same


SAMPLES = [0, 1, 2, 16, 17, -1, -16, 2 ** 31 - 1, 2 ** 31, 2 ** 31 + 1, 2 ** 40, 2 ** 63, 2 ** 63 + 16, 2 ** 63 + 1,
           True, False, 0.0, 1.0, 2.5, None, "a", "b", "fp32", ALIGNED, SHIFTED, ALIGNED.view(ml_dtypes.bfloat16),
           ALIGNED.view(np.int16), np.int32(1), np.int32(3), np.float32(1), np.bool_(True), (1, 2), (1, True),
           tl.float32, tl.float16]


@pytest.mark.parametrize("keys", KEYS, ids=["full", "values", "alone"])
def test_equal_keys_mean_equal_descriptions(keys):
    """Two arguments with one key get the same kernel, so they must have the same description; keys are hashable."""
    for a, b in product(SAMPLES, repeat=2):
        if key(keys, a) == key(keys, b):
            assert hash(key(keys, a)) == hash(key(keys, b))
            assert repr(describe_argument("x", a, keys)) == repr(describe_argument("x", b, keys)), (a, b)


def test_text_never_collides():
    assert len({key(FULL, v) for v in ("i32", "1", "fp32", "int1", 5, 1, 1.0, True, None)}) == 9


CONSTANTS = [1, True, 1.0, "1", None, 0, False, 0.0, -0.0, (1,), (True,), (1.0,), tl.float32, tl.float16,
             tl.constexpr(2), 2.0, "fp32", (1, (2, 3)), (1, (2, 3.0)), float("nan")]


def test_constants_differ_by_type_and_value():
    """Both in the key and in the text that the disk cache sees."""
    keys = ConstantKeys()
    for (i, a), (j, b) in product(enumerate(CONSTANTS), repeat=2):
        assert (key(keys, a) == key(keys, b)) == (i == j), (a, b)
        assert (plain(a, "x") == plain(b, "x")) == (i == j), (a, b)


def test_equal_constants():
    """A constexpr is its value, NaN equals itself, a dict is no constant."""
    keys = ConstantKeys()
    for a, b in ((tl.constexpr(3), 3), (float("nan"), float("nan"))):
        assert key(keys, a) == key(keys, b) and plain(a, "x") == plain(b, "x")
    with pytest.raises(LaunchError, match="'x': a dict"):
        plain({}, "x")


def test_descriptors_differ_by_what_is_compiled():
    x = np.zeros((64, 64), np.float16)
    make = tilejit.TensorDescriptor
    ds = [make(x, (64, 64), (64, 1), (8, 8)), make(x, (32, 64), (64, 1), (8, 8)), make(x, (64, 64), (64, 1), (8, 16)),
          make(x, (64, 64), (64, 1), (8, 8), "nan"), make(x, (64, 60), (60, 1), (8, 8))]
    keys = [key(FULL, d) for d in ds]
    assert keys[0] == keys[1] and len(set(keys)) == 4
    assert describe_argument("d", ds[3], FULL) == Param(Desc(fp16, (8, 8), ds[3].tma), padding="nan")


# -- the rest ---------------------------------------------------------------------------------------------------
def test_one_device():
    x, n = np.zeros(2, np.float32), 3
    assert common_device({"x": x, "n": n}) == -1 and common_device({"n": n}) is None

    class Elsewhere(tilejit.DeviceArray):
        def __init__(self):
            self.device, self._owner = 3, None

    with pytest.raises(ArgumentError, match="'x' on the cpu, 'y' on gpu 3"):
        common_device({"x": x, "y": Elsewhere()})


def test_import_is_light():
    """Importing tilejit loads neither torch nor the CUDA bindings nor numba."""
    heavy = ("torch", "numba", "llvmlite", "cuda.bindings")
    code = f"import sys, tilejit; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_pinned_memory_is_reached_from_every_gpu():
    """A torch tensor in it is told apart from one in other host memory; there is no GPU that it belongs to."""
    def fake(index, pinned=False):
        return types.SimpleNamespace(dtype="float32", data_ptr=lambda: 64, get_device=lambda: index,
                                     is_pinned=lambda: pinned)

    keys = [(_torch_key(x), _torch_key_plain(x)) for x in (fake(-1), fake(-1, True), fake(0), fake(1))]
    assert len(set(keys)) == 4
    assert issubclass(WrongDevice, ValueError) and issubclass(WrongDevice, ArgumentError)
