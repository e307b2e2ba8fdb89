"""Emitters of global memory access: vector loads and stores with masks, and atomics.

The `vec` attribute (elements per access, set by the coalescing pass) promises that the addresses of that
many neighbouring registers are consecutive and aligned and that their mask is one value.
"""
from __future__ import annotations

from tilejit.errors import CompilationError
from tilejit.ir import Op
from tilejit.ir.types import DType, Tile, elem_of
from tilejit.ptx.arith import literal
from tilejit.ptx.emit import Emitter, emits, reg_class
from tilejit.ptx.pack import load, store

_CACHE = {"": "", ".ca": ".ca", ".cg": ".cg", ".cs": ".cs", ".cv": ".cv", ".wb": ".wb", ".wt": ".wt"}
_EVICT = {"": "", "evict_first": ".L1::evict_first", "evict_last": ".L1::evict_last",
          "evict_normal": ".L1::evict_normal", "no_allocate": ".L1::no_allocate"}


def _opcode(op: Op, name: str) -> str:
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
    """Masked-off registers hold `other`, or zero without one, before the access."""
    p, t = e.p, elem_of(op.result.type)
    pointers = e.get(op.operands[0])
    masks = e.get(op.operands[1]) if len(op.operands) > 1 else None
    others = e.get(op.operands[2]) if len(op.operands) > 2 else None
    out, vec, opcode = e.fresh(op.result.type), op.attrs.get("vec", 1), _opcode(op, "ld")
    cls = reg_class(t)
    for i in range(0, len(out), vec):
        regs = out[i:i + vec]
        pred = masks[i] if masks else None
        if pred:
            for j, r in enumerate(regs):
                if cls == "pred":
                    if others:
                        p("and.pred", r, others[i + j], others[i + j])
                    else:
                        p("setp.ne.b32", r, 0, 0)
                else:
                    zero = literal(0, t)
                    p(f"mov.{cls}", r, others[i + j] if others else zero)
        load(e, opcode, t, regs, f"[{pointers[i]}]", pred)
    e.set(op.result, out)


def writer(e: Emitter, op: Op) -> str | None:
    """Predicate of the threads that write: one of each set of copies; one thread for a scalar."""
    t = op.operands[0].type
    if isinstance(t, Tile):
        assert t.layout is not None
        return e.owner(t.layout)
    return e.p.new("pred", "setp.eq.u32", e.role.tid, 0)


def _both(e: Emitter, a: str | None, b: str | None) -> str | None:
    if a is None or b is None:
        return a or b
    return e.p.new("pred", "and.pred", a, b)


@emits("store")
def _store(e: Emitter, op: Op) -> None:
    pointers, values = e.get(op.operands[0]), e.get(op.operands[1])
    masks = e.get(op.operands[2]) if len(op.operands) > 2 else None
    owner, vec = writer(e, op), op.attrs.get("vec", 1)
    opcode, t = _opcode(op, "st"), elem_of(op.operands[1].type)
    for i in range(0, len(values), vec):
        store(e, opcode, t, values[i:i + vec], f"[{pointers[i]}]",
              _both(e, owner, masks[i] if masks else None))


def _scope(op: Op) -> str:
    sem = op.attrs.get("sem") or "acq_rel"
    scope = {"gpu": "gpu", "cta": "cta", "sys": "sys", "": "gpu", None: "gpu"}[op.attrs.get("scope")]
    return f".{sem}.{scope}.global"


@emits("atomic_rmw")
def _atomic_rmw(e: Emitter, op: Op) -> None:
    """One atomic per element; copies get the old value from the thread that did it."""
    p, t, kind = e.p, elem_of(op.operands[1].type), op.attrs["kind"]
    assert isinstance(t, DType)
    pointers, values = e.get(op.operands[0]), e.get(op.operands[1])
    masks = e.get(op.operands[2]) if len(op.operands) > 2 else None
    owner, out = writer(e, op), e.fresh(op.result.type)
    cls = reg_class(t)
    if t.is_float and kind in ("max", "min"):
        raise CompilationError(f"atomic {kind} on {t} is not supported: use an integer view", op.loc)
    suffix = {"add": {"fp16": "noftz.f16", "bf16": "noftz.bf16", "fp32": "f32", "fp64": "f64"}.get(
        t.name, f"{'u' if t.bits == 64 or not t.is_signed else 's'}{t.bits}"),
        "xchg": f"b{t.bits}", "and": f"b{t.bits}", "or": f"b{t.bits}", "xor": f"b{t.bits}"}.get(
            kind, f"{'s' if t.is_signed else 'u'}{t.bits}")
    name = {"xchg": "exch"}.get(kind, kind)
    for i, (ptr, value) in enumerate(zip(pointers, values)):
        pred = _both(e, owner, masks[i] if masks else None)
        if pred:
            p(f"mov.{cls}", out[i], literal(0, t))
        p(f"atom{_scope(op)}.{name}.{suffix}", out[i], f"[{ptr}]", value, pred=pred)
    e.set(op.result, _shared_result(e, op, out))


@emits("atomic_cas")
def _atomic_cas(e: Emitter, op: Op) -> None:
    t = elem_of(op.operands[1].type)
    pointers, compare, values = (e.get(v) for v in op.operands)
    owner, out = writer(e, op), e.fresh(op.result.type)
    for r, ptr, c, v in zip(out, pointers, compare, values):
        e.p(f"atom{_scope(op)}.cas.b{t.bits}", r, f"[{ptr}]", c, v, pred=owner)
    e.set(op.result, _shared_result(e, op, out))


def _shared_result(e: Emitter, op: Op, regs: list[str]) -> list[str]:
    """Give the old value to all holders of an element. A scalar's goes to every thread of the role."""
    from tilejit.ir import uses
    from tilejit.ptx.convert import shuffle

    t = op.result.type
    if op.result not in uses(e.fn.body):
        return regs
    elem = elem_of(t)
    if isinstance(t, Tile):
        assert t.layout is not None
        if t.layout.zero_bits("warp"):
            raise CompilationError("the result of an atomic on a tile smaller than the program is used; "
                                   "use a larger tile or fewer warps", op.loc)
        mask = 31 & ~sum(1 << b for b in t.layout.zero_bits("lane"))
        if mask == 31:
            return regs
        lane = e.p.new("b32", "and.b32", e.role.lane, mask)
        return [shuffle(e, elem, r, lane) for r in regs]
    # A scalar: thread 0 publishes through shared scratch.
    from tilejit.ptx.pack import load_shared, store_shared

    first = e.p.new("pred", "setp.eq.u32", e.role.tid, 0)
    address = f"[{e.smem}+{op.attrs['scratch']}]"
    e.sync()
    store_shared(e, elem, regs, address, first)
    e.sync()
    out = e.fresh(t)
    load_shared(e, elem, out, address)
    return out

