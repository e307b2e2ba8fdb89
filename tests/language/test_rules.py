"""Rules of Triton's language that need no table: types of tuples, numbers of one bit, division of fp8, errors."""
from __future__ import annotations

import pickle
import re

import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.errors import CompilationError
from tilejit.language.tensor import builtin


@tilejit.kernel
def bits(x, y, z, SYMBOL: tl.constexpr):
    at = tl.arange(0, 4)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(z + at, a + b if SYMBOL == "+" else a - b if SYMBOL == "-" else a * b)


@pytest.mark.parametrize("symbol, want", [("+", [0, 1, 1, 0]), ("-", [0, 1, 1, 0]), ("*", [0, 0, 0, 1])])
def test_numbers_of_one_bit_wrap(symbol, want):
    x, y, z = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool), np.zeros(4, bool)
    with tilejit.knobs(target="emulator"):
        bits[(1,)](x, y, z, symbol)
    assert z.tolist() == [bool(w) for w in want]


@tilejit.kernel
def types(out):
    scalar, tile = tl.load(out), tl.load(out + tl.arange(0, 4))
    pair = scalar, (tile, 3)
    tl.static_assert(scalar.type == tl.int32)
    tl.static_assert(tile.type != tl.int32)
    tl.static_assert(pair.type == tl.tuple_type([tl.int32, tl.tuple_type([tile.type, tl.int32])]))
    tl.static_assert(((1, 2), 3).type == ((1, 2), 3).type)
    tl.static_assert(((1, 2), 3).type != ((1, 2), 4).type)
    x, y = tl.full((8,), 1, tl.float16).to(tl.float8e5), tl.full((8,), 1, tl.float16).to(tl.float8e4nv)
    tl.static_assert((x / x).dtype == tl.float32)
    tl.static_assert((x % y).dtype == tl.float32)
    tl.static_assert((x / 2.0).dtype == tl.float32)
    tl.static_assert((x * x).dtype == tl.float8e5)


def test_types():
    types.compile("*int32")


@builtin
def pair_of(x, *, _semantic=None):
    """A function of an author, written for Triton: the builder has Triton's name."""
    assert _semantic is not None
    return [x, x]


@tilejit.kernel
def wrong(HOW: tl.constexpr):
    if HOW == 0:
        tl.static_assert(pair_of(3)[1] == 3)
        tl.arange(2, 7)
    elif HOW == 1:
        tl.full((4, 33), 0, tl.int32)
    elif HOW == 2:
        tl.program_id(20)
    elif HOW == 3:
        tl.expand_dims(tl.arange(0, 4), -3)
    elif HOW == 4:
        tl.full((4,), 1.0, tl.float32) ^ tl.full((4,), 1.0, tl.float32)
    elif HOW == 5:
        tl.full((4,), 1, tl.int64) % tl.full((4,), 1, tl.uint64)
    elif HOW == 6:
        tl.expand_dims(tl.arange(0, 4), (0, -3))
    elif HOW == 7:
        tl.histogram(tl.full((8,), 1, tl.int8), 4)
    elif HOW == 8:
        min(1.0, float("nan"))
    elif HOW == 9:
        max(1.0, -0.0)
    else:
        tl.arange(0, None)


@pytest.mark.parametrize("how, words", list(enumerate([
    "arange's range must be a power of 2", "Shape element 1 must be a power of 2",
    "program_id axis must be 0, 1, or 2 but got 20", "invalid axis -3", "invalid operands of type",
    "Cannot use % with int64 and uint64 because they have different signedness", "duplicate axes",
    "histogram only supports 32-bit integer input", "NaN and -0.0 have no order", "NaN and -0.0 have no order",
    "arange's arguments must be of type tl.constexpr"])))
def test_errors_have_the_words_of_triton(how, words):
    with pytest.raises(CompilationError, match=words):
        wrong.compile(how)


@tilejit.kernel
def one_element(x, y):
    at = tl.arange(0, 4)
    tl.static_assert((at[None, None:].shape == (1, 4)) and (at[:None, None].shape == (4, 1)))
    tl.static_assert((at[None:None:None].shape == (4,)) and (at[None, :, :].shape == (1, 4)))
    tl.static_assert(tl.sum(at < 2).dtype == tl.uint32)
    if tl.load(x + tl.arange(0, 1)) > 2:
        tl.store(y, tl.sum(at < 3, dtype=tl.int1).to(tl.int32))


@pytest.mark.parametrize("x, want", [(2, 7), (3, 1)])
def test_tiles_of_one_element_are_conditions(x, want):
    """And sums of booleans in their own type wrap; parts of slices may be None."""
    y = np.array([7], np.int32)
    with tilejit.knobs(target="evaluator"):
        one_element[(1,)](np.array([x], np.int32), y)
    assert y[0] == want


@tilejit.kernel
def promises(y, x, first, N: tl.constexpr, TOLD: tl.constexpr):
    at = tl.arange(0, N) + tl.load(first)
    for _ in range(2):
        if TOLD:
            tl.max_contiguous(tl.multiple_of(at, N), N)
        tl.store(y + at, tl.load(x + at))


def test_promises_that_are_statements():
    """They are about the variable, whose accesses are then wide."""
    texts = [promises.compile("*fp32:16", "*fp32:16", "*int32", 512, told).ptx for told in (False, True)]
    assert ["ld.global.v4" in text for text in texts] == [False, True]


@tilejit.kernel
def sliced(out):
    values = (5, 6, 7, 8)
    part = values[tl.slice(1, 3)]
    tl.static_assert(part == (6, 7))
    tl.store(out, part[1])


def test_slices_of_tuples():
    out = np.zeros(1, np.int32)
    with tilejit.knobs(target="evaluator"):
        sliced[(1,)](out)
    assert out[0] == 7


@tilejit.aggregate
class Square:
    x: tl.tensor

    @tilejit.must_use_result
    @tilejit.constexpr_function
    def power(self):
        return 2

    @tilejit.must_use_result
    @tilejit.kernel
    def area(self):
        return self.x * self.x


@tilejit.kernel
def dropped(out, KIND: tl.constexpr):
    square = Square(tl.load(out))
    if KIND == 0:
        square.area()
    elif KIND == 1:
        square.power()
    else:
        for _ in tl.range(0, 2, num_stages=0):
            tl.store(out, square.area() * square.power())


def test_results_that_must_be_used_and_loops_without_stages():
    for kind, name in enumerate(("area", "power")):
        with pytest.raises(CompilationError, match=f"The result of square.{name} is not being used"):
            dropped.compile("*int32", kind)
    out = np.array([3], np.int32)
    with tilejit.knobs(target="evaluator"):
        dropped[(1,)](out, 2)
    assert out[0] == 18
    assert dropped.compile("*int32", 2, num_stages=0).ptx == dropped.compile("*int32", 2, num_stages=1).ptx


@tilejit.kernel
def chosen(out):
    tl.store(out, tl.where(tl.load(out), 5, 7))


def test_a_condition_that_is_no_boolean_warns():
    out = np.array([2], np.int32)
    with tilejit.knobs(target="evaluator"), pytest.warns(UserWarning, match="non-boolean condition is deprecated. Got int32"):
        chosen[(1,)](out)
    assert out[0] == 5


@tilejit.kernel
def of_other_chips(x, KIND: tl.constexpr):
    tl.static_assert(KIND.primitive_bitwidth == 8)
    tl.static_assert(x.dtype.element_ty != KIND)
    tl.load(x).to(KIND)


@pytest.mark.parametrize("kind, mantissa", [(tl.float8e4b8, 3), (tl.float8e5b16, 2)])
def test_types_of_other_chips_have_names_only(kind, mantissa):
    assert kind.fp_mantissa_width == mantissa and kind.is_fp8() and pickle.loads(pickle.dumps(kind)) is kind
    with pytest.raises(CompilationError, match=f"type {kind.name} not supported in this architecture"):
        of_other_chips.compile("*fp32", kind)


def test_variables_of_enclosing_functions_are_constants():
    """As globals are: what was compiled with one value is not launched when it is another one."""
    step = 3

    @tilejit.kernel
    def stored(out):
        tl.store(out, step)

    out = np.zeros(1, np.int32)
    with tilejit.knobs(target="evaluator"):
        stored[(1,)](out)
        assert out[0] == 3
        step = 5
        with pytest.raises(RuntimeError, match="variable of an enclosing function step has changed .* from 3 to 5"):
            stored[(1,)](out)


@tilejit.kernel
def hinted(x, CACHE: tl.constexpr, EVICT: tl.constexpr, STORE: tl.constexpr):
    if STORE:
        tl.store(x, 1, cache_modifier=CACHE, eviction_policy=EVICT)
    else:
        tl.load(x, cache_modifier=CACHE, eviction_policy=EVICT)


@pytest.mark.parametrize("cache, evict, store, said", [
    (".bogus", "", False, "Cache modifier .bogus not supported: there are .ca"), (".ca", "", True, "Cache modifier .ca not supported"),
    ("", "evict_soon", False, "Eviction policy evict_soon not supported"), (".wb", None, False, "Cache modifier .wb")])
def test_hints_of_accesses_are_checked(cache, evict, store, said):
    """Also of a load that nothing uses."""
    with pytest.raises(CompilationError, match=re.escape(said)):
        hinted.compile("*fp32", cache, evict, store)
    hinted.compile("*fp32", None, "evict_first", store)


@tilejit.kernel
def too_many(x):
    tl.debug_barrier(x)


def test_counts_of_arguments_are_the_author_s():
    """They counted the builder, which no kernel passes."""
    with pytest.raises(CompilationError, match=r"debug_barrier\(\) takes 0 positional arguments but 1 were? given") as e:
        too_many.compile("*fp32")
    assert "keyword-only" not in str(e.value)
