"""Block pointers, which Triton had until 3.8: a base, sizes, strides, the offsets of a block, and its shape
(docs/language.md)."""
from __future__ import annotations

from typing import Any

from tilejit.errors import CompilationError
from tilejit.ir.types import DType, Ptr, int32, int64
from tilejit.language import semantics as sem
from tilejit.language.semantics import to_tensor, unwrap
from tilejit.language.tensor import Compound, KernelBuilder, builtin, tensor


class BlockPointer(Compound):
    whole = True

    def __init__(self, dims: list[Any], block: tuple[int, ...]):
        self.dims, self.block = dims, block

    @property
    def dtype(self) -> Ptr:
        elem = self.dims[0].elem
        assert isinstance(elem, Ptr)
        return elem

    @property
    def type(self) -> Ptr:
        return self.dtype

    @property
    def sizes(self) -> list[Any]:
        return self.dims[1:1 + len(self.block)]

    @property
    def strides(self) -> list[Any]:
        """In elements."""
        return self.dims[1 + len(self.block):1 + 2 * len(self.block)]

    @property
    def offsets(self) -> list[Any]:
        return self.dims[1 + 2 * len(self.block):]

    def alike(self, other: Compound) -> bool:
        return isinstance(other, BlockPointer) and (self.block, self.dtype) == (other.block, other.dtype)

    def parts(self, b: KernelBuilder) -> list[Any]:
        return self.dims

    def remade(self, b: KernelBuilder, parts: list[Any]) -> BlockPointer:
        return BlockPointer(parts, self.block)

    def part(self, b: KernelBuilder, x: Any, i: int) -> Any:
        t = int64 if len(self.block) < i <= 2 * len(self.block) else int32
        return x if isinstance(x, tensor) else tensor(b.const(x, t))

    def same(self, other: Compound) -> bool:
        return isinstance(other, BlockPointer) and self.block == other.block and all(
            x.value is y.value if isinstance(x, tensor) and isinstance(y, tensor) else
            not isinstance(x, tensor) and not isinstance(y, tensor) and x == y for x, y in zip(self.dims, other.dims))

    def __repr__(self) -> str:
        return f"block pointer<{self.dtype.elem}[{'x'.join(map(str, self.block))}]>"


@builtin
def make_block_ptr(base: tensor, shape: Any, strides: Any, offsets: Any, block_shape: Any, order: Any, *,
                   _b: KernelBuilder) -> BlockPointer:
    """To the block at `offsets` of the tensor at `base`; sizes, strides and offsets in elements. `order` is a hint
    without effect."""
    if not isinstance(base, tensor) or not isinstance(base.elem, Ptr) or base.shape:
        raise CompilationError(f"make_block_ptr: the base must be a pointer, found {base!r}")
    block = sem.as_shape(block_shape)
    lists = [[unwrap(x) for x in (v if isinstance(v, (tuple, list)) else (v,))] for v in (shape, strides, offsets)]
    dimensions = [unwrap(d) for d in order]
    if any(len(v) != len(block) for v in lists) or len(dimensions) != len(block):
        raise CompilationError(f"make_block_ptr: shape, strides, offsets, block_shape and order must have one length, "
                               f"found {[len(v) for v in lists]}, {len(block)} and {len(dimensions)}")
    if sorted(dimensions) != [*range(len(block))]:
        raise CompilationError(f"make_block_ptr: order must be a permutation of {[*range(len(block))]}, "
                               f"found {dimensions}")
    for what, v in zip(("shape", "strides", "offsets"), lists):
        for x in v:
            if not isinstance(x, int) and not (isinstance(x, tensor) and not x.shape and isinstance(x.elem, DType)
                                               and x.elem.is_int()):
                raise CompilationError(f"make_block_ptr: {what} must be integers, found {x!r}")
    starts = [sem.cast(_b, x, int32) if isinstance(x, tensor) else x for x in lists[2]]
    return BlockPointer([base, *lists[0], *lists[1], *starts], block)


@builtin
def advance(base: BlockPointer, offsets: Any, *, _b: KernelBuilder) -> BlockPointer:
    """The block pointer moved by `offsets` elements."""
    if not isinstance(base, BlockPointer):
        raise CompilationError(f"advance: expected a block pointer, found {base!r}")
    steps = [unwrap(x) for x in (offsets if isinstance(offsets, (tuple, list)) else (offsets,))]
    if len(steps) != len(base.block):
        raise CompilationError(f"advance: expected {len(base.block)} offsets, found {len(steps)}")
    moved = [x + d if isinstance(x, int) and isinstance(d, int) else x if isinstance(d, int) and d == 0 else
             sem.cast(_b, sem.binary(_b, "+", x, d), int32) for x, d in zip(base.offsets, steps)]
    return BlockPointer([*base.dims[:1 + 2 * len(base.block)], *moved], base.block)


def load_block(b: KernelBuilder, p: BlockPointer, boundary_check: Any, padding_option: Any, **attrs: Any) -> tensor:
    """The block; outside the tensor, in the dimensions of `boundary_check`: zero, or NaN by padding_option."""
    checked, padding = _checked(p, boundary_check), unwrap(padding_option) or "zero"
    if padding not in ("zero", "nan"):
        raise CompilationError(f"load: padding_option is 'zero' or 'nan', found {padding!r}")
    if padding == "nan" and p.dtype.elem.is_int():
        raise CompilationError(f"load: Padding option `nan` is not supported for integer block pointers "
                               f"({p.dtype.elem})")
    reason = _not_a_descriptor(p, checked)
    if reason is None:
        desc, turned, offsets = _descriptor(b, p, padding)
        evict = {"evict": attrs["evict"]} if attrs.get("evict") in ("evict_first", "evict_last") else {}
        back = tuple(turned.index(d) for d in range(len(turned)))
        return _turn(b, tensor(b("desc_load", desc, *offsets, **evict)), back)
    b.note("pointers", f"load of a {p!r} goes through pointers, not TMA: {reason}")
    pointer, mask = _pointers(b, p, checked)
    if mask is None:
        return tensor(b("load", pointer.value, **attrs))
    fill = sem.splat_const(b, float("nan") if padding == "nan" else 0, p.block, p.dtype.elem)
    return tensor(b("load", pointer.value, mask.value, fill.value, **attrs))


def store_block(b: KernelBuilder, p: BlockPointer, value: Any, boundary_check: Any, **attrs: Any) -> None:
    """Write a block; elements outside the tensor, in the dimensions of `boundary_check`, are dropped."""
    checked = _checked(p, boundary_check)
    v = sem.cast(b, to_tensor(b, value), p.dtype.elem)
    if v.shape and v.shape != p.block:
        raise CompilationError(f"store: Block shape({list(p.block)}) and value shape({list(v.shape)}) mismatch")
    v = sem.broadcast_to(b, v, p.block)
    reason = _not_a_descriptor(p, checked)
    if reason is None:
        desc, turned, offsets = _descriptor(b, p, "zero")
        b.op("desc_store", desc, _turn(b, v, turned).value, *offsets)
        return
    b.note("pointers", f"store of a {p!r} goes through pointers, not TMA: {reason}")
    pointer, mask = _pointers(b, p, checked)
    b.op("store", pointer.value, v.value, *([] if mask is None else [mask.value]), **attrs)


def _checked(p: BlockPointer, boundary_check: Any) -> set[int]:
    given = unwrap(boundary_check) or ()
    dims = [unwrap(d) for d in (given if isinstance(given, (tuple, list)) else (given,))]
    for d in dims:
        if not isinstance(d, int) or not 0 <= d < len(p.block):
            raise CompilationError(f"boundary_check: {d!r} is no dimension of a block of rank {len(p.block)}")
    if len(set(dims)) != len(dims):
        raise CompilationError(f"boundary_check: Duplicate dimension in {dims}")
    return set(dims)


def _unit(p: BlockPointer) -> int | None:
    return next((d for d in reversed(range(len(p.block))) if isinstance(p.strides[d], int) and p.strides[d] == 1), None)


def _wide(size: Any) -> bool:
    return size >= 2 ** 31 if isinstance(size, int) else size.elem.bits == 64


def _not_a_descriptor(p: BlockPointer, checked: set[int]) -> str | None:
    unit = _unit(p)
    if unit is None:
        return "no stride is the constant 1"
    if p.block[unit] * p.dtype.elem.bytes < 16:
        return f"its innermost block is {p.block[unit] * p.dtype.elem.bytes} bytes, TMA needs 16"
    for d, (size, offset) in enumerate(zip(p.sizes, p.offsets)):
        if _wide(size):
            return f"dimension {d} may have 2^31 elements or more"
        inside = isinstance(size, int) and isinstance(offset, int) and 0 <= offset <= size - p.block[d]
        if d not in checked and not inside:
            return f"dimension {d} is neither in boundary_check nor known to be inside"
    return None


def _descriptor(b: KernelBuilder, p: BlockPointer, padding: str) -> tuple[Any, tuple[int, ...], list[Any]]:
    unit = _unit(p)
    assert unit is not None
    order = (*(d for d in range(len(p.block)) if d != unit), unit)

    def scalars(values: list[Any], t: DType) -> list[Any]:
        return [sem.cast(b, to_tensor(b, values[d], None if isinstance(values[d], tensor) else t), t).value
                for d in order]

    desc = b("make_desc", p.dims[0].value, *scalars(p.sizes, int32), *scalars(p.strides, int64),
             block_shape=tuple(p.block[d] for d in order), padding=padding, anywhere=True)
    return desc, order, scalars(p.offsets, int32)


def _turn(b: KernelBuilder, x: tensor, order: tuple[int, ...]) -> tensor:
    return x if order == tuple(range(len(order))) else tensor(b("trans", x.value, order=order))


def _pointers(b: KernelBuilder, p: BlockPointer, checked: set[int]) -> tuple[tensor, tensor | None]:
    rank = len(p.block)
    corner, tile, mask = p.dims[0], None, None
    for d, n in enumerate(p.block):
        lane = tensor(b("arange", start=0, end=n))
        stride, offset = p.strides[d], to_tensor(b, p.offsets[d])
        if d in checked:
            places = sem.cast(b, lane, int64) if _wide(p.sizes[d]) else lane
            index = sem.binary(b, "+", places, offset)
            inside = sem.binary(b, "&", sem.binary(b, ">=", index, 0), sem.binary(b, "<", index, p.sizes[d]))
            inside = _along(b, inside, d, rank)
            mask = inside if mask is None else sem.binary(b, "&", mask, inside)
        corner = sem.binary(b, "+", corner, sem.binary(b, "*", sem.cast(b, offset, int64), stride))
        wide = sem.cast(b, lane, int64)
        step = _along(b, wide if isinstance(stride, int) and stride == 1 else sem.binary(b, "*", wide, stride), d, rank)
        tile = step if tile is None else sem.binary(b, "+", tile, step)
    assert tile is not None
    pointer = sem.broadcast_to(b, sem.binary(b, "+", corner, tile), p.block)
    return pointer, None if mask is None else sem.broadcast_to(b, mask, p.block)


def _along(b: KernelBuilder, x: tensor, dim: int, rank: int) -> tensor:
    for d in range(rank):
        if d != dim:
            x = tensor(b("expand_dims", x.value, axis=d))
    return x


__all__ = ["advance", "make_block_ptr"]
