"""Tiles of very many elements a thread go through a loop, chunk by chunk, instead of through as many registers."""
from __future__ import annotations

from math import prod

from tilejit.ir import Block, Function, Op, Value, blocks, listed, reached, total_warps, uses
from tilejit.ir.core import replace
from tilejit.ir.dead import drop_dead
from tilejit.ir.ops.shape import exchanges
from tilejit.ir.target import target_of
from tilejit.ir.types import Ptr, Tile, elem_of, shape_of
from tilejit.passes.axis import AxisInfo, analyse
from tilejit.passes.gathers import pull
from tilejit.passes.parts import Group, in_lines
from tilejit.passes.products import MOST_SUMS, legal, needs, postponed
from tilejit.passes.sorts import through_memory
from tilejit.records import dataclass

#: Instructions that a block may take before its tiles go through a loop, and elements of a thread in a chunk: some
#: vectors in flight.
MOST, ELEMENTS = 20_000, 32
#: Sums of a thread in a chunk of products, and bytes of K in a chunk of one.
SUMS, DEEP = 128, 128
#: Registers of a thread that loaded (and carried) tiles may take, and of all threads (of 65536).
REGISTERS, SHARED = 200, 51_200
#: Registers of a thread for what a loop of chunks puts together.
KEPT = 16
#: Instructions for an element: of ops that are worth recomputing, of functions, and of accesses.
_CHEAP, _FUNCTION, _ACCESS = 1, 4, 2


def chunk(fn: Function) -> Function:
    if fn.attrs.get("num_ctas", 1) > 1:
        return legal(fn, postponed)
    threads, changed = 32 * total_warps(fn), False
    large = [op for op in listed(fn.body) if op.name == "gather" and (
        _bytes(op.operands[1]) > target_of(fn).shared_bytes
        or sum(_numbers(v, threads) for v in op.operands) > min(REGISTERS, SHARED // threads))]
    if any([pull(fn, op) for op in large]):
        drop_dead(fn)
    for block in list(blocks(fn.body)):
        if changed and block not in blocks(fn.body):  # what it was of is part of a loop of chunks
            continue
        cost = sum(_cost(op, threads) for op in block.ops)
        for op in _much(fn, block, threads):
            elements = ELEMENTS * threads if op.name == "histogram" else _depth(op) * max(
                prod(shape_of(v.type)) for v in op.operands[:2]) // shape_of(op.operands[0].type)[-1]
            group = Group(fn, block, [op], products=True)
            changed |= _through_loop(group, _cost(op, threads), group.problem(elements, (0,)))
        sums = _sums_much(block, threads)
        before = list(block.ops)
        sorts = [_Sort(op, *through_memory(fn, op, ELEMENTS * threads)) for op in _sorts_much(block, threads)]
        if cost <= MOST and not sums and not sorts and not _loads_much(fn, block, threads):
            continue
        elements = SUMS * 256 // max(threads, 256) * threads if sums else ELEMENTS * threads
        roots = _roots(fn, block)
        shapes = [shape_of(x.operands[1].type) for x in roots]
        dims = list(range(min(map(len, shapes), default=1)))
        if sums:  # the longest first: tensor cores take tiles of many rows
            dims.sort(key=lambda d: -min((shape[d] for shape in shapes), default=0))
        group = Group(fn, block, roots, products=sums)
        problem = group.problem(elements, dims)
        if any(s.whole and (problem or s.whole not in group.members) for s in sorts):
            block.ops = before
            replace(fn.body, {s.whole.result: s.op.result for s in sorts if s.whole})
            sorts = [_Sort(s.op, s.problem or problem or "what is stored does not come of it", None) for s in sorts]
            problem = group.problem(elements, dims)
        for s in sorts:
            s.say(fn, _cost(s.op, threads), ELEMENTS * threads)
        if problem and _keep_rows(fn, block, cost, threads):
            cost = sum(_cost(op, threads) for op in block.ops)
            if cost <= MOST and not _loads_much(fn, block, threads):
                continue
            problem = group.problem(elements, dims)
        if _through_loop(group, cost, problem):
            drop_dead(fn)
            changed = True
    if changed:
        drop_dead(fn)
    return legal(fn, postponed)


def _depth(dot: Op) -> int:
    """Elements of K in a chunk of a product: whole chunks are multiplied, or left out."""
    depth, used = DEEP * 8 // elem_of(dot.operands[0].type).bits, dot.attrs.get("begin", 0) | dot.attrs.get("depth", 0)
    return min(depth, dot.attrs.get("promote", depth), used & -used or depth)


def _through_loop(group: Group, cost: int, problem: str) -> bool:
    where, fn = group.roots[0].place if group.roots else group.block.ops[0].place, group.fn
    if problem and cost > MOST:
        fn.say("long_code", f"tiles at {where}: about {cost} instructions, as every element of a thread has its own: "
               f"{problem}", where, instructions=cost)
    if problem:
        return False
    group.loop()
    fn.say("chunks", f"tiles at {where}: about {cost} instructions if every element of a thread had its own; they go "
           f"through a loop of {group.count} chunks", where, instructions=cost, chunks=group.count)
    return True


def _roots(fn: Function, block: Block) -> list[Op]:
    table = uses(fn.body)
    found = [op for op in block.ops if "write" in op.define.effects and len(op.operands) > 1
             and isinstance(op.operands[1].type, Tile) and op.define.layout in ("access", "block")]
    return [op for op in found if not any(table.get(v) for v in op.results)]


def _much(fn: Function, block: Block, threads: int) -> list[Op]:
    room = target_of(fn).shared_bytes
    return [op for op in block.ops if op.name == "histogram" and _numbers(op.operands[0], threads) > REGISTERS
            or op.name in ("dot", "dot_fma") and needs(op) > room]


def _sorts_much(block: Block, threads: int) -> list[Op]:
    return [op for op in block.ops if op.name == "sort_runs" and op.attrs["falling"] is not None
            and shape_of(op.result.type) == (op.attrs["run"],) and (
                _cost(op, threads) > MOST or _numbers(op.result, threads) > min(REGISTERS, SHARED // threads))]


@dataclass
class _Sort:
    """A sort, why it is done in registers, or the op that stands for its result in memory."""

    op: Op
    problem: str
    whole: Op | None

    def say(self, fn: Function, cost: int, elements: int) -> None:
        how = self.problem or f"chunks of {elements} are sorted and merged in memory of the threads"
        fn.say("sort", f"sort at {self.op.place}: about {cost} instructions if every element of a thread had its own; "
               + how, self.op.place, instructions=cost)


def _keep_rows(fn: Function, block: Block, cost: int, threads: int) -> bool:
    """Put in loops what reductions along rows, the last ones first, make of tiles of many elements, if that is little.
    Whether there were any."""
    def many(v: Value) -> bool:
        return _numbers(v, threads) > min(REGISTERS, SHARED // threads)

    def makers(v: Value) -> list[Value]:
        return v.op.operands if isinstance(v.op, Op) and v.op.parent is block else []

    found = False
    for op in [op for op in reversed(block.ops) if op.name == "reduce" and op.attrs["axis"] > 0
               and max(_numbers(v, threads) for v in op.results) <= KEPT]:
        if op in block.ops and any(map(many, reached(op.operands, makers))):
            group = Group(fn, block, [op])
            problem = group.problem(ELEMENTS * threads, (0,))
            if not problem and _through_loop(group, cost, problem):
                found = drop_dead(fn) or True
    return found


def _sums_much(block: Block, threads: int) -> bool:
    most = MOST_SUMS * 256 // max(threads, 256)
    return any(_numbers(op.result, threads) > most for op in listed(block) if op.name == "dot")


def _multiplies(loop: Op) -> bool:
    return any(op.name == "dot" for op in listed(loop.regions[0]))


def _bytes(v: Value) -> int:
    return prod(shape_of(v.type)) * elem_of(v.type).bits // 8


def loaded(load: Op, threads: int, facts: dict[Value, AxisInfo]) -> int:
    """A thread's registers for a load."""
    t = load.result.tile
    bits, d = max(8, elem_of(t).bits if not isinstance(elem_of(t), Ptr) else 64), len(t.shape) - 1
    info = facts[load.operands[0]]
    packed = bits < 32 and info.contiguity[d] > 1 and info.multiple(d, info.contiguity[d], bits // 8) % 4 == 0 and all(
        facts[mask].constancy[d] > 1 for mask in load.operands[1:2])
    return t.numel // threads * max(1, bits // 32) // (32 // bits if packed else 1)


def loads_of(block: Block) -> list[Op]:
    return [op for op in block.ops if op.name == "load" and isinstance(op.result.type, Tile)]


def _loads_much(fn: Function, block: Block, threads: int) -> bool:
    loads, most = loads_of(block), min(REGISTERS, SHARED // threads)
    if any(sum(_numbers(v, threads) for v in op.operands) > most for op in block.ops
           if in_lines(op) or op.name == "join"):
        return True
    if any(_numbers(v, threads) > most for op in block.ops if op.name == "for" and not _multiplies(op)
           for v in op.results):
        return True
    room = target_of(fn).shared_bytes
    if any(_bytes(v) > room for op in block.ops
           if "tma" in op.define.traits for v in (op.results or op.operands[1:2])):
        return True
    if sum(prod(shape_of(op.result.type)) // threads * 2 for op in loads) <= most:
        return False
    facts = analyse(fn)
    return sum(loaded(op, threads, facts) for op in loads) > most


def _numbers(v: Value, threads: int) -> int:
    return prod(shape_of(v.type)) // threads * max(1, elem_of(v.type).bits // 32) if isinstance(v.type, Tile) else 0


def _cost(op: Op, threads: int) -> int:
    tiles = [v.type for v in (*op.results, *op.operands) if isinstance(v.type, Tile)]
    if op.name == "sort_runs":
        return 2 * len(exchanges(op)) * (tiles[0].numel // threads)
    if not tiles or "elementwise" not in op.define.traits or "registers" in op.define.traits:
        return 0
    each = _ACCESS if op.define.effects else _CHEAP if "cheap" in op.define.traits else _FUNCTION
    return each * (tiles[0].numel // threads)
