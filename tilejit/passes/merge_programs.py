"""Small programs are merged: a CTA does what several neighbouring ones would do, each in a row of its tiles."""
from __future__ import annotations

from math import prod

from tilejit.errors import CompilationError
from tilejit.ir import Builder, Function, Op, Value, read, whole
from tilejit.ir.ahead import is_volatile
from tilejit.ir.types import Tile, elem_of, int32, shape_of

#: Bytes that merged programs read (or write) together, elements of their greatest tile, and programs, at most: less
#: than 4 KB are bound by how fast CTAs start. Warps at least.
BYTES, ELEMENTS, MOST, WARPS = 4096, 2048, 128, 4


def merge_programs(fn: Function) -> Function:
    """Merge `programs_per_cta` programs, or say how many could be."""
    asked = fn.attrs.get("programs_per_cta")
    if asked == 1:
        return fn
    varies = varying(fn)
    why = _obstacle(fn, varies)
    if asked is None:
        count = 1 if why else _room(fn, varies)
        if count > 1:
            fn.attrs["mergeable"] = count
        elif not why:
            fn.attrs["straight"] = True
        return fn
    if why:
        raise CompilationError(f"programs_per_cta={asked}: {why}", fn.loc)
    _Merged(fn, varies, asked).write()
    fn.attrs["straight"] = True
    fn.attrs["programs"], fn.attrs["num_warps"] = asked, max(fn.attrs["num_warps"], WARPS)
    fn.say("merged", f"{asked} programs are one CTA of {fn.attrs['num_warps']} warps", programs=asked)
    return fn


def _room(fn: Function, varies: set[Value]) -> int:
    moved = {"load": 0, "store": 0}
    for op in fn.body.ops:
        if op.name in moved and op.operands[0] in varies:
            v = (op.results or op.operands[1:])[0]
            moved[op.name] += prod(shape_of(v.type)) * max(8, elem_of(v.type).bits) // 8
    size = max(prod(shape_of(v.type)) for v in varies)
    count = min(MOST, BYTES // max(1, *moved.values()), ELEMENTS // size)
    return 1 << count.bit_length() >> 1


def varying(fn: Function) -> set[Value]:
    found: set[Value] = set()
    for op in fn.body.ops:
        if _is_index(op) or not found.isdisjoint(read(op)):
            found.update(op.results)
    return found


def _is_index(op: Op) -> bool:
    return op.name == "program_id" and op.attrs["axis"] == 0


def _obstacle(fn: Function, varies: set[Value]) -> str:
    if fn.attrs.get("num_ctas", 1) > 1 or fn.attrs.get("launch_cooperative_grid"):
        return "the CTAs of a program, or all programs of a grid, wait for one another"
    if not varies:
        return "programs do not ask for their number"
    for op in fn.body.ops:
        why = _alone(op, varies) if any(v in varies for v in (*op.operands, *op.results)) else _once(op)
        if why:
            return f"{why}{f' ({op.loc.short()})' if op.loc else ''}"
    return ""


def _once(op: Op) -> str:
    effects = frozenset().union(*(x.define.effects for x in whole(op)))
    return "" if effects <= {"read", "control"} else f"{op.name} is done by each program"


def _alone(op: Op, varies: set[Value]) -> str:
    if any(s & (s - 1) for v in (*op.operands, *op.results) for s in shape_of(v.type)):
        return "sizes are no powers of two"
    if op.name in ("load", "store"):
        return "a volatile load is one of each program" if is_volatile(op) else \
            "" if op.operands[0] in varies else f"all programs {op.name} at one address"
    if not op.define.pure or "packs" in op.define.traits or op.name == "checked":
        return f"{op.name} is done by each program"
    if op.regions and (op.define.regions != "fold" or any(v in varies for x in whole(op)[1:] for v in x.operands)):
        return f"{op.name} depends on the program"
    known = {"elementwise", "shape", "collective"} & op.define.traits or _is_index(op)
    return "" if known else f"{op.name} has no form for several programs"


class _Merged:
    def __init__(self, fn: Function, varies: set[Value], programs: int):
        self.fn, self.varies, self.programs = fn, varies, programs
        self.old = fn.body.ops
        fn.body.ops = []
        self.b = Builder(fn.body)
        self.many: dict[Value, Value] = {}  # a value -> its tile of all programs
        self.made: dict[tuple[Value, tuple[int, ...]], Value] = {}
        self.live: Value | None = None  # which programs the grid has

    def write(self) -> None:
        for op in self.old:
            self.b.loc = op.loc
            if not any(v in self.varies for v in (*op.operands, *op.results)):
                self.b.insert(op)
                continue
            results = self._index() if _is_index(op) else self._written(op)
            for old, new in zip(op.results, results):
                new.name = old.name
                self.many[old] = new

    def _index(self) -> list[Value]:
        b, count = self.b, (self.programs,)
        first = b("mul", b("program_id", axis=0), b.const(self.programs, int32))
        index = b("add", b("splat", first, shape=count), b("arange", start=0, end=self.programs))
        if self.live is None:
            total = b("splat", b("num_programs", axis=0), shape=count)
            self.live = b("cmp", index, total, pred="lt")
        return [index]

    def _written(self, op: Op) -> list[Value]:
        attrs, traits = dict(op.attrs), op.define.traits
        if "elementwise" in traits:
            shape = shape_of((op.results or op.operands)[0].type)
            operands = [self._lifted(v, shape) for v in op.operands]
            if op.name in ("load", "store"):
                operands = self._masked(op, operands, shape)
            attrs.update({k: [1, *_listed(attrs[k], len(shape))] for k in ("divisible", "contiguous", "constant")
                          if shape and k in attrs})
        elif op.name == "splat":
            return [self._lifted(op.operands[0], op.attrs["shape"])]
        else:
            operands = [self._lifted(v, shape_of(v.type)) for v in op.operands]
            if "axis" in attrs:
                attrs["axis"] += 1
            if "shape" in attrs:
                attrs["shape"] = (self.programs, *attrs["shape"])
            if "order" in attrs:
                attrs["order"] = (0, *(i + 1 for i in attrs["order"]))
        return self.b.insert(Op(op.name, operands, attrs, op.regions or None, None, op.loc)).results

    def _masked(self, op: Op, operands: list[Value], shape: tuple[int, ...]) -> list[Value]:
        at = 1 if op.name == "load" else 2
        assert self.live is not None
        live = self._spread(self.live, shape)
        mask = self.b("and", live, operands[at]) if len(operands) > at else live
        return [*operands[:at], mask, *operands[at + 1:]]

    def _lifted(self, v: Value, shape: tuple[int, ...]) -> Value:
        """A value of each program as a tile of the programs by `shape`; a scalar is in every element."""
        shape = tuple(shape)
        if (v, shape) not in self.made:
            whole = (self.programs, *shape)
            if v in self.many:
                new = self._spread(self.many[v], shape)
            elif isinstance(v.type, Tile):
                new = self.b("broadcast", self.b("expand_dims", v, axis=0), shape=whole)
            else:
                new = self.b("splat", v, shape=whole)
            self.made[v, shape] = new
        return self.made[v, shape]

    def _spread(self, v: Value, shape: tuple[int, ...]) -> Value:
        t = v.type
        assert isinstance(t, Tile) and elem_of(t)
        if len(t.shape) == 1 and shape:
            for axis in range(1, len(shape) + 1):
                v = self.b("expand_dims", v, axis=axis)
            v = self.b("broadcast", v, shape=(self.programs, *shape))
        return v


def _listed(promise: int | list[int], rank: int) -> list[int]:
    values = [promise] if isinstance(promise, int) else [*promise]
    return values * rank if len(values) == 1 else values
