"""Operators and conversions on tensors, against numpy, in the evaluator and as PTX in the emulator."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl

N = 64


@pytest.fixture(params=["evaluator", "emulator"], autouse=True)
def target(request):
    with tilejit.knobs(target=request.param):
        yield


@tilejit.kernel
def shift_right(x, y, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + at) >> tl.load(y + at))


@pytest.mark.parametrize("left, right, common", [("int32", "uint32", "uint32"), ("uint32", "int32", "uint32"),
                                                 ("int16", "uint32", "uint32"), ("int8", "uint8", "uint8"),
                                                 ("int64", "uint64", "uint64"), ("int32", "uint64", "uint64"),
                                                 ("uint8", "int32", "int32"), ("int32", "int64", "int64")])
def test_a_shift_goes_by_its_left_operand(left, right, common):
    """The sign is shifted in where the left operand is signed, whatever the common type."""
    info = np.iinfo(left)
    x = np.random.default_rng(0).integers(info.min, info.max, N, left, endpoint=True)
    x[:2] = info.min, info.max
    amounts = np.arange(N) % np.iinfo(common).bits
    out = np.zeros(N, common)
    shift_right[(1,)](x, amounts.astype(right), out, N)
    exact = np.array([int(v) >> int(a) for v, a in zip(x, amounts)], object)
    assert out.tolist() == [v % 2 ** np.iinfo(common).bits if common[0] == "u" else v for v in exact]


@tilejit.kernel
def shift_of_a_number(y, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, -64 >> tl.load(y + at))


def test_a_shifted_number_has_the_other_operands_type():
    y, out = np.arange(N, dtype=np.int32) % 8, np.zeros(N, np.int32)
    shift_of_a_number[(1,)](y, out, N)
    np.testing.assert_array_equal(out, -64 >> y)


@tilejit.kernel
def toward_zero(x, y, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y + at, tl.load(x + at).to(y.dtype.element_ty, fp_downcast_rounding="rtz"))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_rtz_never_grows(dtype):
    x = np.random.default_rng(0).normal(size=N).astype(np.float32)
    y = np.zeros(N, dtype)
    toward_zero[(1,)](x, y, N)
    found, nearest = np.abs(y.astype(np.float64)), np.abs(x.astype(dtype).astype(np.float64))
    assert (found <= np.abs(x)).all() and (found >= nearest * 0.8).all()
    assert (found < nearest).sum() > N // 5


@tilejit.kernel
def bad_rounding(x, MODE: tl.constexpr, TO: tl.constexpr):
    tl.store(x, tl.load(x).to(TO, fp_downcast_rounding=MODE).to(tl.float32))


@pytest.mark.parametrize("mode, to, words", [("up", tl.float16, "Supported rounding modes are 'rtne' and 'rtz'"),
                                             ("rtz", tl.int32, "only for truncating fp conversions")])
def test_rounding_modes_that_are_none(mode, to, words):
    with pytest.raises(tilejit.CompilationError, match=words):
        bad_rounding[(1,)](np.zeros(1, np.float32), mode, to)


@tilejit.kernel
def asks_for_types(x, n, out):
    if isinstance(x.dtype, tl.pointer_type):
        tl.store(out, 1)
    if not isinstance(n.dtype, tl.pointer_type):
        tl.store(out + 1, 1)
    if x.dtype.is_ptr() and x.dtype.element_ty == tl.float32 and x.dtype == tl.pointer_type(tl.float32):
        tl.store(out + 2, 1)
    tl.store(out + 3, tl.load(x.to(x.dtype)))


def test_types_of_pointers():
    out = np.zeros(4, np.int32)
    asks_for_types[(1,)](np.full(1, 7, np.float32), 3, out)
    assert out.tolist() == [1, 1, 1, 7]


@tilejit.kernel
def flat_block(x, y, rows, columns, stride, A: tl.constexpr, B: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [rows, columns], [stride, 1], [A, B])
    into = tl.make_tensor_descriptor(y, [rows, columns], [stride, 1], [A, B])
    i = tl.program_id(0) * A
    flat = source.load([i, 0]).reshape([A * B]) + tl.arange(0, A * B)
    into.store([i, 0], flat.reshape([A, B]))


@pytest.mark.parametrize("a, b", [(4, 32), (1, 64)])
def test_a_block_as_one_row(a, b):
    """A block is only merged into a flat tile where its rows stay rows."""
    x = np.random.default_rng(0).integers(0, 99, (8, b)).astype(np.int32)
    y = np.zeros_like(x)
    flat_block[(8 // a,)](x, y, 8, b, b, a, b)
    np.testing.assert_array_equal(y, x + np.tile(np.arange(a * b).reshape(a, b), (8 // a, 1)))


@tilejit.kernel
def say(x):
    print("x:", x)
    print("y: ", x)
    print("z ", x)


@pytest.mark.remarks("stack", "C7510", reason="vprintf")
def test_print_has_one_colon(capfd):
    say[(1,)](5)
    assert [line.split(" idx () ")[1] for line in capfd.readouterr().out.splitlines()] == ["x: 5", "y: 5", "z: 5"]
