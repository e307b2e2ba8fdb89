"""Random kernels over run-time scalars, and plain Python as their reference.

A program is source text: helpers with early returns and a kernel that stores to `out` along its way and at its end.
It reads only names that are bound on every path, except for a few (`loose`), so nearly all of them compile.
"""
from __future__ import annotations

import ast
import builtins
import linecache
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import hypothesis.strategies as st
import numpy as np

SLOTS = 32
_numbers = count()


class Overflow(Exception):
    """A value left its 32-bit type, where the kernel would wrap or round and Python does not."""


class Int(int):
    """An int that reports what does not fit 32 bits."""

    def __new__(cls, value: int) -> Int:
        if not -2 ** 31 <= value < 2 ** 31:
            raise Overflow
        return super().__new__(cls, value)


class Float(float):
    """A float that reports what fp32 does not hold exactly."""

    def __new__(cls, value: float) -> Float:
        if np.float32(value) != value:
            raise Overflow
        return super().__new__(cls, value)


def _checked(kind: Any, name: str) -> None:
    def method(*args: Any) -> Any:
        found = getattr(kind.__base__, name)(*args)
        return found if found is NotImplemented else kind(found)
    setattr(kind, name, method)


for _name in ("add", "sub", "mul", "neg", "abs"):
    for _kind in (Int, Float):
        _checked(_kind, f"__{_name}__")
        if _name not in ("neg", "abs"):
            _checked(_kind, f"__r{_name}__")
for _name in ("and", "or", "xor"):
    _checked(Int, f"__{_name}__")
    _checked(Int, f"__r{_name}__")


class Pointer:
    """`out` in plain Python."""

    def __init__(self, array: Any, at: int = 0):
        self.array, self.at = array, at

    def __add__(self, offset: int) -> Pointer:
        return Pointer(self.array, self.at + offset)


class PlainLanguage:
    """`tl` in plain Python."""

    constexpr = int

    @staticmethod
    def store(pointer: Pointer, value: int) -> None:
        pointer.array[pointer.at] = int(value)

    @staticmethod
    def static_range(*args: int) -> list[Int]:
        return [Int(i) for i in builtins.range(*args)]


class _Literals(ast.NodeTransformer):
    """Makes every number of a program an Int or a Float."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        name = {int: "Int", float: "Float"}.get(type(node.value))
        return ast.Call(ast.Name(name, ast.Load()), [node], []) if name else node


def load(text: str, kernel: Callable[..., Any], tl: Any) -> dict[str, Any]:
    """The functions of a program made by `kernel`; their source can be read back."""
    name = f"<program {next(_numbers)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    scope: dict[str, Any] = {"kernel": kernel, "tl": tl, "G": 5, "__name__": "program"}
    exec(compile(text, name, "exec"), scope)
    return scope


def load_plain(text: str) -> dict[str, Any]:
    """The functions of a program as plain Python."""
    tree = ast.fix_missing_locations(_Literals().visit(ast.parse(text)))
    scope: dict[str, Any] = {"kernel": lambda f: f, "tl": PlainLanguage, "G": Int(5), "Int": Int, "Float": Float,
                             "range": PlainLanguage.static_range}
    exec(compile(tree, "<plain>", "exec"), scope)
    return scope


@dataclass
class Scope:
    """What a function being written may use."""

    ints: list[str]
    bools: list[str] = field(default_factory=list)
    floats: list[str] = field(default_factory=list)
    tuples: list[str] = field(default_factory=list)  #: pairs of ints
    ever: list[str] = field(default_factory=list)    #: ints bound on some path
    locked: tuple[str, ...] = ()                     #: counters of the loops around, not to be assigned
    helpers: tuple[str, ...] = ()
    loops: int = 0
    kernel: bool = True

    def inner(self, **changes: Any) -> Scope:
        """A copy for a nested block: what that binds is not certain after it."""
        made = {**vars(self), **changes}
        return Scope(**{k: list(v) if isinstance(v, list) and k != "ever" else v for k, v in made.items()})


class Writer:
    """Writes one program by drawing from hypothesis."""

    def __init__(self, draw: Callable[[Any], Any]):
        self.draw = draw
        self.fresh = count()

    def pick(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def chance(self, one_in: int) -> bool:
        return self.number(1, one_in) == 1

    # -- expressions ------------------------------------------------------------------------------------
    def int(self, s: Scope, depth: int = 2) -> str:
        kind = self.pick("var", "var", "const") if depth <= 0 else self.pick(
            "var", "const", "binary", "binary", "times", "neg", "minmax", "ternary", "walrus", "logic", "call", "item",
            "loose")
        d = depth - 1
        if kind == "const":
            return self.pick("0", "1", "2", "3", "7", "(-1)", "G", "K")
        if kind == "binary":
            return f"({self.int(s, d)} {self.pick('+', '-', '&', '|', '^')} {self.int(s, d)})"
        if kind == "times":
            return f"({self.int(s, d)} * {self.pick('2', '3', '(-1)')})"
        if kind == "neg":
            return f"({self.pick('-', '+')}{self.int(s, d)})"
        if kind == "minmax":
            return f"{self.pick('min', 'max')}({self.int(s, d)}, {self.int(s, d)})"
        if kind == "ternary":
            return f"({self.int(s, d)} if {self.truth(s, d)} else {self.int(s, d)})"
        if kind == "walrus" and (free := [n for n in s.ints if n not in s.locked]):
            return f"({self.pick(*free)} := {self.int(s, d)})"
        if kind == "logic":
            return f"({self.int(s, d)} {self.pick('and', 'or')} {self.int(s, d)})"
        if kind == "call" and s.helpers:
            name = self.pick(*s.helpers)
            args = self.pick("", f", {self.int(s, d)}", f", b={self.int(s, d)}")
            return f"{name}(out, {self.int(s, d)}{args})"
        if kind == "item" and s.tuples:
            return f"{self.pick(*s.tuples)}[{self.pick('0', '1', '-1')}]"
        if kind == "loose" and s.ever and self.chance(4):
            return self.pick(*s.ever)
        return self.pick(*s.ints)

    def float(self, s: Scope, depth: int = 2) -> str:
        kind = self.pick("var", "const") if depth <= 0 else self.pick(
            "var", "const", "binary", "mixed", "neg", "minmax", "ternary", "logic", "walrus")
        d = depth - 1
        if kind == "binary":
            return f"({self.float(s, d)} {self.pick('+', '-', '*')} {self.float(s, d)})"
        if kind == "mixed":
            pair = [self.float(s, d), self.int(s, d)]
            return f"({pair.pop(self.number(0, 1))} {self.pick('+', '-', '*')} {pair[0]})"
        if kind == "neg":
            return f"(-{self.float(s, d)})"
        if kind == "minmax":
            return f"{self.pick('min', 'max')}({self.float(s, d)}, {self.float(s, d)})"
        if kind == "ternary":
            return f"({self.float(s, d)} if {self.truth(s, d)} else {self.pick('1', self.float(s, d))})"
        if kind == "logic":
            return f"({self.float(s, d)} {self.pick('and', 'or')} {self.pick('2', self.float(s, d))})"
        if kind == "walrus" and s.floats:
            return f"({self.pick(*s.floats)} := {self.float(s, d)})"
        if kind == "var" and s.floats:
            return self.pick(*s.floats)
        return self.pick("0.0", "0.5", "1.5", "(-2.0)")

    def bool(self, s: Scope, depth: int = 2) -> str:
        kind = self.pick("cmp", "const") if depth <= 0 else self.pick(
            "cmp", "cmp", "chain", "not", "logic", "var", "in", "noisy", "const", "float")
        d = depth - 1
        if kind == "chain":
            ops = self.pick(("<", "<="), (">", ">"), ("<", "!="), ("<=", "=="))
            return f"({self.int(s, d)} {ops[0]} {self.int(s, d)} {ops[1]} {self.int(s, d)})"
        if kind == "not":
            return f"(not {self.truth(s, d)})"
        if kind == "logic":
            return f"({self.bool(s, d)} {self.pick('and', 'or')} {self.bool(s, d)})"
        if kind == "var" and s.bools:
            return self.pick(*s.bools)
        if kind == "float":
            return f"({self.float(s, d)} {self.pick('<', '<=', '>', '!=')} {self.pick(self.float(s, d), self.int(s, d))})"
        if kind == "in":
            return f"({self.int(s, d)} {self.pick('in', 'not in')} (1, {self.int(s, d)}, 3))"
        if kind == "noisy" and s.helpers:
            return f"noisy(out, {self.slot()}, {self.int(s, d)})"
        if kind == "const":
            return self.pick("True", "False", "(K > 1)", "(K == 0)", "(2 < 1)")
        return f"({self.int(s, d)} {self.pick('<', '<=', '>', '>=', '==', '!=')} {self.int(s, d)})"

    def truth(self, s: Scope, depth: int = 2) -> str:
        """Something of which the truth matters only."""
        kind = self.pick("bool", "int", "mixed") if depth > 0 else "bool"
        if kind == "int":
            return self.int(s, depth - 1)
        if kind == "mixed":
            return f"({self.truth(s, depth - 1)} {self.pick('and', 'or')} {self.truth(s, depth - 1)})"
        return self.bool(s, depth)

    def slot(self) -> int:
        return self.number(0, 15)

    # -- statements -------------------------------------------------------------------------------------
    def target(self, s: Scope) -> str:
        """An int name to assign to, old or new."""
        old = [n for n in s.ints if n not in s.locked]
        return self.pick(*old) if old and not self.chance(4) else self.pick("u", "v", "w", "x")

    def bind(self, s: Scope, name: str) -> None:
        if name not in s.ints:
            s.ints.append(name)
        if name not in s.ever:
            s.ever.append(name)

    def block(self, s: Scope, depth: int, size: int = 3) -> list[str]:
        out = []
        for _ in range(self.number(1, size)):
            out += self.statement(s, depth)
        return out

    def nested(self, s: Scope, depth: int) -> list[str]:
        return ["    " + line for line in self.block(s, depth - 1)]

    def statement(self, s: Scope, depth: int) -> list[str]:
        simple = ("assign", "assign", "aug", "swap", "pair", "bool", "store", "star", "list", "none", "float", "float")
        kind = self.pick(*simple, *(("if", "if", "if", "for", "while", "static", "return") if depth else ()),
                         *(("leave",) if s.loops else ()))
        if kind in ("return", "leave"):
            return self.early_return(s, kind == "leave")
        return getattr(self, f"write_{kind}", self.write_assign)(s, depth)

    def write_assign(self, s: Scope, depth: int) -> list[str]:
        value, name = self.int(s), self.target(s)
        self.bind(s, name)
        return [f"{name} = {value}"]

    def write_aug(self, s: Scope, depth: int) -> list[str]:
        free = [n for n in s.ints if n not in s.locked]
        return [f"{self.pick(*free)} {self.pick('+=', '-=', '&=', '|=', '^=')} {self.int(s)}"] if free else ["pass"]

    def write_swap(self, s: Scope, depth: int) -> list[str]:
        values = f"{self.int(s)}, {self.int(s)}"
        a, c = self.target(s), self.target(s)
        self.bind(s, a)
        self.bind(s, c)
        return [f"{a}, {c} = {values}"]

    def write_star(self, s: Scope, depth: int) -> list[str]:
        values = f"{self.int(s)}, {self.int(s)}, {self.int(s)}"
        a = self.target(s)
        self.bind(s, a)
        s.tuples = [*{*s.tuples, "rest"}]
        return [self.pick(f"{a}, *rest = {values}", f"*rest, {a} = {values}")]

    def write_pair(self, s: Scope, depth: int) -> list[str]:
        name = self.pick("t", "rest")
        value = self.pick(f"({self.int(s)}, {self.int(s)})", self.pick(*s.tuples, "(1, 2)"))
        if self.chance(3):
            value = f"({value} if {self.truth(s)} else ({self.int(s)}, {self.int(s)}))"
        s.tuples = [*dict.fromkeys([*s.tuples, name])]
        return [f"{name} = {value}"]

    def write_list(self, s: Scope, depth: int) -> list[str]:
        name = self.pick("t", "rest")
        inner = s.inner(ints=[*s.ints, "i"], locked=(*s.locked, "i"))
        value = f"[{self.int(inner)} for i in (1, {self.pick(*s.ints)})]"
        s.tuples = [*dict.fromkeys([*s.tuples, name])]
        return [f"{name} = {value}", f"{name} = ({name}[0], {name}[1])"]

    def write_bool(self, s: Scope, depth: int) -> list[str]:
        value, name = self.bool(s), self.pick("f", "g")
        s.bools = [*dict.fromkeys([*s.bools, name])]
        return [f"{name} = {value}"]

    def write_float(self, s: Scope, depth: int) -> list[str]:
        value, name = self.pick(self.float(s), self.float(s), "1"), self.pick("d", "e")
        old = name in s.floats
        s.floats = [*dict.fromkeys([*s.floats, name])]
        return [f"{name} {self.pick('+=', '-=', '*=') if old and self.chance(2) else '='} {value}"]

    def write_store(self, s: Scope, depth: int) -> list[str]:
        return [f"tl.store(out + {self.slot()}, {self.pick(self.int(s), self.float(s))})"]

    def write_none(self, s: Scope, depth: int) -> list[str]:
        if "o = None" not in s.helpers and self.chance(2):
            return [f"o = {self.pick('None', self.int(s))}"]
        if not s.kernel:
            return ["pass"]
        name = self.target(s)
        lines = [f"{name} = {self.int(s)} if o is {self.pick('', 'not ')}None else {self.int(s)}"]
        self.bind(s, name)
        return lines

    def write_if(self, s: Scope, depth: int) -> list[str]:
        arms = [s.inner()]
        out = [f"if {self.truth(s)}:", *self.nested(arms[0], depth)]
        if self.chance(3):
            arms.append(s.inner())
            out += [f"elif {self.truth(s)}:", *self.nested(arms[-1], depth)]
        if self.chance(2):
            arms.append(s.inner())
            out += ["else:", *self.nested(arms[-1], depth)]
            for kind in ("ints", "bools", "tuples", "floats"):  # bound in all arms
                mine = getattr(s, kind)
                mine += [n for n in getattr(arms[0], kind)
                         if n not in mine and all(n in getattr(a, kind) for a in arms[1:])]
        return out

    def write_for(self, s: Scope, depth: int) -> list[str]:
        counter = self.pick(f"i{next(self.fresh)}", self.target(s))
        start, n = self.int(s, 1), self.pick("2", "3", f"({self.int(s, 1)} & 3)")
        bounds = self.pick(n, f"0, {n}", f"K, K + {n}", f"{n}, 0, -1", f"0, {n} * 2, 2", f"3, -{n}, -2")
        inner = s.inner(loops=s.loops + 1)
        self.bind(inner, counter)
        body = self.nested(inner, depth)
        old = counter in s.ints
        return [*([f"{counter} = {start}"] if old else []), f"for {counter} in range({bounds}):", *body]

    def write_static(self, s: Scope, depth: int) -> list[str]:
        counter = self.target(s)
        values = self.pick("tl.static_range(2)", "tl.static_range(K)", "(1, 4)", f"({self.int(s, 1)}, {self.int(s, 1)})")
        inner = s.inner(loops=s.loops + 1)
        self.bind(inner, counter)
        return [f"for {counter} in {values}:", *self.nested(inner, depth)]

    def write_while(self, s: Scope, depth: int) -> list[str]:
        counter = f"n{next(self.fresh)}"
        lines = [f"{counter} = {self.int(s, 1)} & 3"]
        inner = s.inner(loops=s.loops + 1, locked=(*s.locked, counter), ints=[*s.ints, counter])
        if self.chance(2):
            return [*lines, f"while ({counter} := {counter} - 1) > 0{self.pick('', ' and ' + self.truth(inner, 1))}:",
                    *self.nested(inner, depth)]
        if self.chance(3):
            return [*lines, "while True:", f"    {counter} -= 1", f"    if {counter} < 0:", "        break",
                    *self.nested(inner, depth)]
        return [*lines, f"while {counter} > 0{self.pick('', ' and ' + self.truth(inner, 1))}:", f"    {counter} -= 1",
                *self.nested(inner, depth)]

    def early_return(self, s: Scope, loop: bool) -> list[str]:
        """A `return`, or in a loop what may leave its body, mostly under a condition."""
        leave = "return" if s.kernel else f"return {self.int(s)}"
        if loop:
            leave = self.pick("break", "continue", leave)
        before = self.pick("pass", f"tl.store(out + {self.slot()}, {self.int(s)})")
        if loop and self.chance(6):
            return [before, leave]
        lines = [f"if {self.truth(s)}:", f"    {before}", f"    {leave}"]
        return [*lines, "else:", f"    {self.pick('pass', leave)}"] if self.chance(4) else lines

    # -- functions -------------------------------------------------------------------------------------
    def program(self) -> str:
        lines = ["K = 2", "", "@kernel", "def noisy(out, slot, v):", "    tl.store(out + slot, v)", "    return v > 1", ""]
        helpers: tuple[str, ...] = ()
        for i in range(self.number(0, 2)):
            s = Scope(["a", "b"], helpers=helpers, kernel=False)
            body = self.block(s, 2, 4)
            lines += ["@kernel", f"def h{i}(out, a, b={self.pick('2', 'K', 'G')}):",
                      *("    " + x for x in body), f"    return {self.int(s)}", ""]
            helpers = (*helpers, f"h{i}")
        s = Scope(["p", "q", "r", "x", "y"], helpers=helpers)
        body = self.block(s, 3, 6)
        stores = [f"tl.store(out + {16 + i}, {n})" for i, n in enumerate(s.ints[:12])]
        stores += [f"tl.store(out + {28 + i}, {n} * 4)" for i, n in enumerate(s.floats[:4])]
        lines += ["@kernel", "def main(out, p, q, r, K: tl.constexpr):", "    x = 1", "    y = q", "    o = None",
                  *("    " + x for x in [*body, *stores])]
        return "\n".join(lines) + "\n"


@st.composite
def programs(draw: Callable[[Any], Any]) -> str:
    """Source text of a program; its kernel is `main(out, p, q, r, K)`."""
    return Writer(draw).program()
