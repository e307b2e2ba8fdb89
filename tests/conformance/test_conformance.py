"""The emulator against what a GPU made of the same programs (`record.py`): bit for bit, approximations within their
documented error. Before the first recording the programs only run."""
from __future__ import annotations

import re

import numpy as np
import pytest
from compare import bits, difference, emulate, recordings, wrong
from programs import ANY_NAN, Near, Program, all_programs

from tilejit.errors import EmulatorError
from tilejit.ptx import isa

PROGRAMS = all_programs()
ABOUT, RECORDED = recordings()


#: Programs beyond the emulator's limits, and how it must say so: it may refuse, never do something else.
LIMITS = {"ld-st.b128": "b128 values are not supported", "atom.b128": "b128 values are not supported"}


@pytest.mark.parametrize("name", LIMITS)
def test_limits_are_said(name: str) -> None:
    with pytest.raises(EmulatorError, match=LIMITS[name]):
        emulate(PROGRAMS[name])


@pytest.mark.parametrize("name", [name for name, p in PROGRAMS.items() if p.faults])
def test_faults_are_found(name: str) -> None:
    with pytest.raises(EmulatorError):
        emulate(PROGRAMS[name])
    if ABOUT:
        assert name in ABOUT["faults"], "not recorded as a fault"


@pytest.mark.parametrize("name", [name for name, p in PROGRAMS.items() if name not in LIMITS and not p.faults])
def test_the_emulator_does_what_the_gpu_did(name: str) -> None:
    p = PROGRAMS[name]
    if ABOUT:
        assert name not in ABOUT["failed"], f"not recorded: {ABOUT['failed'][name]}"
        assert ABOUT["digests"].get(name) == p.digest, "no recording of this text and these inputs: run record.py"
    got = emulate(p)
    if ABOUT:
        different = [d for v in p.views if (d := difference(v, got[v.buffer], RECORDED[f"{name}:{v.buffer}"]))]
        assert not different, "\n".join([f"{len(different)} of {len(p.views)} results differ", *different[:20]])


def test_there_are_enough_programs() -> None:
    assert len(PROGRAMS) >= 150


def opcodes(p: Program) -> set[str]:
    """The opcodes of a program's entry."""
    found = re.findall(r"^\s*(?:\w+:\s*)?(?:@!?%\w+\s+)?([a-z]\w*(?:[.:]+\w+)*)", p.text.split("{\n", 1)[1], re.M)
    return {o for o in found if isa.lookup(o)}


#: Forms that no program can show alone, and why.
UNSHOWN = {"call.uni": "prints", "call": "ends the launch", "brkpt": "ends the launch", "discard.L2": "leaves the memory undefined",
           "membar.proxy": "orders memory, which one run cannot show",
           "fence.proxy.tensormap::generic.release": "orders memory, which one run cannot show"}


def test_every_form_is_shown() -> None:
    used = {isa.lookup(o)[0].name for p in PROGRAMS.values() for o in opcodes(p)}      # type: ignore[index]
    assert {f.name for f in isa.FORMS} - used == set(UNSHOWN)


def test_bounds() -> None:
    """A bound lets small differences through, and no other infinity, NaN or sign of zero."""
    near = Near(0.0, 1.0, "")
    f = lambda *x: np.array(x, np.float32)
    assert not wrong(f(1, -3, np.inf, np.nan), f(2, -3.5, np.inf, np.nan), near).any()
    assert wrong(f(1, np.inf, np.nan, 1, -0.0, np.inf), f(2.5, -np.inf, 1, np.nan, 0.0, 9), near).all()
    assert wrong(f(-0.0, 1.0), f(0.0, np.nextafter(1, 2, dtype=np.float32)), None).all()
    payload = np.array([0x7FC00000, 0x7FFFFFFF], np.uint32).view(np.float32)
    assert wrong(payload, payload[::-1].copy(), None).all() and not wrong(payload, payload[::-1].copy(), ANY_NAN).any()
    assert bits(payload)[0] == 0x7FC00000
