"""mbarriers, named barriers, deadlock reports, register budgets, co-resident CTAs."""
from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import assembles, kernel, pointer

from tilejit.emulator import Program

BAR = ".shared .align 8 .b8 bars[64];\n"
START = "mov.u32 %r1, %tid.x; mov.u32 %r2, bars; shr.u32 %r3, %r1, 5; setp.ne.u32 %p1, %r1, 0; ld.param.u64 %rd1, [y];"


def run(body: str, threads: int = 64, grid: int = 1, out: np.ndarray | None = None, **options):  # type: ignore[no-untyped-def]
    out = np.zeros(64, np.uint32) if out is None else out
    text = kernel(START + body, [".param .u64 y"], BAR)
    assembles(text)
    return Program(text).launch((grid,), threads, [pointer(out)], memory=[out], **options), out


def init(count: int) -> str:
    return f"@%p1 bra I; mbarrier.init.shared.b64 [%r2], {count}; mbarrier.init.shared.b64 [%r2+8], {count};\nI: bar.sync 0;\n"


def wait(parity: int, label: str = "W", offset: int = 0) -> str:
    return f"\n{label}: mbarrier.try_wait.parity.shared.b64 %p2, [%r2+{offset}], {parity}; @!%p2 bra {label};\n"


def kinds(report) -> list[str]:  # type: ignore[no-untyped-def]
    return [f.kind for f in report.findings]


@pytest.mark.parametrize("policy", ("round_robin", "random", "adversarial"))
def test_phases_alternate(policy: str) -> None:
    """Two warps pass a token back and forth eight times."""
    r, out = run(init(32) + "mov.u32 %r5, 0; mov.u32 %r6, 0; setp.eq.u32 %p5, %r3, 0; @%p5 bra Z;\nO: and.b32 %r7, %r5, 1;\n"
                 "W1: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], %r7; @!%p2 bra W1; @%p5 bra X; ld.global.u32 %r8, [%rd1];"
                 "add.u32 %r8, %r8, 1; st.global.u32 [%rd1], %r8; bar.warp.sync -1; mbarrier.arrive.shared.b64 _, [%r2+8];"
                 "add.u32 %r5, %r5, 1; setp.lt.u32 %p6, %r5, 8; @%p6 bra O; bra X;\n"
                 "Z: mbarrier.arrive.shared.b64 _, [%r2]; and.b32 %r7, %r5, 1;\n"
                 "W2: mbarrier.try_wait.parity.shared.b64 %p2, [%r2+8], %r7; @!%p2 bra W2; add.u32 %r5, %r5, 1;"
                 "setp.lt.u32 %p6, %r5, 8; @%p6 bra Z;\nX:", policy=policy, seed=2)
    r.check()
    assert out[0] == 8


def test_fresh_barrier_passes_the_other_parity() -> None:
    run(init(1) + wait(1))[0].check()
    r, _ = run(init(1) + wait(0))
    assert kinds(r) == ["deadlock"]


def test_state_tokens_and_counts() -> None:
    r, out = run(init(64) + "@%p1 bra A; mbarrier.arrive.shared.b64 %rd2, [%r2], 1; mbarrier.pending_count.b64 %r4, %rd2;"
                 "st.global.u32 [%rd1], %r4; mbarrier.test_wait.shared.b64 %p3, [%r2], %rd2; selp.u32 %r5, 1, 0, %p3;"
                 "st.global.u32 [%rd1+4], %r5; bra B;\nA: mbarrier.arrive.shared.b64 %rd2, [%r2];\nB:"
                 "\nW: mbarrier.try_wait.shared.b64 %p2, [%r2], %rd2; @!%p2 bra W; @!%p1 st.global.u32 [%rd1+8], 1;")
    r.check()
    assert out[2] == 1 and out[0] >= 1


def test_drop_lowers_the_next_phase() -> None:
    r, _ = run(init(2) + "@%p1 bra E; mbarrier.arrive_drop.shared.b64 _, [%r2]; mbarrier.arrive.shared.b64 _, [%r2];" + wait(0)
               + "mbarrier.arrive.shared.b64 _, [%r2];" + wait(1, "V") + "E:")
    r.check()


def test_deadlock_report_names_what_is_missing() -> None:
    r, _ = run(init(2) + "@!%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 4096;" + wait(0))
    (f,) = r.findings
    assert f.kind == "deadlock" and "1 of 2 arrivals missing" in f.message
    assert "expected 4096 bytes, received 0" in f.message and "CTA 0 warp 1" in f.message and f.ptx_line > 0


def test_broken_rules_stop_with_a_finding() -> None:
    assert kinds(run(wait(0))[0]) == ["barrier-uninitialised"]
    assert kinds(run(init(1) + "@!%p1 mbarrier.inval.shared.b64 [%r2]; bar.sync 0;" + wait(1))[0]) == ["barrier-uninitialised"]
    assert kinds(run(init(1) + "mbarrier.arrive.shared.b64 _, [%r2];")[0]) == ["barrier-underflow"]
    assert kinds(run("@!%p1 mbarrier.init.shared.b64 [%r2], 0;")[0]) == ["barrier-count"]
    assert kinds(run("setmaxnreg.dec.sync.aligned.u32 24; @%p1 bra E; bar.sync 1, 64;\nE:")[0])[0] == "divergent"


def test_named_barriers() -> None:
    """Two pairs of warps on their own barriers; arrive does not wait."""
    r, out = run("setp.lt.u32 %p3, %r3, 2; @!%p3 bra B; setp.eq.u32 %p4, %r3, 0; @!%p4 bra C; @!%p1 st.global.u32 [%rd1], 9;"
                 "bar.arrive 1, 64; bra E;\nC: bar.sync 1, 64; ld.global.u32 %r5, [%rd1]; st.global.u32 [%rd1+4], %r5; bra E;\n"
                 "B: bar.sync 2, 64;\nE:", threads=128)
    r.check()
    assert out[1] == 9
    r, _ = run("setp.eq.u32 %p3, %r3, 0; @%p3 bra E; bar.sync 1, 64;\nE:")
    assert kinds(r) == ["deadlock"] and "1 of 2 warps" in r.findings[0].message


def test_barrier_reductions_and_exited_warps() -> None:
    r, out = run("and.b32 %r5, %r1, 3; setp.eq.u32 %p3, %r5, 0; bar.red.popc.u32 %r6, 0, %p3; bar.red.or.pred %p4, 0, !%p3;"
                 "bar.red.and.pred %p5, 0, %p3; selp.u32 %r7, 2, 0, %p4; selp.u32 %r8, 4, 0, %p5; @%p1 bra E;"
                 "st.global.u32 [%rd1], %r6; add.u32 %r7, %r7, %r8; st.global.u32 [%rd1+4], %r7;\nE:")
    r.check()
    assert out[0] == 16 and out[1] == 2
    run("setp.eq.u32 %p3, %r3, 1; @%p3 ret; bar.sync 0;")[0].check()


def test_setmaxnreg_waits_for_the_pool() -> None:
    body = ("setp.lt.u32 %p3, %r3, 4; @%p3 bra P; setmaxnreg.inc.sync.aligned.u32 240; bra E;\n"
            "P: setmaxnreg.dec.sync.aligned.u32 {dec};\nE:")
    for dec, good in ((24, True), (40, True), (48, False)):
        text = kernel(START + body.replace("{dec}", str(dec)).replace("240", "232"), [".param .u64 y"], BAR,
                      ".maxntid 384, 1, 1\n.minnctapersm 1")
        out = np.zeros(4, np.uint32)
        r = Program(text).launch((1,), 384, [pointer(out)], memory=[out])
        # A warp that has exited gives its registers back: keep the producers there.
        assert not r.findings or not good


def test_ctas_that_wait_for_each_other() -> None:
    """CTA 0 spins on a flag that CTA 3 writes."""
    r, out = run("mov.u32 %r4, %ctaid.x; setp.eq.u32 %p3, %r4, 3; @%p3 st.global.u32 [%rd1], 1; setp.ne.u32 %p3, %r4, 0; @%p3 ret;"
                 "\nS: ld.acquire.gpu.global.u32 %r5, [%rd1]; setp.eq.u32 %p4, %r5, 0; @%p4 bra S; st.global.u32 [%rd1+4], 5;",
                 grid=4, threads=32)
    r.check()
    assert out[1] == 5


def test_reports_count_and_are_deterministic() -> None:
    first, _ = run(init(64) + "mbarrier.arrive.shared.b64 _, [%r2];" + wait(0), policy="random", seed=4)
    second, _ = run(init(64) + "mbarrier.arrive.shared.b64 _, [%r2];" + wait(0), policy="random", seed=4)
    assert first == second and first.ctas == 1 and first.instructions > 10 and first.barrier_waits >= 2


def test_polling_sees_late_copies_and_livelock_ends() -> None:
    """test_wait does not block; with lazy completion the copy still lands."""
    poll = "\nW: mbarrier.test_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra W;\n"
    for policy in ("round_robin", "adversarial", "random"):
        r, out = run(init(1) + "@%p1 bra P; mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 16; mov.u32 %r5, bars;"
                     "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r5+16], [%rd1], 16, [%r2];\nP:" + poll
                     + "ld.shared.u32 %r6, [bars+20]; @!%p1 st.global.u32 [%rd1], %r6;", out=np.arange(8, dtype=np.uint32),
                     policy=policy)
        r.check()
        assert out[0] == 1
    r, _ = run(init(1) + poll, threads=32)
    assert kinds(r) == ["livelock"]


@pytest.mark.parametrize("seed", range(6))
def test_polling_sees_the_last_of_many_late_copies(seed: int) -> None:
    """Eight warps wait for 40 cp.async each, one after another: more turns than a livelock takes."""
    r, out = run(init(256) + "mov.u32 %r6, bars; add.u32 %r6, %r6, 16;"
                 + 40 * "cp.async.ca.shared.global [%r6], [%rd1], 4;" + "cp.async.mbarrier.arrive.noinc.shared.b64 [%r2];"
                 "\nW: mbarrier.test_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra W;\n"
                 "ld.shared.u32 %r7, [bars+16]; @!%p1 st.global.u32 [%rd1+4], %r7;", threads=256,
                 out=np.arange(7, 15, dtype=np.uint32), policy="adversarial", seed=seed)
    r.check()
    assert out[1] == 7


def test_divided_warps_count_once_at_a_barrier() -> None:
    r, _ = run("and.b32 %r5, %r1, 1; setp.eq.u32 %p3, %r5, 0; @%p3 bra A; barrier.sync 1, 64; bra E;\nA: barrier.sync 1, 64;\nE:")
    r.check()


@pytest.mark.parametrize("policy,seed", [("round_robin", 0), ("random", 1)] + [("adversarial", s) for s in range(6)])
@pytest.mark.parametrize("listener", (False, True))
def test_warps_that_poll_let_others_run(policy: str, seed: int, listener: bool) -> None:
    """Every warp but one polls a flag in shared memory that the last one (of any role) sets."""
    from tilejit.emulator import Listener

    for setter in (0, 7):
        r, out = run("@!%p1 st.shared.u32 [bars], 0; bar.sync 0; setp.eq.u32 %p3, %r3, " + str(setter) + "; @%p3 bra S;"
                     "\nW: ld.acquire.cta.shared.u32 %r5, [bars]; setp.eq.u32 %p4, %r5, 0; @%p4 bra W; st.global.u32 [%rd1], %r5; bra E;"
                     "\nS: st.release.cta.shared.u32 [bars], 1;\nE:", threads=256, policy=policy, seed=seed,
                     listener=Listener() if listener else None)
        r.check()
        assert out[0] == 1
