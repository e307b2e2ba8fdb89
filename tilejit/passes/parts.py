"""Parts of tiles: what one chunk of a dimension needs."""
from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import Union

from tilejit.ir import Block, Builder, Function, Op, Value, clone_block, listed, reached, uses, walk, whole
from tilejit.ir.ahead import argument_of, is_volatile, may_alias
from tilejit.ir.core import beside, clone_op, edge_of, edges, enclosing, replace
from tilejit.ir.types import Tile, Type, elem_of, int32, shape_of
from tilejit.passes.axis import analyse

View = tuple[int, int]
_UNIT = 1 << 32


class Group:
    """Roots of a block and all that they need (docs/modules.md)."""

    def __init__(self, fn: Function, block: Block, roots: Sequence[Op] = (), products: bool = False):
        self.fn, self.block, self.roots, self.products = fn, block, list(roots), products
        self.members: dict[Union[Op, Value], list[View]] = {}
        self.count, self.elements, self.carries = 1, 1, False
        self.down: bool | None = None  # whether chunks go from the last one to the first; None: no matter

    def problem(self, elements: int, dims: Sequence[int]) -> str:
        """Why they cannot go through a loop of so many elements a chunk, along any dimension, or ""; sets `count`."""
        first = "" if self.roots else "nothing is stored"
        for self.carries in (False, True):
            for d in dims if self.roots else ():
                found = self._problem(elements, d)
                if not found:
                    return ""
                first = first or found
        return first

    def _problem(self, elements: int, d: int) -> str:
        self.members, self.count, self.down, self.elements = {}, 1, None, elements
        for root in self.roots:
            if "tma" in root.define.traits and (root.name != "desc_store" or not _makes_block(root)):
                return f"{root.name} is of whole blocks"
            self.members[root] = [(d, 0)]
            for v, at in zip(root.operands, self.sources(root, d)):
                problem = "" if at is None else self.need(v, (at, 0))
                if problem:
                    return problem
        return self._conflict() or self._divide(d)

    def _conflict(self) -> str:
        table = uses(self.fn.body)
        values = [v for op in self.members if op not in self.roots
                  for v in (op.results if isinstance(op, Op) else [op])]
        entire = reached([v for v in values for user, i in table.get(v, ()) if not self._takes_part(user, i)],
                         lambda v: v.op.operands if isinstance(v.op, Op) else ())
        loops = {op for op in self.members if isinstance(op, Op) and op.name == "for"}
        if any(v in entire for loop in loops for v in loop.results):
            return "what a loop carries is needed whole"
        if any(isinstance(op, Op) and op.name == "stacked" and op.result in entire for op in self.members):
            return "what is sorted is needed whole"
        stores = [op for op in self.roots if op.define.effects]
        for load in [op for op in listed(self.block) if op.define.effects == {"read"}
                     and (op in self.members or loops.intersection(enclosing(op)))]:
            if load in self.members and load.parent is self.block and load.result in entire \
                    and prod(shape_of(load.result.type)) > self.elements:
                return f"{load.result.name or 'a loaded tile'} is needed whole"
            if any(may_alias(argument_of(load.operands[0]), x) and not self._in_place(load, x) for x in stores):
                return "a chunk may load what one before stores"
        if any(may_alias(argument_of(x.operands[0]), y) for i, x in enumerate(stores) for y in stores[:i]):
            return "two stores may be of the same memory"
        def stays(op: Op) -> bool:
            return op.define.pure or op.name == "load" and not is_volatile(op) and not any(
                may_alias(argument_of(op.operands[0]), x) for x in stores)

        inside = [i for i, op in enumerate(self.block.ops) if op in self.members and (
            op in self.roots or not op.define.pure)]
        for op in self.block.ops[inside[0]:inside[-1]] if inside else ():
            if op not in self.members and not all(stays(x) for x in whole(op)):
                return f"{op.name} comes between what they load and store"
        return ""

    def _divide(self, d: int) -> str:
        size, most = 0, 1
        for op, views in self.members.items():
            value = op if isinstance(op, Value) else (op.results or op.operands[1:])[0]
            tile = shape_of(value.type)
            if op in self.roots and op.results:  # what is added up
                views, tile = [(self.sources(op, d)[0] or 0, 0)], shape_of(op.operands[0].type)
            if tile:
                size, most = gcd(size, *[tile[at] for at, _ in views]), max(most, prod(tile))
            if isinstance(op, Op) and "tma" in op.define.traits and any(at == len(tile) - 1 for at, _ in views):
                size = gcd(size, max(1, tile[-1] * elem_of(value.type).bits // 128))  # 16 bytes a row of a block
        self.count = min(1 << max(0, most // self.elements - 1).bit_length(), size & -size)
        if any(isinstance(op, Op) and op.attrs.get("slots", self.count) != self.count for op in self.members):
            return "chunks that are sorted are of another size"
        return "" if self.count > 1 else f"their {'first' if d == 0 else 'other'} dimension is not long enough"

    def need(self, v: Value, view: View) -> str:
        work = [(v, view)]
        while work:
            v, view = work.pop()
            edge = edge_of(v)
            key = v if edge else v.op
            if not _divided(v, view[0]) or view in self.members.get(key, ()):  # type: ignore[arg-type]
                continue
            if edge:
                loop, way = edge
                if loop.name != "for" or not self._below(loop):
                    return f"{v.name or 'a tile'} comes from outside"
                self.members.setdefault(loop, [])
                for x in (way.args[0], way.result):
                    self.members.setdefault(x, []).append(view)
                work += [(x, view) for x in way.sources]
                if any(x.define.effects not in (set(), {"read"}, {"control"}) for x in listed(loop.regions[0])):
                    return "a loop has effects"
                continue
            problem = self._unable(v, view)
            if problem:
                return problem
            assert isinstance(v.op, Op)
            self.members.setdefault(v.op, []).append(view)
            turn = _turn(v.op, view)
            work += [(x, (at, turn)) for x, at in zip(v.op.operands, sources(v.op, view[0])) if at is not None]
        return ""

    def sources(self, op: Op, d: int) -> list[int | None]:
        if op.results and op in self.roots:
            n = len(shape_of(op.operands[0].type))
            return [n - 1, n - 2, None] if op.define.layout == "product" else [d] * len(op.operands)
        return sources(op, d)

    def _below(self, op: Op) -> bool:
        while op.parent is not self.block:
            if op.parent is None or op.parent.parent is None or op.parent.parent.name != "for":
                return False
            op = op.parent.parent
        return True

    def _unable(self, v: Value, view: View) -> str:
        op, name, d = v.op, v.name or "a tile", view[0]
        if not isinstance(op, Op) or not op.define.pure and not self._below(op):
            return f"{name} comes from outside"
        pure = op.define.pure and op.define.layout == "same"
        if op.define.effects == {"read"} and op.define.layout in ("access", "block") and not is_volatile(op):
            pure = op.name == "load" or op.name == "desc_load" and _makes_block(op)
        lines = (in_lines(op) or op.name == "gather") and op.attrs["axis"] != sources(op, d)[0]
        if op.name == "scan" and not lines and self.carries and op.parent is self.block:
            down = op.attrs["reverse"] != (view[1] != 0)
            lines = view[1] in (0, _UNIT - 1) and self.down in (None, down)
            self.down = down if lines else self.down
        product = op.name == "dot" and self.products and len(shape_of(v.type)) == 2
        if not (pure or lines or product or op.name in _SLICES or _alike(op)) \
                or op.name == "reshape" and sources(op, d) == [None] \
                or op.name == "join" and d == len(shape_of(v.type)) - 1:
            return f"{name} is made whole by {op.name}"
        return ""

    def _takes_part(self, op: Op, index: int) -> bool:
        """Whether an op in the loop takes parts of an operand, never all of it (but for a product's other matrix)."""
        loop = op.parent.parent if op.parent else None
        if op.name == "for" and op in self.members and index >= op.define.fixed:
            return op.results[index - op.define.fixed] in self.members
        if op.name == "yield" and loop in self.members:
            assert loop is not None
            return loop.results[index] in self.members
        for d, _ in self.members.get(op, ()):
            at = self.sources(op, d)[index]
            if at is not None and not _divided(op.operands[index], at):
                return False
        return op in self.members

    def _in_place(self, load: Op, store: Op) -> bool:
        """Whether a store writes where a load reads, each address once: no other chunk loads it."""
        at = load.operands[0]
        shape = shape_of(at.type)
        return at is store.operands[0] and len(shape) == 1 and analyse(self.fn)[at].contiguity[0] >= shape[0] \
            and self.members[load] == [(0, 0)]

    def loop(self) -> None:
        scans = [(op, view) for op, views in self.members.items() if isinstance(op, Op) and op.name == "scan"
                 for view in views if op.attrs["axis"] == view[0]]
        adds = [op for op in self.roots if op.define.pure]
        carried = [[_without(v.type, op.attrs["axis"]) for v in op.operands] for op, _ in scans]
        carried += [[v.type for v in op.results] for op in adds]
        region = Block([int32, *(t for types in carried for t in types)])
        inner, args = Builder(region), iter(region.args[1:])
        which = region.args[0]
        which.name = "chunk"
        first = inner("cmp", which, inner.const(0, int32), pred="eq")
        if self.down:
            which = inner("sub", inner.const(self.count - 1, int32), which)
        writer = _Writer(self, which, first, inner)
        keys = [*scans, *((op, self.members[op][0]) for op in adds)]
        writer.before = {key: [next(args) for _ in types] for key, types in zip(keys, carried)}
        self.parts(which, inner, writer)
        inner.op("yield", *(v for key in keys for v in writer.after[key]))
        b = beside(self.roots[-1])
        inits = [b.const(0, v.type) for v in region.args[1:]]
        begin, end = 0, self.count
        if adds and adds[0].define.layout == "product":
            inits, attrs = [adds[0].operands[2]], adds[0].attrs
            each = shape_of(adds[0].operands[0].type)[-1] // self.count
            begin = attrs.get("begin", 0) // each
            end = begin + attrs["depth"] // each if "depth" in attrs else end
        loop = b.op("for", *(b.const(x, int32) for x in (begin, end, 1)), *inits, regions=[region])
        gone = set(self.roots)
        self.block.ops = [op for op in self.block.ops if op not in gone]
        last = [v for op in adds for v in op.results]
        replace(self.fn.body, dict(zip(last, loop.results[len(inits) - len(last):])))

    def parts(self, which: Value, inner: Builder, writer: _Writer | None = None) -> dict[tuple[Value, View], Value]:
        writer = writer or _Writer(self, which, which, inner)
        for op in walk(self.fn.body):
            if op in self.members and not any(x in self.members for x in enclosing(op)):
                writer.write(op, inner, {})
        return writer.made


class _Writer:
    def __init__(self, group: Group, which: Value, first: Value, builder: Builder):
        self.group, self.which, self.first, self.head = group, which, first, builder
        self.made: dict[tuple[Value, View], Value] = {}
        self.before: dict[tuple[Op, View], list[Value]] = {}  # what scans, and what adds up, have come to
        self.after: dict[tuple[Op, View], list[Value]] = {}
        self.turned: dict[int, Value] = {0: which}

    def write(self, op: Op, b: Builder, copies: dict[Value, Value]) -> None:
        b.loc = op.loc
        if op.name == "for":
            self.loop(op, b, copies)
            return
        for view in self.group.members[op]:
            operands = [v if at is None else self.made.get((v, (at, _turn(op, view))), v)
                        for v, at in zip(op.operands, self.group.sources(op, view[0]))]
            results = self.part(op, [copies.get(v, v) for v in operands], view, b)
            for old, new in zip(op.results, results):
                new.name = old.name
                self.made[old, view] = new

    def loop(self, op: Op, b: Builder, copies: dict[Value, Value]) -> None:
        members, body = self.group.members, op.regions[0]
        more = [(way, view) for way in edges(op) for view in members.get(way.result, ())]
        starts = [op.operands[op.define.fixed + way.index] for way, _ in more]
        inits = [self.made.get((v, view), copies.get(v, v)) for v, (_, view) in zip(starts, more)]
        region = Block([*(x.type for x in body.args), *(v.type for v in inits)],
                       [x.name for x in (*body.args, *(way.args[0] for way, _ in more))])
        inside = {**copies, **dict(zip(body.args, region.args))}
        for (way, view), arg in zip(more, region.args[len(body.args):]):
            self.made[way.args[0], view] = arg
        inner = Builder(region)
        for x in body.ops[:-1]:
            inner.insert(clone_op(x, inside))
            if x in members:
                self.write(x, inner, inside)
        ends = [self.made.get((way.ends[0], view), inside.get(way.ends[0], way.ends[0])) for way, view in more]
        inner.op("yield", *(inside.get(v, v) for v in body.terminator.operands), *ends)
        new = b.op("for", *(copies.get(v, v) for v in op.operands), *inits, regions=[region], **op.attrs)
        copies.update(zip(op.results, new.results))
        for (way, view), result in zip(more, new.results[len(op.results):]):
            result.name = way.result.name
            self.made[way.result, view] = result

    def part(self, op: Op, operands: list[Value], view: View, b: Builder) -> list[Value]:
        d, turn = view
        slice_ = _SLICES.get(op.name)
        if "tma" in op.define.traits:
            return self.block_of(op, operands, view, b)
        if slice_ is not None:
            return [slice_(op, operands, self, d, turn, b)]
        before = self.before.get((op, view))
        attrs = op.attrs
        if before and op.define.layout == "product":
            operands, attrs = [*operands[:2], *before], {k: v for k, v in attrs.items() if k not in ("begin", "depth")}
        results = list(b.op(op.name, *operands, regions=[clone_block(r, {}) for r in op.regions], **attrs).results)
        if before and op.name == "scan":
            return self.continued(op, view, results, b)
        if before and op.name == "reduce":
            self.after[op, view] = [self.placed(x, part, b) for x, part in zip(before, results)]
        elif before:
            self.after[op, view] = results if op.define.layout == "product" else [b("add", *before, *results)]
        return results

    def placed(self, whole: Value, part: Value, b: Builder) -> Value:
        """A tile, whose rows of this chunk are those of a part."""
        shape, count = shape_of(whole.type), self.group.count
        chunked = (count, shape[0] // count, *shape[1:])
        at = b("arange", start=0, end=count)
        mine = b("cmp", at, b("splat", self.which, shape=(count,)), pred="eq")
        for d in range(1, len(chunked)):
            mine = b("expand_dims", mine, axis=d)
        mine, part = (b("reshape", b("broadcast", x, shape=chunked), shape=shape)
                      for x in (mine, b("expand_dims", part, axis=0)))
        return b("select", mine, part, whole)

    def block_of(self, op: Op, operands: list[Value], view: View, b: Builder) -> list[Value]:
        made, d = operands[0].op, view[0]
        assert isinstance(made, Op)
        block = tuple(made.attrs["block_shape"])
        block = (*block[:d], block[d] // self.group.count, *block[d + 1:])
        desc = beside(made, behind=True)("make_desc", *made.operands, **{**made.attrs, "block_shape": block})
        desc.name = operands[0].name
        at = len(operands) - len(block) + d
        move = b("mul", self.chunk(view[1]), b.const(block[d], int32))
        offset = b("add", operands[at], move)
        return list(b.op(op.name, desc, *operands[1:at], offset, *operands[at + 1:], **op.attrs).results)

    def chunk(self, turn: int) -> Value:
        bits = turn * self.group.count // _UNIT
        if bits not in self.turned:
            self.turned[bits] = self.head("xor", self.which, self.head.const(bits, int32))
        return self.turned[bits]

    def continued(self, op: Op, view: View, results: list[Value], b: Builder) -> list[Value]:
        fold, axis, before = op.regions[0], op.attrs["axis"], self.before[op, view]
        shape = shape_of(results[0].type)
        spread = [b("broadcast", b("expand_dims", x, axis=axis), shape=shape) if isinstance(x.type, Tile)
                  else b("splat", x, shape=shape) for x in before]
        now = [b("select", b("splat", self.first, shape=shape), x, y)
               for x, y in zip(results, _folded(fold, [*spread, *results], b))]
        self.after[op, view] = _last(now, axis, op.attrs["reverse"], b)
        return now


def in_lines(op: Op) -> bool:
    return "collective" in op.define.traits and op.define.layout == "follows" and "axis" in op.attrs


def sources(op: Op, d: int) -> list[int | None]:
    """The dimension of each operand that is dimension d of the results (None: all of the operand)."""
    n = len(op.operands)
    if op.name == "trans":
        return [int(op.attrs["order"][d])]
    if op.name == "expand_dims":
        return [d - (d > op.attrs["axis"])]
    if op.define.layout == "product":
        return [None if d else 0, 1 if d else None, d]
    if op.name == "stacked":
        return [None]
    if op.name == "reshape":  # the dimension that as many elements lie before
        shape, before = shape_of(op.operands[0].type), prod(shape_of(op.result.type)[:d])
        return [next((e for e, size in enumerate(shape) if size > 1 and prod(shape[:e]) == before), None)]
    if op.name in ("desc_load", "desc_store"):
        return [d if op.name == "desc_store" and i == 1 else None for i in range(n)]
    return [d + (op.name == "reduce" and d >= op.attrs["axis"])] * n


def _turn(op: Op, view: View) -> int:
    if op.name != "xor_shuffle" or op.attrs["axis"] != view[0]:
        return view[1]
    return view[1] ^ op.attrs["mask"] * _UNIT // shape_of(op.result.type)[view[0]]


def _divided(v: Value, d: int) -> bool:
    """Whether a value has a part for every chunk: numbers, and tiles of one element along d, are the same for all."""
    return isinstance(v.type, Tile) and v.type.shape[d] > 1


def _makes_block(op: Op) -> bool:
    made, shape = op.operands[0].op, shape_of((op.results or op.operands[1:])[0].type)
    return isinstance(made, Op) and made.name == "make_desc" and not any(enclosing(made)) \
        and tuple(made.attrs["block_shape"]) == shape


def _without(t: Type, axis: int) -> Type:
    shape = shape_of(t)[:axis] + shape_of(t)[axis + 1:]
    return Tile(shape, elem_of(t)) if shape else elem_of(t)


def _folded(fold: Block, values: list[Value], b: Builder) -> list[Value]:
    types = tuple(elem_of(v.type) for v in values[:len(values) // 2])
    return list(b.op("map", *values, regions=[clone_block(fold, {})], pack=1, dtypes=types).results)


def _last(values: list[Value], axis: int, first: bool, b: Builder) -> list[Value]:
    """The last elements along a dimension, or the first."""
    shape = shape_of(values[0].type)
    index = b("arange", start=0, end=shape[axis])
    for d in range(len(shape)):
        index = b("expand_dims", index, axis=d) if d != axis else index
    types = [*(elem_of(v.type) for v in values), int32]
    n, region = len(types), Block([*types, *types])
    inner, args = Builder(region), region.args
    later = inner("cmp", args[n - 1], args[-1], pred="gt" if first else "lt")
    inner.op("yield", *(inner("select", later, args[n + i], args[i]) for i in range(n)))
    index = b("broadcast", index, shape=shape)
    return list(b.op("reduce", *values, index, regions=[region], axis=axis).results[:-1])


# -- ops that are not elementwise: (op, operands, writer, dimension, turn, builder) -> the part --
def _arange(op: Op, operands: list[Value], w: _Writer, d: int, turn: int, b: Builder) -> Value:
    n = prod(shape_of(op.result.type)) // w.group.count
    part = b("arange", start=op.attrs["start"], end=op.attrs["start"] + n)
    return b("add", part, b("splat", b("mul", w.chunk(turn), b.const(n, int32)), shape=(n,)))


def _const(op: Op, operands: list[Value], w: _Writer, d: int, turn: int, b: Builder) -> Value:
    return b("const", value=op.attrs["value"], type=Tile(_part(op, w, d), elem_of(op.result.type)))


def _shaped(op: Op, operands: list[Value], w: _Writer, d: int, turn: int, b: Builder) -> Value:
    return b(op.name, *operands, shape=_part(op, w, d))


def _part(op: Op, w: _Writer, d: int) -> tuple[int, ...]:
    shape = shape_of(op.result.type)
    return (*shape[:d], shape[d] // w.group.count, *shape[d + 1:])


def _kept(op: Op, operands: list[Value], w: _Writer, d: int, turn: int, b: Builder) -> Value:
    return b("kept", op.operands[0], w.chunk(turn))


def _alike(op: Op) -> bool:
    return "shape" in op.define.traits and "collective" not in op.define.traits


def _shuffled(op: Op, operands: list[Value], w: _Writer, d: int, turn: int, b: Builder) -> Value:
    mask = op.attrs["mask"] % _part(op, w, d)[d] if op.attrs["axis"] == d else op.attrs["mask"]
    return b("xor_shuffle", *operands, axis=op.attrs["axis"], mask=mask) if mask else operands[0]


_SLICES = {"arange": _arange, "const": _const, "splat": _shaped, "broadcast": _shaped, "reshape": _shaped,
           "xor_shuffle": _shuffled, "stacked": _kept}
