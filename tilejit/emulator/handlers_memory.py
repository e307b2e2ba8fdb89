from __future__ import annotations

from tilejit.emulator.decode import Decoder, External, decodes, width_of
from tilejit.emulator.handlers import FORMATS, Mods, register_width
from tilejit.emulator.vm import codes as k
from tilejit.errors import EmulatorError
from tilejit.ptx.isa import Form
from tilejit.ptx.text import TYPE_BYTES, Instruction, Mem, Not, Sym, Vec


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
          sub=("up", "down", "bfly", "idx").index(mods["mode"]), imm=d.source(ins.operands[4], "b32"))


@decodes("vote.sync.pred", "vote.sync.ballot.b32")
def _vote(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    a, negated = d.predicate(ins.operands[1])
    d.row(k.VOTE, d.dest(ins.operands[0]), a, d.source(ins.operands[2], "b32"), flags=negated,
          sub=("all", "any", "uni", "ballot").index(mods.get("mode", "ballot")), imm=d.source(ins.operands[2], "b32"))


@decodes("match.any.sync", "match.all.sync")
def _match(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    first, second = d.pair(ins.operands[0])
    d.row(k.MATCH, first, d.source(ins.operands[1], mods["type"]), e=second, fmt=width_of(mods["type"]),
          sub=int(form.name == "match.all.sync"), imm=d.source(ins.operands[2], "b32"))


@decodes("redux.sync")
def _redux(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    sub = {"add": k.ADD, "min": k.MIN, "max": k.MAX, "and": k.AND, "or": k.OR, "xor": k.XOR}[mods["op"]]
    d.row(k.REDUX, d.dest(ins.operands[0]), d.source(ins.operands[1], "b32"), sub=sub,
          flags=k.SIGNED if mods["type"] == "s32" else 0, imm=d.source(ins.operands[2], "b32"))


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


@decodes("call.uni")
def _call(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    status, function, args = ins.operands
    if function != Sym("vprintf") or not isinstance(status, Vec) or not isinstance(args, Vec) \
            or (len(status.items), len(args.items)) != (1, 2):
        raise EmulatorError("only this call.uni is supported: call.uni (status), vprintf, (format, values)")
    d.externals[len(d.rows)] = External(form, mods, (d.dest(status.items[0]), *(d.source(a) for a in args.items)))
    d.row(k.EXTERNAL)


@decodes("call")
def _call_without_result(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    function, args = ins.operands
    if function != Sym("__assertfail") or not isinstance(args, Vec) or len(args.items) != 5:
        raise EmulatorError("only this call is supported: call __assertfail, (message, file, line, function, size)")
    d.externals[len(d.rows)] = External(form, mods, tuple(d.source(a) for a in args.items))
    d.row(k.EXTERNAL)


@decodes("trap", "brkpt")
def _trap(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    d.row(k.TRAP)


@decodes("prefetch", "prefetch.global", "prefetchu.L1", "prefetch.tensormap", "discard.L2",
         "applypriority.L2::evict_normal", "pmevent",
         "cp.async.bulk.prefetch.L2.global")
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
         "fence.proxy.tensormap::generic.release", "griddepcontrol", "wgmma.fence.sync.aligned")
def _traced(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    d.external(ins, form, mods, traced=True)


@decodes("cp.async.global")
def _cp_async(d: Decoder, ins: Instruction, form: Form, mods: Mods) -> None:
    """Two forms differ by their fourth operand: a size, or the predicate ignore-src."""
    fourth = ins.operands[3] if len(ins.operands) > 3 else None
    index = getattr(fourth, "index", None)
    if isinstance(fourth, Not) or isinstance(index, int) and d.entry.registers[index][1] == "pred":
        mods = {**mods, "ignore-src": "ignore-src"}
    d.external(ins, form, mods)
