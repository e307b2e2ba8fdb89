from __future__ import annotations

from typing import Any

from tilejit.errors import CompilationError, Loc
from tilejit.frontend.arguments import Arg, Const, Group, Param, run_time
from tilejit.frontend.options import THREAD_REGISTERS, checked
from tilejit.frontend.source import KernelSource
from tilejit.ir import Function, product_warps, walk
from tilejit.ir.types import Desc, Ptr, Tile, elem_of, with_elem
from tilejit.language.tensor import KernelBuilder, tensor, tensor_descriptor


def build(source: KernelSource, args: dict[str, Arg], attrs: dict[str, Any]) -> Function:
    """`attrs`: the kernel's options. Raises CompilationError at the user's line for what is not the tile language."""
    from tilejit.frontend.walker import Walker

    loc = Loc(source.file, source.tree.lineno, source.tree.col_offset, source.tree.col_offset + 3, source.name)
    attrs, target = checked(attrs, loc)
    registers = attrs.get("maxnreg")
    unlimited = registers is not None and registers > THREAD_REGISTERS
    if unlimited:
        attrs = {**attrs, "maxnreg": None}
    names = list(source.signature.parameters)
    for n in names:
        if n not in args:
            raise CompilationError(f"{source.name}: no description of argument {n!r}", loc)
    params = run_time({n: args[n] for n in names})
    fn = Function(source.name, [p.type for _, p in params.values()], [n for n, _ in params.values()],
                  [_known(p) for _, p in params.values()], attrs, loc)
    b = KernelBuilder(fn.body, loc=loc)
    b.num_warps = product_warps(fn)  # type: ignore[attr-defined]
    b.notes = []
    if unlimited:
        b.note("maxnreg", f"maxnreg={registers} limits nothing: a thread has at most {THREAD_REGISTERS} registers")
    b.debug = bool(attrs.get("debug"))  # type: ignore[attr-defined]
    b.sanitize = b.debug and attrs.get("sanitize_overflow") is not False  # type: ignore[attr-defined]
    b.target = target  # type: ignore[attr-defined]
    values = dict(zip(params, fn.body.args))

    def value(place: tuple, arg: Arg) -> Any:
        if isinstance(arg, Const):
            return arg.value
        if isinstance(arg, Group):
            items = [value((*place, i), item) for i, item in enumerate(arg.items)]
            return arg.kind(*items) if hasattr(arg.kind, "_fields") else tuple(items)
        v = values[place]
        return tensor_descriptor(v, arg.padding) if isinstance(v.type, Desc) else tensor(v)

    env = {n: value((n,), args[n]) for n in names}
    constants = [values[n,] for n in source.consts if isinstance(getattr(values.get((n,)), "type", None), Ptr)]
    for v in constants:
        assert isinstance(v.type, Ptr)
        v.type = Ptr(v.type.elem, const=True)
    Walker(source, b, env, None).function()
    b.loc = loc
    b.op("return")
    if constants:
        _drop_const(fn)
    if b.notes:
        fn.attrs["report"] = [*fn.attrs.get("report", ()), *b.notes]
    return fn


def _drop_const(fn: Function) -> None:
    def plain(t: Any) -> Any:
        e = elem_of(t) if isinstance(t, (Ptr, Tile)) else None
        return with_elem(t, Ptr(e.elem)) if isinstance(e, Ptr) else t

    for v in fn.body.args:
        v.type = plain(v.type)
    for op in walk(fn.body):
        op.attrs.update({k: plain(a) for k, a in op.attrs.items() if isinstance(a, Ptr)})
        for v in [*op.results, *(a for region in op.regions for a in region.args)]:
            v.type = plain(v.type)


def _known(p: Param) -> dict[str, Any]:
    return {**({"divisible": p.divisible} if p.divisible > 1 else {}),
            **({"nonnegative": True} if p.nonnegative else {}),
            **({"padding": p.padding} if isinstance(p.type, Desc) else {}),
            **({"ragged": True} if p.ragged else {}),
            **({"most": p.most} if p.most else {})}
