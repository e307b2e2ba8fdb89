from __future__ import annotations

from typing import Any

from tilejit.errors import CompilationError
from tilejit.ir.types import DType
from tilejit.language import semantics as sem
from tilejit.language.semantics import to_tensor, unwrap
from tilejit.language.tensor import KernelBuilder, builtin, tensor


@builtin
def broadcast(input: Any, other: Any, *, _b: KernelBuilder) -> tuple:
    """Both tensors at their common shape."""
    return tuple(sem.broadcast(_b, to_tensor(_b, input), to_tensor(_b, other)))


def _varargs(args: tuple) -> tuple:
    return tuple(args[0]) if len(args) == 1 and isinstance(unwrap(args[0]), (tuple, list)) else args


@builtin(method=True)
def broadcast_to(input: tensor, *shape: Any, _b: KernelBuilder) -> tensor:
    """`input` repeated to `shape`."""
    return sem.broadcast_to(_b, to_tensor(_b, input), sem.as_shape(_varargs(shape)))


@builtin(method=True)
def expand_dims(input: tensor, axis: Any, *, _b: KernelBuilder) -> tensor:
    """Insert dimensions of size 1 at `axis` (an index or several)."""
    x = to_tensor(_b, input)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    rank = len(x.shape) + len(axes)
    axes = sorted((unwrap(a) % rank if -rank <= unwrap(a) < rank else unwrap(a)) for a in axes)
    for a in axes:
        if not 0 <= a < rank:
            raise CompilationError(f"invalid axis {a}. Expected {-rank} <= axis < {rank}")
    if len(set(axes)) < len(axes):
        raise CompilationError(f"expand_dims received duplicate axes, normalized axes = {axes}")
    for a in axes:
        x = tensor(_b("splat", x.value, shape=(1,)) if not x.shape else _b("expand_dims", x.value, axis=a))
    return x


@builtin(method=True)
def reshape(input: tensor, *shape: Any, can_reorder: bool = False, _b: KernelBuilder) -> tensor:
    """The same elements in row-major order."""
    given = _varargs(shape)
    if not given:
        return item(input, _b=_b)
    dims, x = sem.as_shape(given), to_tensor(_b, input)
    if dims == x.shape:
        return x
    if not x.shape and all(d == 1 for d in dims):
        return sem.broadcast_to(_b, x, dims)
    return tensor(_b("reshape", x.value, shape=dims))


@builtin(method=True)
def view(input: tensor, *shape: Any, _b: KernelBuilder) -> tensor:
    """As reshape."""
    return reshape(input, *shape, _b=_b)


@builtin(method=True)
def ravel(x: tensor, can_reorder: bool = False, *, _b: KernelBuilder) -> tensor:
    """As rank 1."""
    return reshape(x, (x.numel,), _b=_b)


@builtin(method=True)
def item(input: tensor, *, _b: KernelBuilder) -> tensor:
    """The element of a tile that has one, as a scalar."""
    from tilejit.language.reductions import fold

    x = to_tensor(_b, input)
    if x.numel != 1:
        raise CompilationError(f"item: expected a tile of one element, found {list(x.shape)}")
    return fold(_b, [x], None, lambda a, _: a, False, "item")[0] if x.shape else x


@builtin
def squeeze(x: tensor, dim: Any, *, _b: KernelBuilder) -> tensor:
    """Without dimension `dim`, of size 1."""
    at = _dim(dim, len(x.shape), "squeeze")
    if x.shape[at] != 1:
        raise CompilationError(f"squeeze: dimension {at} of {list(x.shape)} has size {x.shape[at]}, not 1")
    return reshape(x, x.shape[:at] + x.shape[at + 1:], _b=_b)


@builtin
def unsqueeze(x: tensor, dim: Any, *, _b: KernelBuilder) -> tensor:
    """With a dimension of size 1 at `dim`."""
    return expand_dims(x, _dim(dim, len(x.shape) + 1, "unsqueeze"), _b=_b)


@builtin(method=True)
def gather(src: tensor, index: tensor, axis: Any, *, _b: KernelBuilder) -> tensor:
    """src[.., index[i, j, ..], ..] along `axis`, in the shape of `index`, which has src's other sizes. An index outside
    of src counts modulo its size."""
    x, at = to_tensor(_b, src), to_tensor(_b, index)
    axis = _dim(axis, len(x.shape), "gather")
    if not (isinstance(at.elem, DType) and at.elem.is_int()):
        raise CompilationError(f"gather: index must be an integer tensor, found {at.elem}")
    if len(at.shape) != len(x.shape):
        raise CompilationError(f"gather: source and index tensors must have the same rank, found {list(x.shape)} and "
                               f"{list(at.shape)}")
    if any(n != m for d, (n, m) in enumerate(zip(at.shape, x.shape)) if d != axis):
        raise CompilationError(f"gather: index dim must match the corresponding source dim but along axis {axis}, "
                               f"found {list(at.shape)} for {list(x.shape)}")
    sem.whole_powers(x, "gather")
    return tensor(_b("gather", at.value, x.value, axis=axis))


def _dim(dim: Any, rank: int, what: str) -> int:
    at = sem.constant(dim, f"{what}'s dim")
    if not isinstance(at, int) or not -rank <= at < rank:
        raise CompilationError(f"{what}: dim {at} is out of range for rank {rank}")
    return at % rank


@builtin
def cat(input: tensor, other: tensor, can_reorder: bool = False, dim: Any = 0, *, _b: KernelBuilder) -> tensor:
    """Both have one shape. The order is always kept."""
    x, y = sem.common(_b, input, other)
    if input.shape != other.shape or not x.shape:
        raise CompilationError(f"cat: two tiles of the same shape expected, found {list(input.shape)} and "
                               f"{list(other.shape)}")
    rank = len(x.shape)
    at = _dim(dim, rank, "cat")
    both = trans(join(x, y, _b=_b), *range(at), rank, *range(at, rank), _b=_b)
    return reshape(both, (*x.shape[:at], 2 * x.shape[at], *x.shape[at + 1:]), _b=_b)


@builtin(method=True)
def trans(input: tensor, *dims: Any, _b: KernelBuilder) -> tensor:
    """Permute dimensions (default: swap the last two)."""
    order = tuple(unwrap(d) for d in _varargs(dims))
    rank = len(input.shape)
    if not order:
        if rank < 2:
            raise CompilationError(f"trans: a tile of rank {rank} has no two dimensions to swap")
        order = (*range(rank - 2), rank - 1, rank - 2)
    return tensor(_b("trans", input.value, order=tuple(d % rank for d in order)))


@builtin(method=True)
def permute(input: tensor, *dims: Any, _b: KernelBuilder) -> tensor:
    """Permute dimensions."""
    return trans(input, *dims, _b=_b)


@builtin
def join(a: Any, b: Any, *, _b: KernelBuilder) -> tensor:
    """Stack two tensors along a new last dimension."""
    x, y = sem.common(_b, a, b)
    if not x.shape:
        x, y = sem.broadcast_to(_b, x, (1,)), sem.broadcast_to(_b, y, (1,))
        return reshape(tensor(_b("join", x.value, y.value)), (2,), _b=_b)
    return tensor(_b("join", x.value, y.value))


@builtin(method=True)
def split(a: tensor, *, _b: KernelBuilder) -> tuple:
    """The halves of a last dimension of size 2."""
    if not a.shape or a.shape[-1] != 2:
        raise CompilationError(f"split: the last dimension must be 2, found {list(a.shape)}")
    if len(a.shape) == 1:
        lo, hi = split(reshape(a, (1, 2), _b=_b), _b=_b)
        return item(lo, _b=_b), item(hi, _b=_b)
    op = _b.op("split", a.value)
    return tensor(op.results[0]), tensor(op.results[1])


@builtin
def interleave(a: Any, b: Any, *, _b: KernelBuilder) -> tensor:
    """Alternate the elements of two tensors along the last dimension."""
    x, y = sem.common(_b, a, b)
    c = join(x, y, _b=_b)
    return reshape(c, (*x.shape[:-1], 2 * x.shape[-1]), _b=_b) if x.shape else c


__all__ = ["broadcast", "broadcast_to", "cat", "expand_dims", "gather", "interleave", "item", "join", "permute",
           "ravel", "reshape", "split", "squeeze", "trans", "unsqueeze", "view"]
