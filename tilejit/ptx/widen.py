"""Small integers as 16-bit floats, two at a time, without conversions: those run at a fraction of the rate."""
from __future__ import annotations

from tilejit.ir import Op, Value
from tilejit.ir.types import DType, Type, elem_of
from tilejit.ptx.emit import Emitter

#: lop3 truth tables: (a & b) | c and (a & b) ^ c.
AND_OR, _AND_XOR = 0xEA, 0x6A


def widens(src: object, dst: object) -> bool:
    return isinstance(src, DType) and isinstance(dst, DType) and src.name == "int8" and dst.name in ("bf16", "fp16")


def in_pairs(e: Emitter, v: Value) -> bool:
    """Whether two elements of a tile from shared memory are in the register of the first, since every use widens them.
    """
    op = v.op
    if not isinstance(op, Op) or op.name != "local_load":
        return False
    t, layout, axis = v.tile, v.layout, op.operands[0].buffer.order[0]
    pair = tuple(int(d == axis) for d in range(len(t.shape)))
    users = [user for user, _ in e.uses.get(v, ())]
    return (bool(users) and pair in layout.bases_of("register")[:1] and layout.canonical() == layout
            and all(u.name == "cast" and widens(t.elem, elem_of(u.result.type)) for u in users))


def widen(e: Emitter, regs: list[str], dst: DType, pairs: bool) -> list[str]:
    out: list[str] = []
    for lo, hi in zip(regs[::2], regs[1::2]):
        if pairs:
            both = e.p.new("b32", "prmt.b32", e.p.new("b32", "cvt.u32.u16", lo), 0, "0x1100")
        else:
            both = together(e, lo, hi)
        out += apart(e, _widened(e, both, dst))
    return out


def _widened(e: Emitter, both: str, dst: DType) -> str:
    p = e.p
    if dst.name == "bf16":
        low = p.new("b32", "lop3.b32", both, "0x007F007F", "0x43004300", AND_OR)
        sign = p.new("b32", "lop3.b32", both, "0x00800080", "0x43004300", AND_OR)
        if e.target.hopper:
            return p.new("b32", "sub.rn.bf16x2", low, sign)
        return p.new("b32", "fma.rn.bf16x2", sign, p.new("b32", "mov.b32", "0xBF80BF80"), low)
    shifted = p.new("b32", "lop3.b32", both, "0x00FF00FF", "0x64806480", _AND_XOR)
    return p.new("b32", "sub.rn.f16x2", shifted, p.new("b32", "mov.b32", "0x64806480"))


def together(e: Emitter, lo: str, hi: str) -> str:
    return e.p.new("b32", "mov.b32", f"{{{lo}, {hi}}}")


def apart(e: Emitter, word: str) -> list[str]:
    pair = e.p.regs("b16", 2)
    e.p("mov.b32", f"{{{pair[0]}, {pair[1]}}}", word)
    return pair


def in_words(v: Value) -> bool:
    op = v.op
    if not isinstance(op, Op):
        return False
    if op.name == "cast":
        return widens(elem_of(op.operands[0].type), elem_of(v.type))
    if op.name in ("add", "sub", "mul") or op.name in ("bitcast", "reshape", "part"):
        return _bits(v.type) == _bits(op.operands[0].type) == 16 and in_words(op.operands[0])
    if op.name == "join":
        low, high = (_half_of(x) for x in op.operands)
        return low is not None and high is not None and low == (high[0], 0) and high[1] == 1
    return False


def _half_of(v: Value) -> tuple[Value, int] | None:
    op = v.op
    if not isinstance(op, Op) or op.name not in ("cast", "bitcast"):
        return None
    if op.name == "bitcast":
        return _half_of(op.operands[0])
    return half_of(op) if _bits(v.type) == 16 else None


def half_of(cast: Op) -> tuple[Value, int] | None:
    source = cast.operands[0]
    src, dst = elem_of(source.type), elem_of(cast.result.type)
    if not (isinstance(src, DType) and isinstance(dst, DType) and src.is_int() and dst.is_int()) \
            or (src.bits, dst.bits) != (32, 16):
        return None
    maker = source.op
    if isinstance(maker, Op) and maker.name == "shr" and constant(maker.operands[1]) == 16:
        return maker.operands[0], 1
    return source, 0


def halves(e: Emitter, op: Op) -> list[str] | None:
    found = half_of(op)
    if found is None:
        return None
    source, which = found
    regs = e.values.get(source, [])
    if len(regs) != len(e.get(op.operands[0])):  # computed elsewhere, for more elements than this is for
        source, which, regs = op.operands[0], 0, e.get(op.operands[0])
    done: dict[str, str] = {}
    for r in regs:
        if r not in done:
            done[r] = e.p.reg("b16")
            e.p("mov.b32", f"{{_, {done[r]}}}" if which else f"{{{done[r]}, _}}", r)
    return [done[r] for r in regs]


def two_at_a_time(e: Emitter, opcode: str, a: list[str], b: list[str]) -> list[str]:
    done: dict[tuple[str, str], str] = {}
    out = []
    for lo, hi, x, y in zip(a[::2], a[1::2], b[::2], b[1::2]):
        if (x, y) not in done:
            done[x, y] = together(e, x, y)
        out += apart(e, e.p.new("b32", opcode, together(e, lo, hi), done[x, y]))
    return out


def constant(v: Value) -> int | float | None:
    op = v.op
    while isinstance(op, Op) and (op.name == "part" or "spreads" in op.define.traits):
        op = op.operands[0].op
    return op.attrs["value"] if isinstance(op, Op) and op.name == "const" else None


def _bits(t: Type) -> int:
    return elem_of(t).bits
