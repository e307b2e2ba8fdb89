from __future__ import annotations

from typing import Any

from tilejit.errors import CompilationError, Loc
from tilejit.frontend.arguments import Arg, Const, Group, Param, run_time
from tilejit.frontend.source import KernelSource
from tilejit.ir import Function, product_warps, walk
from tilejit.ir.target import DEFAULT, Target, target_named
from tilejit.ir.types import Desc, Ptr, Tile, elem_of, with_elem
from tilejit.language.tensor import KernelBuilder, tensor, tensor_descriptor

#: registers that instructions can name (PTX ISA, .maxnreg)
THREAD_REGISTERS = 255


def build(source: KernelSource, args: dict[str, Arg], attrs: dict[str, Any]) -> Function:
    """`attrs`: the kernel's options. Raises CompilationError at the user's line for what is not the tile language."""
    from tilejit.frontend.walker import Walker

    loc = Loc(source.file, source.tree.lineno, source.tree.col_offset, source.tree.col_offset + 3, source.name)
    warps, stages = attrs.get("num_warps"), attrs.get("num_stages")
    if warps not in (1, 2, 4, 8, 12, 16, 32):
        raise CompilationError(f"num_warps={warps!r} is not legal (it must be a power of 2, or 12): use 1, 2, 4, 8, "
                               "12, 16 or 32", loc)
    if stages is not None and (not isinstance(stages, int) or stages < 0):
        raise CompilationError(f"num_stages={stages!r} is not legal: use a positive integer", loc)
    if stages == 0:
        attrs = {**attrs, "num_stages": 1}  # nothing runs ahead
    if attrs.get("num_ctas", 1) not in (1, 2, 4, 8, 16):
        raise CompilationError(f"num_ctas={attrs['num_ctas']!r} is not legal: use 1, 2, 4, 8 or 16", loc)
    if attrs.get("store_stages", 1) not in (1, 2, 4, 8):
        raise CompilationError(f"store_stages={attrs['store_stages']!r} is not legal: use 1, 2, 4 or 8", loc)
    for name in ("warp_specialize", "store_role", "products_ahead", "enable_fp_fusion", "split_masks",
                 "enable_reflect_ftz", "check_signs", "odd_rows", "pointer_tma", "launch_cooperative_grid",
                 "sanitize_overflow"):
        if not isinstance(attrs.get(name, True), bool):
            raise CompilationError(f"{name}={attrs[name]!r} is not legal: use True or False", loc)
    if attrs.get("launch_pdl", "auto") not in (True, False, "auto"):
        raise CompilationError(f'launch_pdl={attrs["launch_pdl"]!r} is not legal: use True, False or "auto"', loc)
    if attrs.get("ping_pong", True) not in (True, False, "scores", "products"):
        raise CompilationError(f'ping_pong={attrs["ping_pong"]!r} is not legal: use True, False, "scores" or '
                               '"products"', loc)
    target = check_target(attrs, loc)
    if attrs.get("cluster_split", "M") not in ("M", "N", "MN", "K"):
        raise CompilationError(f"cluster_split={attrs['cluster_split']!r} is not legal: the CTAs of a cluster divide "
                               'rows ("M", the default) or columns ("N") of products, both ("MN"), or what they sum '
                               'over ("K")', loc)
    if not isinstance(attrs.get("schedule", ""), str):
        raise CompilationError(f"schedule={attrs['schedule']!r} is not legal: use the name of a file with what "
                               "kernel.schedule(...) gave", loc)
    programs = attrs.get("programs_per_cta", 1)
    if type(programs) is not int or not 1 <= programs <= 128 or programs & (programs - 1):
        raise CompilationError(f"programs_per_cta={programs!r} is not legal: use a power of 2 up to 128", loc)
    registers = attrs.get("maxnreg")
    if registers is not None and (not isinstance(registers, int) or registers < 24):
        raise CompilationError(f"maxnreg={registers!r} is not legal: use a number of registers, 24 or more", loc)
    if registers is not None and registers > THREAD_REGISTERS:
        attrs = {**attrs, "maxnreg": None}
    names = [n for n in source.signature.parameters]
    for n in names:
        if n not in args:
            raise CompilationError(f"{source.name}: no description of argument {n!r}", loc)
    params = run_time({n: args[n] for n in names})
    fn = Function(source.name, [p.type for _, p in params.values()], [n for n, _ in params.values()],
                  [_known(p) for _, p in params.values()], attrs, loc)
    b = KernelBuilder(fn.body, loc=loc)
    b.num_warps = product_warps(fn)  # type: ignore[attr-defined]
    b.notes = []
    if registers is not None and registers > THREAD_REGISTERS:
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


def check_target(attrs: dict[str, Any], loc: Loc) -> Target:
    """Raises CompilationError for options that the chip cannot follow."""
    try:
        target = target_named(attrs.get("target"))
    except CompilationError as e:
        raise CompilationError(e.message, loc) from None
    if not target.hopper:
        for option in ("num_ctas", "num_consumer_groups"):
            if (attrs.get(option) or 1) > 1:
                raise CompilationError(f"{option}={attrs[option]}: {option} > 1 requires NVIDIA SM90+ (Hopper), "
                                       f"{target.name} has no clusters and no roles of warps: leave it out, or "
                                       f"use target={DEFAULT!r}", loc)
    return target
