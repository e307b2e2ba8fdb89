"""Buffers and barriers, which stand at a function's beginning."""
from __future__ import annotations

from tilejit.ir import Builder, Function, Op, Value
from tilejit.ir.types import Barrier, Buffer


def top_of(fn: Function) -> Builder:
    """Builds behind the buffers and barriers that a function has."""
    count = next(i for i, op in enumerate(fn.body.ops) if op.name not in ("alloc", "barriers"))
    return Builder(fn.body, count, fn.loc)


def alloc(top: Builder, name: str, type: Buffer, private: bool = False) -> Value:
    """A buffer in shared memory; `private`: each group of consumers has its own."""
    value = top("alloc", name=name, type=type, **({"private": True} if private else {}))
    value.name = name
    return value


def barriers(top: Builder, name: str, slots: int, arrivals: int) -> Value:
    value = top("barriers", name=name, type=Barrier(slots, arrivals))
    value.name = name.replace(".", "_")
    return value


def barriers_of(fn: Function) -> dict[str, Value]:
    return {op.attrs["name"]: op.result for op in fn.body.ops if op.name == "barriers"}


def renewed(op: Op) -> list[Value]:
    """Give an op new results, so that others may stand for the old ones, which are returned."""
    old = op.results
    op.results = [Value(v.type, op, v.index, v.name) for v in old]
    return old
