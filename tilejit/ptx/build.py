"""Builds PTX text: registers by class, one instruction a line, comments that name the tile op."""
from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, TypeVar

#: Register class -> name prefix.
CLASSES = {"pred": "p", "b16": "h", "b32": "r", "b64": "rd", "f32": "f", "f64": "fd"}
#: Names of virtual registers, and of the operands (%0, %1, ...) of what `Ptx.repeat` repeats.
_NAME = re.compile(r"%%((?:p|h|rd|r|fd|f)?\d+)\b")
#: From how many times on a sequence of instructions is repeated as text.
_TEMPLATE_FROM = 4
Made = TypeVar("Made", str, "list[str]")


class Ptx:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.counts = dict.fromkeys(CLASSES, 0)
        self.labels = 0
        self.files: dict[str, int] = {}
        self.header: list[str] = []  # declarations at module scope
        self.decls: list[str] = []  # declarations at the start of the entry
        self._loc: tuple[str, int] | None = None

    def reg(self, cls: str) -> str:
        """A fresh register of class pred, b16, b32, b64, f32 or f64."""
        n = self.counts[cls]
        self.counts[cls] = n + 1
        return f"%{CLASSES[cls]}{n}"

    def regs(self, cls: str, count: int) -> list[str]:
        return [self.reg(cls) for _ in range(count)]

    def __call__(self, opcode: str, *operands: object, pred: str | None = None) -> None:
        """Append an instruction; `pred` is a predicate register, `!%p1` for its negation."""
        guard = f"@{pred} " if pred else ""
        self.lines.append(f"    {guard}{opcode} {', '.join(map(str, operands))};" if operands
                          else f"    {guard}{opcode};")

    def new(self, cls: str, opcode: str, *operands: object) -> str:
        n = self.counts[cls]
        self.counts[cls] = n + 1
        d = f"%{CLASSES[cls]}{n}"
        self.lines.append(f"    {opcode} {', '.join([d, *map(str, operands)])};")
        return d

    def repeat(self, make: Callable[..., Made], operands: Sequence[tuple[str, ...]]) -> list[Made]:
        """[make(*o) for o in operands], where `make` emits instructions in the same way whatever its operands' names.
        """
        labels = self.labels
        many = self.template(make, len(operands[0])) if len(operands) >= _TEMPLATE_FROM else None
        if many is None or self.labels > labels:  # a label is placed once
            return [make(*o) for o in operands]
        return many(operands)

    def template(self, make: Callable[..., Made], arity: int) -> Callable[[Sequence[tuple[str, ...]]], list[Made]]:
        """`repeat` as a function of operands."""
        counts, lines, self.lines = dict(self.counts), self.lines, []
        made = make(*(f"%{i}" for i in range(arity)))
        pieces = _NAME.split("\n".join(self.lines).replace("%", "%%"))
        new = {cls: n - counts[cls] for cls, n in self.counts.items() if n > counts[cls]}
        self.counts, self.lines = counts, lines
        marks = {str(i): "%s" for i in range(arity)}  # operands are put in as they are, registers by number
        for cls, n in new.items():
            marks |= dict.fromkeys([f"{CLASSES[cls]}{counts[cls] + i}" for i in range(n)], f"%%{CLASSES[cls]}%d")
        place = {name: i for i, name in enumerate(marks)}
        names = pieces[1::2]
        pieces[1::2] = [marks[x] if x in marks else "%%" + x for x in names]
        text = "".join(pieces)
        slots = [place[x] for x in names if x in place]
        pick = itemgetter(*slots) if slots else lambda values: ()
        results = [(marks[r[1:]], place[r[1:]]) for r in ([made] if isinstance(made, str) else made)]

        def apply(operands: Sequence[tuple[str, ...]]) -> list[Any]:
            out: list[Any] = []
            for given in operands:
                values: list[Any] = list(given)
                for cls, n in new.items():
                    start = self.counts[cls]
                    self.counts[cls] = start + n
                    values += range(start, start + n)
                if text:
                    self.lines.append(text % pick(values))
                named = [mark % values[i] for mark, i in results]
                out.append(named[0] if isinstance(made, str) else named)
            return out

        return apply

    def label(self, base: str) -> str:
        self.labels += 1
        return f"${base}_{self.labels}"

    def place(self, label: str) -> None:
        self.lines.append(f"{label}:")

    def comment(self, text: str) -> None:
        self.lines.append(f"    // {text}")

    def banner(self, text: str) -> None:
        self.lines.append(f"    // ---- {text} " + "-" * max(4, 86 - len(text)))

    def loc(self, file: str, line: int) -> None:
        if self._loc == (file, line):
            return
        self._loc = (file, line)
        index = self.files.setdefault(file, len(self.files) + 1)
        self.lines.append(f"    .loc {index} {line} 0")

    def text(self, name: str, params: list[str], directives: list[str], target: str,
             version: str, header: list[str]) -> str:
        decls = [f"    .reg .{cls} %{CLASSES[cls]}<{n}>;" for cls, n in self.counts.items() if n]
        files = [f'.file {i} "{f}"' for f, i in self.files.items()]
        plist = ",\n".join(f"    {p}" for p in params)
        return "\n".join([f".version {version}", f".target {target}", ".address_size 64", *files, *header,
                          *self.header, f".visible .entry {name}(", plist, ")", *directives, "{",
                          *decls, *(f"    {d}" for d in self.decls), *self.lines, "}", ""])
