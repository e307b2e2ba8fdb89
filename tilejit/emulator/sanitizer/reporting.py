from __future__ import annotations

from typing import Any

from tilejit.emulator.events import WarpId
from tilejit.emulator.report import Finding
from tilejit.emulator.sanitizer.buffers import Buffers
from tilejit.emulator.sanitizer.records import Access, Op

#: Findings of one launch at most.
MOST_FINDINGS = 50


class Reporter:
    def __init__(self, findings: list[Finding]):
        self.findings = findings
        self.program: Any = None
        self.seed = 0
        self.buffers: Buffers | None = None
        self._told: set[tuple[Any, ...]] = set()

    def begin(self, program: Any, seed: int) -> None:
        self.program, self.seed = program, seed
        self.findings.clear()
        self._told.clear()
        self.buffers = Buffers(program)

    def add(self, kind: str, message: str, pc: int, agents: tuple[WarpId, ...], subject: str = "",
            other: int = -1, place: object = None) -> None:
        """Told once for the same kind, lines and `place`."""
        key = (kind, pc, other, place)
        if key in self._told or len(self.findings) >= MOST_FINDINGS:
            return
        self._told.add(key)
        p = self.program
        self.findings.append(Finding(kind, message, p.line(pc) if pc >= 0 else 0, p.loc(pc) if pc >= 0 else None,
                                     tuple(dict.fromkeys(self.warp(a) for a in agents)), self.seed, subject))

    # -- names --
    def warp(self, agent: WarpId) -> str:
        role = self.program.role(agent.warp)
        return f"CTA {agent.cta} warp {agent.warp}" + (f" ({role})" if role else "")

    def at(self, pc: int) -> str:
        loc = self.program.loc(pc)
        return f"PTX line {self.program.line(pc)}" + (f" ({loc[0]}:{loc[1]})" if loc else "")

    def operation(self, op: Op) -> str:
        """`tma_load issued at PTX line 12 by CTA 0 warp 0`."""
        return f"{op.kind} issued at {self.at(op.pc)} by {self.warp(op.agent)}"

    def access(self, a: Access) -> str:
        if a.op is not None:
            return f"{a.kind} of {self.operation(a.op)}"
        return f"{a.kind} by {self.warp(a.agent)} at {self.at(a.pc)}"

    def shared(self, cta: int, start: int, end: int) -> str:
        name = self.buffers.name(start) if self.buffers is not None else ""
        return f"shared bytes [{start:#x}, {end:#x}) of CTA {cta}" + (f" ({name})" if name else "")
