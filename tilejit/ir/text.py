"""The textual form of tile IR: a printer and a parser that undo each other exactly."""
from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from tilejit.errors import CompilationError, Loc
from tilejit.ir import OPS
from tilejit.ir.core import Block, Function, Op, Value
from tilejit.ir.types import (
    DTYPES,
    Barrier,
    Buffer,
    Desc,
    DType,
    Pending,
    Ptr,
    Scalar,
    Tile,
    Type,
)

_TYPES = (DType, Ptr, Tile, Desc, Buffer, Barrier, Pending)


def print_function(fn: Function) -> str:
    """The text of a function. Raises TypeError for an attribute that is not plain data."""
    return Printer(fn).text()


def print_op(fn: Function, op: Op) -> str:
    """The line that `op` has in the text of `fn`, which may break the rules of IR."""
    p = Printer(fn)
    p.text()
    return p.lines.get(op, repr(op))


class Printer:
    """One printing of a function: value names, layout names and, afterwards, the line of every op."""

    def __init__(self, fn: Function):
        self.fn = fn
        self.names: dict[Value, str] = {}
        self.layouts: dict[Any, str] = {}
        self.lines: dict[Op, str] = {}
        self._used: dict[str, int] = {}
        self._numbered = 0

    def text(self) -> str:
        fn = self.fn
        args = ", ".join(f"{self.define(a)}: {self.type(a.type)}" + (f" {self.attrs(d)}" if d else "")
                         for a, d in zip(fn.body.args, fn.arg_attrs))
        attrs = f" {self.attrs(fn.attrs)}" if fn.attrs else ""
        lines = [f"kernel @{fn.name}({args}){attrs} {{{_comment(fn.loc)}"]
        lines += self.block(fn.body, 1)
        lines.append("}")
        head = [f"{name} = {' '.join(str(layout).split())}" for layout, name in self.layouts.items()]
        return "\n".join(head + lines) + "\n"

    def define(self, v: Value) -> str:
        base = re.sub(r"\W", "_", v.name, flags=re.ASCII)
        if not base or base[0].isdigit():
            name, self._numbered = f"%{self._numbered}", self._numbered + 1
        else:
            n = self._used.get(base, 0)
            self._used[base] = n + 1
            name = f"%{base}.{n}" if n else f"%{base}"
        self.names[v] = name
        return name

    def use(self, v: Value) -> str:
        return self.names.get(v) or f"%<undefined {v.name}>"

    def block(self, block: Block, depth: int) -> Iterator[str]:
        pad = "  " * depth
        for op in block.ops:
            results = ", ".join(self.define(r) for r in op.results)
            line = f"{results} = {op.name}" if results else op.name
            if op.operands:
                line += " " + ", ".join(map(self.use, op.operands))
            shown = {k: v for k, v in op.attrs.items() if not _implied_type(op, k, v)}
            if shown:
                line += " " + self.attrs(shown)
            if op.results:
                line += " : " + ", ".join(self.type(r.type) for r in op.results)
            self.lines[op] = line
            if not op.regions:
                yield pad + line + _comment(op.loc)
            for i, region in enumerate(op.regions):
                args = ", ".join(f"{self.define(a)}: {self.type(a.type)}" for a in region.args)
                opening = "{" + (f"({args})" if args else "")
                yield f"{pad}{line} {opening}{_comment(op.loc)}" if i == 0 else f"{pad}}} {opening}"
                yield from self.block(region, depth + 1)
            if op.regions:
                yield pad + "}"

    def type(self, t: Type) -> str:
        if isinstance(t, Tile) and t.layout is not None:
            return f"{t.elem}[{'x'.join(map(str, t.shape))}, {self.layout(t.layout)}]"
        if isinstance(t, Pending):
            return f"pending<{self.type(t.tile)}>"
        return str(t)

    def layout(self, layout: Any) -> str:
        return self.layouts.setdefault(layout, f"#l{len(self.layouts)}")

    def attrs(self, attrs: dict[str, Any]) -> str:
        return "{" + ", ".join(f"{k}={self.attr(v)}" for k, v in attrs.items()) + "}"

    def attr(self, v: Any) -> str:
        if isinstance(v, _TYPES):
            return self.type(v)
        if type(v).__module__ == "tilejit.layout.linear":
            return self.layout(v)
        if hasattr(v, "item") and getattr(v, "shape", None) == ():
            v = v.item()
        if v is None or isinstance(v, bool):
            return str(v).lower()
        if isinstance(v, (int, float)):
            return repr(v)
        if isinstance(v, str):
            return json.dumps(v)
        if isinstance(v, tuple):
            return "(" + ", ".join(map(self.attr, v)) + (",)" if len(v) == 1 else ")")
        if isinstance(v, list):
            return "[" + ", ".join(map(self.attr, v)) + "]"
        if isinstance(v, dict) and all(isinstance(k, str) and k.isidentifier() for k in v):
            return self.attrs(v)
        raise TypeError(f"attribute value {v!r} is not plain data and has no textual form")


def _implied_type(op: Op, key: str, value: Any) -> bool:
    return key == "type" and len(op.results) == 1 and value == op.results[0].type


def _comment(loc: Loc | None) -> str:
    return f"   // {loc.short()}" if loc is not None else ""


def parse_function(text: str) -> Function:
    """The function that `text` describes; CompilationError names the line that cannot be read."""
    return _Parser(text).function()


class _Parser:
    """Recursive descent over the characters of the text; `scopes` maps printed names to values."""

    def __init__(self, text: str):
        self.s, self.pos = text, 0
        self.layouts: dict[str, Any] = {}
        self.scope: dict[str, Value] = {}

    # -- characters --
    _SPACE = re.compile(r"(?:\s+|//[^\n]*)*")
    _LOC = re.compile(r"[ \t]*//[ \t]*([^\s:]+):(\d+)[ \t]*(?=\n|$)")

    _OPERANDS = re.compile(r"[ \t]*%")

    def fail(self, message: str) -> CompilationError:
        line = self.s.count("\n", 0, self.pos) + 1
        shown = self.s.splitlines()[line - 1] if line <= len(self.s.splitlines()) else ""
        return CompilationError(f"IR text, line {line}: {message}: {shown.strip()}")

    def take(self, pattern: str) -> re.Match[str] | None:
        """Skip space and comments, then match a pattern or leave everything as it was."""
        space = self._SPACE.match(self.s, self.pos)
        assert space is not None
        m = re.compile(pattern).match(self.s, space.end())
        if m:
            self.pos = m.end()
        return m

    def need(self, pattern: str, what: str) -> re.Match[str]:
        m = self.take(pattern)
        if m is None:
            raise self.fail(f"expected {what}")
        return m

    def loc(self) -> Loc | None:
        m = self._LOC.match(self.s, self.pos)
        if m is None:
            return None
        self.pos = m.end()
        return Loc(m[1], int(m[2]))

    # -- structure --
    def function(self) -> Function:
        while m := self.take(r"(#\w+) = ([^\n]*)"):
            from tilejit.layout.linear import LinearLayout

            self.layouts[m[1]] = LinearLayout.parse(m[2])
        name = self.need(r"kernel @([\w.<>]+)\(", "`kernel @name(`")[1]
        params: list[tuple[str, Type]] = []
        arg_attrs: list[dict[str, Any]] = []
        while not self.take(r"\)"):
            params.append((self.need(r"%([\w.]+):", "a parameter")[1], self.type()))
            arg_attrs.append(self.attrs() or {})
            self.take(",")
        attrs = self.attrs() or {}
        self.need(r"\{", "`{`")
        fn = Function(name, [t for _, t in params], [_base(n) for n, _ in params], arg_attrs, attrs, self.loc())
        self.scope.update((n, a) for (n, _), a in zip(params, fn.body.args))
        self.body(fn.body)
        return fn

    def body(self, block: Block) -> None:
        while not self.take(r"\}"):
            op = self.op()
            op.parent = block
            block.ops.append(op)

    def region(self) -> tuple[Block, list[str]]:
        params: list[tuple[str, Type]] = []
        if self.take(r"\((?=\s*%)"):
            while not self.take(r"\)"):
                params.append((self.need(r"%([\w.]+):", "a region argument")[1], self.type()))
                self.take(",")
        return Block([t for _, t in params], [_base(n) for n, _ in params]), [n for n, _ in params]

    def op(self) -> Op:
        results: list[str] = []
        while m := self.take(r"%([\w.]+)\s*(?=[,=])"):
            results.append(m[1])
            self.take(",")
        if results:
            self.need("=", "`=`")
        name = self.need(r"[a-z_]\w*", "an op")[0]
        if name not in OPS:
            raise self.fail(f"no op is called {name}")
        operands = []
        some = self._OPERANDS.match(self.s, self.pos)  # a name on the next line begins another op
        while some and (m := self.take(r"%([\w.]+)")):
            if m[1] not in self.scope:
                raise self.fail(f"%{m[1]} is not defined here")
            operands.append(self.scope[m[1]])
            if not self.take(","):
                break
        attrs = self.attrs() or {}
        types: list[Type] | None = None if results else []
        if self.take(":"):
            types = [self.type()]
            while self.take(","):
                types.append(self.type())
        if types and "type" in OPS[name].attrs and "type" not in attrs:
            attrs["type"] = types[0]
        loc, regions = self.loc(), []
        while self.s.startswith(" {", self.pos) or self.s.startswith("{", self.pos):
            self.need(r"\{", "`{`")
            block, names = self.region()
            loc = self.loc() or loc
            outer = dict(self.scope)
            self.scope.update(zip(names, block.args))
            self.body(block)
            self.scope = outer
            regions.append(block)
        try:
            op = Op(name, operands, attrs, regions, types, loc)
        except CompilationError as e:
            raise self.fail(e.message) from e
        if len(op.results) != len(results):
            raise self.fail(f"{name} has {len(op.results)} results, {len(results)} names are given")
        for v, n in zip(op.results, results):
            v.name = _base(n)
            self.scope[n] = v
        return op

    # -- data --
    def attrs(self) -> dict[str, Any] | None:
        if not self.take(r"\{(?=\s*\w+\s*=)"):
            return None
        out: dict[str, Any] = {}
        while not self.take(r"\}"):
            key = self.need(r"(\w+)=", "`key=`")[1]
            out[key] = self.attr()
            self.take(",")
        return out

    def attr(self) -> Any:
        if m := self.take(r'"(?:[^"\\]|\\.)*"'):
            return json.loads(m[0])
        if m := self.take(r"-?(?:inf|nan)\b|-?\d+\.\d*(?:e[+-]?\d+)?|-?\d+e[+-]?\d+"):
            return math.nan if m[0].endswith("nan") else float(m[0])
        if m := self.take(r"-?\d+\b"):
            return int(m[0])
        if m := self.take(r"(?:true|false|none)\b"):
            return {"true": True, "false": False, "none": None}[m[0]]
        if m := self.take(r"#\w+"):
            return self.layouts[m[0]]
        if m := self.take(r"[(\[]"):
            items = []
            while not self.take(r"[)\]]"):
                items.append(self.attr())
                self.take(",")
            return tuple(items) if m[0] == "(" else items
        if self.take(r"\{\}"):
            return {}
        if (inner := self.attrs()) is not None:
            return inner
        return self.type()

    def dims(self) -> tuple[int, ...]:
        return tuple(map(int, self.need(r"\d+(?:x\d+)*", "sizes such as 64x32")[0].split("x")))

    def dtype(self) -> DType:
        name = self.need(r"[a-z]\w*", "a type")[0]
        if name not in DTYPES:
            raise self.fail(f"no type is called {name}")
        return DTYPES[name]

    def type(self) -> Type:
        if self.take(r"desc<"):
            elem = self.dtype()
            self.need(r"\[", "`[`")
            block = self.dims()
            self.need(r"\]", "`]`")
            tma = self.take(r",\s*no_tma") is None
            self.need(">", "`>`")
            return Desc(elem, block, tma)
        if self.take(r"buffer<"):
            ring = self.need(r"(?:(\d+)x|view )", "a number of slots or `view`")
            elem = self.dtype()
            self.need(r"\[", "`[`")
            shape = self.dims()
            swizzle = int(self.need(r"\], swizzle=(\d+), order=", "swizzle and order")[1])
            order = self.dims()
            self.need(">", "`>`")
            return Buffer(shape, elem, int(ring[1] or 0), swizzle, order)
        if m := self.take(r"barrier<(\d+), count=(\d+)>"):
            return Barrier(int(m[1]), int(m[2]))
        if self.take(r"pending<"):
            tile = self.type()
            self.need(">", "`>`")
            if not isinstance(tile, Tile):
                raise self.fail("expected a tile inside pending<>")
            return Pending(tile)
        elem2: Scalar
        if self.take(r"ptr<"):
            inner = self.type()
            if not isinstance(inner, (DType, Ptr)):
                raise self.fail("expected an element type inside ptr<>")
            elem2 = Ptr(inner)
            self.need(">", "`>`")
        else:
            elem2 = self.dtype()
        if not self.s.startswith("[", self.pos):
            return elem2
        self.need(r"\[", "`[`")
        shape = self.dims()
        layout = None
        if m := self.take(r",\s*(#\w+)"):
            if m[1] not in self.layouts:
                raise self.fail(f"layout {m[1]} is not listed")
            layout = self.layouts[m[1]]
        self.need(r"\]", "`]`")
        return Tile(shape, elem2, layout)


def _base(printed: str) -> str:
    name = printed.split(".")[0]
    return "" if name.isdigit() else name
