"""Descriptors that the program writes (`write_desc`)."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from tilejit.ir.core import Builder, Function, Op, Value, beside, enclosing, uses
from tilejit.ir.types import Desc
from tilejit.passes.axis import AxisInfo, analyse
from tilejit.passes.carried_desc import Parts, carried, carry

#: Bytes that TMA writes as a whole, and that addresses and strides are multiples of.
UNIT = 16


class Writing:
    def __init__(self, fn: Function):
        self.fn, self.uses = fn, uses(fn.body)

    @cached_property
    def known(self) -> Mapping[Value, AxisInfo]:
        return analyse(self.fn)

    @cached_property
    def hoped(self) -> Mapping[Value, AxisInfo]:
        return analyse(self.fn, loaded=UNIT)

    def why_not(self, desc: Value, made: Op) -> str | None:
        t = desc.desc
        around = set(enclosing(made))
        users = [op for op, _ in self.uses.get(desc, ()) if "tma" in op.define.traits]
        if not users or carried(made) is None and not any(_only_tma(op) or any(
                "loop" in x.define.traits and x not in around for x in enclosing(op)) for op in users):
            return "no loop uses what would be written before it"
        for at, unit in _rules(t):
            v = made.operands[at]
            if self.hoped[v].divisibility[0] % unit:
                what = f"stride {v.name or '(unnamed)'}" if at else "base"
                return f"its {what} is not known to be a multiple of {UNIT} bytes"
        return None

    def descriptor(self, made: Op, t: Desc) -> tuple[Value, set[str]]:
        checked = set[str]()

        def write(b: Builder, parts: Parts) -> Value:
            fits = list(parts)
            for at, unit in _rules(t):
                if self.known[parts[at]].divisibility[0] % unit:
                    fits[at] = b("checked", parts[at], divisible=unit)
                    fits[at].name = parts[at].name
                    checked.add(parts[at].name or ("a stride" if at else "its base"))
            return self._write(b, fits, t, made)

        return self._where_parts_change(made, write), checked

    def of_units(self, made: Op, t: Desc) -> Value:
        rank = len(t.block_shape)
        return self._where_parts_change(made, lambda b, parts: self._write(
            b, [units(b, v, t) if i == rank else v for i, v in enumerate(parts)], t, made))

    @staticmethod
    def _write(b: Builder, parts: Sequence[Value], t: Desc, made: Op) -> Value:
        new = b("write_desc", *parts, **{k: v for k, v in made.attrs.items() if k != "anywhere"})
        new.name = made.result.name
        return new

    @staticmethod
    def _where_parts_change(made: Op, write: Callable[[Builder, Parts], Value]) -> Value:
        by = carried(made)
        return carry(made, by, write) if by is not None else write(beside(made), tuple(made.operands))


def units(b: Builder, n: Value, t: Desc) -> Value:
    unit = b.const(UNIT // t.elem.bytes, n.type)
    return b("mul", b("idiv", n, unit), unit)


def _rules(t: Desc) -> list[tuple[int, int]]:
    """Which operand of a `make_desc` must be a multiple of what: the base in bytes, strides in elements."""
    rank = len(t.block_shape)
    return [(0, UNIT), *((1 + rank + d, max(1, UNIT // t.elem.bytes)) for d in range(rank - 1))]


def _only_tma(op: Op) -> bool:
    """Whether an atomic is one that pointers have not: of less than 32 bits, but additions of 16-bit floats."""
    if op.name != "desc_atomic":
        return False
    t = op.operands[0].desc
    return t.elem.bits < 32 and op.attrs["kind"] != "add"
