"""Named barriers and mbarriers: phases, parity, counts, transaction bytes, tests and waits; register budgets."""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from programs import Buffer, Program, per_thread, random, store

HEADER = ".shared .align 8 .b64 bars[8];\n.shared .align 16 .b8 buf[2048];\n"
#: Barrier addresses in %r4, the buffer in %r5; %p1 is false in thread 0.
START = "mov.u32 %r4, bars; mov.u32 %r5, buf; setp.ne.u32 %p1, %r1, 0;"


def init(*counts: int) -> str:
    """Thread 0 initialises barriers 0, 1, ...; then all threads meet."""
    return ("@%p1 bra INIT; " + " ".join(f"mbarrier.init.shared::cta.b64 [%r4+{8 * i}], {c};" for i, c in enumerate(counts))
            + "fence.mbarrier_init.release.cluster;\nINIT: bar.sync 0;")


class Script:
    """A body that notes results: each `note` puts a register into the thread's next result."""

    def __init__(self, *counts: int):
        self.text, self.count, self.labels = START + init(*counts), 0, 0

    def do(self, text: str) -> Script:
        """Add instructions."""
        self.text += text
        return self

    def note(self, register: str) -> Script:
        """Store a register as the next result."""
        self.text += f"st.global.u32 [%rd1+{4 * self.count}], {register};"
        self.count += 1
        return self

    def flag(self, instruction: str) -> Script:
        """Store the predicate %p5 that an instruction gives."""
        return self.do(instruction + " selp.u32 %r9, 1, 0, %p5;").note("%r9")

    def parity(self, phase: int, barrier: int = 0, how: str = "test_wait") -> Script:
        """Store whether the phase of a parity is complete."""
        return self.flag(f"mbarrier.{how}.parity.shared.b64 %p5, [%r4+{8 * barrier}], {phase};")

    def wait(self, phase: int, barrier: int = 0) -> Script:
        """Wait for the phase of a parity."""
        self.labels += 1
        name = f"W{self.labels}"
        return self.do(f"\n{name}: mbarrier.try_wait.parity.shared::cta.b64 %p6, [%r4+{8 * barrier}], {phase}; @!%p6 bra {name};")

    def program(self, name: str, block: int = 32, buffers: tuple[Buffer, ...] = (), header: str = "", directives: str = "",
                cluster: int = 1) -> Program:
        """The program, of one cluster."""
        return per_thread(name, self.text, buffers, self.count, HEADER + header, directives, block=block, grid=cluster, cluster=cluster)


def named() -> Iterator[Program]:
    """bar and barrier: sync, arrive, reductions, subsets of the warps."""
    body = START + ("mad.lo.u32 %r6, %r1, 4, %r5; st.shared.u32 [%r6], %r1; bar.sync 0; xor.b32 %r7, %r1, 127; mad.lo.u32 %r7, %r7, 4, %r5;"
                    "ld.shared.u32 %r20, [%r7]; barrier.sync 1; st.shared.u32 [%r6], %r20; bar.cta.sync 2, 128; ld.shared.u32 %r21, [%r7]; barrier.sync.aligned 3, 128;"
                    "barrier.cta.sync 4, 128; mul.lo.u32 %r8, %r1, 5; st.shared.u32 [%r6], %r8; mov.u32 %r9, 15; bar.sync %r9; ld.shared.u32 %r22, [%r7];")
    yield per_thread("bar.sync", body + store(["%r20", "%r21", "%r22"]), [], 3, HEADER, block=128)
    body = START + ("mad.lo.u32 %r6, %r1, 4, %r5; mov.u32 %r20, 0; setp.lt.u32 %p3, %r1, 64; @%p3 bra P; bar.sync 1, 128; xor.b32 %r7, %r1, 64; mad.lo.u32 %r7, %r7, 4, %r5;"
                    "ld.shared.u32 %r20, [%r7]; bar.sync 2, 64; bra E;\nP: st.shared.u32 [%r6], %r2; {arrive} 1, 128; bar.sync 3, 64;\nE:")
    for form in ("bar.arrive", "bar.cta.arrive", "barrier.arrive", "barrier.cta.arrive.aligned"):
        yield per_thread(form, body.replace("{arrive}", form) + store(["%r20"]), [], 1, HEADER, block=128)
    body, regs = START + "and.b32 %r6, %r1, 7; setp.eq.u32 %p3, %r6, 0; setp.lt.u32 %p4, %r1, 500;", []
    for i, (pred, number) in enumerate((p, b) for p in ("%p3", "!%p3", "%p4", "!%p4") for b in ("0", "5, 128")):
        body += f"bar.red.popc.u32 %r{20 + 3 * i}, {number}, {pred};"
        body += "".join(f"bar.red.{op}.pred %p5, {number}, {pred}; selp.u32 %r{21 + 3 * i + j}, 1, 0, %p5;" for j, op in enumerate(("and", "or")))
        regs += [f"%r{20 + 3 * i + j}" for j in range(3)]
    yield per_thread("bar.red", body + store(regs), [], len(regs), HEADER, block=128)


def phases() -> Iterator[Program]:
    """One thread drives a barrier through its phases and looks at both parities after every step."""
    s = Script(2, 1).parity(0).parity(1)
    for step in range(6):
        s.do("mbarrier.arrive.shared::cta.b64 _, [%r4];").parity(0).parity(1).do("mbarrier.arrive.shared::cta.b64 _, [%r4];").parity(0).parity(1).parity(step & 1, how="try_wait")
    yield s_first(s, "mbarrier.phases")
    s = Script(5)
    s.do("mbarrier.arrive.shared.b64 %rd5, [%r4], 3; mbarrier.pending_count.b64 %r6, %rd5;").note("%r6").parity(0)
    s.do("mbarrier.arrive.shared.b64 %rd6, [%r4]; mbarrier.pending_count.b64 %r6, %rd6;").note("%r6").parity(0)
    s.do("mbarrier.arrive.shared.b64 %rd7, [%r4]; mbarrier.pending_count.b64 %r6, %rd7;").note("%r6").parity(0).parity(1)
    s.do("mbarrier.arrive.shared.b64 %rd8, [%r4], 5; mbarrier.pending_count.b64 %r6, %rd8;").note("%r6").parity(0).parity(1)
    yield s_first(s, "mbarrier.counts")
    s = Script(4)
    for count in (1, 2):
        s.do(f"mbarrier.arrive.noComplete.release.cta.shared.b64 %rd5, [%r4], {count}; mbarrier.pending_count.b64 %r6, %rd5;").note("%r6").parity(0)
    s.do("mbarrier.arrive.release.cta.shared::cta.b64 %rd5, [%r4];").parity(0).do("mbarrier.arrive.noComplete.shared.b64 %rd5, [%r4], 3;").parity(1)
    s.do("mbarrier.arrive.release.cluster.shared::cta.b64 %rd5, [%r4];").parity(1)
    yield s_first(s, "mbarrier.noComplete")
    s = Script(3)
    s.do("mbarrier.arrive_drop.shared.b64 %rd5, [%r4]; mbarrier.pending_count.b64 %r6, %rd5;").note("%r6").parity(0)
    s.do("mbarrier.arrive.shared.b64 _, [%r4], 2;").parity(0)
    s.do("mbarrier.arrive.shared.b64 %rd5, [%r4]; mbarrier.pending_count.b64 %r6, %rd5;").note("%r6").parity(1)
    s.do("mbarrier.arrive_drop.shared::cta.b64 _, [%r4];").parity(1).do("mbarrier.arrive.shared.b64 _, [%r4];").parity(0)
    yield s_first(s, "mbarrier.arrive_drop")
    s = Script(3)
    s.do("mbarrier.arrive_drop.release.cta.shared.b64 %rd5, [%r4], 2;").parity(0).do("mbarrier.arrive.shared.b64 _, [%r4];").parity(0)
    s.do("mbarrier.arrive.shared.b64 _, [%r4];").parity(1)
    yield s_first(s, "mbarrier.arrive_drop.count")


def s_first(s: Script, name: str) -> Program:
    """A script that only thread 0 runs."""
    head, rest = s.text.split("bar.sync 0;", 1)
    s.text = head + "bar.sync 0; @%p1 bra DONE;" + rest + "\nDONE:"
    return s.program(name)


def transactions() -> Iterator[Program]:
    """expect_tx, complete_tx and arrivals in every order: the phase ends with the last of both."""
    s = Script(1)
    s.do("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 100;").parity(0)
    s.do("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r4], 60;").parity(0).do("mbarrier.complete_tx.shared::cta.b64 [%r4], 40;").parity(0)
    s.do("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r4], 16;").parity(1).do("mbarrier.arrive.shared::cta.b64 _, [%r4];").parity(1)
    s.do("mbarrier.complete_tx.shared::cta.b64 [%r4], 16;").parity(1)
    yield s_first(s, "mbarrier.tx")
    s = Script(2)
    s.do("mbarrier.expect_tx.shared::cta.b64 [%r4], 8; mbarrier.complete_tx.shared::cta.b64 [%r4], 8;").parity(0)
    s.do("mbarrier.arrive.shared::cta.b64 _, [%r4];").parity(0)
    s.do("mbarrier.complete_tx.shared::cta.b64 [%r4], 32;").parity(0).do("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %rd5, [%r4], 32;").parity(0)
    yield s_first(s, "mbarrier.tx-early")
    s = Script(2)
    s.do("mbarrier.arrive_drop.expect_tx.shared::cta.b64 %rd5, [%r4], 64;").parity(0).do("mbarrier.arrive.shared::cta.b64 _, [%r4];").parity(0)
    s.do("mbarrier.complete_tx.shared::cta.b64 [%r4], 64;").parity(0).do("mbarrier.arrive.shared::cta.b64 _, [%r4];").parity(1)
    yield s_first(s, "mbarrier.tx-drop")
    s = Script(1)
    s.do("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 1048575;").parity(0).do("mbarrier.complete_tx.shared::cta.b64 [%r4], 1048575;").parity(0)
    s.do("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 0;").parity(1)
    yield s_first(s, "mbarrier.tx-limits")


def waits() -> Iterator[Program]:
    """State tokens, time limits, every form of test and wait; many threads over many phases."""
    s = Script(2)
    s.do("mbarrier.arrive.shared.b64 %rd5, [%r4];").flag("mbarrier.test_wait.shared.b64 %p5, [%r4], %rd5;")
    s.do("mbarrier.arrive.shared.b64 %rd6, [%r4];")
    for sem in ("", ".acquire.cta", ".acquire.cluster"):
        for token in ("%rd5", "%rd6"):
            s.flag(f"mbarrier.test_wait{sem}.shared::cta.b64 %p5, [%r4], {token};").flag(f"mbarrier.try_wait{sem}.shared::cta.b64 %p5, [%r4], {token};")
    s.flag("mbarrier.try_wait.shared.b64 %p5, [%r4], %rd5, 100;").do("mbarrier.arrive.shared.b64 %rd7, [%r4];").flag("mbarrier.test_wait.shared.b64 %p5, [%r4], %rd7;").flag("mbarrier.test_wait.shared.b64 %p5, [%r4], %rd6;")
    s.flag("mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p5, [%r4], 0, 50;").flag("mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p5, [%r4], 0;")
    yield s_first(s, "mbarrier.tokens")
    s = Script(2)
    s.do("mbarrier.arrive.shared.b64 %rd5, [%r4];").flag("mbarrier.try_wait.shared.b64 %p5, [%r4], %rd5, 100;")
    s.flag("mbarrier.try_wait.parity.shared.b64 %p5, [%r4], 0, 200;").do("mbarrier.arrive.shared.b64 _, [%r4];").parity(0, how="try_wait")
    yield s_first(s, "mbarrier.time-limit")
    s = Script(1).do("mbarrier.arrive.shared.b64 _, [%r4];").parity(0).do("mbarrier.inval.shared.b64 [%r4]; mbarrier.init.shared.b64 [%r4], 2;").parity(0).parity(1)
    s.do("mbarrier.arrive.shared.b64 _, [%r4];").parity(0).do("mbarrier.arrive.shared.b64 _, [%r4];").parity(0)
    yield s_first(s, "mbarrier.inval")
    s = Script(128).do("mov.u32 %r10, 0;")
    for phase in range(4):
        s.do(f"add.u32 %r11, %r1, {phase}; and.b32 %r11, %r11, 127; mad.lo.u32 %r12, %r11, 4, %r5; mad.lo.u32 %r13, %r1, {phase + 3}, 1; st.shared.u32 [%r12+{512 * phase}], %r13;"
             "mbarrier.arrive.shared.b64 %rd5, [%r4];").wait(phase & 1).do(f"mad.lo.u32 %r12, %r1, 4, %r5; ld.shared.u32 %r14, [%r12+{512 * phase}];").note("%r14")
    yield s.program("mbarrier.many-threads", 128)
    s = Script(1, 32, 1).do("shr.u32 %r6, %r1, 5; setp.eq.u32 %p3, %r6, 0; mov.u32 %r7, 0; mov.u32 %r8, 0; and.b32 %r15, %r1, 31; mad.lo.u32 %r10, %r15, 4, %r5; @%p3 bra PRODUCER;\n"
                            "CONSUME: and.b32 %r11, %r7, 1;\nC1: mbarrier.try_wait.parity.shared::cta.b64 %p6, [%r4], %r11; @!%p6 bra C1; ld.shared.u32 %r12, [%r10]; mad.lo.u32 %r8, %r8, 3, %r12;"
                            "mbarrier.arrive.shared::cta.b64 _, [%r4+8]; add.u32 %r7, %r7, 1; setp.lt.u32 %p4, %r7, 9; @%p4 bra CONSUME; bra END;\n"
                            "PRODUCER: and.b32 %r11, %r7, 1; xor.b32 %r11, %r11, 1;\nP1: mbarrier.try_wait.parity.shared::cta.b64 %p6, [%r4+8], %r11; @!%p6 bra P1;"
                            "mad.lo.u32 %r13, %r7, 100, %r1; st.shared.u32 [%r10], %r13; bar.warp.sync -1; @!%p1 mbarrier.arrive.shared::cta.b64 _, [%r4];"
                            "add.u32 %r7, %r7, 1; setp.lt.u32 %p4, %r7, 9; @%p4 bra PRODUCER;\nEND:").note("%r8")
    yield s.program("mbarrier.ring", 64)
    body = START + init(32) + ("mov.u64 %rd6, bars; cvta.shared.u64 %rd6, %rd6; mbarrier.arrive.b64 %rd7, [%rd6];\nW: mbarrier.try_wait.parity.b64 %p5, [%rd6], 0; @!%p5 bra W;"
                               "mbarrier.test_wait.parity.b64 %p5, [%rd6], 1; selp.u32 %r20, 1, 0, %p5;")
    yield per_thread("mbarrier.generic", body + store(["%r20"]), [], 1, HEADER)


def budgets() -> Iterator[Program]:
    """setmaxnreg: a producer warpgroup gives registers, a consumer takes them."""
    body = START + ("setp.lt.u32 %p3, %r1, 128; @!%p3 bra C; setmaxnreg.dec.sync.aligned.u32 24; mov.u32 %r20, 1; bra E;\n"
                    "C: setmaxnreg.inc.sync.aligned.u32 240; mov.u32 %r20, 2;\nE:")
    yield per_thread("setmaxnreg", body + store(["%r20"]), [], 1, HEADER, ".maxntid 384, 1, 1\n.minnctapersm 1", block=384)


def async_bytes() -> Iterator[Program]:
    """st.async and red.async: bytes that count on a barrier, each CTA of a cluster with itself."""
    start = START + init(1, 1) + "mov.u32 %r20, %cluster_ctarank; mapa.shared::cluster.u32 %r6, %r5, %r20; mapa.shared::cluster.u32 %r7, %r4, %r20; mad.lo.u32 %r8, %r1, 32, %r6;"
    s = Script()
    s.text = start + "@!%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 896; ld.param.u64 %rd5, [x]; mad.wide.u32 %rd5, %r1, 16, %rd5; ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd5];"
    s.do("mov.b64 %rd6, {%r12, %r10}; st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r8], %r10, [%r7];"
         "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r8+8], {%r11, %r12}, [%r7]; st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.s32 [%r8+16], {%r13, %r12, %r11, %r10}, [%r7];")
    s.wait(0).do("mad.lo.u32 %r9, %r1, 32, %r5; ld.shared.u32 %r21, [%r9]; ld.shared.v2.u32 {%r22, %r23}, [%r9+8]; ld.shared.v4.u32 {%r24, %r25, %r26, %r27}, [%r9+16];")
    for i in range(21, 28):
        s.note(f"%r{i}")
    x = Buffer("x", random("st.async").integers(0, 1 << 32, 128, dtype=np.uint32))
    yield s.program("st.async", buffers=(x,), cluster=2)
    s = Script()
    s.text = start + "@!%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 1792; ld.param.u64 %rd5, [x]; mad.wide.u32 %rd5, %r1, 16, %rd5; ld.global.v2.u64 {%rd10, %rd11}, [%rd5];"
    s.do("mov.b64 %fd1, %rd11; mov.b64 {%f1, %f2}, %rd10; mad.lo.u32 %r8, %r1, 64, %r6;" + "".join(
        f"st.async.shared::cluster.mbarrier::complete_tx::bytes.{t} [%r8+{8 * i}], {r}, [%r7];" for i, (t, r) in enumerate(
            (("b64", "%rd10"), ("u64", "%rd11"), ("s64", "%rd10"), ("f64", "%fd1"), ("v2.u64", "{%rd11, %rd10}"))))
         + "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%r8+48], {%f2, %f1}, [%r7];")
    s.wait(0).do("mad.lo.u32 %r9, %r1, 64, %r5;")
    for i in range(14):
        s.do(f"ld.shared.u32 %r21, [%r9+{4 * i}];").note("%r21")
    yield s.program("st.async.wide", buffers=(x,), cluster=2)
    s = Script()
    ops = (("add", "u32"), ("add", "s32"), ("min", "u32"), ("max", "s32"), ("inc", "u32"), ("dec", "u32"), ("and", "b32"), ("or", "b32"), ("xor", "b32"), ("add", "u64"))
    size = 4 * (len(ops) - 1) + 8
    s.text = start + (f"@!%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], {size * 32}; mad.lo.u32 %r9, %r1, 64, %r5; mapa.shared::cluster.u32 %r8, %r9, %r20;"
                      "ld.param.u64 %rd5, [x]; mad.wide.u32 %rd5, %r1, 16, %rd5; ld.global.v2.u32 {%r10, %r11}, [%rd5]; ld.global.u64 %rd6, [%rd5+8];")
    for i, (op, kind) in enumerate(ops):
        at = 4 * i if kind != "u64" else 40
        s.do(f"st.shared.u{kind[1:]} [%r9+{at}], {'%r11' if kind != 'u64' else '%rd6'};")
    s.do("bar.sync 0; fence.proxy.async;")
    for i, (op, kind) in enumerate(ops):
        at = 4 * i if kind != "u64" else 40
        s.do(f"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{op}.{kind} [%r8+{at}], {'%r10' if kind != 'u64' else '%rd6'}, [%r7];")
    s.wait(0)
    for i in range(12):
        s.do(f"ld.shared.u32 %r30, [%r9+{4 * i}];" if i != 9 else "mov.u32 %r30, 0;").note("%r30")
    yield s.program("red.async", buffers=(x,), cluster=2)


def programs() -> Iterator[Program]:
    """Barriers."""
    yield from named()
    yield from phases()
    yield from transactions()
    yield from waits()
    yield from budgets()
    yield from async_bytes()
