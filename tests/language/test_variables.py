"""Numbers that variables hold have a type of their own beside tensors; plain ones take the tensor's."""
import numpy as np
import pytest

import tilejit
import tilejit.language as tl

SEVEN: tl.constexpr = tl.constexpr(7)


@tilejit.kernel
def answer():
    return 5


@tilejit.kernel
def plus(x, c):
    return x + c


@tilejit.kernel
def types(x, N: tl.constexpr, COUNT: tl.constexpr, HALF: tl.constexpr):
    tile = tl.load(x + tl.arange(0, N))
    own: tl.constexpr = 5
    count, (half, flag), size = 5, (0.5, True), N
    other = -SEVEN
    chosen = 3 if N > 2 else 2
    for constant in (own, SEVEN, N, 5, flag):
        tl.static_assert((tile + constant).dtype == tile.dtype)
    tl.static_assert((tile + 0.5).dtype == HALF)
    for variable in (count, size, other, chosen, count * 2, -count, 2 * count + 1):
        tl.static_assert((tile + variable).dtype == COUNT)
        tl.static_assert(plus(tile, variable).dtype == COUNT)
        tl.static_assert(tl.where(tile > 0, tile, variable).dtype == COUNT)
    tl.static_assert((tile * half).dtype == tl.float32)
    tl.static_assert((tile * (half / 2)).dtype == tl.float32)
    tl.static_assert((tile + answer()).dtype == COUNT)
    tl.static_assert(plus(tile, 5).dtype == tile.dtype)
    count += 1
    tl.static_assert((tile + count).dtype == COUNT)
    tl.static_assert((tile + (named := 4)).dtype == COUNT)
    tl.static_assert((tile + named).dtype == COUNT)
    tl.static_assert((1, count).type == tl.tuple_type([tl.constexpr_type(1), tl.int32]))
    tl.static_assert(tl.zeros((size,), tl.int32).shape[0] == N)


@pytest.mark.parametrize("dtype, count, half", [
    ("int8", tl.int32, tl.float32), ("uint8", tl.int32, tl.float32), ("int16", tl.int32, tl.float32),
    ("uint32", tl.uint32, tl.float32), ("int64", tl.int64, tl.float32), ("fp16", tl.float16, tl.float16),
    ("bf16", tl.float32, tl.bfloat16), ("fp32", tl.float32, tl.float32)])
def test_types(dtype, count, half):
    types.compile("*" + dtype, 4, count, half)


@tilejit.kernel
def folded(x, out):
    i = tl.arange(0, 4)
    tile = tl.load(x + i)
    low = (1 - SEVEN) << 29
    tl.store(out + i, tile + low)                # wraps, as sums of uint32 and int32 do
    odd, big = -7, 1 << 30
    tl.store(out + 4, odd // 2)
    tl.store(out + 5, odd % 4)
    tl.store(out + 6, big * 4 + 3)
    tl.store(out + 7, (big * 2) >> 30)


def test_constants_of_variables_are_computed_in_their_type():
    x, out = np.full(4, 5, np.uint32), np.zeros(8, np.uint32)
    with tilejit.knobs(target="emulator"):
        folded[(1,)](x, out)
    assert (out[:4] == np.uint32((5 - (6 << 29)) % (1 << 32))).all()
    assert out[4:].view(np.int32).tolist() == [-3, -3, 3, -2]


@tilejit.kernel
def halved(x, out):
    i = tl.arange(0, 32)
    tenth = 0.1
    tl.store(out + i, tl.load(x + i) * tenth * 10.0)


def test_floats_of_variables_do_not_round_to_halves():
    x, out = np.arange(1, 33).astype(np.float16), np.zeros(32, np.float32)
    with tilejit.knobs(target="emulator"):
        halved[(1,)](x, out)
    np.testing.assert_allclose(out, x.astype(np.float32), rtol=3e-7)


@tilejit.kernel
def converted(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    whole = tl.load(x + i)
    tl.store(out + i, tl.cast(3, whole.type.with_element_ty(tl.int32)) + tl.cast(2.7, tl.sum(whole, 0).type))


def test_casts_take_types_of_values():
    x, out = np.ones(4, np.int32), np.zeros(4, np.int32)
    with tilejit.knobs(target="emulator"):
        converted[(1,)](x, out, 4)
    assert (out == 5).all()


@tilejit.kernel
def ones(out, SIZE: tl.constexpr):
    tl.store(out + tl.arange(0, 1), tl.full([SIZE], 1, tl.int32))


def test_a_size_may_be_true():
    out = np.zeros(1, np.int32)
    with tilejit.knobs(target="emulator"):
        ones[(1,)](out, True)
    assert out[0] == 1


@tilejit.kernel
def annotated_before(out):
    width: tl.constexpr
    if (width := SEVEN) != 4:
        tl.static_assert(isinstance(width.type, tl.constexpr_type))
    count: tl.constexpr
    count = 8
    tl.store(out + tl.arange(0, count), tl.full((count,), width, tl.int8) + count)
    tl.static_assert((tl.zeros((8,), tl.int8) + count).dtype == tl.int8)


def test_names_annotated_before_they_have_a_value_are_constants():
    """`x: tl.constexpr`, then x = .. or x := .., as in Triton 3.9."""
    out = np.zeros(8, np.int8)
    with tilejit.knobs(target="evaluator"):
        annotated_before[(1,)](out)
    assert (out == 15).all()
