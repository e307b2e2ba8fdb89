"""Conversions between element types, each rounded once."""
from __future__ import annotations

from tilejit.ir import Op
from tilejit.ir.bounds import nonnegative
from tilejit.ir.types import DType, Ptr, elem_of, fp16, fp32, int32, uint32, uint64
from tilejit.ptx.emit import Emitter, emits, reg_class
from tilejit.ptx.widen import halves, in_pairs, widen, widens

_F8 = {"fp8e4nv": "e4m3", "fp8e5": "e5m2"}
_F = {"fp16": "f16", "bf16": "bf16", "fp32": "f32", "tf32": "f32", "fp64": "f64"}


def _int(t: DType) -> str:
    return f"{'s' if t.is_signed else 'u'}{max(16, t.bits)}"


def cast_element(e: Emitter, reg: str, src: DType, dst: DType, rounding: str = "rn") -> str:
    """One element as dst, in a fresh register (or the same one if nothing changes)."""
    p = e.p
    if src == dst or src.name == "tf32" and dst.name == "fp32":
        return reg
    if dst.name == "tf32":
        wide = cast_element(e, reg, src, fp32)
        return p.new("f32", "mov.b32", p.new("b32", "cvt.rna.tf32.f32", wide))
    if dst.family == "bool":
        if src.is_float:
            wide = reg if src.bits >= 32 else cast_element(e, reg, src, fp32)
            kind = "f64" if src.bits == 64 else "f32"
            zero = "0d0000000000000000" if src.bits == 64 else "0f00000000"
            return p.new("pred", f"setp.neu.{kind}", wide, zero)
        return p.new("pred", f"setp.ne.{_int(src)}", reg, 0)
    if src.family == "bool":
        if dst.is_int():
            cls = reg_class(dst)
            return p.new(cls, f"selp.{cls}", 1, 0, reg)
        one = p.new("b32", "selp.b32", 1, 0, reg)
        return cast_element(e, one, int32, dst)
    if src.is_fp8():
        pair = p.new("b32", f"cvt.rn.f16x2.{_F8[src.name]}x2", reg)
        half = p.reg("b16")
        p("mov.b32", f"{{{half}, _}}", pair)
        return cast_element(e, half, fp16, dst)
    if dst.is_fp8() and rounding == "rz":
        return _fp8_toward_zero(e, reg, src, dst)
    if dst.is_fp8():
        if src.bits == 16 and src.name == "fp16":
            pair = p.new("b32", "mov.b32", f"{{{reg}, {reg}}}")
            both = p.new("b16", f"cvt.rn.satfinite.{_F8[dst.name]}x2.f16x2", pair)
        else:
            wide = _odd_fp32(e, reg) if src.name == "fp64" else cast_element(e, reg, src, fp32)
            both = p.new("b16", f"cvt.rn.satfinite.{_F8[dst.name]}x2.f32", "0f00000000", wide)
        return p.new("b16", "and.b16", both, 255)
    if src.is_float and dst.is_float:
        return _float_to_float(e, reg, src, dst, rounding)
    if src.is_float:
        return _float_to_int(e, reg, src, dst)
    if dst.is_float:
        if dst.name == "bf16" and src.bits <= 16:  # exact in fp32, and faster than cvt.bf16
            return cast_element(e, p.new("f32", f"cvt.rn.f32.{_int(src)}", reg), fp32, dst)
        if dst.name == "bf16" and not e.target.hopper:  # cvt from integers came with sm_90
            return cast_element(e, _odd_fp32(e, reg, _int(src)), fp32, dst)
        return p.new(reg_class(dst), f"cvt.rn.{_F[dst.name]}.{_int(src)}", reg)
    return _int_to_int(e, reg, src, dst)


def _float_to_float(e: Emitter, reg: str, src: DType, dst: DType, rounding: str) -> str:
    p, cls = e.p, reg_class(dst)
    if src.name == "bf16" and dst.name in ("fp16", "fp64"):
        return cast_element(e, cast_element(e, reg, src, fp32), fp32, dst, rounding)
    if src.name == "bf16":
        return p.new("f32", "mov.b32", f"{{{p.new('b16', 'mov.b16', 0)}, {reg}}}")
    if dst.name == "bf16" and src.name == "fp16":
        return cast_element(e, cast_element(e, reg, src, fp32), fp32, dst, rounding)
    if dst.name == "bf16" and src.name == "fp64" and rounding == "rz":
        return cast_element(e, cast_element(e, reg, src, fp32, "rz"), fp32, dst, "rz")
    if dst.name == "bf16" and src.name == "fp64" and not e.target.hopper:
        return cast_element(e, _odd_fp32(e, reg), fp32, dst, rounding)
    if dst.bits < src.bits:
        return p.new(cls, f"cvt.{rounding}.{_F[dst.name]}.{_F[src.name]}", reg)
    return p.new(cls, f"cvt.{_F[dst.name]}.{_F[src.name]}", reg)


def _fp8_toward_zero(e: Emitter, reg: str, src: DType, dst: DType) -> str:
    """PTX only rounds fp8 to nearest."""
    p = e.p
    if dst.name == "fp8e5":
        half = cast_element(e, reg, src, fp16, "rz")
        if src.name == "fp16":
            half = p.new("b16", "selp.b16", half, 0x7fff, p.new("pred", "setp.num.f16", half, half))
        return p.new("b16", "shr.u16", half, 8)
    wide = cast_element(e, reg, src, fp32, "rz")
    near = cast_element(e, wide, fp32, dst)
    size, back = (p.new("f32", "abs.f32", v) for v in (wide, cast_element(e, near, dst, fp32)))
    over = p.new("b16", "selp.b16", 1, 0, p.new("pred", "setp.gt.f32", back, size))
    return p.new("b16", "sub.u16", near, over)


def _odd_fp32(e: Emitter, reg: str, kind: str = "f64") -> str:
    """Rounding again is exact (Boldo and Melquiond, IEEE TC 2008)."""
    p = e.p
    short = p.new("f32", f"cvt.rz.f32.{kind}", reg)
    if kind == "f64":
        inexact = p.new("pred", "setp.neu.f64", p.new("f64", "cvt.f64.f32", short), reg)
    else:
        back = p.new("b64" if kind.endswith("64") else "b32", f"cvt.rzi.{kind}.f32", short)
        inexact = p.new("pred", f"setp.ne.{kind}", back, reg)
    sticky = p.new("b32", "selp.b32", 1, 0, inexact)
    bits = p.new("b32", "mov.b32", short)
    return p.new("f32", "mov.b32", p.new("b32", "or.b32", bits, sticky))


def _float_to_int(e: Emitter, reg: str, src: DType, dst: DType) -> str:
    p, cls = e.p, reg_class(dst)
    if src.bits == 16:
        reg, src = cast_element(e, reg, src, fp32), fp32
    kind = _F[src.name]
    out = p.new(cls, f"cvt.rzi.{'s' if dst.is_signed else 'u'}{dst.bits}.{kind}", reg)
    if src.bits == 64 or dst.bits == 64:  # PTX ISA, cvt: these give the sign bit for a NaN
        number = p.new("pred", f"setp.num.{kind}", reg, reg)
        out = p.new(cls, f"selp.{cls}", out, 0, number)
    return out


def _int_to_int(e: Emitter, reg: str, src: DType, dst: DType) -> str:
    p, cls = e.p, reg_class(dst)
    if dst.bits == 8:
        low = reg if reg_class(src) == "b16" else p.new("b16", f"cvt.u16.{_int(src)}", reg)
        sign = "s" if dst.is_signed else "u"
        return p.new("b16", f"cvt.{sign}16.{sign}8", low)
    if max(16, src.bits) == dst.bits:
        return reg
    return p.new(cls, f"cvt.{_int(dst)}.{_int(src)}", reg)


def has_pairs(src: DType, dst: DType, rounding: str = "rn") -> bool:
    if dst.is_fp8() and rounding == "rz":
        return False
    if src.name == "fp32":
        return dst.name in ("fp16", "bf16") or dst.is_fp8()
    return src.name == "fp16" and dst.is_fp8() or src.is_fp8() and dst.is_float and dst.bits in (16, 32)


def cast_pair(e: Emitter, lo: str, hi: str, src: DType, dst: DType, rounding: str = "rn") -> list[str]:
    """Two neighbours; fp8 goes through fp16, which is exact."""
    p = e.p
    if src.is_fp8():
        both = p.new("b16", "mad.lo.u16", hi, 256, lo)
        pair = p.new("b32", f"cvt.rn.f16x2.{_F8[src.name]}x2", both)
        halves = p.regs("b16", 2)
        p("mov.b32", f"{{{halves[0]}, {halves[1]}}}", pair)
        return [cast_element(e, h, fp16, dst) for h in halves]
    out = p.regs("b16", 2)
    if dst.is_fp8():
        source = (p.new("b32", "mov.b32", f"{{{lo}, {hi}}}"),) if src.bits == 16 else (hi, lo)
        both = p.new("b16", f"cvt.rn.satfinite.{_F8[dst.name]}x2.{'f16x2' if src.bits == 16 else 'f32'}", *source)
        p("and.b16", out[0], both, 255)
        p("shr.u16", out[1], both, 8)
        return [*out, both]
    pair = p.new("b32", f"cvt.{rounding}.{_F[dst.name]}x2.f32", hi, lo)
    p("mov.b32", f"{{{out[0]}, {out[1]}}}", pair)
    return out


@emits("cast")
def _cast(e: Emitter, op: Op) -> None:
    src, dst = (uint64 if isinstance(t, Ptr) else t for t in (elem_of(op.operands[0].type), op.attrs["dtype"]))
    regs = e.get(op.operands[0])
    if src == int32 and dst.bits == 64 and nonnegative(op.operands[0]):
        src = uint32  # that the upper half is zero saves instructions behind
    half = halves(e, op)
    if half is not None:
        e.set(op.result, half)
        return
    if widens(src, dst) and len(regs) % 2 == 0 and len(set(regs)) == len(regs):
        e.set(op.result, widen(e, regs, dst, in_pairs(e, op.operands[0])))
        return
    rounding = {"rtz": "rz"}.get(op.attrs.get("rounding") or "", "rn")
    if has_pairs(src, dst, rounding) and len(regs) % 2 == 0 and len(set(regs)) == len(regs):
        pairs = e.p.repeat(lambda lo, hi: cast_pair(e, lo, hi, src, dst, rounding), list(zip(regs[::2], regs[1::2])))
        e.packed.update((tuple(pair[:2]), pair[2]) for pair in pairs if len(pair) > 2)
        e.set(op.result, [r for pair in pairs for r in pair[:2]])
        return
    different = [r for r in dict.fromkeys(regs) if r]
    made = e.p.repeat(lambda r: cast_element(e, r, src, dst, rounding), [(r,) for r in different])
    done = {"": "", **dict(zip(different, made))}
    e.set(op.result, [done[r] for r in regs])


@emits("bitcast")
def _bitcast(e: Emitter, op: Op) -> None:
    src, dst = elem_of(op.operands[0].type), op.attrs["dtype"]
    a, b = reg_class(src), reg_class(dst)
    regs = e.get(op.operands[0])
    if isinstance(dst, DType) and dst.bits == 8 and dst.is_signed != (isinstance(src, DType) and src.is_signed):
        sign = "s" if dst.is_signed else "u"
        e.set(op.result, [e.p.new("b16", f"cvt.{sign}16.{sign}8", r) for r in regs])
        return
    if a == b:
        e.set(op.result, regs)
        return
    width = f"b{dst.bits}"
    e.set(op.result, [e.p.new(b, f"mov.{width}", r) for r in regs])
