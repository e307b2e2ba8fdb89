"""Copies of cheap values: made so that each use may have its own layout, merged where they end up equal."""
from __future__ import annotations

from tilejit.ir import Block, Function, Op, Value, clone_op, uses, walk
from tilejit.ir.types import Tile

#: A value that takes more ops than this to compute anew is moved between layouts instead.
_MOST_OPS = 48


def split_cheap(fn: Function) -> None:
    """Clone cheap tile ops (ranges, splats, arithmetic on them) until each has one user."""
    size: dict[Op, int] = {}          # ops to compute the value anew
    for op in walk(fn.body):
        if len(op.results) != 1 or not isinstance(op.results[0].type, Tile) or not op.define.pure \
                or "cheap" not in op.define.traits:
            continue
        tiles = [v.op for v in op.operands if isinstance(v.type, Tile)]
        if all(isinstance(x, Op) and x in size for x in tiles):
            total = 1 + sum(size[x] for x in tiles)  # type: ignore[index, misc]
            if total <= _MOST_OPS:
                size[op] = total
    table = uses(fn.body)
    for op in reversed(list(walk(fn.body))):
        if op not in size:
            continue
        users = list(dict.fromkeys(user for user, _ in table.get(op.result, ())))
        assert op.parent is not None
        at = op.parent.ops.index(op)
        for user in users[1:]:
            copy = clone_op(op, {})
            copy.parent = op.parent
            op.parent.ops.insert(at, copy)
            for i, v in enumerate(user.operands):
                if v is op.result:
                    user.operands[i] = copy.result
            for i, v in enumerate(copy.operands):
                table[v].append((copy, i))


def merge_copies(block: Block, seen: dict[tuple, Value]) -> None:
    """Give equal pure ops (same operands, attributes and layouts) one result; inner blocks see outer ones."""
    mapping: dict[Value, Value] = {}
    kept: list[Op] = []
    for op in block.ops:
        op.operands = [mapping.get(v, v) for v in op.operands]
        if op.define.pure and not op.regions and len(op.results) == 1:
            key = (op.name, tuple(op.operands), repr(sorted(op.attrs.items(), key=lambda kv: kv[0])),
                   op.result.type)
            if key in seen:
                mapping[op.result] = seen[key]
                continue
            seen[key] = op.result
        for region in op.regions:
            for inner in walk(region):
                inner.operands = [mapping.get(v, v) for v in inner.operands]
            merge_copies(region, dict(seen))
        kept.append(op)
    block.ops = kept
