from __future__ import annotations

import re
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
    text, form, given = _with_numbers(sem.constant(asm, "the assembly"), sem.constant(constraints, "the constraints"),
                                      list(unwrap(args)), count)
    xs = [to_tensor(_b, a) for a in given]
    xs = sem.broadcast(_b, *xs) if xs else []
    name = "inline_asm" if unwrap(is_pure) else "inline_asm_effect"
    op = _b.op(name, *(x.value for x in xs), asm=text, pack=count, constraints=form,
               dtypes=tuple(t if isinstance(t, DType) else _word(form, i, count) for i, t in enumerate(types)))
    out = tuple(tensor(r) if isinstance(t, DType) else sem.cast(_b, sem.cast(_b, tensor(r), uint64), t)
                for r, t in zip(op.results, types))
    return out if many else out[0]


def _with_numbers(asm: str, constraints: str, args: list[Any], pack: int) -> tuple[str, str, list[Any]]:
    """The assembly with the constants in it that the constraint `n` is of, and what is left of the others."""
    parts = [p.strip() for p in constraints.split(",")]
    first = sum(p.startswith("=") for p in parts)
    if pack > 1 or "n" not in parts or len(parts) != first + len(args):
        return asm, constraints, args
    names: list[str] = []
    for i, p in enumerate(parts):
        value = unwrap(args[i - first]) if p == "n" else None
        if p == "n" and not isinstance(value, int):
            raise CompilationError(f"inline assembly: ${i} has the constraint n, a constant, and is {value!r}")
        names.append(f"${i - parts[:i].count('n')}" if value is None else str(int(value)))
    asm = re.sub(r"\$(\d+)", lambda m: names[int(m[1])] if int(m[1]) < len(names) else m[0], asm)
    return asm, ",".join(p for p in parts if p != "n"), [a for a, p in zip(args, parts[first:]) if p != "n"]


def _word(constraints: str, i: int, pack: int) -> DType:
    return uint32 if pack == 1 and constraints.split(",")[i:i + 1] in (["=r"], [" =r"]) else uint64


__all__ = ["inline_asm_elementwise"]
