"""Greatest or least floats with their indices: a thread, then a warp, knows which, and only then where it is first."""
from __future__ import annotations

import operator
from itertools import product
from typing import Any

from tilejit.ir import Block, Op, uses
from tilejit.ir.types import fp32, int32
from tilejit.ptx.cast import cast_element
from tilejit.ptx.convert import shuffle
from tilejit.ptx.emit import Emitter, reg_class

_OPS: dict[str, Any] = {"and": operator.and_, "or": operator.or_, "select": lambda c, a, b: a if c else b}
_NONE = 0x7FFFFFFF


def extreme(op: Op) -> str:
    """"max" or "min" if a fold of floats of at most 32 bits and int32 leaves that float (a NaN loses), of equal ones
    that with the least index; "" otherwise."""
    if len(op.operands) != 2:
        return ""
    elem, index = (v.tile.elem for v in op.operands)
    if index.name != "int32" or elem.name not in ("fp32", "bf16", "fp16"):
        return ""
    found = {name for name in ("max", "min") if _leaves(op.regions[0], name)}
    return found.pop() if found else ""


def _leaves(region: Block, name: str) -> bool:
    """Comparisons of such a fold's arguments have no other outcomes than those of these numbers."""
    zero, one, nan = 0.0, 1.0, float("nan")
    for a, i, b, j in product((zero, one, nan), (0, 1), repeat=2):
        env = dict(zip(region.args, (a, i, b, j)))
        for x in region.ops[:-1]:
            do = getattr(operator, x.attrs["pred"]) if x.name == "cmp" else _OPS.get(x.name)
            if do is None:
                return False
            env[x.result] = do(*(env[v] for v in x.operands))
        left = b != b or (a > b if name == "max" else a < b) or a == b and i < j
        if any(env[v] is not want for v, want in zip(region.terminator.operands, (a, i) if left else (b, j))):
            return False
    return True


def firsts(e: Emitter, op: Op, name: str, columns: list[list[tuple[int, list[str]]]], bits: list[int],
           all_lanes: bool) -> list[list[str]]:
    """Of the pairs of each column, with their registers' numbers, and of lanes that differ in `bits`; `all_lanes`: no
    others have other pairs."""
    p, elem = e.p, op.operands[0].dtype
    cls = reg_class(elem)
    exact = op.results[0] in uses(e.fn.body)  # zeros are equal and have signs
    out = []
    for items in columns:
        found = [(e.steps.of(op.operands[1])[r], v, i, cast_element(e, v, elem, fp32)) for r, (v, i) in items]
        best = [x for *_, x in found]
        while len(best) > 1:
            best = [p.new("f32", f"{name}.f32", *ab) for ab in zip(best[::2], best[1::2])] + best[len(best) & ~1:]
        own, (value, at) = best[0], items[0][1]
        if len(items) > 1:
            nan = p.new("pred", "setp.nan.f32", own, own)
            counted = len({(base, far) for (base, _, far), *_ in found}) == 1
            if counted:  # the last one first, whose place needs no comparison
                found.sort(key=lambda x: -x[0][1])
            ((_, last, _), value, _, _), ((_, least, _), _, base, _) = found[0], found[-1]
            at = str(last - least if counted else _NONE)
            for (_, n, _), v, i, x in found[counted:]:
                here = p.new("pred", "setp.eq.or.f32", x, own, nan)
                if not counted:
                    here = p.new("pred", "setp.lt.and.s32", i, at, here)
                at = p.new("b32", "selp.b32", n - least if counted else i, at, here)
                if exact:
                    value = p.new(cls, f"selp.{cls}", v, value, here)
            if counted:
                at = p.new("b32", "add.s32", base, at)
        top = own
        for bit in bits:
            top = p.new("f32", f"{name}.f32", top, shuffle(e, fp32, top, 1 << bit, "bfly"))
        if bits:
            nan = p.new("pred", "setp.nan.f32", top, top)
            at = p.new("b32", "selp.b32", at, _NONE, p.new("pred", "setp.eq.or.f32", own, top, nan))
        if bits and all_lanes:
            first = p.new("b32", "redux.sync.min.s32", at, -1)
            if exact:
                mine = p.new("pred", "setp.eq.s32", at, first)
                word = p.new("b32", "cvt.u32.u16" if cls == "b16" else "mov.b32", value)
                word = p.new("b32", "redux.sync.or.b32", p.new("b32", "selp.b32", word, 0, mine), -1)
                value = p.new(cls, "cvt.u16.u32" if cls == "b16" else "mov.b32", word)
            at = first
        else:
            for bit in bits:
                there = shuffle(e, int32, at, 1 << bit, "bfly")
                less = p.new("pred", "setp.lt.s32", there, at)
                if exact:
                    value = p.new(cls, f"selp.{cls}", shuffle(e, elem, value, 1 << bit, "bfly"), value, less)
                at = p.new("b32", "selp.b32", there, at, less)
        out.append([value if exact else cast_element(e, top, fp32, elem), at])
    return out
