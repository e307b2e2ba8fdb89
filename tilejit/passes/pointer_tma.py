"""Loads and stores through pointers that TMA can do: they go through a descriptor that the host makes at the launch."""
from __future__ import annotations

from math import gcd
from typing import Any

from tilejit.ir.ahead import ahead_problem, argument_of, is_volatile, may_alias
from tilejit.ir.core import Block, Builder, Function, Op, Value, edge_at, edge_of, erase, reached, replace, uses, walk
from tilejit.ir.target import target_of
from tilejit.ir.types import DType, Ptr, elem_of, int32, int64, shape_of
from tilejit.passes.affine import Address, Bound, Forms, Monomial, Poly, Wrap, build, number
from tilejit.passes.assumptions import check, may_check, unloaded
from tilejit.passes.axis import ANY, analyse
from tilejit.passes.copies import pipelined_loops, wants_copies
from tilejit.passes.rules import const_of
from tilejit.records import dataclass, field

#: The size of a dimension that nothing bounds.
_ENDLESS = 2 ** 31 - 1
#: Bytes that bases, strides and starts of rows are multiples of; most elements of a box along a dimension; dimensions.
_UNIT, _BOX, _RANK = 16, 256, 5
#: Bits of the lower one of two dimensions that an index is divided into, of an outer and of the innermost dimension:
#: strides of the upper one are below TMA's limit of 2^40 bytes, else the launch takes pointers.
_LOW_BITS = 20, 30


def raise_pointers(fn: Function) -> Function:
    if not fn.attrs.get("pointer_tma") or not target_of(fn).hopper:
        return fn
    loops = pipelined_loops(fn)
    groups: dict[Op, list[Op]] = {}
    for op in walk(fn.body):
        if op.name == "load" and len(shape_of(op.operands[0].type)) > 1 and wants_copies(fn, op, loops):
            loop = next(x for x in loops if op.parent is x.regions[0] or op.parent in _blocks(x))
            groups.setdefault(loop, []).append(op)
    pass_: _Raising | None = None
    raised = False
    for loads in groups.values():
        pass_ = _Raising(fn)
        plans = [pass_.load(op) for op in loads]
        problems = [p for p in plans if isinstance(p, str)]
        if problems:
            for op, plan in zip(loads, plans):
                _lost(fn, op, plan if isinstance(plan, str) else "another load of the loop cannot")
            continue
        for op, plan in zip(loads, plans):
            assert isinstance(plan, _Plan)
            pass_.rewrite(op, plan)
        raised = True
    if raised:
        _stores(fn, pass_)
    return fn


def _stores(fn: Function, pass_: _Raising | None) -> None:
    for op in [op for op in walk(fn.body) if op.name == "store" and len(shape_of(op.operands[0].type)) > 1]:
        pass_ = pass_ if pass_ is not None and not pass_.checked else _Raising(fn)
        plan = pass_.store(op)
        if isinstance(plan, str):
            _lost(fn, op, plan)
        else:
            pass_.rewrite(op, plan)


def _blocks(loop: Op) -> list[Block]:
    return [r for op in walk(loop.regions[-1]) for r in op.regions] + list(loop.regions)


def _lost(fn: Function, op: Op, why: str) -> None:
    _report(fn, op, "pointers", f"through pointers, not TMA: {why}")


def _report(fn: Function, op: Op, kind: str, what: str) -> None:
    name = op.result.name if op.name == "load" else op.operands[1].name
    where = op.place
    fn.say(kind, f"{op.name} {name or 'of a tile'} at {where}: {what}", where)


@dataclass
class _Axis:
    """One dimension of the tensor: `of` is the tile's (None: the tile has one index of it)."""

    stride: Poly
    box: int
    of: int | None
    start: Poly = field(default_factory=Poly)
    sizes: list[Poly] = field(default_factory=list)
    bits: int = 0  # its index has so many bits; what is above them is another dimension's,
    low: _Axis | None = None  # which is that of this one


@dataclass
class _Plan:
    """How an access becomes one of a descriptor: dimensions from the outermost to the innermost."""

    base: Value
    axes: list[_Axis]
    checks: list[Value]


class _Raising:
    """Looks at accesses of one function, and rewrites them. `checked`: with checks, of which facts do not know."""

    def __init__(self, fn: Function):
        self.fn, self.forms, self.facts = fn, Forms(), analyse(fn)
        self.table = uses(fn.body)
        self.checked = False

    # -- may it be raised? --
    def load(self, op: Op) -> _Plan | str:
        if is_volatile(op):
            return "it is volatile"
        if len(op.operands) > 2 and str(const_of(op.operands[2])) not in ("0", "0.0"):
            return "masked elements are not zero"
        if problem := ahead_problem(op) or self.waits():
            return problem
        if any("write" in x.define.effects and may_alias(argument_of(op.operands[0]), x) for x in walk(self.fn.body)):
            return "the kernel may write what it reads, through another proxy"
        plan = self.access(op, op.operands[1] if len(op.operands) > 1 else None)
        if isinstance(plan, str):
            return plan
        at = self.forms.address(op.operands[0])
        assert at is not None
        for d, wrap in at.offset.wraps.items():
            if not self.left_out(op.result, d, wrap):
                return "indices are taken modulo a size, and no store's mask is known to leave the repeated ones out"
        return plan

    def waits(self) -> str:
        """Why loads may be ordered after other programs' writes, which TMA would not see, or ""."""
        for op in walk(self.fn.body):
            if "read" in op.define.effects and op.results and self.table.get(op.result) and (
                    op.attrs.get("sem", "relaxed") != "relaxed" or op.name == "load" and is_volatile(op)):
                return f"{op.name}{f' ({op.loc.short()})' if op.loc else ''} may wait for other programs' writes"
        return ""

    def store(self, op: Op) -> _Plan | str:
        source = argument_of(op.operands[0])
        if is_volatile(op):
            return "it is volatile"
        if op.operands[0].tile.numel * elem_of(op.operands[1].type).bits > 8 * target_of(self.fn).shared_bytes:
            return "shared memory has no room for the tile"
        if any("read" in x.define.effects and x.operands and may_alias(source, x) for x in walk(self.fn.body)):
            return "the kernel may read what it writes, through another proxy"
        if any(x is not op and x.define.effects & {"write"} and x.operands and may_alias(source, x)
               for x in walk(self.fn.body)):
            return "the kernel writes there in other ways too"
        if any(x.attrs.get("sem", "relaxed") != "relaxed" for x in walk(self.fn.body)):
            return "an atomic orders it before other programs' work"
        plan = self.access(op, op.operands[2] if len(op.operands) > 2 else None)
        if not isinstance(plan, str) and (at := self.forms.address(op.operands[0])) and at.offset.wraps:
            return "indices are taken modulo a size"
        return plan

    def access(self, op: Op, mask: Value | None) -> _Plan | str:
        t = op.operands[0].tile
        at = self.forms.address(op.operands[0])
        elem = op.result.tile.elem if op.name == "load" else op.operands[1].tile.elem
        if at is None:
            return "its addresses are not an argument plus multiples of strides"
        if not isinstance(elem, DType) or elem.family == "bool":
            return f"elements of {elem} are not copied as they are"
        bounds = [] if mask is None else self.forms.bounds(mask)
        if bounds is None:
            return "its mask is more than bounds of indices"
        axes = self.axes(at, t.shape, elem.bytes)
        if isinstance(axes, str):
            return axes
        return self.bounded(at, axes, bounds, _is_wide(op.operands[0]))

    def axes(self, at: Address, shape: tuple[int, ...], size: int) -> list[_Axis] | str:
        axes = []
        for d, step in enumerate(at.offset.steps):
            if len(step) != 1 or not self.on_host(step):
                return f"its stride along dimension {d} is not known to the host as one argument or number"
            axes.append(_Axis(step, shape[d], d))
        inner = [a for a in axes if a.stride.constant == 1]
        if len(inner) != 1:
            return "no dimension is contiguous" if not inner else "two dimensions are contiguous"
        outer = sorted((a for a in axes if a is not inner[0]), key=lambda a: self.rank_of(a.stride), reverse=True)
        for m, c in at.offset.start.items():
            home = next((a for a in outer if _divides(a.stride, m, c)), None)
            hosts = tuple(v for v in m if v.op is self.fn.body)
            if home is not None:
                home.start = home.start + _quotient(m, c, home.stride)
            elif not hosts:
                inner[0].start = inner[0].start + Poly({m: c})
            elif len(hosts) == len(m):
                return "it starts at an offset that is an argument"
            else:
                stride = Poly({hosts: c})
                extra = next((a for a in axes if a.of is None and a.stride == stride), None)
                if extra is None:
                    extra = _Axis(stride, 1, None)
                    axes.insert(0, extra)
                extra.start = extra.start + _quotient(m, c, stride)
        order = [a for a in axes if a.of is None] + [a for a in axes if a.of is not None and a is not inner[0]] + inner
        if len(order) > _RANK:
            return f"it has {len(order)} dimensions, TMA at most {_RANK}"
        if any(abs(c) > _ENDLESS for a in order for c in a.start.values()):
            return "it starts at an offset of more elements than TMA counts (2^31)"
        if any(a.box > _BOX for a in order[:-1]):
            return f"a dimension of its tile is above {_BOX}"
        if inner[0].box * size % _UNIT or self.divides(inner[0].start) * size % _UNIT:
            return f"its rows are not known to start at multiples of {_UNIT} bytes"
        if any(self.divides(a.stride) * size % _UNIT for a in order[:-1]):
            return f"a stride is not known to be a multiple of {_UNIT} bytes"
        if self.facts[at.base].divisibility[0] % _UNIT:
            return f"its base {at.base.name} is not known to be aligned to {_UNIT} bytes"
        return order

    def bounded(self, at: Address, axes: list[_Axis], bounds: list[Bound], wide: bool) -> _Plan | str:
        """The plan, with sizes from the mask and from indices modulo a size; starts must not be negative."""
        by_dim = {a.of: a for a in axes if a.of is not None}
        low: set[int] = set()
        for b in bounds:
            axis = by_dim[b.dim]
            if b.below:
                axis.sizes.append(b.size + axis.start)
            elif b.size + axis.start == Poly():
                low.add(b.dim)
            else:
                return "its mask bounds indices from below"
        for d, wrap in at.offset.wraps.items():
            if wrap.start != by_dim[d].start:
                return "an index is taken modulo a size and moved then"
            by_dim[d].sizes.append(wrap.size)
        if any(not self.on_host(s) for a in axes for s in a.sizes):
            return "its mask's bounds are not known to the host"
        checks: list[Value] = []
        for a in axes:
            if a.of in low:
                continue
            missing = self.negative(a.start)
            if missing is None:
                return "a start is not known to be not negative"
            checks += [v for v in missing if v not in checks]
        for a in [a for a in axes if not a.sizes and not _fits(a.start)] if wide else []:
            a.bits = _LOW_BITS[a is axes[-1]]
            axes.insert(0, _Axis(a.stride * number(1 << a.bits), 1, None, low=a))
        if len(axes) > _RANK:
            return f"its indices may be more than 2^31, which makes {len(axes)} dimensions, TMA has at most {_RANK}"
        return _Plan(at.base, axes, checks)

    def negative(self, p: Poly) -> list[Value] | None:
        if any(c < 0 for c in p.values()):
            return None
        found = [v for v in p.atoms if not self.facts[v].nonnegative]
        return found if all(may_check(self.fn, v, self.facts) for v in found) else None

    def on_host(self, p: Poly) -> bool:
        return all(v.op is self.fn.body and isinstance(v.type, DType) and v.type.is_int() for v in p.atoms)

    def rank_of(self, stride: Poly) -> tuple[int, int]:
        ((m, c),) = stride.items()
        return len(m), abs(c)

    def divides(self, p: Poly) -> int:
        out = 0
        for m, c in p.items():
            term = c
            for v in m:
                term *= self.facts[v].divisibility[0]
            out = gcd(out, term)
        return min(out & -out, ANY) if out else ANY

    # -- rows that no store writes --
    def left_out(self, v: Value, d: int, wrap: Wrap) -> bool:
        """Whether elements of v from index `wrap.size` on along d reach no memory and decide nothing."""
        seen: set[tuple[Value, int]] = set()
        work = [(v, d)]
        while work:
            key = work.pop()
            if key in seen:
                continue
            seen.add(key)
            for user, index in self.table.get(key[0], ()):
                after = self.follow(user, index, key[1], wrap)
                if after is None:
                    return False
                work += after
        return True

    def follow(self, op: Op, index: int, d: int, wrap: Wrap) -> list[tuple[Value, int]] | None:
        if (edge := edge_at(op, index)) is not None:
            return [(x, d) for x in (*edge[1].args, edge[1].result)]
        if op.name == "dot":
            plain = len(shape_of(op.result.type)) == 2
            if index == 2 or plain and index == d:  # rows of a, columns of b, and either of the sum so far
                return [(op.result, d)]
            return None
        if op.name == "store":
            return [] if index == 1 and len(op.operands) > 2 and self.masked(op.operands[2], d, wrap) else None
        if op.name in ("expand_dims", "trans", "broadcast"):
            at = d + (d >= op.attrs["axis"]) if op.name == "expand_dims" else \
                list(op.attrs["order"]).index(d) if op.name == "trans" else d
            same = shape_of(op.result.type)[at] == shape_of(op.operands[0].type)[d]
            return [(op.result, at)] if same else None
        plain = "elementwise" in op.define.traits and op.define.pure and "packs" not in op.define.traits \
            or "identity" in op.define.traits
        return [(op.result, d)] if plain and len(op.results) == 1 else None

    def masked(self, mask: Value, d: int, wrap: Wrap) -> bool:
        bounds = self.conjuncts(mask)
        return any(b.dim == d and b.below and b.size == wrap.size - wrap.start for b in bounds)

    def conjuncts(self, mask: Value) -> list[Bound]:
        whole = self.forms.bounds(mask)
        if whole is not None:
            return whole
        if isinstance(mask.op, Op) and mask.op.name == "and":
            return [b for x in mask.op.operands for b in self.conjuncts(x)]
        return []

    # -- rewriting --
    def rewrite(self, op: Op, plan: _Plan) -> None:
        block = op.block
        checked = {v: check(self.fn, v, op) for v in plan.checks}
        self.checked |= bool(checked)
        top = Block()
        b = Builder(top, loc=op.loc)
        sizes, strides = [], []
        for a in plan.axes:
            limits = [build(b, s) for s in a.sizes] or [b.const(_ENDLESS, int32)]
            size = limits[0]
            for other in limits[1:]:
                size = b("minimum", size, other)
            sizes.append(size)
            strides.append(build(b, a.stride, int64))
        elem = op.result.tile.elem if op.name == "load" else op.operands[1].tile.elem
        desc = b("make_desc", plan.base, *sizes, *strides, block_shape=tuple(a.box for a in plan.axes), padding="zero")
        desc.name = plan.base.name
        self._insert(self.fn.body, 0, top)
        here = Block()
        b = Builder(here, loc=op.loc)
        offsets = [_start(b, a, checked) for a in plan.axes]
        dims = [a.of for a in plan.axes if a.of is not None]
        shape = tuple(a.box for a in plan.axes if a.of is not None)
        turned = dims != sorted(dims)
        at = block.ops.index(op)
        if op.name == "load":
            extra: dict[str, Any] = {"shape": shape} if len(shape) < len(plan.axes) else {}
            evict = op.attrs.get("evict") or ""
            if evict in ("evict_first", "evict_last"):
                extra["evict"] = evict
            new = b("desc_load", desc, *offsets, **extra)
            if turned:
                new = b("trans", new, order=tuple(dims.index(d) for d in range(len(dims))))
            new.name = op.result.name
            assert new.type == op.result.type, (new.type, op.result.type, elem)
            self._insert(block, at, here)
            replace(self.fn.body, {op.result: new})
        else:
            value = op.operands[1]
            if turned:
                value = b("trans", value, order=tuple(dims))
            b.op("desc_store", desc, value, *offsets)
            self._insert(block, at, here)
        erase({op}, block)
        wraps = self.forms.address(op.operands[0]).offset.wraps  # type: ignore[union-attr]
        ways = "modulo a size: rows beyond it, which no store writes, are zeros" if wraps else ""
        _report(self.fn, op, "pointer_tma", "by TMA, through a descriptor made at the launch"
                + (f" ({ways})" if ways else "") + ("" if not plan.checks else
                f"; each program checks that {', '.join(v.name or 'a number' for v in plan.checks)} is not negative"))

    @staticmethod
    def _insert(block: Block, at: int, new: Block) -> None:
        for x in new.ops:
            x.parent = block
        block.ops[at:at] = new.ops


def _start(b: Builder, a: _Axis, checked: dict[Value, Value]) -> Value:
    whole = a if a.low is None else a.low
    if not whole.bits:
        return build(b, _with(a.start, checked))
    start = build(b, _with(whole.start, checked), int64)
    part = b("and", start, b.const((1 << a.bits) - 1, int64)) if a.bits else \
        b("shr", start, b.const(whole.bits, int64))
    return b("cast", part, dtype=int32)


def _fits(p: Poly) -> bool:
    """Whether an index that is not negative is surely below 2^31."""
    if len(p) != 1:
        return not p
    ((m, c),) = p.items()
    if len(m) != 1:
        return not m
    (v,) = m
    if c == 1:
        return elem_of(v.type).bits <= 32
    loop = v.op.parent if isinstance(v.op, Block) else None
    if loop is None or loop.name != "for" or v.index:
        return False
    end = loop.operands[1].op
    by = const_of(end.operands[1]) if isinstance(end, Op) and end.name == "idiv" else None
    return isinstance(by, int) and by >= c and elem_of(v.type).bits <= 32


def _is_wide(pointer: Value) -> bool:
    def wide(v: Value) -> bool:
        e = elem_of(v.type)
        if isinstance(e, Ptr):
            return edge_of(v) is not None
        sums = isinstance(v.op, Op) and (v.op.name == "shl" or v.op.name in ("add", "sub", "mul"))
        return sums and isinstance(e, DType) and e.bits == 64

    return any(map(wide, reached([pointer], unloaded)))


def _divides(stride: Poly, m: Monomial, c: int) -> bool:
    ((of, by),) = stride.items()
    rest = list(m)
    for v in of:
        if v not in rest:
            return False
        rest.remove(v)
    return bool(c % by == 0)


def _quotient(m: Monomial, c: int, stride: Poly) -> Poly:
    ((of, by),) = stride.items()
    rest = list(m)
    for v in of:
        rest.remove(v)
    return Poly({tuple(rest): c // by})


def _with(p: Poly, checked: dict[Value, Value]) -> Poly:
    out = Poly()
    for m, c in p.items():
        term = number(c)
        for v in m:
            term = term * Poly({(checked.get(v, v),): 1})
        out = out + term
    return out
