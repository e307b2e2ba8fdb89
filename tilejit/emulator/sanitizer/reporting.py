"""Findings as they are found: names of warps, places and buffers; one finding for one pair of lines.

Names of shared memory: from `shared OFFSET+BYTES: NAME SLOTSxSTRIDE` comments of a kernel, else its variables.

The offsets of comments count from the 1024-byte boundary at or after the extern array.
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tilejit.emulator.events import Finding, WarpId
from tilejit.emulator.sanitizer.world import Access, Op

_COMMENT = re.compile(r"shared (\d+)\+(\d+): (\S+) (\d+)x(\d+)$")
_ALIGN = 1024


@dataclass(frozen=True)
class Named:
    """Bytes [start, end) of a CTA's window; `stride` bytes from slot to slot, 0 if there are none."""

    start: int
    end: int
    name: str
    stride: int = 0

    def at(self, offset: int) -> str:
        """`a[2]+0x40`."""
        inside = offset - self.start
        if not self.stride:
            return f"{self.name}+{inside:#x}"
        return f"{self.name}[{inside // self.stride}]+{inside % self.stride:#x}"


class Buffers:
    """All that has a name in a program's shared memory."""

    def __init__(self, program: Any):
        variables = {**program.module.variables, **program.entry.variables}
        offsets = program.decoded.shared_offsets
        shared = {name: v for name, v in variables.items() if v.space == "shared"}
        self.variables = sorted((Named(offsets[name], offsets[name] + v.size if v.size else 1 << 24, name)
                                 for name, v in shared.items()), key=lambda n: -n.start)
        extern = [offsets[name] for name, v in shared.items() if v.external]
        base = -(-extern[0] // _ALIGN) * _ALIGN if extern else 0
        self.buffers = []
        for comment in program.entry.comments.values():
            found = _COMMENT.match(comment.strip(" -"))
            if found and extern:
                at, size, slots, stride = (int(found[i]) for i in (1, 2, 4, 5))
                self.buffers.append(Named(base + at, base + at + size, found[3], stride if slots > 1 else 0))

    def name(self, offset: int) -> str:
        """What holds the byte, "" if nothing with a name."""
        return next((n.at(offset) for n in (*self.buffers, *self.variables) if n.start <= offset < n.end), "")


#: Findings of one launch at most: what follows is most likely the same mistake.
MOST_FINDINGS = 50


class Reporter:
    """Appends to the listener's findings."""

    def __init__(self, findings: list[Finding]):
        self.findings = findings
        self.program: Any = None
        self.seed = 0
        self.buffers: Buffers | None = None
        self._told: set[tuple[Any, ...]] = set()

    def begin(self, program: Any, seed: int) -> None:
        """A launch begins."""
        self.program, self.seed = program, seed
        self.findings.clear()
        self._told.clear()
        self.buffers = Buffers(program)

    def add(self, kind: str, message: str, pc: int, agents: tuple[WarpId, ...], subject: str = "",
            other: int = -1, place: object = None) -> None:
        """A finding at instruction `pc`; told once for the same kind, lines and `place`."""
        key = (kind, pc, other, place)
        if key in self._told or len(self.findings) >= MOST_FINDINGS:
            return
        self._told.add(key)
        p = self.program
        self.findings.append(Finding(kind, message, p.line(pc) if pc >= 0 else 0, p.loc(pc) if pc >= 0 else None,
                                     tuple(dict.fromkeys(self.warp(a) for a in agents)), self.seed, subject))

    # -- names ---------------------------------------------------------------------------------------
    def warp(self, agent: WarpId) -> str:
        """`CTA 3 warp 0 (load)`."""
        role = self.program.role(agent.warp)
        return f"CTA {agent.cta} warp {agent.warp}" + (f" ({role})" if role else "")

    def at(self, pc: int) -> str:
        """`PTX line 12 (kernel.py:7)`."""
        loc = self.program.loc(pc)
        return f"PTX line {self.program.line(pc)}" + (f" ({loc[0]}:{loc[1]})" if loc else "")

    def operation(self, op: Op) -> str:
        """`tma_load issued at PTX line 12 by CTA 0 warp 0`."""
        return f"{op.kind} issued at {self.at(op.pc)} by {self.warp(op.agent)}"

    def access(self, a: Access) -> str:
        """`read by CTA 0 warp 4 at PTX line 30`, or `write of tma_load issued at ...`."""
        if a.op is not None:
            return f"{a.kind} of {self.operation(a.op)}"
        return f"{a.kind} by {self.warp(a.agent)} at {self.at(a.pc)}"

    def shared(self, cta: int, start: int, end: int) -> str:
        """`shared bytes [0x400, 0x800) of CTA 0 (smem+0x0)`."""
        name = self.buffers.name(start) if self.buffers is not None else ""
        return f"shared bytes [{start:#x}, {end:#x}) of CTA {cta}" + (f" ({name})" if name else "")
