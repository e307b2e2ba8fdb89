"""Clusters: distributed shared memory, remote barriers and atomics, multicast, cluster barriers, remote copies."""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from programs import Buffer, Map, Program, View, kernel, per_thread, random, store
from programs_copy import HEADER, START, WAIT, cleared, dump

MEET = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"


def memory(size: int) -> Iterator[Program]:
    """Addresses in the cluster; loads, stores and atomics in a peer's shared memory."""
    body = START + ("mov.u32 %r20, %cluster_ctarank; mov.u32 %r21, %cluster_nctarank; add.u32 %r22, %r20, 1; rem.u32 %r22, %r22, %r21; mad.lo.u32 %r6, %r1, 4, %r5; mad.lo.u32 %r7, %r20, 1000, %r1;"
                    f"st.shared::cta.u32 [%r6], %r7; {MEET} mapa.shared::cluster.u32 %r8, %r6, %r22; ld.shared::cluster.u32 %r23, [%r8]; getctarank.shared::cluster.u32 %r24, %r8;"
                    "cvt.u64.u32 %rd5, %r6; cvta.shared.u64 %rd5, %rd5; mapa.u64 %rd6, %rd5, %r22; ld.u32 %r25, [%rd6]; getctarank.u64 %r26, %rd6;"
                    "isspacep.shared::cluster %p3, %rd6; selp.u32 %r27, 1, 0, %p3; isspacep.shared::cta %p3, %rd6; selp.u32 %r28, 1, 0, %p3;"
                    f"add.u32 %r9, %r7, 7; {MEET} st.shared::cluster.u32 [%r8+512], %r9; st.u32 [%rd6+1024], %r7; {MEET} ld.shared::cta.u32 %r29, [%r6+512]; ld.shared.u32 %r30, [%r6+1024];"
                    "getctarank.shared::cluster.u32 %r31, %r6; mapa.shared::cluster.u32 %r10, %r6, 0; ld.shared::cluster.u32 %r32, [%r10];" + MEET)
    yield per_thread(f"cluster{size}.memory", body + store([f"%r{i}" for i in range(20, 33)]), [], 13, HEADER, grid=2 * size, cluster=size)
    body = START + ("mov.u32 %r20, %cluster_ctarank; mad.lo.u32 %r6, %r1, 4, %r5; st.shared.u32 [%r6], 5; st.shared.u32 [%r6+128], 0; " + MEET + "mapa.shared::cluster.u32 %r8, %r6, 0;"
                    "atom.relaxed.cluster.shared::cluster.add.u32 %r21, [%r8], 10; red.release.cluster.shared::cluster.add.u32 [%r8+128], %r1; atom.shared::cluster.max.s32 %r22, [%r8+128], -1;"
                    + MEET + "ld.shared::cluster.u32 %r23, [%r8]; ld.shared::cluster.u32 %r24, [%r8+128];" + MEET)
    yield per_thread(f"cluster{size}.atomics", body + store(["%r23", "%r24"]), [], 2, HEADER, grid=size, cluster=size)
    body = ("mov.u32 %r4, bars; mov.u32 %r5, buf; setp.ne.u32 %p1, %r1, 0; @!%p1 mbarrier.init.shared::cta.b64 [%r4], " + str(32 * size) + "; fence.mbarrier_init.release.cluster;"
            "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned; mov.u32 %r20, %cluster_ctarank; mad.lo.u32 %r6, %r1, 4, %r5; mad.lo.u32 %r7, %r20, 128, %r6; mov.u32 %r9, 0;\n"
            f"L: mapa.shared::cluster.u32 %r8, %r7, %r9; mapa.shared::cluster.u32 %r10, %r4, %r9; mad.lo.u32 %r11, %r20, 100, %r1; st.shared::cluster.u32 [%r8], %r11; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r10];"
            f"add.u32 %r9, %r9, 1; setp.lt.u32 %p2, %r9, {size}; @%p2 bra L;\nW: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p6, [%r4], 0; @!%p6 bra W;")
    regs = [f"%r{20 + i}" for i in range(size)]
    body += "".join(f"ld.shared.u32 {r}, [%r6+{128 * i}];" for i, r in enumerate(regs)) + "barrier.cluster.arrive; barrier.cluster.wait;"
    yield per_thread(f"cluster{size}.mbarrier", body + store(regs), [], size, HEADER, grid=size, cluster=size)


def remote_copies(size: int) -> Iterator[Program]:
    """st.async, red.async, bulk copies and bulk reductions into the next CTA, counted on its barrier."""
    x = Buffer("x", random("remote").integers(0, 1 << 32, 1024, dtype=np.uint32))
    body = START + ("@%p1 bra E; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 1664;\nE: mov.u32 %r20, %cluster_ctarank; mov.u32 %r21, %cluster_nctarank; add.u32 %r22, %r20, 1; rem.u32 %r22, %r22, %r21;"
                    "mov.u32 %r90, 1000; mad.lo.u32 %r6, %r1, 4, %r5; st.shared.u32 [%r6+2048], %r90; st.shared.u32 [%r6+2304], %r90; ld.param.u64 %rd5, [x]; mad.wide.u32 %rd5, %r2, 16, %rd5;"
                    "ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd5]; mad.lo.u32 %r7, %r1, 32, %r5; st.shared.v4.u32 [%r7+4096], {%r10, %r11, %r12, %r13}; st.shared.v4.u32 [%r7+4112], {%r13, %r11, %r10, %r12};"
                    f"fence.proxy.async; {MEET} mapa.shared::cluster.u32 %r8, %r6, %r22; mapa.shared::cluster.u32 %r9, %r4, %r22;"
                    "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r8+1024], %r10, [%r9]; red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r8+2048], %r11, [%r9]; @%p1 bra W;"
                    "mapa.shared::cluster.u32 %r14, %r5, %r22; add.u32 %r15, %r5, 4096; cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r14], [%r15], 1024, [%r9]; add.u32 %r14, %r14, 2304;"
                    "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%r14], [%r15], 128, [%r9]; add.u32 %r14, %r14, 768; cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r14], [%r15], 256, [%r9];\n"
                    "W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p6, [%r4], 0; @!%p6 bra W;")
    at = (0, 128, 512, 896, 1024, 2048, 2304, 3072, 3200)
    body += "".join(f"ld.shared.u32 %r{30 + i}, [%r6+{a}];" for i, a in enumerate(at)) + MEET
    directives = "" if size > 1 else ".reqnctapercluster 1, 1, 1"
    yield per_thread(f"cluster{size}.remote-copies", body + store([f"%r{30 + i}" for i in range(len(at))]), [x], len(at), HEADER, directives, grid=size, cluster=size)


def multicast(size: int) -> Iterator[Program]:
    """Every CTA loads its slice for a mask of CTAs: 1-D bulk and TMA tiles, on the barriers at the same offset."""
    x = Buffer("x", random(f"multicast{size}").integers(0, 1 << 16, (64, 64), dtype=np.uint16))
    masks = [(1 << size) - 1, 1 << size - 1 | 1, 2, (1 << size) - 2][:size]
    for form in ("bulk", "tensor"):
        expected = [sum(1 for rank in range(size) if masks[rank] >> cta & 1) * 1024 for cta in range(size)]
        m = Map("x", "uint16", (64, 64), (8, 64), 128)
        body = START + cleared(4096) + "mov.u32 %r20, %cluster_ctarank; mov.u32 %r21, 0; mov.u32 %r22, 0;"
        for rank in range(size):
            body += f"setp.eq.u32 %p3, %r20, {rank}; @%p3 mov.u32 %r21, {masks[rank]}; @%p3 mov.u32 %r22, {expected[rank]};"
        body += (f"cvt.u16.u32 %h1, %r21; @!%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], %r22; {MEET} @%p1 bra S; mad.lo.u32 %r6, %r20, 1024, %r5; createpolicy.fractional.L2::evict_last.b64 %rd7, 1.0;")
        if form == "bulk":
            body += ("ld.param.u64 %rd5, [x]; mad.wide.u32 %rd5, %r20, 1024, %rd5; cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r6], [%rd5], 1024, [%r4], %h1;")
        else:
            body += ("mov.b64 %rd20, m0; cvta.param.u64 %rd20, %rd20; mad.lo.u32 %r23, %r20, 8, 3; cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
                     "[%r6], [%rd20, {0, %r23}], [%r4], %h1, %rd7;")
        body += "\nS:" + WAIT + MEET + "ld.param.u64 %rd90, [y]; mov.u32 %r94, %ctaid.x; mad.wide.u32 %rd90, %r94, 4096, %rd90;" + dump(4096).replace("ld.param.u64 %rd90, [y];", "")
        y = Buffer("y", np.zeros(4096 * size, np.uint8))
        params: tuple[Buffer | Map, ...] = (x, y) if form == "bulk" else (m, x, y)
        yield Program(f"cluster{size}.multicast.{form}", kernel("mov.u32 %r1, %tid.x;" + body, params, HEADER), params,
                      tuple(View("y", f"CTA {i}", 4096 * i, "uint16", 2048) for i in range(size)), size, 32, size)


def remote_barriers(size: int) -> Iterator[Program]:
    """Every operation on a peer's mbarrier: arrive with counts, expect_tx, complete_tx, drop."""
    body = START + ("mov.u32 %r20, %cluster_ctarank; mov.u32 %r21, %cluster_nctarank; add.u32 %r22, %r20, 1; rem.u32 %r22, %r22, %r21; @!%p1 mbarrier.init.shared::cta.b64 [%r4+24], 4;"
                    f"fence.mbarrier_init.release.cluster; {MEET} mapa.shared::cluster.u32 %r6, %r4, %r22; mov.u32 %r25, 0; mov.u32 %r26, 0; mov.u32 %r27, 0; mov.u32 %r28, 0; @%p1 bra A;"
                    "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6+24], 2; mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r6+24], 96;"
                    f"mbarrier.arrive_drop.release.cluster.shared::cluster.b64 _, [%r6+24];\nA: {MEET} mbarrier.test_wait.parity.acquire.cluster.shared::cta.b64 %p5, [%r4+24], 0; selp.u32 %r25, 1, 0, %p5; {MEET} @%p1 bra B;"
                    "mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%r6+24], 32; mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r6+24], 128;\n"
                    "B: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p5, [%r4+24], 0; @!%p5 bra B; " + MEET + "@%p1 bra C; mbarrier.arrive_drop.expect_tx.release.cluster.shared::cluster.b64 _, [%r6+24], 16;"
                    f"mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6+24], 2; mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r6+24], 16;\nC: {MEET} mbarrier.test_wait.parity.acquire.cluster.shared::cta.b64 %p5, [%r4+24], 1;"
                    "selp.u32 %r26, 1, 0, %p5;" + MEET)
    yield per_thread(f"cluster{size}.remote-barriers", body + store(["%r20", "%r22", "%r25", "%r26"]), [], 4, HEADER, grid=size, cluster=size)


def directive() -> Iterator[Program]:
    """A cluster fixed by the kernel; two-dimensional coordinates stay within it."""
    body = ("mov.u32 %r20, %cluster_ctarank; mov.u32 %r21, %clusterid.x; mov.u32 %r22, %cluster_ctaid.x; mov.pred %p3, %is_explicit_cluster; selp.u32 %r23, 1, 0, %p3;"
            "barrier.cluster.arrive.aligned; barrier.cluster.wait.acquire.aligned; barrier.cluster.arrive.release; barrier.cluster.wait;")
    yield per_thread("cluster.directive", body + store(["%r20", "%r21", "%r22", "%r23"]), [], 4, directives=".explicitcluster\n.reqnctapercluster 2, 1, 1", grid=4, cluster=2)


def programs() -> Iterator[Program]:
    """Clusters of 2 and 4."""
    for size in (2, 4):
        yield from memory(size)
        yield from remote_copies(size)
        yield from multicast(size)
        yield from remote_barriers(size)
    yield from remote_copies(1)
    yield from directive()
