"""Program ids, matrix products, reductions, scans, counts, and functions mapped over elements."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilejit.errors import CompilationError
from tilejit.ir import numeric as num
from tilejit.ir.core import Op
from tilejit.ir.scratch import of_fma, of_histogram, of_reduce, of_scan
from tilejit.ir.table import op
from tilejit.ir.types import DType, Tile, Type, elem_of, int32, shape_of, with_elem

if TYPE_CHECKING:
    from tilejit.layout.linear import LinearLayout


@op("program_id", attrs="axis", traits="cheap program", layout="none")
def program_id(o: Op) -> list[Type]:
    """Index of this program along a grid axis (0 to 2); along axis 0 of merged programs, of their group."""
    return [int32]


@program_id.meaning
def _program_id(m: Any, o: Op) -> np.ndarray:
    return np.array(m.pid[o.attrs["axis"]], np.int32)


@op("num_programs", attrs="axis ctas?", traits="cheap program", layout="none")
def num_programs(o: Op) -> list[Type]:
    """Number of programs along a grid axis; `ctas`: of those that walk over the others, too."""
    return [int32]


@num_programs.meaning
def _num_programs(m: Any, o: Op) -> np.ndarray:
    return np.array(m.grid[o.attrs["axis"]], np.int32)


@op("dot", "a b acc", "precision? depth? begin? promote? unit? handed?", layout="product")
def dot(o: Op) -> list[Type]:
    """acc + a @ b with a [..,M,K], b [..,K,N], acc [..,M,N], batched over the dimensions ahead."""
    return _product(o)


def _product(o: Op) -> list[Type]:
    a, b, acc = (v.type for v in o.operands)
    assert isinstance(a, Tile) and isinstance(b, Tile) and isinstance(acc, Tile)
    if a.shape[-1] != b.shape[-2] or acc.shape != (*a.shape[:-1], b.shape[-1]) or a.shape[:-2] != b.shape[:-2]:
        raise CompilationError(f"dot: {list(a.shape)} @ {list(b.shape)} into {list(acc.shape)}: "
                               f"{a.shape[-1]} != {b.shape[-2]}", o.loc)
    return [Tile(acc.shape, acc.elem)]


@dot.meaning
def _dot(m: Any, o: Op, a: np.ndarray, b: np.ndarray, acc: np.ndarray) -> np.ndarray:
    ta, t_acc = elem_of(o.operands[0].type), elem_of(o.operands[2].type)
    assert isinstance(ta, DType) and isinstance(t_acc, DType)
    first = o.attrs.get("begin", 0)
    used = slice(first, first + o.attrs.get("depth", a.shape[-1] - first))
    return num.matmul(a[..., used], b[..., used, :], acc, ta, t_acc, o.attrs.get("precision"))


@op("dot_fma", "a b acc", traits="collective", layout="product", scratch=of_fma)
def dot_fma(o: Op) -> list[Type]:
    """As dot, by multiply-adds of fp32 or fp64 in the order of K; operands pass through scratch."""
    return _product(o)


@dot_fma.meaning
def _dot_fma(m: Any, o: Op, a: np.ndarray, b: np.ndarray, acc: np.ndarray) -> np.ndarray:
    ta = elem_of(o.operands[0].type)
    assert isinstance(ta, DType)
    return num.matmul(a, b, acc, ta, ta, "ieee")


def _rows_from_each(layout: LinearLayout, ctas: int) -> LinearLayout:
    from tilejit.layout.clusters import rows_from_each
    return rows_from_each(layout, ctas)


@op("cluster_sum", "part buffer? full? free? parity?", "ctas rounds?", effects="sync", traits="cluster_phase",
    layout="follows", forward=lambda o, layout: _rows_from_each(layout, o.attrs["ctas"]))
def cluster_sum(o: Op) -> list[Type]:
    """The sum of the parts of a tile that the CTAs of a cluster have, divided between them."""
    return [o.operands[0].type]


@cluster_sum.meaning
def _cluster_sum(m: Any, o: Op, part: np.ndarray, *_: Any) -> np.ndarray:
    return part


@op("reduce", "inputs*", "axis ctas?", traits="structural collective", layout="follows", regions="fold",
    scratch=of_reduce, forward=lambda o, layout: layout.reduce(o.attrs["axis"]))
def reduce(o: Op) -> list[Type]:
    """Fold each input along `axis` with the region (2n scalars in: running, then next; n out)."""
    axis = o.attrs["axis"]
    out: list[Type] = []
    for v in o.operands:
        t = v.type
        assert isinstance(t, Tile), t
        shape = t.shape[:axis] + t.shape[axis + 1:]
        out.append(Tile(shape, t.elem) if shape else t.elem)
    return out


@reduce.meaning
def _reduce(m: Any, o: Op, *xs: np.ndarray) -> tuple[np.ndarray, ...]:
    """Folds halves onto each other, as the GPU does; what is left of an odd size goes into the next round."""
    parts = [np.moveaxis(x, o.attrs["axis"], 0) for x in xs]
    while len(parts[0]) > 1:
        half = len(parts[0]) // 2
        shape = parts[0][:half].shape
        out = m.region(o.regions[0], [p[:half] for p in parts] + [p[half:2 * half] for p in parts])
        parts = [np.concatenate([np.broadcast_to(r, shape), p[2 * half:]]) if len(p) % 2 else np.broadcast_to(r, shape)
                 for r, p in zip(out, parts)]
    return tuple(p[0] for p in parts)


@op("histogram", "x mask?", "bins", traits="collective", layout="follows", scratch=of_histogram)
def histogram(o: Op) -> list[Type]:
    """How many elements of x, an integer tile of rank 1, equal 0, 1, .. bins - 1 where the mask is true; int32."""
    return [Tile((o.attrs["bins"],), int32)]


@histogram.meaning
def _histogram(m: Any, o: Op, x: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    bins = o.attrs["bins"]
    counted = (x >= 0) & (x < bins) & (True if mask is None else mask)
    return np.bincount(x[counted].astype(np.int64), minlength=bins).astype(np.int32)


@op("map", "inputs*", "pack dtypes", traits="elementwise structural packs", regions="map")
def map_(o: Op) -> list[Type]:
    """The region applied to every `pack` elements: `pack` scalars of each input in, `pack` of each result out.

    Which elements go together is open. The region may branch.
    """
    shapes = {shape_of(v.type) for v in o.operands}
    if len(shapes) != 1:
        raise CompilationError(f"map: shapes differ: {', '.join(str(v.type) for v in o.operands)}", o.loc)
    return [with_elem(o.operands[0].type, t) for t in o.attrs["dtypes"]]


@map_.meaning
def _map(m: Any, o: Op, *xs: np.ndarray) -> list[np.ndarray]:
    pack, shape = o.attrs["pack"], xs[0].shape
    flat = [x.reshape(-1) for x in xs]
    out = [np.empty(flat[0].size, num.np_dtype(elem_of(r.type))) for r in o.results]
    for start in range(0, flat[0].size, pack):
        at = [min(i, flat[0].size - 1) for i in range(start, start + pack)]
        results = m.region(o.regions[0], [np.asarray(x[i]) for x in flat for i in at])
        for k, y in enumerate(out):
            for j, i in enumerate(at):
                y[i] = results[k * pack + j]
    return [y.reshape(shape) for y in out]


@op("scan", "inputs*", "axis reverse", traits="structural collective", layout="follows", regions="fold",
    scratch=of_scan, forward=lambda o, layout: layout, backward=lambda o, layout: layout)
def scan(o: Op) -> list[Type]:
    """Inclusive prefix fold along `axis` with the region (as reduce), from the end if `reverse`."""
    return [v.type for v in o.operands]


@scan.meaning
def _scan(m: Any, o: Op, *xs: np.ndarray) -> tuple[np.ndarray, ...]:
    step = -1 if o.attrs["reverse"] else 1
    parts = [np.moveaxis(x, o.attrs["axis"], 0)[::step] for x in xs]
    run = [p[0] for p in parts]
    rows = [run]
    for i in range(1, len(parts[0])):
        run = m.region(o.regions[0], run + [p[i] for p in parts])
        run = [np.broadcast_to(r, p[i].shape) for r, p in zip(run, parts)]
        rows.append(run)
    out = (np.stack(column)[::step] for column in zip(*rows))
    return tuple(np.moveaxis(x, 0, o.attrs["axis"]) for x in out)
