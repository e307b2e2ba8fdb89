"""Builds PTX text: registers by class, one instruction a line, comments that name the tile op.

Nothing here knows tile IR. `Ptx` collects lines for one kernel; `Ptx.text` adds the header and the
register declarations. Output is deterministic: the same calls give the same bytes.
"""
from __future__ import annotations

#: Register class -> name prefix.
CLASSES = {"pred": "p", "b16": "h", "b32": "r", "b64": "rd", "f32": "f", "f64": "fd"}


class Ptx:
    """The body of one kernel under construction."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.counts = dict.fromkeys(CLASSES, 0)
        self.labels = 0
        self.files: dict[str, int] = {}
        self.header: list[str] = []      # declarations at module scope
        self.decls: list[str] = []       # declarations at the start of the entry
        self._loc: tuple[str, int] | None = None

    def reg(self, cls: str) -> str:
        """A fresh virtual register of class pred, b16, b32, b64, f32 or f64."""
        n = self.counts[cls]
        self.counts[cls] = n + 1
        return f"%{CLASSES[cls]}{n}"

    def regs(self, cls: str, count: int) -> list[str]:
        """`count` fresh registers."""
        return [self.reg(cls) for _ in range(count)]

    def __call__(self, opcode: str, *operands: object, pred: str | None = None) -> None:
        """Append one instruction; `pred` is a predicate register, `!%p1` for its negation."""
        guard = f"@{pred} " if pred else ""
        self.lines.append(f"    {guard}{opcode} {', '.join(map(str, operands))};" if operands
                          else f"    {guard}{opcode};")

    def new(self, cls: str, opcode: str, *operands: object) -> str:
        """Append an instruction that defines a fresh register of class `cls`, and return it."""
        d = self.reg(cls)
        self(opcode, d, *operands)
        return d

    def label(self, base: str) -> str:
        """A fresh label name (not yet placed)."""
        self.labels += 1
        return f"${base}_{self.labels}"

    def place(self, label: str) -> None:
        """Put a label here."""
        self.lines.append(f"{label}:")

    def comment(self, text: str) -> None:
        """A comment line of its own."""
        self.lines.append(f"    // {text}")

    def banner(self, text: str) -> None:
        """A section heading."""
        self.lines.append(f"    // ---- {text} " + "-" * max(4, 86 - len(text)))

    def loc(self, file: str, line: int) -> None:
        """Map the following instructions to a line of the user's source (`.loc`)."""
        if self._loc == (file, line):
            return
        self._loc = (file, line)
        index = self.files.setdefault(file, len(self.files) + 1)
        self.lines.append(f"    .loc {index} {line} 0")

    def text(self, name: str, params: list[str], directives: list[str], target: str,
             version: str, header: list[str]) -> str:
        """The whole module: header lines, the entry with its parameters, register declarations, body."""
        decls = [f"    .reg .{cls} %{CLASSES[cls]}<{n}>;" for cls, n in self.counts.items() if n]
        files = [f'.file {i} "{f}"' for f, i in self.files.items()]
        plist = ",\n".join(f"    {p}" for p in params)
        return "\n".join([f".version {version}", f".target {target}", ".address_size 64", *files, *header,
                          *self.header, f".visible .entry {name}(", plist, ")", *directives, "{",
                          *decls, *(f"    {d}" for d in self.decls), *self.lines, "}", ""])
