from __future__ import annotations

import ast
import types
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from tilejit.frontend.source import KernelSource, is_constant
from tilejit.language.aggregates import Aggregate
from tilejit.records import dataclass


@dataclass(frozen=True)
class Capture:
    """As the body names it (`SCALE`, `config.tiles.M`), and the namespace that holds it under the last of these names
    (None for one of Python's own)."""

    name: str
    table: Mapping[str, Any] | None
    value: Any

    @property
    def key(self) -> str:
        return self.name.rsplit(".", 1)[-1]

    @cached_property
    def sources(self) -> list[KernelSource]:
        if isinstance(self.value, type):
            members = [m for c in self.value.__mro__ if issubclass(c, Aggregate) and c is not Aggregate
                       for m in vars(c).values()]
            members = [m.__func__ if isinstance(m, staticmethod) else m for m in members]
            return [KernelSource(m) if isinstance(m, types.FunctionType) else m.source for m in members
                    if isinstance(m, types.FunctionType) or isinstance(getattr(m, "source", None), KernelSource)]
        found = getattr(self.value, "source", None)
        return [found] if isinstance(found, KernelSource) else []


def captures(source: KernelSource) -> list[Capture]:
    found = {one.name: one for name in read_names(source) if (one := follow(source, name.split("."))) is not None}
    return [found[n] for n in sorted(found)]


def read_names(source: KernelSource) -> list[str]:
    found = dict.fromkeys(".".join(names) for statement in source.tree.body for names in _chains(statement))
    return [name for name in found if name.split(".")[0] not in source.locals]


def reached(source: KernelSource) -> list[tuple[KernelSource, list[Capture]]]:
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


def _chains(node: ast.AST) -> Iterator[tuple[str, ...]]:
    names: list[str] = []
    inner = node
    while isinstance(inner, ast.Attribute):
        names.append(inner.attr)
        inner = inner.value
    if isinstance(inner, ast.Name):
        if isinstance(inner.ctx, ast.Load):
            yield (inner.id, *reversed(names))
        return
    for child in ast.iter_child_nodes(inner):
        yield from _chains(child)


def follow(source: KernelSource, names: list[str]) -> Capture | None:
    try:
        value = source.lookup(names[0])
    except KeyError:
        return None
    table: Mapping[str, Any] | None = source.fn.__globals__ if source.is_global(names[0]) else \
        source.enclosing if names[0] in source.enclosing else None
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
