"""What a kernel reads from its surroundings: constants and kernels, by name or through modules and classes."""
from __future__ import annotations

import ast
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilejit.frontend.source import KernelSource, is_constant
from tilejit.language.aggregates import Aggregate


@dataclass(frozen=True)
class Capture:
    """A constant or a kernel as the body names it (`SCALE`, `config.tiles.M`), and the namespace that holds it under
    the last of these names (None for a variable of an enclosing function)."""

    name: str
    table: Mapping[str, Any] | None
    value: Any

    @property
    def key(self) -> str:
        """Its name in `table`."""
        return self.name.rsplit(".", 1)[-1]

    @cached_property
    def sources(self) -> list[KernelSource]:
        """The source of a captured kernel, of all methods of an aggregate class; none of a constant."""
        if isinstance(self.value, type):
            members = [m for c in self.value.__mro__ if issubclass(c, Aggregate) and c is not Aggregate
                       for m in vars(c).values()]
            members = [m.__func__ if isinstance(m, staticmethod) else m for m in members]
            return [KernelSource(m) if isinstance(m, types.FunctionType) else m.source for m in members
                    if isinstance(m, types.FunctionType) or isinstance(getattr(m, "source", None), KernelSource)]
        found = getattr(self.value, "source", None)
        return [found] if isinstance(found, KernelSource) else []


def captures(source: KernelSource) -> list[Capture]:
    """What one function reads, each thing once, sorted by name."""
    found: dict[str, Capture] = {}
    for node in (n for statement in source.tree.body for n in ast.walk(statement)):
        names = list(_chain(node))
        if names and names[0] not in source.locals and ".".join(names) not in found:
            one = _follow(source, names)
            if one is not None:
                found[one.name] = one
    return [found[n] for n in sorted(found)]


def reached(source: KernelSource) -> list[tuple[KernelSource, list[Capture]]]:
    """A kernel and every kernel that it can call, each once, with what they read."""
    out: list[tuple[KernelSource, list[Capture]]] = []
    seen: set[int] = set()

    def visit(s: KernelSource) -> None:
        if id(s) in seen:
            return
        seen.add(id(s))
        out.append((s, captures(s)))
        for c in out[-1][1]:
            for found in c.sources:
                visit(found)

    visit(source)
    return out


def _chain(node: ast.AST) -> Iterator[str]:
    """The names of `a.b.c`; nothing for any other node."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.Attribute):
        before = list(_chain(node.value))
        if before:
            yield from (*before, node.attr)


def _follow(source: KernelSource, names: list[str]) -> Capture | None:
    """Walk a chain of names through modules and classes to a constant or a kernel, if it leads to one."""
    try:
        value = source.lookup(names[0])
    except KeyError:
        return None
    table: Mapping[str, Any] | None = source.fn.__globals__ if source.is_global(names[0]) else None
    for i, name in enumerate(names):
        if i:
            if not isinstance(value, (types.ModuleType, type)) or not hasattr(value, name):
                return None
            owners = value.__mro__ if isinstance(value, type) else (value,)
            table = next((vars(o) for o in owners if name in vars(o)), None)
            value = getattr(value, name)
        found = Capture(".".join(names[:i + 1]), table, value)
        if found.sources or is_constant(value):
            return found
    return None
