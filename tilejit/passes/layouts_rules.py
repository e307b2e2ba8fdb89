"""How layouts follow from one another through ops: the rules that `layouts.py` applies.

A result's layout may decide its operands' (`backward`), an operand's its results' (`forward`); control flow
ties values together (`same_layout`, `handed_over`); and for every op in its final layouts, `wanted` says in
which layout it needs each operand and `natural` in which it produces its results.
"""
from __future__ import annotations

from tilejit.ir import Op, Value, edges
from tilejit.ir.types import Tile, Type
from tilejit.layout.clusters import rows_from_each
from tilejit.layout.linear import LinearLayout
from tilejit.layout.mma import mma_operand
from tilejit.layout.named import blocked

#: Ops that touch global memory through a tile of pointers (operand 0); the mask, if any, comes last.
ACCESSES = ("load", "store", "atomic_rmw", "atomic_cas")
#: Ops that hand a tile of registers (operand 1) to TMA.
BLOCK_WRITES = ("desc_store", "desc_atomic", "block_store")
FLOW = ("for", "while", "if")
#: Folds: all inputs share one layout.
FOLDS = ("reduce", "scan", "xor_shuffle")


def layout_of(v: Value) -> LinearLayout | None:
    """The layout of a tile, or None."""
    return v.type.layout if isinstance(v.type, Tile) else None


def tile(t: Type) -> Tile:
    """The type as a tile type."""
    assert isinstance(t, Tile), t
    return t


def backward(op: Op, layout: LinearLayout) -> LinearLayout | None:
    """The layout of a shape op's operand that gives its (first) result this one; None if none does."""
    name, source = op.name, tile(op.operands[0].type).shape if op.operands else ()
    if name == "expand_dims":
        return layout.drop_dim(op.attrs["axis"])
    if name == "broadcast":
        return layout.project(source)
    if name == "reshape":
        return layout.reshape(source)
    if name == "trans":
        order = tuple(op.attrs["order"])
        return layout.transpose(tuple(order.index(i) for i in range(len(order))))
    if name == "split":
        return layout.join()
    if name == "join":
        return _split(layout)
    return None


def forward(op: Op, layout: LinearLayout) -> LinearLayout | None:
    """The layout of a shape op's or fold's results that its operand's gives; None if the op leaves it open."""
    name = op.name
    if name == "expand_dims":
        return layout.expand_dims(op.attrs["axis"])
    if name == "reshape":
        return layout.reshape(tuple(op.attrs["shape"]))
    if name == "trans":
        return layout.transpose(tuple(op.attrs["order"]))
    if name == "reduce":
        return layout.reduce(op.attrs["axis"])
    if name in ("scan", "xor_shuffle"):
        return layout
    if name == "join":
        return layout.join()
    if name == "split":
        return _split(layout)
    if name == "cluster_sum":
        return rows_from_each(layout, op.attrs["ctas"])
    return None


def _split(layout: LinearLayout) -> LinearLayout | None:
    try:
        return layout.split()
    except ValueError:                # the two halves are not in one thread
        return None


# -- control flow -----------------------------------------------------------------------------------------
def same_layout(op: Op) -> list[list[Value]]:
    """Groups of values that cannot but share a layout: what a loop carries, both halves of a split."""
    if op.name == "split":
        return [list(op.results)]
    return [[*e.args, e.result] for e in edges(op) if e.args]


def handed_over(op: Op, v: Value) -> list[Value]:
    """The other ends of a loop's or branch's edges at v: initial, carried, yielded and result values."""
    return [x for e in edges(op) if v in e.values for x in e.values if x is not v]


def owner(op: Op) -> Op | None:
    """The op whose region a terminator ends."""
    return op.parent.parent if op.parent else None


# -- what an op needs ---------------------------------------------------------------------------------------
def wanted(op: Op) -> dict[int, LinearLayout]:
    """For each tile operand that must have a certain layout: its index and that layout."""
    targets: dict[int, LinearLayout | None] = {}
    if "elementwise" in op.define.traits and op.name not in ACCESSES:
        targets = dict.fromkeys(range(len(op.operands)), layout_of(op.results[0]))
    elif op.define.carries and op.define.variadic:
        targets = {op.define.fixed + e.index: layout_of(e.args[0]) for e in edges(op)}
    elif op.name in ("yield", "condition"):
        target = owner(op)
        targets = {op.define.fixed + e.index: layout_of(e.result) for e in (edges(target) if target else ())}
    elif op.name in ("dot", "dot_fma"):
        result = layout_of(op.result)
        targets = {2: result}
        if "unit" in op.attrs and result is not None:
            targets |= {i: operand_layout(op, i, result) for i in (0, 1)}
    elif op.name == "block_store":
        t = tile(op.operands[1].type)
        assert t.layout is not None
        if t.elem.bits < 32:         # wider ones fill sectors of 32 bytes from an accumulator's layout, too
            targets = {1: blocked(t.shape, t.layout.in_size("warp"), 128 // t.elem.bits)}
    elif op.name in (*ACCESSES, *FOLDS, "join", "device_assert"):
        targets = dict.fromkeys(range(1, len(op.operands)), layout_of(op.operands[0]))
    elif "shape" in op.define.traits and op.name != "convert":
        result = layout_of(op.results[0])
        if result is not None:
            targets = dict.fromkeys(range(len(op.operands)), None if op.name == "splat" else backward(op, result))
    return {i: layout for i, layout in targets.items()
            if layout is not None and isinstance(op.operands[i].type, Tile)}


def operand_layout(dot: Op, index: int, accumulator: LinearLayout) -> LinearLayout:
    """The layout in which mma.sync takes operand 0 or 1 of a product with that accumulator."""
    t = tile(dot.operands[index].type)
    return mma_operand(accumulator, index, t.shape[-2 if index else -1], t.elem.bits // 8)


def natural(op: Op) -> LinearLayout | None:
    """The layout in which an op produces its results, where its first operand decides it."""
    if op.name in ACCESSES:
        return layout_of(op.operands[0])
    if op.name in (*FOLDS, "join", "cluster_sum"):
        source = layout_of(op.operands[0])
        return forward(op, source) if source is not None else None
    return None
