"""Loads that follow products are issued before the wait for them, so that they arrive while the tensor cores work."""
from __future__ import annotations

from collections.abc import Iterator

from tilejit.ir import Block, Function, Op, Value, needed
from tilejit.ir.ahead import argument_of, is_volatile, may_alias
from tilejit.ir.types import Tile, elem_of, shape_of
from tilejit.schedule.registers import MOST, room


def issue_early(fn: Function) -> Function:
    """Move loads of vectors, with casts of them, before the `dot_wait` they follow, as many as there are registers
    for."""
    for block, registers in _blocks(fn.body, min(MOST, 65536 // fn.attrs["num_threads"])):
        for wait in [op for op in block.ops if op.name == "dot_wait"]:
            loads = _advance(block, wait, room(registers, "epilogue") - sum(map(_registers, wait.results)))
            for op in loads:
                fn.say("early", f"load at {op.place} is issued while the last products are computed", op.place)
    return fn


def _blocks(block: Block, registers: int) -> Iterator[tuple[Block, int]]:
    yield block, registers
    for op in block.ops:
        for i, region in enumerate(op.regions):
            own = op.attrs["registers"][i] if op.name == "roles" else 0
            yield from _blocks(region, own or registers)


def _registers(v: Value) -> int:
    count = v.type.layout.num_registers if isinstance(v.type, Tile) and v.type.layout is not None else 1
    return count * (2 if elem_of(v.type).bits > 32 else 1)


def _advance(block: Block, wait: Op, room: int) -> list[Op]:
    at = block.ops.index(wait)
    late: set[Value] = set(wait.results)  # what is computed from the products, or stays behind them
    able: dict[Value, Op] = {}  # results of ops that may move
    moving: dict[Op, None] = {}
    stores: list[Op] = []
    for op in block.ops[at + 1:]:
        if op.name == "tma_store":
            stores.append(op)
        elif op.regions or not op.define.pure and op.name not in ("load", "mbar_arrive"):
            break
        alone = "collective" not in op.define.traits or op.name == "convert"
        if late.isdisjoint(op.operands) and (op.name == "load" or op.define.pure and alone):
            if op.name == "load" or op.name in ("cast", "convert") and able.get(op.operands[0]) in moving:
                more = _registers(op.result) - (0 if op.name == "load" else _registers(op.operands[0]))
                if more <= room and (op.name != "load" or _may_pass(op, stores)):
                    moving[op] = None
                    room -= max(0, more)
                elif op.name != "cast":
                    late.add(op.result)
                    continue
            elif op.name == "convert":
                late.add(op.result)
                continue
            able.update((r, op) for r in op.results)
        else:
            late.update(op.results)
    loads = [op for op in moving if op.name == "load"]
    first, rest = needed(moving, set(able.values())), block.ops[at:]
    block.ops[at:] = [op for op in rest if op in first] + [op for op in rest if op not in first]
    return loads


def _may_pass(load: Op, stores: list[Op]) -> bool:
    """Whether a load may pass stores, and is of few addresses (those of a matrix take two registers each)."""
    source = argument_of(load.operands[0])
    return len(shape_of(load.result.type)) <= 1 and not is_volatile(load) and not any(
        may_alias(source, store) for store in stores)
