"""Shared addresses in clusters: a CTA's own have its rank from bit 24 on, as ptxas makes them for Hopper."""
from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import assembles, kernel, pointer

from tilejit.emulator import Program, Report

HEADER = ".shared .align 16 .b8 some[48];\n.extern .shared .align 16 .b8 smem[];"
MEET = "barrier.cluster.arrive; barrier.cluster.wait;"
#: %r2: the address of smem, %r3: the rank, %rd3: the generic address of smem.
START = ("mov.u32 %r2, smem; mov.u32 %r3, %cluster_ctarank; mov.u64 %rd2, smem; cvta.shared.u64 %rd3, %rd2;\n")


def run(body: str, values: list[str], ctas: int = 1, cluster: int = 1) -> tuple[np.ndarray, Report]:
    """The 32-bit registers `values` of every CTA after a body, one thread a CTA: uint32[ctas, len(values)]."""
    out = np.zeros((ctas, len(values)), np.uint32)
    store = f"ld.param.u64 %rd1, [y]; mov.u32 %r1, %ctaid.x; mad.wide.u32 %rd1, %r1, {out.strides[0]}, %rd1;"
    store += "".join(f"st.global.u32 [%rd1+{4 * i}], {v};" for i, v in enumerate(values))
    text = kernel(START + body + store, [".param .u64 y"], HEADER)
    assembles(text)
    report = Program(text).launch((ctas,), 1, [pointer(out)], 4096, (cluster, 1, 1), [out])
    return out, report


def test_own_addresses_have_the_rank() -> None:
    body = ("mov.u32 %r10, some; cvta.to.shared.u64 %rd4, %rd3; cvt.u32.u64 %r11, %rd4; cvt.u32.u64 %r12, %rd2;"
            "mapa.shared::cluster.u32 %r13, %r2, %r3; mapa.shared::cluster.u32 %r14, %r2, 0; mapa.shared::cluster.u32 %r15, %r2, 1;"
            "mapa.u64 %rd5, %rd3, 1; cvta.to.shared.u64 %rd5, %rd5; cvt.u32.u64 %r16, %rd5; mov.u32 %r17, 1072;")
    out, report = run(body, ["%r2", *(f"%r{i}" for i in range(10, 18))], 4, 2)
    report.check()
    static, base = 1024, 1072                         # `some` fills 48 bytes
    for cta, row in enumerate(out.tolist()):
        own = base + (cta % 2 << 24)
        assert row == [own, static + (cta % 2 << 24), own, own, own, base, base + (1 << 24), base + (1 << 24), base]


def test_without_a_cluster_they_are_offsets() -> None:
    out, report = run("mapa.shared::cluster.u32 %r10, %r2, 0; getctarank.shared::cluster.u32 %r11, %r2;", ["%r2", "%r10", "%r11"], 2)
    report.check()
    assert out.tolist() == [[1072, 1072, 0]] * 2


def test_who_owns_an_address() -> None:
    """getctarank and isspacep of an own address and of the peer's."""
    body = ("xor.b32 %r4, %r3, 1; mapa.shared::cluster.u32 %r5, %r2, %r4; mapa.u64 %rd4, %rd3, %r4; getctarank.shared::cluster.u32 %r10, %r2;"
            "getctarank.shared::cluster.u32 %r11, %r5; getctarank.u64 %r12, %rd3; getctarank.u64 %r13, %rd4;")
    for i, (space, at) in enumerate([("cta", 3), ("cta", 4), ("cluster", 3), ("cluster", 4)]):
        body += f"isspacep.shared::{space} %p1, %rd{at}; selp.u32 %r{14 + i}, 1, 0, %p1;"
    out, report = run(body, [f"%r{i}" for i in range(10, 18)], 2, 2)
    report.check()
    assert out.tolist() == [[0, 1, 0, 1, 1, 0, 1, 1], [1, 0, 1, 0, 1, 0, 1, 1]]


def test_accesses_take_them() -> None:
    """Own addresses in shared::cta, shared::cluster and generic accesses; the symbol itself; atomics; then the peer's."""
    body = ("add.u32 %r4, %r3, 70; st.shared::cta.u32 [%r2], %r4; st.shared::cluster.u32 [%r2+4], %r4; st.u32 [%rd3+8], %r4;"
            "st.shared.u32 [smem+12], %r4; atom.shared::cta.add.u32 %r9, [%r2], 100;" + MEET +
            "xor.b32 %r5, %r3, 1; mapa.shared::cluster.u32 %r6, %r2, %r5; ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [smem];"
            "ld.shared::cluster.v4.u32 {%r14, %r15, %r16, %r17}, [%r6];" + MEET)
    out, report = run(body, [f"%r{i}" for i in range(9, 18)], 2, 2)
    report.check()
    first, second = [170, 70, 70, 70], [171, 71, 71, 71]
    assert out.tolist() == [[70, *first, *second], [71, *second, *first]]


def test_barriers_take_them() -> None:
    """Own barriers of every CTA; an arrival at a peer's."""
    body = ("mbarrier.init.shared::cta.b64 [%r2], 2; fence.mbarrier_init.release.cluster;" + MEET +
            "xor.b32 %r5, %r3, 1; mapa.shared::cluster.u32 %r6, %r2, %r5; mbarrier.arrive.shared::cta.b64 _, [%r2];"
            "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];\nW: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r2], 0;"
            "@!%p1 bra W;" + MEET)
    _, report = run(body, ["%r5"], 2, 2)
    report.check()


@pytest.mark.parametrize("access", ["ld.shared::cluster.u32 %r7, [%r6];", "mbarrier.arrive.shared::cluster.b64 _, [%r6];"])
def test_no_such_cta(access: str) -> None:
    """A rank outside of the cluster is no place."""
    _, report = run("mapa.shared::cluster.u32 %r6, %r2, 2;" + access, ["%r6"], 2, 2)
    assert [f.kind for f in report.findings] == ["out-of-bounds"]
