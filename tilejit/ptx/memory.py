"""Global memory access: vector loads and stores with masks, and atomics; memory of each thread (`stack`)."""
from __future__ import annotations

from collections.abc import Callable, Sequence

from tilejit.errors import CompilationError
from tilejit.ir import Op, Value, reached
from tilejit.ir.scratch import element_bytes, kept_bytes
from tilejit.ir.types import DType, Tile, elem_of
from tilejit.ptx.arith import literal, suffix
from tilejit.ptx.convert import shuffle
from tilejit.ptx.emit import Emitter, emits, reg_class
from tilejit.ptx.pack import load, load_shared, store, store_shared, vector

_CACHE = {"": "", ".ca": ".ca", ".cg": ".cg", ".cs": ".cs", ".cv": ".cv", ".wb": ".wb", ".wt": ".wt"}
_EVICT = {"": "", "evict_first": ".L1::evict_first", "evict_last": ".L1::evict_last",
          "evict_normal": ".L1::evict_normal", "no_allocate": ".L1::no_allocate"}


def opcode_of(op: Op, name: str) -> str:
    if op.attrs.get("volatile"):
        return f"{name}.volatile.global"
    cache = op.attrs.get("cache") or ""
    cache = cache if cache.startswith(".") or not cache else f".{cache}"
    evict = op.attrs.get("evict") or ""
    if cache not in _CACHE or evict not in _EVICT:
        raise CompilationError(f"{op.name}: unknown cache hint {cache or evict!r}", op.loc)
    # PTX takes a cache operator or an eviction priority, not both.
    return f"{name}.global{_CACHE[cache]}" if cache else f"{name}.global{_EVICT[evict]}"


@emits("load")
def _load(e: Emitter, op: Op) -> None:
    """A load that is `ahead` stays behind what uses the one before (they share a scoreboard): none moves up over
    `bar.warp.sync`."""
    p, t = e.p, elem_of(op.result.type)
    if op.attrs.get("ahead") and e.role.name != "producer":  # where one lane may load
        p("bar.warp.sync", -1)
    if op.attrs.get("leave"):
        some, *rest = dict.fromkeys(m for x in op.block.ops if x.name == "store" for m in e.get(x.operands[2]))
        for m in rest:
            some = p.new("pred", "or.pred", some, m)
        p("ret", pred=f"!{some}")
    pointers = e.get(op.operands[0])
    masks = e.get(op.operands[1]) if len(op.operands) > 1 else None
    others = e.get(op.operands[2]) if len(op.operands) > 2 else None
    out, vec, opcode = e.fresh(op.result.type), op.attrs.get("vec", 1), opcode_of(op, "ld")
    cls = reg_class(t)
    zero = literal(0, t) if cls != "pred" else ""
    filled = op.operands[2].op if others else None
    if cls == "b16" and isinstance(filled, Op) and filled.name == "const":  # no copies (miscompiles.py)
        others = [literal(filled.attrs["value"], t)] * len(out)
    whole = None
    if masks and vec > 1 and op.attrs.get("ragged"):
        for i, r in enumerate(out):
            p(f"mov.{cls}", r, others[i] if others else zero)
        whole = _ends(e, op.operands[1], vec, lambda i, at, inside: load(
            e, opcode, t, [out[i]], f"[{pointers[at]}+{(i - at) * max(1, t.bits // 8)}]", inside))
    for i in range(0, len(out), vec):
        regs = out[i:i + vec]
        if whole:
            load(e, opcode, t, regs, f"[{pointers[i]}]", whole[i])
            continue
        pred = masks[i] if masks else None
        if pred:
            for j, r in enumerate(regs):
                if cls == "pred":
                    if others:
                        p("and.pred", r, others[i + j], others[i + j])
                    else:
                        p("setp.ne.b32", r, 0, 0)
                else:
                    p(f"mov.{cls}", r, others[i + j] if others else zero)
        load(e, opcode, t, regs, f"[{pointers[i]}]", pred)
    e.set(op.result, out)


def _ends(e: Emitter, mask: Value, vec: int, access: Callable[[int, int, str], None]) -> dict[int, str]:
    """Of vectors that a mask has in part."""
    p, skip, masks, parts = e.p, e.p.label("whole"), e.get(mask), dict[int, str]()
    whole = {i: p.new("pred", "and.pred", masks[i], masks[i + vec - 1]) for i in range(0, len(masks), vec)}
    for at, w in whole.items():
        parts[at] = p.new("pred", "not.pred", w)
        for c in reached([mask], _terms):  # comparisons of a vector's elements change once
            if c in e.values and c.op.name != "and":  # type: ignore[union-attr]
                ends = p.new("pred", "or.pred", e.get(c)[at], e.get(c)[at + vec - 1])
                parts[at] = p.new("pred", "and.pred", parts[at], ends)
    some, *rest = parts.values()
    for part in rest:
        some = p.new("pred", "or.pred", some, part)
    p("bra", skip, pred=f"!{some}")
    for at, part in parts.items():
        apart = dict[Value, str]()
        for i in range(at, at + vec):
            access(i, at, p.new("pred", "and.pred", _inside(e, mask, i, at, apart), part))
    p.place(skip)
    return whole


def _terms(v: Value) -> Sequence[Value]:
    return v.op.operands if isinstance(v.op, Op) and v.op.name == "and" else ()


def _inside(e: Emitter, mask: Value, i: int, at: int, apart: dict[Value, str]) -> str:
    """A mask's element, found by how far apart numbers are at the first of its vector (`apart`): all elements' masks
    would be many registers, all the time."""
    op, p = mask.op, e.p
    again = isinstance(op, Op) and (op.name == "and" or op.attrs.get("ragged") and e.values.keys() >= {*op.operands})
    if not isinstance(op, Op) or not again:
        return e.get(mask)[i]
    if op.name == "and":
        return p.new("pred", "and.pred", *(_inside(e, v, i, at, apart) for v in op.operands))
    (a, m, some), (b, n, others) = ((*e.steps.of(v)[i],) for v in op.operands)
    (a_at, m_at, some_at), (b_at, n_at, others_at) = ((*e.steps.of(v)[at],) for v in op.operands)
    if (a, b, some, others) != (a_at, b_at, some_at, others_at):
        return e.get(mask)[i]
    if mask not in apart:
        wide = [r if elem_of(v.type).bits == 64 else p.new("b64", "cvt.s64.s32", r)
                for v in op.operands for r in [e.get(v)[at]]]
        apart[mask] = p.new("b64", "sub.s64", *wide)
    return p.new("pred", f"setp.{op.attrs['pred']}.s64", apart[mask], n - n_at - m + m_at)


def writer(e: Emitter, op: Op) -> str | None:
    if isinstance(op.operands[0].type, Tile):
        return e.owner(op.operands[0].layout)
    first = e.p.new("b32", "or.b32", e.role.tid, e.rank) if e.rank else e.role.tid
    return e.p.new("pred", "setp.eq.u32", first, 0)


def both(e: Emitter, a: str | None, b: str | None) -> str | None:
    if a is None or b is None:
        return a or b
    return e.p.new("pred", "and.pred", a, b)


@emits("store")
def _store(e: Emitter, op: Op) -> None:
    pointers, values = e.get(op.operands[0]), e.get(op.operands[1])
    masks = e.get(op.operands[2]) if len(op.operands) > 2 else None
    owner, vec = writer(e, op), op.attrs.get("vec", 1)
    opcode, t = opcode_of(op, "st"), elem_of(op.operands[1].type)
    whole = _ends(e, op.operands[2], vec, lambda i, at, inside: store(
        e, opcode, t, [values[i]], f"[{pointers[at]}+{(i - at) * max(1, t.bits // 8)}]", both(e, owner, inside))) \
        if masks and vec > 1 and op.attrs.get("ragged") else {}
    for i in range(0, len(values), vec):
        store(e, opcode, t, values[i:i + vec], f"[{pointers[i]}]",
              both(e, owner, whole.get(i) or (masks[i] if masks else None)))


# -- atomics --
_SEMANTICS = ("relaxed", "acquire", "release", "acq_rel")
_SCOPES = ("cta", "cluster", "gpu", "sys")
#: Kinds that `red` has.
_UNREAD = ("add", "max", "min", "and", "or", "xor")


def _atom(op: Op) -> str:
    sem, scope = op.attrs.get("sem") or "acq_rel", op.attrs.get("scope") or "gpu"
    if sem not in _SEMANTICS or scope not in _SCOPES:
        raise CompilationError(f"{op.name}: sem is one of {_SEMANTICS} and scope of {_SCOPES}; "
                               f"found {sem!r} and {scope!r}", op.loc)
    return f"atom.global.{sem}.{scope}" if op.name == "atomic_cas" else f"atom.global.{scope}.{sem}"


def _suffix(op: Op, kind: str, t: DType) -> str:
    half = t.is_float and t.bits == 16
    if t.bits < 32 and not (half and kind == "add"):
        raise CompilationError(f"atomic {kind} on {t} is not supported: atomics take 32- and 64-bit elements, "
                               "and fp16 and bf16 for add", op.loc)
    if kind in ("xchg", "and", "or", "xor"):
        if t.is_float and kind != "xchg":
            raise CompilationError(f"atomic {kind} takes integers, found {t}", op.loc)
        return f"{'exch' if kind == 'xchg' else kind}.b{t.bits}"
    if kind == "add" and t.is_float:
        return f"add.{'noftz.' if half else ''}{suffix(t)}"
    signed = t.is_signed and not (kind == "add" and t.bits == 64)
    return f"{kind}.{'s' if signed else 'u'}{t.bits}"


def _reductions(e: Emitter, op: Op, suffix: str) -> None:
    """Atomics whose old values nobody reads, in vectors; one fence releases them all."""
    sem, scope, vec = op.attrs.get("sem") or "acq_rel", op.attrs.get("scope") or "gpu", op.attrs.get("vec", 1)
    if sem in ("release", "acq_rel"):
        e.p(f"fence.acq_rel.{scope}")
    pointers, values, t = e.get(op.operands[0]), e.get(op.operands[1]), op.result.type
    masks = e.get(op.operands[2]) if len(op.operands) > 2 else None
    owner, done = writer(e, op), set[tuple[int, ...]]()
    kind, _, elem = suffix.rpartition(".")
    if vec > 1:
        e.version = max(e.version, (8, 1))
    opcode = f"red.relaxed.{scope}.global.{kind}{f'.v{vec}' if vec > 1 else ''}.{elem}"
    for i in range(0, len(pointers), vec):
        at = t.layout.apply(register=i) if isinstance(t, Tile) and t.layout else ()
        if at not in done:
            done.add(at)
            pred = both(e, owner, masks[i] if masks else None)
            e.p(opcode, f"[{pointers[i]}]", vector(values[i:i + vec]), pred=pred)
    e.set(op.result, e.fresh(t))


@emits("atomic_rmw")
def _atomic_rmw(e: Emitter, op: Op) -> None:
    p, t, kind, atom = e.p, op.operands[1].dtype, op.attrs["kind"], _atom(op)
    if op.result not in e.uses and kind in _UNREAD and not (t.is_float and kind != "add") \
            and len(e.get(op.operands[0])) > 1:
        _reductions(e, op, _suffix(op, kind, t))
        return
    cls = reg_class(t)
    ordered = t.is_float and kind in ("max", "min")
    plain = kind in ("load", "store")
    opcode = f"{op.attrs['sem']}.{op.attrs['scope']}.global" if plain else \
        "" if ordered else f"{atom}.{_suffix(op, kind, t)}"

    def one(out: str, ptr: str, pred: str | None, value: str) -> None:
        if ordered:
            _float_extremum(e, op, atom, out, ptr, pred, value)
            return
        if kind == "store":
            store(e, f"st.{opcode}", t, [value], f"[{ptr}]", pred)
            return
        if pred and cls == "pred":
            p("setp.ne.b32", out, 0, 0)
        elif pred:
            p(f"mov.{cls}", out, literal(0, t))
        if kind == "load":
            load(e, f"ld.{opcode}", t, [out], f"[{ptr}]", pred)
            return
        p(opcode, out, f"[{ptr}]", value, pred=pred)

    _each_once(e, op, op.operands[1:2], op.operands[2] if len(op.operands) > 2 else None, one)


def _float_extremum(e: Emitter, op: Op, atom: str, out: str, ptr: str, pred: str | None, value: str) -> None:
    """By integer atomics on their bits."""
    p, t, kind = e.p, op.operands[1].dtype, op.attrs["kind"]
    if t.bits < 32:
        end = "; the tensor's rows end within 16 bytes, which TMA would write as a whole: pad them, or" \
            if op.attrs.get("seldom") else ":"
        raise CompilationError(f"atomic {kind} on {t} is not supported{end} use fp32 or fp64", op.loc)
    cls, ints, other = reg_class(t), f"b{t.bits}", "min" if kind == "max" else "max"
    number = p.new("pred", f"setp.num.{suffix(t)}", value, value)
    least = literal(float("-inf") if kind == "max" else float("inf"), t)
    bits = p.new(ints, f"mov.{ints}", p.new(cls, f"selp.{cls}", value, least, number))
    plus = p.new("pred", f"setp.ge.s{t.bits}", bits, 0)
    minus = p.new("pred", "not.pred", plus)
    old = p.new(ints, f"mov.{ints}", 0)
    for sign, name in ((plus, f"{kind}.s{t.bits}"), (minus, f"{other}.u{t.bits}")):
        p(f"{atom}.{name}", old, f"[{ptr}]", bits, pred=both(e, sign, pred))
    p(f"mov.{ints}", out, old)


@emits("atomic_poll")
def _atomic_poll(e: Emitter, op: Op) -> None:
    p, t = e.p, op.operands[1].dtype
    (ptr,), (value,), (out,) = e.get(op.operands[0]), e.get(op.operands[1]), e.fresh(op.result.type)
    limit = e.scalar(op.operands[2]) if len(op.operands) > 2 else None
    since = p.new("b64", "mov.u64", "%globaltimer") if limit else ""
    owner, again, done = writer(e, op), p.label("poll"), p.label("polled")
    p("setp.ne.b32", out, 0, 0)
    e.sync()  # what the program did before is done when it waits
    if owner:
        p("bra", done, pred=f"!{owner}")
    p.place(again)
    scope = op.attrs["scope"]
    p(f"setp.eq.b{t.bits}", out, p.new(reg_class(t), f"ld.relaxed.{scope}.global.b{t.bits}", f"[{ptr}]"), value)
    if limit:
        waited = p.new("b64", "sub.u64", p.new("b64", "mov.u64", "%globaltimer"), since)
        late = p.new("pred", "setp.ge.u64", waited, limit)
        p("bra", again, pred=f"!{p.new('pred', 'or.pred', out, late)}")
    else:
        p("bra", again, pred=f"!{out}")
    if op.attrs["sem"] == "acquire":
        if e.target.hopper:
            e.version = max(e.version, (8, 6))  # fence.acquire
        p(f"fence.{'acquire' if e.target.hopper else 'acq_rel'}.{scope}")
    p.place(done)
    e.sync()
    e.set(op.result, _from_owners(e, op, [out], owner) if owner and op.result in e.uses else [out])


@emits("atomic_cas")
def _atomic_cas(e: Emitter, op: Op) -> None:
    t = elem_of(op.operands[1].type)
    if t.bits < 16:
        raise CompilationError(f"atomic cas on {t} is not supported: use 16 to 64 bits", op.loc)
    opcode = f"{_atom(op)}.cas.b{t.bits}"
    _each_once(e, op, op.operands[1:], None,
               lambda out, ptr, pred, *values: e.p(opcode, out, f"[{ptr}]", *values, pred=pred))


def _each_once(e: Emitter, op: Op, values: list[Value], mask: Value | None, one: Callable[..., None]) -> None:
    """Call one(out, pointer, predicate, *values) for elements this thread holds first; all get the old values."""
    t, alone = op.result.type, op.attrs.get("alone")
    used = op.result in e.uses
    if not isinstance(t, Tile) and not alone and (used or (op.attrs.get("sem") or "acq_rel") in ("release", "acq_rel")):
        e.sync()
    owner, out = writer(e, op), e.fresh(t)
    pointers, masks = e.get(op.operands[0]), e.get(mask) if mask else None
    first: dict[tuple[int, ...], int] = {}
    for i, ptr in enumerate(pointers):
        at = t.layout.apply(register=i) if isinstance(t, Tile) and t.layout else ()
        if at in first:
            out[i] = out[first[at]]
            continue
        first[at] = i
        if alone and used:  # the others read it too, when it is told to all, and make no use of it
            cls = reg_class(elem_of(t))
            e.p(f"mov.{cls}", out[i], literal(0, elem_of(t)))
        one(out[i], ptr, both(e, owner, masks[i] if masks else None), *(e.get(v)[i] for v in values))
    if used and owner and not alone:
        out = _from_owners(e, op, out, owner)
    e.set(op.result, out)


def _from_owners(e: Emitter, op: Op, regs: list[str], owner: str) -> list[str]:
    p, t = e.p, op.result.type
    elem = elem_of(t)
    zero: dict[str, tuple[int, ...]] = {"lane": (0, 1, 2, 3, 4), "warp": (0, 1, 2, 3, 4)}
    if isinstance(t, Tile):
        assert t.layout is not None
        zero = {n: t.layout.zero_bits(n) for n in ("lane", "warp")}
    lane_of = p.new("b32", "and.b32", e.role.lane, 31 & ~sum(1 << b for b in zero["lane"]))
    different = list(dict.fromkeys(regs))
    if not zero["warp"]:
        done = {r: shuffle(e, elem, r, lane_of) for r in different}
        return [done[r] for r in regs]
    warp_of = p.new("b32", "and.b32", e.role.warp, 31 & ~sum(1 << b for b in zero["warp"]))
    row = p.new("b32", "mad.lo.u32", warp_of, 32 * len(different), lane_of)
    size = max(1, elem.bits // 8)
    address, start = p.new("b32", "mad.lo.u32", row, size, e.private), op.attrs["scratch"]
    if isinstance(t, Tile):
        e.sync()  # the scratch may still be read; a scalar's threads have just met
    places = [f"[{address}+{start + 32 * k * size}]" for k in range(len(different))]
    for r, place in zip(different, places):
        store_shared(e, elem, [r], place, owner)
    e.sync()
    found = {}
    for r, place in zip(different, places):
        new = p.regs(reg_class(elem), 1)
        load_shared(e, elem, new, place)
        found[r] = new[0]
    return [found[r] for r in regs]


@emits("stack")
def _stack(e: Emitter, op: Op) -> None:
    if op.attrs.get("threads"):
        place = e.p.new("b32", "add.u32", e.private, op.attrs["offset"])
        place = e.p.new("b32", "mad.lo.u32", e.role.tid, 16, place)
    else:
        name = f"stack_{sum(d.startswith('.local') for d in e.p.decls)}"
        e.p.decls.append(f".local .align 16 .b8 {name}[{op.attrs['slots'] * kept_bytes(op.result.tile)}];")
        place = e.p.new("b64", "mov.u64", name)
    e.set(op.result, [place] * e.count(op.result.type))


@emits("keep")
def _keep(e: Emitter, op: Op) -> None:
    stack, at, x = op.operands
    space, places = _places(e, stack, at)
    for i, vec, place in places:
        store(e, f"st.{space}", elem_of(x.type), e.get(x)[i:i + vec], place)


@emits("kept")
def _kept(e: Emitter, op: Op) -> None:
    regs = e.fresh(op.result.type)
    space, places = _places(e, *op.operands)
    for i, vec, place in places:
        load(e, f"ld.{space}", elem_of(op.result.type), regs[i:i + vec], place)
    e.set(op.result, regs)


@emits("stacked")
def _stacked(e: Emitter, op: Op) -> None:
    raise CompilationError("a sorted tile is needed whole: `chunk` keeps those in registers", op.loc)


def _places(e: Emitter, stack: Value, at: Value) -> tuple[str, list[tuple[int, int, str]]]:
    """Of a tile of the stack."""
    t, count, (first, *_) = stack.tile, e.count(stack.type), e.get(stack)
    threads = stack.op.attrs.get("threads", 0) if isinstance(stack.op, Op) else 0
    size, kind, to = element_bytes(t) * (threads or 1), *(("b32", "lo.u32") if threads else ("b64", "wide.s32"))
    base = e.p.new(kind, f"mad.{to}", e.scalar(at), kept_bytes(t) * (threads or 1), first)
    vec = min(count, 16 // element_bytes(t))
    return "shared" if threads else "local", [(i, vec, f"[{base}+{i * size}]") for i in range(0, count, vec)]
