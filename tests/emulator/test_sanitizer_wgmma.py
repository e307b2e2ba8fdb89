"""The sanitizer and wgmma: fences, registers in flight, shared operands."""
from __future__ import annotations

import pytest
from sanitized import kinds, run

POLICIES = (("round_robin", 0), ("adversarial", 0), ("random", 3))
#: 128 threads write 2 KiB each to smem and make them visible; %rd2, %rd3: descriptors of smem and smem + 4096.
FILL = ("shl.b32 %r5, %r1, 4; add.u32 %r5, %r5, %r2; mov.b32 %r6, 0; st.shared.v4.b32 [%r5], {%r6, %r6, %r6, %r6};"
        "st.shared.v4.b32 [%r5+2048], {%r6, %r6, %r6, %r6}; {fence} {barrier} shr.u32 %r7, %r2, 4; cvt.u64.u32 %rd2, %r7; or.b64 %rd2, %rd2, 0x800000100000;"
        .replace("0x800000100000", "0x0000002000010000"))
READY = FILL.replace("{fence}", "fence.proxy.async.shared::cta;").replace("{barrier}", "bar.sync 0;")
ZERO = "".join(f"mov.f32 %f{i}, 0f00000000;" for i in range(8))
FENCE, COMMIT, WAIT = "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"
USE = "@!%p1 st.global.f32 [%rd1], %f0;"
NEXT = "shl.b32 %r5, %r1, 4; add.u32 %r5, %r5, %r2; st.shared.v4.b32 [%r5], {%r6, %r6, %r6, %r6};"


def mma(keep: int = 1, n: int = 8, first: int = 0, a: str = "%rd2") -> str:
    acc = ", ".join(f"%f{first + i}" for i in range(n // 2))
    flips = "0, 0" if a == "%rd2" else "0"
    return f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {{{acc}}}, {a}, %rd2, {keep}, 1, 1, {flips};"


A = "{%r10, %r11, %r12, %r13}"
ZERO_A = "".join(f"mov.b32 %r{i}, 0;" for i in range(10, 14))
CASES = {
    "accumulator read before the wait": ("wgmma-registers", READY + ZERO + FENCE + mma() + COMMIT + USE + WAIT,
                                         READY + ZERO + FENCE + mma() + COMMIT + WAIT + USE),
    "the wait leaves the group": ("wgmma-registers", READY + ZERO + FENCE + mma() + COMMIT + WAIT.replace("0", "1") + USE + WAIT,
                                  READY + ZERO + FENCE + mma() + COMMIT + COMMIT + WAIT.replace("0", "1") + USE + WAIT),
    "the group is not committed": ("wgmma-registers", READY + ZERO + FENCE + mma() + WAIT + USE + COMMIT + WAIT,
                                   READY + ZERO + FENCE + mma() + COMMIT + WAIT + USE),
    "accumulator written before the wait": ("wgmma-registers", READY + ZERO + FENCE + mma() + COMMIT + "mov.f32 %f1, 0f00000000;" + WAIT,
                                            READY + ZERO + FENCE + mma() + COMMIT + WAIT + "mov.f32 %f1, 0f00000000;"),
    "A's registers written before the wait": ("wgmma-registers", READY + ZERO + ZERO_A + FENCE + mma(a=A) + COMMIT + "mov.b32 %r11, 1;" + WAIT,
                                              READY + ZERO + ZERO_A + FENCE + mma(a=A) + COMMIT + "mov.b32 %r20, %r11;" + WAIT + "mov.b32 %r11, 1;"),
    "two shapes on one accumulator": ("wgmma-registers", READY + ZERO + FENCE + mma() + mma(n=16) + COMMIT + WAIT,
                                      READY + ZERO + FENCE + mma() + mma() + COMMIT + WAIT),
    "no fence at all": ("wgmma-fence", READY + mma(0) + COMMIT + WAIT, READY + FENCE + mma(0) + COMMIT + WAIT),
    "no fence after the accumulator is set": ("wgmma-fence", READY + FENCE + ZERO + mma() + COMMIT + WAIT, READY + ZERO + FENCE + mma() + COMMIT + WAIT),
    "no fence after the accumulator is read": ("wgmma-fence", READY + ZERO + FENCE + mma() + COMMIT + WAIT + USE + mma(0) + COMMIT + WAIT,
                                               READY + ZERO + FENCE + mma() + COMMIT + WAIT + USE + FENCE + mma(0) + COMMIT + WAIT),
    "no fence after A's registers are set": ("wgmma-fence", READY + ZERO + FENCE + ZERO_A + mma(a=A) + COMMIT + WAIT,
                                             READY + ZERO + ZERO_A + FENCE + mma(a=A) + COMMIT + WAIT),
    "operands written without a proxy fence": ("proxy-fence", FILL.replace("{fence}", "").replace("{barrier}", "bar.sync 0;") + ZERO + FENCE + mma() + COMMIT + WAIT,
                                               READY + ZERO + FENCE + mma() + COMMIT + WAIT),
    "operands of other warps without a barrier": ("shared-race", READY.replace("bar.sync 0;", "") + ZERO + FENCE + mma() + COMMIT + WAIT,
                                                  READY + ZERO + FENCE + mma() + COMMIT + WAIT),
    "operands overwritten before the wait": ("slot-overwritten", READY + ZERO + FENCE + mma() + COMMIT + NEXT + WAIT,
                                             READY + ZERO + FENCE + mma() + COMMIT + WAIT + "bar.sync 0;" + NEXT),
    "an accumulator that nothing has written": ("uninitialised-register", READY + FENCE + mma(1) + COMMIT + WAIT, READY + FENCE + mma(0) + COMMIT + WAIT),
    "operands that nothing has written": ("uninitialised-shared", READY.replace("st.shared.v4.b32 [%r5],", "// ").replace("{%r6, %r6, %r6, %r6};st", "\nst", 1)
                                          + ZERO + FENCE + mma() + COMMIT + WAIT, READY + ZERO + FENCE + mma() + COMMIT + WAIT),
    "more registers than setmaxnreg leaves": ("register-budget", "setmaxnreg.dec.sync.aligned.u32 24;" + READY + FENCE + mma(0, 64) + COMMIT + WAIT,
                                              "setmaxnreg.dec.sync.aligned.u32 40;" + READY + FENCE + mma(0, 64) + COMMIT + WAIT),
}


@pytest.mark.parametrize("policy,seed", POLICIES)
@pytest.mark.parametrize("name", CASES)
def test_cases(name: str, policy: str, seed: int) -> None:
    kind, wrong, right = CASES[name]
    options = {"threads": 128, "policy": policy, "seed": seed, "assemble": False, "directives": ".maxntid 128, 1, 1"}
    good, bad = (run(body, **options) for body in (right, wrong))
    good.check()
    also = {"wgmma-registers": {"wgmma-fence"}, "shared-race": {"uninitialised-shared"}, "slot-overwritten": {"proxy-fence", "shared-race"}}
    assert kind in kinds(bad) and set(kinds(bad)) <= {kind, *also.get(kind, ())}
    assert all(f.ptx_line > 0 and f.warps for f in bad.findings)


def test_what_a_fence_orders_is_an_option() -> None:
    """A barrier between wgmma.fence and the wgmma that reads what it orders."""
    body = READY.replace("bar.sync 0;", "") + ZERO + FENCE + "bar.sync 0;" + mma() + COMMIT + WAIT
    options = {"threads": 128, "assemble": False, "directives": ".maxntid 128, 1, 1"}
    assert kinds(run(body, **options)) == ["wgmma-fence"]
    run(body, options={"wgmma_after_fence": False}, **options).check()
