"""Checks at run time, and members of tensors that are also functions."""
import numpy as np
import pytest
from run import TARGETS, equal

import tilejit
import tilejit.language as tl
from tilejit.errors import TileJitError


@tilejit.kernel
def checked(y, x, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at)
    tl.device_assert(v > 0, "positive", mask=at < N // 2)
    (y + at).store(tl.expect_zero(v, v == 0))


@pytest.mark.parametrize("target", TARGETS)
def test_an_assertion_holds_where_its_mask_is_true(target):
    x = np.ones(64, np.int32)
    x[40] = -1
    y = np.zeros_like(x)
    with tilejit.knobs(target=target):
        checked[(1,)](y, x, N=64, debug=True)
        np.testing.assert_array_equal(y, x)
        x[7] = 0
        checked[(1,)](y, x, N=64)
        with pytest.raises(TileJitError, match="positive"):
            checked[(1,)](y, x, N=64, debug=True)


@tilejit.kernel
def logical(y, z, x, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at)
    tl.store(y + at, v.logical_and(at > 3))
    tl.store(z + at, v.logical_or(at > 3))


def test_logic_of_numbers():
    x = np.arange(32, dtype=np.int32) % 3
    late = np.arange(32) > 3
    equal(logical, [(x != 0) & late, (x != 0) | late], x, N=32)


@tilejit.kernel
def computed(z, x, y, SYMBOL: tl.constexpr, CHECKED: tl.constexpr):
    a, b = tl.load(x), tl.load(y)
    if not CHECKED:
        c = tl.add(a, b, sanitize_overflow=False)
    else:
        c = a + b if SYMBOL == "+" else a - b if SYMBOL == "-" else a * b
    tl.store(z, c)


@pytest.mark.parametrize("symbol,x,y,dtype,name", [
    ("+", 2 ** 31 - 1, 1, np.int32, "int32 overflow detected for operation add"), ("+", 2 ** 31 - 2, 1, np.int32, ""),
    ("-", -2 ** 15, 1, np.int16, "int16 overflow detected for operation sub"), ("-", 0, 1, np.uint8, "int8 overflow"),
    ("*", -2 ** 30, 2, np.int32, ""), ("*", 2 ** 30, 2, np.int32, "int32 overflow detected for operation mul")])
def test_overflow_is_found_in_kernels_compiled_for_debugging(symbol, x, y, dtype, name):
    with np.errstate(over="ignore"):
        a, b = np.array([x], dtype), np.array([y], dtype)
        want = {"+": a + b, "-": a - b, "*": a * b}[symbol]
    z = np.zeros_like(a)
    with tilejit.knobs(target="evaluator"):
        for options in ({}, {"debug": True, "sanitize_overflow": False}, *([] if name else [{"debug": True}])):
            computed[(1,)](z, a, b, symbol, True, **options)
            assert z[0] == want[0]
        computed[(1,)](z, a, b, "+", False, debug=True)
        if name:
            with pytest.raises(TileJitError, match=name):
                computed[(1,)](z, a, b, symbol, True, debug=True)
    assert "__assertfail" in computed.compile(z, a, b, symbol, True, debug=True).ptx
