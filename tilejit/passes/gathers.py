"""Gathers from tiles of very many elements: what is gathered from is computed for the elements that are asked for."""
from __future__ import annotations

from collections.abc import Sequence

from tilejit.ir import Block, Builder, Function, Op, Value, clone_block, listed
from tilejit.ir.ahead import argument_of, is_volatile, may_alias
from tilejit.ir.core import beside, replace
from tilejit.ir.types import Tile, elem_of, int32, shape_of


def pull(fn: Function, gather: Op) -> bool:
    """Put in a gather's place its source's own ops, of the gathered elements. False where those cannot be had."""
    index, x = gather.operands
    axis, shape = gather.attrs["axis"], shape_of(index.type)
    region = Block([])  # what is built is kept only if all of it can be
    b = Builder(region, loc=gather.loc)
    at = b("cast", b("and", index, b.const(shape_of(x.type)[axis] - 1, index.type)), dtype=int32)
    found = _Elements(gather, b, shape).of(x, [at if d == axis else _own(b, shape, d) for d in range(len(shape))])
    if found is None:
        return False
    place = beside(gather)
    for op in region.ops:
        place.insert(op)
    found.name = gather.result.name
    replace(fn.body, {gather.result: found})
    fn.say("gathered", f"gather at {gather.place}: elements of {x.tile} are computed again where they are asked for",
           gather.place)
    return True


def _own(b: Builder, shape: Sequence[int], d: int) -> Value:
    """The coordinate along a dimension of every element of a tile."""
    v = b("arange", start=0, end=shape[d])
    for other in range(len(shape)):
        v = b("expand_dims", v, axis=other) if other != d else v
    return b("broadcast", v, shape=tuple(shape)) if len(shape) > 1 else v


class _Elements:
    """Elements of the tiles that a gather's source is made of, as a tile of the gather's shape."""

    def __init__(self, gather: Op, b: Builder, shape: tuple[int, ...]):
        self.gather, self.b, self.shape = gather, b, shape
        self.made: dict[tuple[Value, ...], Value | None] = {}

    def of(self, v: Value, at: Sequence[Value]) -> Value | None:
        """The elements of v at those coordinates; None where they are not to be had."""
        key = (v, *at)
        if key not in self.made:
            self.made[key] = self.element(v, at) if isinstance(v.type, Tile) else v
        return self.made[key]

    def element(self, v: Value, at: Sequence[Value]) -> Value | None:
        op, b = v.op, self.b
        if not isinstance(op, Op):
            return None
        if op.name == "const":
            return b("const", value=op.attrs["value"], type=Tile(self.shape, elem_of(v.type)))
        if op.name == "splat":
            return b("splat", op.operands[0], shape=self.shape)
        if op.name == "arange":
            return b("add", at[0], b.const(op.attrs["start"], at[0].type))
        if op.name == "expand_dims":
            return self.of(op.operands[0], [x for d, x in enumerate(at) if d != op.attrs["axis"]])
        if op.name == "broadcast":
            return self.of(op.operands[0], [b.const(0, x.type) if n == 1 else x
                                            for x, n in zip(at, shape_of(op.operands[0].type))])
        if op.name == "trans":
            order = op.attrs["order"]
            return self.of(op.operands[0], [at[order.index(d)] for d in range(len(order))])
        if op.name == "xor_shuffle":
            axis = op.attrs["axis"]
            other = b("xor", at[axis], b.const(op.attrs["mask"], at[axis].type))
            return self.of(op.operands[0], [*at[:axis], other, *at[axis + 1:]])
        same = op.define.pure and op.define.layout == "same"
        if not (same or op.name == "load" and self.again(op)) or len(op.results) != 1:
            return None
        operands = [self.of(x, at) for x in op.operands]
        if None in operands:
            return None
        return b.op(op.name, *operands, regions=[clone_block(r, {}) for r in op.regions],  # type: ignore[arg-type]
                    **op.attrs).result

    def again(self, load: Op) -> bool:
        """Whether a load gives the same where the gather is."""
        block = self.gather.block
        if load.parent is not block or is_volatile(load):
            return False
        between = [x for op in block.ops[block.ops.index(load):block.ops.index(self.gather)] for x in (op, *(
            y for r in op.regions for y in listed(r)))]
        return not any("write" in x.define.effects and may_alias(argument_of(load.operands[0]), x)
                       or "sync" in x.define.effects for x in between)
