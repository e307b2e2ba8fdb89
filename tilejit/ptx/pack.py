"""Vector accesses; those below 4 bytes move the element itself."""
from __future__ import annotations

from tilejit.ir.types import DType, Ptr, Scalar, uint8, uint16
from tilejit.ptx.emit import Emitter, reg_class


def words(e: Emitter, elem: Scalar, regs: list[str]) -> list[str]:
    """Pack 8- or 16-bit elements (a multiple of four bytes of them) into `.b32` registers, low first."""
    p, pack = e.p, 32 // elem.bits
    out = []
    for i in range(0, len(regs), pack):
        whole = e.packed.get(tuple(regs[i:i + pack]))
        if whole is not None:
            out.append(whole)
            continue
        if pack == 2:
            out.append(p.new("b32", "mov.b32", f"{{{regs[i]}, {regs[i + 1]}}}"))
            continue
        pairs = [e.packed.get(tuple(regs[j:j + 2])) for j in (i, i + 2)]
        if None not in pairs:
            out.append(p.new("b32", "mov.b32", f"{{{pairs[0]}, {pairs[1]}}}"))
            continue
        wide = [p.new("b32", "cvt.u32.u16", r) for r in regs[i:i + 4]]
        low = p.new("b32", "prmt.b32", wide[0], wide[1], "0x0040")
        high = p.new("b32", "prmt.b32", wide[2], wide[3], "0x0040")
        out.append(p.new("b32", "prmt.b32", low, high, "0x5410"))
    return out


def unpack(e: Emitter, elem: Scalar, packed: list[str], regs: list[str], pairs: bool = False) -> None:
    """The inverse of `words`, into given registers (int8 sign-extended, other 8-bit zero-extended)."""
    p = e.p
    if elem.bits == 16:
        for i, word in enumerate(packed):
            p("mov.b32", f"{{{regs[2 * i]}, {regs[2 * i + 1]}}}", word)
        return
    kind = "s32" if isinstance(elem, DType) and elem.is_signed else "u32"
    for i, word in enumerate(packed):
        if pairs:
            p("mov.b32", f"{{{regs[4 * i]}, {regs[4 * i + 2]}}}", word)
            continue
        for j in range(4):
            byte = p.new("b32", f"bfe.{kind}", word, 8 * j, 8)
            p("cvt.u16.u32", regs[4 * i + j], byte)


def bool_bytes(e: Emitter, regs: list[str]) -> list[str]:
    return [e.p.new("b16", "selp.b16", 1, 0, r) for r in regs]


def vector(regs: list[str]) -> str:
    return regs[0] if len(regs) == 1 else "{" + ", ".join(regs) + "}"


def _width(elem: Scalar) -> str:
    if elem.bits > 8:
        return f"b{elem.bits}"
    return "s8" if isinstance(elem, DType) and elem.is_signed else "u8"


def store(e: Emitter, opcode: str, elem: Scalar, regs: list[str], address: str,
          pred: str | None = None) -> None:
    if elem.bits == 1:
        elem, regs = uint8, bool_bytes(e, regs)
    size = max(1, elem.bits // 8) * len(regs)
    if isinstance(elem, Ptr) or elem.bits >= 32 or size < 4:
        if elem.bits == 8 and len(regs) > 1:
            opcode, regs, elem = opcode, [_pair(e, regs)], uint16
        vec = f".v{len(regs)}" if len(regs) > 1 else ""
        e.p(f"{opcode}{vec}.{_width(elem)}", address, vector(regs), pred=pred)
        return
    packed = words(e, elem, regs)
    vec = f".v{len(packed)}" if len(packed) > 1 else ""
    e.p(f"{opcode}{vec}.b32", address, vector(packed), pred=pred)


def load(e: Emitter, opcode: str, elem: Scalar, regs: list[str], address: str,
         pred: str | None = None, pairs: bool = False) -> None:
    """One load of 1 to 16 bytes into `regs`, which keep their values where `pred` is false; `pairs`: see `unpack`."""
    p = e.p
    if elem.bits == 1:
        byte = bool_bytes(e, regs) if pred else p.regs("b16", len(regs))
        load(e, opcode, uint8, byte, address, pred)
        for r, b in zip(regs, byte):
            p("setp.ne.u16", r, b, 0)
        return
    size = max(1, elem.bits // 8) * len(regs)
    if isinstance(elem, Ptr) or elem.bits >= 32 or size < 4:
        if elem.bits == 8 and len(regs) > 1:
            both = _pair(e, regs) if pred else regs[0] if pairs else p.reg("b16")
            p(f"{opcode}.b16", both, address, pred=pred)
            if pairs:
                return
            signed = isinstance(elem, DType) and elem.is_signed
            wide = p.new("b32", "cvt.u32.u16", both)
            for j, r in enumerate(regs):
                byte32 = p.new("b32", f"bfe.{'s32' if signed else 'u32'}", wide, 8 * j, 8)
                p("cvt.u16.u32", r, byte32)
            return
        vec = f".v{len(regs)}" if len(regs) > 1 else ""
        p(f"{opcode}{vec}.{_width(elem)}", vector(regs), address, pred=pred)
        return
    packed = words(e, elem, regs) if pred else p.regs("b32", size // 4)
    vec = f".v{len(packed)}" if len(packed) > 1 else ""
    p(f"{opcode}{vec}.b32", vector(packed), address, pred=pred)
    unpack(e, elem, packed, regs, pairs)


def _pair(e: Emitter, regs: list[str]) -> str:
    p = e.p
    high = p.new("b16", "shl.b16", regs[1], 8)
    low = p.new("b16", "and.b16", regs[0], 255)
    return p.new("b16", "or.b16", low, high)


def store_shared(e: Emitter, elem: Scalar, regs: list[str], address: str,
                 pred: str | None = None) -> None:
    store(e, "st.shared", elem, regs, address, pred)


def load_shared(e: Emitter, elem: Scalar, regs: list[str], address: str, pred: str | None = None,
                pairs: bool = False) -> None:
    load(e, "ld.shared", elem, regs, address, pred, pairs)


def load_shifted(e: Emitter, elem: Scalar, regs: list[str], address: str, shift: str, pred: str | None = None) -> None:
    """Read 16 bytes from shared memory that begin `shift` bytes, 0 to 15, behind an address of whole 16 bytes; zeros
    where pred is false.
    """
    p = e.p
    both = p.regs("b32", 8)
    for r in both if pred else ():
        p("mov.b32", r, 0)
    body, _, offset = address[1:-1].partition("+")
    for i in (0, 4):
        p("ld.shared.v4.b32", vector(both[i:i + 4]), f"[{body}+{int(offset) + 4 * i}]", pred=pred)
    found = shift_words(e, both, shift, max(1, elem.bits // 8))
    if elem.bits < 32:
        unpack(e, elem, found, regs)
    for i, r in enumerate(regs if elem.bits >= 32 else ()):
        p(f"mov.b{elem.bits}", r, found[i] if elem.bits == 32 else f"{{{found[2 * i]}, {found[2 * i + 1]}}}")


def repeated(e: Emitter, elem: DType, value: str) -> str:
    one = e.p.new(reg_class(elem), f"mov.{reg_class(elem)}", value)
    return one if elem.bits == 32 else words(e, elem, [one] * (32 // elem.bits))[0]


def shift_words(e: Emitter, both: list[str], shift: str, unit: int = 1, count: int = 4) -> list[str]:
    p, spare = e.p, 4 * (len(both) - count)
    for bit in (8, 4):
        if bit < unit:
            return both[:count]
        if bit < spare:
            far = p.new("pred", "setp.ne.u32", p.new("b32", "and.b32", shift, bit), 0)
            both = [p.new("b32", "selp.b32", both[i + bit // 4], both[i], far) for i in range(count + bit // 4)]
    if unit >= 4:
        return both[:count]
    bits = p.new("b32", "shl.b32", p.new("b32", "and.b32", shift, 3), 3)
    return [p.new("b32", "shf.r.wrap.b32", lo, hi, bits) for lo, hi in zip(both, both[1:])]
