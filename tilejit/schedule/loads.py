"""What is asked of tile IR for its schedule: how loads may be copied, who reads their slots, what other roles need."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilejit.ir import Block, Function, Op, Value, controls, edge_of, enclosing, listed, reached
from tilejit.ir.ahead import argument_of
from tilejit.ir.types import Tile

#: For every value its uses: (op, operand index).
Uses = dict[Value, list[tuple[Op, int]]]


def groups_of(fn: Function) -> int:
    return int(fn.attrs.get("groups", 1))


def top_of(op: Op) -> Block:
    outer = [op, *enclosing(op)][-1]
    return outer.block


def kind_of(op: Op) -> str:
    if op.name == "desc_load":
        return "tensor"
    if op.name == "row_load":
        return "row"
    return "async" if "copy" in op.attrs or op.name == "block_load" else ""


def memory_order(load: Op) -> tuple[int, ...]:
    """The dimensions of a load's tile from fastest to slowest in memory; a descriptor's last one is the fastest."""
    return load.attrs.get("copy") or tuple(reversed(range(len(load.result.tile.shape))))


def shared_operand(v: Value) -> tuple[Op, bool] | None:
    """(load, transposed) if a dot operand is a tile that is copied to shared memory, or its transpose."""
    op = v.op
    if isinstance(op, Op) and kind_of(op) and len(op.results[0].type.shape) == 2:  # type: ignore
        return op, False
    if isinstance(op, Op) and op.name == "convert":  # to the layout that mma.sync takes: it reads the slot in any
        return shared_operand(op.operands[0])
    if isinstance(op, Op) and op.name == "trans" and tuple(op.attrs["order"]) == (1, 0):
        inner = shared_operand(op.operands[0])
        return (inner[0], not inner[1]) if inner else None
    return None


def reads_slot(dot: Op, index: int) -> Op | None:
    """The load whose slot a dot operand can be read from in place, by wgmma or by ldmatrix, or None."""
    found = shared_operand(dot.operands[index])
    if found is None:
        return None
    load, transposed = found
    k_fastest = memory_order(load)[0] == (index == 0) ^ transposed  # K is dimension 1 of A, dimension 0 of B
    elem = load.result.tile.elem
    return load if k_fastest or elem.bits == 16 else None


def behind(value: Value) -> set[Op]:
    """The copied loads and products that a value is computed from, through loops and branches."""
    def sources(v: Value) -> list[Value]:
        edge, op = edge_of(v), v.op
        if edge is not None:
            return [*edge[1].sources, *controls(edge[0])]
        return [*op.operands, *(x for r in op.regions for x in r.terminator.operands)] if isinstance(op, Op) else []

    return {v.op for v in reached([value], sources) if isinstance(v.op, Op) and (kind_of(v.op) or v.op.name == "dot")}


def readers(v: Value, table: Uses) -> tuple[list[Op], bool]:
    """The products that read a loaded tile (or a transpose of it) in its slot, and whether nothing else reads it."""
    dots, only = [], True
    for op, index in table.get(v, ()):
        if op.name == "dot" and index < 2 and reads_slot(op, index):
            dots.append(op)
        elif op.name in ("trans", "convert"):
            found, alone = readers(op.result, table)
            dots, only = dots + found if alone else dots, only and alone
        elif op.name != "promote_reuse" or table.get(op.result):
            only = False
    return dots, only and bool(dots)


def in_place(v: Value, table: Uses) -> bool:
    """Whether nothing but products reads a loaded tile (or a transpose of it), and they read its slot."""
    return readers(v, table)[1]


def backward_slice(wanted: Mapping[Op, Sequence[Value]]) -> set[Value]:
    """What is needed to compute these operands of ops and to know whether and how often the ops run."""
    known: dict[Block | None, list[Value]] = {}

    def around(op: Op) -> list[Value]:
        if op.parent not in known:
            known[op.parent] = [v for outer in enclosing(op) for v in controls(outer)]
        return known[op.parent]

    def sources(v: Value) -> list[Value]:
        edge, maker = edge_of(v), v.op
        found = around(maker) if type(maker) is Op else []
        if edge is not None:
            return [*found, *edge[1].sources, *controls(edge[0])]
        if type(maker) is Op:
            return [*found, *maker.operands, *[x for r in maker.regions for op in listed(r) for x in op.operands]]
        return controls(maker.parent) if isinstance(maker, Block) and maker.parent else []  # an induction variable

    return {*reached([v for at, operands in wanted.items() for v in (*operands, *around(at))], sources)}


def slice_problem(fn: Function, needed: set[Value], what: str, tiles: bool = False) -> str:
    """Why a role that may hold `tiles`, or not, cannot compute these values, which decide `what`; empty if it can."""
    for v in needed:
        op = v.op
        if isinstance(op, Op) and op.define.effects & {"read", "write"}:
            # Two roles may each load a number (or a tile) from what the kernel does not write.
            able = op.name == "load" and (tiles or not isinstance(v.type, Tile))
            source = argument_of(op.operands[0]) if able else None
            if source is None or any(argument_of(x.operands[0]) is source for x in listed(fn.body)
                                     if "write" in x.define.effects and x.operands):
                return f"{what} depends on {op.name}" + (f" ({op.loc.short()})" if op.loc else "")
        if isinstance(v.type, Tile) and not tiles:
            return f"{what} depends on a tile"
    return ""


def written_by(desc: Value) -> set[Op]:
    """The ops that may have written a descriptor, through loops and branches."""
    found = reached([desc], lambda v: edge[1].sources if (edge := edge_of(v)) is not None else ())
    return {v.op for v in found if isinstance(v.op, Op) and v.op.name == "write_desc"}
