"""What the names of a kernel stand for, and how values agree where paths of a program meet.

A value is a number or a `tensor` (a leaf), a tuple of values, or something that exists at compile time only: None,
a string, a dtype, a descriptor, a function. `if` results and loop-carried values are made of leaves; everything
else must be the same on every path.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tilejit.errors import CompilationError
from tilejit.ir.types import DType
from tilejit.language.semantics import literal_type, promote, unwrap
from tilejit.language.tensor import tensor

LEAF = (tensor, bool, int, float)


@dataclass(frozen=True)
class Undefined:
    """What a name is bound to where not every path gives it a value: reading it is an error, `'name' {reason}`."""

    reason: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Returned:
    """The function has returned `value` on this path."""

    value: Any


@dataclass(frozen=True)
class Slot:
    """The place of a leaf in a value whose leaves were taken out."""

    index: int


def returns(body: list[ast.stmt]) -> bool:
    """True if a statement may return."""
    return any(map(_returns, body))


@lru_cache(maxsize=4096)
def _returns(stmt: ast.stmt) -> bool:
    return any(isinstance(node, ast.Return) for node in ast.walk(stmt))


def assigned(body: Sequence[ast.AST]) -> list[str]:
    """Names that statements or expressions may bind, in order of appearance."""
    return list(dict.fromkeys(name for node in body for name in _stored(node)))


@lru_cache(maxsize=4096)
def _stored(node: ast.AST) -> tuple[str, ...]:
    """`assigned` of one tree; nested loops and branches ask again and again."""
    return tuple(dict.fromkeys(_targets(node, frozenset())))


def _targets(node: ast.AST, own: frozenset[str]) -> Iterator[str]:
    """Names stored to in a tree; `own` are those of the comprehensions around it, which are gone after them."""
    if isinstance(node, ast.ListComp):
        own |= {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id not in own:
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from _targets(child, own)


def retuple(like: Any, items: list[Any]) -> Any:
    """A tuple of the type of `like` (a named tuple's, say)."""
    return type(like)(*items) if hasattr(type(like), "_fields") else tuple(items)


def same_tuple_type(a: Any, c: Any) -> bool:
    """True for two tuples of one type and length."""
    return isinstance(a, tuple) and type(a) is type(c) and len(a) == len(c)


def identical(a: Any, c: Any) -> bool:
    """True if two values are one and the same: one tensor, or equal constants of one type."""
    a, c = unwrap(a), unwrap(c)
    if isinstance(a, tensor) or isinstance(c, tensor):
        return isinstance(a, tensor) and isinstance(c, tensor) and a.value is c.value
    if same_tuple_type(a, c):
        return all(map(identical, a, c))
    if isinstance(a, (int, float)):  # not ==: -0.0, 0.0 and nan
        return type(a) is type(c) and repr(a) == repr(c)
    return a is c or type(a) is type(c) and bool(a == c)


def take_leaves(value: Any, leaves: list[Any]) -> Any:
    """The value with a Slot for each leaf; the leaves are appended to `leaves`."""
    value = unwrap(value)
    if isinstance(value, tuple):
        return retuple(value, [take_leaves(v, leaves) for v in value])
    if not isinstance(value, LEAF):
        return value
    leaves.append(value)
    return Slot(len(leaves) - 1)


def fill(tree: Any, leaves: list[tensor]) -> Any:
    """The value of a tree, with its leaves put back."""
    if isinstance(tree, tuple):
        return retuple(tree, [fill(t, leaves) for t in tree])
    return leaves[tree.index] if isinstance(tree, Slot) else tree


def match(tree: Any, value: Any) -> dict[int, Any] | None:
    """The leaves of a value by their slots in a tree, or None where the value is built differently."""
    value = unwrap(value)
    if isinstance(tree, Slot):
        return {tree.index: value} if isinstance(value, LEAF) else None
    if not isinstance(tree, tuple):
        return {} if identical(tree, value) else None
    if not same_tuple_type(tree, value):
        return None
    found: dict[int, Any] = {}
    for t, v in zip(tree, value):
        inner = match(t, v)
        if inner is None:
            return None
        found |= inner
    return found


def pair(a: Any, c: Any, pairs: list[tuple[Any, Any]], first: int) -> Any:
    """One tree for two values: leaves that differ become Slots (from number `first` on), appended to `pairs`.

    Raises CompilationError where the two are built differently."""
    a, c = unwrap(a), unwrap(c)
    if identical(a, c):
        return a
    if same_tuple_type(a, c):
        return retuple(a, [pair(x, y, pairs, first) for x, y in zip(a, c)])
    if not (isinstance(a, LEAF) and isinstance(c, LEAF)):
        raise CompilationError(f"is {describe(a)} after one branch and {describe(c)} after the other")
    pairs.append((a, c))
    return Slot(first + len(pairs) - 1)


def fits(number: bool | int | float, elem: DType) -> bool:
    """True if a number may become a constant of an element type: bool < int < float, never down."""
    if isinstance(number, bool):
        return True
    return elem.is_float or isinstance(number, int) and elem.kind != "bool"


def number_type(x: bool | int | float, y: bool | int | float) -> DType:
    """The type in which two numbers meet."""
    return promote(literal_type(x), True, literal_type(y), True)


def contains_tensor(value: Any) -> bool:
    """True for a tensor and for a tuple with a tensor inside."""
    value = unwrap(value)
    return isinstance(value, tensor) or isinstance(value, (tuple, list)) and any(map(contains_tensor, value))


def describe(value: Any) -> str:
    """A value in an error message."""
    value = unwrap(value)
    if isinstance(value, tensor):
        return repr(value)
    return "None" if value is None else f"{type(value).__name__} {value!r}"
