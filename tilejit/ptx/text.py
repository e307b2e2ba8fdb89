"""Reader of PTX text: modules, entries, scopes, instructions and operands as plain data with line numbers."""
from __future__ import annotations

import re
import struct
from bisect import bisect_right
from typing import Any, NamedTuple, Union

from tilejit.errors import EmulatorError
from tilejit.records import dataclass, field


class Reg(NamedTuple):
    """An index into `Entry.registers`."""

    index: int  # type: ignore[assignment]  # hides tuple.index


class Special(NamedTuple):
    """Such as `%tid.x`."""

    name: str


class Imm(NamedTuple):
    value: int


class FloatImm(NamedTuple):
    """By its bits: `kind` "f32" or "f64" (as written), "" for a decimal's f64 bits."""

    kind: str
    bits: int


class Sym(NamedTuple):
    """A label, parameter, variable or the sink `_`."""

    name: str


class Not(NamedTuple):
    operand: Operand


class Vec(NamedTuple):
    """A list, `{a, b}`, or `(a, b)` of a call."""

    items: tuple[Operand, ...]


class Mem(NamedTuple):
    """`[base+offset]`; `coords` holds the brace list of a tensor address `[map, {c0, c1}]`."""

    base: Operand
    offset: int
    coords: tuple[Operand, ...] = ()


class Pair(NamedTuple):
    """Two destinations, `d|p`."""

    first: Operand
    second: Operand


Operand = Union[Reg, Special, Imm, FloatImm, Sym, Not, Vec, Mem, Pair]


class Instruction(NamedTuple):
    """`guard` is a register index or -1, `negated` its sense, `loc` an index of `.loc`."""

    opcode: str
    operands: tuple[Operand, ...]
    guard: int
    negated: bool
    line: int
    loc: tuple[str, int] | None
    text: str


@dataclass(frozen=True)
class Param:
    """`type` is a PTX type or "b8" with `count` bytes; `offset` in the bank."""

    name: str
    type: str
    count: int
    align: int
    offset: int

    @property
    def size(self) -> int:
        return self.count * TYPE_BYTES[self.type]


@dataclass(frozen=True)
class Variable:
    """A .shared, .global, .const or .local variable; `size` in bytes, 0 for an extern array."""

    name: str
    space: str
    size: int
    align: int
    external: bool = False
    data: bytes = b""


@dataclass
class Entry:
    """One kernel."""

    name: str
    line: int
    params: list[Param] = field(default_factory=list)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    registers: list[tuple[str, str]] = field(default_factory=list)
    variables: dict[str, Variable] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    comments: dict[int, str] = field(default_factory=dict)


@dataclass
class Module:
    """Version and target as written, variables at module scope, and kernels by name."""

    version: str = ""
    target: str = ""
    files: dict[int, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)


TYPE_BYTES = {"pred": 1, "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2,
              "b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4, "tf32": 4,
              "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16}

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_LABEL = re.compile(r"([\w$%]+)\s*:(?!:)")
_GUARD = re.compile(r"@(!?)\s*([\w$%]+)\s+")
_RANGE = re.compile(r"([\w$%]+)\s*<\s*(\d+)\s*>")
_INT = re.compile(r"-?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_FLOAT = re.compile(r"-?(\d+\.\d*([eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.\d+)$")
_VARIABLE = re.compile(r"((?:\.\w+(?:\s+\d+(?=\s))?\s*)+)\s+([\w$%]+)\s*(\[\s*\d*\s*\])?\s*(?:=\s*(.*))?$", re.S)
_PARAM = re.compile(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+"
                    r"((?:\.\w+\s+(?:\d+\s+)?)*)([\w$%]+)\s*(?:\[\s*(\d+)\s*\])?$")
_DIRECTIVE = re.compile(r"\.(\w+)\s*((?:\d+\s*(?:,\s*)?)*)")
_WORDS = ("version", "target", "address_size", "file", "loc", "section", "pragma", "alias")


def parse(text: str) -> Module:
    """Raises EmulatorError naming the line of what cannot be read."""
    return _Parser(text).module()


class _Parser:
    def __init__(self, text: str):
        self.comments: dict[int, str] = {}
        self.newlines = [i for i, c in enumerate(text) if c == "\n"]
        self.text = _COMMENT.sub(self._blank, text)
        self.pos = 0
        self.out = Module()
        self.loc: tuple[str, int] | None = None

    def _blank(self, match: re.Match[str]) -> str:
        comment = match.group()
        self.comments[bisect_right(self.newlines, match.start() - 1) + 1] = comment.strip("/* \t")
        return re.sub(r"[^\n]", " ", comment)

    def line(self, pos: int | None = None) -> int:
        at = self.pos if pos is None else pos
        return bisect_right(self.newlines, at - 1) + 1

    def error(self, message: str) -> EmulatorError:
        return EmulatorError(f"PTX line {self.line()}: {message}")

    def skip(self) -> bool:
        text, n = self.text, len(self.text)
        while self.pos < n and text[self.pos].isspace():
            self.pos += 1
        return self.pos < n

    def until(self, stop: str) -> str:
        end = self.text.find(stop, self.pos)
        if end < 0:
            if stop == "\n":
                end = len(self.text)
            else:
                raise self.error(f"expected {stop!r} after {self.text[self.pos:self.pos + 40]!r}")
        piece = self.text[self.pos:end]
        self.pos = end + 1
        return piece.strip()

    def module(self) -> Module:
        while self.skip():
            word = self.word()
            if word in _WORDS:
                self.line_directive(word)
            elif word in ("visible", "weak", "entry", "func"):
                self.entry()
            elif word == "extern" and re.match(r"\.extern\s+\.func\b", self.text[self.pos:]):
                self.until(";")
            elif word in ("extern", "shared", "global", "const"):
                v = self.variable()
                self.out.variables[v.name] = v
            else:
                raise self.error(f"unexpected {self.text[self.pos:self.pos + 40]!r} at module level")
        return self.out

    def word(self) -> str:
        m = re.compile(r"\.(\w+)").match(self.text, self.pos)
        return m.group(1) if m else ""

    def line_directive(self, word: str) -> None:
        if word == "pragma":
            self.until(";")
            return
        rest = self.until("\n").split(None, 1)
        value = rest[1].strip() if len(rest) > 1 else ""
        if word == "version":
            self.out.version = value
        elif word == "target":
            self.out.target = value
        elif word == "file":
            number, name = value.split(None, 1)
            self.out.files[int(number)] = name.split('"')[1]
        elif word == "loc":
            file, line = value.split()[:2]
            name = self.out.files.get(int(file), f"file {file}")
            self.loc = (name, int(line))
        elif word == "section":
            self.until("}")

    def variable(self) -> Variable:
        line = self.line()
        statement = self.until(";")
        m = _VARIABLE.match(statement)
        if not m:
            raise EmulatorError(f"PTX line {line}: cannot read the declaration {statement!r}")
        words = re.findall(r"\.(\w+)(?:\s+(\d+))?", m.group(1))
        names = dict(words)
        space = next((s for s in ("shared", "global", "const", "local", "param") if s in names), "")
        kind = next((w for w, _ in words if w in TYPE_BYTES), "")
        if not space or not kind:
            raise EmulatorError(f"PTX line {line}: cannot read the declaration {statement!r}")
        bracket = m.group(3)
        digits = bracket.strip("[] \t") if bracket else "1"
        size = int(digits or 0) * TYPE_BYTES[kind]
        align = int(names.get("align") or TYPE_BYTES[kind])
        data = b""
        if m.group(4):
            items = m.group(4).strip("{} \t\n").split(",")
            data = b"".join(_initial(i.strip(), TYPE_BYTES[kind]) for i in items)
            size = size or len(data)
        return Variable(m.group(2), space, size, align, "extern" in names, data)

    def entry(self) -> None:
        line = self.line()
        head = re.compile(r"((?:\.\w+\s+)+)([\w$%]+)\s*").match(self.text, self.pos)
        if not head or ".entry" not in head.group(1):
            raise self.error("only .entry functions are supported: inline .func bodies")
        self.pos = head.end()
        entry = Entry(head.group(2), line)
        if self.text[self.pos] == "(":
            self.pos += 1
            self.params(entry, self.until(")"))
        while self.skip() and self.text[self.pos] != "{":
            m = _DIRECTIVE.match(self.text, self.pos)
            if not m:
                raise self.error(f"unexpected {self.text[self.pos:self.pos + 30]!r} before the body")
            if m.group(1) == "pragma":
                self.until(";")
                continue
            entry.directives[m.group(1)] = tuple(int(x) for x in re.findall(r"\d+", m.group(2)))
            self.pos = m.end()
        self.pos += 1
        self.loc = None
        _Body(self, entry).read()
        last = self.line()
        entry.comments = {n: c for n, c in self.comments.items() if line <= n <= last}
        self.out.entries[entry.name] = entry

    def params(self, entry: Entry, text: str) -> None:
        offset = 0
        for piece in filter(None, (p.strip() for p in text.split(","))):
            m = _PARAM.match(piece)
            if not m or m.group(2) not in TYPE_BYTES:
                raise self.error(f"cannot read the parameter {piece!r}")
            size, count = TYPE_BYTES[m.group(2)], int(m.group(5) or 1)
            align = int(m.group(1) or size)
            offset = -(-offset // align) * align
            entry.params.append(Param(m.group(4), m.group(2), count, align, offset))
            offset += size * count


class _Body:
    def __init__(self, parser: _Parser, entry: Entry):
        self.p, self.entry = parser, entry
        self.scopes: list[dict[str, Operand]] = [{}]
        self.inner: list[tuple[int, dict[str, str]]] = []  # of inner scopes: first instruction, labels' own names
        self.cache: dict[str, Operand] = {}

    def read(self) -> None:
        p = self.p
        while True:
            if not p.skip():
                raise p.error(f"the body of {self.entry.name} has no end")
            c = p.text[p.pos]
            if c == "{":
                p.pos += 1
                self.scopes.append({})
                self.inner.append((len(self.entry.instructions), {}))
            elif c == "}":
                p.pos += 1
                self.scopes.pop()
                self.cache = {}
                if not self.scopes:
                    return
                self.resolve(*self.inner.pop())
            elif c == ";":
                p.pos += 1
            elif c == ".":
                self.directive(p.word())
            else:
                m = _LABEL.match(p.text, p.pos)
                if m:
                    self.label(m)
                else:
                    self.instruction()

    def label(self, m: re.Match[str]) -> None:
        p, name, labels = self.p, m.group(1), self.entry.labels
        p.pos = m.end()
        p.skip()
        if p.word() == "branchtargets":
            names = p.until(";").split(None, 1)[1]
            self.entry.tables[name] = tuple(n.strip() for n in names.split(","))
            return
        own = f"{name}@{len(labels)}" if self.inner else name  # another scope may have one of this name
        here: dict[str, Any] = self.inner[-1][1] if self.inner else labels
        if name in here:
            raise p.error(f"label {name} is defined twice")
        here[name] = own
        labels[own] = len(self.entry.instructions)

    def resolve(self, first: int, labels: dict[str, str]) -> None:
        """Make the branches of an inner scope, which begins at an instruction, mean its own labels."""
        if labels:
            mine = {Sym(name): Sym(own) for name, own in labels.items()}
            self.entry.instructions[first:] = [
                ins._replace(operands=tuple(mine.get(o, o) if isinstance(o, Sym) else o for o in ins.operands))
                for ins in self.entry.instructions[first:]]

    def directive(self, word: str) -> None:
        p = self.p
        if word == "reg":
            self.registers(p.until(";"))
        elif word in _WORDS:
            p.line_directive(word)
        elif word in ("shared", "local", "const", "global", "extern"):
            v = p.variable()
            self.entry.variables[v.name] = v
        else:
            raise p.error(f"unsupported directive .{word}")

    def registers(self, statement: str) -> None:
        m = re.match(r"\.reg\s+(?:\.v\d\s+)?\.(\w+)\s+(.*)", statement, re.S)
        if not m or m.group(1) not in TYPE_BYTES:
            raise self.p.error(f"cannot read the declaration {statement!r}")
        kind, scope, table = m.group(1), self.scopes[-1], self.entry.registers
        self.cache = {}
        for name in (n.strip() for n in m.group(2).split(",")):
            r = _RANGE.match(name)
            names = [f"{r.group(1)}{i}" for i in range(int(r.group(2)))] if r else [name]
            for n in names:
                scope[n] = Reg(len(table))
                table.append((n, kind))

    def instruction(self) -> None:
        p = self.p
        line = p.line()
        statement = p.until(";")
        guard, negated, body = -1, False, statement
        if statement[0] == "@":
            m = _GUARD.match(statement)
            reg = self.name(m.group(2)) if m else None
            if not m or not isinstance(reg, Reg):
                raise EmulatorError(f"PTX line {line}: cannot read the guard of {statement!r}")
            guard, negated, body = reg.index, m.group(1) == "!", statement[m.end():]
        opcode, _, rest = body.partition(" ")
        if "\n" in opcode or "\t" in opcode:
            opcode, rest = body.split(None, 1) if len(body.split(None, 1)) > 1 else (body, "")
        try:
            operands = tuple(self.operand(o) for o in _split(rest)) if rest else ()
        except EmulatorError as error:
            raise EmulatorError(f"PTX line {line}: {error}, in {statement!r}") from None
        self.entry.instructions.append(
            Instruction(opcode, operands, guard, negated, line, p.loc, statement))

    def name(self, text: str) -> Operand | None:
        for scope in reversed(self.scopes):
            if text in scope:
                return scope[text]
        return None

    def operand(self, text: str) -> Operand:
        found = self.cache.get(text)
        if found is None:
            found = self.cache[text] = self.read_operand(text)
        return found

    def read_operand(self, text: str) -> Operand:
        text = text.strip()
        reg = self.name(text)
        if reg is not None:
            return reg
        if not text:
            raise EmulatorError("an operand is missing")
        c = text[0]
        if c == "[":
            return self.memory(text)
        if c in "{(":
            return Vec(tuple(self.operand(t) for t in _split(text.strip("{}() \t\n"))))
        if c == "!":
            return Not(self.operand(text[1:]))
        if "|" in text:
            first, second = text.split("|")
            return Pair(self.operand(first), self.operand(second))
        if c == "%":
            return Special(text)
        if _INT.match(text):
            return Imm(_integer(text))
        if text[:2] in ("0f", "0F", "0d", "0D") and len(text) in (10, 18):
            return FloatImm("f32" if len(text) == 10 else "f64", int(text[2:], 16))
        if _FLOAT.match(text):
            return FloatImm("", int.from_bytes(struct.pack("<d", float(text)), "little"))
        if re.match(r"[\w$]+$", text):
            return Imm(32) if text == "WARP_SZ" else Sym(text)
        raise EmulatorError(f"cannot read the operand {text!r}")

    def memory(self, text: str) -> Operand:
        inner = text.strip()
        if not inner.endswith("]"):
            raise EmulatorError(f"cannot read the address {text!r}")
        parts = _split(inner[1:-1])
        coords: tuple[Operand, ...] = ()
        if len(parts) > 1:
            vec = self.operand(parts[1])
            if not isinstance(vec, Vec):
                raise EmulatorError(f"cannot read the address {text!r}")
            coords = vec.items
        base, sign, offset = re.match(r"\s*(-?[^+\-\s]+)\s*([+-]?)\s*(.*)$", parts[0]).groups()  # type: ignore[union-attr]
        value = _integer(offset.strip()) if offset else 0
        return Mem(self.operand(base), -value if sign == "-" else value, coords)


def _initial(text: str, size: int) -> bytes:
    value = int(text[2:], 16) if text[:2].lower() in ("0f", "0d") else int(text.rstrip("U"), 0)
    return (value & (1 << 8 * size) - 1).to_bytes(size, "little")


def _integer(text: str) -> int:
    text = text.rstrip("U")
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("-")
    if len(digits) > 1 and digits[0] == "0" and digits[1] not in "xXbB":
        return sign * int(digits, 8)
    return sign * int(digits, 0)


def _split(text: str) -> list[str]:
    if not any(c in text for c in "[{("):
        return [t.strip() for t in text.split(",")]
    out, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "[{(":
            depth += 1
        elif c in "]})":
            depth -= 1
        elif c == "," and depth == 0:
            out.append(text[start:i].strip())
            start = i + 1
    out.append(text[start:].strip())
    return out
