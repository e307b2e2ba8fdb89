"""Tiles of very many elements a thread go through a loop, chunk by chunk, instead of through as many registers.

What is loaded, computed element by element or line by line (folds, scans, sorts along another dimension) and stored
again need not be in registers all at once. Where writing it out for every register would take more than `MOST`
instructions (and the assembler minutes), or what is loaded or folded more than `REGISTERS`, the stores of a block and
all that they need become a loop over the first dimension of what is stored, or if that cannot be, over another one:

    %i = arange {start=0, end=65536}            for %c = 0, 32, 1 {(%c: int32)
    %v = load ptr_add(%x, %i)             ->      %i = add arange {start=0, end=2048}, splat(%c * 2048)
    store ptr_add(%y, %i), exp(%v)                store ptr_add(%y, %i), exp(load ptr_add(%x, %i))
                                                }

Each value is divided along the dimension that its users' is made of (a transposed tile along the other one). Not where
anything else needs the tiles (a reduction of all), or a chunk might load what one before has stored; the report says
what is unrolled and why.
"""
from __future__ import annotations

from math import gcd, prod

from tilejit.ir import Block, Builder, Function, Op, Value, blocks, clone_block, reached, total_warps, uses, walk, whole
from tilejit.ir.ahead import argument_of, is_volatile, may_alias
from tilejit.ir.dead import drop_dead
from tilejit.ir.ops.shape import exchanges
from tilejit.ir.types import Ptr, Tile, elem_of, int32, shape_of
from tilejit.passes.axis import AxisInfo, analyse

#: Instructions that a block may take before its tiles go through a loop, and elements of a thread in a chunk: some
#: vectors in flight.
MOST, ELEMENTS = 20_000, 32
#: Registers of a thread that loaded (and carried) tiles may take, and of all threads (of 65536).
REGISTERS, SHARED = 200, 51_200
#: Instructions for an element: of ops that are worth recomputing, of functions, and of accesses.
_CHEAP, _FUNCTION, _ACCESS = 1, 4, 2


def chunk(fn: Function) -> Function:
    """Put the loops in, in place; returns the function."""
    if fn.attrs.get("num_ctas", 1) > 1:
        return fn
    threads, changed = 32 * total_warps(fn), False
    for block in list(blocks(fn.body)):
        cost = sum(_cost(op, threads) for op in block.ops)
        if cost <= MOST and not _loads_much(fn, block, threads):
            continue
        group = Group(fn, block)
        problem = group.problem(ELEMENTS * threads)
        where = next((op.loc.short() for op in block.ops if _cost(op, threads) and op.loc), "?")
        if problem and cost > MOST:
            fn.say("long_code", f"tiles at {where}: about {cost} instructions, as every element of a thread has its "
                   f"own: {problem}", where, instructions=cost)
        if problem:
            continue
        group.loop()
        changed = True
        fn.say("chunks", f"tiles at {where}: about {cost} instructions if every element of a thread had its own; they "
               f"go through a loop of {group.count} chunks", where, instructions=cost, chunks=group.count)
    if changed:
        drop_dead(fn)
    return fn


def loaded(load: Op, threads: int, facts: dict[Value, AxisInfo]) -> int:
    """Registers of a thread for what a load gives: elements of less than 32 bits take one each unless pairs of them,
    and of their masks, are known to lie side by side."""
    t = load.result.tile
    bits, d = max(8, elem_of(t).bits if not isinstance(elem_of(t), Ptr) else 64), len(t.shape) - 1
    info = facts[load.operands[0]]
    packed = bits < 32 and info.contiguity[d] > 1 and info.multiple(d, info.contiguity[d], bits // 8) % 4 == 0 and all(
        facts[mask].constancy[d] > 1 for mask in load.operands[1:2])
    return t.numel // threads * max(1, bits // 32) // (32 // bits if packed else 1)


def loads_of(block: Block) -> list[Op]:
    """A block's own loads of tiles."""
    return [op for op in block.ops if op.name == "load" and isinstance(op.result.type, Tile)]


def _loads_much(fn: Function, block: Block, threads: int) -> bool:
    """Whether what a block loads, or what is folded or sorted there, takes more registers than a thread has."""
    loads, most = loads_of(block), min(REGISTERS, SHARED // threads)
    if any(sum(_numbers(v, threads) for v in op.operands) > most for op in block.ops if _in_lines(op)):
        return True
    if sum(prod(shape_of(op.result.type)) // threads * 2 for op in loads) <= most:
        return False
    facts = analyse(fn)
    return sum(loaded(op, threads, facts) for op in loads) > most


def _numbers(v: Value, threads: int) -> int:
    """Registers of a thread for a tile whose elements are computed with."""
    return prod(shape_of(v.type)) // threads * max(1, elem_of(v.type).bits // 32) if isinstance(v.type, Tile) else 0


def _in_lines(op: Op) -> bool:
    """Whether an op does the same with every line along its axis: a fold, a scan, a sort."""
    return "collective" in op.define.traits and op.define.layout == "follows" and "axis" in op.attrs


def _cost(op: Op, threads: int) -> int:
    """Instructions of a thread for one op on tiles, about."""
    tiles = [v.type for v in (*op.results, *op.operands) if isinstance(v.type, Tile)]
    if op.name == "sort_runs":
        return 2 * len(exchanges(op)) * (tiles[0].numel // threads)
    if not tiles or "elementwise" not in op.define.traits or "registers" in op.define.traits:
        return 0
    each = _ACCESS if op.define.effects else _CHEAP if "cheap" in op.define.traits else _FUNCTION
    return each * (tiles[0].numel // threads)


class Group:
    """The stores of a block and all that they need: each op with the dimensions along which chunks divide its result
    (of a store: the tile that it stores)."""

    def __init__(self, fn: Function, block: Block):
        self.fn, self.block = fn, block
        self.stores = [op for op in block.ops if op.define.layout == "access" and "write" in op.define.effects
                       and isinstance(op.operands[0].type, Tile) and not op.results]
        self.members: dict[Op, list[int]] = {}
        self.count = 1

    def problem(self, elements: int) -> str:
        """Why they cannot go through a loop of so many elements a chunk, along any dimension; empty if they can, and
        `count` is set."""
        if not self.stores:
            return "nothing is stored"
        first = ""
        for d in range(min(len(shape_of(x.operands[0].type)) for x in self.stores)):
            found = self._problem(elements, d)
            if not found:
                return ""
            first = first or found
        return first

    def _problem(self, elements: int, d: int) -> str:
        self.members, self.count = {}, 1
        for store in self.stores:
            self.members[store] = [d]
            for v in store.operands:
                problem = self.need(v, d)
                if problem:
                    return problem
        table = uses(self.fn.body)
        entire = reached([v for op in self.members for v in op.results
                          if any(not self._takes_part(user, i) for user, i in table.get(v, ()))],
                         lambda v: v.op.operands if isinstance(v.op, Op) else ())
        for load in [op for op in self.members if op.define.effects == {"read"}]:
            if load.result in entire:
                return f"{load.result.name or 'a loaded tile'} is needed whole"
            if any(may_alias(argument_of(load.operands[0]), x) and not self._in_place(load, x) for x in self.stores):
                return "a chunk may load what one before stores"
        if any(may_alias(argument_of(x.operands[0]), y) for i, x in enumerate(self.stores) for y in self.stores[:i]):
            return "two stores may be of the same memory"
        effects = [i for i, op in enumerate(self.block.ops) if op in self.members and op.define.effects]
        for op in self.block.ops[effects[0]:effects[-1]]:
            if op not in self.members and any(not x.define.pure for x in whole(op)):
                return f"{op.name} comes between what they load and store"
        size = 0
        for op, at in self.members.items():
            size = gcd(size, *(shape_of((op.results or op.operands)[0].type)[i] for i in at))
        chunks = max(prod(shape_of(x.operands[0].type)) // elements for x in self.stores)
        self.count = min(1 << max(0, chunks - 1).bit_length(), size & -size)
        return "" if self.count > 1 else f"their {'first' if d == 0 else 'other'} dimension is not long enough"

    def need(self, v: Value, d: int) -> str:
        """Take in what makes a tile, divided along dimension d; what is wrong with it, or empty."""
        work = [(v, d)]
        while work:
            v, d = work.pop()
            if not _divided(v, d) or isinstance(v.op, Op) and d in self.members.get(v.op, ()):
                continue
            problem = self._unable(v, d)
            if problem:
                return problem
            self.members.setdefault(v.maker, []).append(d)
            work += [(x, _source(v.maker, d)) for x in reversed(v.maker.operands)]
        return ""

    def _unable(self, v: Value, d: int) -> str:
        """Why the part of a tile for one chunk cannot be computed from the parts of what makes it, or empty."""
        op, name = v.op, v.name or "a tile"
        if not isinstance(op, Op) or op.parent is not self.block and not op.define.pure:
            return f"{name} comes from outside"
        if op in self.members and op.define.effects:
            return f"{name} is needed along two dimensions"
        loaded = op.define.layout == "access" and op.define.effects == {"read"} and not is_volatile(op)
        pure = op.define.pure and op.define.layout == "same"
        lines = _in_lines(op) and op.attrs["axis"] != _source(op, d)
        if not (loaded or pure or lines or op.name in (*_SLICES, "expand_dims", "trans")) or op.name == "reshape" and d:
            return f"{name} is made whole by {op.name}"
        return ""

    def _takes_part(self, op: Op, index: int) -> bool:
        """Whether an op in the loop takes parts of an operand, never all of it."""
        return op in self.members and all(_divided(op.operands[index], _source(op, d)) for d in self.members[op])

    def _in_place(self, load: Op, store: Op) -> bool:
        """Whether a store writes where a load reads, each address once: what a chunk stores no other one loads."""
        at = load.operands[0]
        shape = shape_of(at.type)
        return at is store.operands[0] and len(shape) == 1 and analyse(self.fn)[at].contiguity[0] >= shape[0]

    def loop(self) -> None:
        """Write the loop where the last store is; the stores before go."""
        at = self.block.ops.index(self.stores[-1])
        b = Builder(self.block, at, self.stores[-1].loc)
        region = Block([int32], ["chunk"])
        inner = Builder(region)
        self.parts(region.args[0], inner)
        inner.op("yield")
        b.op("for", b.const(0, int32), b.const(self.count, int32), b.const(1, int32), regions=[region])
        gone = set(self.stores)
        self.block.ops = [op for op in self.block.ops if op not in gone]

    def parts(self, which: Value, inner: Builder) -> dict[tuple[Value, int], Value]:
        """Write what they need for one chunk; the parts of values, by the dimension that is divided."""
        parts: dict[tuple[Value, int], Value] = {}
        for op, d in [(x, i) for x in walk(self.fn.body) for i in self.members.get(x, ())]:
            at, inner.loc = _source(op, d), op.loc
            operands = [parts[v, at] if _divided(v, at) else v for v in op.operands]
            if op.name in _SLICES:
                results = [_SLICES[op.name](op, operands, self.count, which, inner, d)]
            else:
                regions = [clone_block(region, {}) for region in op.regions]
                results = inner.op(op.name, *operands, regions=regions, **op.attrs).results
            for old, new in zip(op.results, results):
                new.name = old.name
                parts[old, d] = new
        return parts


def _divided(v: Value, d: int) -> bool:
    """Whether a value has a part for every chunk: numbers, and tiles of one element along d, are the same for all."""
    return isinstance(v.type, Tile) and v.type.shape[d] > 1


def _source(op: Op, d: int) -> int:
    """The dimension of an op's operands that is dimension d of its results."""
    if op.name == "trans":
        return int(op.attrs["order"][d])
    if op.name == "expand_dims":
        return d - (d > op.attrs["axis"])
    return d + (op.name == "reduce" and d >= op.attrs["axis"])


# -- ops that are not elementwise: (op, operands, chunks, which, builder, dimension) -> the part ----------------------
def _arange(op: Op, operands: list[Value], count: int, which: Value, b: Builder, d: int) -> Value:
    n = prod(op.result.tile.shape) // count
    part = b("arange", start=op.attrs["start"], end=op.attrs["start"] + n)
    return b("add", part, b("splat", b("mul", which, b.const(n, int32)), shape=(n,)))


def _const(op: Op, operands: list[Value], count: int, which: Value, b: Builder, d: int) -> Value:
    t = op.result.tile
    return b("const", value=op.attrs["value"], type=Tile(_part(t, count, d), t.elem))


def _shaped(op: Op, operands: list[Value], count: int, which: Value, b: Builder, d: int) -> Value:
    t = op.result.tile
    return b(op.name, *operands, shape=_part(t, count, d))


def _part(t: Tile, count: int, d: int) -> tuple[int, ...]:
    return (*t.shape[:d], t.shape[d] // count, *t.shape[d + 1:])


_SLICES = {"arange": _arange, "const": _const, "splat": _shaped, "broadcast": _shaped, "reshape": _shaped}
