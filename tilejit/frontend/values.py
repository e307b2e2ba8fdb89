"""What the names of a kernel stand for, and how values agree where paths of a program meet."""
from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from tilejit.errors import CompilationError
from tilejit.ir.types import DType
from tilejit.language.semantics import literal_type, promote, to_tensor, unwrap
from tilejit.language.tensor import Compound, KernelBuilder, tensor
from tilejit.language.variables import is_held
from tilejit.records import dataclass

LEAF = (tensor, bool, int, float)


@dataclass(frozen=True)
class Undefined:
    """Not every path gives the name a value: reading it is an error, `'name' {reason}`."""

    reason: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exit:
    """How statements end early; flags are constants or scalar int1 tensors."""

    broke: Any = False
    returned: Any = False
    value: Any = None


@dataclass(frozen=True)
class Slot:
    index: int


@dataclass(frozen=True)
class Made:
    like: Compound
    parts: tuple[Any, ...]


def returns(body: Sequence[ast.stmt]) -> bool:
    return any(ast.Return in _exits(stmt) for stmt in body)


def leaves_early(body: Sequence[ast.stmt]) -> bool:
    return any(map(_exits, body))


def breaks(body: Sequence[ast.stmt]) -> bool:
    return any(_exits(stmt) - {ast.Continue} for stmt in body)


@lru_cache(maxsize=4096)
def _exits(node: ast.AST) -> frozenset[type]:
    if isinstance(node, (ast.Return, ast.Break, ast.Continue)):
        return frozenset((type(node),))
    inner = frozenset[type]().union(*map(_exits, ast.iter_child_nodes(node)))
    return inner & {ast.Return} if isinstance(node, (ast.For, ast.While)) else inner


def assigned(body: Sequence[ast.AST]) -> list[str]:
    return list(dict.fromkeys(name for node in body for name in _stored(node)))


@lru_cache(maxsize=4096)
def _stored(node: ast.AST) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_targets(node, frozenset())))


def _targets(node: ast.AST, own: frozenset[str]) -> Iterator[str]:
    """Names stored to in a tree; `own`: those of comprehensions around it."""
    if isinstance(node, ast.ListComp):
        own |= {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id not in own:
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from _targets(child, own)


def retuple(like: Any, items: list[Any]) -> Any:
    return type(like)(*items) if hasattr(type(like), "_fields") else tuple(items)


def same_tuple_type(a: Any, c: Any) -> bool:
    return isinstance(a, tuple) and type(a) is type(c) and len(a) == len(c)


def identical(a: Any, c: Any) -> bool:
    a, c = unwrap(a), unwrap(c)
    if isinstance(a, tensor) or isinstance(c, tensor):
        return isinstance(a, tensor) and isinstance(c, tensor) and a.value is c.value
    if isinstance(a, Compound) and isinstance(c, Compound):
        return a.same(c)
    if same_tuple_type(a, c):
        return all(map(identical, a, c))
    if isinstance(a, (int, float)):  # not ==: -0.0, 0.0 and nan
        return type(a) is type(c) and repr(a) == repr(c)
    return a is c or type(a) is type(c) and bool(a == c)


Path = tuple[Any, ...]


class Opened(set[Path]):
    """Values taken apart where a loop carries them: parts stay what they are until an iteration changes them."""

    def tree(self, b: KernelBuilder, value: Any, path: Path, leaves: list[tensor], inside: bool = False) -> Any:
        value = unwrap(value)
        if isinstance(value, tuple):
            return retuple(value, [self.tree(b, v, (*path, i), leaves, inside) for i, v in enumerate(value)])
        if isinstance(value, Compound) and (not value.whole or path in self):
            inside = inside or value.whole
            return Made(value, tuple(self.tree(b, value.part(b, v, i) if (*path, i) in self else v, (*path, i), leaves,
                                               inside) for i, v in enumerate(value.parts(b))))
        if not isinstance(value, LEAF) or inside and path not in self:
            return value
        leaves.append(to_tensor(b, value))
        return Slot(len(leaves) - 1)

    def match(self, b: KernelBuilder, tree: Any, value: Any, path: Path, found: dict[int, Any]) -> bool:
        """Put a value's leaves into `found`. False where it is built differently, for which `opened` may help."""
        value = unwrap(value)
        if isinstance(tree, Slot):
            found[tree.index] = value
            return isinstance(value, LEAF)
        if isinstance(tree, Made):
            return isinstance(value, Compound) and tree.like.alike(value) and all(
                [self.match(b, t, v, (*path, i), found) for i, (t, v) in enumerate(zip(tree.parts, value.parts(b)))])
        if isinstance(tree, tuple):
            return same_tuple_type(tree, value) and all(
                [self.match(b, t, v, (*path, i), found) for i, (t, v) in enumerate(zip(tree, value))])
        if identical(tree, value):
            return True
        if isinstance(tree, LEAF) and isinstance(value, LEAF) or \
                isinstance(tree, Compound) and isinstance(value, Compound) and tree.alike(value):
            self.add(path)
        return False


def fill(b: KernelBuilder, tree: Any, leaves: list[tensor]) -> Any:
    if isinstance(tree, tuple):
        return retuple(tree, [fill(b, t, leaves) for t in tree])
    if isinstance(tree, Made):
        return tree.like.remade(b, [fill(b, t, leaves) for t in tree.parts])
    return leaves[tree.index] if isinstance(tree, Slot) else tree


def pair(a: Any, c: Any, pairs: list[tuple[Any, Any]], first: int, open_a: Callable[[Compound], list[Any]],
         open_c: Callable[[Compound], list[Any]]) -> Any:
    """One tree for two values."""
    a, c = unwrap(a), unwrap(c)
    if identical(a, c):
        return a
    if same_tuple_type(a, c):
        return retuple(a, [pair(x, y, pairs, first, open_a, open_c) for x, y in zip(a, c)])
    if isinstance(a, Compound) and isinstance(c, Compound) and a.alike(c):
        return Made(a, tuple(pair(x, y, pairs, first, open_a, open_c) for x, y in zip(open_a(a), open_c(c))))
    if not (isinstance(a, LEAF) and isinstance(c, LEAF)):
        raise CompilationError(f"is {describe(a)} after one branch and {describe(c)} after the other")
    pairs.append((a, c))
    return Slot(first + len(pairs) - 1)


def fits(number: bool | int | float, elem: DType) -> bool:
    """Whether a number may become a constant of an element type: bool < int < float, never down."""
    if isinstance(number, bool):
        return True
    return elem.is_float or isinstance(number, int) and elem.family != "bool"


def number_type(x: bool | int | float, y: bool | int | float) -> DType:
    return promote(literal_type(x), True, literal_type(y), True)


def contains_tensor(value: Any) -> bool:
    value = unwrap(value)
    return isinstance(value, (tensor, Compound)) \
        or isinstance(value, (tuple, list)) and any(map(contains_tensor, value))


def describe(value: Any) -> str:
    value = unwrap(value)
    if isinstance(value, tensor):
        return repr(value)
    kind = type(value).__mro__[1 if is_held(value) else 0]
    return "None" if value is None else f"{kind.__name__} {value!r}"
