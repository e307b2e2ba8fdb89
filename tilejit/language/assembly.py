from __future__ import annotations

from typing import Any

from tilejit.errors import CompilationError
from tilejit.ir.types import DType, uint32, uint64
from tilejit.language import semantics as sem
from tilejit.language.semantics import to_tensor, unwrap
from tilejit.language.tensor import KernelBuilder, builtin, tensor


@builtin
def inline_asm_elementwise(asm: str, constraints: str, args: Any, dtype: Any, is_pure: bool, pack: int, *,
                           _b: KernelBuilder) -> Any:
    """PTX of the author's for every `pack` elements of `args`, which are broadcast to one shape.

    Returns a tensor of `dtype` (a pointer type too), or one of each in a tuple. `asm` names registers $0, $1, ..: those
    of the results, then of the arguments, each with a constraint (LLVM's for PTX: "=r,=r,r,l,f,h,d"). Elements below 32
    bits share registers of 32, as many as `pack` allows. `is_pure`: it only computes its results, from the arguments
    alone.
    """
    many = isinstance(unwrap(dtype), (tuple, list))
    types = [sem.as_dtype(t) for t in (unwrap(dtype) if many else (dtype,))]
    if not types:
        raise CompilationError("inline_asm_elementwise: at least one dtype expected: return a dummy if need be")
    count = sem.constant(pack, "inline_asm_elementwise's pack")
    if not isinstance(count, int) or count < 1 or count & (count - 1):
        raise CompilationError(f"inline_asm_elementwise: pack must be a power of two, found {count!r}")
    xs = [to_tensor(_b, a) for a in unwrap(args)]
    xs = sem.broadcast(_b, *xs) if xs else []
    name = "inline_asm" if unwrap(is_pure) else "inline_asm_effect"
    form = sem.constant(constraints, "the constraints")
    op = _b.op(name, *(x.value for x in xs), asm=sem.constant(asm, "the assembly"), pack=count, constraints=form,
               dtypes=tuple(t if isinstance(t, DType) else _word(form, i, count) for i, t in enumerate(types)))
    out = tuple(tensor(r) if isinstance(t, DType) else sem.cast(_b, sem.cast(_b, tensor(r), uint64), t)
                for r, t in zip(op.results, types))
    return out if many else out[0]


def _word(constraints: str, i: int, pack: int) -> DType:
    return uint32 if pack == 1 and constraints.split(",")[i:i + 1] in (["=r"], [" =r"]) else uint64


__all__ = ["inline_asm_elementwise"]
