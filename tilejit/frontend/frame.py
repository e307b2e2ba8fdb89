"""The state of one function while it is built."""
from __future__ import annotations

import ast
import types
from collections.abc import Callable
from typing import Any

from tilejit.errors import CompilationError, Loc, close_matches
from tilejit.frontend.source import KernelSource, is_constant
from tilejit.frontend.values import Exit, Opened, Undefined, describe
from tilejit.ir import Block
from tilejit.language.semantics import unwrap
from tilejit.language.tensor import KernelBuilder, constexpr, tensor


class Frame:
    """The classes on top of it (`Walker` last) add expressions and statements."""

    def __init__(self, source: KernelSource, b: KernelBuilder, env: dict[str, Any], call_site: Loc | None,
                 stack: tuple[KernelSource, ...] = ()):
        self.source, self.b, self.env, self.call_site = source, b, env, call_site
        self.stack = (*stack, source)
        self.constants: set[str] = set()  # names annotated as tl.constexpr before they have a value
        self.loop_depth = 0
        self.opened: dict[int, Opened] = {}  # of each loop, by its node
        self.returned = False  # whether an iteration of the innermost loop may return
        self.result: Any = None  # and what

    def expr(self, node: ast.expr) -> Any:
        raise NotImplementedError

    def condition(self, node: ast.expr) -> Any:
        raise NotImplementedError

    def items(self, nodes: list[ast.expr]) -> list[Any]:
        raise NotImplementedError

    def run(self, body: list[ast.stmt]) -> Exit | None:
        raise NotImplementedError

    # -- errors and locations --
    def loc(self, node: ast.AST) -> Loc:
        source = self.source
        if not isinstance(node, (ast.expr, ast.stmt)):
            return Loc(source.file, source.line, 0, 1, source.name, self.call_site)
        end = node.end_col_offset if node.end_lineno == node.lineno else None
        return Loc(source.file, node.lineno, node.col_offset, end or 10 ** 6, source.name, self.call_site)

    def fail(self, node: ast.AST, message: str, *notes: str) -> CompilationError:
        return CompilationError(message, self.loc(node), notes)

    # -- blocks --
    def in_block(self, block: Block, run: Callable[[], Any]) -> Any:
        outer, self.b.block = self.b.block, block
        try:
            return run()
        finally:
            self.b.block = outer

    # -- names --
    def name(self, name: str, node: ast.AST) -> Any:
        if name in self.env:
            value = self.env[name]
            if isinstance(value, Undefined):
                raise self.fail(node, f"{name!r} {value.reason}", *value.notes)
            return value
        if name in self.source.locals:
            raise self.fail(node, f"{name!r} has no value here (is not defined): the "
                                   "function binds it on another path or further down")
        try:
            value = self.source.lookup(name)
        except KeyError:
            near = close_matches(name, [*self.env, *self.source.fn.__globals__], 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise self.fail(node, f"{name!r} is not defined{hint}") from None
        if isinstance(value, constexpr):
            return value if callable(value.value) else value.value  # a function that is called on constants
        constant = is_constant(value)
        if isinstance(value, types.ModuleType) or callable(value) or constant and self.source.readable(value):
            return value
        which = "constants that are a tl.constexpr" if constant else "constants"
        raise self.fail(node, f"{name!r} is a {type(value).__name__} outside the kernel; only {which} may be "
                              "captured: pass it as an argument, or make it a tl.constexpr",
                        f"Cannot access global variable {name} from within a kernel")

    def assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            if isinstance(value, tensor) and not value.value.name:
                value.value.name = target.id
            self.env[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target, value)
        else:
            raise self.fail(target, "only variables can be assigned: tiles have no item or attribute assignment; "
                                    "use tl.where or tl.store")

    def _unpack(self, target: ast.Tuple | ast.List, value: Any) -> None:
        names, items = target.elts, unwrap(value)
        if not isinstance(items, (tuple, list, range)):
            raise self.fail(target, f"cannot unpack {describe(value)} into {len(names)} names")
        items = list(items)
        star = next((i for i, t in enumerate(names) if isinstance(t, ast.Starred)), None)
        if len(items) < len(names) - (star is not None):
            raise self.fail(target, f"cannot unpack {len(items)} values into {len(names)} names: not enough values to "
                                    f"unpack (expected {len(names)}, got {len(items)})")
        if len(items) > len(names) and star is None:  # Triton passes over the others
            self.b.note("unpacked", f"{len(items)} values are unpacked into {len(names)} names: the last are not used")
        if star is not None:
            stop = len(items) - (len(names) - star - 1)
            items[star:stop] = [tuple(items[star:stop])]
        for t, v in zip(names, items):
            self.assign(t.value if isinstance(t, ast.Starred) else t, v)
