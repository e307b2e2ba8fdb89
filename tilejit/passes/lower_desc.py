"""Descriptors that TMA cannot serve become pointer tiles."""
from __future__ import annotations

from collections.abc import Mapping
from math import gcd, prod
from typing import Any

from tilejit.errors import CompilationError
from tilejit.ir.core import Block, Builder, Function, Op, Value, beside, listed, replace, walk
from tilejit.ir.target import target_of
from tilejit.ir.types import Desc, Tile, elem_of, int32, int64, shape_of
from tilejit.passes.axis import AxisInfo, analyse
from tilejit.passes.rules import const_of
from tilejit.passes.written_desc import UNIT, Writing, units
from tilejit.records import dataclass

#: From here on nothing bounds a dimension (`pointer_tma`).
ENDLESS = 2 ** 31 - 1


@dataclass
class _Parts:
    """Base pointer, sizes (int32 or int64), int64 strides, padding."""

    base: Value
    shape: list[Value]
    strides: list[Value]
    padding: str


def lower_desc(fn: Function) -> Function:
    pass_ = _Lowering(fn)
    for op in listed(fn.body):  # all before the first rewrite: the facts are those of the whole function
        if op.name == "make_desc":
            pass_.reason(op.result)
    pass_.block(fn.body)
    replace(fn.body, pass_.mapping)
    return fn


def why_pointers(desc: Value, fn: Function, facts: Mapping[Value, AxisInfo]) -> str | None:
    """Why a descriptor cannot be a tensor map made on the host, or None; `facts`: of those that may be anywhere."""
    t = desc.desc
    if not t.tma:
        return "TMA is turned off for it"
    if t.block_shape[-1] * t.elem.bytes < 16:
        return f"its innermost block is {t.block_shape[-1] * t.elem.bytes} bytes, TMA needs 16"
    n = t.block_shape[-1]
    if n > 256 and n & (n - 1) and prod(t.block_shape) == n and (n & -n) * t.elem.bytes % 128:
        return f"a block of {n} elements does not divide into boxes of at most 256 that are multiples of 128 bytes"
    for op in walk(fn.body):
        if desc in op.operands[:1] and op.name.startswith("desc_") and (why := _misplaced(op, t)) is not None:
            return why
    if not isinstance(desc.op, Op):
        return None
    if fn.attrs.get("refused"):
        return "TMA does not take the arguments of a launch"
    why = unknown_to_host(desc.op, fn) or against_a_rule(desc.op, t, fn)
    return why or (_unknown(desc, fn, facts) if desc.op.attrs.get("anywhere") else None)


def unknown_to_host(made: Op, fn: Function) -> str | None:
    base, *dims = made.operands
    if base not in fn.body.args:
        return "its base is not a kernel argument but computed in the kernel"
    blocker = next((b for v in dims if (b := _not_on_host(v, fn)) is not None), None)
    return blocker and f"its sizes or strides depend on {blocker}, which the host does not know"


def against_a_rule(made: Op, t: Desc, fn: Function) -> str | None:
    base, *dims = made.operands
    *outer, inner = dims[len(t.block_shape):]
    if const_of(inner) != 1:
        return f"its innermost stride is {const_of(inner) or 'not known to be 1'}"
    for v in outer:
        s = const_of(v)
        if s is not None and s * t.elem.bytes % 16:
            return f"a stride of {s} elements is {s * t.elem.bytes} bytes, TMA needs a multiple of 16"
        only = _divisible(v, fn)
        if only is not None and only * t.elem.bytes % 16:
            return f"its stride {v.name} is a multiple of {only} elements only, TMA needs 16 bytes"
    only = _divisible(base, fn)
    if only is not None and only % 16:
        return f"its base {base.name} is aligned to {only} bytes only, TMA needs 16"
    return None


def _unknown(desc: Value, fn: Function, facts: Mapping[Value, AxisInfo]) -> str | None:
    t, made = desc.type, desc.op
    assert isinstance(t, Desc) and isinstance(made, Op)
    base, rank = made.operands[0], len(t.block_shape)
    if facts[base].every(t.elem.bytes) % 16:
        return f"its base {base.name} is not known to be aligned to 16 bytes"
    for v in made.operands[1 + rank:-1]:
        if facts[v].every() * t.elem.bytes % 16:
            return f"its stride {v.name or '(unnamed)'} is not known to be a multiple of 16 bytes"
    for op in walk(fn.body):
        if desc not in op.operands[:1] or "tma" not in op.define.traits:
            continue
        offsets = op.operands[-rank:]
        if facts[offsets[-1]].every() * t.elem.bytes % 16:
            return "a block is not known to start at a multiple of 16 bytes of its rows"
        if op.name != "desc_load" and not all(facts[v].nonnegative for v in offsets):
            return "a block is written that is not known to start inside the tensor"
    return None


def _misplaced(op: Op, t: Desc) -> str | None:
    offsets = [const_of(v) for v in op.operands[-len(t.block_shape):]]
    inner = offsets[-1]
    if "query" in op.define.traits:
        return None
    if inner is not None and inner * t.elem.bytes % 16:
        return f"a block starts at byte {inner * t.elem.bytes} of its rows, TMA needs a multiple of 16"
    if op.name != "desc_load" and any(v is not None and v < 0 for v in offsets):
        return "a block is written that starts before the tensor"
    return None


def _divisible(v: Value, fn: Function) -> int | None:
    while isinstance(v.op, Op) and v.op.name == "cast":
        v = v.op.operands[0]
    return fn.arg_attrs[v.index].get("divisible") if v.op is fn.body else None


def _not_on_host(v: Value, fn: Function) -> str | None:
    if not isinstance(v.op, Op):
        return None if v in fn.body.args else "a value carried by a loop"
    if v.op.name == "const":
        return None
    if "query" in v.op.define.traits and v.op.define.host:
        return None if v.op.operands[0] in fn.body.args else v.op.name
    if not v.op.define.host:
        return v.op.name
    return next((b for x in v.op.operands if (b := _not_on_host(x, fn)) is not None), None)


class _Lowering:
    def __init__(self, fn: Function):
        self.fn = fn
        anywhere = any(op.name == "make_desc" and op.attrs.get("anywhere") for op in listed(fn.body))
        self.facts: Mapping[Value, AxisInfo] = analyse(fn) if anywhere else {}
        self.writing = Writing(fn)
        self.mapping: dict[Value, Value] = {}
        self.reasons: dict[Value, str | None] = {}
        self.cut: dict[Value, tuple[Value, Value]] = {}

    def block(self, block: Block) -> None:
        for op in list(block.ops):
            for region in op.regions:
                self.block(region)
            if not op.define.traits & {"tma", "query"}:
                continue
            desc = op.operands[0]
            b = beside(op)
            if "query" in op.define.traits:
                if isinstance(desc.op, Op):
                    self.swap(op, block, self.query(b, op, desc.op))
            elif self.reason(desc) is None:
                if "write" in op.define.effects and self.ragged(desc):
                    self.split(b, op)
            else:
                parts = self.parts(b, desc)
                if self.reason(desc) == "":
                    self.without_tma(b, op, parts)
                elif op.name == "desc_load":
                    self.swap(op, block, self.load(b, op, parts))
                else:
                    self.write(b, op, parts)
                    block.ops.remove(op)

    def swap(self, op: Op, block: Block, new: Value) -> None:
        new.name = new.name or op.result.name
        self.mapping[op.result] = new
        block.ops.remove(op)

    def reason(self, desc: Value) -> str | None:
        """Why this descriptor goes through pointers; decided, and reported, once. Empty: the chip has no TMA."""
        if desc not in self.reasons:
            if isinstance(desc.op, Block) and desc.op is not self.fn.body or \
                    isinstance(desc.op, Op) and desc.op.name != "make_desc":
                loc = desc.op.loc if isinstance(desc.op, Op) else None
                raise CompilationError(f"descriptor {desc.name} is chosen while the kernel runs: "
                                       "make it before the loop or branch that uses it", loc)
            why = why_pointers(desc, self.fn, self.facts)
            if why is not None and isinstance(desc.op, Op) and why == unknown_to_host(desc.op, self.fn):
                why = self.written(desc, desc.op, why)
            if why is None and not target_of(self.fn).hopper:
                why = ""
            self.reasons[desc] = why
            if why:
                self.report(desc, "pointers", f"goes through pointers, not TMA: {why}")
        return self.reasons[desc]

    def written(self, desc: Value, made: Op, why: str) -> str | None:
        t = desc.desc
        other = None if target_of(self.fn).hopper else "the chip has no TMA"
        other = other or against_a_rule(made, t, self.fn) or self.writing.why_not(desc, made)
        if other is None and made.attrs.get("anywhere"):
            other = _unknown(desc, self.fn, self.writing.known)
        if other is not None:
            return f"{why}, and {other}"
        self.mapping[desc], checked = self.writing.descriptor(made, t)
        stops = f"; it stops where {' or '.join(sorted(checked))} does not fit TMA" if checked else ""
        self.report(desc, "written_desc", f"is written by the program, as {why}{stops}")
        return None

    def report(self, desc: Value, kind: str, what: str) -> None:
        at = f" ({desc.op.loc.short()})" if isinstance(desc.op, Op) and desc.op.loc else ""
        self.fn.say(kind, f"descriptor {desc.name or '(unnamed)'}{at} {what}", desc.name or "")

    def ragged(self, desc: Value) -> bool:
        t = desc.desc
        if not isinstance(desc.op, Op):
            return bool(self.fn.arg_attrs[desc.index].get("ragged"))
        inner = desc.op.operands[len(t.block_shape)]
        end = const_of(inner)
        return (end is None or end < ENDLESS) and _multiple(inner, self.fn) * t.elem.bytes % UNIT != 0

    def whole_units(self, desc: Value) -> tuple[Value, Value]:
        """The descriptor of whole units of a descriptor's rows, and their elements a row; made once, where the
        descriptor is.
        """
        if desc not in self.cut:
            t, made = desc.type, desc.op
            assert isinstance(t, Desc)
            rank = len(t.block_shape)
            block = made.parent if isinstance(made, Op) else self.fn.body
            assert block is not None
            b = Builder(block, block.ops.index(made) + 1 if isinstance(made, Op) else 0, self.fn.loc)
            if isinstance(made, Op):
                base, *dims = made.operands
            else:
                base = b("desc_base", desc)
                dims = [b("desc_shape", desc, dim=i) for i in range(rank)]
                dims += [b("desc_stride", desc, dim=i) for i in range(rank)]
            whole = units(b, dims[rank - 1], t)
            if isinstance(made, Op) and desc in self.mapping:
                new = self.writing.of_units(made, t)
            else:
                dims[rank - 1] = whole
                new = b("make_desc", base, *dims, block_shape=t.block_shape, padding="zero")
            self.reasons[new] = None
            new.name, whole.name = desc.name, f"{desc.name or 'desc'}_units"
            self.cut[desc] = new, whole
        return self.cut[desc]

    def split(self, b: Builder, op: Op) -> None:
        """A write of whole units by TMA, and of the rest through pointers; all through pointers where no launch has a
        whole unit (`refused`).
        """
        desc, block = op.operands[0], op.parent
        assert isinstance(desc.type, Desc) and block is not None
        if self.fn.attrs.get("refused"):
            self.write(b, op, self.parts(b, desc))
            block.ops.remove(op)
            return
        op.operands[0], whole = self.whole_units(desc)
        b = Builder(block, block.ops.index(op) + 1, op.loc)
        last, size = op.operands[-1], desc.type.block_shape[-1]
        end = whole if whole.type == last.type else b("cast", whole, dtype=int64)
        start = last if last.type == end.type else b("cast", last, dtype=int64)
        reaches = b("cmp", b("add", start, b.const(size, start.type)), end, pred="gt")

        def rest(inner: Builder) -> tuple[Value, ...]:
            self.write(inner, op, self.parts(inner, desc), whole)
            return ()

        b.branch(reaches, rest)
        if op.loc and (line := f"{op.name} at {op.loc.short()}: rows that end within 16 bytes end through pointers") \
                not in self.fn.attrs.setdefault("report", []):
            self.fn.say("ragged_rows", line, op.loc.short())

    def query(self, b: Builder, op: Op, made: Op) -> Value:
        if op.name == "desc_base":
            return made.operands[0]
        rank = (len(made.operands) - 1) // 2
        v = made.operands[1 + op.attrs["dim"] + (rank if op.name == "desc_stride" else 0)]
        want = op.result.type
        return v if v.type == want else b("cast", v, dtype=want)

    def parts(self, b: Builder, desc: Value) -> _Parts:
        t = desc.desc
        rank = len(t.block_shape)
        if isinstance(desc.op, Op):
            base, *dims = desc.op.operands
            padding = desc.op.attrs["padding"] or "zero"
        else:
            base = b("desc_base", desc)
            dims = [b("desc_shape", desc, dim=i) for i in range(rank)]
            # The host takes tensors whose last stride is 1.
            dims += [*(b("desc_stride", desc, dim=i) for i in range(rank - 1)), b.const(1, int64)]
            padding = self.fn.arg_attrs[self.fn.body.args.index(desc)].get("padding", "zero")
        shape = [v if v.type == int32 else _int64(b, v) for v in dims[:rank]]
        return _Parts(base, shape, [_int64(b, v) for v in dims[rank:]], padding)

    def pointers(self, b: Builder, parts: _Parts, block: tuple[int, ...], offsets: list[Value],
                 first: Value | None = None) -> tuple[Value, Value]:
        """The block's pointer tile and in-bounds mask; `first`: of columns from that one on."""
        corner, tile, mask = parts.base, None, None
        for axis, size in enumerate(block):
            off, lane, limit = offsets[axis], b("arange", start=0, end=size), parts.shape[axis]
            if limit.type == int64 or off.type == int64:
                off, lane, limit = _int64(b, off), b("cast", lane, dtype=int64), _int64(b, limit)
            index = b("add", b("splat", off, shape=(size,)), lane)
            least = b.const(0, index.type)
            if first is not None and axis == len(block) - 1:
                first = _int64(b, first) if elem_of(index.type) == int64 else first
                least = b("splat", first, shape=(size,))
            lower = b("cmp", index, least, pred="ge")
            upper = b("cmp", index, b("splat", limit, shape=(size,)), pred="lt")
            inside = _spread(b, b("and", lower, upper), axis, block)
            mask = inside if mask is None else b("and", mask, inside)
            off, stride = _int64(b, off), parts.strides[axis]
            lane = lane if elem_of(lane.type) == int64 else b("cast", lane, dtype=int64)
            if const_of(stride) != 1:
                off = b("mul", off, stride)
                lane = b("mul", lane, b("splat", stride, shape=(size,)))
            corner = b("ptr_add", corner, off)
            lane = _spread(b, lane, axis, block)
            tile = lane if tile is None else b("add", tile, lane)
        assert tile is not None and mask is not None
        return b("ptr_add", b("splat", corner, shape=block), tile), mask

    def load(self, b: Builder, op: Op, parts: _Parts) -> Value:
        t = op.operands[0].desc
        ptr, mask = self.pointers(b, parts, t.block_shape, op.operands[1:])
        fill: float = 0 if t.elem.is_int() else 0.0
        if parts.padding == "nan":
            fill = float("nan")
        block = b("load", ptr, mask, b.const(fill, Tile(t.block_shape, t.held)))
        block = block if t.elem is t.held else b.tf32(block)
        return block if block.type == op.result.type else b("reshape", block, shape=op.attrs["shape"])

    def without_tma(self, b: Builder, op: Op, parts: _Parts) -> None:
        block, t = op.parent, op.operands[0].type
        assert block is not None and isinstance(t, Desc)
        dims = [*parts.shape, *parts.strides]
        if op.name == "desc_load" and parts.padding == "zero" and t.elem is t.held:
            self.swap(op, block, b("block_load", parts.base, *dims, *op.operands[1:], block=t.block_shape,
                                   shape=shape_of(op.result.type)))
        elif op.name == "desc_load":
            self.swap(op, block, self.load(b, op, parts))
        else:
            if op.name == "desc_store":
                b.op("block_store", parts.base, op.operands[1], *dims, *op.operands[2:], block=t.block_shape)
            else:
                self.write(b, op, parts)
            block.ops.remove(op)

    def write(self, b: Builder, op: Op, parts: _Parts, first: Value | None = None) -> None:
        """A store, or atomics whose old values nobody reads; `first`: of columns from that one on."""
        t, value = op.operands[0].type, op.operands[1]
        assert isinstance(t, Desc)
        if shape_of(value.type) != t.block_shape:
            value = b("reshape", value, shape=t.block_shape)
        ptr, mask = self.pointers(b, parts, t.block_shape, op.operands[2:], first)
        seldom: dict[str, Any] = {} if first is None else {"seldom": True}
        if op.name == "desc_store":
            b.op("store", ptr, value, mask, **seldom)
        else:
            b.op("atomic_rmw", ptr, value, mask, kind=op.attrs["kind"], sem="relaxed", scope="gpu", **seldom)


def _multiple(v: Value, fn: Function) -> int:
    c = const_of(v)
    if c is not None:
        return int(c)
    if not isinstance(v.op, Op):
        return _divisible(v, fn) or 1
    if v.op.name == "cast":
        return _multiple(v.op.operands[0], fn)
    if "query" in v.op.define.traits:
        return 1
    parts = [_multiple(x, fn) for x in v.op.operands]
    if v.op.name == "mul":
        return parts[0] * parts[1]
    return gcd(*parts) if v.op.define.host not in ("", "div") else 1


def _int64(b: Builder, v: Value) -> Value:
    if v.type == int64:
        return v
    c = const_of(v)
    return b("cast", v, dtype=int64) if c is None else b.const(c, int64)


def _spread(b: Builder, v: Value, axis: int, block: tuple[int, ...]) -> Value:
    if len(block) == 1:
        return v
    for d in range(len(block)):
        if d != axis:
            v = b("expand_dims", v, axis=d)
    return b("broadcast", v, shape=block)
