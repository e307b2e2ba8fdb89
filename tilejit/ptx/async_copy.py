"""Asynchronous copies without a tensor map: cp.async by every thread, 1-D bulk copies by one."""
from __future__ import annotations

from tilejit.ir import Op, const_of
from tilejit.ptx.arith import literal
from tilejit.ptx.emit import Emitter, emits, reg_class
from tilejit.ptx.pack import repeated, vector
from tilejit.ptx.smem import accesses, slot_address
from tilejit.ptx.tma import barrier_address, cache_hint

#: A bulk copy into shared memory that tells an mbarrier.
BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"

#: Bytes of a line of L2: those of shorter rows are fetched whole, for other programs.
_LINE = 128


@emits("async_copy")
def _async_copy(e: Emitter, op: Op) -> None:
    """Masked-off accesses write zeros; one of the holders copies; 16-byte copies pass by the L1 (.cg)."""
    ring, slot, pointer = op.operands[:3]
    buffer, layout = ring.buffer, pointer.layout
    pointers = e.get(pointer)
    masks = e.get(op.operands[3]) if len(op.operands) > 3 else None
    owner, size = e.owner(layout), op.attrs["vec"] * buffer.elem.bytes
    same = sum(1 << i for i, basis in enumerate(layout.bases_of("register")) if not any(basis))
    registers = [r for r in range(layout.num_registers) if not r & same]
    base = slot_address(e, ring, e.scalar(slot))
    cache = "cg" if size == 16 and (op.attrs.get("cache") or "").lstrip(".") != "ca" else "ca"
    hint, policy = cache_hint(e, op)
    row = buffer.shape[buffer.order[0]] * buffer.elem.bytes
    if row < _LINE:
        hint += f".L2::{_LINE}B"
    for a in accesses(e, layout, buffer, base, registers, size):
        first = a.registers[0]
        taken = [] if masks is None else [e.p.new("b32", "selp.b32", size, 0, masks[first])]
        assert len(a.registers) == op.attrs["vec"], "an access runs along the slot's fastest dimension"
        e.p(f"cp.async.{cache}.shared.global{hint}", a.address, f"[{pointers[first]}]", size, *taken, *policy,
            pred=owner)


@emits("async_arrive")
def _async_arrive(e: Emitter, op: Op) -> None:
    e.p("cp.async.mbarrier.arrive.noinc.shared.b64", barrier_address(e, *op.operands))


@emits("async_wait")
def _async_wait(e: Emitter, op: Op) -> None:
    e.p("cp.async.wait_all")


@emits("cluster_share")
def _cluster_share(e: Emitter, op: Op) -> None:
    p, strip, ctas = e.p, op.attrs["strip"], op.attrs["ctas"]
    limit = e.scalar(op.operands[0])
    rounds = p.new("b32", "shr.u32", limit, (strip * ctas).bit_length() - 1)
    rest = p.new("b32", "and.b32", limit, strip * ctas - 1)
    rest = p.new("b32", "sub.s32", rest, p.new("b32", "mul.lo.u32", e.rank, strip))
    rest = p.new("b32", "min.s32", p.new("b32", "max.s32", rest, 0), strip)
    e.set(op.result, [p.new("b32", "mad.lo.u32", rounds, strip, rest)])


def _strip_copies(e: Emitter, op: Op) -> None:
    p, (ring, slot, barrier, base, size) = e.p, op.operands
    elem, ctas = ring.buffer.elem.bytes, op.attrs["ctas"]
    strip = op.attrs["strip"] * elem
    first = p.new("b64", "mad.wide.u32", e.rank, strip, e.scalar(base))
    there, where = slot_address(e, ring, e.scalar(slot)), barrier_address(e, barrier, slot)
    hint, policy = cache_hint(e, op)
    for i in range(ring.buffer.slot_bytes // strip):
        left = p.new("b32", "sub.s32", e.scalar(size), i * strip)
        some = p.new("pred", "setp.gt.s32", left, 0)
        p(BULK + hint, f"[{there}+{i * strip}]", f"[{first}+{i * strip * ctas}]", p.new("b32", "min.s32", left, strip),
          where, *policy, pred=some)


def _in_strips(e: Emitter, at: str, strip: int, ctas: int) -> tuple[str, str]:
    p = e.p
    which = p.new("b32", "shr.u32", at, strip.bit_length() - 1)
    mine = p.new("pred", "setp.eq.u32", p.new("b32", "and.b32", which, ctas - 1), e.rank)
    place = p.new("b32", "and.b32", at, strip - 1)
    return mine, p.new("b32", "mad.lo.u32", p.new("b32", "shr.u32", which, ctas.bit_length() - 1), strip + 16, place)


def _clear_ends(e: Emitter, op: Op, there: str, shift: str, behind: str, strip: int) -> None:
    """Zeros, or `fill`, where vectors reach over a row's ends."""
    p, ctas = e.p, op.attrs.get("ctas", 1)
    within, place, ends = p.new("pred", "setp.ne.u32", shift, 0), behind, None
    elem, empty = op.operands[0].buffer.elem, "{0, 0, 0, 0}"
    if "fill" in op.attrs and elem.bits <= 32:
        empty = vector([repeated(e, elem, literal(op.attrs["fill"], elem))] * 4)
    if ctas > 1:
        first = p.new("pred", "setp.eq.u32", e.rank, 0)
        within = p.new("pred", "and.pred", within, first)
        ends, place = _in_strips(e, behind, strip, ctas)
    p("st.shared.v4.b32", f"[{p.new('b32', 'sub.u32', there, shift)}]", empty, pred=within)
    in_strip = p.new("b32", "and.b32", behind, strip - 1) if ctas > 1 else behind
    over = p.new("b32", "add.s32", in_strip, shift)
    for more in (0, 16):
        inside = p.new("pred", "setp.lt.s32", over, strip + 16 - more)
        if ends is not None:
            inside = p.new("pred", "and.pred", inside, ends)
        to = p.new("b32", "add.s32", there, place)
        p("st.shared.v4.b32", f"[{to}+{more}]", empty, pred=inside)


def _unaligned_copy(e: Emitter, op: Op) -> None:
    """Bulk copies of a row's whole 16 bytes."""
    p, (ring, slot, barrier, base, size) = e.p, op.operands
    elem, ctas = ring.buffer.elem, op.attrs.get("ctas", 1)
    strip = op.attrs["strip"] * elem.bytes if ctas > 1 else ring.buffer.slot_bytes - 16
    start, n, where = e.scalar(base), e.scalar(size), barrier_address(e, barrier, slot)
    if const_of(size) is not None:
        n = p.new("b32", "mov.b32", n)
    shift = p.new("b32", "and.b32", p.new("b32", "cvt.u32.u64", start), 15)
    f = p.new("b32", "and.b32", p.new("b32", "neg.s32", shift), 15)
    last = p.new("b32", "and.b32", p.new("b32", "add.s32", n, shift), -16)
    last = p.new("b32", "sub.s32", last, shift)
    there = p.new("b32", "add.u32", slot_address(e, ring, e.scalar(slot)), shift)

    if ctas == 1 and not e.alone:
        _copy_by_warp(e, op, (start, n, shift, f, last, there, where))
        return
    hint, policy = cache_hint(e, op)
    for i in range(ring.buffer.slot_bytes // (strip + 16)):
        first = p.new("b32", "mad.lo.s32", e.rank, strip, i * ctas * strip) if ctas > 1 else \
            p.new("b32", "mov.b32", i * strip)
        end = p.new("b32", "min.s32", p.new("b32", "add.s32", first, strip), n)
        lo = p.new("b32", "max.s32", p.new("b32", "sub.s32", first, shift), f)
        hi = p.new("b32", "and.b32", p.new("b32", "add.s32", p.new("b32", "add.s32", end, shift), 15), -16)
        hi = p.new("b32", "min.s32", p.new("b32", "sub.s32", hi, shift), last)
        count = p.new("b32", "sub.s32", hi, lo)
        some = p.new("pred", "setp.gt.s32", count, 0)
        p("mbarrier.expect_tx.relaxed.cta.shared::cta.b64", where, count, pred=some)
        to = p.new("b32", "add.s32", there, p.new("b32", "sub.s32", lo, first))
        p(BULK + hint, f"[{to}+{i * (strip + 16)}]", f"[{_behind(e, start, lo)}]", count, where, *policy, pred=some)
    behind = p.new("b32", "max.s32", f, last)
    _clear_ends(e, op, there, shift, behind, strip)
    loaded = []
    kind = f"b{elem.bits}" if elem.bits > 8 else "u8"
    for end, source, place in ((p.new("b32", "min.s32", f, n), start, p.new("b32", "mov.b32", 0)),
                               (p.new("b32", "sub.s32", n, behind), _behind(e, start, behind), behind)):
        to = p.new("b32", "add.s32", there, place)
        for k in range(0, 16, elem.bytes):
            some, there_k = p.new("pred", "setp.gt.s32", end, k), f"[{to}+{k}]"
            if ctas > 1:
                mine, at = _in_strips(e, p.new("b32", "add.s32", place, k), strip, ctas)
                some, there_k = p.new("pred", "and.pred", some, mine), f"[{p.new('b32', 'add.s32', there, at)}]"
            reg = p.reg("b16" if elem.bits < 32 else f"b{elem.bits}")
            p(f"ld.global.{kind}", reg, f"[{source}+{k}]", pred=some)
            loaded.append((there_k, reg, some))
    for there_k, reg, some in loaded:
        p(f"st.shared.{kind}", there_k, reg, pred=some)
    p("mbarrier.arrive.shared::cta.b64", "_", where)


def _copy_by_warp(e: Emitter, op: Op, found: tuple[str, ...]) -> None:
    p, role, (start, n, shift, f, last, there, where) = e.p, e.role, found
    ring, done = op.operands[0].buffer, p.label("copied")
    elem, room = ring.elem, ring.slot_bytes
    per, cls = 16 // elem.bytes, reg_class(elem)
    if role.warps > 1:
        p("bra", done, pred=p.new("pred", "setp.ne.u32", role.local_warp or role.warp, 0))
    one, behind = p.new("pred", "setp.eq.u32", role.lane, 0), p.new("b32", "max.s32", f, last)
    count, (hint, policy) = p.new("b32", "sub.s32", last, f), cache_hint(e, op)
    some = p.new("pred", "and.pred", one, p.new("pred", "setp.gt.s32", count, 0))
    p("mbarrier.expect_tx.relaxed.cta.shared::cta.b64", where, count, pred=some)
    p(BULK + hint, f"[{p.new('b32', 'add.s32', there, f)}]", f"[{_behind(e, start, f)}]", count, where, *policy,
      pred=some)
    tail = p.new("pred", "setp.ge.u32", role.lane, per)
    at = p.new("b32", "selp.b32", behind, p.new("b32", "neg.s32", shift), tail)
    at = p.new("b32", "mad.lo.u32", p.new("b32", "and.b32", role.lane, per - 1), elem.bytes, at)
    value, fill = p.reg(cls), literal(op.attrs.get("fill", 0), elem)
    p(f"mov.{cls}", value, fill)
    inside = p.new("pred", "setp.lt.u32", at, n)  # those before the first one are great numbers
    kind = f"b{elem.bits}" if elem.bits > 8 else "u8"
    p(f"ld.global.{kind}", value, f"[{_behind(e, start, at)}]", pred=inside)
    # the first 16 bytes if the row begins within them, those behind the last whole ones if the slot has them
    over = p.new("b32", "selp.b32", p.new("b32", "add.s32", behind, shift), p.new("b32", "sub.s32", 16, shift), tail)
    ours = p.new("pred", "setp.lt.u32", over, p.new("b32", "selp.b32", room, 16, tail))
    ours = p.new("pred", "and.pred", ours, p.new("pred", "setp.lt.u32", role.lane, 2 * per))
    p(f"st.shared.{kind}", f"[{p.new('b32', 'add.s32', there, at)}]", value, pred=ours)
    more = p.new("pred", "setp.lt.s32", p.new("b32", "add.s32", behind, shift), room - 16)
    empty = [repeated(e, elem, fill) if elem.bits <= 32 else "0"] * 4
    p("st.shared.v4.b32", f"[{p.new('b32', 'add.s32', there, behind)}+16]", vector(empty),
      pred=p.new("pred", "and.pred", more, one))
    p("bar.warp.sync", -1)
    p("mbarrier.arrive.shared::cta.b64", "_", where, pred=one)
    p.place(done)


@emits("row_copy")
def _row_copy(e: Emitter, op: Op) -> None:
    ring, slot, barrier, base, size = op.operands
    if "unaligned" in op.attrs:
        _unaligned_copy(e, op)
        return
    if "strip" in op.attrs:
        _strip_copies(e, op)
        return
    some = None
    if const_of(size) is None:
        some = e.p.new("pred", "setp.ne.s32", e.scalar(size), 0)
    hint, policy = cache_hint(e, op)
    e.p(BULK + hint, f"[{slot_address(e, ring, e.scalar(slot))}]", f"[{e.scalar(base)}]", e.scalar(size),
        barrier_address(e, barrier, slot), *policy, pred=some)


@emits("row_put")
def _row_put(e: Emitter, op: Op) -> None:
    """One bulk copy of whole 16 bytes, which is waited for; other elements by a thread each."""
    p, role, (view, base, limit) = e.p, e.role, op.operands
    size = view.buffer.elem.bytes
    start, there, shift, unit = e.scalar(base), e.views[view], e.shifts[view], 16 // size
    n = p.new("b32", "mul.lo.u32", e.scalar(limit), size)
    p("fence.proxy.async.shared::cta")
    e.sync()
    apart, done, again = p.label("apart"), p.label("put"), p.label("element")
    differ = p.new("b32", "and.b32", p.new("b32", "xor.b32", p.new("b32", "cvt.u32.u64", start), there), 15)
    p("bra", apart, pred=p.new("pred", "setp.ne.u32", differ, 0))
    f = p.new("b32", "and.b32", p.new("b32", "neg.s32", shift), 15)
    last = p.new("b32", "and.b32", p.new("b32", "add.s32", n, shift), -16)
    last = p.new("b32", "sub.s32", last, shift)
    one = p.new("pred", "setp.eq.u32", role.tid, 0)
    count = p.new("b32", "sub.s32", last, f)
    some = p.new("pred", "and.pred", one, p.new("pred", "setp.gt.s32", count, 0))
    p("cp.async.bulk.global.shared::cta.bulk_group", f"[{_behind(e, start, f)}]",
      f"[{p.new('b32', 'add.u32', there, f)}]", count, pred=some)
    p("cp.async.bulk.commit_group", pred=one)
    head = p.new("pred", "setp.lt.u32", role.tid, unit)
    first = p.new("b32", "selp.b32", 0, p.new("b32", "max.s32", f, last), head)
    end = p.new("b32", "selp.b32", p.new("b32", "min.s32", f, n), n, head)
    at = p.new("b32", "mad.lo.s32", p.new("b32", "and.b32", role.tid, unit - 1), size, first)
    mine = p.new("pred", "setp.lt.u32", role.tid, 2 * unit)
    _put_element(e, op, at, p.new("pred", "and.pred", mine, p.new("pred", "setp.lt.s32", at, end)))
    p("cp.async.bulk.wait_group.read", 0, pred=one)
    p("bra", done)
    p.place(apart)
    at = p.new("b32", "mul.lo.u32", role.tid, size)
    p.place(again)
    inside = p.new("pred", "setp.lt.s32", at, n)
    p("bra", done, pred=f"!{inside}")
    _put_element(e, op, at, None)
    p("add.s32", at, at, 32 * role.warps * size)
    p("bra", again)
    p.place(done)


def _behind(e: Emitter, start: str, offset: str) -> str:
    return e.p.new("b64", "add.s64", start, e.p.new("b64", "cvt.s64.s32", offset))


def _put_element(e: Emitter, op: Op, at: str, pred: str | None) -> None:
    view, base, _ = op.operands
    bits = view.buffer.elem.bits
    kind, value = f"b{bits}" if bits > 8 else "u8", e.p.reg("b16" if bits < 32 else f"b{bits}")
    e.p(f"ld.shared.{kind}", value, f"[{e.p.new('b32', 'add.s32', e.views[view], at)}]", pred=pred)
    e.p(f"st.global.{kind}", f"[{_behind(e, e.scalar(base), at)}]", value, pred=pred)
