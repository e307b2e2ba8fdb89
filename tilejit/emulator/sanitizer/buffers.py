"""Names of shared memory: from `shared OFFSET+BYTES: NAME SLOTSxSTRIDE` comments (from the 1024-byte boundary), else
variables."""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_COMMENT = re.compile(r"shared (\d+)\+(\d+): (\S+) (\d+)x(\d+)$")
_ALIGN = 1024


@dataclass(frozen=True)
class Named:
    """Bytes [start, end) of a CTA's window; `stride` from slot to slot, 0 if there are none."""

    start: int
    end: int
    name: str
    stride: int = 0

    def at(self, offset: int) -> str:
        inside = offset - self.start
        if not self.stride:
            return f"{self.name}+{inside:#x}"
        return f"{self.name}[{inside // self.stride}]+{inside % self.stride:#x}"


class Buffers:
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
        return next((n.at(offset) for n in (*self.buffers, *self.variables) if n.start <= offset < n.end), "")
