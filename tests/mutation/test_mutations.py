"""Planted protocol bugs are found and named rightly; right kernels have no findings, whatever the schedule.

A right kernel's PTX is edited in one place (bugs_*.py) and run under a few schedules with the sanitizer; one of the
findings that the kind of bug allows must be there. By default each kind is planted once in the two cheapest kernels
that have a place for it; `-m slow` plants it everywhere.
"""
from __future__ import annotations

import bugs_barriers  # noqa: F401  (registers its kinds of bugs)
import bugs_data  # noqa: F401
import bugs_warps  # noqa: F401
import pytest
from ptx_edit import Ptx
from registry import MUTATIONS, Mutation
from right_kernels import Right, right_kernels

from tilejit.emulator import Exploration, Sanitizer
from tilejit.emulator.policy import POLICIES
from tilejit.errors import EmulatorError

#: Schedules under which a bug must show, tried in this order.
SCHEDULES = (("round_robin", 0), *(("random", s) for s in range(2)), *(("adversarial", s) for s in range(5)))
#: Cheapest first.
KERNELS = ("phases", "peers", "copies", "softmax", "matmul", "groups", "stores", "clusters", "cooperative", "pingpong", "cluster2")
#: (kind of bug, kernel, number of the site): why the mutant keeps to the protocol all the same.
HARMLESS = {
    ("flip-order-parity", "pingpong", 1): "the order of the epilogues saves time, the result does not need it",
    ("drop-bar-sync", "softmax", 0): "nothing was exchanged before it",
    ("drop-first-value", "cluster2", 1): "the next instruction sets the register",
    ("exit-before-stores-read", "stores", 0): "each store has been waited for until it was read",
    ("two-ctas-one-tile", "cooperative", 0): "the grid is one CTA",
    ("two-ctas-one-tile", "pingpong", 0): "the grid is one CTA",
    ("two-ctas-one-tile", "cluster2", 0): "the grid is one cluster, and its CTAs divide a tile by their rank",
}
#: The same, but the result is wrong: what is read is old, though written and ordered.
STALE = {("drop-shared-store", "softmax", 1)}


def mutants(mutation: Mutation, kernel: Right) -> list[tuple[int, Ptx]]:
    """(number of the site, mutant) of a kernel, the harmless ones left out."""
    return [(n, mutant) for n, mutant in enumerate(mutation.plant(Ptx(kernel.text)))
            if (mutation.name, kernel.name, n) not in {*HARMLESS, *STALE}]


def hunt(mutation: Mutation, kernel: Right, mutant: Ptx) -> tuple[Exploration | None, set[str]]:
    """The first run that names the bug rightly, and all kinds that were found until then."""
    kinds: set[str] = set()
    for policy, seed in SCHEDULES:
        found, _ = kernel.explore(mutant.text, (policy,), (seed,), Sanitizer)
        kinds |= found.kinds
        if found.kinds & mutation.kinds:
            return found, kinds
    return None, kinds


def miss(mutation: Mutation, kernel: Right, number: int, mutant: Ptx) -> str:
    """What to say of a mutant that is not found, "" if it is."""
    found, kinds = hunt(mutation, kernel, mutant)
    if found is None:
        return f"{mutation.name} in {kernel.name}, site {number}: found {sorted(kinds) or 'nothing'}"
    named = [f for f in found.runs[0].report.findings if f.kind in mutation.kinds]
    if not all(f.message and (f.ptx_line > 0 or f.kind == "deadlock") for f in named):
        return f"{mutation.name} in {kernel.name}, site {number}: {named} name no place"
    return ""


@pytest.mark.parametrize("name", MUTATIONS)
def test_planted_bugs_are_found(name: str) -> None:
    """Once in each of the two cheapest kernels."""
    mutation, left, missed = MUTATIONS[name], 2, []
    for kernel in map(right_kernels().__getitem__, KERNELS):
        here = mutants(mutation, kernel)[:1]
        missed += [miss(mutation, kernel, n, mutant) for n, mutant in here]
        left -= len(here)
        if not left:
            break
    assert left < 2, "no kernel has a place for this bug"
    assert not any(missed), "\n".join(filter(None, missed))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", MUTATIONS)
def test_planted_bugs_are_found_everywhere(name: str, kernel: str) -> None:
    """At every site of every kernel."""
    mutation, right = MUTATIONS[name], right_kernels()[kernel]
    missed = [miss(mutation, right, n, mutant) for n, mutant in mutants(mutation, right)]
    assert not any(missed), "\n".join(filter(None, missed))


def test_there_are_enough_kinds_and_they_differ() -> None:
    """No two kinds plant the same text, and each changes the kernel."""
    assert len(MUTATIONS) >= 25
    for kernel in right_kernels().values():
        texts = [m.text for mutation in MUTATIONS.values() for m in mutation.plant(Ptx(kernel.text))]
        assert kernel.text not in texts and len(texts) >= 8
        repeated = len(texts) - len(set(texts))
        assert repeated <= len(texts) // 8, f"{repeated} of {len(texts)} mutants of {kernel.name} are the same"


@pytest.mark.parametrize("name,kernel,site", HARMLESS)
def test_harmless_mutants_are_harmless(name: str, kernel: str, site: int) -> None:
    """The exceptions of the table: no findings, right results."""
    right = right_kernels()[kernel]
    mutant = list(MUTATIONS[name].plant(Ptx(right.text)))[site]
    found, good = right.explore(mutant.text, POLICIES, range(2), Sanitizer)
    assert good and found.ok, str(found)


@pytest.mark.parametrize("name", KERNELS)
def test_right_kernels_are_clean(name: str) -> None:
    """No findings under all policies and five seeds, and one right result."""
    right = right_kernels()[name]
    found, good = right.explore(right.text, POLICIES, range(5), Sanitizer)
    assert good and len(found.check().runs) == 11


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_right_kernels_stay_clean(name: str) -> None:
    """The same for fifty seeds."""
    right = right_kernels()[name]
    found, good = right.explore(right.text, POLICIES, range(50), Sanitizer)
    assert good and len(found.check().runs) == 101


def test_a_finding_comes_again_with_its_seed() -> None:
    """What the report says of policy and seed is enough to see a finding again."""
    right = right_kernels()["matmul"]
    mutant = mutants(MUTATIONS["drop-empty-wait"], right)[0][1]
    found, _ = right.explore(mutant.text, POLICIES, range(3), Sanitizer)
    with pytest.raises(EmulatorError, match="again with policy="):
        found.check()
    for group in found.groups:
        again, _ = right.explore(mutant.text, (group.policy,), (group.seed,), Sanitizer)
        assert group.finding in again.runs[0].report.findings or group.finding.kind == "nondeterministic"
