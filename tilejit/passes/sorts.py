"""Sorts of very many elements go through memory that each thread has for itself, a chunk at a time."""
from __future__ import annotations

from collections.abc import Callable

from tilejit.ir import Block, Builder, Function, Op, Value
from tilejit.ir.core import beside, erase, replace
from tilejit.ir.types import Tile, elem_of, int32, shape_of
from tilejit.passes.parts import Group


def through_memory(fn: Function, op: Op, elements: int) -> tuple[str, Op | None]:
    """Sort chunks of so many elements: why that cannot be, or the op that stands for the sorted tile."""
    assert op.parent is not None
    x, group = op.operands[0], Group(fn, op.parent, [op])
    problem = group.problem(elements, (0,))
    if problem:
        return problem, None
    size, b = shape_of(x.type)[0] // group.count, beside(op)
    stack = b("stack", slots=group.count, type=Tile((size,), elem_of(x.type)))
    _Network(op, stack, b).write(group)
    whole = b.op("stacked", stack, slots=group.count)
    whole.result.name = op.result.name
    replace(fn.body, {op.result: whole.result})
    erase({op}, fn.body)
    return "", whole


class _Network:
    """The loops of one sort, over chunks in a stack."""

    def __init__(self, op: Op, stack: Value, b: Builder):
        self.stack, self.b, self.falling = stack, b, bool(op.attrs["falling"])
        self.root, self.bitonic, self.size = op, op.attrs["bitonic"], shape_of(stack.type)[0]

    def write(self, group: Group) -> None:
        x, count, b = self.root.operands[0], group.count, self.b
        del group.members[self.root]

        def first(which: Value, b: Builder) -> None:
            part = group.parts(which, b).get((x, (0, 0)), x)
            self.keep(b, which, part if self.bitonic else self.sorted(b, part, False))

        def finish(level: Value, b: Builder) -> None:
            """Sort bitonic runs of 2 ** level chunks."""
            last = b("sub", level, b.const(1, int32))
            self.loop(b, level, lambda i, b: self.exchange(b, count, b("sub", last, i), False))
            self.loop(b, count, lambda which, b: self.keep(b, which, self.sorted(b, self.kept(b, which), True)))

        def merge(level: Value, b: Builder) -> None:
            self.exchange(b, count, level, True)
            finish(level, b)

        self.loop(b, count, first)
        levels = count.bit_length() - 1
        if self.bitonic:
            finish(b.const(levels, int32), b)
        else:
            self.loop(b, levels, merge)

    def loop(self, b: Builder, count: int | Value, body: Callable[[Value, Builder], None]) -> None:
        region = Block([int32], ["chunk"])
        inner = Builder(region, loc=self.root.loc)
        body(region.args[0], inner)
        inner.loc = self.root.loc
        inner.op("yield")
        end = b.const(count, int32) if isinstance(count, int) else count
        b.op("for", b.const(0, int32), end, b.const(1, int32), regions=[region])

    def exchange(self, b: Builder, count: int, level: Value, mirrored: bool) -> None:
        """The lesser of each pair goes to the first of two chunks that are 2 ** level apart, or mirrored in as many
        pairs."""
        step = b("shl", b.const(1, int32), level)
        below = b("sub", step, b.const(1, int32))

        def pair(which: Value, b: Builder) -> None:
            inside = b("and", which, below)
            one = b("sub", b("add", which, which), inside)
            two = b("add", one, step)
            if mirrored:  # chunk i of a run with the one that is i from the end
                two = b("sub", b("add", two, below), b("add", inside, inside))
            x, y = self.kept(b, one), self.turned(b, self.kept(b, two), mirrored)
            better = b("cmp", y, x, pred="gt" if self.falling else "lt")
            self.keep(b, one, b("select", better, y, x))
            self.keep(b, two, self.turned(b, b("select", better, x, y), mirrored))

        self.loop(b, count // 2, pair)

    def turned(self, b: Builder, x: Value, mirrored: bool) -> Value:
        return b("xor_shuffle", x, axis=0, mask=self.size - 1) if mirrored else x

    def sorted(self, b: Builder, x: Value, bitonic: bool) -> Value:
        return b("sort_runs", x, axis=0, run=self.size, falling=self.falling, bitonic=bitonic)

    def kept(self, b: Builder, which: Value) -> Value:
        return b("kept", self.stack, which)

    def keep(self, b: Builder, which: Value, x: Value) -> None:
        b.op("keep", self.stack, which, x)
