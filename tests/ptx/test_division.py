"""Division of integers by constants, without a division."""
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tilejit
import tilejit.language as tl
from tilejit.ir import numeric
from tilejit.ptx.division import multiplier


@tilejit.kernel
def divide(x, quotients, rests, D: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    tl.store(quotients + i, v // D)
    tl.store(rests + i, v % D)


def edges_of(dtype, d):
    """Numbers where quotients change, and the ends of the type."""
    info = np.iinfo(dtype)
    some = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, -1, -2]
    some += [k * abs(d) + e for k in (-3, -2, -1, 1, 2, 3, info.max // abs(d)) for e in (-1, 0, 1)]
    fitting = [v for v in some if info.min <= v <= info.max]
    drawn = np.random.default_rng(d & 0xFFFF).integers(info.min, info.max, 128 - len(fitting), dtype, endpoint=True)
    return np.concatenate([np.array(fitting, dtype), drawn])


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64], ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("d", [2, 3, 7, 10, 641, 768, 4096, 50257, 2 ** 31 - 1, -3, -8, -50257])
def test_by_constants(dtype, d):
    if d < 0 and np.dtype(dtype).kind == "u":
        d = -d + 1
    x = edges_of(dtype, d)
    q, r = np.zeros_like(x), np.zeros_like(x)
    with tilejit.knobs(target="emulator"):
        k = divide[(1,)](x, q, r, D=d, N=128)
    assert "div." not in k.asm["ptx"].replace("// ", "") and "rem." not in k.asm["ptx"]
    assert (q == numeric.idiv(x, np.full_like(x, d))).all() and (r == numeric.irem(x, np.full_like(x, d))).all()


@settings(max_examples=300, deadline=None)
@example(bits=32, signed=False, d=7, n=2 ** 32 - 1)
@given(bits=st.sampled_from([32, 64]), signed=st.booleans(), d=st.integers(2, 2 ** 64 - 1), n=st.integers(0, 2 ** 64 - 1))
def test_multipliers(bits, signed, d, n):
    top = 1 << bits - signed
    d, n = max(2, d % top), n % top
    m, s = multiplier(d, bits, signed)
    assert m < 1 << bits + (not signed)
    for v in (n, top - 1, top - top % d - 1, top - top % d if top % d else 0):
        assert v * m >> bits + s == v // d
        if signed:
            assert (-v * m >> bits + s) + (v > 0) == -(v // d)
