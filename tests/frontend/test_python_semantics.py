"""Kernels mean what Python says: random programs, run as plain Python and through the frontend."""
from __future__ import annotations

import os

import hypothesis.strategies as st
import numpy as np
from hypothesis import HealthCheck, Phase, event, given, reject, settings
from python_programs import SLOTS, Int, Overflow, Pointer, load, load_plain, programs

import tilejit
import tilejit.language as tl
from tilejit.frontend import Const, Param, build
from tilejit.ir.evaluate import evaluate
from tilejit.ir.types import Ptr, int32
from tilejit.ir.verify import verify

#: How the frontend says no to a program that it cannot build; anything else is a bug.
REFUSALS = ("is not defined on every path", "has no value here", "is bound by the", "before the loop", "after one branch",
            "NaN and -0.0 have no order")
EXAMPLES = int(os.environ.get("TILEJIT_TEST_PROGRAMS", "60"))
SMALL = st.integers(-3, 6)


def plain(text, p, q, r, k):
    """What the program stores, in plain Python; None where it reads an unbound name."""
    out = [-99] * SLOTS
    try:
        load_plain(text)["main"](Pointer(out), Int(p), Int(q), Int(r), Int(k))
    except Overflow:
        reject()
    except NameError:
        return None
    return [int(v) for v in out]


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck),
          phases=[p for p in Phase if p != Phase.explain])
@given(programs(), st.integers(0, 3), st.lists(st.tuples(SMALL, SMALL, SMALL), min_size=4, max_size=4, unique=True))
def test_programs(text, k, inputs):
    """Every store of a program, on several inputs."""
    source = load(text, tilejit.kernel, tl)["main"].source
    args = {"out": Param(Ptr(int32)), "p": Param(int32), "q": Param(int32), "r": Param(int32), "K": Const(k)}
    try:
        fn = build(source, args, {"num_warps": 4, "num_stages": 1})
        verify(fn)
    except tilejit.CompilationError as error:
        assert error.loc is not None and any(r in str(error) for r in REFUSALS), f"{text}\n{error}"
        event("refused")
        return
    for p, q, r in inputs:
        expected = plain(text, p, q, r, k)
        out = np.full(SLOTS, -99, np.int32)
        evaluate(fn, 1, {"out": out, "p": p, "q": q, "r": r})
        assert expected == out.tolist(), f"p, q, r, K = {p, q, r, k}\n{text}\n{fn}"


@settings(max_examples=max(6, EXAMPLES // 10), deadline=None, suppress_health_check=list(HealthCheck),
          phases=[p for p in Phase if p != Phase.explain])
@given(programs(), st.integers(0, 3), SMALL, SMALL, SMALL)
def test_programs_as_ptx(text, k, p, q, r):
    """The same through the whole compiler: what the emitted PTX does, with arguments specialised as in any launch."""
    expected = plain(text, p, q, r, k)
    out = np.full(SLOTS, -99, np.int32)
    try:
        with tilejit.knobs(target="emulator", cache=False):
            load(text, tilejit.kernel, tl)["main"][(1,)](out, p, q, r, k, num_warps=1)
    except tilejit.CompilationError as error:
        assert any(r in str(error) for r in REFUSALS), f"{text}\n{error}"
        return
    assert expected == out.tolist(), f"p, q, r, K = {p, q, r, k}\n{text}"
