"""The sanitizer and asynchronous copies: each program has one mistake, and a right twin."""
from __future__ import annotations

import pytest
from sanitized import init, kinds, run, wait, wrong_report

POLICIES = (("round_robin", 0), ("adversarial", 0), ("random", 3))
#: Warp 0's thread 0 copies 512 bytes from y to smem.
LOAD = ("mbarrier.arrive.expect_tx.shared.b64 _, [%r2+8192], {n}; cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%r2{to}], [%rd1], 512, [%r2+8192];")
EXPECT = LOAD.split(";")[0] + ";"
COPY = LOAD.split(";")[1] + ";"
STORE = "cp.async.bulk.global.shared::cta.bulk_group [%rd1+8192], [%r2], 512; cp.async.bulk.commit_group;"
MINE = "mad.lo.u32 %r5, %r1, 8, %r2;"                # 8 bytes a thread
READ = MINE + "ld.shared.v2.u32 {%r6, %r7}, [%r5];"
USE = "add.u32 %r8, %r6, %r7;"
WRITE = MINE + "st.shared.v2.u32 [%r5], {%r1, %r1};"
FENCE = "fence.proxy.async.shared::cta;"


def load(n: int = 512, to: str = "") -> str:
    return LOAD.format(n=n, to=to)


def by_one(code: str, label: str) -> str:
    """Only thread 0."""
    return f"@%p1 bra {label}; {code}\n{label}:\n"


def alone(code: str) -> str:
    """Only warp 0."""
    return f"setp.gt.u32 %p3, %r1, 31; @%p3 bra ALONE; {code}\nALONE:\n"


SLOT = by_one(load(), "P") + wait(0) + READ
REFILL = "mbarrier.arrive.shared.b64 _, [%r2+8200];"       # 64 threads release the slot

#: name -> (kind, the program with the mistake, the right twin)
CASES = {
    "a slot is read before its copy has completed":
        ("slot-read-early", init(1) + by_one(load(), "P") + READ + wait(0), init(1) + SLOT),
    "the wait is on the wrong barrier":
        ("slot-read-early", init(1, 1) + by_one(load() + "mbarrier.arrive.shared.b64 _, [%r2+8200];", "P") + wait(0, 1) + READ + wait(0),
         init(1, 1) + by_one(load() + "mbarrier.arrive.shared.b64 _, [%r2+8200];", "P") + wait(0, 1) + wait(0) + READ),
    "a copy overwrites a slot that a warp may still read":
        ("slot-overwritten", init(1) + SLOT + by_one(load(), "Q") + wait(1),
         init(1) + SLOT + "bar.sync 0;" + by_one(load(), "Q") + wait(1)),
    "a copy overtakes what its own warp has read":
        ("slot-overwritten", init(1, 32) + alone(by_one(load(), "P") + wait(0) + READ + "bar.warp.sync -1;" + by_one(load(), "Q")) + wait(1),
         init(1, 32) + alone(by_one(load(), "P") + wait(0) + READ + REFILL + by_one(wait(0, 1) + load(), "Q")) + wait(1)),
    "a copy overtakes what its own warp has read, which waited for nothing":
        ("slot-overwritten", init(1) + alone(by_one(load(), "P") + wait(0) + READ + by_one(load(), "Q")) + wait(1),
         init(1) + alone(by_one(load(), "P") + wait(0) + READ + FENCE + "bar.warp.sync -1;" + by_one(load(), "Q")) + wait(1)),
    "a slot is released before it is read":
        ("slot-overwritten", init(1, 64) + by_one(load(), "P") + wait(0) + REFILL + READ + by_one(wait(0, 1) + load(), "Q") + wait(1),
         init(1, 64) + by_one(load(), "P") + wait(0) + READ + REFILL + by_one(wait(0, 1) + load(), "Q") + wait(1)),
    "a slot is released while what is read from it is under way":
        ("slot-overwritten", init(1, 64) + by_one(load(), "P") + wait(0) + READ + REFILL + USE + by_one(wait(0, 1) + load(), "Q") + wait(1),
         init(1, 64) + by_one(load(), "P") + wait(0) + READ + USE + REFILL + USE + by_one(wait(0, 1) + load(), "Q") + wait(1)),
    "a store's source is overwritten before it is read":
        ("slot-overwritten", WRITE + FENCE + "bar.sync 0;" + by_one(STORE, "P") + "bar.sync 0;" + WRITE,
         WRITE + FENCE + "bar.sync 0;" + by_one(STORE + "cp.async.bulk.wait_group.read 0;", "P") + "bar.sync 0;" + WRITE),
    "wait_group.read leaves too many groups":
        ("slot-overwritten", WRITE + FENCE + "bar.sync 0;" + by_one(STORE + "cp.async.bulk.wait_group.read 1;", "P") + "bar.sync 0;" + WRITE,
         WRITE + FENCE + "bar.sync 0;" + by_one(STORE + "cp.async.bulk.wait_group 0;", "P") + "bar.sync 0;" + WRITE),
    "generic writes, then a bulk store, no proxy fence":
        ("proxy-fence", WRITE + "bar.sync 0;" + by_one(STORE, "P"), WRITE + FENCE + "bar.sync 0;" + by_one(STORE, "P")),
    "the proxy fence comes before the writes":
        ("proxy-fence", FENCE + WRITE + "bar.sync 0;" + by_one(STORE, "P"), WRITE + "bar.sync 0;" + by_one(FENCE + STORE, "P")),
    "the proxy fence is for global memory":
        ("proxy-fence", WRITE + "fence.proxy.async.global; bar.sync 0;" + by_one(STORE, "P"),
         WRITE + "fence.proxy.async; bar.sync 0;" + by_one(STORE, "P")),
    "a bulk store reads what another warp writes":
        ("shared-race", WRITE + FENCE + by_one(STORE, "P"), WRITE + FENCE + "bar.sync 0;" + by_one(STORE, "P")),
    "an mbarrier's init is not made visible to the copy":
        ("proxy-fence", init(1, fence="") + SLOT, init(1, fence="fence.mbarrier_init.release.cluster;") + SLOT),
    "more bytes are copied than expected":
        ("tx-bytes", init(1) + by_one(load(256), "P") + wait(0), init(1) + by_one(load(512), "P") + wait(0)),
    "fewer bytes are copied than expected":
        ("tx-bytes", init(1) + by_one(load(1024), "P") + wait(0), init(1) + by_one(load(512), "P") + wait(0)),
    "one of two copies is not expected":
        ("tx-bytes", init(1) + by_one(load() + COPY.format(to="+512"), "P") + wait(0),
         init(1) + by_one(load(1024) + COPY.format(to="+512"), "P") + wait(0)),
    "cp.async is read before its wait":
        ("slot-read-early", MINE + "mad.wide.u32 %rd2, %r1, 8, %rd1; cp.async.ca.shared.global [%r5], [%rd2], 8; ld.shared.u32 %r6, [%r5];",
         MINE + "mad.wide.u32 %rd2, %r1, 8, %rd1; cp.async.ca.shared.global [%r5], [%rd2], 8; cp.async.commit_group; cp.async.wait_group 0;"
         "ld.shared.u32 %r6, [%r5];"),
    "cp.async of another warp is read after the own wait":
        ("slot-read-early", MINE + "mad.wide.u32 %rd2, %r1, 8, %rd1; cp.async.ca.shared.global [%r5], [%rd2], 8; cp.async.wait_all;"
         "xor.b32 %r6, %r5, 256; ld.shared.u32 %r6, [%r6];",
         MINE + "mad.wide.u32 %rd2, %r1, 8, %rd1; cp.async.ca.shared.global [%r5], [%rd2], 8; cp.async.wait_all; bar.sync 0;"
         "xor.b32 %r6, %r5, 256; ld.shared.u32 %r6, [%r6];"),
    "cp.async, then a bulk store, no proxy fence":
        ("proxy-fence", MINE + "mad.wide.u32 %rd2, %r1, 8, %rd1; cp.async.ca.shared.global [%r5], [%rd2], 8; cp.async.wait_all; bar.sync 0;"
         + by_one(STORE, "P"),
         MINE + "mad.wide.u32 %rd2, %r1, 8, %rd1; cp.async.ca.shared.global [%r5], [%rd2], 8; cp.async.wait_all;" + FENCE + "bar.sync 0;"
         + by_one(STORE, "P")),
    "a bulk store of bytes that nothing has written":
        ("uninitialised-shared", by_one(STORE, "P"), WRITE + FENCE + "bar.sync 0;" + by_one(STORE, "P")),
    "a copy lands on a live mbarrier":
        ("barrier-overlapped", init(1, 1) + by_one(EXPECT.format(n=512) + COPY.format(to="+8192"), "P") + wait(0),
         init(1, 1) + by_one(EXPECT.format(n=512) + COPY.format(to="+7680"), "P") + wait(0)),
}


@pytest.mark.parametrize("policy,seed", POLICIES)
@pytest.mark.parametrize("name", CASES)
def test_cases(name: str, policy: str, seed: int) -> None:
    kind, wrong, right = CASES[name]
    report = wrong_report(wrong, right, policy, seed)
    assert kind in kinds(report)
    also = {"tx-bytes": {"deadlock", "slot-read-early", "exit-in-flight"}, "slot-read-early": {"uninitialised-shared"},
            "shared-race": {"uninitialised-shared"}, "barrier-overlapped": {"slot-overwritten", "proxy-fence"}}
    assert set(kinds(report)) <= {kind, *also.get(kind, ())}
    finding = next(f for f in report.findings if f.kind == kind)
    assert finding.ptx_line > 0 and finding.warps and finding.subject and finding.seed == seed


def test_cp_async_arrivals_tell_of_the_copies() -> None:
    copy = MINE + "mad.wide.u32 %rd2, %r1, 8, %rd1; cp.async.ca.shared.global [%r5], [%rd2], 8;"
    arrive = "cp.async.mbarrier.arrive.noinc.shared.b64 [%r2+8192];"
    for policy, seed in POLICIES:
        run(init(64) + copy + arrive + wait(0) + "xor.b32 %r6, %r5, 256; ld.shared.u32 %r6, [%r6];", policy=policy, seed=seed).check()
        late = run(init(64) + copy.replace("cp.async", arrive + "cp.async") + wait(0) + "xor.b32 %r6, %r5, 256; ld.shared.u32 %r6, [%r6];",
                   policy=policy, seed=seed)
        assert kinds(late) == ["slot-read-early"]


def test_reads_need_a_fence_when_asked() -> None:
    body = init(1) + SLOT + "{fence} bar.sync 0;" + by_one(load(), "Q") + wait(1)
    run(body.replace("{fence}", "")).check()
    run(body.replace("{fence}", FENCE), options={"fence_reads": True}).check()
    assert kinds(run(body.replace("{fence}", ""), options={"fence_reads": True})) == ["proxy-fence"]


def test_a_finding_says_where_and_who() -> None:
    kind, wrong, _ = CASES["a slot is read before its copy has completed"]
    f = next(f for f in run(wrong).findings if f.kind == kind and "[0x400" in f.message)
    assert "shared bytes [0x400, 0x500) of CTA 0 (smem+0x0)" in f.message and f.subject.endswith("(smem+0x0)")
    assert "read by CTA 0 warp" in f.message and "write of bulk_load issued at PTX line" in f.message
    assert str(f).startswith("slot-read-early: ") and f.warps[-1] == "CTA 0 warp 0"


def test_the_sanitizer_can_be_off_and_used_again() -> None:
    import numpy as np
    from ptx_programs import kernel, pointer
    from sanitized import SMEM, START

    from tilejit.emulator import Program, Sanitizer

    wrong = CASES["a slot is read before its copy has completed"][1]
    out = np.arange(4096, dtype=np.uint32)
    program = Program(kernel(START + wrong, [".param .u64 y"], SMEM))
    arguments = ((1,), 64, [pointer(out)], 16384, (1, 1, 1), [out])
    assert program.launch(*arguments).findings == []
    s = Sanitizer()
    program.launch(*arguments, listener=s)
    first = list(s.findings)
    assert program.launch(*arguments, listener=s).findings == first == s.findings and first


def test_buffers_have_the_names_of_comments() -> None:
    kind, wrong, _ = CASES["a slot is read before its copy has completed"]
    named = run("// shared 0+1024: tile_a 4x256\n" + wrong)
    assert {f.subject for f in named.findings if f.kind == kind} & {
        "shared bytes [0x400, 0x500) of CTA 0 (tile_a[0]+0x0)", "shared bytes [0x500, 0x600) of CTA 0 (tile_a[1]+0x0)"}


def test_compiled_kernels_name_their_buffers() -> None:
    import tilejit
    from tilejit.emulator import Program
    from tilejit.emulator.sanitizer.buffers import Buffers

    @tilejit.kernel
    def double(src, dst):
        x = src.load([0, 0])
        dst.store([0, 0], x + x)

    built = double.compile("desc<fp32[16x64]>", "desc<fp32[16x64]>")
    buffers = Buffers(Program(built.ptx)).buffers
    assert buffers and all(b.start >= 1024 and b.start < b.end for b in buffers)
