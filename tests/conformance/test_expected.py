"""The emulator against numpy on the same programs, where numpy knows the answer: independent of any recording."""
from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from compare import bits, emulate
from programs import Buffer, Program, all_programs

PROGRAMS = all_programs()
Function = Callable[..., np.ndarray]


def clip(low: int, high: int) -> Function:
    return lambda a, b: np.clip(a.astype(np.int64) + b, low, high)


#: Results by label: "opcode" -> function of the inputs. Values are compared after a cast to the result's type.
EXPECTED: dict[str, Function] = {
    **{f"{op}.rn.{t}": f for t in ("f32", "f64") for op, f in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div", np.divide))},
    **{f"{op}.rn.{t}": lambda a, b, f=f: f(a.astype(np.float64), b.astype(np.float64)) for t in ("f16", "f16x2")
       for op, f in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply))},
    "sqrt.rn.f32": np.sqrt, "sqrt.rn.f64": np.sqrt, "rcp.rn.f32": lambda a: np.float32(1) / a,
    **{f"{op}.{t}": f for t in ("u16", "u32", "u64", "s16", "s32", "s64")
       for op, f in (("add", np.add), ("sub", np.subtract), ("mul.lo", np.multiply), ("min", np.minimum), ("max", np.maximum))},
    **{f"{op}.{t}": f for t in ("b16", "b32", "b64") for op, f in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor))},
    **{f"{op}.{t}": f for t in ("u16x2", "s16x2") for op, f in (("add", np.add), ("min", np.minimum), ("max", np.maximum))},
    **{f"{op}.relu.{t}": lambda a, b, f=f: np.maximum(f(a, b), 0) for t in ("s32", "s16x2") for op, f in (("min", np.minimum), ("max", np.maximum))},
    "add.sat.s32": clip(-2**31, 2**31 - 1), "popc.b32": lambda a: np.bitwise_count(a), "mul.wide.s32": lambda a, b: a.astype(np.int64) * b,
    "mul.wide.u16": lambda a, b: a.astype(np.uint32) * b, "not.b64": lambda a, _: np.invert(a), "cvt.f64.f32": lambda a: a, "cvt.rn.f32.f64": lambda a: a.astype(np.float32),
    "cvt.rn.f16.f32": lambda a: a.astype(np.float16), "cvt.rn.bf16.f32": lambda a: a.astype(ml_dtypes.bfloat16), "cvt.f32.bf16": lambda a: a,
    "cvt.s64.s32": lambda a: a, "cvt.u32.u64": lambda a: a, "cvt.rn.f64.s64": lambda a: a, "neg.s32": np.negative, "abs.f32": np.abs,
}


def cases() -> list[tuple[str, str]]:
    """(program, label) of every result whose opcode has an expectation and that is one instruction."""
    return [(p.name, v.label) for p in PROGRAMS.values() for v in p.views if v.label.split(" ")[0] in EXPECTED and v.label.count(";") == 1]


def test_every_expectation_is_used() -> None:
    assert {label.split(" ")[0] for _, label in cases()} == set(EXPECTED)


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in cases()))
def test_numpy_agrees(name: str) -> None:
    p = PROGRAMS[name]
    got = emulate(p)
    inputs = [b.data for b in p.params if isinstance(b, Buffer) and b.name.startswith("x")]
    for v in p.views:
        if (name, v.label) not in cases():
            continue
        result = v.of(got[v.buffer])
        with np.errstate(all="ignore"):
            want = EXPECTED[v.label.split(" ")[0]](*inputs).astype(result.dtype)
        nan = np.isnan(want.astype(np.float64)) if want.dtype.kind in "fV" else np.zeros(len(want), bool)
        bad = np.flatnonzero((bits(result) != bits(np.ascontiguousarray(want))) & ~(nan & (result != result)))
        assert not len(bad), (v.label, [(x[bad[0]] for x in inputs), result[bad[0]], want[bad[0]]])


def copies(p: Program) -> bool:
    """Whether every result of the program is a copy of its input."""
    return p.name.startswith(("ld-st.", "ld.cache", "st.cache", "ld.evict", "st.evict", "ld.nc", "ld.prefetch")) and "b128" not in p.name


@pytest.mark.parametrize("name", [p.name for p in PROGRAMS.values() if copies(p)])
def test_loads_and_stores_copy(name: str) -> None:
    p = PROGRAMS[name]
    (x,) = (b.data for b in p.params if isinstance(b, Buffer) and b.name == "x")
    assert np.array_equal(emulate(p)["y"], x)
