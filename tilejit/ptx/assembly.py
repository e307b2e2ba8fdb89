"""Emitter of inline assembly: the author's text once for every `pack` registers."""
from __future__ import annotations

import re

from tilejit.errors import CompilationError
from tilejit.ir import Op
from tilejit.ir.types import DType, Scalar, elem_of
from tilejit.ptx.emit import Emitter, emits, reg_class
from tilejit.ptx.pack import bool_bytes, unpack, words

#: Letter of a constraint -> register class (LLVM language reference, "Supported Constraint Code List", NVPTX).
_CLASSES = {"b": "pred", "c": "b16", "h": "b16", "r": "b32", "l": "b64", "f": "f32", "d": "f64"}
_BITS = {"pred": 1, "b16": 16, "b32": 32, "b64": 64, "f32": 32, "f64": 64}
_OPERAND = re.compile(r"\$(?:(\$)|\{(\d+)(?::\w+)?\}|(\d+))")


def _constraints(op: Op) -> tuple[list[str], list[str]]:
    outs: list[str] = []
    ins: list[str] = []
    for one in op.attrs["constraints"].replace(" ", "").split(","):
        letter = one.lstrip("=&+")
        if not one or one.startswith("~"):
            continue
        if letter not in _CLASSES and not (letter.isdigit() and not one.startswith("=")):
            raise CompilationError(f"inline assembly: unknown constraint {one!r}; there are h (16 bits), r (32), "
                                   "l (64), f (fp32), d (fp64), b (predicate), each with = for an output, and numbers "
                                   "of outputs",
                                   op.loc)
        (outs if one.startswith("=") else ins).append(_CLASSES.get(letter, letter))
    return outs, ins


def _shared(t: Scalar, pack: int) -> int:
    bits = max(8, t.bits)
    return min(32 // bits, pack) if bits < 32 else 1


def _into(e: Emitter, op: Op, t: Scalar, regs: list[str], cls: str) -> str:
    p = e.p
    if isinstance(t, DType) and t.family == "bool" and cls != "pred":
        regs = bool_bytes(e, regs)
        t = DType("uint8")
    size = t.bits * len(regs)
    if len(regs) == 4 or len(regs) == 2 and t.bits == 16:
        made, found = words(e, t, regs)[0], "b32"
    elif len(regs) == 2:
        low = p.new("b16", "and.b16", regs[0], 255)
        made, found = p.new("b16", "or.b16", p.new("b16", "shl.b16", regs[1], 8), low), "b16"
    else:
        made, found = regs[0], reg_class(t)
        if t.bits == 8:
            made = p.new("b16", "and.b16", made, 255)
    if found == cls:
        return made
    if _BITS[cls] == _BITS[found]:
        return p.new(cls, f"mov.b{_BITS[cls]}", made)
    if found == "b16" and cls == "b32":
        return p.new("b32", "cvt.u32.u16", made)
    raise CompilationError(f"inline assembly: {size} bits of {t} do not go into a register of {_BITS[cls]} bits",
                           op.loc)


def _out_of(e: Emitter, op: Op, t: Scalar, reg: str, cls: str, count: int) -> list[str]:
    p = e.p
    if isinstance(t, DType) and t.family == "bool" and cls != "pred":
        return [p.new("pred", "setp.ne.u16", r, 0) for r in _out_of(e, op, DType("uint8"), reg, cls, count)]
    want = reg_class(t)
    if count == 1 and t.bits != 8:
        if want == cls:
            return [reg]
        if _BITS[want] == _BITS[cls]:
            return [p.new(want, f"mov.b{_BITS[cls]}", reg)]
        if want == "b16" and cls == "b32":
            return [p.new("b16", "cvt.u16.u32", reg)]
        raise CompilationError(f"inline assembly: a register of {_BITS[cls]} bits for {t}", op.loc)
    if cls == "b16":
        reg = p.new("b32", "cvt.u32.u16", reg)
    elif cls == "f32":
        reg = p.new("b32", "mov.b32", reg)
    elif cls != "b32":
        raise CompilationError(f"inline assembly: a register of {_BITS[cls]} bits for {count} elements of {t}", op.loc)
    whole = p.regs("b16", 32 // t.bits)
    unpack(e, t, [reg], whole)
    return whole[:count]


@emits("inline_asm", "inline_asm_effect")
def _inline_asm(e: Emitter, op: Op) -> None:
    outs, ins = _constraints(op)
    pack: int = op.attrs["pack"]
    out_types, in_types = [elem_of(r.type) for r in op.results], [elem_of(v.type) for v in op.operands]
    for what, found, types in (("outputs", outs, out_types), ("inputs", ins, in_types)):
        due = sum(-(-pack // _shared(t, pack)) for t in types)
        if due != len(found):
            raise CompilationError(f"inline assembly: {len(found)} constraints of {what}, but {due} registers for pack="
                                   f"{pack} of {', '.join(map(str, types)) or 'no operand'}", op.loc)
    given, count = [e.get(v) for v in op.operands], e.count(op.results[0].type)
    made: list[list[str]] = [[] for _ in op.results]
    for start in range(0, count, pack):
        group = [[regs[min(i, count - 1)] for i in range(start, start + pack)] for regs in given]
        for all_of_one, new in zip(made, _once(e, op, group, outs, ins)):
            all_of_one += new
    for r, regs in zip(op.results, made):
        e.set(r, regs[:count])


def _once(e: Emitter, op: Op, group: list[list[str]], outs: list[str], ins: list[str]) -> list[list[str]]:
    p, pack = e.p, op.attrs["pack"]
    names = [p.reg(cls) for cls in outs]
    results = names.copy()
    at = 0
    for v, regs in zip(op.operands, group):
        t = elem_of(v.type)
        share = _shared(t, pack)
        for i in range(0, pack, share):
            cls = ins[at]
            tied = int(cls) if cls.isdigit() else None
            reg = _into(e, op, t, regs[i:i + share], outs[tied] if tied is not None else cls)
            if tied is not None:
                p(f"mov.b{_BITS[outs[tied]]}", results[tied], reg)
                reg = results[tied]
            names.append(reg)
            at += 1

    def name(m: re.Match[str]) -> str:
        if m[1]:
            return "$"
        number = int(m[2] or m[3])
        if number >= len(names):
            raise CompilationError(f"inline assembly: ${number} is beyond the {len(names)} operands", op.loc)
        return names[number]

    text = _OPERAND.sub(name, op.attrs["asm"]).strip()
    if text and not text.endswith((";", "}")):
        text += ";"
    p.lines += [f"    {line.rstrip()}" for line in text.splitlines() if line.strip()]
    out, at = [], 0
    for r in op.results:
        t = elem_of(r.type)
        share, regs = _shared(t, pack), []
        for _ in range(0, pack, share):
            regs += _out_of(e, op, t, results[at], outs[at], share)
            at += 1
        out.append(regs)
    return out
