"""Types of expressions: promotion, broadcasting, casts and operators, as Triton defines them (docs/language.md)."""
from __future__ import annotations

from typing import Any

from tilejit.errors import CompilationError
from tilejit.ir import Builder
from tilejit.ir.types import (
    DTYPES,
    DType,
    OtherDType,
    Ptr,
    Scalar,
    Tile,
    bf16,
    elem_of,
    fp8e4b15,
    fp16,
    fp32,
    fp64,
    int1,
    int64,
    odd_size,
    shape_of,
    with_elem,
)
from tilejit.language.tensor import block_type, constexpr, scalar_type, tensor
from tilejit.language.variables import held, is_held

Number = (bool, int, float)
_OPERAND = (tensor, *Number)
_KIND = {"bool": 0, "uint": 1, "int": 1, "float": 2}


def unwrap(x: Any) -> Any:
    return x.value if type(x) is constexpr else x


def constant(x: Any, what: str) -> Any:
    """Raises for a tensor, naming `what`."""
    x = unwrap(x)
    if isinstance(x, tensor):
        raise CompilationError(f"{what} must be a constant: mark the argument as tl.constexpr")
    return x


def literal_type(x: bool | int | float) -> DType:
    t = scalar_type(x)
    if t is None:
        raise CompilationError(f"integer {x} does not fit 64 bits")
    return t


def int_range(t: DType) -> tuple[int, int]:
    if t.is_signed:
        return -(1 << (t.bits - 1)), (1 << (t.bits - 1)) - 1
    return 0, (1 << t.bits) - 1


def to_tensor(b: Builder, x: Any, dtype: DType | None = None) -> tensor:
    x = unwrap(x)
    if isinstance(x, tensor):
        return x
    if isinstance(x, Number):
        t = dtype or literal_type(x)
        if t.is_int() and not isinstance(x, float):
            low, high = int_range(t)
            if t.family != "bool" and not low <= int(x) <= high:
                raise CompilationError(f"{x} is out of range for {t}: {low} to {high}")
        return tensor(b.const(x, t))
    raise CompilationError(f"expected a tensor or a number, found {type(x).__name__} {x!r}")


def promote(a: DType, a_weak: bool, c: DType, c_weak: bool, div: str = "") -> DType:
    a, c = (fp16 if t is fp8e4b15 else t for t in (a, c))
    if a is c and not div:
        return a
    if a_weak != c_weak:
        weak, strong = (a, c) if a_weak else (c, a)
        if _KIND[weak.family] <= _KIND[strong.family]:
            return fp32 if div and strong.is_float and strong.bits < 32 else strong
    for t in (fp64, fp32):
        if t in (a, c):
            return t
    if fp16 in (a, c):
        return fp32 if div else fp16
    if bf16 in (a, c):
        if a == c == bf16:
            return fp32 if div else bf16
        return bf16 if (a_weak or c_weak) and not div else fp32
    if div and (a.is_float or c.is_float):
        return fp32
    if a.is_float and c.is_float:
        return a if a == c else fp16
    if a.is_float or c.is_float:
        return a if a.is_float else c
    if div and a.is_signed != c.is_signed and int1 not in (a, c):
        raise CompilationError(f"Cannot use {div} with {a} and {c} because they have different signedness: cast one")
    if a.is_signed == c.is_signed:
        return a if a.bits >= c.bits else c
    unsigned, signed = (c, a) if a.is_signed else (a, c)
    return unsigned if unsigned.bits >= signed.bits else signed


def folded(symbol: str, x: Any, y: Any, result: Any) -> Any:
    if not (is_held(x) or is_held(y)) or type(result) not in (int, float):
        return result
    if isinstance(result, int):
        if symbol in ("//", "%"):
            quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
            result = quotient if symbol == "//" else x - y * quotient
        low, high = int_range(promote(literal_type(x), not is_held(x), literal_type(y), not is_held(y)))
        result = (int(result) - low) % (high - low + 1) + low
    return held(result)


def cast(b: Builder, x: tensor, to: Scalar, rounding: str | None = None) -> tensor:
    if x.elem == to:
        return x
    if isinstance(x.elem, Ptr) and to is int1:
        address = cast(b, x, int64)
        return binary(b, "!=", address, 0)
    if isinstance(to, Ptr) or isinstance(x.elem, Ptr):
        if isinstance(to, Ptr) and isinstance(x.elem, Ptr) or \
                (isinstance(to, DType) and to.bits == 64) or (isinstance(x.elem, DType) and x.elem.bits == 64):
            return tensor(b("bitcast", x.value, dtype=to))
        raise CompilationError(f"cannot cast {x.elem} to {to}")
    if rounding not in (None, "rtne", "rtz"):
        raise CompilationError(f"Invalid rounding mode: {rounding}. Supported rounding modes are 'rtne' and 'rtz'.")
    if rounding and not (to.is_float and x.elem.is_float and to.bits < x.elem.bits):
        raise CompilationError("fp_downcast_rounding should be set only for truncating fp conversions. Source scalar "
                               f"type is {x.elem} and destination type is {to}")
    if fp8e4b15 in (x.elem, to):
        from tilejit.language import custom_float8

        return cast(b, custom_float8.widened(b, x), to) if x.elem == fp8e4b15 else custom_float8.narrowed(b, x)
    attrs = {"rounding": "rtz"} if rounding == "rtz" else {}
    return tensor(b("cast", x.value, dtype=to, **attrs))


def broadcast_shape(a: tuple[int, ...], c: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(len(a), len(c))
    wide_a, wide_c = (1,) * (rank - len(a)) + a, (1,) * (rank - len(c)) + c
    out = []
    for i, (x, y) in enumerate(zip(wide_a, wide_c)):
        if x != y and 1 not in (x, y):
            raise CompilationError(f"cannot broadcast {list(a)} with {list(c)}: sizes {x} and {y} at "
                                   f"dimension {i} differ and neither is 1")
        out.append(max(x, y))
    return tuple(out)


def broadcast_to(b: Builder, x: tensor, shape: tuple[int, ...]) -> tensor:
    if x.shape == shape:
        return x
    if not x.shape:
        return tensor(b("splat", x.value, shape=shape))
    broadcast_shape(x.shape, shape)
    v = x.value
    while len(shape_of(v.type)) < len(shape):
        v = b("expand_dims", v, axis=0)
    return tensor(v if shape_of(v.type) == shape else b("broadcast", v, shape=shape))


def broadcast(b: Builder, *xs: tensor) -> list[tensor]:
    shape, *others = [x.shape for x in xs]
    if others.count(shape) == len(others):
        return list(xs)
    for other in others:
        shape = broadcast_shape(shape, other)
    return [broadcast_to(b, x, shape) for x in xs]


def from_bf16(b: Builder, x: Any) -> Any:
    x = unwrap(x)
    return cast(b, x, fp32) if isinstance(x, tensor) and x.elem is bf16 else x


def common(b: Builder, x: Any, y: Any, div: str = "") -> tuple[tensor, tensor]:
    x, y = unwrap(x), unwrap(y)
    wx, wy = isinstance(x, Number), isinstance(y, Number)
    ax = literal_type(x) if wx else x.elem
    ay = literal_type(y) if wy else y.elem
    if isinstance(ax, Ptr) or isinstance(ay, Ptr):
        if ax != ay:
            raise CompilationError(f"operands {ax} and {ay} do not go together")
        tx, ty = broadcast(b, x, y)
        return tx, ty
    wx, wy = wx and not is_held(x), wy and not is_held(y)
    t = promote(ax, wx, ay, wy, div)
    made = [to_tensor(b, v, t) if weak and (t.is_float or not isinstance(v, float))
            else cast(b, to_tensor(b, v), t) for v, weak in ((x, wx), (y, wy))]
    tx, ty = broadcast(b, *made)
    return tx, ty


_CMP = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_BITS = {"&": "and", "|": "or", "^": "xor"}
_ARITH = {"+": "add", "-": "sub", "*": "mul"}


def binary(b: Builder, symbol: str, x: Any, y: Any) -> tensor:
    x, y = unwrap(x), unwrap(y)
    for v in (x, y):
        if not isinstance(v, _OPERAND):
            raise CompilationError(f"unsupported operand of '{symbol}': {v!r}")
    if symbol in ("+", "-") and (_is_pointer(x) or _is_pointer(y)):
        return _pointer(b, symbol, x, y)
    if _is_bool(x) and _is_bool(y):
        if symbol in ("//", "%", "<<", ">>"):
            raise CompilationError(f"'{symbol}' of two booleans: combine them with & | ^, or count with .to(tl.int32)")
        symbol = {"+": "^", "-": "^", "*": "&"}.get(symbol, symbol)  # one bit, which wraps
    if symbol in _CMP:
        tx, ty = common(b, x, y)
        return tensor(b("cmp", tx.value, ty.value, pred=_CMP[symbol]))
    if symbol in _ARITH:
        tx, ty = common(b, x, y)
        return tensor(b(_ARITH[symbol], tx.value, ty.value))
    if symbol == "/":
        tx, ty = common(b, x, y, div=symbol)
        if tx.elem.is_int():
            tx, ty = cast(b, tx, fp32), cast(b, ty, fp32)
        return tensor(b("div", tx.value, ty.value))
    if symbol in ("//", "%"):
        tx, ty = common(b, x, y, div=symbol)
        if tx.elem.is_float:  # type: ignore[union-attr]
            if symbol == "//":
                raise CompilationError("'//' works on integers; use tl.floor(x / y) for floats")
            return tensor(b("fmod", tx.value, ty.value))
        return tensor(b("idiv" if symbol == "//" else "irem", tx.value, ty.value))
    if symbol in _BITS or symbol in ("<<", ">>"):
        tx, ty = common(b, x, y)
        if tx.elem.is_float:  # type: ignore[union-attr]
            raise CompilationError(f"invalid operands of type {tx.elem} and {ty.elem}: '{symbol}' needs integers")
        if symbol == ">>":
            return _shift_right(b, x, y, tx, ty)
        return tensor(b(_BITS.get(symbol, "shl"), tx.value, ty.value))
    raise CompilationError(f"operator '{symbol}' is not part of the tile language")


def _shift_right(b: Builder, x: Any, y: Any, tx: tensor, ty: tensor) -> tensor:
    """As in Triton x's own type, not the common one, says whether its sign is shifted in (y's, if x is a number)."""
    left, common = (x if isinstance(x, tensor) else y).elem, tx.elem
    assert isinstance(left, DType) and isinstance(common, DType)
    if left.is_signed == common.is_signed or common.is_signed:  # not negative: both shifts give the same
        return tensor(b("shr", tx.value, ty.value))
    signed = DTYPES[f"int{common.bits}"]
    return cast(b, tensor(b("shr", cast(b, tx, signed).value, cast(b, ty, signed).value)), common)


def _is_bool(x: Any) -> bool:
    return isinstance(x, bool) or isinstance(x, tensor) and x.elem == int1


def _is_pointer(x: Any) -> bool:
    return isinstance(x, tensor) and isinstance(x.elem, Ptr)


def _pointer(b: Builder, symbol: str, x: Any, y: Any) -> tensor:
    """Offsets are in elements."""
    if _is_pointer(y):
        if symbol == "-":
            raise CompilationError("cannot subtract a pointer")
        x, y = y, x
    offset = to_tensor(b, y)
    if not (isinstance(offset.elem, DType) and offset.elem.is_int()):
        raise CompilationError(f"a pointer offset must be an integer, found {offset.elem}")
    if symbol == "-":
        offset = tensor(b("neg", offset.value))
    px, po = broadcast(b, x, offset)
    return tensor(b("ptr_add", px.value, po.value))


def unary(b: Builder, symbol: str, x: tensor) -> tensor:
    if symbol == "+":
        return x
    if symbol == "-":
        if isinstance(x.elem, Ptr):
            raise CompilationError("cannot negate a pointer")
        if x.elem == int1:
            raise CompilationError("'-' of a boolean: use ~x or 'not x', or .to(tl.int32)")
        return tensor(b("neg", x.value))
    if symbol == "~":
        if not (isinstance(x.elem, DType) and x.elem.is_int()):
            raise CompilationError(f"'~' needs an integer, found {x.elem}")
        return tensor(b("not", x.value))
    return tensor(b("not", to_bool(b, x).value))


def to_bool(b: Builder, x: Any) -> tensor:
    t = to_tensor(b, x)
    return t if t.elem == int1 else cast(b, t, int1)


def as_dtype(x: Any) -> Scalar:
    """From a dtype, a pointer type, the type of a tile or a dtype's name."""
    x = unwrap(x)
    x = x.scalar if isinstance(x, block_type) else x
    if isinstance(x, OtherDType):
        raise CompilationError(f"type {x.name} not supported in this architecture. The supported fp8 dtypes are "
                               "('fp8e4b15', 'fp8e4nv', 'fp8e5')")
    if isinstance(x, (DType, Ptr)):
        return x
    if isinstance(x, str) and x in DTYPES:
        return DTYPES[x]
    raise CompilationError(f"expected a dtype, found {x!r}")


def as_shape(x: Any, what: str = "") -> tuple[int, ...]:
    """A tile shape: constants, each a power of two, at most 2^20 elements. `what`: the error's first line.

    Of a product the columns may be another multiple of 16 below 512, 256 for each CTA (also with the last sizes apart,
    as [12, 2, 8] for 192), and the rows 192 or 384, for three warpgroups.
    """
    x = unwrap(x)
    dims = tuple(unwrap(d) for d in (x if isinstance(x, (tuple, list)) else (x,)))
    dims = tuple(int(d) if isinstance(d, bool) else d for d in dims)
    for d in dims:
        if isinstance(d, tensor) or not isinstance(d, int):
            raise CompilationError(f"a tile's shape must be made of constants, found {d!r}: "
                                   "pass it as a tl.constexpr argument")
    odd = [d for d in dims if d & (d - 1)]
    product = all(d & (d - 1) == 0 or odd_size(dims, i) for i, d in enumerate(dims)) \
        and (len(odd) < 2 or len(odd) == 2 and odd[0] in (192, 384))
    numel = 1
    for d in dims:
        if d < 1 or d in odd and not product:
            low = 1 << max(0, d.bit_length() - 1) if d > 0 else 1
            raise CompilationError(what or f"Shape element {dims.index(d)} must be a power of 2", notes=(
                f"tile sizes must be powers of two, found {d} in {list(dims)}: use {low} or {low * 2 if d > 0 else 2} "
                "and mask the rest (a product may have any multiple of 16 columns up to 256, for each of the CTAs that "
                "divide them, and 192 or 384 rows)",))
        numel *= d
    if numel > 1 << 20:
        raise CompilationError(f"a tile of {numel} elements exceeds the limit of {1 << 20}")
    return dims


def whole_powers(x: tensor, what: str) -> None:
    if any(d & (d - 1) for d in x.shape):
        raise CompilationError(f"{what}: expected a tile whose sizes are powers of two, found {list(x.shape)}")


def splat_const(b: Builder, value: Any, shape: tuple[int, ...], dtype: Scalar) -> tensor:
    if isinstance(unwrap(value), tensor):
        return broadcast_to(b, cast(b, unwrap(value), dtype), shape)
    if dtype == fp8e4b15:
        return broadcast_to(b, cast(b, to_tensor(b, value, fp16), dtype), shape)
    t = Tile(shape, dtype) if shape else dtype
    return tensor(b.const(unwrap(value), t))


def same_type(x: tensor, y: tensor) -> bool:
    return x.shape == y.shape and x.elem == y.elem


__all__ = ["as_dtype", "as_shape", "binary", "broadcast", "broadcast_shape", "broadcast_to", "cast", "common",
           "constant",
           "elem_of", "promote", "same_type", "splat_const", "to_bool", "to_tensor", "unary", "unwrap", "whole_powers",
           "with_elem"]
