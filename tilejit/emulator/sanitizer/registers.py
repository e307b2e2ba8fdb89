"""Registers: what a wgmma owns, what was never written, the budget of setmaxnreg."""
from __future__ import annotations

from tilejit.emulator.events import WarpId
from tilejit.emulator.sanitizer import kinds
from tilejit.emulator.sanitizer.reporting import Reporter


class Registers:
    """Findings on registers of one cluster's warps."""

    def __init__(self, reporter: Reporter):
        self.reporter = reporter

    def touch(self, agent: WarpId, pc: int, register: int, write: bool, state: int) -> None:
        """An instruction touches a register that a wgmma in flight owns."""
        name = self.reporter.program.registers[register]
        what = "the accumulator" if state & 2 else "the A operand"
        self.reporter.add(kinds.WGMMA_REGISTERS, f"{'write to' if write else 'read of'} {name}, which belongs to "
                          f"{what} of a wgmma in flight (no wgmma.wait_group since)", pc, (agent,), name)

    def uninitialised(self, agent: WarpId, pc: int, register: int) -> None:
        """A read of what nothing has written."""
        name = self.reporter.program.registers[register]
        self.reporter.add(kinds.UNINITIALISED_REGISTER, f"{name} is read, and nothing has written it", pc, (agent,),
                          name)
