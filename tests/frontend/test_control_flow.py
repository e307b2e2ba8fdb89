"""Control flow and names, one thing a kernel: what plain Python would store, and clear errors for what is left out."""
from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.frontend import Const, Param, build
from tilejit.ir.evaluate import evaluate
from tilejit.ir.types import Ptr, int32

SHADOWED = 7
ON, OFF = True, False


class Pair(NamedTuple):
    """Two values by name."""

    left: int
    right: int


def stores(kernel, n, m=0, **constants):
    """What a kernel stores to its first eight slots (-1: nothing)."""
    args = {"out": Param(Ptr(int32)), "n": Param(int32), "m": Param(int32), **{k: Const(v) for k, v in constants.items()}}
    names = kernel.source.signature.parameters
    fn = build(kernel.source, {k: args[k] for k in names}, {"num_warps": 4, "num_stages": 1})
    out = np.full(8, -1, np.int32)
    evaluate(fn, 1, {k: v for k, v in {"out": out, "n": n, "m": m}.items() if k in names})
    return out.tolist()


# -- return ---------------------------------------------------------------------------------------------
@tilejit.kernel
def return_below_a_constant_if(out, n):
    if ON:
        if n > 3:
            tl.store(out, 1)
            return
    tl.store(out + 1, 2)


@tilejit.kernel
def returns_twice(out, n, m):
    if n > 0:
        if m > 0:
            return
        tl.store(out, 1)
    tl.store(out + 1, 2)


@tilejit.kernel
def sign(x):
    if OFF:
        return 5
    if x == 0:
        return 0
    elif x < 0:
        return -1
    return 1


@tilejit.kernel
def calls_sign(out, n):
    tl.store(out, sign(n))
    tl.store(out + 1, sign(-n))


@tilejit.kernel
def dead_names_after_return(out, n):
    if n > 0:
        x = tl.zeros([16], tl.float32)
        tl.store(out, 1)
        return
    else:
        x = 3
    tl.store(out + 1, x)


# -- and, or, not, in, comparisons ----------------------------------------------------------------------
@tilejit.kernel
def note(out, value):
    tl.store(out, value)
    return value


@tilejit.kernel
def and_or_values(out, n, m):
    tl.store(out, n and m)
    tl.store(out + 1, n or m)
    tl.store(out + 2, n or 9)
    tl.store(out + 3, (n > 1) and m)
    tl.store(out + 4, 0 or n)
    tl.store(out + 5, 3 and n)


@tilejit.kernel
def and_or_effects(out, n, m):
    if n > 0 and note(out, m) > 1:
        tl.store(out + 1, 1)
    if n > 0 or note(out + 2, m):
        tl.store(out + 3, 1)


@tilejit.kernel
def chain_effects(out, n, m):
    tl.store(out, 0 < n < note(out + 1, m))


@tilejit.kernel
def guarded_load(out, n):
    if n < 8 and tl.load(out + n) < 0:
        tl.store(out, 1)


@tilejit.kernel
def is_in_tuple(out, n, m):
    tl.store(out, n in (1, m, 3))
    tl.store(out + 1, n not in (1, m, 3))
    tl.store(out + 2, 1 in (n, m))


# -- names ----------------------------------------------------------------------------------------------
@tilejit.kernel
def walrus_in_ternary(out, n):
    x = 1
    y = (x := 5) if n > 0 else 2
    tl.store(out, x)
    tl.store(out + 1, y)


@tilejit.kernel
def walrus_after_and(out, n):
    x = 1
    if n > 0 and (x := n + 1) > 3:
        tl.store(out + 1, x)
    tl.store(out, x)


@tilejit.kernel
def walrus_in_comprehension(out, n):
    x = 1
    values = [(x := x + i) for i in (n, 2)]
    tl.store(out, x)
    tl.store(out + 1, values[0])


@tilejit.kernel
def star(out, n):
    first, *middle, last = n, 2, 3, 4
    tl.store(out, first)
    tl.store(out + 1, middle[1])
    tl.store(out + 2, last)
    tl.store(out + 3, len(middle))


@tilejit.kernel
def tuples_in_if(out, n):
    t = (1, (2, 3)) if n > 0 else (4, (n, 6))
    pair = Pair(n, 1)
    if n > 0:
        pair = Pair(7, n)
    tl.store(out, t[1][0])
    tl.store(out + 1, pair.left)


# -- loops ------------------------------------------------------------------------------------------------
@tilejit.kernel
def variable_after_loop(out, n):
    i = 5
    for i in range(0, n, 2):
        pass
    tl.store(out, i)


@tilejit.kernel
def variable_changed_in_loop(out, n):
    i = 5
    for i in range(n):
        i = i * 10
    tl.store(out, i)


@tilejit.kernel
def counts_down(out, n):
    at = 0
    for i in range(n, 0, -2):
        tl.store(out + at, i)
        at += 1


@tilejit.kernel
def walrus_in_while(out, n):
    x = 0
    steps = 0
    while (x := x + 2) < n:
        steps += x
    tl.store(out, x)
    tl.store(out + 1, steps)


@tilejit.kernel
def none_until_set(out, n):
    bias = None
    for i in range(n):
        bias = i + 1
        if bias is not None:
            tl.store(out, bias)


@tilejit.kernel
def constant_if_in_loop(out, n, FAST: tl.constexpr):
    step = 1
    for i in range(n):
        if FAST:
            step = step + i
        tl.store(out + i, step)


CASES = [
    (return_below_a_constant_if, (2,), {}, [-1, 2]),
    (return_below_a_constant_if, (5,), {}, [1, -1]),
    (returns_twice, (1, 1), {}, [-1, -1]),
    (returns_twice, (1, 0), {}, [1, 2]),
    (returns_twice, (0, 1), {}, [-1, 2]),
    (calls_sign, (4,), {}, [1, -1]),
    (dead_names_after_return, (1,), {}, [1, -1]),
    (dead_names_after_return, (0,), {}, [-1, 3]),
    (and_or_values, (2, 5), {}, [5, 2, 2, 5, 2, 2]),
    (and_or_values, (0, 5), {}, [0, 5, 9, 0, 0, 0]),
    (and_or_effects, (0, 5), {}, [-1, -1, 5, 1]),
    (and_or_effects, (1, 5), {}, [5, 1, -1, 1]),
    (chain_effects, (0, 4), {}, [0, -1]),
    (chain_effects, (2, 4), {}, [1, 4]),
    (guarded_load, (100,), {}, [-1]),
    (guarded_load, (3,), {}, [1]),
    (is_in_tuple, (4, 4), {}, [1, 0, 0]),
    (is_in_tuple, (5, 1), {}, [0, 1, 1]),
    (walrus_in_ternary, (0,), {}, [1, 2]),
    (walrus_in_ternary, (1,), {}, [5, 5]),
    (walrus_after_and, (0,), {}, [1, -1]),
    (walrus_after_and, (4,), {}, [5, 5]),
    (walrus_in_comprehension, (4,), {}, [7, 5]),
    (star, (1,), {}, [1, 3, 4, 2]),
    (tuples_in_if, (1,), {}, [2, 7]),
    (tuples_in_if, (0,), {}, [0, 0]),
    (variable_after_loop, (5,), {}, [4]),
    (variable_after_loop, (0,), {}, [5]),
    (variable_changed_in_loop, (3,), {}, [20]),
    (counts_down, (5,), {}, [5, 3, 1, -1]),
    (walrus_in_while, (5,), {}, [6, 6]),
    (none_until_set, (3,), {}, [3]),
    (constant_if_in_loop, (3,), {"FAST": True}, [1, 2, 4]),
    (constant_if_in_loop, (3,), {"FAST": False}, [1, 1, 1]),
]


@pytest.mark.parametrize("kernel,args,constants,expected", CASES, ids=[f"{k.__name__}{a}" for k, a, _, _ in CASES])
def test_as_python(kernel, args, constants, expected):
    assert stores(kernel, *args, **constants)[:len(expected)] == expected


# -- what is refused -----------------------------------------------------------------------------------------
@tilejit.kernel
def float_into_int(out, n):
    x = 0
    for _ in range(n):
        x = 1.5
    tl.store(out, x)


@tilejit.kernel
def number_into_bool(out, n):
    x = True
    for _ in range(n):
        x = 5
    tl.store(out, x)


@tilejit.kernel
def number_or_bool(out, n):
    x = n > 1
    if n > 3:
        x = 5
    tl.store(out, x)


@tilejit.kernel
def stale_none(out, n):
    x = None
    for i in range(n):
        if x is None:
            tl.store(out, i)
        x = i


@tilejit.kernel
def none_after_loop(out, n):
    x = None
    for i in range(n):
        x = i
    if x is None:
        tl.store(out, 1)


@tilejit.kernel
def tuple_shapes(out, n):
    t = (1, (2, 3))
    if n > 0:
        t = ((4, n), 6)
    tl.store(out, t[0])


@tilejit.kernel
def tuple_shapes_in_loop(out, n):
    t = (1, (2, n))
    for i in range(n):
        t = ((i, 5), 6)
    tl.store(out, t[0])


@tilejit.kernel
def global_before_local(out, n):
    tl.store(out, SHADOWED)  # noqa: F823
    SHADOWED = n  # noqa: F841


@tilejit.kernel
def global_behind_loop(out, n):
    for SHADOWED in range(n):
        tl.store(out, SHADOWED)
    tl.store(out, SHADOWED)


@tilejit.kernel
def runtime_comprehension(out, n):
    tl.store(out, len([i for i in (1, 2, 3) if i < n]))


@tilejit.kernel
def compares_tuples(out, n, m):
    if (n, 1) == (m, 1):
        tl.store(out, 1)


@tilejit.kernel
def identity(out, n):
    if (n > 1) is True:
        tl.store(out, 1)


@tilejit.kernel
def endless(out, n):
    while True:
        tl.store(out, n)


@tilejit.kernel
def new_name_in_while(out, n):
    while (x := tl.load(out)) < n:
        tl.store(out, x + 1)


@tilejit.kernel
def range_keyword(out, n):
    for i in range(0, n, by=2):
        tl.store(out, i)


@tilejit.kernel
def spreads_number(out, n):
    tl.store(*n)


@tilejit.kernel
def bad_constant(out, n):
    tl.store(out, int("seven"))


@tilejit.kernel
def bad_minus(out, n):
    tl.store(out, -"seven")


@tilejit.kernel
def star_too_short(out, n):
    a, b, *c = (n,)
    tl.store(out, a + b + c[0])


@tilejit.kernel
def min_with_key(out, n, m):
    tl.store(out, min(n, m, key=abs))


@tilejit.kernel
def divides_booleans(out, n, m):
    tl.store(out, (n > 0) // (m > 0))


@tilejit.kernel
def negates_boolean(out, n):
    tl.store(out, -(n > 0))


REFUSED = [
    (divides_booleans, "(n > 0) // (m > 0)", "count with .to(tl.int32)"),
    (negates_boolean, "-(n > 0)", "use ~x"),
    (float_into_int, "tl.store(out, x)", "'x' is int32 before the loop"),
    (number_into_bool, "tl.store(out, x)", "'x' is int1 before the loop"),
    (number_or_bool, "tl.store(out, x)", "'x' has type int32 after one branch and int1"),
    (stale_none, "if x is None", "'x' is None before the loop"),
    (none_after_loop, "if x is None", "'x' is None before the loop"),
    (tuple_shapes, "t[0]", "after one branch and"),
    (tuple_shapes_in_loop, "t[0]", "before the loop"),
    (global_before_local, "tl.store(out, SHADOWED)", "'SHADOWED' has no value here"),
    (global_behind_loop, "tl.store(out, SHADOWED)", "which may not run"),
    (runtime_comprehension, "if i < n", "needs a constant"),
    (compares_tuples, "(n, 1) == (m, 1)", "compare their elements"),
    (identity, "is True", "with =="),
    (endless, "while True", "never ends"),
    (new_name_in_while, "tl.store(out, x + 1)", "before the loop"),
    (range_keyword, "by=2", "unexpected keyword argument 'by'"),
    (spreads_number, "tl.store(*n)", "spreads a tuple"),
    (bad_constant, 'int("seven")', "invalid literal"),
    (bad_minus, '-"seven"', "bad operand"),
    (star_too_short, "a, b, *c", "cannot unpack 1 values into 3 names"),
    (min_with_key, "key=abs", "no keywords"),
]


@tilejit.kernel
def runtime_step(out, n, m):
    for i in range(n, 0, m):
        tl.store(out, i)


def test_runtime_step_must_be_positive():
    """Its direction is not known at compile time."""
    assert stores(runtime_step, -3, 2)[0] == -1
    with pytest.raises(tilejit.CompilationError, match="the loop's step is -1"):
        stores(runtime_step, 3, -1)


@pytest.mark.parametrize("kernel,line,hint", REFUSED, ids=[k.__name__ for k, _, _ in REFUSED])
def test_refused(kernel, line, hint):
    """What cannot be built as Python means it is an error at the user's line."""
    with pytest.raises(tilejit.CompilationError) as caught:
        stores(kernel, 1)
    assert line in str(caught.value) and hint in str(caught.value), str(caught.value)


@tilejit.kernel
def counter_behind_loop(out, N: tl.constexpr):
    for i in range(N - 1, -1, -2):
        tl.store(out + i, i)
    tl.store(out + N, i + 10)


def test_the_counter_of_a_loop_that_surely_runs_has_its_last_value():
    out = np.zeros(6, np.int32)
    with tilejit.knobs(target="evaluator"):
        counter_behind_loop[(1,)](out, 5)
    assert out.tolist() == [0, 0, 2, 0, 4, 10]
    with pytest.raises(tilejit.CompilationError, match="which may not run"):
        counter_behind_loop.compile(out, 0)


@tilejit.kernel
def with_constants(out, n, WITH: tl.constexpr):
    first = n > 1
    if WITH:
        z = n + 1
    if first and WITH:
        tl.store(out, z)
    both = WITH and first and not not WITH
    if both:
        tl.store(out + 1, z)
    if first or not WITH:
        tl.store(out + 2, 1)
    for i in range(n):
        if i > 0 and WITH and first:
            z += i
    if WITH:
        tl.store(out + 3, z)


def test_a_constant_decides_beside_what_runs():
    """`tensor and False` is False before the program runs: what only the other case defines may be named."""
    assert stores(with_constants, 3, WITH=True)[:4] == [4, 4, 1, 7]
    assert stores(with_constants, 1, WITH=True)[:4] == [-1, -1, -1, 2]
    assert stores(with_constants, 1, WITH=False)[:4] == stores(with_constants, 3, WITH=False)[:4] == [-1, -1, 1, -1]


@tilejit.kernel
def asserts(out, N: tl.constexpr):
    assert N == 4, "N is four"
    tl.store(out, N)


def test_constants_are_asserted_where_assertions_are():
    """As in Triton, which ignores assertions but for debugging."""
    assert "assertion failed, which counts with debug=True: N is four" in asserts.compile("*int32", 3).report()
    assert "assertion" not in asserts.compile("*int32", 4, debug=True).report()
    with pytest.raises(tilejit.CompilationError, match="assertion failed: N is four"):
        asserts.compile("*int32", 3, debug=True)
