"""Descriptor accesses merge the leading dimensions of their blocks where the kernel does."""
from __future__ import annotations

from math import prod

from tilejit.ir import Function, Op, Value, erase, listed, replace, uses
from tilejit.ir.types import shape_of


def flatten(fn: Function) -> Function:
    table = uses(fn.body)
    mapping: dict[Value, Value] = {}
    gone: set[Op] = set()
    for op in listed(fn.body):
        if op.name == "desc_load":
            users = [user for user, _ in table.get(op.result, ())]
            shapes = {shape_of(user.result.type) for user in users if user.name == "reshape"}
            t = op.result.tile
            if len(shapes) != 1 or any(user.name != "reshape" for user in users):
                continue
            (shape,) = shapes
            if not merges_leading(t.shape, shape):
                continue
            op.attrs["shape"] = shape
            op.result.type = users[0].result.type
            op.result.name = users[0].result.name or op.result.name
            mapping.update((user.result, op.result) for user in users)
            gone.update(users)
        elif "tma" in op.define.traits:
            maker = op.operands[1].op
            if isinstance(maker, Op) and maker.name in ("reshape", "expand_dims") \
                    and merges_leading(shape_of(op.operands[1].type), shape_of(maker.operands[0].type)):
                op.operands[1] = maker.operands[0]
    replace(fn.body, mapping)
    erase(gone, fn.body)
    return fn


def merges_leading(block: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether `shape` is `block` with its first dimensions merged, or (of size 1) left out; the innermost one stays."""
    return 0 < len(shape) < len(block) and block[len(block) - len(shape) + 1:] == shape[1:] \
        and prod(block) == prod(shape) and shape[-1] == block[-1]
