"""Ops that move elements without computing."""
from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tilejit.errors import CompilationError
from tilejit.ir.core import Op
from tilejit.ir.scratch import of_convert, of_gather, of_sort_runs, of_xor_shuffle
from tilejit.ir.table import op
from tilejit.ir.types import DType, Tile, Type, int32

if TYPE_CHECKING:
    from tilejit.layout.linear import LinearLayout


def _tile(o: Op, i: int = 0) -> Tile:
    t = o.operands[i].type
    if not isinstance(t, Tile):
        raise CompilationError(f"{o.name}: expected a tile, found the scalar {t}", o.loc)
    return t


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(i) for i in range(len(order)))


def _split_layout(layout: LinearLayout) -> LinearLayout | None:
    try:
        return layout.split()
    except ValueError:  # the two halves are not in one thread
        return None


@op("arange", attrs="start end", traits="cheap registers", layout="free")
def arange(o: Op) -> list[Type]:
    """The int32 tile [start, end)."""
    return [Tile((o.attrs["end"] - o.attrs["start"],), int32)]


@arange.meaning
def _arange(m: Any, o: Op) -> Any:
    return np.arange(o.attrs["start"], o.attrs["end"], dtype=np.int32)


@op("splat", "x", "shape", traits="cheap shape spreads registers same_memory keeps_sign", layout="free")
def splat(o: Op) -> list[Type]:
    """A tile of `shape` with the scalar x in every element."""
    return [Tile(tuple(o.attrs["shape"]), o.operands[0].type)]  # type: ignore[arg-type]


@splat.meaning
def _splat(m: Any, o: Op, x: np.ndarray) -> Any:
    return np.broadcast_to(x, tuple(o.attrs["shape"]))


@op("broadcast", "x", "shape", traits="cheap shape spreads registers same_memory keeps_sign as_asked", layout="maps",
    backward=lambda o, layout: layout.project(_tile(o).shape))
def broadcast(o: Op) -> list[Type]:
    """Repeat along the dimensions where x has size 1; ranks are equal."""
    t, shape = _tile(o), tuple(o.attrs["shape"])
    if len(shape) != len(t.shape) or any(a not in (1, b) for a, b in zip(t.shape, shape)):
        raise CompilationError(f"cannot broadcast {list(t.shape)} to {list(shape)}", o.loc)
    return [Tile(shape, t.elem)]


@broadcast.meaning
def _broadcast(m: Any, o: Op, x: np.ndarray) -> Any:
    return np.broadcast_to(x, tuple(o.attrs["shape"]))


@op("expand_dims", "x", "axis", traits="cheap shape spreads registers same_memory keeps_sign as_asked", layout="maps",
    forward=lambda o, layout: layout.expand_dims(o.attrs["axis"]),
    backward=lambda o, layout: layout.drop_dim(o.attrs["axis"]))
def expand_dims(o: Op) -> list[Type]:
    """Insert a dimension of size 1 before `axis` (0 <= axis <= rank)."""
    t, a = _tile(o), o.attrs["axis"]
    return [Tile((*t.shape[:a], 1, *t.shape[a:]), t.elem)]


@expand_dims.meaning
def _expand_dims(m: Any, o: Op, x: np.ndarray) -> Any:
    return np.expand_dims(x, o.attrs["axis"])


@op("reshape", "x", "shape", traits="shape permutes registers keeps_sign", layout="maps",
    forward=lambda o, layout: layout.reshape(tuple(o.attrs["shape"])),
    backward=lambda o, layout: layout.reshape(_tile(o).shape))
def reshape(o: Op) -> list[Type]:
    """The same elements in row-major order under another shape."""
    t, shape = _tile(o), tuple(o.attrs["shape"])
    if prod(shape) != t.numel:
        raise CompilationError(f"cannot reshape {list(t.shape)} ({t.numel} elements) to "
                               f"{list(shape)} ({prod(shape)} elements)", o.loc)
    if any(s & (s - 1) for s in (*t.shape, *shape)):
        from tilejit.layout.linear import regrouped
        try:
            regrouped(t.shape, shape)
        except ValueError as e:
            raise CompilationError(f"reshape: {e}", o.loc) from None
    return [Tile(shape, t.elem)]


@reshape.meaning
def _reshape(m: Any, o: Op, x: np.ndarray) -> Any:
    return x.reshape(tuple(o.attrs["shape"]))


@op("trans", "x", "order", traits="shape permutes registers keeps_sign", layout="maps",
    forward=lambda o, layout: layout.transpose(tuple(o.attrs["order"])),
    backward=lambda o, layout: layout.transpose(_inverse(o.attrs["order"])))
def trans(o: Op) -> list[Type]:
    """Permute dimensions: result dimension i is dimension order[i] of x."""
    t, order = _tile(o), o.attrs["order"]
    if sorted(order) != list(range(len(t.shape))):
        raise CompilationError(f"trans: {list(order)} is no permutation of {len(t.shape)} axes", o.loc)
    return [Tile(tuple(t.shape[i] for i in order), t.elem)]


@trans.meaning
def _trans(m: Any, o: Op, x: np.ndarray) -> Any:
    return np.transpose(x, o.attrs["order"])


@op("join", "lhs rhs", traits="shape registers", layout="follows",
    forward=lambda o, layout: layout.join(), backward=lambda o, layout: _split_layout(layout))
def join(o: Op) -> list[Type]:
    """Stack two tiles along a new last dimension of size 2."""
    a, b = _tile(o), _tile(o, 1)
    if (a.shape, a.elem) != (b.shape, b.elem):
        raise CompilationError(f"join: operands differ, {a} and {b}", o.loc)
    return [Tile((*a.shape, 2), a.elem)]


@join.meaning
def _join(m: Any, o: Op, a: np.ndarray, b: np.ndarray) -> Any:
    return np.stack([a, b], axis=-1)


@op("split", "x", traits="shape registers", layout="maps",
    forward=lambda o, layout: _split_layout(layout), backward=lambda o, layout: layout.join())
def split(o: Op) -> list[Type]:
    """The two halves of a last dimension of size 2."""
    t = _tile(o)
    if t.shape[-1] != 2:
        raise CompilationError(f"split: the last dimension must be 2, found {list(t.shape)}", o.loc)
    half = Tile(t.shape[:-1], t.elem)
    return [half, half]


@split.meaning
def _split(m: Any, o: Op, x: np.ndarray) -> Any:
    return x[..., 0], x[..., 1]


@op("xor_shuffle", "x", "axis mask", traits="collective", layout="follows", scratch=of_xor_shuffle,
    forward=lambda o, layout: layout, backward=lambda o, layout: layout)
def xor_shuffle(o: Op) -> list[Type]:
    """Element i along `axis` is element i ^ mask of x (0 <= mask < the size, a power of two)."""
    t, axis, mask = _tile(o), o.attrs["axis"], o.attrs["mask"]
    if not 0 <= axis < len(t.shape) or not 0 <= mask < t.shape[axis]:
        raise CompilationError(f"xor_shuffle: mask {mask} along dimension {axis} of {list(t.shape)}", o.loc)
    return [Tile(t.shape, t.elem)]


@xor_shuffle.meaning
def _xor_shuffle(m: Any, o: Op, x: np.ndarray) -> Any:
    return np.take(x, np.arange(x.shape[o.attrs["axis"]]) ^ o.attrs["mask"], o.attrs["axis"])


@op("sort_runs", "x", "axis run falling bitonic", traits="collective", layout="follows", scratch=of_sort_runs,
    forward=lambda o, layout: layout, backward=lambda o, layout: layout)
def sort_runs(o: Op) -> list[Type]:
    """Runs of `run` elements along `axis` (powers of two), each sorted: falling, rising, or if `falling` is none,
    rising and falling in turn. If `bitonic`, each run is a rising one beside a falling one. NaNs stay somewhere.
    """
    t, axis, run, falling = _tile(o), o.attrs["axis"], o.attrs["run"], o.attrs["falling"]
    if not 0 <= axis < len(t.shape) or run < 1 or run & (run - 1) or t.shape[axis] % (run << (falling is None)):
        raise CompilationError(f"sort_runs: {run} elements along dimension {axis} of {list(t.shape)}", o.loc)
    return [Tile(t.shape, t.elem)]


def exchanges(o: Op) -> list[tuple[int, int]]:
    """The steps of `sort_runs` (Batcher, 'Sorting networks and their applications', 1968) as (mask, greater): places
    that differ in the bits of `mask` compare; the one whose index has an odd number of the bits `greater` gets the
    greater element (the lesser, if `falling`)."""
    run, bitonic = o.attrs["run"], o.attrs["bitonic"]
    last, out = run.bit_length() - 1, []
    for stage in range(last if bitonic else 1, last + 1):
        turn = 1 << stage if o.attrs["falling"] is None and stage == last else 0
        for i in reversed(range(stage)):
            out.append((1 << i if bitonic or i < stage - 1 else (1 << stage) - 1, 1 << i | turn))
    return out


@sort_runs.meaning
def _sort_runs(m: Any, o: Op, x: np.ndarray) -> Any:
    """Both places of a pair decide alike: nothing is lost where NaNs compare false twice."""
    axis = o.attrs["axis"]
    index = np.arange(x.shape[axis])
    for mask, greater in exchanges(o):
        partner = np.take(x, index ^ mask, axis)
        odd = np.array([(i & greater).bit_count() & 1 for i in index.tolist()], bool) ^ bool(o.attrs["falling"])
        odd = odd.reshape(-1, *[1] * (x.ndim - 1 - axis))
        x = np.where(np.where(odd, partner > x, x > partner), partner, x)
    return x


@op("gather", "index x", "axis", traits="collective", layout="picks", scratch=of_gather)
def gather(o: Op) -> list[Type]:
    """Element index along `axis` of x, for every element of a tile of indices of x's shape but for the axis.

    Indices count modulo the size, a power of two.
    """
    index, t, axis = _tile(o), _tile(o, 1), o.attrs["axis"]
    if not isinstance(index.elem, DType) or not index.elem.is_int() or len(index.shape) != len(t.shape) or any(
            a != b for d, (a, b) in enumerate(zip(index.shape, t.shape)) if d != axis):
        raise CompilationError(f"gather: indices {index} along dimension {axis} of {t}", o.loc)
    return [Tile(index.shape, t.elem)]


@gather.meaning
def _gather(m: Any, o: Op, index: np.ndarray, x: np.ndarray) -> Any:
    axis = o.attrs["axis"]
    return np.take_along_axis(x, index.astype(np.int64) & (x.shape[axis] - 1), axis)


@op("convert", "x", traits="shape identity collective same_memory keeps_sign", layout="free", scratch=of_convert)
def convert(o: Op) -> list[Type]:
    """The same tile in the layout of the result's type."""
    return [_tile(o)]


@convert.meaning
def _convert(m: Any, o: Op, x: np.ndarray) -> Any:
    return x


@op("promote_reuse", "x", effects="control", traits="elementwise identity")
def promote_reuse(o: Op) -> list[Type]:
    """x; the shared memory of the buffers behind it shall be free from here on: scheduling separates if nothing does.
    """
    return [o.operands[0].type]


@promote_reuse.meaning
def _promote_reuse(m: Any, o: Op, x: np.ndarray) -> np.ndarray:
    return x
