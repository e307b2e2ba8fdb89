"""Plans of two thousand random problems: ways that compile by rule, estimates that behave, choices that their own list
of ways bears out."""
from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import lru_cache

import pytest

from tilejit.kernels import chip as chips
from tilejit.kernels import planning
from tilejit.kernels.estimate import Table, estimate
from tilejit.kernels.planning import choose, considered
from tilejit.kernels.problem import Problem
from tilejit.kernels.way import SHARED, staged_part

CHIPS = [chips.load(chips.FOLDER / f"{name}.json") for name in ("h200", "h100", "h20")]
COUNT, LARGEST = 2000, 16384


def sizes(rng, least=1):
    """Log-uniform M, N and K, a third of them multiples of 8."""
    found = [round(math.exp(rng.uniform(math.log(least), math.log(LARGEST)))) for _ in range(3)]
    return [-(-n // 8) * 8 for n in found] if rng.random() < 1 / 3 else found


def problem(rng):
    """Of any dtype and order, that is read and written by TMA or by threads, with something behind the sums or not."""
    (m, n, k), size = sizes(rng), rng.choice((2, 2, 2, 1, 4))
    a_rows, b_rows = (rng.random() < 0.7, rng.random() < 0.5) if size == 2 else (True, False)
    ended, out_bytes = rng.random() < 0.3, rng.choice((2, 2, 4))
    units = (0, 0) if rng.random() < 0.8 else rng.choice(((4, 4), (8, 0), (0, 4), (16, 16)))
    pitches = ((k if a_rows else m) * size, (n if b_rows else k) * size, n * out_bytes)
    return Problem(m, n, k, size, a_rows, b_rows, pitches, out_bytes, ended, ended and rng.random() < 0.3,
                   ended and rng.random() < 0.5, 1 if rng.random() < 0.9 else rng.randint(2, 64), units,
                   rng.choice((0, 0, 0, 2)))


@lru_cache(maxsize=1)
def planned():
    """Problems, chips and their plans."""
    rng = random.Random(7)
    found = [(problem(rng), CHIPS[i % 3]) for i in range(COUNT)]
    return [(p, chip, choose(p, chip)) for p, chip in found]


def compiles(way, p, chip):
    """What a way must be for its kernel to compile without spills, and for its programs to find room."""
    rows, columns = way.m // (way.ctas // way.k_ctas // way.across), way.n // way.across
    groups = way.warps // 4
    assert rows % 64 == 0 and rows // 64 % groups == 0, "whole instructions for every warpgroup"
    assert columns % 8 == 0 and 8 <= columns <= 256 and columns % way.strip == 0
    assert way.sums <= 192, "registers of a thread for sums"
    assert way.options().get("maxnreg", 255) >= way.sums + 48
    assert not (p.ended and not way.swap) or way.roomy(p.out_bytes, p.scaled)
    if not any(p.units):
        assert way.strip >= 32 or not (not p.a_rows if way.swap else p.b_rows), "boxes of 32 columns"
    assert way.ctas in (1, 2, 4, 8) and way.ctas * way.room(chip.multiprocessors) <= way.together * chip.multiprocessors
    staged = staged_part(way.m, way.n) if way.parts else rows * columns * p.out_bytes // way.k_ctas
    slots = (SHARED // way.together - min(staged, staged_part(rows, columns))) // ((rows + columns) * way.k_bytes)
    assert slots >= min(2, max(1, -(-p.k_bytes // way.k_bytes))) and (way.depth(p.out_bytes) or 2) >= 2
    assert not way.parts or way.programs <= way.room(chip.multiprocessors) and way.parts <= max(1, -(-p.k_bytes // way.k_bytes))
    assert not way.single or p.batches * way.tiles(p.m, p.n) <= way.room(chip.multiprocessors)


def test_planned_ways_compile_by_rule():
    """Of all plans."""
    for p, chip, plan in planned():
        compiles(plan.way, p, chip)


def test_plans_are_the_least_of_their_lists():
    """A plan takes what its ways take, and none of those considered less."""
    for p, chip, plan in planned()[::2]:
        times = considered(p, chip)[2]
        assert 0 < chip.launch < plan.ns < math.inf
        assert plan.ns <= 1.0001 * times.min(), (p, plan)
        assert math.isclose(estimate(p, Table((plan.way,)), chip)[0], plan.ns, rel_tol=1e-6), (p, plan)


@pytest.mark.parametrize("more", ["m", "n", "k"])
def test_more_takes_longer(more):
    """Plans of half as much again (but of lines across K that grow to whole lines of L2)."""
    for p, chip, plan in planned()[::6]:
        if more == "m" and not p.a_rows and p.m * p.size < 128 or more == "n" and p.b_rows and p.n * p.size < 128:
            continue
        after = choose(replace(p, **{more: getattr(p, more) * 3 // 2 + 1}), chip)
        assert after.ns >= 0.9 * plan.ns - chip.overlap, (p, plan, after)


def test_other_choices():
    """Of groups, block scales and weights of few bits: tiles of their tables, with two blocks on their way."""
    rng, chip = random.Random(11), CHIPS[0]
    for _ in range(COUNT // 4):
        (m, n, k), groups, bits = sizes(rng, 16), rng.randint(1, 64), rng.choice((4, 8))
        p, step = Problem(m, n, -(-k // 64) * 64, 1), ("promote", "accumulate")[groups % 2]
        t = choose(replace(p, batches=groups, grouped=True, step=step), chip).way
        assert t in planning.GROUPED[step] + planning.NARROW
        widened, group = replace(p, size=2, step="widen", bits=bits), rng.choice((0, 64, 128))
        few, many = choose(replace(p, step="promote"), chip).way, choose(replace(widened, group=group), chip).way
        assert replace(few, programs=0, stream=0, single=False) in planning.PROMOTED and many.step(2) in (64, 128) and group % many.step(2) == 0
        assert (many.depth(2, many.m * many.k_bytes * bits // 16 + many.n * many.k_bytes) or 2) >= 2
        for way in (few, many):
            assert not way.parts or way.programs <= way.room(chip.multiprocessors)


def test_the_rules_can_be_broken():
    p = Problem(64, 64, 4096, b_rows=True, pitches=(8192, 128, 128))
    way = planning.SMALL[0]
    for bad in (replace(way, m=32), replace(way, n=288), replace(way, n=16), replace(way, m=256, n=256),
                replace(way, n=64, k_bytes=2048), replace(way, n=64, programs=4096, stream=1)):
        with pytest.raises(AssertionError):
            compiles(bad, p, CHIPS[0])
    compiles(replace(way, n=64), p, CHIPS[0])
