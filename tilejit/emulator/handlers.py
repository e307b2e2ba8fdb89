"""How arithmetic, conversions and moves become rows: a function a family."""
from __future__ import annotations

from tilejit.emulator.decode import CLOCKS, Decoder, decodes, width_of
from tilejit.emulator.vm import codes as k
from tilejit.errors import EmulatorError
from tilejit.ptx.isa import Form
from tilejit.ptx.text import Imm, Instruction, Special, Sym, Vec

Mods = dict[str, str]

FLOATS = {"f32": k.F32, "f64": k.F64, "f16": k.F16, "bf16": k.BF16, "f16x2": k.F16X2, "bf16x2": k.BF16X2}

FORMATS = {**FLOATS, "tf32": k.TF32, "e4m3x2": k.E4M3X2, "e5m2x2": k.E5M2X2, "u8": k.U8, "u16": k.U16,
           "u32": k.U32, "u64": k.U64, "s8": k.S8, "s16": k.S16, "s32": k.S32, "s64": k.S64,
           "e4m3": k.E4M3, "e5m2": k.E5M2}

ROUNDING = {"rn": k.RN, "rz": k.RZ, "rm": k.RM, "rp": k.RP, "rna": k.RNA, "rni": k.RNI, "rzi": k.RZI,
            "rmi": k.RMI, "rpi": k.RPI, "approx": k.APPROX, "full": k.NONE}

COMPARE = {"eq": k.EQ, "ne": k.NE, "lt": k.LT, "le": k.LE, "gt": k.GT, "ge": k.GE, "lo": k.LT, "ls": k.LE,
           "hi": k.GT, "hs": k.GE, "equ": k.EQU, "neu": k.NEU, "ltu": k.LTU, "leu": k.LEU, "gtu": k.GTU,
           "geu": k.GEU, "num": k.NUM, "nan": k.ISNAN}

_FLAGS = {"ftz": k.FTZ, "sat": k.SAT, "relu": k.RELU, "nan": k.NAN, "xorsign": k.XORSIGN,
          "satf": k.SATFINITE}


def flags_of(mods: Mods) -> int:
    return sum(bit for name, bit in _FLAGS.items() if name in mods)


def integer(d: Decoder, ins: Instruction, sub: int, kind: str, flags: int = 0, imm: int = 0,
            kinds: tuple[str, ...] = ()) -> None:
    sources = ins.operands[1:]
    regs = [d.source(o, kinds[i] if i < len(kinds) else kind) for i, o in enumerate(sources)]
    regs += [d.zero] * (4 - len(regs))
    if kind.startswith("s"):
        flags |= k.SIGNED
    d.row(k.INT, d.dest(ins.operands[0]), *regs, sub=sub, fmt=width_of(kind), flags=flags, imm=imm)


def floating(d: Decoder, ins: Instruction, sub: int, mods: Mods) -> None:
    kind = mods["type"]
    regs = [d.source(o, kind) for o in ins.operands[1:]] + [d.zero] * 3
    d.row(k.FLOAT, d.dest(ins.operands[0]), *regs[:3], sub=sub, fmt=FLOATS[kind], flags=flags_of(mods),
          imm=ROUNDING[mods.get("rnd", "rn")])

_BOTH = {"add": (k.ADD, k.FADD), "sub": (k.SUB_, k.FSUB), "mul": (k.MUL, k.FMUL), "mad": (k.MAD, k.FFMA),
         "div": (k.DIV, k.FDIV), "min": (k.MIN, k.FMIN), "max": (k.MAX, k.FMAX), "abs": (k.ABS, k.FABS),
         "neg": (k.NEGATE, k.FNEG)}

_PARTS = {("mul", "lo"): k.MUL, ("mul", "hi"): k.MULHI, ("mul", "wide"): k.MULWIDE, ("mad", "lo"): k.MAD,
          ("mad", "hi"): k.MADHI, ("mad", "wide"): k.MADWIDE}


@decodes(*_BOTH)
def _arithmetic(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    kind = mods["type"]
    if kind in FLOATS:
        floating(d, ins, _BOTH[form.name][1], mods)
        return
    if kind.endswith("x2"):
        integer(d, ins, _BOTH[form.name][0], kind, flags_of(mods) | k.PACKED)
        return
    sub = _PARTS.get((form.name, mods.get("part", "")), _BOTH[form.name][0])
    kinds = (kind, kind, kind if mods.get("part") != "wide" else {16: "b32", 32: "b64"}[width_of(kind)])
    integer(d, ins, sub, kind, flags_of(mods), kinds=kinds)


@decodes("rem")
def _rem(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    integer(d, ins, k.REM, mods["type"])

_FLOATING = {"fma": k.FFMA, "rcp": k.FRCP, "sqrt": k.FSQRT, "rsqrt": k.FRSQRT, "sin": k.FSIN, "cos": k.FCOS,
             "lg2": k.FLG2, "ex2": k.FEX2, "tanh": k.FTANH, "copysign": k.FCOPYSIGN}


@decodes(*_FLOATING)
def _floating(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    floating(d, ins, _FLOATING[form.name], mods)

_INTEGER = {"sad": k.SAD, "popc": k.POPC, "clz": k.CLZ, "brev": k.BREV, "and": k.AND, "or": k.OR, "xor": k.XOR,
            "cnot": k.CNOT, "not": k.NOT}


@decodes(*_INTEGER)
def _integer(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    integer(d, ins, _INTEGER[form.name], mods["type"])


@decodes("bfind")
def _bfind(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    integer(d, ins, k.BFIND, mods["type"], k.CLAMP if "shiftamt" in mods else 0)


@decodes("bfe", "bfi")
def _bit_field(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    kind = mods["type"]
    kinds = (kind, "b32", "b32") if form.name == "bfe" else (kind, kind, "b32", "b32")
    integer(d, ins, k.BFE if form.name == "bfe" else k.BFI, kind, kinds=kinds)


@decodes("bmsk", "szext")
def _mask(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    integer(d, ins, k.BMSK if form.name == "bmsk" else k.SZEXT, mods["type"],
            k.CLAMP if mods["mode"] == "clamp" else 0)


@decodes("dp4a")
def _dp4a(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    integer(d, ins, k.DP4A, "b32", imm=(mods["atype"] == "s32") + 2 * (mods["btype"] == "s32"))


@decodes("prmt")
def _prmt(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    mode = ("", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16").index(mods.get("mode", ""))
    integer(d, ins, k.PRMT, "b32", imm=mode)


@decodes("lop3")
def _lop3(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    table = ins.operands[4]
    if not isinstance(table, Imm):
        raise EmulatorError("the truth table of lop3 must be a literal")
    d.row(k.INT, d.dest(ins.operands[0]), *(d.source(o, "b32") for o in ins.operands[1:4]), sub=k.LOP3, fmt=32,
          imm=table.value)


@decodes("shl", "shr")
def _shift(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    kind = mods["type"]
    integer(d, ins, k.SHL if form.name == "shl" else k.SHR, kind, kinds=(kind, "b32"))


@decodes("shf")
def _funnel(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    flags = (k.RIGHT if mods["dir"] == "r" else 0) | (k.CLAMP if mods["mode"] == "clamp" else 0)
    integer(d, ins, k.SHF, "b32", flags)


@decodes("add.cc", "addc", "sub.cc", "subc")
def _carry(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    a, b = (d.source(o, mods["type"]) for o in ins.operands[1:])
    takes = form.name in ("addc", "subc")
    d.row(k.CARRY, d.dest(ins.operands[0]), a, b, e=d.carry, sub=int(form.name.startswith("sub")),
          fmt=width_of(mods["type"]), flags=k.RETURNS if takes else 0, imm=int("cc" in mods or not takes))


@decodes("cvt.pack.sat")
def _pack_sat(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    integer(d, ins, k.CVTPACK, "b32", k.SIGNED if mods["dtype"] == "s16" else 0)


@decodes("selp")
def _selp(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    a, b = (d.source(o, mods["type"]) for o in ins.operands[1:3])
    c, negated = d.predicate(ins.operands[3])
    if negated:
        a, b = b, a
    d.row(k.INT, d.dest(ins.operands[0]), a, b, c, sub=k.SELP, fmt=width_of(mods["type"]))


@decodes("slct")
def _slct(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    regs = [d.source(o, t) for o, t in zip(ins.operands[1:], (mods["type"], mods["type"], mods["ctype"]))]
    d.row(k.INT, d.dest(ins.operands[0]), *regs, sub=k.SLCT, fmt=width_of(mods["type"]),
          flags=k.SIGNED if mods["ctype"] == "s32" else 0)


@decodes("setp", "set")
def _setp(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    kind, flags = mods["type"], flags_of(mods)
    cmp = COMPARE[mods["cmp"]]
    a, b = (d.source(o, kind) for o in ins.operands[1:3])
    c, negated = d.predicate(ins.operands[3]) if len(ins.operands) > 3 else (d.zero, 0)
    combine = ("", "and", "or", "xor").index(mods.get("bool", ""))
    is_float = kind in FLOATS
    if not is_float and cmp >= k.EQU:
        raise EmulatorError(f"{mods['cmp']} compares floats")
    if kind.startswith("s"):
        flags |= k.SIGNED
    first, second = d.pair(ins.operands[0])
    imm = 2 * is_float + (form.name == "set")
    true = {"u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF, "f32": 0x3F800000}.get(mods.get("dtype", ""), 1)
    d.row(k.SETP, first, a, b, c, second, sub=cmp, fmt=FLOATS[kind] if is_float else width_of(kind),
          flags=flags | negated, imm=imm, target=true, reconv=combine, pool=(0, int(kind in ("f16x2", "bf16x2"))))


@decodes("testp")
def _testp(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    kind, test = mods["type"], mods["test"]
    a = d.source(ins.operands[1], kind)
    if test in ("number", "notanumber"):
        d.row(k.SETP, d.dest(ins.operands[0]), a, a, sub=k.NUM if test == "number" else k.ISNAN,
              fmt=FLOATS[kind], imm=2)
        return
    d.row(k.FLOAT, d.dest(ins.operands[0]), a, sub=k.FTESTP, fmt=FLOATS[kind],
          imm=("finite", "infinite", "normal", "subnormal").index(test))


@decodes("mov")
def _mov(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    kind = mods["type"]
    out, value = ins.operands
    if kind == "b128":
        raise EmulatorError("b128 values are not supported by the emulator")
    if isinstance(out, Vec):
        d.row(k.UNPACK, a=d.source(value, kind), fmt=width_of(kind) // len(out.items), pool=d.group(out))
    elif isinstance(value, Vec):
        part = width_of(kind) // len(value.items)
        d.row(k.PACK, d.dest(out), fmt=part, pool=d.group(value, f"b{part}"))
    elif isinstance(value, Special) and value.name in CLOCKS:
        d.row(k.CLOCK, d.dest(out), fmt=CLOCKS[value.name])
    elif isinstance(value, Sym) and value.name in d.entry.labels:
        raise EmulatorError("the address of a label is not supported")
    else:
        d.row(k.MOV, d.dest(out), d.source(value, kind))

_WINDOW = {k.SHARED: k.SHARED_WINDOW, k.PARAM: k.PARAM_WINDOW, k.LOCAL: k.LOCAL_WINDOW,
           k.CONST: k.CONST_WINDOW, k.GLOBAL: 0}


@decodes("cvta")
def _cvta(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    space = d.space(mods["space"], Imm(0))
    if "to" in mods:
        mask = k.OFFSET_MASK if space != k.GLOBAL else -1
        d.row(k.INT, d.dest(ins.operands[0]), d.source(ins.operands[1]), d.constant(mask), sub=k.AND, fmt=64)
    else:
        d.row(k.INT, d.dest(ins.operands[0]), d.source(ins.operands[1]), d.constant(_WINDOW[space]), sub=k.OR,
              fmt=64)


@decodes("isspacep")
def _isspacep(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    space = d.space(mods["space"], Imm(0))
    d.row(k.ISSPACE, d.dest(ins.operands[0]), d.source(ins.operands[1]), imm=_WINDOW[space] >> 56,
          sub=int(mods["space"] in ("shared", "shared::cta")))


@decodes("cvt")
def _cvt(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    src, dst = mods["type"], mods["dtype"]
    flags = flags_of(mods)
    a = d.source(ins.operands[1], "b16" if src in ("e4m3x2", "e5m2x2") else src)
    b = d.source(ins.operands[2], src) if len(ins.operands) > 2 else d.zero
    rounding = ROUNDING[mods["rnd"]] if "rnd" in mods else k.NONE
    is_int = {t: FORMATS[t] >= k.U8 and t not in ("e4m3", "e5m2") for t in (src, dst)}
    if not is_int[src] and is_int[dst] and rounding not in (k.RNI, k.RZI, k.RMI, k.RPI):
        raise EmulatorError("a conversion from float to integer needs .rni, .rzi, .rmi or .rpi")
    out = ins.operands[0]
    d.row(k.CVT, d.dest(out), a, b, sub=FORMATS[src], fmt=FORMATS[dst], flags=flags, imm=rounding,
          target=register_width(d, out))


def register_width(d: Decoder, operand: object) -> int:
    index = getattr(operand, "index", None)
    if isinstance(index, int):
        return width_of(d.entry.registers[index][1])
    return 64
