"""What arguments specialise a kernel by, and what the compiler is told of them."""
from __future__ import annotations

import os
import subprocess
import sys
import types

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.frontend import Const, Param
from tilejit.ir.types import DTYPES, Desc, Ptr
from tilejit.runtime.signature import ArgumentError, ArgumentKeys, ConstantKeys, describe_argument

KEYS = ArgumentKeys(True, True)
RAW = np.zeros(256, np.uint8)
START = -RAW.ctypes.data % 16
ALIGNED = RAW[START:START + 64].view(np.float16)
SHIFTED = RAW[START + 2:START + 66].view(np.float16)


def key(keys, x):
    return keys[type(x)](x)


@pytest.mark.parametrize("x,told", [
    (1, Const(1)), (2, Param(DTYPES["int32"], 1)), (32, Param(DTYPES["int32"], 16)), (0, Param(DTYPES["int32"], 16)),
    (-16, Param(DTYPES["int32"], 16)), (2 ** 31 - 1, Param(DTYPES["int32"], 1)), (2 ** 31, Param(DTYPES["int64"], 16)),
    (2 ** 63, Param(DTYPES["uint64"], 16)), (True, Param(DTYPES["int1"])), (1.0, Param(DTYPES["fp32"])),
    (np.int64(5), Param(DTYPES["int32"], 1)), (np.float64(5), Param(DTYPES["fp32"])), (None, Const(None)),
    (ALIGNED, Param(Ptr(DTYPES["fp16"]), 16)), (SHIFTED, Param(Ptr(DTYPES["fp16"]), 2)), ((1, 2), Const((1, 2))),
    (tl.float32, Const(DTYPES["fp32"])),
], ids=repr)
def test_described(x, told):
    """Specialisation follows Triton."""
    assert describe_argument("x", x, KEYS) == told


SAMPLES = [0, 1, 2, 16, 17, -1, -16, 2 ** 31 - 1, 2 ** 31, 2 ** 31 + 1, 2 ** 40, 2 ** 63, 2 ** 63 + 16, 2 ** 63 + 1,
           True, False, 0.0, 1.0, 2.5, None, "a", "b", ALIGNED, SHIFTED, ALIGNED.view(ml_dtypes.bfloat16), np.int32(1),
           np.int32(3), np.float32(1), np.bool_(True), (1, 2), (1, True), tl.float32, tl.float16]


@pytest.mark.parametrize("align,ones", [(True, True), (False, True), (False, False)])
def test_equal_keys_mean_equal_descriptions(align, ones):
    """Two arguments with one key get the same kernel, so they must have the same description."""
    keys = ArgumentKeys(align, ones)
    for a in SAMPLES:
        for b in SAMPLES:
            if key(keys, a) == key(keys, b):
                assert repr(describe_argument("x", a, keys)) == repr(describe_argument("x", b, keys)), (a, b)


@pytest.mark.parametrize("x", SAMPLES, ids=repr)
def test_keys_are_hashable(x):
    """Keys of run-time arguments can be looked up."""
    hash(key(KEYS, x))


def test_constants_are_told_apart():
    """1, 1.0, True, "1" and signed zeros are different constants; NaN equals itself."""
    constants = [1, 1.0, True, "1", 0, 0.0, -0.0, False, None, (1,), (1.0,), (True,), float("nan")]
    keys = [key(ConstantKeys(), c) for c in constants]
    assert len(set(keys)) == len(constants)
    assert key(ConstantKeys(), float("nan")) == key(ConstantKeys(), float("nan"))


def test_do_not_specialize():
    """An argument that is left alone has one kernel for all values and alignments."""
    keys = ArgumentKeys(False, False)
    assert len({key(keys, n) for n in (1, 2, 16)}) == 1
    assert describe_argument("x", 1, keys) == describe_argument("x", 16, keys) == Param(DTYPES["int32"], 1)
    assert describe_argument("x", ALIGNED, keys) == Param(Ptr(DTYPES["fp16"]), 2)


@pytest.mark.parametrize("text,told", [
    ("*fp32", Param(Ptr(DTYPES["fp32"]), 16)), ("*bf16:2", Param(Ptr(DTYPES["bf16"]), 2)),
    ("i32", Param(DTYPES["int32"], 1)), ("int32", Param(DTYPES["int32"], 1)), ("i64:16", Param(DTYPES["int64"], 16)),
    ("u8", Param(DTYPES["uint8"], 1)), ("i1", Param(DTYPES["int1"], 1)), ("*i8", Param(Ptr(DTYPES["int8"]), 16)),
    ("fp32", Param(DTYPES["fp32"], 1)), ("relu", Const("relu")),
])
def test_types_as_text(text, told):
    """Text stands for a type where there is no array; other text is a constant."""
    assert describe_argument("x", text, KEYS, typed=True) == told
    assert describe_argument("x", text, KEYS) == Const(text)


def test_descriptor_as_text():
    """A descriptor has an element type and a block."""
    told = describe_argument("x", "desc<bf16[128x64]>", KEYS, typed=True)
    assert told.type == Desc(DTYPES["bf16"], (128, 64))


@pytest.mark.parametrize("text", ["*fp33", "**fp32", "desc<bf16>", "desc<bf99[8]>", "desc<bf16[axb]>"])
def test_wrong_types(text):
    """A type that is misspelt is no constant."""
    with pytest.raises(ArgumentError, match="unknown type"):
        describe_argument("x", text, KEYS, typed=True)


def test_stand_in():
    """Compiling takes an object that only knows its dtype and an address."""
    mock = types.SimpleNamespace(dtype=np.dtype(np.float32), data_ptr=lambda: 4)
    assert describe_argument("x", mock, KEYS, typed=True) == Param(Ptr(DTYPES["fp32"]), 4)
    with pytest.raises(ArgumentError, match="'x'"):
        describe_argument("x", mock, KEYS)


@pytest.mark.parametrize("x,annotated,hint", [
    (1.5, "int32", "int32"), (ALIGNED, "int32", "array of fp16"), (300, "int8", "does not fit int8"),
    (-1, "uint32", "does not fit uint32"), (2 ** 64, None, "64 bits"), (object(), None, "object"), ({}, None, "dict")])
def test_refused(x, annotated, hint):
    """Each error names the argument and what is wrong."""
    with pytest.raises(ArgumentError, match=hint) as caught:
        describe_argument("width", x, KEYS, DTYPES.get(annotated))
    assert "'width'" in str(caught.value) and isinstance(caught.value, TypeError)


@pytest.mark.parametrize("spelling", ["bf16", DTYPES["bf16"], ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)])
def test_dtype_spellings(spelling, monkeypatch):
    """Arrays are made with any spelling of a dtype."""
    monkeypatch.setenv("TILEJIT_TARGET", "evaluator")
    assert tilejit.empty(3, spelling).dtype == DTYPES["bf16"]


def test_import_is_light():
    """Importing tilejit loads neither torch nor the CUDA bindings nor numba."""
    heavy = ("torch", "numba", "llvmlite", "cuda.bindings")
    code = f"import sys, tilejit; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
