"""`cluster_sum`: the CTAs' parts of a tile meet in distributed shared memory and are summed."""
from __future__ import annotations

from tilejit.ir import Op, Value
from tilejit.layout.clusters import within
from tilejit.layout.exchange import Parts
from tilejit.layout.linear import LinearLayout
from tilejit.ptx.emit import Emitter, emits, reg_class
from tilejit.ptx.tma import wait_phase

#: The store into another CTA whose bytes count on a barrier there.
STORE = "st.async.shared::cluster.mbarrier::complete_tx::bytes"


class Barriers:
    """An exchange with `slots` slots: `full` counts what came, `free` who has read it."""

    def __init__(self, e: Emitter, full: Value, free: Value, slots: int):
        self.base = e.smem if e.role.group == "0" else e.p.new("b32", "mad.lo.u32", e.role.group, 8 * slots, e.smem)
        self.full, self.free = (_offset(v) for v in (full, free))

    def of(self, e: Emitter, rank: str, pred: str | None = None) -> str:
        there = e.p.reg("b32")
        e.p("mapa.shared::cluster.u32", there, self.base, rank, pred=pred)
        return there

    def full_at(self, base: str, slot: int) -> str:
        return f"[{base}+{self.full + 8 * slot}]"

    def wait_free(self, e: Emitter, slot: int, parity: str) -> None:
        wait_phase(e, f"[{self.base}+{self.free + 8 * slot}]", parity)

    def wait_full(self, e: Emitter, slot: int, parity: str) -> None:
        wait_phase(e, self.full_at(self.base, slot), parity)

    def expect(self, e: Emitter, slot: int, size: int) -> None:
        first = e.p.new("pred", "setp.eq.u32", e.role.tid, 0)
        e.p("mbarrier.arrive.expect_tx.shared::cta.b64", "_", self.full_at(self.base, slot), size, pred=first)

    def release(self, e: Emitter, slot: int, ctas: int) -> None:
        e.p("bar.warp.sync", -1)  # the other lanes' reads come before
        some = e.p.new("pred", "setp.lt.u32", e.role.lane, ctas)
        there = self.of(e, e.role.lane, some)
        e.p("mbarrier.arrive.shared::cluster.b64", "_", f"[{there}+{self.free + 8 * slot}]", pred=some)


def _offset(barrier: Value) -> int:
    return int(barrier.maker.attrs["offset"])


class _Meeting(Barriers):
    def __init__(self, e: Emitter, op: Op, parts: Parts):
        _, buffer, full, free, _ = op.operands
        p, role = e.p, e.role
        self.slots = buffer.buffer.slots
        super().__init__(e, full, free, self.slots)
        self.slot_stride = buffer.buffer.slot_stride
        warp = role.local_warp or role.warp
        scratch = p.new("b32", "add.u32", e.private, buffer.maker.attrs["offset"])
        lanes = [parts.offsets[b] for b in parts.result.bases_of("lane")]

        def inside(layout: LinearLayout) -> str:
            warps = [parts.offsets.get(b, 0) for b in within(layout, parts.ctas).bases_of("warp")]
            return p.new("b32", "add.u32", scratch, e.bit_sum([(role.lane, lanes), (warp, warps)]))

        #: Where the thread writes in another CTA's scratch, as if that were its own, and where it reads.
        self.write = p.new("b32", "mad.lo.u32", e.rank, parts.share, inside(parts.source))
        self.read = inside(parts.result)
        owner = [parts.owners.get(b, 0) for b in within(parts.source, parts.ctas).bases_of("warp")]
        self.owner = e.bit_sum([(warp, owner)])
        self.remote: dict[int, tuple[str, str]] = {}

    def there(self, e: Emitter, owner: int) -> tuple[str, str]:
        if owner not in self.remote:
            rank = e.p.new("b32", "xor.b32", self.owner, owner) if owner else self.owner
            self.remote[owner] = (e.p.new("b32", "mapa.shared::cluster.u32", self.write, rank), self.of(e, rank))
        return self.remote[owner]


@emits("cluster_sum")
def _cluster_sum(e: Emitter, op: Op) -> None:
    parts = Parts(op.operands[0].layout, op.result.layout, op.attrs["ctas"], op.attrs["rounds"])
    e.version = max(e.version, (8, 1))  # st.async
    regs, m = e.get(op.operands[0]), _Meeting(e, op, parts)
    parity = e.scalar(op.operands[4])
    other = e.p.new("b32", "xor.b32", parity, 1)
    phases = (parity, other)
    out: list[str] = []
    for rnd in range(m.slots):
        _hand_over(e, parts, m, rnd, regs, phases)
    for rnd in range(parts.rounds):
        out += _sum(e, op, parts, m, rnd, phases)
        if rnd + m.slots < parts.rounds:
            _hand_over(e, parts, m, rnd + m.slots, regs, phases)
    e.set(op.result, out)


def _hand_over(e: Emitter, parts: Parts, m: _Meeting, rnd: int, regs: list[str], phases: tuple[str, str]) -> None:
    p, slot = e.p, rnd % m.slots
    m.wait_free(e, slot, phases[1 - rnd // m.slots % 2])
    m.expect(e, slot, parts.share * parts.ctas)
    for owner, accesses in parts.sent(rnd).items():
        scratch, barriers = m.there(e, owner)
        for offset, access in accesses:
            values = [regs[r] for r in access]
            vector = f".v{len(values)}" if len(values) > 1 else ""
            kind = "f32" if values[0].startswith("%f") else "b32"
            p(f"{STORE}{vector}.{kind}", f"[{scratch}+{offset + slot * m.slot_stride}]",
              "{" + ", ".join(values) + "}" if vector else values[0], m.full_at(barriers, slot))


def _sum(e: Emitter, op: Op, parts: Parts, m: _Meeting, rnd: int, phases: tuple[str, str]) -> list[str]:
    p, slot = e.p, rnd % m.slots
    elem = op.result.tile.elem
    cls = reg_class(elem)
    add = "add.f32" if cls == "f32" else "add.s32"
    m.wait_full(e, slot, phases[rnd // m.slots % 2])
    kind = "f32" if cls == "f32" else "b32"
    out = []
    registers = parts.result.bases_of("register")
    for first in range(0, parts.per_round, parts.vector):
        at = slot * m.slot_stride + sum(parts.offsets[b] for i, b in enumerate(registers) if first >> i & 1)
        columns = []
        for cta in range(parts.ctas):
            column = p.regs(cls, parts.vector)
            vector = f".v{len(column)}" if len(column) > 1 else ""
            p(f"ld.shared{vector}.{kind}", "{" + ", ".join(column) + "}" if vector else column[0],
              f"[{m.read}+{at + cta * parts.share}]")
            columns.append(column)
        while len(columns) > 1:
            columns = [[p.new(cls, add, a, b) for a, b in zip(x, y)] for x, y in zip(columns[::2], columns[1::2])]
        out += columns[0]
    m.release(e, slot, parts.ctas)
    return out
