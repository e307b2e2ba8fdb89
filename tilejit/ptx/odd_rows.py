"""Rows in registers that begin and end anywhere (`passes/odd_rows.py`): vectors, and at both ends elements."""
from __future__ import annotations

from collections.abc import Iterator

from tilejit.ir import Op
from tilejit.ir.types import DType, Tile, elem_of
from tilejit.layout.linear import LinearLayout
from tilejit.ptx.arith import literal
from tilejit.ptx.emit import Emitter, emits, reg_class
from tilejit.ptx.memory import both, opcode_of
from tilejit.ptx.pack import load, repeated, shift_words, store, unpack, vector, words
from tilejit.records import dataclass

#: A row begins below this element of its tile; a number of elements that no row has.
_FIRST, _NONE = 16, 1 << 30


@dataclass
class _Ends:
    """How far a thread's first element is behind the row's first (`ahead`), and its end behind that (`left`)."""

    e: Emitter
    layout: LinearLayout
    first: str
    last: str
    whole: int

    def __post_init__(self) -> None:
        p, at = self.e.p, self.e.thread_coord(self.layout, 0)
        self.ahead, self.left = p.new("b32", "sub.s32", at, self.first), p.new("b32", "sub.s32", self.last, at)
        self.most = sum(b[0] for n in ("lane", "warp") for b in self.layout.bases_of(n))

    def vectors(self, size: int) -> Iterator[tuple[int, int]]:
        at = self.layout.registers()
        yield from ((i, at[i][0]) for i in range(0, len(at), size))

    def begun(self, at: int, before: str = "") -> str | None:
        """Predicate: the row has begun at a thread's element `at`, or so many before it; None where it surely has."""
        if at >= _FIRST or self.first == "0":
            return None
        p = self.e.p
        return p.new("pred", "setp.ge.s32", p.new("b32", "sub.s32", self.ahead, before) if before else self.ahead, -at)

    def goes_on(self, at: int, count: int, behind: str = "") -> str | None:
        """Predicate: the row has `count` elements from `at` on, and `behind` more; None: surely."""
        if at + self.most + count <= self.whole:
            return None
        p = self.e.p
        left = p.new("b32", "sub.s32", self.left, behind) if behind else self.left
        return p.new("pred", "setp.ge.s32", left, at + count)

    def inside(self, at: int, count: int) -> str | None:
        return both(self.e, self.begun(at), self.goes_on(at, count))

    def singly(self, at: int, count: int, whole: str) -> list[str]:
        """Predicates of the elements from `at` on that the row has, none where `whole` is true."""
        p, found = self.e.p, []
        head, tail = at < _FIRST, at + self.most + count > self.whole
        ahead = p.new("b32", "selp.b32", -_NONE, self.ahead, whole) if head else ""
        left = p.new("b32", "selp.b32", -_NONE, self.left, whole) if tail and not head else self.left
        for i in range(at, at + count):
            terms = [p.new("pred", "setp.ge.s32", ahead, -i)] if head else []
            terms += [p.new("pred", "setp.gt.s32", left, i)] if tail else []
            found.append(p.new("pred", "and.pred", *terms) if len(terms) > 1 else terms[0])
        return found


def _ends(e: Emitter, op: Op, t: Tile) -> _Ends:
    assert t.layout is not None
    at = 1 + (op.name == "row_write") - (op.name == "row_inside")
    first, last = (e.scalar(v) for v in op.operands[at:at + 2])
    if op.name == "row_read" and len(op.operands) > 3:  # a row that is not there has not begun
        live = e.scalar(op.operands[3])
        first, last = e.p.new("b32", "selp.b32", first, _NONE, live), e.p.new("b32", "selp.b32", last, -_NONE, live)
    return _Ends(e, t.layout, first, last, op.attrs["whole"])


def _address(e: Emitter, base: str, layout: LinearLayout, size: int) -> str:
    return e.p.new("b64", "mad.wide.s32", e.thread_coord(layout, 0), size, base)


@emits("row_inside")
def _row_inside(e: Emitter, op: Op) -> None:
    t = op.result.type
    assert isinstance(t, Tile)
    ends = _ends(e, op, t)
    always, each = e.p.new("pred", "setp.eq.u32", 0, 0), op.attrs.get("vectors", 1)
    e.set(op.result, [r for _, at in ends.vectors(each) for r in [ends.inside(at, each) or always] * each])


@emits("row_read")
def _row_read(e: Emitter, op: Op) -> None:
    p, t = e.p, op.result.type
    assert isinstance(t, Tile) and isinstance(t.elem, DType) and t.layout is not None
    elem, size, ends, opcode = t.elem, t.elem.bytes, _ends(e, op, t), opcode_of(op, "ld")
    count = t.layout.contiguous_registers(0)
    block = min(16, count * size)  # bytes of an access
    base, cls = e.scalar(op.operands[0]), reg_class(elem)
    fill = literal(op.attrs.get("fill", 0), elem)
    shifted = None
    own, shift, before, behind = _address(e, base, t.layout, size), "", "", ""
    start = own
    if not op.attrs.get("aligned"):
        shift = p.new("b32", "and.b32", p.new("b32", "cvt.u32.u64", base), block - 1)
        start = p.new("b64", "sub.s64", own, p.new("b64", "cvt.u64.u32", shift))
        before = p.new("b32", "shr.u32", shift, size.bit_length() - 1)
        behind = p.new("b32", "and.b32", p.new("b32", "neg.s32", before), block // size - 1)
        shifted = p.new("pred", "setp.ne.u32", shift, 0)
    filled, live = repeated(e, elem, fill), e.scalar(op.operands[3]) if len(op.operands) > 3 else None
    found: list[tuple[list[str], list[str], str | None]] = []
    for _, at in ends.vectors(count):
        blocks = count * size // block
        begun, goes_on = ends.begun(at, before), ends.goes_on(at, count, behind)
        raw: list[str] = []
        if op.attrs.get("begins"):  # no access holds both: what is ahead of the row is accesses of its own
            starts = [ends.begun(at + k * block // size, before) for k in range(blocks + 1)]
            whole = goes_on
        else:
            starts, whole = [None] * (blocks + 1), both(e, begun, goes_on)
        for k in range(blocks + (shift != "")):
            regs = p.regs("b32", block // 4)
            pred = both(e, both(e, whole, starts[k]), shifted if k == blocks else None)
            if pred:
                for r in regs:
                    p("mov.b32", r, filled)
            pred = pred or live
            vec = f".v{len(regs)}" if len(regs) > 1 else ""
            p(f"{opcode}{vec}.b32", vector(regs), f"[{start}+{at * size + k * block}]", pred=pred)
            raw += regs
        single: list[str] = []
        whole = None if op.attrs.get("vectors") else whole
        if whole:
            single = p.regs(cls, count)
            for i, (r, inside) in enumerate(zip(single, ends.singly(at, count, whole))):
                p(f"mov.{cls}", r, fill)
                load(e, opcode, elem, [r], f"[{own}+{(at + i) * size}]", inside)
        found.append((raw, single, whole))
    out = e.fresh(t)
    for i, (raw, single, whole) in enumerate(found):
        got = shift_words(e, raw, shift, size, count * size // 4) if shift else raw
        if whole:
            singles = single if size == 4 else words(e, elem, single)
            got = [p.new("b32", "selp.b32", a, b, whole) for a, b in zip(got, singles)]
        regs = out[i * count:(i + 1) * count]
        if size < 4:
            unpack(e, elem, got, regs)
        for r, word in zip(regs, got if size == 4 else []):
            p(f"mov.{cls}", r, word)
    e.set(op.result, out)


@emits("row_write")
def _row_write(e: Emitter, op: Op) -> None:
    p, t, values = e.p, op.operands[1].type, e.get(op.operands[1])
    assert isinstance(t, Tile) and t.layout is not None
    elem, ends, opcode = elem_of(t), _ends(e, op, t), opcode_of(op, "st")
    assert isinstance(elem, DType)
    count, size, base = t.layout.contiguous_registers(0), elem.bytes, e.scalar(op.operands[0])
    each, unit = min(count, 16 // size), op.attrs.get("vectors", 0)
    address = _address(e, base, t.layout, size)
    elsewhere, done = p.label("elsewhere"), p.label("written")
    if ends.first != "0":
        between = p.new("b32", "and.b32", p.new("b32", "cvt.u32.u64", base), each * size - 1)
        p("bra", elsewhere, pred=p.new("pred", "setp.ne.u32", between, 0))
    for i, at in ends.vectors(each):
        whole = ends.inside(at // unit * unit, unit) if unit else ends.inside(at, each)
        store(e, opcode, elem, values[i:i + each], f"[{address}+{at * size}]", whole)
        for k, inside in enumerate(ends.singly(at, each, whole) if whole and not unit else []):
            store(e, opcode, elem, [values[i + k]], f"[{address}+{(at + k) * size}]", inside)
    if ends.first == "0":
        return
    p("bra", done)
    p.place(elsewhere)
    for i, at in ends.vectors(1):
        whole = ends.inside(at // unit * unit, unit) if unit else ends.inside(at, 1)
        store(e, opcode, elem, [values[i]], f"[{address}+{at * size}]", whole)
    p.place(done)


@emits("steps")
def _steps(e: Emitter, op: Op) -> None:
    """(steps done, the number of all at this program's first one)"""
    e.p.header.append(f".global .align 4 .b8 {_all_steps(op)}[4] = {{0, 0, 0, 0}};")
    place = e.p.new("b32", "add.u32", e.private, op.attrs["offset"])
    e.p("st.shared.v2.b32", f"[{place}]", "{0, 0}", pred=_leads(e))
    e.set(op.result, place)


@emits("in_step")
def _in_step(e: Emitter, op: Op) -> None:
    """One thread of all CTAs: the others meet it where they next fold something. Launches count on in one number."""
    p, (place, at, step, end, programs) = e.p, map(e.scalar, op.operands)
    every, skip, again, settled = op.attrs["every"], p.label("in_step"), p.label("look"), p.label("go_on")
    p("bra", skip, pred=f"!{_leads(e)}")
    done, base, found, looks = p.regs("b32", 4)
    p("ld.shared.v2.b32", f"{{{done}, {base}}}", f"[{place}]")
    p("add.s32", done, done, 1)
    p("st.shared.b32", f"[{place}]", done)
    first = p.new("pred", "setp.eq.s32", done, 1)
    counts = p.new("pred", "setp.eq.s32", p.new("b32", "and.b32", done, every - 1), 0)
    far = p.new("b32", "selp.b32", p.new("b32", "mul.lo.s32", step, every), step, first)
    more = p.new("pred", "setp.lt.s32", p.new("b32", "add.s32", at, far), end)
    p("bra", skip, pred=f"!{both(e, p.new('pred', 'or.pred', first, counts), more)}")
    added, where = p.new("b32", "selp.b32", 0, every, first), p.new("b64", "mov.u64", _all_steps(op.operands[0].op))
    need = p.new("b32", "mul.lo.s32", p.new("b32", "sub.s32", done, op.attrs["ahead"]), programs)
    p("mov.b32", looks, 0)
    p.place(again)
    p("atom.global.gpu.relaxed.add.u32", found, f"[{where}]", added)
    p("bra", settled, pred=first)
    p("mov.b32", added, 0)
    p("add.s32", looks, looks, 1)
    behind = p.new("pred", "setp.lt.s32", p.new("b32", "sub.s32", found, base), need)
    waits = both(e, behind, p.new("pred", "setp.le.s32", looks, op.attrs["looks"]))
    if op.attrs["pause"]:
        p("bra", skip, pred=f"!{waits}")
        p("nanosleep.u32", op.attrs["pause"])
        p("bra", again)
    else:
        p("bra", again, pred=waits)
        p("bra", skip)
    p.place(settled)
    p("st.shared.b32", f"[{place}+4]", found)
    p.place(skip)


def _all_steps(op: object) -> str:
    assert isinstance(op, Op)
    return f"all_steps_{op.attrs['offset']}"


def _leads(e: Emitter) -> str:
    tid = e.p.new("b32", "or.b32", e.role.tid, e.rank) if e.rank else e.role.tid
    return e.p.new("pred", "setp.eq.u32", tid, 0)
