"""Emitters of conversions between element types.

Narrow conversions that come in pairs (fp32 -> bf16x2, fp16x2 -> e4m3x2) are emitted packed when a tile has
an even number of registers; single elements use the same instruction with a zero partner.
"""
from __future__ import annotations

from tilejit.ir import Op
from tilejit.ir.types import DType, Ptr, elem_of
from tilejit.ptx.emit import Emitter, emits, reg_class

_F8 = {"fp8e4nv": "e4m3", "fp8e5": "e5m2"}
_F = {"fp16": "f16", "bf16": "bf16", "fp32": "f32", "tf32": "f32", "fp64": "f64"}
_FP16 = DType("fp16", "float", 16)
_FP32 = DType("fp32", "float", 32)


def _int(t: DType) -> str:
    return f"{'s' if t.is_signed else 'u'}{max(16, t.bits)}"


def cast_element(e: Emitter, reg: str, src: DType, dst: DType, rounding: str = "rn") -> str:
    """One element of type src as dst, in a fresh register (or the same one if nothing changes)."""
    p = e.p
    if src == dst or {src.name, dst.name} == {"fp32", "tf32"}:
        return reg
    if dst.kind == "bool":
        if src.is_float:
            wide = reg if src.bits >= 32 else cast_element(e, reg, src, _FP32)
            kind = "f64" if src.bits == 64 else "f32"
            zero = "0d0000000000000000" if src.bits == 64 else "0f00000000"
            return p.new("pred", f"setp.neu.{kind}", wide, zero)
        return p.new("pred", f"setp.ne.{_int(src)}", reg, 0)
    if src.kind == "bool":
        if dst.is_int:
            cls = reg_class(dst)
            return p.new(cls, f"selp.{cls}", 1, 0, reg)
        one = p.new("b32", "selp.b32", 1, 0, reg)
        return cast_element(e, one, DType("int32", "int", 32), dst)
    if src.is_fp8:
        pair = p.new("b32", f"cvt.rn.f16x2.{_F8[src.name]}x2", reg)
        half = p.reg("b16")
        p("mov.b32", f"{{{half}, _}}", pair)
        return cast_element(e, half, _FP16, dst)
    if dst.is_fp8:
        if src.bits == 16 and src.name == "fp16":
            pair = p.new("b32", "mov.b32", f"{{{reg}, {reg}}}")
            both = p.new("b16", f"cvt.rn.satfinite.{_F8[dst.name]}x2.f16x2", pair)
        else:
            wide = reg if src.bits == 32 and src.is_float else cast_element(e, reg, src, _FP32)
            both = p.new("b16", f"cvt.rn.satfinite.{_F8[dst.name]}x2.f32", "0f00000000", wide)
        return p.new("b16", "and.b16", both, 255)
    if src.is_float and dst.is_float:
        return _float_to_float(e, reg, src, dst, rounding)
    if src.is_float:
        return _float_to_int(e, reg, src, dst)
    if dst.is_float:
        if dst.name in ("bf16", "fp16") and src.bits > 16 or dst.name == "bf16":
            wide = p.new("f32", f"cvt.rn.f32.{_int(src)}", reg)
            return cast_element(e, wide, _FP32, dst)
        return p.new(reg_class(dst), f"cvt.rn.{_F[dst.name]}.{_int(src)}", reg)
    return _int_to_int(e, reg, src, dst)


def _float_to_float(e: Emitter, reg: str, src: DType, dst: DType, rounding: str) -> str:
    p, cls = e.p, reg_class(dst)
    if src.name == "bf16" and dst.name in ("fp16", "fp64"):
        return cast_element(e, cast_element(e, reg, src, _FP32), _FP32, dst, rounding)
    if src.name == "bf16":
        return p.new("f32", "mov.b32", f"{{{p.new('b16', 'mov.b16', 0)}, {reg}}}")
    if dst.name == "bf16" and src.name in ("fp16", "fp64"):
        return cast_element(e, cast_element(e, reg, src, _FP32), _FP32, dst, rounding)
    if dst.bits < src.bits:
        return p.new(cls, f"cvt.{rounding}.{_F[dst.name]}.{_F[src.name]}", reg)
    return p.new(cls, f"cvt.{_F[dst.name]}.{_F[src.name]}", reg)


def _float_to_int(e: Emitter, reg: str, src: DType, dst: DType) -> str:
    """Truncation toward zero; out-of-range values saturate in the conversion, then wrap to 8 bits."""
    p = e.p
    if src.bits == 16:
        reg, src = cast_element(e, reg, src, _FP32), _FP32
    if dst.bits >= 32:
        return p.new(reg_class(dst), f"cvt.rzi.{_int(dst)}.{_F[src.name]}", reg)
    wide = p.new("b32", f"cvt.rzi.s32.{_F[src.name]}", reg)
    return _int_to_int(e, wide, DType("int32", "int", 32), dst)


def _int_to_int(e: Emitter, reg: str, src: DType, dst: DType) -> str:
    """Narrowing wraps, widening extends by the source's sign; 8-bit values are kept extended to 16."""
    p, cls = e.p, reg_class(dst)
    if dst.bits == 8:
        low = reg if reg_class(src) == "b16" else p.new("b16", f"cvt.u16.{_int(src)}", reg)
        sign = "s" if dst.is_signed else "u"
        return p.new("b16", f"cvt.{sign}16.{sign}8", low)
    if max(16, src.bits) == dst.bits:
        return reg
    return p.new(cls, f"cvt.{_int(dst)}.{_int(src)}", reg)


@emits("cast")
def _cast(e: Emitter, op: Op) -> None:
    src, dst = elem_of(op.operands[0].type), op.attrs["dtype"]
    regs, p = e.get(op.operands[0]), e.p
    rounding = {"rtz": "rz"}.get(op.attrs.get("rounding") or "", "rn")
    if isinstance(src, Ptr) or isinstance(dst, Ptr):
        e.set(op.result, regs)           # pointer casts change the element type only
        return
    pairable = src.name == "fp32" and (dst.name in ("fp16", "bf16") or dst.is_fp8)
    if pairable and len(regs) % 2 == 0 and len(set(regs)) == len(regs):
        out = []
        for lo, hi in zip(regs[::2], regs[1::2]):
            pair = p.regs("b16", 2)
            if dst.is_fp8:
                both = p.new("b16", f"cvt.rn.satfinite.{_F8[dst.name]}x2.f32", hi, lo)
                p("and.b16", pair[0], both, 255)
                p("shr.u16", pair[1], both, 8)
            else:
                both = p.new("b32", f"cvt.{rounding}.{_F[dst.name]}x2.f32", hi, lo)
                p("mov.b32", f"{{{pair[0]}, {pair[1]}}}", both)
            out += pair
        e.set(op.result, out)
        return
    done: dict[str, str] = {}
    for r in regs:
        if r not in done:
            done[r] = cast_element(e, r, src, dst, rounding)
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
