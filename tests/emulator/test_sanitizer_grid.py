"""The sanitizer across CTAs: clusters, lifetimes of shared memory, writes to global memory."""
from __future__ import annotations

import re

import pytest
from sanitized import DATA, gemm, init, kinds, run, wait

from tilejit.emulator.sanitizer import KINDS, MACHINE

POLICIES = (("round_robin", 0), ("adversarial", 0), ("random", 3))
RANK = "mov.u32 %r9, %cluster_ctarank; xor.b32 %r10, %r9, 1; mapa.shared::cluster.u32 %r11, %r2, %r10; mov.u32 %r15, %ctaid.x;"
SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
RELAXED = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;"
MINE = "mad.lo.u32 %r5, %r1, 4, %r2; mad.lo.u32 %r12, %r1, 4, %r11;"
WRITE = RANK + MINE + "st.shared.u32 [%r5], %r1;"
PEER = "ld.shared::cluster.u32 %r6, [%r12];"
ZERO = "setp.ne.u32 %p5, %r9, 0;"
REMOTE = "mapa.shared::cluster.u32 %r13, %r2, %r10; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r13+8192];"
CTA = "mov.u32 %r9, %ctaid.x; mad.wide.u32 %rd3, %r9, 256, %rd1; mad.wide.u32 %rd4, %r1, 4, %rd3; mad.wide.u32 %rd5, %r1, 4, %rd1;"
FLAG_SET = "membar.gl; @%p4 bra S; st.relaxed.gpu.global.u32 [%rd1+8192], 77;\nS:"
POLL = "\nL: ld.relaxed.gpu.global.u32 %r8, [%rd1+8192]; setp.ne.u32 %p7, %r8, 77; @%p7 bra L;"
TURNS = "setp.ne.u32 %p5, %r9, 0; @%p5 bra B; st.global.u32 [%rd5], %r1; {set} bra E;\nB: {poll} st.global.u32 [%rd5], %r1;\nE:"

BULK = "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 256; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
ACQUIRE = "\nL: ld.acquire.gpu.global.u32 %r8, [%rd1+8192]; setp.ne.u32 %p7, %r8, 77; @%p7 bra L;"
LOADS = (init(1) + "st.global.u32 [%rd4], %r1; {fence} bar.sync 0; @%p1 bra E; mbarrier.arrive.expect_tx.shared.b64 _, [%r2+8192], 256;"
         "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd3], 256, [%r2+8192];\nE:" + wait(0))

#: name -> (kind, with the mistake, right, options)
CASES = {
    "a peer's shared memory with no barrier": ("shared-race", WRITE + PEER + SYNC, WRITE + SYNC + PEER + SYNC),
    "a relaxed cluster barrier publishes nothing": ("shared-race", WRITE + RELAXED + PEER + SYNC, WRITE + "fence.acq_rel.cluster;" + RELAXED + "fence.acq_rel.cluster;" + PEER + SYNC),
    "the peer may have exited": ("peer-exited", WRITE + SYNC + PEER, WRITE + SYNC + PEER + RELAXED),
    "a remote arrival that nobody waits for": ("peer-exited", init(64) + RANK + SYNC + REMOTE, init(64) + RANK + SYNC + REMOTE + wait(0)),
    "a remote mbarrier before its init is known": ("barrier-init-race", init(64, fence="") + RANK + RELAXED + REMOTE + wait(0),
                                                   init(64) + RANK + RELAXED + REMOTE + wait(0)),
    "two CTAs write the same bytes": ("global-race", CTA + "st.global.u32 [%rd5], %r1;", CTA + "st.global.u32 [%rd4], %r1;"),
    "an atomic and a store": ("global-race", CTA + "setp.eq.u32 %p5, %r9, 0; @%p5 bra A; st.global.u32 [%rd5], 1; bra E;\nA: red.global.add.u32 [%rd5], 1;\nE:",
                              CTA + "red.global.add.u32 [%rd5], 1;"),
    "bulk stores to the same bytes": ("global-race", WRITE + "fence.proxy.async.shared::cta; bar.sync 0; @%p1 bra E; cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 256;\nE:",
                                      WRITE + "fence.proxy.async.shared::cta; bar.sync 0; @%p1 bra E; mad.wide.u32 %rd3, %r9, 256, %rd1;"
                                      "cp.async.bulk.global.shared::cta.bulk_group [%rd3], [%r2], 256;\nE:"),
    "bulk reductions and stores": ("global-race", WRITE + "fence.proxy.async.shared::cta; bar.sync 0; @%p1 bra E; setp.eq.u32 %p5, %r9, 0; @%p5 bra A; st.global.u32 [%rd1+16], 0; bra E;"
                                   "\nA: cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%r2], 256;\nE:",
                                   WRITE + "fence.proxy.async.shared::cta; bar.sync 0; @%p1 bra E; cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%r2], 256;\nE:"),
    "a CTA reads what another one has just written": ("global-race", CTA + "setp.ne.u32 %p5, %r9, 0; @%p5 bra B; st.global.u32 [%rd5], %r1; bra E;\nB: ld.global.u32 %r8, [%rd5];\nE:",
                                                      CTA + TURNS.replace("{set}", FLAG_SET).replace("{poll}", POLL + "membar.gl; ld.global.u32 %r20, [%rd5];")),
    "a bulk store that is not waited for before the flag":
        ("global-race", WRITE + "fence.proxy.async; bar.sync 0; @%p1 bra E; setp.ne.u32 %p5, %r9, 0; @%p5 bra B;" + BULK.replace("wait_group", "wait_group.read")
         + "st.release.gpu.global.u32 [%rd1+8192], 77; bra E;\nB:" + ACQUIRE + "ld.global.u32 %r20, [%rd1];\nE:",
         WRITE + "fence.proxy.async; bar.sync 0; @%p1 bra E; setp.ne.u32 %p5, %r9, 0; @%p5 bra B;" + BULK
         + "st.release.gpu.global.u32 [%rd1+8192], 77; bra E;\nB:" + ACQUIRE + "ld.global.u32 %r20, [%rd1];\nE:"),
    "a copy of global memory that was written generically": ("proxy-fence", CTA + LOADS.replace("{fence}", ""), CTA + LOADS.replace("{fence}", "fence.proxy.async.global;")),
    "a flag without fences": ("global-race", CTA + TURNS.replace("{set}", FLAG_SET.replace("membar.gl;", "")).replace("{poll}", POLL),
                              CTA + TURNS.replace("{set}", FLAG_SET).replace("{poll}", POLL + "membar.gl;")),
}


@pytest.mark.parametrize("policy,seed", POLICIES)
@pytest.mark.parametrize("name", CASES)
def test_cases(name: str, policy: str, seed: int) -> None:
    kind, wrong, right = CASES[name]
    options = {"grid": 2, "cluster": 2 if "cluster" in right else 1, "policy": policy, "seed": seed, "assemble": policy == "random"}
    run(right, **options).check()
    bad = run(wrong, **options)
    also = {"shared-race": {"uninitialised-shared"}, "barrier-init-race": {"barrier-uninitialised"}}
    assert kind in kinds(bad) and set(kinds(bad)) <= {kind, *also.get(kind, ())}
    assert all(f.ptx_line > 0 and f.warps for f in bad.findings)


def test_a_release_chain_through_three_ctas() -> None:
    """CTA 0 -> 1 -> 2 by acquire and release flags: each adds to what the one before wrote."""
    body = CTA + ("shl.b32 %r10, %r9, 2; cvt.u64.u32 %rd6, %r10; add.s64 %rd6, %rd6, %rd1; setp.eq.u32 %p5, %r9, 0; @%p5 bra G;"
                  "\nL: ld.acquire.gpu.global.u32 %r8, [%rd6+8188]; setp.ne.u32 %p7, %r8, 77; @%p7 bra L;\nG: st.global.u32 [%rd5], %r1; bar.sync 0;"
                  "@%p1 bra E; {release};\nE:")
    run(body.replace("{release}", "st.release.gpu.global.u32 [%rd6+8192], 77"), grid=3).check()
    assert kinds(run(body.replace("{release}", "st.relaxed.gpu.global.u32 [%rd6+8192], 77"), grid=3)) == ["global-race"]


@pytest.mark.parametrize("policy,seed", POLICIES)
def test_clusters_end_together(policy: str, seed: int) -> None:
    """Without the last cluster barrier a CTA may leave while its peer still multicasts into it or arrives there."""
    text = (DATA / "gemm_cluster2.ptx").read_text()
    ends = [m.start() for m in re.finditer(r"barrier\.cluster\.arrive", text)]
    assert len(ends) == 2
    edit = (r"([\s\S]*)barrier\.cluster\.arrive[^;]*;\s*barrier\.cluster\.wait[^;]*;", r"\1")
    assert "peer-exited" in kinds(gemm("cluster2", 256, 256, 256, 2, policy, seed, [edit]))


def test_a_slot_of_the_peer_is_released_too_early() -> None:
    """Consumers of a multicast must release the slot to both producers."""
    text = (DATA / "gemm_cluster2.ptx").read_text()
    assert text.count("shared::cluster.b64 _") >= 1
    edits = [(r"(mbarrier\.init\.shared::cta\.b64 \[%r2\+(?:32|40|48|56)\], )4", r"\g<1>2")] * 4
    found = kinds(gemm("cluster2", 256, 256, 1024, 2, "adversarial", 0, edits))
    assert {"slot-overwritten", "barrier-underflow"} & set(found)


def test_the_table_of_kinds() -> None:
    assert MACHINE <= set(KINDS) and len(KINDS) >= 30
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) and meaning and len(meaning) < 120 for name, meaning in KINDS.items())


def test_every_kind_that_the_code_names_is_in_the_table() -> None:
    root = DATA.parents[2] / "tilejit" / "emulator"
    named = {m for path in root.rglob("*.py") for m in re.findall(r'\.(?:stop|report|finding)\("([a-z-]+)"', path.read_text())}
    assert named <= MACHINE and len(named) > 10
