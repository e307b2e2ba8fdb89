"""The builtins of the tile language: names, argument order and semantics are Triton's."""
from __future__ import annotations

import builtins
from typing import Any

from tilejit.errors import CompilationError
from tilejit.ir import Block
from tilejit.ir.types import (
    Desc,
    DType,
    Ptr,
    fp16,
    fp32,
    fp64,
    int1,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from tilejit.language import semantics as sem
from tilejit.language.semantics import to_tensor, unwrap
from tilejit.language.tensor import KernelBuilder, builtin, tensor, tensor_descriptor


def _const(x: Any, what: str) -> Any:
    x = unwrap(x)
    if isinstance(x, tensor):
        raise CompilationError(f"{what} must be a constant: mark the argument as tl.constexpr")
    return x


# -- programs and constants -----------------------------------------------------------------------------
@builtin
def program_id(axis: int, *, _b: KernelBuilder) -> tensor:
    """Index of this program along grid axis 0, 1 or 2 (int32)."""
    axis = _const(axis, "the axis of program_id")
    if axis not in (0, 1, 2):
        raise CompilationError(f"program_id: axis must be 0, 1 or 2, found {axis}")
    return tensor(_b("program_id", axis=axis))


@builtin
def num_programs(axis: int, *, _b: KernelBuilder) -> tensor:
    """Number of programs along grid axis 0, 1 or 2 (int32)."""
    axis = _const(axis, "the axis of num_programs")
    if axis not in (0, 1, 2):
        raise CompilationError(f"num_programs: axis must be 0, 1 or 2, found {axis}")
    return tensor(_b("num_programs", axis=axis))


@builtin
def arange(start: int, end: int, *, _b: KernelBuilder) -> tensor:
    """The int32 tile [start, end); end - start is a power of two."""
    start, end = _const(start, "arange's start"), _const(end, "arange's end")
    if end <= start:
        raise CompilationError(f"arange: end {end} must be above start {start}")
    sem.as_shape((end - start,))
    return tensor(_b("arange", start=start, end=end))


@builtin
def full(shape: Any, value: Any, dtype: Any, *, _b: KernelBuilder) -> tensor:
    """A tile of `shape` filled with `value`."""
    return sem.splat_const(_b, value, sem.as_shape(shape), sem.as_dtype(dtype))


@builtin
def zeros(shape: Any, dtype: Any, *, _b: KernelBuilder) -> tensor:
    """A tile of zeros."""
    return sem.splat_const(_b, 0, sem.as_shape(shape), sem.as_dtype(dtype))


@builtin
def zeros_like(input: tensor, *, _b: KernelBuilder) -> tensor:
    """Zeros of the shape and dtype of `input`."""
    return sem.splat_const(_b, 0, input.shape, input.elem)


# -- memory -----------------------------------------------------------------------------------------------
def _mask_to(b: KernelBuilder, mask: Any, shape: tuple[int, ...], what: str) -> tensor:
    m = to_tensor(b, mask)
    if m.elem != int1:
        raise CompilationError(f"{what}: the mask must be a boolean tile, found {m.elem}: write mask != 0")
    return sem.broadcast_to(b, m, shape)


def _pointer(x: Any, what: str) -> Ptr:
    if not isinstance(x, tensor) or not isinstance(x.elem, Ptr):
        found = x.elem if isinstance(x, tensor) else type(x).__name__
        raise CompilationError(f"{what}: expected a pointer, found {found}")
    return x.elem


@builtin
def load(pointer: tensor, mask: Any = None, other: Any = None, boundary_check: Any = (),
         padding_option: str = "", cache_modifier: str = "", eviction_policy: str = "",
         volatile: bool = False, *, _b: KernelBuilder) -> tensor:
    """Elements at `pointer` (a scalar or tile of pointers); where `mask` is false: `other`, or zero."""
    if isinstance(pointer, tensor_descriptor):
        raise CompilationError("load of a descriptor: write desc.load(offsets)")
    elem = _pointer(pointer, "load").elem
    mask, other = unwrap(mask), unwrap(other)
    if mask is None and other is not None:
        raise CompilationError("load: `other` needs a `mask`")
    shape = pointer.shape
    if mask is not None and isinstance(mask, tensor) and not shape and mask.shape:
        raise CompilationError(f"load: the mask has shape {list(mask.shape)}, the pointer is a scalar")
    operands = [pointer.value]
    if mask is not None:
        operands.append(_mask_to(_b, mask, shape, "load").value)
    if other is not None:
        o = sem.cast(_b, to_tensor(_b, other), elem)
        operands.append(sem.broadcast_to(_b, o, shape).value)
    return tensor(_b("load", *operands, cache=_const(cache_modifier, "cache_modifier"),
                     evict=_const(eviction_policy, "eviction_policy"), volatile=bool(unwrap(volatile))))


@builtin
def store(pointer: tensor, value: Any, mask: Any = None, boundary_check: Any = (),
          cache_modifier: str = "", eviction_policy: str = "", *, _b: KernelBuilder) -> None:
    """Write `value` (cast to the element type) at `pointer` where `mask` is true."""
    elem = _pointer(pointer, "store").elem
    v = sem.cast(_b, to_tensor(_b, value), elem)
    if len(v.shape) > len(pointer.shape):
        raise CompilationError(f"store: the value has shape {list(v.shape)}, the pointer "
                               f"{list(pointer.shape)}")
    operands = [pointer.value, sem.broadcast_to(_b, v, pointer.shape).value]
    if unwrap(mask) is not None:
        operands.append(_mask_to(_b, mask, pointer.shape, "store").value)
    _b.op("store", *operands, cache=_const(cache_modifier, "cache_modifier"),
          evict=_const(eviction_policy, "eviction_policy"))


def _atomic(kind: str):
    def rmw(pointer: tensor, val: Any, mask: Any = None, sem_: Any = None, scope: Any = None, *,
            _b: KernelBuilder, **kw: Any) -> tensor:
        elem = _pointer(pointer, f"atomic_{kind}").elem
        if elem.bits < 16 or (elem.bits == 16 and not elem.is_float):
            raise CompilationError(f"atomic_{kind}: {elem} is not supported; use 32 or 64 bits")
        v = sem.broadcast_to(_b, sem.cast(_b, to_tensor(_b, val), elem), pointer.shape)
        operands = [pointer.value, v.value]
        if unwrap(mask) is not None:
            operands.append(_mask_to(_b, mask, pointer.shape, f"atomic_{kind}").value)
        return tensor(_b("atomic_rmw", *operands, kind=kind, sem=unwrap(kw.get("sem", sem_)) or "acq_rel",
                         scope=unwrap(scope) or "gpu"))
    rmw.__name__ = f"atomic_{kind}"
    rmw.__doc__ = f"Atomic {kind} at `pointer`; returns the old values."
    return builtin(rmw, method=True)


atomic_add, atomic_max, atomic_min, atomic_and, atomic_or, atomic_xor, atomic_xchg = (
    _atomic(k) for k in ("add", "max", "min", "and", "or", "xor", "xchg"))


@builtin(method=True)
def atomic_cas(pointer: tensor, cmp: Any, val: Any, sem_: Any = None, scope: Any = None, *,
               _b: KernelBuilder, **kw: Any) -> tensor:
    """Atomic compare and swap; returns the old values."""
    elem = _pointer(pointer, "atomic_cas").elem
    c, v = (sem.broadcast_to(_b, sem.cast(_b, to_tensor(_b, x), elem), pointer.shape) for x in (cmp, val))
    return tensor(_b("atomic_cas", pointer.value, c.value, v.value,
                     sem=unwrap(kw.get("sem", sem_)) or "acq_rel", scope=unwrap(scope) or "gpu"))


# -- descriptors --------------------------------------------------------------------------------------------
@builtin
def make_tensor_descriptor(base: tensor, shape: Any, strides: Any, block_shape: Any,
                           padding_option: str = "zero", *, _b: KernelBuilder) -> tensor_descriptor:
    """A descriptor of the tensor at `base`; sizes and strides in elements, the last stride is 1."""
    elem = _pointer(base, "make_tensor_descriptor").elem
    block = sem.as_shape(block_shape)
    if len(shape) != len(block) or len(strides) != len(block):
        raise CompilationError(f"make_tensor_descriptor: {len(shape)} sizes, {len(strides)} strides and a "
                               f"block of rank {len(block)}: the ranks must agree")
    if isinstance(unwrap(strides[-1]), tensor) or unwrap(strides[-1]) != 1:
        raise CompilationError("make_tensor_descriptor: the last stride must be the constant 1")
    if block[-1] * elem.bytes < 16:
        raise CompilationError(f"make_tensor_descriptor: the last block dimension must be at least 16 bytes, "
                               f"found {block[-1]} x {elem}")
    dims = [sem.cast(_b, to_tensor(_b, s), int32).value for s in shape]
    dims += [sem.cast(_b, to_tensor(_b, s), int64).value for s in strides]
    return tensor_descriptor(_b("make_desc", base.value, *dims, block_shape=block,
                                padding=_const(padding_option, "padding_option")))


def _offsets(b: KernelBuilder, desc: tensor_descriptor, offsets: Any) -> list:
    if not isinstance(offsets, (tuple, list)):
        offsets = (offsets,)
    if len(offsets) != len(desc.block_shape):
        raise CompilationError(f"a descriptor of rank {len(desc.block_shape)} needs as many offsets, "
                               f"found {len(offsets)}")
    return [sem.cast(b, to_tensor(b, o), int32).value for o in offsets]


@builtin
def load_tensor_descriptor(desc: tensor_descriptor, offsets: Any, eviction_policy: str = "", *,
                           _b: KernelBuilder) -> tensor:
    """The block at `offsets`; outside the tensor: the descriptor's padding. eviction_policy: "evict_first" or
    "evict_last", in L2 (where TMA loads it)."""
    evict = _const(eviction_policy, "eviction_policy")
    if evict not in ("", "evict_first", "evict_last"):
        raise CompilationError(f"eviction_policy of a descriptor's load is evict_first or evict_last, found {evict!r}")
    return tensor(_b("desc_load", desc.value, *_offsets(_b, desc, offsets), **({"evict": evict} if evict else {})))


@builtin
def store_tensor_descriptor(desc: tensor_descriptor, offsets: Any, value: Any, *, _b: KernelBuilder) -> None:
    """Write a block at `offsets`; elements outside the tensor are dropped."""
    _b.op("desc_store", desc.value, _block_value(_b, desc, value, "store").value, *_offsets(_b, desc, offsets))


def _block_value(b: KernelBuilder, desc: tensor_descriptor, value: Any, what: str) -> tensor:
    """A value in the descriptor's element type and block shape."""
    t: Desc = desc.type
    v = sem.cast(b, to_tensor(b, value), t.elem)
    if v.shape != t.block_shape and v.shape:
        raise CompilationError(f"{what} through a descriptor of blocks {list(t.block_shape)}: found a value "
                               f"of shape {list(v.shape)}")
    return sem.broadcast_to(b, v, t.block_shape)


def _desc_atomic(kind: str):
    def atomic(desc: tensor_descriptor, offsets: Any, value: Any, *, _b: KernelBuilder) -> None:
        v = _block_value(_b, desc, value, f"atomic_{kind}")
        _b.op("desc_atomic", desc.value, v.value, *_offsets(_b, desc, offsets), kind=kind)
    atomic.__name__ = f"atomic_{kind}"
    atomic.__doc__ = f"Atomic {kind} of a block into the tensor at `offsets`; elements outside it are dropped."
    return builtin(atomic)


#: What a descriptor can do, by name: `desc.load(offsets)`, `desc.atomic_add(offsets, value)`, ...
DESCRIPTOR_METHODS = {"load": load_tensor_descriptor, "store": store_tensor_descriptor,
                      **{f"atomic_{k}": _desc_atomic(k) for k in ("add", "min", "max", "and", "or", "xor")}}


# -- shapes ---------------------------------------------------------------------------------------------------
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
    for a in sorted((unwrap(a) % rank if -rank <= unwrap(a) < rank else unwrap(a)) for a in axes):
        if not 0 <= a < rank:
            raise CompilationError(f"expand_dims: axis {a} is out of range for rank {rank}")
        x = tensor(_b("splat", x.value, shape=(1,)) if not x.shape else _b("expand_dims", x.value, axis=a))
    return x


@builtin(method=True)
def reshape(input: tensor, *shape: Any, can_reorder: bool = False, _b: KernelBuilder) -> tensor:
    """The same elements in row-major order under another shape."""
    dims = sem.as_shape(_varargs(shape))
    if dims == input.shape:
        return input
    return tensor(_b("reshape", input.value, shape=dims))


@builtin(method=True)
def view(input: tensor, *shape: Any, _b: KernelBuilder) -> tensor:
    """As reshape."""
    return reshape(input, *shape, _b=_b)


@builtin(method=True)
def ravel(x: tensor, can_reorder: bool = False, *, _b: KernelBuilder) -> tensor:
    """As a rank-1 tile."""
    return reshape(x, (x.numel,), _b=_b)


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
    """The two halves of a last dimension of size 2."""
    if not a.shape or a.shape[-1] != 2:
        raise CompilationError(f"split: the last dimension must be 2, found {list(a.shape)}")
    if len(a.shape) == 1:
        lo, hi = split(reshape(a, (1, 2), _b=_b), _b=_b)
        return tuple(sum(x, 0, _b=_b) for x in (lo, hi))
    op = _b.op("split", a.value)
    return tensor(op.results[0]), tensor(op.results[1])


@builtin
def interleave(a: Any, b: Any, *, _b: KernelBuilder) -> tensor:
    """Alternate the elements of two tensors along the last dimension."""
    x, y = sem.common(_b, a, b)
    c = join(x, y, _b=_b)
    return reshape(c, (*x.shape[:-1], 2 * x.shape[-1]), _b=_b) if x.shape else c


# -- types and choices --------------------------------------------------------------------------------------
@builtin(method=True)
def cast(input: Any, dtype: Any, fp_downcast_rounding: str | None = None, bitcast: bool = False, *,
         _b: KernelBuilder) -> tensor:
    """Convert to `dtype`; with `bitcast`, reinterpret the bits."""
    x, t = to_tensor(_b, input), sem.as_dtype(dtype)
    if unwrap(bitcast):
        return x if x.elem == t else tensor(_b("bitcast", x.value, dtype=t))
    return sem.cast(_b, x, t, unwrap(fp_downcast_rounding))


@builtin(method=True)
def to(input: Any, dtype: Any, fp_downcast_rounding: str | None = None, bitcast: bool = False, *,
       _b: KernelBuilder) -> tensor:
    """As cast."""
    return cast(input, dtype, fp_downcast_rounding, bitcast, _b=_b)


@builtin
def where(condition: Any, x: Any, y: Any, *, _b: KernelBuilder) -> tensor:
    """x where condition else y, element by element."""
    c = sem.to_bool(_b, condition)
    tx, ty = sem.common(_b, x, y)
    c, tx, ty = sem.broadcast(_b, c, tx, ty)
    return tensor(_b("select", c.value, tx.value, ty.value))


@builtin
def multiple_of(input: tensor, values: Any, *, _b: KernelBuilder) -> tensor:
    """Promise that the first element of each run is a multiple of `values` (per dimension)."""
    return _hint(_b, input, "divisible", values)


@builtin
def max_contiguous(input: tensor, values: Any, *, _b: KernelBuilder) -> tensor:
    """Promise that runs of `values` elements are consecutive (per dimension)."""
    return _hint(_b, input, "contiguous", values)


@builtin
def max_constancy(input: tensor, values: Any, *, _b: KernelBuilder) -> tensor:
    """Promise that runs of `values` elements are equal (per dimension)."""
    return _hint(_b, input, "constant", values)


def _hint(b: KernelBuilder, x: Any, what: str, values: Any) -> tensor:
    vals = tuple(unwrap(v) for v in (values if isinstance(values, (tuple, list)) else (values,)))
    t = to_tensor(b, x)
    if len(vals) != builtins.max(1, len(t.shape)):
        raise CompilationError(f"{what}: one value per dimension of {list(t.shape)} expected, found {list(vals)}")
    return tensor(b("hint", t.value, **{what: vals}))


@builtin
def promote_reuse(input: tensor, *, _b: KernelBuilder) -> tensor:
    """Promise that the shared memory behind a tile is not needed from here on, and ask for its bytes to be used again.

    Behind a tile are the blocks that TMA loaded for it and the operands of the products that it is a sum of. Returns
    the tile. Later buffers then take those bytes even where they would not otherwise, behind a separation (a meeting of
    the threads here, or an mbarrier between roles) if there is none. nvFuser has the idea under the same name."""
    return tensor(_b("promote_reuse", to_tensor(_b, input).value))


@builtin
def assume(cond: Any, *, _b: KernelBuilder) -> None:
    """Promise that a scalar condition holds."""
    if isinstance(unwrap(cond), tensor):
        _b.op("assume", sem.to_bool(_b, cond).value)


@builtin
def debug_barrier(*, _b: KernelBuilder) -> None:
    """All threads of the program meet, and see each other's earlier accesses of global and shared memory.

    Needed between a `tl.store` and a `tl.load` of the same global memory in one program: a tile's elements may be
    loaded by other threads than those that stored them, and nothing else orders the two (as in Triton)."""
    _b.op("debug_barrier")


@builtin
def device_assert(cond: Any, msg: str = "", mask: Any = None, *, _b: KernelBuilder) -> None:
    """Trap when `cond` is false (emitted only when the kernel is compiled with debug=True)."""
    if _b.debug:  # type: ignore[attr-defined]
        _b.op("device_assert", sem.to_bool(_b, cond).value, message=unwrap(msg))


@builtin
def device_print(prefix: str, *args: Any, hex: bool = False, _b: KernelBuilder) -> None:
    """Print tiles and scalars at run time, one line for each element: `pid (0, 0, 0) idx ( 5) prefix: 2.5`.

    `prefix` is a constant text; `hex` shows bits. Python's print() is the same. A call inside a kernel costs
    registers and makes ptxas wait for every wgmma where it is issued: for debugging only."""
    prefix = unwrap(prefix)
    if not isinstance(prefix, str):
        raise CompilationError(f"device_print: the first argument is a constant text, found {prefix!r}")
    if "\0" in prefix:
        raise CompilationError("device_print: the text contains a NUL character")
    if args and not prefix.endswith(": "):
        prefix = prefix.rstrip(" ") + ": "
    if not prefix.startswith(" "):
        prefix = " " + prefix
    made = [_printable(_b, to_tensor(_b, a), bool(unwrap(hex))) for a in args]
    _b.op("device_print", *(t.value for t, _ in made), prefix=prefix, conversions=tuple(c for _, c in made))


def _printable(b: KernelBuilder, x: tensor, hex: bool) -> tuple[tensor, str]:
    """A value in a type that C prints, and the conversion for it."""
    t = x.elem
    if isinstance(t, Ptr):
        return sem.cast(b, x, uint64), "0x%016llx"
    if hex:
        bits = builtins.max(8, t.bits)
        if t.is_float or t.is_signed and t != int1:
            bare = {8: uint8, 16: uint16, 32: uint32, 64: uint64}[bits]
            x = tensor(b("bitcast", x.value, dtype=bare))
        return sem.cast(b, x, uint64 if bits == 64 else uint32), f"0x%0{bits // 4}{'ll' if bits == 64 else ''}x"
    if t.is_float:
        return sem.cast(b, sem.cast(b, x, fp32) if t.bits < 32 else x, fp64), "%f"
    if t.bits == 64:
        return x, "%lld" if t.is_signed else "%llu"
    if t == int1 or t.is_signed:
        return sem.cast(b, x, int32), "%d"
    return sem.cast(b, x, uint32), "%u"


# -- products and reductions ------------------------------------------------------------------------------------
_DOT = {"fp16": ("fp16",), "bf16": ("bf16",), "fp32": ("fp32",), "fp8e4nv": ("fp8e4nv", "fp8e5"),
        "fp8e5": ("fp8e4nv", "fp8e5"), "int8": ("int8", "uint8"), "uint8": ("int8", "uint8")}


@builtin
def dot(input: tensor, other: tensor, acc: Any = None, input_precision: str | None = None,
        allow_tf32: bool | None = None, max_num_imprecise_acc: int | None = None, out_dtype: Any = fp32,
        depth: Any = None, *, _b: KernelBuilder) -> tensor:
    """input [M,K] @ other [K,N] (+ acc): fp16, bf16, tf32 (fp32 inputs), fp8 with fp32 sums; int8 with int32.

    depth: elements of K that are multiplied, the first so many (a multiple of 32 bytes; default: all). The others may
    be anything: so the last block of a ragged K need not take as long as a whole one."""
    a, c = input, other
    for name, x in (("input", a), ("other", c)):
        if not isinstance(x, tensor) or len(x.shape) != 2:
            raise CompilationError(f"dot: {name} must be a tile of rank 2, found {x!r}")
    ea, ec = str(a.elem), str(c.elem)
    if ec not in _DOT.get(ea, ()):
        pairs = ", ".join(f"{k} x {'/'.join(v)}" for k, v in _DOT.items())
        raise CompilationError(f"dot: {ea} x {ec} is not a pair that the tensor cores take; legal: {pairs}")
    (m, k), (k2, n) = a.shape, c.shape
    if k != k2:
        raise CompilationError(f"dot: ({m},{k}) @ ({k2},{n}): inner dimensions {k} != {k2}")
    assert isinstance(a.elem, DType)
    step = 16 // a.elem.bytes
    warps, target = _b.num_warps, _b.target  # type: ignore[attr-defined]
    if m % 16:
        raise CompilationError(f"dot: M={m} must be a multiple of 16 (the tensor cores compute 16 rows at a time)")
    if k % step:
        raise CompilationError(f"dot: K={k} must be a multiple of {step} for {ea} (16 bytes)")
    if n % 8:
        raise CompilationError(f"dot: N={n} must be a multiple of 8")
    if a.elem.is_fp8 and not target.hopper:
        raise CompilationError(f"dot: {target.name} has no tensor cores for {ea}; use fp16, or target=\"sm_90a\"")
    out = int32 if a.elem.is_int else sem.as_dtype(out_dtype)
    if a.elem.is_float and out not in (fp32, fp16):
        raise CompilationError(f"dot: out_dtype must be float32 (or float16), found {out}")
    total = int32 if a.elem.is_int else fp32
    per_thread = m * n // (32 * warps)
    if per_thread > 208:
        raise CompilationError(f"dot: the {m}x{n} accumulator needs {per_thread} registers per thread with "
                               f"num_warps={warps}, at most 208 fit: use more warps or a smaller tile")
    if unwrap(acc) is None:
        acc_t = sem.splat_const(_b, 0, (m, n), total)
    else:
        acc_t = sem.cast(_b, to_tensor(_b, acc), total)
        if acc_t.shape != (m, n):
            raise CompilationError(f"dot: acc has shape {list(acc_t.shape)}, the product {[m, n]}")
    precision = unwrap(input_precision) or ("tf32" if unwrap(allow_tf32) in (None, True) else "ieee")
    if a.elem == fp32 and precision != "tf32":
        raise CompilationError(f"dot: input_precision={precision!r} is not supported for fp32; use 'tf32'")
    attrs = {"precision": precision} if a.elem == fp32 else {}
    used = unwrap(depth)
    if used is not None and used != k:
        if not isinstance(used, int) or not 0 < used < k or used * a.elem.bytes % 32:
            raise CompilationError(f"dot: depth={used!r} must be a constant multiple of {32 // a.elem.bytes} "
                                   f"(32 bytes), at most K={k}")
        attrs["depth"] = used
    result = tensor(_b("dot", a.value, c.value, acc_t.value, **attrs))
    return sem.cast(_b, result, out)


def _axis(axis: Any, rank: int, what: str) -> int:
    axis = _const(axis, f"{what}'s axis")
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise CompilationError(f"{what}: axis {axis} is out of range for a tile of rank {rank}")
    return axis % rank


def fold(b: KernelBuilder, xs: list[tensor], axis: Any, combine, keep_dims: bool, what: str) -> list[tensor]:
    """Reduce tensors of one shape along an axis (None: all elements) with combine(b, left, right)."""
    keep_dims = bool(unwrap(keep_dims))
    shape = xs[0].shape
    if not shape:
        raise CompilationError(f"{what}: expected a tile, found a scalar")
    if unwrap(axis) is None:
        xs = [reshape(x, (x.numel,), _b=b) for x in xs]
        axis = 0
        final = (1,) * len(shape)
    else:
        axis = _axis(axis, len(shape), what)
        final = (*shape[:axis], 1, *shape[axis + 1:])
    region = Block(tuple(x.elem for x in xs) * 2)
    outer, b.block, at, b.at = b.block, region, b.at, None
    n = len(xs)
    try:
        args = [tensor(v) for v in region.args]
        results = combine(args[:n], args[n:])
        results = [sem.cast(b, to_tensor(b, r), x.elem) for r, x in zip(results, xs)]
        b.op("yield", *(r.value for r in results))
    finally:
        b.block, b.at = outer, at
    sem.whole_powers(xs[0], what)
    op = b.op("reduce", *(x.value for x in xs), regions=[region], axis=axis)
    out = [tensor(r) for r in op.results]
    if keep_dims:
        out = [sem.broadcast_to(b, t, final) if not t.shape else reshape(t, final, _b=b) for t in out]
    return out


@builtin(method=True)
def reduce(input: Any, axis: Any, combine_fn: Any, keep_dims: bool = False, *, _b: KernelBuilder) -> Any:
    """Reduce a tensor, or a tuple of tensors, with a kernel function combine_fn(left.., right..)."""
    many = isinstance(input, (tuple, list))
    xs = list(input) if many else [input]

    def combine(left: list[tensor], right: list[tensor]) -> list:
        r = _b.call(combine_fn, [*left, *right], {})
        return list(r) if isinstance(r, tuple) else [r]

    out = fold(_b, xs, axis, combine, keep_dims, "reduce")
    return tuple(out) if many else out[0]


@builtin(method=True)
def sum(input: tensor, axis: Any = None, keep_dims: bool = False, dtype: Any = None, *,
        _b: KernelBuilder) -> tensor:
    """Sum; integers below 32 bits are summed in 32 bits, floats in their own type (or in `dtype`)."""
    x = to_tensor(_b, input)
    if unwrap(dtype) is not None:
        x = sem.cast(_b, x, sem.as_dtype(dtype))
    elif isinstance(x.elem, DType) and x.elem.is_int and x.elem.bits < 32:
        x = sem.cast(_b, x, int32 if x.elem.is_signed or x.elem == int1 else sem.uint32)
    return fold(_b, [x], axis, lambda a, c: [sem.binary(_b, "+", a[0], c[0])], keep_dims, "sum")[0]


@builtin(method=True)
def xor_sum(input: tensor, axis: Any = None, keep_dims: bool = False, *, _b: KernelBuilder) -> tensor:
    """Exclusive or of all elements along an axis."""
    return fold(_b, [input], axis, lambda a, c: [sem.binary(_b, "^", a[0], c[0])], keep_dims, "xor_sum")[0]


@builtin(method=True)
def reduce_or(input: tensor, axis: Any = None, keep_dims: bool = False, *, _b: KernelBuilder) -> tensor:
    """Bitwise or of all elements along an axis."""
    return fold(_b, [input], axis, lambda a, c: [sem.binary(_b, "|", a[0], c[0])], keep_dims, "reduce_or")[0]


def _extreme(name: str, symbol: str, input: tensor, axis: Any, return_indices: Any, left: Any,
             keep_dims: Any, b: KernelBuilder) -> Any:
    x = to_tensor(b, input)
    if unwrap(return_indices):
        return _arg(name, symbol, x, axis, left, keep_dims, b)
    if isinstance(x.elem, DType) and x.elem.bits < 32:
        x = sem.cast(b, x, fp32 if x.elem.is_float else int32 if x.elem.is_signed else sem.uint32)
    return fold(b, [x], axis, lambda a, c: [tensor(b(name, a[0].value, c[0].value, nan=False))],
                keep_dims, name)[0]


def _arg(name: str, symbol: str, x: tensor, axis: Any, left: Any, keep_dims: Any, b: KernelBuilder) -> tuple:
    """Value and int32 index of the extreme; ties go to the lowest index if `left`."""
    if unwrap(axis) is None:
        raise CompilationError(f"{name} with indices needs an axis")
    at = _axis(axis, len(x.shape), name)
    index: Any = arange(0, x.shape[at], _b=b)
    for d in range(len(x.shape)):
        if d != at:
            index = expand_dims(index, d, _b=b)
    index = sem.broadcast_to(b, index, x.shape)

    def combine(a: list[tensor], c: list[tensor]) -> list:
        better = sem.binary(b, symbol, a[0], c[0])
        if unwrap(left):
            tie = sem.binary(b, "&", sem.binary(b, "==", a[0], c[0]), sem.binary(b, "<", a[1], c[1]))
            better = sem.binary(b, "|", better, tie)
        return [where(better, p, q, _b=b) for p, q in zip(a, c)]

    return tuple(fold(b, [x, index], at, combine, keep_dims, name))


@builtin(method=True)
def max(input: tensor, axis: Any = None, return_indices: bool = False,
        return_indices_tie_break_left: bool = True, keep_dims: bool = False, *, _b: KernelBuilder) -> Any:
    """Largest element along an axis (with its index if asked); NaN loses."""
    return _extreme("maximum", ">", input, axis, return_indices, return_indices_tie_break_left, keep_dims, _b)


@builtin(method=True)
def min(input: tensor, axis: Any = None, return_indices: bool = False,
        return_indices_tie_break_left: bool = True, keep_dims: bool = False, *, _b: KernelBuilder) -> Any:
    """Smallest element along an axis (with its index if asked); NaN loses."""
    return _extreme("minimum", "<", input, axis, return_indices, return_indices_tie_break_left, keep_dims, _b)


@builtin(method=True)
def argmax(input: tensor, axis: Any, tie_break_left: bool = True, keep_dims: bool = False, *,
           _b: KernelBuilder) -> tensor:
    """Index of the largest element along an axis."""
    return _arg("maximum", ">", input, axis, tie_break_left, keep_dims, _b)[1]


@builtin(method=True)
def argmin(input: tensor, axis: Any, tie_break_left: bool = True, keep_dims: bool = False, *,
           _b: KernelBuilder) -> tensor:
    """Index of the smallest element along an axis."""
    return _arg("minimum", "<", input, axis, tie_break_left, keep_dims, _b)[1]


# -- compile time -------------------------------------------------------------------------------------------------
@builtin
def static_assert(cond: Any, msg: str = "", *, _b: KernelBuilder) -> None:
    """Fail the compilation when a constant condition is false."""
    value = unwrap(cond)
    if isinstance(value, tensor):
        raise CompilationError("static_assert needs a constant condition; use tl.device_assert for tensors")
    if not value:
        raise CompilationError(f"static_assert failed{': ' + str(unwrap(msg)) if unwrap(msg) else ''}")


@builtin
def static_print(*values: Any, sep: str = " ", end: str = "\n", file: Any = None, flush: bool = False,
                 _b: KernelBuilder) -> None:
    """Print at compile time."""
    print(*(unwrap(v) for v in values), sep=sep, end=end, file=file, flush=flush)

__all__ = [
    "arange", "argmax", "argmin", "assume", "atomic_add", "atomic_and", "atomic_cas", "atomic_max",
    "atomic_min", "atomic_or", "atomic_xchg", "atomic_xor", "broadcast", "broadcast_to", "cast",
    "debug_barrier", "device_assert", "device_print", "dot", "expand_dims", "full", "interleave",
    "join", "load", "load_tensor_descriptor", "make_tensor_descriptor", "max", "max_constancy",
    "max_contiguous", "min", "multiple_of", "num_programs", "permute", "program_id", "promote_reuse", "ravel",
    "reduce", "reduce_or", "reshape", "split", "static_assert", "static_print", "store",
    "store_tensor_descriptor", "sum", "to", "trans", "view", "where", "xor_sum", "zeros",
    "zeros_like",
]
