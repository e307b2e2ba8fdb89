from __future__ import annotations

import builtins
from typing import Any

from tilejit.errors import CompilationError, StaticAssertionError
from tilejit.ir.types import DType, Ptr, fp32, fp64, int1, int32, int64, uint8, uint16, uint32, uint64
from tilejit.language import semantics as sem
from tilejit.language.semantics import to_tensor, unwrap
from tilejit.language.tensor import KernelBuilder, builtin, tensor


@builtin
def debug_barrier(*, _b: KernelBuilder) -> None:
    """All threads of the program meet, and see each other's earlier accesses of global and shared memory.

    Needed between a `tl.store` and a `tl.load` of the same global memory, as in Triton: threads may load what others
    stored.
    """
    _b.op("debug_barrier")


@builtin
def device_assert(cond: Any, msg: str = "", mask: Any = None, *, _b: KernelBuilder) -> None:
    """End the launch with `msg` when `cond` is false where `mask` is true; only under debug=True. It makes ptxas wait
    for every wgmma where it is issued."""
    if _b.debug:  # type: ignore[attr-defined]
        held = sem.to_bool(_b, cond)
        if unwrap(mask) is not None:
            held = sem.binary(_b, "|", held, sem.unary(_b, "~", sem.to_bool(_b, mask)))
        _assert(_b, held, unwrap(msg))


def checked(b: KernelBuilder, symbol: str, x: Any, y: Any) -> tensor:
    """x symbol y; under debug=True integers of less than 64 bits are asserted not to overflow in +, - and * (unless
    with sanitize_overflow=False), as in Triton."""
    result = sem.binary(b, symbol, x, y)
    t, name = result.elem, {"+": "add", "-": "sub", "*": "mul"}.get(symbol)
    if name and b.sanitize and isinstance(t, DType) and t.is_int() and 1 < t.bits < 64:  # type: ignore[attr-defined]
        wide = sem.binary(b, symbol, *(sem.cast(b, v, int64) for v in sem.common(b, x, y)))
        low, high = sem.int_range(t)
        fits = sem.binary(b, "&", sem.binary(b, ">=", wide, low), sem.binary(b, "<=", wide, high))
        _assert(b, fits, f"int{t.bits} overflow detected for operation {name}")
    return result


def _assert(b: KernelBuilder, held: tensor, message: str) -> None:
    b.op("device_assert", held.value, message=message)


@builtin
def device_print(prefix: str, *args: Any, hex: bool = False, _b: KernelBuilder) -> None:
    """Print tiles and scalars at run time, one line for each element: `pid (0, 0, 0) idx ( 5) prefix: 2.5`.

    `hex` shows bits, of floats as C's `%a`. Python's print() is the same. It costs registers and makes ptxas wait for
    every wgmma where it is issued.
    """
    prefix = unwrap(prefix)
    if not isinstance(prefix, str):
        raise CompilationError(f"device_print: the first argument is a constant text, found {prefix!r}")
    if "\0" in prefix:
        raise CompilationError("device_print: the text contains a NUL character")
    if args:
        prefix = prefix.rstrip(" ").removesuffix(":") + ": "
    if len(prefix) > 2 and not prefix.startswith(" "):
        prefix = " " + prefix
    made = [_printable(_b, to_tensor(_b, a), bool(unwrap(hex))) for a in args]
    _b.op("device_print", *(t.value for t, _ in made), prefix=prefix, conversions=tuple(c for _, c in made))


def _printable(b: KernelBuilder, x: tensor, hex: bool) -> tuple[tensor, str]:
    t = x.elem
    if isinstance(t, Ptr):
        return sem.cast(b, x, uint64), "0x%016llx"
    if hex and not t.is_float:
        bits = builtins.max(8, t.bits)
        if t.is_signed and t != int1:
            bare = {8: uint8, 16: uint16, 32: uint32, 64: uint64}[bits]
            x = tensor(b("bitcast", x.value, dtype=bare))
        return sem.cast(b, x, uint64 if bits == 64 else uint32), f"0x%0{bits // 4}{'ll' if bits == 64 else ''}x"
    if t.is_float:
        return sem.cast(b, sem.cast(b, x, fp32) if t.bits < 32 else x, fp64), "%a" if hex else "%f"
    if t.bits == 64:
        return x, "%lld" if t.is_signed else "%llu"
    if t == int1 or t.is_signed:
        return sem.cast(b, x, int32), "%d"
    return sem.cast(b, x, uint32), "%u"


@builtin
def static_assert(cond: Any, msg: str = "", *, _b: KernelBuilder) -> None:
    """Fail the compilation when a constant condition is false."""
    value = unwrap(cond)
    if isinstance(value, tensor):
        raise CompilationError("static_assert needs a constant condition; use tl.device_assert for tensors")
    if not value:
        raise StaticAssertionError(f"static_assert failed{': ' + str(unwrap(msg)) if unwrap(msg) else ''}")


@builtin
def static_print(*values: Any, sep: str = " ", end: str = "\n", file: Any = None, flush: bool = False,
                 _b: KernelBuilder) -> None:
    """Print at compile time."""
    print(*(unwrap(v) for v in values), sep=sep, end=end, file=file, flush=flush)


__all__ = ["debug_barrier", "device_assert", "device_print", "static_assert", "static_print"]
