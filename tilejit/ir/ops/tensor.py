"""Program ids, matrix products and reductions."""
from __future__ import annotations

from tilejit.errors import CompilationError
from tilejit.ir.core import Op
from tilejit.ir.table import op
from tilejit.ir.types import Tile, Type, int32


@op("program_id", attrs="axis", traits="cheap")
def program_id(o: Op) -> list[Type]:
    """Index of this program along a grid axis (0 to 2)."""
    return [int32]


@op("num_programs", attrs="axis", traits="cheap")
def num_programs(o: Op) -> list[Type]:
    """Number of programs along a grid axis."""
    return [int32]


@op("dot", "a b acc", "precision?")
def dot(o: Op) -> list[Type]:
    """acc + a @ b with a [M,K], b [K,N], acc [M,N]; `precision` is tf32 (default) or ieee for fp32 inputs.

    Products are exact and sums at least fp32 (int32 for int8); their order is not fixed."""
    a, b, acc = (v.type for v in o.operands)
    assert isinstance(a, Tile) and isinstance(b, Tile) and isinstance(acc, Tile)
    if a.shape[1] != b.shape[0] or acc.shape != (a.shape[0], b.shape[1]):
        raise CompilationError(f"dot: {list(a.shape)} @ {list(b.shape)} into {list(acc.shape)}: "
                               f"{a.shape[1]} != {b.shape[0]}", o.loc)
    return [Tile(acc.shape, acc.elem)]


@op("reduce", "inputs*", "axis", traits="structural")
def reduce(o: Op) -> list[Type]:
    """Fold each input along `axis` with the region (2n scalars in: running, then next; n out).

    The order of the folds is not fixed. A rank-1 input gives a scalar."""
    axis = o.attrs["axis"]
    out: list[Type] = []
    for v in o.operands:
        t = v.type
        assert isinstance(t, Tile), t
        shape = t.shape[:axis] + t.shape[axis + 1:]
        out.append(Tile(shape, t.elem) if shape else t.elem)
    return out


@op("scan", "inputs*", "axis reverse", traits="structural")
def scan(o: Op) -> list[Type]:
    """Inclusive prefix fold along `axis` with the region (as reduce), from the end if `reverse`."""
    return [v.type for v in o.operands]
