"""Programs that break a rule of the hardware, one a program: the GPU stops with an error, and so must the emulator."""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from programs import Buffer, Map, Program, kernel, whole
from programs_copy import HEADER, START, WAIT
from programs_tensor import maps_ready

#: Thread 0 goes on, with 256 expected bytes on the barrier.
ONE = "@%p1 bra E; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 256; mov.u32 %r2, 7; ld.param.u64 %rd1, [y];"
#: Shared-memory addresses of this CTA as ones of its cluster: data in %r6, barrier in %r7.
REMOTE = ONE + "mov.u32 %r8, %cluster_ctarank; mapa.shared::cluster.u32 %r6, %r5, %r8; mapa.shared::cluster.u32 %r7, %r4, %r8;"
DONE = "mbarrier::complete_tx::bytes"


def fault(name: str, body: str, maps: tuple[Map, ...] = ()) -> Program:
    """A program of one warp over 4096 bytes."""
    y = Buffer("y", np.zeros(1024, np.uint32))
    params = (*maps, y)
    text = kernel("mov.u32 %r1, %tid.x;" + START + maps_ready(len(maps)) + body + "\nE:", params, HEADER)
    return Program(f"fault.{name}", text, params, (whole(y),), faults=True)


def tensors() -> Iterator[Program]:
    """The start of a box must be a multiple of 16 bytes in global memory, a tile one of 128 in shared memory; stores
    must not start before the tensor."""
    m = Map("y", "uint16", (32, 64), (8, 16))
    load = f"cp.async.bulk.tensor.2d.shared::cluster.global.{DONE}"
    yield fault("tma.load.start", ONE + f"{load} [%r5], [%rd20, {{1, 0}}], [%r4];" + WAIT, (m,))
    yield fault("tma.load.start-near", ONE + f"{load} [%r5], [%rd20, {{-4, 0}}], [%r4];" + WAIT, (m,))
    yield fault("tma.load.start-outside", ONE + f"{load} [%r5], [%rd20, {{65, 0}}], [%r4];" + WAIT, (m,))
    yield fault("tma.load.shared", ONE + f"add.u32 %r6, %r5, 64; {load} [%r6], [%rd20, {{8, 0}}], [%r4];" + WAIT, (m,))
    end = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
    yield fault("tma.store.start", ONE + "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd20, {1, 0}], [%r5];" + end, (m,))
    yield fault("tma.reduce.start", ONE + "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%rd20, {1, 0}], [%r5];" + end,
                (Map("y", "uint32", (16, 64), (8, 16)),))
    for name, corner in (("inner", "-8, 0"), ("outer", "8, -4")):
        yield fault(f"tma.store.near-{name}", ONE + f"cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd20, {{{corner}}}], [%r5];" + end, (m,))
        yield fault(f"tma.reduce.near-{name}", ONE + f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%rd20, {{{corner}}}], [%r5];" + end,
                    (Map("y", "uint32", (16, 64), (8, 16)),))
    yield fault("tma.prefetch.start", ONE + "cp.async.bulk.prefetch.tensor.2d.L2.global [%rd20, {1, 0}];", (m,))


def remote() -> Iterator[Program]:
    """Asynchronous operations on the shared memory of a cluster, in a launch without clusters."""
    yield fault("st.async", REMOTE + f"st.async.shared::cluster.{DONE}.u32 [%r6], %r2, [%r7];")
    yield fault("red.async", REMOTE + f"red.async.relaxed.cluster.shared::cluster.{DONE}.add.u32 [%r6], %r2, [%r7];")
    yield fault("cp.async.bulk.shared", REMOTE + f"add.u32 %r9, %r5, 1024; cp.async.bulk.shared::cluster.shared::cta.{DONE} [%r6], [%r9], 256, [%r7];")
    yield fault("cp.reduce.async.bulk.shared", REMOTE + f"add.u32 %r9, %r5, 1024; cp.reduce.async.bulk.shared::cluster.shared::cta.{DONE}.add.u32 [%r6], [%r9], 256, [%r7];")


def alignment() -> Iterator[Program]:
    """Addresses that are no multiple of the access."""
    yield fault("ld.global", ONE + "ld.global.u32 %r2, [%rd1+2];st.global.u32 [%rd1], %r2;")
    yield fault("st.shared", ONE + "st.shared.v2.u32 [%r5+4], {%r2, %r2}; ")
    yield fault("atom", ONE + "atom.global.add.u32 %r2, [%rd1+2], 1; st.global.u32 [%rd1], %r2;")
    yield fault("mbarrier", ONE + "mbarrier.arrive.shared::cta.b64 _, [%r4+4];")
    yield fault("cp.async", ONE + "cp.async.cg.shared.global [%r5+8], [%rd1], 16; cp.async.wait_all;")
    yield fault("cp.async.bulk.global", ONE + f"add.u64 %rd1, %rd1, 8; cp.async.bulk.shared::cluster.global.{DONE} [%r5], [%rd1], 256, [%r4];" + WAIT)
    yield fault("trap", "trap;")


def programs() -> Iterator[Program]:
    """Faults."""
    yield from tensors()
    yield from remote()
    yield from alignment()
