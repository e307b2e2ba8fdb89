"""The verifier: what must hold of tile IR between any two passes."""
from __future__ import annotations

from tilejit.errors import CompilationError, VerificationError
from tilejit.ir import OPS
from tilejit.ir.core import Block, Function, Op, Value, listed
from tilejit.ir.flight import Flights, follow, needs, rings
from tilejit.ir.text import print_op
from tilejit.ir.types import Desc, DType, Pending, Tile, Type, elem_of, int1


def verify(fn: Function) -> None:
    """Raise VerificationError, with the op's printed line, at the first broken rule."""
    try:
        _block(fn.body, set())
        _in_flight(fn)
        _ordered(fn.body)
        if not fn.body.ops or fn.body.terminator.name not in ("return", "roles"):
            raise VerificationError(f"the body of {fn.name} must end in return or roles")
    except _Broken as e:
        raise VerificationError(f"{e.message}, in: {print_op(fn, e.op)}", e.op.loc) from None


def _in_flight(fn: Function) -> None:
    if "uncounted" in fn.attrs or "dot_async" not in [op.name for op in listed(fn.body)]:
        return
    guarded = rings(fn)

    def check(op: Op, state: Flights) -> None:
        if op.name in ("dot_wait", "dot_fence") and "pending" not in op.attrs:
            raise _Broken(op, f"{op.name} needs the attribute pending")
        if not state:
            return
        if op.name == "dot_wait":
            for x in state.values():
                if x.age < op.attrs["pending"] and not x.sums.isdisjoint(op.operands):
                    raise _Broken(op, f"{_dot(x.dot)} may still be in flight: only {x.age} groups were committed since")
        for x in needs(op, guarded, state):
            what = {"mbar_arrive": "the slot that is given back", "local_store": "the buffer that is written"}
            raise _Broken(op, f"{_dot(x.dot)} may still read {what.get(op.name, 'the registers that are written')}: "
                              "a dot_wait or dot_fence is missing, or lets too many groups stay in flight")

    if guarded:
        follow(fn, check)


def _ordered(block: Block) -> None:
    """Every `order_wait` has its `order_arrive` in the same block: all warpgroups have equally many."""
    mine: Op | None = None
    for op in block.ops:
        if op.name == "order_wait":
            if mine is not None:
                raise _Broken(op, "order_wait without an order_arrive for the one before")
            mine = op
        elif op.name == "order_arrive":
            if mine is None:
                raise _Broken(op, "order_arrive without an order_wait")
            mine = None
        for region in op.regions:
            _ordered(region)
    if mine is not None:
        raise _Broken(mine, "order_wait without an order_arrive in the same block")


def _dot(op: Op) -> str:
    return f"the product {op.results[0].name or op.name}{f' ({op.loc.short()})' if op.loc else ''}"


class _Broken(Exception):
    def __init__(self, op: Op, message: str):
        self.op, self.message = op, message


def _alike(a: Type, b: Type) -> bool:
    """Whether types are equal but for what passes decide (layouts, TMA)."""
    if type(a) is Tile and type(b) is Tile:
        return a.shape == b.shape and a.elem == b.elem
    if isinstance(a, Pending) and isinstance(b, Pending):
        return _alike(a.tile, b.tile)
    if isinstance(a, Desc) and isinstance(b, Desc):
        return a.elem == b.elem and a.block_shape == b.block_shape
    return a == b


def _block(block: Block, scope: set[Value]) -> None:
    here = list(block.args)
    scope.update(here)
    for i, op in enumerate(block.ops):
        _op(op, scope)
        if op.parent is not block:
            raise _Broken(op, "the op's parent is another block")
        if "terminator" in op.define.traits and i + 1 < len(block.ops):
            raise _Broken(op, "a terminator must be the last op of its block")
        here += op.results
        scope.update(op.results)
    scope.difference_update(here)


def _op(op: Op, scope: set[Value]) -> None:
    if op.name not in OPS:
        raise _Broken(op, f"no op is called {op.name}")
    define = op.define
    least, most = define.counts
    if not least <= len(op.operands) <= most:
        raise _Broken(op, f"{op.name} takes {' '.join(define.operands) or 'no operands'}, "
                          f"found {len(op.operands)} operands")
    if not scope.issuperset(op.operands):
        v = next(v for v in op.operands if v not in scope)
        raise _Broken(op, f"operand {v!r} is not defined before its use, or in another scope")
    if "takes_pending" not in define.traits:
        for v in op.operands:
            if type(v.type) is Pending:
                raise _Broken(op, f"operand {v!r} is pending: only dot_wait turns it into a tile")
    for a in define.required:
        if a not in op.attrs:
            raise _Broken(op, f"{op.name} needs the attribute {a}")
    for region in op.regions:
        if region.parent is not op:
            raise _Broken(op, "the region's parent is another op")
        _block(region, scope)
    if define.regions in _REGIONS:
        _REGIONS[define.regions](op)
    elif op.regions and not define.regions:
        raise _Broken(op, f"{op.name} has no regions")
    if op.name == "condition":
        _condition_owner(op)
    try:
        inferred = define.infer(op) or []
    except CompilationError as e:
        raise _Broken(op, e.message) from e
    results, right = op.results, True
    if results[1:] or not results or inferred[1:] or not inferred:
        right = len(inferred) == len(results)
    for i, r in enumerate(results):
        right = right and (inferred[i] is r.type or _alike(inferred[i], r.type))
        if r.op is not op or r.index != i:
            raise _Broken(op, f"result {i} does not point back to its op")
    if not right:
        raise _Broken(op, f"the type rule gives {_list(inferred)}, the results have {_list(_types(op.results))}")
    if "elementwise" in define.traits:
        tile: Tile | None = None
        for v in (*op.operands, *op.results):
            if type(v.type) is Tile:
                tile = tile or v.type
                if v.type.layout is not tile.layout and v.type.layout != tile.layout:
                    raise _Broken(op, f"the tiles of an elementwise op have layouts {tile.layout} and {v.type.layout}")


def _terminated(op: Op, region: Block, *names: str) -> Op:
    if not region.ops or region.terminator.name not in names:
        raise _Broken(op, f"a region of {op.name} must end in {' or '.join(names)}")
    return region.terminator


def _expect(op: Op, what: str, found: list[Type], wanted: list[Type]) -> None:
    if found != wanted:
        same = len(found) == len(wanted) and all(map(_alike, found, wanted))
        raise _Broken(op, f"{what}: expected {_list(wanted)}, found {_list(found)}{' (layouts differ)' * same}")


def _types(values: list[Value]) -> list[Type]:
    return [v.type for v in values]


def _list(types: list[Type]) -> str:
    return "(" + ", ".join(map(str, types)) + ")"


def _count(op: Op, n: int) -> None:
    if len(op.regions) != n:
        raise _Broken(op, f"{op.name} has {n} regions, found {len(op.regions)}")


def _for(op: Op) -> None:
    _count(op, 1)
    iv = op.operands[0].type
    if not (isinstance(iv, DType) and iv.is_int()):
        raise _Broken(op, f"loop bounds must be scalar integers, found {iv}")
    _expect(op, "bounds", _types(op.operands[:3]), [iv] * 3)
    _carries(op, [iv], _terminated(op, op.regions[0], "yield"))


def _while(op: Op) -> None:
    _count(op, 2)
    cond = _terminated(op, op.regions[0], "condition")
    _expect(op, "condition", _types(cond.operands[:1]), [int1])
    _carries(op, [], cond, _terminated(op, op.regions[1], "yield"))


def _carries(op: Op, leading: list[Type], *ends: Op) -> None:
    carried = _types(op.operands[op.define.fixed:])
    for region, end in zip(op.regions, ends):
        _expect(op, "region arguments", _types(region.args), [*leading, *carried])
        _expect(op, "yielded values" if end.name == "yield" else "values of condition",
                _types(end.operands[end.define.fixed:]), carried)
    _expect(op, "results", _types(op.results), carried)


def _if(op: Op) -> None:
    _count(op, 2)
    _expect(op, "condition", _types(op.operands), [int1])
    for region in op.regions:
        _expect(op, "region arguments", _types(region.args), [])
        end = _terminated(op, region, "yield", "return")
        if end.name == "yield":
            _expect(op, "yielded values", _types(end.operands), _types(op.results))


def _fold(op: Op) -> None:
    _count(op, 1)
    values = op.operands[op.define.fixed:len(op.operands) - op.define.after]
    for v in values if "axis" in op.attrs else ():
        if not isinstance(v.type, Tile):
            raise _Broken(op, f"{op.name} needs tiles, found {v.type}")
        if not 0 <= op.attrs["axis"] < len(v.type.shape):
            raise _Broken(op, f"axis {op.attrs['axis']} is outside the tile")
    scalars: list[Type] = [elem_of(v.type) for v in values]
    _expect(op, "region arguments", _types(op.regions[0].args), scalars * 2)
    _expect(op, "yielded values", _types(_terminated(op, op.regions[0], "yield").operands), scalars)


def _map(op: Op) -> None:
    _count(op, 1)
    pack = op.attrs["pack"]
    scalars: list[Type] = [elem_of(v.type) for v in op.operands for _ in range(pack)]
    _expect(op, "region arguments", _types(op.regions[0].args), scalars)
    _expect(op, "yielded values", _types(_terminated(op, op.regions[0], "yield").operands),
            [elem_of(r.type) for r in op.results for _ in range(pack)])


def _condition_owner(op: Op) -> None:
    owner = op.parent.parent if op.parent is not None else None
    if owner is None or owner.name != "while":
        raise _Broken(op, "condition ends the first region of while only")


def _copies(op: Op) -> None:
    _count(op, 1)
    found = _terminated(op, op.regions[0], "yield").operands
    if len(found) != len(op.operands):
        raise _Broken(op, f"{op.name} fills {len(op.operands)} buffers, its region yields {len(found)} tiles")


#: kind of regions -> what must hold of them.
_REGIONS = {"for": _for, "while": _while, "if": _if, "fold": _fold, "map": _map, "copies": _copies}
