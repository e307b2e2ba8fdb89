from __future__ import annotations

from typing import Any

from tilejit.emulator.events import WarpId
from tilejit.emulator.sanitizer import kinds
from tilejit.emulator.sanitizer.records import Op
from tilejit.emulator.sanitizer.reporting import Reporter

#: Bit of a register's state: it is (part of) an accumulator in flight.
ACCUMULATOR = 2


class Registers:
    """`entry`: registers a thread at the start."""

    def __init__(self, reporter: Reporter, entry: int):
        self.reporter, self.entry = reporter, entry
        self.program: Any = reporter.program
        self.budget: dict[WarpId, int] = {}
        self.flying: dict[WarpId, dict[int, tuple[list[int], list[int]]]] = {}

    def touch(self, agent: WarpId, pc: int, register: int, write: bool, state: int) -> None:
        name = self.program.registers[register]
        owner = "the accumulator" if state & ACCUMULATOR else "the A operand"
        did = "write to" if write else "read of"
        self.reporter.add(kinds.WGMMA_REGISTERS, f"{did} {name}, which belongs to {owner} of a wgmma in flight (no "
                          "wgmma.wait_group since)", pc, (agent,), name)

    def unfenced(self, agent: WarpId, pc: int, register: int) -> None:
        name = self.program.registers[register]
        self.reporter.add(kinds.WGMMA_FENCE, f"the wgmma uses {name} with no wgmma.fence since the warp last "
                          "touched it (or none at all)", pc, (agent,), name)

    def uninitialised(self, agent: WarpId, pc: int, register: int) -> None:
        name = self.program.registers[register]
        told = f"{name} is read, and nothing has written it"
        self.reporter.add(kinds.UNINITIALISED_REGISTER, told, pc, (agent,), name)

    def issue(self, op: Op, accumulator: list[int], a: list[int]) -> None:
        """A wgmma may follow another one on the very same accumulator; other overlaps with one in flight need its wait
        (PTX ISA, wgmma.mma_async)."""
        flying = self.flying.setdefault(op.agent, {})
        for earlier_accumulator, earlier_a in flying.values():
            clash = set(a) & set(earlier_accumulator) | set(accumulator) & set(earlier_a)
            if accumulator != earlier_accumulator:
                clash |= set(accumulator) & set(earlier_accumulator)
            if clash:
                name = self.program.registers[min(clash)]
                self.reporter.add(kinds.WGMMA_REGISTERS, f"the wgmma uses {name}, which belongs to another wgmma in "
                                  "flight", op.pc, (op.agent,), name)
        flying[op.number] = accumulator, a
        owned = len({r for registers in flying.values() for part in registers for r in part})
        budget = self.budget.get(op.agent, self.entry)
        if owned > budget:
            self.reporter.add(kinds.REGISTER_BUDGET, f"wgmmas in flight own {owned} registers a thread, the warp has "
                              f"{budget}", op.pc, (op.agent,), f"{budget} registers")

    def done(self, op: Op) -> None:
        self.flying.get(op.agent, {}).pop(op.number, None)
