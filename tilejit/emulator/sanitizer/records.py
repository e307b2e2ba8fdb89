from __future__ import annotations

from dataclasses import dataclass, field

from tilejit.emulator.events import WarpId
from tilejit.emulator.sanitizer.clocks import FENCED, SEEN, Clock

#: Operations in the async proxy (PTX ISA, "Async proxy"); the others are generic.
ASYNC_PROXY = frozenset({"tma_load", "tma_store", "tma_reduce", "bulk_load", "bulk_store", "bulk_reduce", "bulk_smem",
                         "wgmma"})
#: Operations whose issuers wait for them by groups.
GROUPED = frozenset({"wgmma", "tma_store", "tma_reduce", "bulk_store", "bulk_reduce", "cp_async"})


@dataclass(eq=False)
class Op:
    """An asynchronous operation: what its issuer knew (`at_issue`), and when its bytes were read and written."""

    number: int
    kind: str
    agent: WarpId
    pc: int
    seq: int
    clock: Clock
    at_issue: Clock
    read_bit: int
    waited: int
    write_bits: dict[int, int] = field(default_factory=dict)
    barrier: tuple[int, int] | None = None
    bytes: int = 0
    phase: int = -1
    after: list[Op] = field(default_factory=list)

    @property
    def async_proxy(self) -> bool:
        return self.kind in ASYNC_PROXY

    def all_bits(self) -> int:
        bits = self.read_bit
        for bit in self.write_bits.values():
            bits |= bit
        return bits


class Access:
    __slots__ = ("number", "slot", "tick", "op", "bit", "kind", "strong", "pc", "seq", "agent", "early", "replaced")

    def __init__(self, number: int, agent: WarpId, slot: int, tick: int, op: Op | None, bit: int, kind: str,
                 strong: bool, pc: int, seq: int):
        self.number, self.agent, self.slot, self.tick = number, agent, slot, tick
        self.op, self.bit, self.kind, self.strong, self.pc, self.seq = op, bit, kind, strong, pc, seq
        self.early = False  # a read of bytes whose writer it did not know of, or had none
        self.replaced: set[int] = set()  # a write: the accesses that wrote its bytes before

    @property
    def writes(self) -> bool:
        return self.kind != "read"

    @property
    def async_proxy(self) -> bool:
        return self.op is not None and self.op.async_proxy

    def known_to(self, clock: Clock) -> bool:
        if self.op is not None:
            return clock.ops & self.bit == self.bit
        return bool(clock.ticks[SEEN, self.slot] >= self.tick)

    def fenced_for(self, clock: Clock) -> bool:
        if self.op is not None:
            return clock.fenced_ops & self.bit == self.bit
        return bool(clock.ticks[FENCED, self.slot] >= self.tick)
