"""The sanitizer between warps: races, mbarriers, named barriers, lanes, registers; one mistake each, and a right twin."""
from __future__ import annotations

import pytest
from sanitized import init, kinds, run, wait, wrong_report

POLICIES = (("round_robin", 0), ("adversarial", 1), ("random", 3))
MINE = "mad.lo.u32 %r5, %r1, 4, %r2;"
WRITE = MINE + "st.shared.u32 [%r5], %r1;"
OTHERS = MINE + "xor.b32 %r6, %r5, 128; ld.shared.u32 %r7, [%r6];"       # what the other warp wrote
ARRIVE = "mbarrier.arrive.shared.b64 _, [%r2+8192];"
FLAG = "@!%p1 st.shared.u32 [%r2+4096], 0; bar.sync 0;"
POLL = "\nL: ld.relaxed.cta.shared.u32 %r8, [%r2+4096]; setp.eq.u32 %p7, %r8, 0; @%p7 bra L;"


def only(warp: int, code: str, label: str) -> str:
    """Only the lanes of one warp."""
    return f"setp.ne.u32 %p6, %r3, {warp}; @%p6 bra {label}; {code}\n{label}:\n"


CASES = {
    "warps exchange data with no barrier": ("shared-race", WRITE + OTHERS, WRITE + "bar.sync 0;" + OTHERS),
    "a buffer is written again while others read": ("shared-race", WRITE + "bar.sync 0;" + OTHERS + WRITE,
                                                    WRITE + "bar.sync 0;" + OTHERS + "bar.sync 0;" + WRITE),
    "two warps write the same bytes": ("shared-race", "st.shared.u32 [%r2], 1;", only(0, "st.shared.u32 [%r2], 1;", "X")),
    "bytes of one word written by two warps": ("shared-race", "add.u32 %r5, %r2, %r3; st.shared.u16 [%r2], 1;",
                                               "add.u32 %r5, %r2, %r3; st.shared.u8 [%r5], 1;"),
    "the wrong named barrier": ("shared-race", WRITE + "add.u32 %r6, %r3, 1; bar.sync %r6, 32;" + OTHERS, WRITE + "bar.sync 1, 64;" + OTHERS),
    "arriving is not waiting": ("shared-race", WRITE + only(0, "bar.arrive 1, 64;", "A") + only(1, "bar.sync 1, 64;", "B") + OTHERS,
                                WRITE + only(0, "bar.arrive 1, 64; bar.sync 2, 64;", "A") + only(1, "bar.sync 1, 64; bar.arrive 2, 64;", "B") + OTHERS),
    "a relaxed arrival publishes nothing": ("shared-race", init(64) + WRITE + "mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [%r2+8192];" + wait(0) + OTHERS,
                                            init(64) + WRITE + ARRIVE + wait(0) + OTHERS),
    "an atomic and a plain write": ("shared-race", FLAG + "atom.shared.add.u32 %r6, [%r2+4096], 1;" + only(1, "st.shared.u32 [%r2+4096], 5;", "X"),
                                    FLAG + "atom.shared.add.u32 %r6, [%r2+4096], 1; bar.sync 0;" + only(1, "st.shared.u32 [%r2+4096], 5;", "X")),
    "a flag without strong accesses":
        ("shared-race", FLAG + only(0, WRITE + "bar.warp.sync -1; st.shared.u32 [%r2+4096], 1;", "A") + only(1, "ld.shared.u32 %r8, [%r2+4096];", "B"),
         FLAG + only(0, WRITE + "bar.warp.sync -1; st.release.cta.shared.u32 [%r2+4096], 1;", "A")
         + only(1, "\nS: ld.acquire.cta.shared.u32 %r8, [%r2+4096]; setp.eq.u32 %p7, %r8, 0; @%p7 bra S;" + OTHERS, "B")),
    "an mbarrier is used with no barrier after its init":
        ("barrier-init-race", FLAG + "@%p1 bra I; mbarrier.init.shared.b64 [%r2+8192], 64; st.relaxed.cta.shared.u32 [%r2+4096], 1;\nI:" + POLL + ARRIVE,
         FLAG + "@%p1 bra I; mbarrier.init.shared.b64 [%r2+8192], 64; st.release.cta.shared.u32 [%r2+4096], 1;\nI:" + POLL + "fence.acq_rel.cta;" + ARRIVE),
    "init of a live mbarrier": ("barrier-live", init(64) + "bar.sync 0; @!%p1 mbarrier.init.shared.b64 [%r2+8192], 64;",
                                init(64) + "bar.sync 0; @!%p1 mbarrier.inval.shared.b64 [%r2+8192]; @!%p1 mbarrier.init.shared.b64 [%r2+8192], 64;"),
    "inval where nothing is": ("barrier-live", init(64) + "@!%p1 mbarrier.inval.shared.b64 [%r2+8200];",
                               init(64) + "@!%p1 mbarrier.inval.shared.b64 [%r2+8192];"),
    "a warp writes over a live mbarrier": ("barrier-overlapped", init(64) + "bar.sync 0; @!%p1 st.shared.u32 [%r2+8196], 0;",
                                           init(64) + "bar.sync 0; @!%p1 st.shared.u32 [%r2+8200], 0;"),
    "a warp reads a live mbarrier": ("barrier-overlapped", init(64) + "bar.sync 0; ld.shared.u32 %r6, [%r2+8196];",
                                     init(64) + "bar.sync 0; @!%p1 mbarrier.inval.shared.b64 [%r2+8192]; @!%p1 st.shared.u32 [%r2+8196], 3;"),
    "an mbarrier used after inval": ("barrier-uninitialised", init(64) + "@!%p1 mbarrier.inval.shared.b64 [%r2+8192]; bar.sync 0;" + ARRIVE, init(64) + ARRIVE),
    "a named barrier that nobody completes": ("barrier-participants", only(0, "bar.arrive 1, 64;", "X"),
                                              only(0, "bar.arrive 1, 64;", "X") + only(1, "bar.sync 1, 64;", "Y")),
    "a warp twice at a named barrier": ("barrier-participants", only(0, "bar.arrive 1, 64; bar.arrive 1, 64;", "X"),
                                        only(0, "bar.arrive 1, 64; bar.arrive 2, 64;", "X") + only(1, "bar.sync 1, 64; bar.sync 2, 64;", "Y")),
    "shfl of lanes that are not there": ("divergent", "setp.lt.u32 %p5, %r4, 16; @!%p5 bra X; shfl.sync.bfly.b32 %r5, %r1, 1, 31, -1;\nX:",
                                         "setp.lt.u32 %p5, %r4, 16; @!%p5 bra X; shfl.sync.bfly.b32 %r5, %r1, 1, 31, 0xffff;\nX:"),
    "vote with a wrong mask": ("divergent", "vote.sync.ballot.b32 %r5, %p1, 0xff;", "vote.sync.ballot.b32 %r5, %p1, -1;"),
    "ldmatrix on half a warp": ("divergent", WRITE + "bar.sync 0; setp.lt.u32 %p5, %r4, 16; @!%p5 bra X; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r6}, [%r2];\nX:",
                                WRITE + "bar.sync 0; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r6}, [%r2];"),
    "an aligned barrier on half a warp": ("divergent", "setp.lt.u32 %p5, %r4, 16; @!%p5 bra X; bar.sync 0;\nX: bar.sync 0;", "bar.sync 0;"),
    "shared memory that nothing has written": ("uninitialised-shared", MINE + "ld.shared.u32 %r6, [%r5];", WRITE + "ld.shared.u32 %r6, [%r5];"),
    "an atomic on fresh memory": ("uninitialised-shared", "red.shared.add.u32 [%r2+4096], 1;", FLAG + "red.shared.add.u32 [%r2+4096], 1;"),
    "a register that nothing has written": ("uninitialised-register", "add.u32 %r5, %r6, 1;", "mov.u32 %r6, 0; add.u32 %r5, %r6, 1;"),
    "a guard that nothing has written": ("uninitialised-register", "@%p9 mov.u32 %r5, 1;", "mov.u32 %r6, 0; setp.ne.u32 %p9, %r6, 0; @%p9 add.u32 %r5, %r7, 1;"),
    "an operand of mma that nothing has written":
        ("uninitialised-register", "mov.b32 %r5, 0; mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r5, %r5}, {%r6}, {0f00000000, 0f00000000, 0f00000000, 0f00000000};",
         "mov.b32 %r5, 0; mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r5, %r5}, {%r5}, {0f00000000, 0f00000000, 0f00000000, 0f00000000}; add.f32 %f4, %f0, %f3;"),
    "shared memory beyond the end": ("out-of-bounds", "st.shared.u32 [%r2+16384], 1;", "@!%p1 st.shared.u32 [%r2+16380], 1;"),
    "a misaligned access": ("misaligned", "st.shared.u32 [%r2+2], 1;", "@!%p1 st.shared.u32 [%r2+4], 1;"),
    "a named barrier that waits for more": ("barrier-participants", "bar.sync 1, 96;", "bar.sync 1, 64;"),
    "nothing but waiting": ("deadlock", init(64) + only(0, ARRIVE, "X") + wait(0), init(64) + ARRIVE + wait(0)),
}


@pytest.mark.parametrize("policy,seed", POLICIES)
@pytest.mark.parametrize("name", CASES)
def test_cases(name: str, policy: str, seed: int) -> None:
    kind, wrong, right = CASES[name]
    report = wrong_report(wrong, right, policy, seed)
    also = {"barrier-participants": {"deadlock"}, "shared-race": {"uninitialised-shared"}, "barrier-live": {"shared-race"}, "divergent": {"deadlock", "barrier-participants"}}
    assert kind in kinds(report) and set(kinds(report)) <= {kind, *also.get(kind, ())}
    finding = next(f for f in report.findings if f.kind == kind)
    assert finding.ptx_line > 0 and finding.warps and finding.seed == seed


def test_strong_accesses_order_warps_and_do_not_race() -> None:
    """A lock around a counter in shared memory."""
    lock = ("\nL: atom.acquire.cta.shared.cas.b32 %r6, [%r2+4096], 0, 1; setp.ne.u32 %p7, %r6, 0; @%p7 bra L;"
            "ld.shared.u32 %r7, [%r2]; add.u32 %r7, %r7, 1; st.shared.u32 [%r2], %r7; atom.release.cta.shared.exch.b32 %r6, [%r2+4096], 0;")
    body = "@%p1 bra I; st.shared.u32 [%r2+4096], 0; st.shared.u32 [%r2], 0;\nI: bar.sync 0; @%p4 bra E;" + lock + "\nE:"
    run(body, threads=128).check()
    assert kinds(run(body.replace("atom.acquire.cta.shared.cas.b32 %r6, [%r2+4096], 0, 1; setp.ne.u32 %p7, %r6, 0; @%p7 bra L;", "")
                     .replace("atom.release.cta.shared.exch.b32 %r6, [%r2+4096], 0;", ""), threads=128)) == ["shared-race"]


def test_relaxed_arrivals_with_fences_publish() -> None:
    relaxed = "mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [%r2+8192];"
    run(init(64) + WRITE + "fence.acq_rel.cta;" + relaxed + wait(0) + OTHERS).check()
    late = init(64) + "fence.acq_rel.cta;" + WRITE + relaxed + wait(0) + OTHERS
    assert kinds(run(late)) == ["shared-race"]


def test_findings_are_told_once_a_line_and_not_without_end() -> None:
    loop = "mov.u32 %r8, 0;\nO: " + WRITE + OTHERS + "add.u32 %r8, %r8, 1; setp.lt.u32 %p5, %r8, 50; @%p5 bra O;"
    assert 1 <= len(run(loop, threads=256).findings) <= 4
    many = "".join(f"ld.shared.u32 %r5, [%r2+{4 * i}];" for i in range(200))
    assert len(run(many).findings) == 50
