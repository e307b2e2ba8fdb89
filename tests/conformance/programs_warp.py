"""Shuffles, votes, matches, reductions over a warp, elections; special registers; control flow; clocks."""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from programs import Buffer, Program, per_thread, random, store
from values import edges, scattered

LOAD = "ld.param.u64 %rd5, [x]; mad.wide.u32 %rd5, %r2, 4, %rd5; ld.global.u32 %r5, [%rd5];"


def shuffles() -> Iterator[Program]:
    """Every mode, widths by the clamp operand, lane-dependent sources, subsets of the warp."""
    x = Buffer("x", scattered("u32", 32, random("shfl")))
    for mode in ("up", "down", "bfly", "idx"):
        body, regs = LOAD + "and.b32 %r6, %r1, 5; mad.lo.u32 %r7, %r1, 7, 3; and.b32 %r7, %r7, 31;", []
        amounts = ("0", "1", "5", "16", "31", "%r6", "%r7", "37")
        clamps = ("0", "0x1800", "0x1C00") if mode == "up" else ("31", "0x181F", "0x1C1F", "0x0F")
        for i, (amount, clamp) in enumerate((a, c) for a in amounts for c in clamps):
            r, f = f"%r{20 + 2 * i}", f"%r{21 + 2 * i}"
            body += f"shfl.sync.{mode}.b32 {r}|%p1, %r5, {amount}, {clamp}, -1; selp.u32 {f}, 1, 0, %p1;"
            regs += [r, f]
        yield per_thread(f"shfl.{mode}", body + store(regs), [x], len(regs))
    body = (LOAD + "and.b32 %r6, %r1, 1; setp.eq.u32 %p1, %r6, 1; mov.u32 %r20, 0; @%p1 bra ODD; shfl.sync.bfly.b32 %r20, %r5, 2, 31, 0x55555555; bra END;\n"
            "ODD: shfl.sync.up.b32 %r20, %r5, 2, 0, 0xAAAAAAAA;\nEND:" + store(["%r20"]))
    yield per_thread("shfl.subset", body, [x], 1)


def votes() -> Iterator[Program]:
    """vote, match, redux, elect, activemask."""
    few = Buffer("x", np.repeat(np.array([3, 7, 3, 3, 0xFFFFFFFF, 7, 0, 3], np.uint32), 4)[random("vote").permutation(32)])
    body = LOAD + "setp.eq.u32 %p1, %r5, 3; setp.ne.u32 %p2, %r5, 99; and.b32 %r6, %r1, 16; setp.eq.u32 %p3, %r6, 0;"
    regs = []
    for i, (mode, pred) in enumerate((m, p) for m in ("all", "any", "uni") for p in ("%p1", "!%p1", "%p2", "!%p2")):
        body += f"vote.sync.{mode}.pred %p5, {pred}, -1; selp.u32 %r{20 + i}, 1, 0, %p5;"
        regs.append(f"%r{20 + i}")
    body += "vote.sync.ballot.b32 %r40, %p1, -1; vote.sync.ballot.b32 %r41, !%p1, -1; mov.u32 %r42, 0; mov.u32 %r43, 0; @!%p3 bra H;"
    body += "vote.sync.ballot.b32 %r42, %p1, 0xFFFF; vote.sync.uni.pred %p5, %p1, 0xFFFF; selp.u32 %r43, 1, 0, %p5;\nH:"
    regs += ["%r40", "%r41", "%r42", "%r43"]
    yield per_thread("vote", body + store(regs), [few], len(regs))
    body = (LOAD + "cvt.u64.u32 %rd6, %r5; shl.b64 %rd6, %rd6, 20; mov.u32 %r7, 5; cvt.u64.u32 %rd7, %r7; and.b32 %r8, %r1, 16; setp.eq.u32 %p3, %r8, 0;"
            "match.any.sync.b32 %r20, %r5, -1; match.any.sync.b64 %r21, %rd6, -1; match.all.sync.b32 %r22|%p1, %r5, -1; selp.u32 %r23, 1, 0, %p1;"
            "match.all.sync.b32 %r24|%p1, %r7, -1; selp.u32 %r25, 1, 0, %p1; match.all.sync.b64 %r26|%p1, %rd7, -1; selp.u32 %r27, 1, 0, %p1;"
            "match.all.sync.b64 %r28, %rd6, -1; mov.u32 %r29, 0; @%p3 match.any.sync.b32 %r29, %r5, 0xFFFF;")
    yield per_thread("match", body + store([f"%r{i}" for i in range(20, 30)]), [few], 10)
    for label, values in (("special", np.resize(edges("u32"), 32)), ("random", scattered("u32", 32, random("redux")))):
        body, regs = LOAD + "and.b32 %r6, %r1, 1; setp.eq.u32 %p1, %r6, 1;", []
        for i, (op, kind) in enumerate([(o, k) for o in ("add", "min", "max") for k in ("u32", "s32")] + [(o, "b32") for o in ("and", "or", "xor")]):
            body += f"redux.sync.{op}.{kind} %r{20 + i}, %r5, -1; mov.u32 %r{40 + i}, 0; @%p1 redux.sync.{op}.{kind} %r{40 + i}, %r5, 0xAAAAAAAA;"
            regs += [f"%r{20 + i}", f"%r{40 + i}"]
        yield per_thread(f"redux.{label}", body + store(regs), [Buffer("x", values)], len(regs))
    body = ("elect.sync %r20|%p1, -1; selp.u32 %r21, 1, 0, %p1; mov.u32 %r22, 77; mov.u32 %r23, 77; mov.u32 %r24, 0; setp.ge.u32 %p2, %r1, 9; @!%p2 bra E;"
            "elect.sync %r22|%p1, 0xFFFFFE00; selp.u32 %r23, 1, 0, %p1; activemask.b32 %r24;\nE: activemask.b32 %r25; elect.sync _|%p1, -1; selp.u32 %r26, 1, 0, %p1;")
    yield per_thread("elect", body + store([f"%r{i}" for i in range(20, 27)]), [], 7)


def registers() -> Iterator[Program]:
    """Special registers that are certain, and clocks that only go forward."""
    names = ("%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y",
             "%nctaid.z", "%laneid", "%lanemask_eq", "%lanemask_lt", "%lanemask_le", "%lanemask_gt", "%lanemask_ge", "%clusterid.x",
             "%nclusterid.x", "%cluster_ctaid.x", "%cluster_nctaid.x", "%cluster_ctarank", "%cluster_nctarank", "%dynamic_smem_size")
    body = "".join(f"mov.u32 %r{20 + i}, {n};" for i, n in enumerate(names)) + "mov.pred %p1, %is_explicit_cluster; selp.u32 %r60, 1, 0, %p1;"
    regs = [f"%r{20 + i}" for i in range(len(names))] + ["%r60"]
    for label, options in (("plain", {"grid": 3, "block": 70}), ("cluster", {"grid": 4, "block": 32, "cluster": 2, "shared": 2048})):
        yield per_thread(f"special-registers.{label}", body + store(regs), [], len(regs), **options)
    body = ("mov.u64 %rd5, %globaltimer; mov.u64 %rd6, %clock64; mov.u32 %r5, %clock; nanosleep.u32 2000; mov.u64 %rd7, %clock64; mov.u32 %r6, %clock;"
            "nanosleep.u32 200; mov.u64 %rd8, %globaltimer; setp.ge.u64 %p1, %rd8, %rd5; selp.u32 %r20, 1, 0, %p1; setp.gt.u64 %p1, %rd7, %rd6; selp.u32 %r21, 1, 0, %p1;"
            "sub.u32 %r7, %r6, %r5; setp.gt.s32 %p1, %r7, 0; selp.u32 %r22, 1, 0, %p1; setp.ne.u64 %p1, %rd5, 0; selp.u32 %r23, 1, 0, %p1;")
    yield per_thread("clocks", body + store(["%r20", "%r21", "%r22", "%r23"]), [], 4)


def control() -> Iterator[Program]:
    """Loops of different lengths, nested branches, tables of branches, predicated and early returns."""
    body = ("mov.u32 %r5, 0; mov.u32 %r6, 0;\nL: add.u32 %r5, %r5, %r6; add.u32 %r6, %r6, 1; setp.le.u32 %p1, %r6, %r1; @%p1 bra L; and.b32 %r7, %r1, 3;"
            "T: .branchtargets A, B, C, D; brx.idx %r7, T;\nA: mov.u32 %r8, 100; bra.uni E;\nB: mov.u32 %r8, 200; bra E;\nC: setp.gt.u32 %p2, %r1, 15; mov.u32 %r8, 300;"
            "@%p2 mov.u32 %r8, 301; bra E;\nD: mov.u32 %r8, 400;\nE: activemask.b32 %r9; bar.warp.sync -1; activemask.b32 %r10;" + store(["%r5", "%r8", "%r10"])
            + "setp.gt.u32 %p3, %r1, 20; @%p3 ret; setp.gt.u32 %p3, %r1, 10; @%p3 exit; st.global.u32 [%rd1+12], 1;")
    yield per_thread("control", body, [], 4)
    body = ("mov.u32 %r5, 0; and.b32 %r6, %r1, 1; setp.eq.u32 %p1, %r6, 0; @%p1 bra A; nanosleep.u32 20; bar.warp.sync 0xAAAAAAAA; mov.u32 %r5, 1; bra B;\n"
            "A: bar.warp.sync 0x55555555; mov.u32 %r5, 2;\nB: bar.warp.sync -1; griddepcontrol.wait; griddepcontrol.launch_dependents; membar.cta; membar.gl; membar.sys;"
            "fence.sc.cta; fence.acq_rel.gpu; fence.sc.sys; fence.acq_rel.cluster; fence.proxy.alias; fence.proxy.async; fence.proxy.async.global;"
            "fence.proxy.async.shared::cta; fence.mbarrier_init.release.cluster; pmevent 1;")
    yield per_thread("fences", body + store(["%r5"]), [], 1)


def programs() -> Iterator[Program]:
    """Within a warp."""
    yield from shuffles()
    yield from votes()
    yield from registers()
    yield from control()
