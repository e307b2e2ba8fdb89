"""How each instruction form becomes a row: one small function a family, registered by the form's name."""
from __future__ import annotations

from tilejit.emulator.decode import CLOCKS, Decoder, decodes, width_of
from tilejit.emulator.vm import codes as k
from tilejit.errors import EmulatorError
from tilejit.ptx.isa import Form
from tilejit.ptx.text import TYPE_BYTES, Imm, Instruction, Mem, Special, Sym, Vec

Mods = dict[str, str]

FLOATS = {"f32": k.F32, "f64": k.F64, "f16": k.F16, "bf16": k.BF16, "f16x2": k.F16X2, "bf16x2": k.BF16X2}
FORMATS = {**FLOATS, "tf32": k.TF32, "e4m3x2": k.E4M3X2, "e5m2x2": k.E5M2X2, "u8": k.U8, "u16": k.U16,
           "u32": k.U32, "u64": k.U64, "s8": k.S8, "s16": k.S16, "s32": k.S32, "s64": k.S64,
           "e4m3": k.E4M3, "e5m2": k.E5M2}
ROUNDING = {"rn": k.RN, "rz": k.RZ, "rm": k.RM, "rp": k.RP, "rna": k.RNA, "rni": k.RNI, "rzi": k.RZI,
            "rmi": k.RMI, "rpi": k.RPI, "approx": k.APPROX, "full": k.APPROX}
COMPARE = {"eq": k.EQ, "ne": k.NE, "lt": k.LT, "le": k.LE, "gt": k.GT, "ge": k.GE, "lo": k.LT, "ls": k.LE,
           "hi": k.GT, "hs": k.GE, "equ": k.EQU, "neu": k.NEU, "ltu": k.LTU, "leu": k.LEU, "gtu": k.GTU,
           "geu": k.GEU, "num": k.NUM, "nan": k.ISNAN}
_FLAGS = {"ftz": k.FTZ, "sat": k.SAT, "relu": k.RELU, "nan": k.NAN, "xorsign": k.XORSIGN,
          "satf": k.SATFINITE}


def flags_of(mods: Mods) -> int:
    """The arithmetic flags among the modifiers."""
    return sum(bit for name, bit in _FLAGS.items() if name in mods)


def integer(d: Decoder, ins: Instruction, sub: int, kind: str, flags: int = 0, imm: int = 0,
            kinds: tuple[str, ...] = ()) -> None:
    """An INT row: destination and up to four sources of type `kind` (or `kinds`)."""
    sources = ins.operands[1:]
    regs = [d.source(o, kinds[i] if i < len(kinds) else kind) for i, o in enumerate(sources)]
    regs += [d.zero] * (4 - len(regs))
    if kind.startswith("s"):
        flags |= k.SIGNED
    d.row(k.INT, d.dest(ins.operands[0]), *regs, sub=sub, fmt=width_of(kind), flags=flags, imm=imm)


def floating(d: Decoder, ins: Instruction, sub: int, mods: Mods) -> None:
    """A FLOAT row."""
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
        raise EmulatorError(f"{ins.opcode} is not supported by the emulator")
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
    raise EmulatorError(f"{ins.opcode} is not supported by the emulator")


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
    d.row(k.ISSPACE, d.dest(ins.operands[0]), d.source(ins.operands[1]), imm=_WINDOW[space] >> 56)


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
    """Bits of a destination register."""
    index = getattr(operand, "index", None)
    if isinstance(index, int):
        return width_of(d.entry.registers[index][1])
    return 64


@decodes("ld", "ld.global.nc")
def _ld(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    kind = mods["type"]
    size = TYPE_BYTES[kind]
    where = d.address(ins.operands[1])
    space = k.GLOBAL if form.name == "ld.global.nc" else d.space(mods.get("space", ""), ins.operands[1])
    out = ins.operands[0]
    vector = isinstance(out, Vec)
    if size == 16:
        raise EmulatorError("b128 values are not supported by the emulator")
    pool = d.group(out) if isinstance(out, Vec) else (0, 0)
    if ("vec" in mods) != vector or (vector and int(mods["vec"][1:]) != pool[1]):
        raise EmulatorError("the vector and the registers differ in size")
    width = register_width(d, out.items[0] if isinstance(out, Vec) else out)
    d.row(k.LOAD, None if vector else d.dest(out), where.base, sub=space, fmt=size,
          flags=k.SIGNED if kind.startswith("s") else 0, imm=where.offset, target=width, pool=pool)


@decodes("st")
def _st(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    kind = mods["type"]
    size = TYPE_BYTES[kind]
    where = d.address(ins.operands[0])
    value = ins.operands[1]
    if size == 16:
        raise EmulatorError("b128 values are not supported by the emulator")
    if isinstance(value, Vec):
        if len(value.items) != int(mods.get("vec", "v0")[1:]):
            raise EmulatorError("the vector and the registers differ in size")
        d.row(k.STORE, a=where.base, sub=d.space(mods.get("space", ""), ins.operands[0]), fmt=size,
              imm=where.offset, pool=d.group(value, kind))
        return
    d.row(k.STORE, a=where.base, b=d.source(value, kind), sub=d.space(mods.get("space", ""), ins.operands[0]),
          fmt=size, imm=where.offset)


_ATOMS = {"exch": 0, "add": 1, "min": 2, "max": 3, "inc": 4, "dec": 5, "and": 6, "or": 7, "xor": 8, "cas": 9}


@decodes("atom", "atom.cas", "red")
def _atom(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    returns = form.name != "red"
    op = mods.get("op", "cas")
    kind = mods["type"]
    if kind == "b128":
        raise EmulatorError("b128 values are not supported by the emulator")
    fmt = FORMATS.get(kind, {"b16": k.U16, "b32": k.U32, "b64": k.U64}.get(kind, 0))
    operands = ins.operands[1:] if returns else ins.operands
    where = d.address(operands[0])
    space = d.space(mods.get("space", ""), operands[0])
    flags = k.RETURNS if returns else 0
    value = operands[1]
    if isinstance(value, Vec):
        start, count = d.group(value, kind)
        if returns:
            d.group(ins.operands[0])
        d.row(k.ATOM, a=where.base, sub=_ATOMS[op], fmt=fmt, flags=flags, imm=where.offset, target=space,
              pool=(start, count))
        return
    c = d.source(operands[2], kind) if op == "cas" else d.zero
    d.row(k.ATOM, d.dest(ins.operands[0]) if returns else None, where.base, d.source(value, kind), c,
          sub=_ATOMS[op], fmt=fmt, flags=flags, imm=where.offset, target=space)


@decodes("ldmatrix.sync.aligned.m8n8.b16", "stmatrix.sync.aligned.m8n8.b16")
def _matrix(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    is_store = form.name.startswith("st")
    where, regs = ins.operands if is_store else reversed(ins.operands)
    pool = d.group(regs)
    if pool[1] != int(mods["num"][1:]):
        raise EmulatorError("the number of registers differs from the number of matrices")
    at = d.address(where)
    if d.space(mods.get("space", ""), where) not in (k.SHARED, k.GENERIC):
        raise EmulatorError("matrices live in shared memory")
    d.row(k.STMATRIX if is_store else k.LDMATRIX, a=at.base, imm=at.offset, sub=int("trans" in mods), pool=pool)


@decodes("mapa", "getctarank")
def _mapa(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    rank = d.source(ins.operands[2], "b32") if form.name == "mapa" else None
    d.row(k.MAPA, d.dest(ins.operands[0]), d.source(ins.operands[1]), rank, sub=int(form.name == "getctarank"))


@decodes("shfl.sync.b32")
def _shfl(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    first, second = d.pair(ins.operands[0])
    d.row(k.SHFL, first, *(d.source(o, "b32") for o in ins.operands[1:4]), second,
          sub=("up", "down", "bfly", "idx").index(mods["mode"]))


@decodes("vote.sync.pred", "vote.sync.ballot.b32")
def _vote(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    a, negated = d.predicate(ins.operands[1])
    d.row(k.VOTE, d.dest(ins.operands[0]), a, d.source(ins.operands[2], "b32"), flags=negated,
          sub=("all", "any", "uni", "ballot").index(mods.get("mode", "ballot")))


@decodes("match.any.sync", "match.all.sync")
def _match(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    first, second = d.pair(ins.operands[0])
    d.row(k.MATCH, first, d.source(ins.operands[1], mods["type"]), e=second, fmt=width_of(mods["type"]),
          sub=int(form.name == "match.all.sync"))


@decodes("redux.sync")
def _redux(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    sub = {"add": k.ADD, "min": k.MIN, "max": k.MAX, "and": k.AND, "or": k.OR, "xor": k.XOR}[mods["op"]]
    d.row(k.REDUX, d.dest(ins.operands[0]), d.source(ins.operands[1], "b32"), sub=sub,
          flags=k.SIGNED if mods["type"] == "s32" else 0)


@decodes("activemask.b32")
def _activemask(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    d.row(k.ACTIVE, d.dest(ins.operands[0]))


@decodes("elect.sync")
def _elect(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    first, second = d.pair(ins.operands[0])
    d.row(k.ELECT, first, d.source(ins.operands[1], "b32"), e=second)


@decodes("mma.sync.aligned")
def _mma(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    shape, dtype, ctype = mods["shape"], mods["dtype"], mods["ctype"]
    if dtype != ctype:
        raise EmulatorError("mma with different types of C and D is not supported by the emulator")
    depth = int(shape.split("k")[1])
    rows = int(shape[1:].split("n")[0])
    start = len(d.pool)
    for operand in ins.operands:
        d.group(operand)
    out = {"f32": k.F32, "f16": k.F16, "s32": k.S32, "f64": k.F64}[dtype]
    d.row(k.MMA, sub=FORMATS[mods["btype"]], fmt=FORMATS[mods["atype"]], imm=out, target=depth, reconv=rows,
          flags=k.SAT if "satf" in mods else 0, pool=(start, len(d.pool) - start))


@decodes("bra")
def _bra(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    d.row(k.BRA, target=_label(d, ins.operands[0]))


@decodes("brx.idx")
def _brx(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    table = ins.operands[1]
    if not isinstance(table, Sym) or table.name not in d.entry.tables:
        raise EmulatorError("unknown branch table")
    names = d.entry.tables[table.name]
    start = len(d.pool)
    d.pool += [_label(d, Sym(n)) for n in names]
    d.row(k.BRX, a=d.source(ins.operands[0], "b32"), pool=(start, len(names)))


def _label(d: Decoder, operand: object) -> int:
    if not isinstance(operand, Sym) or operand.name not in d.entry.labels:
        raise EmulatorError(f"unknown label {getattr(operand, 'name', operand)}")
    return d.entry.labels[operand.name]


@decodes("ret", "exit")
def _ret(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    d.row(k.RET)


@decodes("trap", "brkpt")
def _trap(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    d.row(k.TRAP)


@decodes("prefetch", "prefetch.global", "prefetchu.L1", "prefetch.tensormap", "discard.L2",
         "applypriority.L2::evict_normal", "pmevent",
         "cp.async.bulk.prefetch.L2.global", "cp.async.bulk.prefetch.tensor.L2.global")
def _nothing(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    """Hints: no effect that a program can observe."""
    for operand in ins.operands:
        if isinstance(operand, Mem):
            d.address(operand)
    d.row(k.NOP)


@decodes("createpolicy.fractional.b64")
def _policy(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    d.row(k.MOV, d.dest(ins.operands[0]), d.zero)


@decodes("membar", "membar.proxy", "fence", "fence.mbarrier_init.release.cluster", "fence.proxy",
         "fence.proxy.tensormap::generic.acquire", "fence.proxy.tensormap::generic.release",
         "griddepcontrol", "wgmma.fence.sync.aligned")
def _traced(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    """Ordering: nothing happens to the data, listeners are told."""
    d.external(ins, form, mods, traced=True)


@decodes("bar.sync", "bar.arrive", "bar.red.popc.u32", "bar.red.pred", "barrier.sync", "barrier.arrive",
         "bar.warp.sync", "barrier.cluster.arrive", "barrier.cluster.wait",
         "mbarrier.init.b64", "mbarrier.inval.b64", "mbarrier.arrive.b64", "mbarrier.arrive.noComplete.b64",
         "mbarrier.arrive.expect_tx.b64", "mbarrier.arrive_drop.b64", "mbarrier.arrive_drop.expect_tx.b64",
         "mbarrier.expect_tx.b64", "mbarrier.complete_tx.b64", "mbarrier.test_wait.b64",
         "mbarrier.test_wait.parity.b64", "mbarrier.try_wait.b64", "mbarrier.try_wait.parity.b64",
         "mbarrier.pending_count.b64",
         "cp.async.global", "cp.async.commit_group", "cp.async.wait_group", "cp.async.wait_all",
         "cp.async.mbarrier.arrive.b64", "cp.async.bulk.global.mbarrier::complete_tx::bytes",
         "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes",
         "cp.async.bulk.global.shared::cta.bulk_group", "cp.reduce.async.bulk.global.shared::cta.bulk_group",
         "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes",
         "cp.async.bulk.tensor.global.mbarrier::complete_tx::bytes",
         "cp.async.bulk.tensor.global.shared::cta.bulk_group",
         "cp.reduce.async.bulk.tensor.global.shared::cta.bulk_group", "cp.async.bulk.commit_group",
         "cp.async.bulk.wait_group", "st.async.mbarrier::complete_tx::bytes",
         "red.async.mbarrier::complete_tx::bytes", "tensormap.replace.tile.b1024",
         "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.sync.aligned",
         "wgmma.commit_group.sync.aligned", "wgmma.wait_group.sync.aligned", "wgmma.mma_async.sync.aligned",
         "nanosleep.u32", "setmaxnreg.sync.aligned.u32")
def _external(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    d.external(ins, form, mods)
