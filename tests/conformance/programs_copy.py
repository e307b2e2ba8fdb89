"""cp.async, one-dimensional bulk copies and reductions."""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from programs import ANY_NAN, KINDS, Buffer, Program, View, kernel, per_thread, random, store, whole
from values import tuples

HEADER = ".shared .align 8 .b64 bars[8];\n.shared .align 1024 .b8 buf[24576];\n"
#: Barrier (count 1) in %r4, buffer in %r5; %p1 is false in thread 0.
START = ("mov.u32 %r4, bars; mov.u32 %r5, buf; setp.ne.u32 %p1, %r1, 0; @%p1 bra INIT; mbarrier.init.shared::cta.b64 [%r4], 1;"
         "mbarrier.init.shared::cta.b64 [%r4+8], 64; mbarrier.init.shared::cta.b64 [%r4+16], 32; fence.mbarrier_init.release.cluster;\nINIT: bar.sync 0;")
WAIT = "\nWAIT: mbarrier.try_wait.parity.shared::cta.b64 %p6, [%r4], 0; @!%p6 bra WAIT;\n"


#: After it only the first CTA goes on: before a `dump` of a cluster whose CTAs all do the same.
FIRST = "mov.u32 %r95, %ctaid.x; setp.ne.u32 %p10, %r95, 0; @%p10 ret;"


def dump(count: int, param: str = "y", offset: int = 0, label: str = "") -> str:
    """All threads copy `count` bytes from the buffer to a parameter's array."""
    return (f"ld.param.u64 %rd90, [{param}]; mov.u32 %r90, %tid.x; mov.u32 %r91, %ntid.x;\nDUMP{label}: setp.ge.u32 %p9, %r90, {count // 4}; @%p9 bra DONE{label};"
            f"mad.lo.u32 %r92, %r90, 4, %r5; ld.shared.u32 %r93, [%r92+{offset}]; mad.wide.u32 %rd91, %r90, 4, %rd90; st.global.u32 [%rd91], %r93;"
            f"add.u32 %r90, %r90, %r91; bra DUMP{label};\nDONE{label}:")


def fill(count: int, param: str = "x", offset: int = 0, label: str = "") -> str:
    """All threads copy an array into the buffer, visibly to the async proxy."""
    return (f"ld.param.u64 %rd90, [{param}]; mov.u32 %r90, %tid.x; mov.u32 %r91, %ntid.x;\nFILL{label}: setp.ge.u32 %p9, %r90, {count // 4}; @%p9 bra FULL{label};"
            f"mad.wide.u32 %rd91, %r90, 4, %rd90; ld.global.u32 %r93, [%rd91]; mad.lo.u32 %r92, %r90, 4, %r5; st.shared.u32 [%r92+{offset}], %r93;"
            f"add.u32 %r90, %r90, %r91; bra FILL{label};\nFULL{label}: fence.proxy.async; bar.sync 0;\n")


def cleared(count: int) -> str:
    """All threads put 0xEE bytes into the buffer, visibly to the async proxy."""
    return (f"mov.u32 %r90, %tid.x; mov.u32 %r91, %ntid.x; mov.u32 %r93, 0xEEEEEEEE;\nCLEAR: setp.ge.u32 %p9, %r90, {count // 4}; @%p9 bra CLEAN;"
            "mad.lo.u32 %r92, %r90, 4, %r5; st.shared.u32 [%r92], %r93; add.u32 %r90, %r90, %r91; bra CLEAR;\nCLEAN: fence.proxy.async; bar.sync 0;\n")


def run(name: str, body: str, buffers: tuple[Buffer, ...], views: tuple[View, ...], block: int = 32, cluster: int = 1) -> Program:
    """A program over given buffers, with %r1 the thread, the barrier and the buffer ready; one cluster."""
    text = kernel("mov.u32 %r1, %tid.x;" + START + body, buffers, HEADER)
    return Program(name, text, buffers, views, cluster, block, cluster)


def data(name: str, count: int) -> Buffer:
    """Random bytes."""
    return Buffer("x", random(name).integers(0, 256, count, dtype=np.uint8))


def cp_async() -> Iterator[Program]:
    """Every size, short sources (the rest is zero), ignore-src, hints; groups; arrivals on mbarriers."""
    x = data("cp.async", 4096)
    body = cleared(8192) + "ld.param.u64 %rd5, [x]; mad.wide.u32 %rd6, %r1, 16, %rd5; mad.lo.u32 %r6, %r1, 16, %r5; createpolicy.fractional.L2::evict_first.b64 %rd7, 1.0;"
    at = 0
    for form, size in (("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16), ("ca.shared::cta", 4)):
        form = form if "shared" in form else form + ".shared"
        body += f"cp.async.{form}.global [%r6+{at}], [%rd6], {size};"
        at += 512
    for form, size, have in (("ca.shared", 4, 2), ("ca.shared", 8, 0), ("cg.shared", 16, 5), ("ca.shared", 16, 12)):
        body += f"mov.u32 %r7, {have}; cp.async.{form}.global [%r6+{at}], [%rd6+512], {size}, %r7;"
        at += 512
    body += (f"and.b32 %r8, %r1, 1; setp.eq.u32 %p3, %r8, 0; cp.async.ca.shared.global [%r6+{at}], [%rd6], 8, %r8;"
             f"cp.async.ca.shared.global [%r6+{at + 2048}], [%rd6], 8, %p3;"
             f"cp.async.cg.shared.global.L2::128B [%r6+{at + 512}], [%rd6], 16; cp.async.cg.shared.global.L2::cache_hint [%r6+{at + 1024}], [%rd6+512], 16, %rd7;"
             f"cp.async.ca.shared.global.L2::256B [%r6+{at + 1536}], [%rd6], 4; cp.async.wait_all; bar.sync 0;")
    y = Buffer("y", np.zeros(8192, np.uint8))
    yield run("cp.async.sizes", body + dump(8192), (x, y), (whole(y),))
    body = START + ("ld.param.u64 %rd5, [x]; mad.wide.u32 %rd6, %r1, 16, %rd5; mad.lo.u32 %r6, %r1, 16, %r5;" + "".join(
        f"cp.async.cg.shared.global [%r6+{512 * i}], [%rd6+{512 * i}], 16; cp.async.commit_group;" for i in range(4)) + "cp.async.commit_group;" + "".join(
        f"cp.async.wait_group {4 - i}; ld.shared.u32 %r{20 + i}, [%r6+{512 * i + 4}];" for i in range(4)) + "cp.async.wait_group 0;")
    yield per_thread("cp.async.groups", body + store([f"%r{20 + i}" for i in range(4)]), [x], 4, HEADER)
    for form, bar in (("noinc.shared::cta", 16), ("shared", 8)):
        count = "@!%p1 mov.u32 %r9, 0;"
        body = START + count + ("ld.param.u64 %rd5, [x]; mad.wide.u32 %rd6, %r1, 16, %rd5; mad.lo.u32 %r6, %r1, 16, %r5; cp.async.cg.shared.global [%r6], [%rd6], 16;"
                                f"cp.async.mbarrier.arrive.{form}.b64 [%r4+{bar}];" + ("" if bar == 16 else f"mbarrier.arrive.shared.b64 _, [%r4+{bar}], 2;") +
                                f"\nW: mbarrier.try_wait.parity.shared.b64 %p6, [%r4+{bar}], 0; @!%p6 bra W; xor.b32 %r7, %r1, 9; mad.lo.u32 %r7, %r7, 16, %r5; ld.shared.v2.u32 {{%r20, %r21}}, [%r7+8];")
        yield per_thread("cp.async.mbarrier" + (".noinc" if bar == 16 else ""), body.replace(count, "") + store(["%r20", "%r21"]), [x], 2, HEADER)


def bulk() -> Iterator[Program]:
    """Copies both ways and within shared memory, of many sizes, on a barrier or in groups; prefetch; hints."""
    sizes = (16, 48, 1024, 4080)
    x = data("bulk", 6144)
    at, body = 0, cleared(6144) + f"@%p1 bra S; ld.param.u64 %rd5, [x]; createpolicy.fractional.L2::evict_first.b64 %rd7, 1.0; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], {sum(sizes) + 32};"
    body += "cp.async.bulk.prefetch.L2.global [%rd5], 1024; cp.async.bulk.prefetch.L2.global.L2::cache_hint [%rd5], 64, %rd7;"
    for size in sizes:
        body += f"add.u32 %r6, %r5, {at}; add.u64 %rd6, %rd5, {at + 16}; cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r6], [%rd6], {size}, [%r4];"
        at += size + 16
    body += f"add.u32 %r6, %r5, {at}; cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint [%r6], [%rd5], 32, [%r4], %rd7;\nS:"
    y = Buffer("y", np.zeros(6144, np.uint8))
    yield run("cp.async.bulk.load", body + WAIT + dump(6144), (x, y), (whole(y),))
    at, body = 0, fill(6144) + "@%p1 bra S; ld.param.u64 %rd5, [y]; createpolicy.fractional.L2::evict_first.b64 %rd7, 1.0;"
    for i, size in enumerate(sizes):
        body += f"add.u32 %r6, %r5, {at + 16}; add.u64 %rd6, %rd5, {at}; cp.async.bulk.global.shared::cta.bulk_group [%rd6], [%r6], {size}; cp.async.bulk.commit_group;"
        at += size + 16
    body += f"add.u64 %rd6, %rd5, {at}; cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%rd6], [%r5], 32, %rd7; cp.async.bulk.commit_group;"
    body += "cp.async.bulk.wait_group 3; cp.async.bulk.wait_group.read 1; cp.async.bulk.wait_group.read 0; cp.async.bulk.wait_group 0;\nS:"
    yield run("cp.async.bulk.store", body, (x, y), (whole(y),))
    body = (cleared(8192) + fill(2048) + "@%p1 bra S; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 1552; mov.u32 %r8, %cluster_ctarank; add.u32 %r6, %r5, 4096; mapa.shared::cluster.u32 %r6, %r6, %r8;"
            "mapa.shared::cluster.u32 %r7, %r4, %r8; cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r6], [%r5], 1536, [%r7]; add.u32 %r6, %r6, 2048; add.u32 %r9, %r5, 32;"
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r6], [%r9], 16, [%r7];\nS:")
    z = Buffer("y", np.zeros(8192, np.uint8))
    yield run("cp.async.bulk.shared", body + WAIT + FIRST + dump(8192), (x, z), (whole(z),), cluster=2)


def reductions() -> Iterator[Program]:
    """cp.reduce.async.bulk into global and into shared memory, every operation and type."""
    forms = [("add", k) for k in ("u32", "s32", "u64", "f32", "f64")] + [("add.noftz", "f16"), ("add.noftz", "bf16")] + [
        (op, k) for op in ("min", "max") for k in ("u32", "s32", "u64", "s64", "f16", "bf16")] + [
        (op, "u32") for op in ("inc", "dec")] + [(op, k) for op in ("and", "or", "xor") for k in ("b32", "b64")]
    for op, kind in forms:
        dtype = np.dtype(KINDS[kind][2])
        n = 256 // dtype.itemsize * 2
        a, b = tuples((kind, kind), n, random(f"reduce.{op}.{kind}"))
        x, y = Buffer("x", a), Buffer("y", b)
        body = (fill(512) + "@%p1 bra S; ld.param.u64 %rd5, [y]; cp.reduce.async.bulk.global.shared::cta.bulk_group."
                f"{op}.{kind} [%rd5], [%r5], 512; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;\nS:")
        yield run(f"cp.reduce.async.bulk.{op}.{kind}", body, (x, y), (whole(y, ANY_NAN if kind == "f64" else None),))
    shared = [("add", k) for k in ("u32", "s32", "u64")] + [(op, k) for op in ("min", "max") for k in ("u32", "s32")] + [
        (op, "u32") for op in ("inc", "dec")] + [(op, "b32") for op in ("and", "or", "xor")]
    views, n, at = [], 128 * len(shared), 0
    rng = random("reduce.shared")
    x, z = (Buffer(b, rng.integers(0, 1 << 32, n // 4, dtype=np.uint32)) for b in "xz")
    body = fill(n) + fill(n, "z", 4096, "Z") + f"@%p1 bra S; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], {n}; mov.u32 %r8, %cluster_ctarank; mapa.shared::cluster.u32 %r7, %r4, %r8;"
    for op, kind in shared:
        body += (f"add.u32 %r9, %r5, {at}; add.u32 %r6, %r5, {4096 + at}; mapa.shared::cluster.u32 %r6, %r6, %r8;"
                 f"cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{op}.{kind} [%r6], [%r9], 128, [%r7];")
        views.append(View("y", f"{op}.{kind}", at, "uint64" if kind == "u64" else "uint32", 16 if kind == "u64" else 32))
        at += 128
    y = Buffer("y", np.zeros(n, np.uint8))
    yield run("cp.reduce.async.bulk.shared", body + "S:" + WAIT + FIRST + dump(n, offset=4096), (x, z, y), tuple(views), cluster=2)


def programs() -> Iterator[Program]:
    """Copies without tensor maps."""
    yield from cp_async()
    yield from bulk()
    yield from reductions()
