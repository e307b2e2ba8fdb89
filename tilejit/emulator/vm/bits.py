"""Raw memory access and bit casts (numba intrinsics)."""
from __future__ import annotations

from llvmlite import ir
from numba import njit as numba_njit
from numba import types
from numba.extending import intrinsic

#: Only `run` is called from Python. Callers pass np.int64 and np.bool_, since numba compiles anew for every combination
#: of literals.
njit = numba_njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)


def _loader(bits: int):
    @intrinsic
    def load(typingctx, address):
        """The little-endian value at a host address, zero-extended to int64."""
        def codegen(context, builder, signature, args):
            kind = ir.IntType(bits)
            p = builder.inttoptr(args[0], kind.as_pointer())
            value = builder.load(p)
            value.align = 1
            return builder.zext(value, ir.IntType(64)) if bits < 64 else value
        return types.int64(types.int64), codegen
    return load


def _storer(bits: int):
    @intrinsic
    def store(typingctx, address, value):
        def codegen(context, builder, signature, args):
            kind = ir.IntType(bits)
            p = builder.inttoptr(args[0], kind.as_pointer())
            v = builder.trunc(args[1], kind) if bits < 64 else args[1]
            builder.store(v, p).align = 1
            return context.get_dummy_value()
        return types.void(types.int64, types.int64), codegen
    return store


load8, load16, load32, load64 = (_loader(b) for b in (8, 16, 32, 64))
store8, store16, store32, store64 = (_storer(b) for b in (8, 16, 32, 64))


@intrinsic
def f32_of(typingctx, bits):
    def codegen(context, builder, signature, args):
        return builder.bitcast(builder.trunc(args[0], ir.IntType(32)), ir.FloatType())
    return types.float32(types.int64), codegen


@intrinsic
def bits_of_f32(typingctx, value):
    """Zero-extended."""
    def codegen(context, builder, signature, args):
        return builder.zext(builder.bitcast(args[0], ir.IntType(32)), ir.IntType(64))
    return types.int64(types.float32), codegen


@intrinsic
def f64_of(typingctx, bits):
    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.DoubleType())
    return types.float64(types.int64), codegen


@intrinsic
def bits_of_f64(typingctx, value):
    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(64))
    return types.int64(types.float64), codegen


@intrinsic
def fma32(typingctx, a, b, c):
    """With one rounding."""
    def codegen(context, builder, signature, args):
        return builder.fma(*args)
    return types.float32(types.float32, types.float32, types.float32), codegen


@intrinsic
def fma64(typingctx, a, b, c):
    """With one rounding."""
    def codegen(context, builder, signature, args):
        return builder.fma(*args)
    return types.float64(types.float64, types.float64, types.float64), codegen


@intrinsic
def popcount(typingctx, value):
    def codegen(context, builder, signature, args):
        return builder.ctpop(args[0])
    return types.int64(types.int64), codegen


@intrinsic
def leading_zeros(typingctx, value):
    """64 for zero."""
    def codegen(context, builder, signature, args):
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))
    return types.int64(types.int64), codegen


@intrinsic
def trailing_zeros(typingctx, value):
    """64 for zero."""
    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))
    return types.int64(types.int64), codegen


@intrinsic
def multiply_high_unsigned(typingctx, a, b):
    def codegen(context, builder, signature, args):
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))
    return types.int64(types.int64, types.int64), codegen


@intrinsic
def multiply_high_signed(typingctx, a, b):
    def codegen(context, builder, signature, args):
        wide = ir.IntType(128)
        product = builder.mul(builder.sext(args[0], wide), builder.sext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))
    return types.int64(types.int64, types.int64), codegen


@njit
def low(value: int, width: int) -> int:
    """Zero-extended."""
    if width == 64:
        return value
    return value & ((1 << width) - 1)


@njit
def signed(value: int, width: int) -> int:
    """Sign-extended."""
    shift = 64 - width
    return (value << shift) >> shift
