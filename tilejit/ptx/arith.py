"""Emitters of elementwise arithmetic: one instruction sequence per element."""
from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from tilejit.errors import CompilationError
from tilejit.ir import Function, Op, Value, const_of, edges, listed, numeric
from tilejit.ir.types import DType, Ptr, Tile, elem_of, fp8e4b15, fp16, fp32, uint32, uint64
from tilejit.ptx.cast import cast_element
from tilejit.ptx.division import divided, rest
from tilejit.ptx.emit import Emitter, emits, reg_class
from tilejit.ptx.widen import AND_OR, constant, in_words, two_at_a_time

LOG2E = "0f3FB8AA3B"
LN2 = "0f3F317218"


@lru_cache
def suffix(t: DType | Ptr) -> str:
    if isinstance(t, Ptr):
        return "u64"
    if t.family == "float":
        return {"fp16": "f16", "bf16": "bf16", "fp32": "f32", "tf32": "f32", "fp64": "f64"}[t.name]
    return f"{'s' if t.is_signed else 'u'}{max(16, t.bits)}"


def literal(value: int | float | bool, t: DType | Ptr) -> str:
    if isinstance(t, Ptr) or t.family in ("int", "uint"):
        bits = t.bits if t.bits > 8 else 16
        signed = isinstance(t, DType) and t.is_signed
        wrapped = int(value) & ((1 << t.bits) - 1)
        if signed and wrapped >> (t.bits - 1):
            wrapped -= 1 << t.bits
        return str(wrapped if signed else wrapped & ((1 << bits) - 1))
    number = float(value)
    if t.bits == 64:
        return "0d" + struct.pack(">d", number).hex().upper()
    if t.bits == 32:
        return "0f" + struct.pack(">f", number if abs(number) < 3e38 else np.float32(number)).hex().upper()
    if t == fp8e4b15:
        return str(int(numeric.constant(number, t)))
    raw = np.array(number).astype(numeric.np_dtype(t))
    return "0x" + format(int(raw.view(np.uint16 if t.bits == 16 else np.uint8)), "04X")


def each(e: Emitter, op: Op, make: Callable[..., str]) -> None:
    """Set the result to make(a, b, ...) for every register; equal inputs are done once, those without names not."""
    every = list(zip(*[e.values[v] for v in op.operands]))
    if len(every) == 1:
        e.values[op.results[0]] = [make(*every[0])]
        return
    different = [regs for regs in dict.fromkeys(every) if "" not in regs]
    made = e.p.repeat(make, different)
    if len(different) < len(every):
        done = dict(zip(different, made))
        made = [done.get(regs, "") for regs in every]
    e.set(op.result, made)


def wrap8(e: Emitter, t: DType, reg: str) -> str:
    if t.is_int() and t.bits == 8:
        return e.p.new("b16", f"cvt.{'s' if t.is_signed else 'u'}16.{'s' if t.is_signed else 'u'}8", reg)
    return reg


def through_fp32(e: Emitter, t: DType, make: Callable[..., str], *regs: str) -> str:
    wide = [cast_element(e, r, t, fp32) for r in regs]
    return cast_element(e, make(*wide), fp32, t)


@emits("const")
def _const(e: Emitter, op: Op) -> None:
    t = elem_of(op.result.type)
    if isinstance(t, DType) and t.family == "bool":
        reg = e.p.new("pred", "setp.ne.b32", int(bool(op.attrs["value"])), 0)
    else:
        cls = reg_class(t)
        reg = e.p.new(cls, f"mov.{cls}", literal(op.attrs["value"], t))
    e.set(op.result, [reg] * e.count(op.result.type))


@emits("add", "sub", "mul")
def _add_sub_mul(e: Emitter, op: Op) -> None:
    t, p = op.operands[0].dtype, e.p
    cls, name = reg_class(t), op.name
    if t.family == "bool":
        each(e, op, lambda a, b: p.new("pred", "and.pred" if name == "mul" else "xor.pred", a, b))
        return
    if t.is_fp8():
        raise CompilationError(f"{name}: {t} is a storage type, cast it before computing", op.loc)
    kind = suffix(t)
    if t.is_float:
        a, b = map(e.get, op.operands)
        if t.bits == 16 and len(a) % 2 == 0 and in_words(op.operands[0]) and (e.target.hopper or t.name == "fp16"):
            e.set(op.result, two_at_a_time(e, f"{name}.rn.{kind}x2", a, b))
            return
        if op.attrs.get("ones"):
            _but_by_ones(e, op, a, b)
            return
        rounding = ".rn" if t.bits >= 32 or t.name == "bf16" or t.name == "fp16" else ""
        if t.name == "bf16" and not e.target.hopper:
            each(e, op, lambda a, b: _bf16_by_fma(e, name, a, b))
        elif name == "mul" and t.bits == 16:
            each(e, op, lambda a, b: p.new(cls, f"mul.rn.{kind}", a, b))
        else:
            each(e, op, lambda a, b: p.new(cls, f"{name}{rounding}.{kind}", a, b))
        return
    if (by32 := _wide(op)) is not None:
        regs = e.get(op.operands[0].op.operands[0])  # type: ignore[union-attr]
        e.set(op.result, p.repeat(lambda a: p.new(cls, "mul.wide.u32", a, by32), [(a,) for a in regs]))
        return
    low = "mul.lo" if name == "mul" else name

    def one(a: str, b: str) -> str:
        if by:
            return p.new(cls, "shl.b64", a, by)
        return wrap8(e, t, p.new(cls, f"{low}.{kind}", a, b))

    by = _factor(op.operands[1]) if low != name and t.bits == 64 else 0
    (_by_roots if e.steps.by_roots(op) else each)(e, op, one)


def _but_by_ones(e: Emitter, op: Op, a: list[str], b: list[str]) -> None:
    """fp32 products, left out where all factors of a warp are one: in the registers of `a`, which end here."""
    p, skip, some = e.p, e.p.label("ones"), ""
    made = [p.new("f32", "mov.f32", x) for x in a]
    for factor in dict.fromkeys(b):
        other = p.new("pred", "setp.neu.f32", factor, "0f3F800000")
        some = p.new("pred", "or.pred", some, other) if some else other
    p("bra", skip, pred=f"!{p.new('pred', 'vote.sync.any.pred', some, '0xffffffff')}")
    for x, factor in zip(made, b):
        p("mul.rn.f32", x, x, factor)
    p.place(skip)
    e.set(op.result, made)


def _wide(op: Op) -> int | None:
    """The constant of a product of two numbers of 32 bits in 64, which one instruction makes."""
    x, by = op.operands[0].op, const_of(op.operands[1])
    fits = op.name == "mul" and isinstance(by, int) and 0 < by < 1 << 32 and by & by - 1
    return by if fits and isinstance(x, Op) and x.name == "cast" and elem_of(x.operands[0].type) == uint32 \
        and op.operands[0].dtype == uint64 else None


def _factor(v: Value) -> int:
    """The shift of a multiplication, 0: none; ptxas takes three instructions for 64 bits."""
    by = const_of(v)
    return by.bit_length() - 1 if isinstance(by, int) and by > 0 and by & by - 1 == 0 else 0


def _by_roots(e: Emitter, op: Op, make: Callable[[str, str], str]) -> None:
    a, b = map(e.get, op.operands)
    e.set(op.result, e.spread(op.result, {i: make(a[i], b[i]) for i in dict.fromkeys(e.steps.roots(op.result))}))


def _bf16_by_fma(e: Emitter, name: str, a: str, b: str) -> str:
    """Before sm_90 there is only fma (PTX ISA, add): the same bits, signs of zeros included."""
    one, minus_one, minus_zero = "0x3F80", "0xBF80", "0x8000"
    x, y, z = {"add": (a, one, b), "sub": (b, minus_one, a), "mul": (a, b, minus_zero)}[name]
    constant = z if name == "mul" else y
    reg = e.p.new("b16", "mov.b16", constant)
    return e.p.new("b16", "fma.rn.bf16", x, *((y, reg) if name == "mul" else (reg, z)))


@emits("div")
def _div(e: Emitter, op: Op) -> None:
    t, p = op.operands[0].dtype, e.p
    if t.bits == 64:
        each(e, op, lambda a, b: p.new("f64", "div.rn.f64", a, b))
        return
    opcode = "div.rn.f32" if op.attrs.get("ieee") else "div.full.f32"
    one = op.operands[0].op
    if t.bits == 32 and opcode == "div.full.f32" and isinstance(one, Op) and one.name == "const" \
            and one.attrs["value"] == 1:
        each(e, op, lambda a, b: p.new("f32", "rcp.approx.f32", b))  # within 1 ulp, as div.full within 2
        return
    if t.bits == 32:
        each(e, op, lambda a, b: p.new("f32", opcode, a, b))
    else:
        each(e, op, lambda a, b: through_fp32(e, t, lambda x, y: p.new("f32", opcode, x, y), a, b))


@emits("idiv", "irem")
def _idiv_irem(e: Emitter, op: Op) -> None:
    t, p = op.operands[0].dtype, e.p
    opcode = f"{'div' if op.name == 'idiv' else 'rem'}.{suffix(t)}"
    by = constant(op.operands[1])
    if t.bits >= 32 and isinstance(by, int) and by not in (0, 1, -1):
        compute = divided if op.name == "idiv" else rest
        each(e, op, lambda a, _: compute(p, a, by, t.bits, t.is_signed))
        return
    each(e, op, lambda a, b: wrap8(e, t, p.new(reg_class(t), opcode, a, b)))


@emits("fmod")
def _fmod(e: Emitter, op: Op) -> None:
    """Exact while the quotient is below 2^24 (fp32), 2^53 (fp64)."""
    t, p = op.operands[0].dtype, e.p

    def wide(a: str, b: str, kind: str) -> str:
        q = p.new(kind, f"div.rn.{kind}", a, b)
        whole = p.new(kind, f"cvt.rzi.{kind}.{kind}", q)
        return p.new(kind, f"fma.rn.{kind}", p.new(kind, f"neg.{kind}", whole), b, a)

    if t.bits == 64:
        each(e, op, lambda a, b: wide(a, b, "f64"))
    elif t.bits == 32:
        each(e, op, lambda a, b: wide(a, b, "f32"))
    else:
        each(e, op, lambda a, b: through_fp32(e, t, lambda x, y: wide(x, y, "f32"), a, b))


@emits("and", "or", "xor")
def _bitwise(e: Emitter, op: Op) -> None:
    cls, inner = reg_class(op.operands[0].dtype), op.operands[0].op
    if op.name == "or" and cls == "b32" and isinstance(inner, Op) and inner.name == "and" \
            and None not in map(constant, (inner.operands[1], op.operands[1])):
        masked = [e.values.get(v, []) for v in inner.operands]
        rest = e.get(op.operands[1])
        if len(masked[0]) == len(masked[1]) == len(rest):  # ptxas does not join them: two constants, one literal
            e.set(op.result, [e.p.new(cls, "lop3.b32", *regs, AND_OR) for regs in zip(*masked, rest)])
            return
    each(e, op, lambda a, b: e.p.new(cls, f"{op.name}.{cls}", a, b))


@emits("not")
def _not(e: Emitter, op: Op) -> None:
    t = op.operands[0].dtype
    cls = reg_class(t)
    each(e, op, lambda a: wrap8(e, t, e.p.new(cls, f"not.{cls}", a)))


@emits("shl", "shr")
def _shift(e: Emitter, op: Op) -> None:
    t, p = op.operands[0].dtype, e.p
    cls = reg_class(t)
    opcode = f"shl.{cls}" if op.name == "shl" else f"shr.{suffix(t)}"

    def one(a: str, amount: str) -> str:
        if cls == "b16":
            amount = p.new("b32", "cvt.u32.u16", amount)
        elif cls == "b64":
            amount = p.new("b32", "cvt.u32.u64", amount)
        return wrap8(e, t, p.new(cls, opcode, a, amount))

    each(e, op, one)


@emits("mulhi")
def _mulhi(e: Emitter, op: Op) -> None:
    t, p = op.operands[0].dtype, e.p
    kind = suffix(t)
    if t.bits == 8:  # the whole product fits 16 bits
        each(e, op, lambda a, b: p.new("b16", f"shr.{kind}", p.new("b16", f"mul.lo.{kind}", a, b), 8))
    else:
        each(e, op, lambda a, b: p.new(reg_class(t), f"mul.hi.{kind}", a, b))


@emits("minimum", "maximum")
def _minmax(e: Emitter, op: Op) -> None:
    t, p = op.operands[0].dtype, e.p
    name = op.name[:3]
    nan = ".NaN" if op.attrs.get("nan") else ""
    cls = reg_class(t)
    if t.family == "bool":
        each(e, op, lambda a, b: p.new("pred", "and.pred" if name == "min" else "or.pred", a, b))
    elif t.bits == 64 and t.is_float and nan:
        def wide(a: str, b: str) -> str:
            m = p.new("f64", f"{name}.f64", a, b)
            either = p.new("pred", "setp.nan.f64", a, b)
            return p.new("f64", "selp.f64", "0d7FF8000000000000", m, either)
        each(e, op, wide)
    elif t.is_float:
        each(e, op, lambda a, b: p.new(cls, f"{name}{nan if t.bits < 64 else ''}.{suffix(t)}", a, b))
    else:
        plain = [t.bits != 32 or v not in e.negations for v in op.operands]
        kind = suffix(t)

        def whole(*args: str) -> str:
            if t.bits < 32:  # ptxas compares a 16-bit minimum wrongly (runtime/miscompiles.py)
                wide = (p.new("b32", f"cvt.{kind[0]}32.{kind}", a) for a in args)
                return p.new(cls, "cvt.u16.u32", p.new("b32", f"{name}.{kind[0]}32", *wide))
            kept = (a if ok else p.new("b32", "prmt.b32", a, 0, "0x3210") for a, ok in zip(args, plain))
            return p.new(cls, f"{name}.{kind}", *kept)
        each(e, op, whole)


def negations(fn: Function) -> set[Value]:
    """Integers that may be negated."""
    ops = listed(fn.body)
    made = {op for op in ops if op.name in ("neg", "sub") and (t := op.operands[0].dtype).bits == 32 and not t.is_float}
    found = {op.results[0] for op in made}
    before = -1
    while found and len(found) > before:  # again where a loop hands one back
        before = len(found)
        for op in ops:
            traits = op.define.traits
            if op.define.carries:
                for way in edges(op):
                    if not found.isdisjoint(way.sources):
                        found.update((*way.args, way.result))
            elif op not in made and not found.isdisjoint(op.operands):
                for region in op.regions:  # of a fold: either side is an operand or was folded
                    found.update(x for x in region.args if op.operands[x.index % len(op.operands)] in found)
                if op.define.pure and ("elementwise" not in traits or "identity" in traits or op.name == "select"):
                    types = {elem_of(v.type) for v in op.operands if v in found}
                    results = (r for r in op.results if isinstance(r.type, (DType, Tile)))
                    found.update(r for r in results if elem_of(r.type) in types)
    return found


@emits("neg")
def _neg(e: Emitter, op: Op) -> None:
    """int1 is modulo 2."""
    t = op.operands[0].dtype
    if t.family == "bool":
        e.set(op.result, e.get(op.operands[0]))
        return
    cls, kind = reg_class(t), suffix(t)
    if t.family == "uint":
        kind = f"s{max(16, t.bits)}"
    each(e, op, lambda a: wrap8(e, t, e.p.new(cls, f"neg.{kind}", a)))


@emits("abs")
def _abs(e: Emitter, op: Op) -> None:
    t = op.operands[0].dtype
    if t.family in ("uint", "bool"):
        e.set(op.result, e.get(op.operands[0]))
        return
    each(e, op, lambda a: wrap8(e, t, e.p.new(reg_class(t), f"abs.{suffix(t)}", a)))


@emits("fma")
def _fma(e: Emitter, op: Op) -> None:
    t = op.operands[0].dtype
    each(e, op, lambda a, b, c: e.p.new(reg_class(t), f"fma.rn.{suffix(t)}", a, b, c))


@emits("cmp")
def _cmp(e: Emitter, op: Op) -> None:
    compare, runs = comparison(e, elem_of(op.operands[0].type), op.attrs["pred"]), op.attrs.get("runs", 1)
    if runs > 1:  # one for all of a run: its registers lie side by side
        a, b = (e.get(v)[::runs] for v in op.operands)
        firsts = e.p.repeat(compare, list(zip(a, b)))
        e.set(op.result, [r for r in firsts for _ in range(runs)])
        return
    each(e, op, compare)


def comparison(e: Emitter, t: DType | Ptr, pred: str) -> Callable[..., str]:
    p, whole = e.p, isinstance(t, DType) and t.family == "bool"
    wide: DType | None = None
    if isinstance(t, DType):
        if t.is_float and pred == "ne":
            pred = "neu"
        if t.is_fp8():
            wide = fp16
        elif t.name == "bf16" and not e.target.hopper:  # setp.bf16 came with sm_90
            wide = fp32

    def one(a: str, b: str, *third: str) -> str:
        if whole:
            a, b = (p.new("b32", "selp.b32", 1, 0, r) for r in (a, b))
        elif wide is not None and isinstance(t, DType):
            a, b = (cast_element(e, r, t, wide) for r in (a, b))
        return p.new("pred", f"setp.{pred}.{'u32' if whole else suffix(wide or t)}", a, b, *third)

    return one


@emits("select")
def _select(e: Emitter, op: Op) -> None:
    t, p = elem_of(op.result.type), e.p
    if isinstance(t, DType) and t.family == "bool":
        def boolean(c: str, a: str, b: str) -> str:
            yes = p.new("pred", "and.pred", c, a)
            no = p.new("pred", "and.pred", p.new("pred", "not.pred", c), b)
            return p.new("pred", "or.pred", yes, no)
        each(e, op, boolean)
        return
    cls, (_, yes, no) = reg_class(t), map(e.get, op.operands)
    if yes == no:
        e.set(op.result, yes)
        return
    each(e, op, lambda c, a, b: p.new(cls, f"selp.{cls}", a, b, c))


@emits("ptr_add")
def _ptr_add(e: Emitter, op: Op) -> None:
    ptr, off = elem_of(op.operands[0].type), op.operands[1].dtype
    assert isinstance(ptr, Ptr)
    size, p, sign = ptr.elem.bytes, e.p, "s" if off.is_signed else "u"
    offset, shift = op.operands[1], size.bit_length() - 1

    def one(a: str, b: str) -> str:
        if off.bits == 64:
            return p.new("b64", "add.s64", a, p.new("b64", "shl.b64", b, shift) if shift else b)
        if off.family == "bool":
            b = p.new("b32", "selp.b32", 1, 0, b)
        elif off.bits < 32:
            b = p.new("b32", f"cvt.{sign}32.{sign}16", b)
        if size == 1:  # never `mad.wide` by one (runtime/miscompiles.py)
            return p.new("b64", "add.s64", a, p.new("b64", f"cvt.{sign}64.{sign}32", b))
        return p.new("b64", f"mad.wide.{sign}32", b, size, a)

    if isinstance(op.result.type, Ptr) and isinstance(offset.op, Op) and offset.op.name == "mul" and off.bits == 64:
        offset, by = offset.op.operands
        if _factor(by):
            shift += _factor(by)
            e.set(op.result, one(e.scalar(op.operands[0]), e.scalar(offset)))
            return
    (_by_roots if e.steps.by_roots(op) else each)(e, op, one)


# -- functions of one float --
def _exp2(e: Emitter, x: str) -> str:
    """Subnormal results are flushed, as by Triton, unless `enable_reflect_ftz` is False."""
    return e.p.new("f32", "ex2.approx.ftz.f32" if e.fn.attrs.get("enable_reflect_ftz", True) else "ex2.approx.f32", x)


def _exp(e: Emitter, x: str) -> str:
    return _exp2(e, e.p.new("f32", "mul.rn.f32", x, LOG2E))


def _log(e: Emitter, x: str) -> str:
    return e.p.new("f32", "mul.rn.f32", e.p.new("f32", "lg2.approx.f32", x), LN2)


def _tanh(e: Emitter, x: str) -> str:
    """1 - 2 / (e^2x + 1): within a few 1e-7 absolute; saturates at both ends."""
    p = e.p
    twice = p.new("f32", "mul.rn.f32", x, literal(2 * math.log2(math.e), fp32))
    big = p.new("f32", "add.rn.f32", p.new("f32", "ex2.approx.ftz.f32", twice), literal(1.0, fp32))
    return p.new("f32", "fma.rn.f32", p.new("f32", "rcp.approx.ftz.f32", big), literal(-2.0, fp32),
                 literal(1.0, fp32))


def _sigmoid(e: Emitter, x: str) -> str:
    """Only results below 2^-126 are flushed."""
    p = e.p
    power = p.new("f32", "ex2.approx.ftz.f32", p.new("f32", "mul.rn.f32", x, literal(-math.log2(math.e), fp32)))
    return p.new("f32", "rcp.approx.ftz.f32", p.new("f32", "add.rn.f32", power, literal(1.0, fp32)))


#: log2(erfc(a)), highest power first, no constant term: error of erfc below 8e-8 up to 4, where erf is 1.
_LOG2_ERFC = (0.00010022163769463077, -0.00046157810802310232, -0.002302219858393073, 0.029452485963702202,
              -0.14896364510059357, -0.9183286428451538, -1.6279137134552002)


def _erf(e: Emitter, x: str) -> str:
    p = e.p
    a = p.new("f32", "min.NaN.f32", p.new("f32", "abs.f32", x), literal(4.0, fp32))
    log = literal(_LOG2_ERFC[0], fp32)
    for c in _LOG2_ERFC[1:]:
        log = p.new("f32", "fma.rn.f32", a, log, literal(c, fp32))
    rest = p.new("f32", "ex2.approx.ftz.f32", p.new("f32", "mul.rn.f32", a, log))
    return p.new("f32", "copysign.f32", x, p.new("f32", "sub.rn.f32", literal(1.0, fp32), rest))


def _reduced(e: Emitter, opcode: str, x: str) -> str:
    p = e.p
    turns = p.new("f32", "cvt.rni.f32.f32",
                  p.new("f32", "mul.rn.f32", x, literal(1 / (2 * math.pi), fp32)))
    hi = 6.28125
    lo = 2 * math.pi - hi
    r = p.new("f32", "fma.rn.f32", turns, literal(-hi, fp32), x)
    r = p.new("f32", "fma.rn.f32", turns, literal(-lo, fp32), r)
    return p.new("f32", f"{opcode}.approx.f32", r)


def _simple(opcode: str) -> Callable[[Emitter, str], str]:
    return lambda e, x: e.p.new("f32", opcode, x)


_FP32: dict[str, Callable[[Emitter, str], str]] = {
    "exp": _exp, "log": _log, "tanh": _tanh, "sigmoid": _sigmoid, "erf": _erf,
    "exp2": _exp2, "log2": _simple("lg2.approx.f32"),
    "sqrt": _simple("sqrt.approx.f32"), "rsqrt": _simple("rsqrt.approx.f32"),
    "floor": _simple("cvt.rmi.f32.f32"), "ceil": _simple("cvt.rpi.f32.f32"),
    "sin": lambda e, x: _reduced(e, "sin", x), "cos": lambda e, x: _reduced(e, "cos", x),
}
_FP64 = {"sqrt": "sqrt.rn.f64", "floor": "cvt.rmi.f64.f64", "ceil": "cvt.rpi.f64.f64"}


@emits(*_FP32)
def _function(e: Emitter, op: Op) -> None:
    t, p = op.operands[0].dtype, e.p
    make = _FP32[op.name]
    if op.name == "sqrt" and op.attrs.get("ieee"):
        make = _simple("sqrt.rn.f32")
    if t.bits == 64:
        if op.name == "rsqrt":
            each(e, op, lambda a: p.new("f64", "rcp.rn.f64", p.new("f64", "sqrt.rn.f64", a)))
        elif op.name in _FP64:
            each(e, op, lambda a: p.new("f64", _FP64[op.name], a))
        else:
            raise CompilationError(f"{op.name} is not available in fp64: cast to fp32 first", op.loc)
    elif t.bits == 32:
        each(e, op, lambda a: make(e, a))
    else:
        each(e, op, lambda a: through_fp32(e, t, lambda x: make(e, x), a))
