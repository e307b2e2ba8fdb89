"""Scheduling policies: what they vary, that they repeat, that nobody waits forever; exploring several of them."""
from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import kernel, pointer

from tilejit.emulator import Program, explore
from tilejit.emulator.policy import POLICIES, TIMES, Adversary, starvable
from tilejit.errors import EmulatorError

BAR = ".extern .shared .align 128 .b8 smem[];\n"
START = "mov.u32 %r1, %tid.x; mov.u32 %r2, smem; shr.u32 %r3, %r1, 5; setp.ne.u32 %p1, %r1, 0; ld.param.u64 %rd1, [y];"
INIT = "@%p1 bra I; mbarrier.init.shared.b64 [%r2], 1;\nI: bar.sync 0;\n"
COPY = ("mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 16; cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%r2+16], [%rd1], 16, [%r2];")
WAIT = "\nW: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra W;\n"


def program(body: str) -> Program:
    return Program(kernel(START + body, [".param .u64 y"], BAR))


def run(p: Program, threads: int, policy: str, seed: int) -> tuple[np.ndarray, object]:
    y = np.arange(1, 65, dtype=np.uint32)
    report = p.launch((1,), threads, [pointer(y)], shared_bytes=256, memory=[y], policy=policy, seed=seed).check()
    return y, report


def test_an_operation_happens_early_or_late() -> None:
    """A read that does not wait for its copy sees it, or does not: both happen, under the adversary too."""
    early_read = program(INIT + "@%p1 bra E;" + COPY + "ld.shared.u32 %r5, [%r2+20]; st.global.u32 [%rd1+128], %r5;" + WAIT + "E:")
    seen = {policy: {int(run(early_read, 32, policy, seed)[0][32]) for seed in range(8)} for policy in POLICIES}
    assert seen["round_robin"] == {2}
    assert len(seen["random"]) == len(seen["adversarial"]) == 2


def test_loads_and_stores_are_timed_apart() -> None:
    """Among the adversary's times each combination of early and late is there."""
    assert {(loads, rest) for loads, rest, _ in TIMES} == {(a, b) for a in (True, False) for b in (True, False)}


def test_plain_instructions_of_two_warps_interleave_at_random() -> None:
    """Both warps write, wait and read with no barrier between: who is last depends on the seed."""
    racy = program("st.shared.u32 [%r2], %r3; mov.u32 %r7, 0;\nL: add.u32 %r7, %r7, 1; setp.lt.u32 %p3, %r7, 20; @%p3 bra L;"
                   "ld.shared.u32 %r5, [%r2]; add.u32 %r5, %r5, 7; mul.wide.u32 %rd2, %r3, 4; add.u64 %rd2, %rd1, %rd2;"
                   "st.global.u32 [%rd2], %r5;")
    orders = {tuple(run(racy, 64, "random", seed)[0][:2]) for seed in range(30)}
    assert (7, 8) in orders and orders & {(7, 7), (8, 8)}


def test_every_unit_starves_in_turn() -> None:
    """Four warps write their number in the order in which they run."""
    order = program("setp.ne.u32 %p2, %r1, %r1; and.b32 %r6, %r1, 31; setp.ne.u32 %p3, %r6, 0; @%p3 bra E;"
                    "atom.global.add.u32 %r5, [%rd1+252], 1; sub.u32 %r5, %r5, 64; mul.wide.u32 %rd2, %r5, 4;"
                    "add.u64 %rd2, %rd1, %rd2; st.global.u32 [%rd2], %r3;\nE:")
    last = [int(run(order, 128, "adversarial", seed)[0][3]) for seed in range(5)]
    assert last[:4] == [0, 1, 2, 3]
    assert {int(run(order, 128, "random", seed)[0][0]) for seed in range(20)} == {0, 1, 2, 3}


def test_the_adversary_visits_all_pairs() -> None:
    """Roles (or warpgroups) of all CTAs, CTAs, nobody, single warps; each with each time."""
    p = program("")
    units = starvable(p, 8, 2)
    assert units[:4] == [(0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15), tuple(range(8)), tuple(range(8, 16))]
    assert units[4] == () and units[5:] == [(w,) for w in range(16)]
    assert starvable(p, 2, 1) == [(0,), (1,), ()]
    for count in (3, 4, 5, 9, 10):
        pairs = Adversary(0, [(i,) for i in range(count)]).pairs
        seen = {(a.starved, a.loads_early, a.rest_early, a.newest)
                for a in (Adversary(seed, [(i,) for i in range(count)]) for seed in range(pairs))}
        assert len(seen) == pairs == count * len(TIMES)


def test_roles_come_from_the_text() -> None:
    p = program("// role load: warps 0..0\n// role math: warps 1..3\n")
    assert starvable(p, 4, 1)[:2] == [(0,), (1, 2, 3)]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(6))
def test_polling_never_starves_the_one_that_is_polled(policy: str, seed: int) -> None:
    """Three warps poll a word that the fourth writes last; each warp in turn is the writer."""
    for writer in range(4):
        p = program(f"@%p1 bra S; st.shared.u32 [%r2], 0;\nS: bar.sync 0; setp.ne.u32 %p3, %r3, {writer}; @%p3 bra W;"
                    "st.shared.u32 [%r2], 1; bra E;\nW: ld.volatile.shared.u32 %r5, [%r2]; setp.eq.u32 %p4, %r5, 0;"
                    "nanosleep.u32 20; @%p4 bra W;\nE:")
        run(p, 128, policy, seed)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_seed_repeats_a_run(policy: str) -> None:
    p = program(INIT + "@%p1 bra X;" + COPY + "\nX:" + WAIT + "ld.shared.u32 %r5, [%r2+20]; @!%p1 st.global.u32 [%rd1], %r5;")
    first, report = run(p, 128, policy, 3)
    again, second = run(p, 128, policy, 3)
    assert report == second and np.array_equal(first, again) and first[0] == 2


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(EmulatorError, match="no policy 'greedy'"):
        run(program(""), 32, "greedy", 0)


def look(body: str, threads: int = 64, **options):  # type: ignore[no-untyped-def]
    """Explore a program over y = 1, 2, ..., 64."""
    p, y = program(body), np.arange(1, 65, dtype=np.uint32)

    def launch(policy, seed, listener):  # type: ignore[no-untyped-def]
        return p.launch((1,), threads, [pointer(y)], shared_bytes=256, memory=[y], policy=policy, seed=seed)

    return explore("k", launch, [y], {"y": y}, **options), y


def test_results_that_depend_on_the_schedule_are_found() -> None:
    """The report names the argument, the element, and a schedule that shows it."""
    found, y = look("mov.u32 %r5, 1; @%p1 bra E; " + "st.global.u32 [%rd1+8], 5;\nE: setp.ne.u32 %p2, %r1, 32; @!%p2 st.global.u32 [%rd1+8], 6;")
    assert found.kinds == {"nondeterministic"} and not found.ok and len(found.runs) == 11
    (group,) = found.groups
    assert "argument y: 1 of 64 elements differ between schedules, first at [2]: 6 and 5" in group.finding.message
    assert f"again with policy={group.policy!r}, seed={group.seed}" in str(found)
    assert y[2] == 6 and y[0] == 1                   # what the first run left
    with pytest.raises(EmulatorError, match="nondeterministic"):
        found.check()


def test_every_run_starts_from_the_same_memory() -> None:
    found, y = look("@!%p1 red.global.add.u32 [%rd1], 1;")
    assert found.ok and y[0] == 2 and found.check() is found
    assert "11 runs (round_robin, random, adversarial; 5 seeds), no findings" in str(found)


def test_findings_are_grouped_and_unfinished_runs_leave_no_trace() -> None:
    """A deadlock in every run is one group; memory is as before."""
    found, y = look(INIT + "@!%p1 st.global.u32 [%rd1], 9;" + WAIT, seeds=range(2))
    (group,) = found.groups
    assert group.finding.kind == "deadlock" and group.runs == group.count == 5 and y[0] == 1
    assert "in 5 of 5 runs" in str(found) and not any(run.report.finished for run in found.runs)


def test_floats_may_differ_within_a_bound() -> None:
    from tilejit.emulator.exploration import difference

    a = np.array([1.0, np.nan, 3.0, 0.0], np.float32)
    b = np.array([1.0, np.nan, 3.0003, -0.0], np.float32)
    assert "2 of 4 elements" in difference(a, b, 0.0) and "1 of 4" in difference(a, b, 1e-5)
    assert difference(a, b, 1e-3) == difference(a, a, 0.0) == ""
    b[1] = 5
    assert "inf" in difference(a, b, 1e-3)
