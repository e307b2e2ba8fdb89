"""Control flow. Loop-carried values have registers of their own; wgmma results must never be moved."""
from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from tilejit.ir.core import Edge, Op, Value, const_of, edges, listed
from tilejit.ir.types import DType, Pending, Ptr, Tile, Type, elem_of, int32, uint64
from tilejit.ptx.emit import Emitter, emits, held, reg_class
from tilejit.ptx.in_place import Body, stays
from tilejit.ptx.kernel import cluster_sync, init_barriers
from tilejit.ptx.pack import unpack, words


def move(e: Emitter, t: Type, dst: str, src: str) -> None:
    if dst == src:
        return
    cls = reg_class(held(t))
    if cls == "b16" and elem_of(t).is_int():  # ptxas takes copies of the half for all of it (miscompiles.py)
        wide = e.p.new("b32", "prmt.b32", e.p.new("b32", "cvt.u32.u16", src), 0, "0x3210")
        e.p("cvt.u16.u32", dst, wide)
    else:
        e.p(f"mov.{cls}", dst, src)


def parallel_move(e: Emitter, pairs: list[tuple[Type, str, str]]) -> None:
    """Copies (type, dst, src) as if at once: sources that are also targets are saved first."""
    targets = {dst for _, dst, src in pairs if dst != src}
    saved: list[tuple[Type, str, str]] = []
    for t, dst, src in pairs:
        if dst != src and src in targets:
            temp = e.p.reg(reg_class(held(t)))
            move(e, t, temp, src)
            src = temp
        saved.append((t, dst, src))
    for t, dst, src in saved:
        move(e, t, dst, src)


def carried(e: Emitter, init: Value, arg: Value) -> None:
    if isinstance(init.type, Pending):
        e.set(arg, e.get(init))
        return
    regs = e.fresh(arg.type)
    for d, s in zip(regs, e.get(init)):
        move(e, arg.type, d, s)
    e.set(arg, regs)


def advance(e: Emitter, args: list[Value], nexts: list[Value], kept: Sequence[Collection[int]] = (),
            more: Sequence[tuple[Type, str, str]] = (), body: Body | None = None) -> None:
    """Write the next carried values into the registers of `args`; of those that `kept` names, if it does."""
    kept = kept or [range(len(e.get(a))) for a in args]
    pairs = [(a.type, e.get(a)[i], e.get(v)[i]) for a, v, which in zip(args, nexts, kept) for i in which] + [*more]
    there = body.settle([(dst, src) for _, dst, src in pairs]) if body else set()
    parallel_move(e, [pair for pair in pairs if pair[1] not in there])


def _in_words(e: Emitter, t: Type) -> bool:
    """fp8, which only products compute with."""
    return isinstance(t, Tile) and isinstance(t.elem, DType) and t.elem.is_fp8() and e.count(t) % 4 == 0


def _words(e: Emitter, v: Value) -> list[str]:
    return words(e, elem_of(v.type), e.get(v))


def _apart(e: Emitter, v: Value, whole: list[str]) -> None:
    regs = e.fresh(v.type)
    unpack(e, elem_of(v.type), whole, regs)
    pack = len(regs) // len(whole)
    e.packed.update((tuple(regs[pack * i:pack * (i + 1)]), word) for i, word in enumerate(whole))
    e.set(v, regs)


def _handed_on(e: Emitter, ways: list[Edge]) -> set[int]:
    """The ways on which 16-bit elements go unchanged for trips: two to a word."""
    of = {way.args[0]: way for way in ways}

    def loaded(v: Value, seen: tuple[int, ...] = ()) -> bool:
        if isinstance(v.op, Op):
            return v.op.name in ("load", "row_read")
        way = of.get(v)
        return way is not None and way.index not in seen and loaded(way.ends[0], (*seen, way.index))

    return {way.index for way in ways if isinstance(t := way.args[0].type, Tile) and elem_of(t).bits == 16
            and e.count(t) % 2 == 0 and loaded(way.ends[0])}


def _moved(e: Emitter, way: Edge) -> dict[int, str]:
    assert way.init is not None
    regs, cls = e.get(way.init), reg_class(elem_of(way.init.type))
    return {i: e.p.new(cls, f"mov.{cls}", regs[i]) for i in dict.fromkeys(e.steps.roots(way.init))}


def _suffix(t: Type) -> str:
    assert isinstance(t, DType)
    return f"{'s' if t.is_signed else 'u'}{t.bits}"


class _Queue:
    """Values used `turns` - 1 trips later: so many trips are written out, and nothing is moved."""

    def __init__(self, e: Emitter, chain: list[Edge], in_words: bool):
        self.e, self.chain, self.in_words = e, chain, in_words
        inits = [way.init for way in chain if way.init is not None]
        self.slots = [e.fresh(inits[0].type) if not in_words else e.p.regs("b32", len(_words(e, inits[0])))
                      for _ in range(len(chain) + 1)]
        for regs, init in zip(self.slots, inits):
            for to, reg in zip(regs, self._of(init)):
                move(e, self._type(init), to, reg)

    def _of(self, v: Value) -> list[str]:
        return _words(self.e, v) if self.in_words else self.e.get(v)

    def _type(self, v: Value) -> Type:
        return int32 if self.in_words else v.type

    def begin(self, turn: int) -> None:
        """Say where the loop's arguments are in a turn."""
        for i, way in enumerate(self.chain):
            regs = self.slots[(turn + i) % len(self.slots)]
            if self.in_words:
                _apart(self.e, way.args[0], regs)
            else:
                self.e.set(way.args[0], regs)

    def end(self, turn: int) -> list[tuple[Type, str, str]]:
        """Where what a turn has made goes."""
        made = self.chain[-1].ends[0]
        return [(self._type(made), *pair) for pair in zip(self.slots[turn - 1], self._of(made))]


def _chains(e: Emitter, ways: list[Edge], age: int) -> list[list[Edge]]:
    if not age:
        return []
    by_arg = {way.args[0]: way for way in ways}
    found = [[way] for way in ways if way.args[0] not in {end for other in ways for end in other.ends}]
    for chain in found:
        while (further := by_arg.get(chain[-1].ends[0])) is not None and further not in chain:
            chain.append(further)
    return [chain for chain in found if len(chain) == age and not any(way.result in e.uses for way in chain)]


@emits("for")
def _for(e: Emitter, op: Op) -> None:
    p, region = e.p, op.regions[0]
    lo, hi, step = op.operands[:3]
    iv, kind = region.args[0], _suffix(region.args[0].type)
    down = (const_of(step) or 0) < 0
    cls = reg_class(elem_of(iv.type))
    at = p.new(cls, f"mov.{cls}", e.scalar(lo))
    e.set(iv, at)
    ways = edges(op)
    handed_on = _handed_on(e, ways)
    queues = [_Queue(e, chain, chain[0].index in handed_on) for chain in _chains(e, ways, op.attrs.get("turns", 1) - 1)]
    turns = 1 + len(queues[0].chain) if queues else 1
    queued = {way.index for queue in queues for way in queue.chain}
    ways = [way for way in ways if way.index not in queued]
    roots = {way.index: _moved(e, way) for way in e.steps.carried(ways)}
    whole: dict[int, list[str]] = {}
    for way in ways:
        assert way.init is not None
        if _in_words(e, way.init.type) or way.index in handed_on:
            whole[way.index] = [p.new("b32", "mov.b32", word) for word in _words(e, way.init)]
        elif way.index not in roots:
            carried(e, way.init, way.args[0])
    in_words, others = [way for way in ways if way.index in whole], [way for way in ways if way.index not in whole]
    loop, end = p.label("loop"), p.label("loop_end")
    leave = "le" if down else "ge"
    stay = "gt" if down else "lt"
    p("bra", end, pred=p.new("pred", f"setp.{leave}.{kind}", at, e.scalar(hi)))
    p.place(loop)
    for turn in range(turns):
        body = Body(e)
        for way in others:
            if way.index in roots:
                e.set(way.args[0], e.spread(way.args[0], roots[way.index]))
        for way in in_words:
            _apart(e, way.args[0], whole[way.index])
        for queue in queues:
            queue.begin(turn)
        for x in listed(region) if turn else ():
            for v in x.results:
                e.values.pop(v, None)
        e.block(region)
        advance(e, [way.args[0] for way in others], [way.ends[0] for way in others],
                [roots.get(way.index, range(len(e.get(way.args[0])))) for way in others],
                [(int32, to, word) for way in in_words for to, word in zip(whole[way.index], _words(e, way.ends[0]))]
                + [pair for queue in queues for pair in queue.end(turn)], body)
        p(f"add.{kind}", at, at, e.scalar(step))
        more = p.new("pred", f"setp.{stay}.{kind}", at, e.scalar(hi))
        last = turn == turns - 1
        p("bra", loop if last else end, pred=more if last else f"!{more}")
    p.place(end)
    for way in others:
        e.set(way.result, e.spread(way.result, roots[way.index]) if way.index in roots else e.get(way.args[0]))
    for way in in_words:
        _apart(e, way.result, whole[way.index])


@emits("while")
def _while(e: Emitter, op: Op) -> None:
    p = e.p
    before, body = op.regions
    for init, arg in zip(op.operands, before.args):
        carried(e, init, arg)
    loop, end = p.label("while"), p.label("while_end")
    p.place(loop)
    e.block(before)
    cond, *passed = before.terminator.operands
    for value, arg, result in zip(passed, body.args, op.results):
        e.set(arg, e.get(value))
        e.set(result, e.get(value))
    p("bra", end, pred=f"!{e.scalar(cond)}")
    e.block(body)
    advance(e, before.args, body.terminator.operands)
    p("bra", loop)
    p.place(end)


@emits("if")
def _if(e: Emitter, op: Op) -> None:
    p = e.p
    otherwise, end = p.label("else"), p.label("endif")
    whole = [_in_words(e, r.type) for r in op.results]
    stay: dict[int, Value] = {} if any(whole) else stays(op, e.uses)
    results = [p.regs("b32", e.count(r.type) // 4) if all_ else e.get(stay[i]) if i in stay else e.fresh(r.type)
               for i, (r, all_) in enumerate(zip(op.results, whole))]
    has_else = len(op.regions) > 1
    p("bra", otherwise, pred=f"!{e.scalar(op.operands[0])}")
    for i, region in enumerate(op.regions):
        known = e.role.known
        if op in e.exits[-1:] and len(region.ops) > 1:
            init_barriers(e)
            e.role.known = replace(known.copy(), mark=len(p.lines))
        e.block(region)
        e.role.known = known
        parallel_move(e, [(int32 if all_ else value.type, d, s)
                          for regs, value, all_ in zip(results, region.terminator.operands, whole)
                          for d, s in zip(regs, _words(e, value) if all_ else e.get(value))])
        if i == 0:
            if has_else:
                p("bra", end)
            p.place(otherwise)
    p.place(end)
    for r, regs, all_ in zip(op.results, results, whole):
        if all_:
            _apart(e, r, regs)
        else:
            e.set(r, regs)


@emits("yield", "condition")
def _terminator(e: Emitter, op: Op) -> None:
    """The op that owns the block moves the values."""


@emits("assume")
def _assume(e: Emitter, op: Op) -> None:
    """A promise to the passes."""


@emits("checked")
def _checked(e: Emitter, op: Op) -> None:
    p, x, t = e.p, e.scalar(op.operands[0]), op.result.type
    t = uint64 if isinstance(t, Ptr) else t
    assert isinstance(t, DType)
    if op.attrs.get("nonnegative") and t.is_signed:
        p("trap", pred=p.new("pred", f"setp.lt.s{t.bits}", x, 0))
    if op.attrs.get("divisible", 1) > 1:
        low = p.new(f"b{t.bits}", f"and.b{t.bits}", x, op.attrs["divisible"] - 1)
        p("trap", pred=p.new("pred", f"setp.ne.u{t.bits}", low, 0))
    e.set(op.result, [x])


@emits("debug_barrier")
def _debug_barrier(e: Emitter, op: Op) -> None:
    if e.rank and e.role.barrier == "0":  # one role: all threads of the cluster
        cluster_sync(e)
    else:
        e.sync()
