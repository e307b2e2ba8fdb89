"""`cluster_barrier` and `cluster_broadcast`: what makes an atomic of one number that of a cluster."""
from __future__ import annotations

from tilejit.ir import Op
from tilejit.ir.scratch import sent_bytes
from tilejit.ir.types import elem_of
from tilejit.ptx.cluster_fold import element, suffix, word, word_class
from tilejit.ptx.convert import shuffle
from tilejit.ptx.emit import Emitter, emits
from tilejit.ptx.exchange import STORE, Barriers


@emits("cluster_barrier")
def _cluster_barrier(e: Emitter, op: Op) -> None:
    """Fences: arrivals do not reach the scope (PTX ISA, fence-fence synchronization)."""
    barrier, parity = op.operands
    p, b, ctas = e.p, Barriers(e, barrier, barrier, 1), e.fn.attrs["num_ctas"]
    e.sync()
    some = p.new("pred", "setp.lt.u32", e.role.tid, ctas)
    if op.attrs.get("release"):
        p(f"fence.acq_rel.{op.attrs['release']}", pred=some)
    there = b.of(e, e.role.tid, some)
    p("mbarrier.arrive.shared::cluster.b64", "_", b.full_at(there, 0), pred=some)
    b.wait_full(e, 0, e.scalar(parity))
    if op.attrs.get("acquire"):
        p(f"fence.acq_rel.{op.attrs['acquire']}")
    elif op.attrs.get("release"):
        p(f"fence.acq_rel.{op.attrs['release']}", pred=some)  # those who may tell


@emits("cluster_broadcast")
def _cluster_broadcast(e: Emitter, op: Op) -> None:
    """Lane i of the first warp stores into CTA i; all wait in their own."""
    value, buffer, full, parity = op.operands
    e.version = max(e.version, (8, 1))  # st.async
    p, elem, b = e.p, elem_of(value.type), Barriers(e, full, full, 1)
    place = p.new("b32", "add.u32", e.private, buffer.maker.attrs["offset"])
    b.expect(e, 0, sent_bytes(elem))
    first = e.p.new("b32", "or.b32", e.role.tid, e.p.new("b32", "shl.b32", e.rank, 5))
    tells = p.new("pred", "setp.lt.u32", first, e.fn.attrs["num_ctas"])
    (known,) = e.get(value)
    p("bar.warp.sync", -1)  # what lane 0 learnt comes before what the others send
    sent = shuffle(e, elem, known, p.new("b32", "mov.u32", 0))
    there = b.of(e, e.role.lane, tells)
    remote = p.reg("b32")
    p("mapa.shared::cluster.u32", remote, place, e.role.lane, pred=tells)
    p(f"{STORE}{suffix(elem, 1)}", f"[{remote}]", word(e, elem, sent), b.full_at(there, 0), pred=tells)
    b.wait_full(e, 0, e.scalar(parity))
    got = p.reg(word_class(elem))
    p(f"ld.shared{suffix(elem, 1)}", got, f"[{place}]")
    if op.attrs.get("acquire"):
        p(f"fence.acq_rel.{op.attrs['acquire']}")
    e.set(op.result, element(e, elem, got))
