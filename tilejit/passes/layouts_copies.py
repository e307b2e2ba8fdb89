"""Copies of cheap values: each use may have its own layout; merged where they end up equal."""
from __future__ import annotations

from tilejit.ir import Block, Function, Op, Value, clone_op, computes, listed, uses
from tilejit.ir.types import Tile

#: A value that takes more ops than this to compute anew is moved between layouts instead.
_MOST_OPS = 48


def split_cheap(fn: Function) -> None:
    size: dict[Op, int] = {}  # ops to compute the value anew
    for op in listed(fn.body):
        if len(op.results) != 1 or not isinstance(op.results[0].type, Tile) or not op.define.pure \
                or "cheap" not in op.define.traits:
            continue
        tiles = [v.op for v in op.operands if isinstance(v.type, Tile)]
        if all(isinstance(x, Op) and x in size for x in tiles):
            total = 1 + sum(size[x] for x in tiles)  # type: ignore[index, misc]
            if total <= _MOST_OPS:
                size[op] = total
    _split(fn.body, size, uses(fn.body))


def _split(block: Block, size: dict[Op, int], table: dict[Value, list[tuple[Op, int]]]) -> None:
    out: list[Op] = []
    for op in reversed(block.ops):
        for region in reversed(op.regions):
            _split(region, size, table)
        out.append(op)
        if op not in size:
            continue
        users = list(dict.fromkeys(user for user, _ in table.get(op.result, ())))
        for user in users[1:]:
            copy = clone_op(op, {})
            copy.parent = block
            out.append(copy)
            for i, v in enumerate(user.operands):
                if v is op.result:
                    user.operands[i] = copy.result
            for i, v in enumerate(copy.operands):
                table[v].append((copy, i))
    block.ops = out[::-1]


def merge_copies(block: Block, seen: dict[tuple, Value], mapping: dict[Value, Value]) -> None:
    """Give equal pure ops (same operands, attributes and layouts) one result; inner blocks see outer ones."""
    kept: list[Op] = []
    here: list[tuple] = []
    for op in block.ops:
        if not mapping.keys().isdisjoint(op.operands):
            op.operands = [mapping.get(v, v) for v in op.operands]
        if op.define.pure and not op.regions and len(op.results) == 1:
            key = computes(op)
            result = op.results[0]
            before = seen.setdefault(key, result)
            if before is not result:
                mapping[result] = before
                continue
            here.append(key)
        for region in op.regions:
            merge_copies(region, seen, mapping)
        kept.append(op)
    block.ops = kept
    for key in here:
        del seen[key]
