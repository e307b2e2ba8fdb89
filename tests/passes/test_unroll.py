"""Loops that do several iterations a trip: in the text, in the evaluator, in the emulator."""
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilejit
import tilejit.language as tl
from tilejit.errors import CompilationError
from tilejit.ir import walk
from tilejit.ir.evaluate import evaluate
from tilejit.ir.text import parse_function
from tilejit.ir.verify import verify
from tilejit.passes.unroll import unroll


def program(step: int, factor: int, lo: str = "%lo", hi: str = "%hi") -> str:
    """Two carried values, one of which depends on the other and on the order of iterations."""
    return ("kernel @k(%out: ptr<int32>, %lo: int32, %hi: int32) {num_warps=1} {\n"
            "  %one = const {value=1} : int32\n  %three = const {value=3} : int32\n"
            f"  %step = const {{value={step}}} : int32\n"
            f"  %sum, %n = for {lo}, {hi}, %step, %one, %one {{unroll={factor}}} : int32, int32 {{(%i: int32, %a: int32, %b: int32)\n"
            "    %x = mul %a, %three\n    %y = add %x, %i\n    %z = add %b, %a\n    yield %y, %z\n  }\n"
            "  store %out, %sum\n  %at = ptr_add %out, %one\n  store %at, %n\n  return\n}\n")


def result(fn, lo: int, hi: int) -> list[int]:
    out = np.zeros(2, np.int32)
    with np.errstate(over="ignore"):
        evaluate(fn, (1,), {"out": out, "lo": lo, "hi": hi})
    return out.tolist()


@given(st.integers(-20, 20), st.integers(-20, 20), st.sampled_from([1, 2, 3, -1, -4]), st.integers(1, 5))
def test_the_same_iterations_in_the_same_order(lo: int, hi: int, step: int, factor: int):
    text = program(step, factor)
    fn = unroll(parse_function(text))
    verify(fn)
    plain = parse_function(text.replace(f"{{unroll={factor}}} ", ""))
    assert result(fn, lo, hi) == result(plain, lo, hi)


def test_two_loops_and_a_line():
    fn = unroll(parse_function(program(2, 3)))
    main, rest = [op for op in walk(fn.body) if op.name == "for"]
    count = [sum(op.name == "mul" for op in walk(loop.regions[0])) for loop in (main, rest)]
    assert count == [3, 1] and "unroll" not in main.attrs and "unroll" not in rest.attrs
    assert [(x.kind, x.numbers["factor"]) for x in fn.attrs["report"]] == [("unrolled", 3)]


@tilejit.kernel
def nested(x, out, n, step, FACTOR: tl.constexpr):
    total = tl.zeros([32], tl.float32)
    for i in tl.range(0, n, loop_unroll_factor=FACTOR):
        for j in tl.range(0, i, step, loop_unroll_factor=2):
            total += tl.load(x + (i * 8 + j) * 32 + tl.arange(0, 32))
    tl.store(out + tl.arange(0, 32), total)


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("n", [0, 5, 7])
def test_in_kernels(target: str, n: int):
    """A step that is no constant leaves its loop as it is, and the report says so."""
    x, out = np.arange(7 * 8 * 32, dtype=np.float32).reshape(7, 8, 32), np.full(32, np.nan, np.float32)
    with tilejit.knobs(target=target):
        nested[(1,)](x, out, n, 2, FACTOR=3)
    np.testing.assert_array_equal(out, sum((x[i, j] for i in range(n) for j in range(0, i, 2)), np.zeros(32, np.float32)))


def test_the_report_says_what_was_unrolled():
    compiled = nested.compile("*fp32", "*fp32", "int32", "int32", FACTOR=4)
    assert "unrolled, 4 iterations a trip" in compiled.report() and "not unrolled, its step is no constant" in compiled.report()


def test_a_factor_is_a_number():
    @tilejit.kernel
    def wrong(out):
        for i in tl.range(0, 8, loop_unroll_factor=-2):
            tl.store(out + i, i)

    with pytest.raises(CompilationError, match="loop_unroll_factor must be a constant from 1 on, found -2"):
        wrong.compile("*int32")
