"""PTX text as something to edit: instructions are found by the parser and changed in the text, line by line."""
from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tilejit.ptx.text import Entry, Instruction, parse

#: Registers that an edit may use; they are declared beside the entry's opening brace, so that lines keep their numbers.
SCRATCH = ".reg .b32 %zr<8>; .reg .b64 %zd<4>; .reg .pred %zp<4>;"


@dataclass(frozen=True)
class Ptx:
    """A module with one kernel. Edits return a new text, in which every line has its old number."""

    text: str

    @cached_property
    def entry(self) -> Entry:
        """The parsed kernel."""
        (entry,) = parse(self.text).entries.values()
        return entry

    @cached_property
    def lines(self) -> list[str]:
        return self.text.split("\n")

    def find(self, pattern: str, below: int = 0) -> list[Instruction]:
        """The instructions (guard included) that a regular expression matches at their start, after line `below`."""
        return [i for i in self.entry.instructions if i.line > below and re.match(rf"(@!?%\w+ )?(?:{pattern})", i.text)]

    def next(self, pattern: str, ins: Instruction) -> Instruction | None:
        """The first such instruction below another."""
        return next(iter(self.find(pattern, ins.line)), None)

    def previous(self, pattern: str, ins: Instruction) -> Instruction | None:
        """The last such instruction above another."""
        return next((i for i in reversed(self.find(pattern)) if i.line < ins.line), None)

    # -- edits -----------------------------------------------------------------------------------------
    def put(self, ins: Instruction, new: str) -> Ptx:
        """Write `new` (statements with their semicolons) in place of an instruction."""
        line = self.lines[ins.line - 1]
        old = ins.text + ";"
        assert old in line, (old, line)
        lines = list(self.lines)
        lines[ins.line - 1] = line.replace(old, new, 1)
        return Ptx("\n".join(lines))

    def drop(self, ins: Instruction) -> Ptx:
        """Leave an instruction out."""
        return self.put(ins, "")

    def before(self, ins: Instruction, new: str) -> Ptx:
        """Write statements before an instruction."""
        return self.put(ins, f"{new} {ins.text};")

    def after(self, ins: Instruction, new: str) -> Ptx:
        """Write statements behind an instruction."""
        return self.put(ins, f"{ins.text}; {new}")

    def sub(self, ins: Instruction, pattern: str, new: str) -> Ptx:
        """Change an instruction by a regular expression, which must match it."""
        changed, count = re.subn(pattern, new, ins.text, count=1)
        assert count == 1, (pattern, ins.text)
        return self.put(ins, changed + ";")

    @cached_property
    def open(self) -> Ptx:
        """The same with scratch registers declared."""
        lines = list(self.lines)
        at = next(n for n, line in enumerate(lines) if line.strip() == "{")
        lines[at] += " " + SCRATCH
        return Ptx("\n".join(lines))

    # -- what the barriers are for -----------------------------------------------------------------------
    def waits(self, use: str) -> Iterator[Instruction]:
        """The try_waits on barriers of one use: "full" (a copy completes on them), "order" (whole warpgroups arrive),
        "staged" (threads have filled a slot that will be stored) or "empty" (the rest: slots are given back)."""
        for ins in self.find(r"mbarrier\.try_wait"):
            if self.use(ins) == use:
                yield ins

    def use(self, ins: Instruction) -> str:
        """What the barrier of an instruction is for, by the constant part of its address: the name that a comment
        beside its init gives, else what happens to it."""
        return self.uses.get(_offset(ins), "empty")

    @cached_property
    def uses(self) -> dict[int, str]:
        """Constant part of the address -> use."""
        found: dict[int, str] = {}
        full = {_offset(i) for i in self.find(r"mbarrier\.(arrive\.)?expect_tx")}
        for ins in self.find(r"mbarrier\.init"):
            comment = self.entry.comments.get(ins.line - 1, "")
            order = "order" in comment or int(ins.text.split(",")[-1]) >= 128
            found[_offset(ins)] = "staged" if "_stage.full" in comment else "full" if _offset(ins) in full else "order" if order else "empty"
        return found


def _offset(ins: Instruction) -> int:
    found = re.search(r"\[%?\w+(?:\+(\d+))?\]", ins.text)
    assert found, ins.text
    return int(found.group(1) or 0)
