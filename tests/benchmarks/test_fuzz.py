"""The fuzzer: its programs are programs, runs agree, and what differs is found and made small."""
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import fuzz_run  # noqa: E402
from fuzz_programs import program  # noqa: E402


@pytest.mark.remarks("spills", "stack", "C7510", reason="whatever a random program asks for")
@pytest.mark.parametrize("seed", range(4))
def test_ways_agree(seed):
    case = program(seed)
    assert fuzz_run.outcome(case, fuzz_run.runners(gpu=False)) == {}, case.text


def test_a_difference_is_found_and_made_small():
    """A way of running that spoils one output: few lines are left, the spoilt store among them."""
    case = program(3)
    name = case.outputs[0].name

    def spoilt(c):
        found = {n: x.copy() for n, x in fuzz_run.on_cpu(c, "evaluator", {}).items()}
        if any(f"{name} +" in line for line in c.body):
            found[name][0] = found[name][0] + np.ones(1, found[name].dtype)[0]
        return found

    ways = {"evaluator": fuzz_run.runners(gpu=False)["evaluator"], "spoilt": spoilt}
    wrong = fuzz_run.outcome(case, ways)
    assert list(wrong) == ["spoilt"] and wrong["spoilt"].startswith(f"{name}[0] is")
    small = fuzz_run.shrink(case, ways, "spoilt")
    assert len(small.body) < len(case.body) / 2 and any(f"{name} +" in line for line in small.body)


def test_loops_keep_their_ends_while_programs_shrink():
    case = next(c for c in map(program, range(100, 200)) if any("while " in line for line in c.body))
    tried = []

    def spoilt(c):
        tried.append(c)
        return {o.name: np.ones(1, int) for o in c.outputs}

    def right(c):
        return {o.name: np.zeros(1, int) for o in c.outputs}

    fuzz_run.shrink(case, {"evaluator": right, "spoilt": spoilt}, "spoilt")
    assert len(tried[-1].body) < len(case.body)
    for c in tried:
        steps = [line for line in c.body if line.endswith(" += 1")]
        assert len(steps) == sum("while " in line for line in c.body)
