"""Products that stay in flight round a loop, which carries them as `pending`."""
from __future__ import annotations

from tilejit.ir import Block, Builder, Op, Value, edges, inside, replace
from tilejit.ir.types import Pending
from tilejit.schedule.buffers import renewed
from tilejit.schedule.context import Context


def stays_in_flight(loop: Op, c: Context) -> list[int]:
    """Which of the values that a loop carries are products in flight; none if nothing is carried so."""
    if loop in c.chains:
        return list(c.chains[loop].values())
    found: list[int] = []
    for e in edges(loop) if loop.attrs.get("pairs") else ():
        uses = [(loop, loop.define.fixed + e.index), (loop.regions[0].terminator, e.index)]
        if all(isinstance(v.op, Op) and v.op.name == "dot" and "unit" not in v.op.attrs and c.uses[v] == [use]
               for v, use in zip(e.sources, uses)):
            found.append(e.index)
            c.flying.update({v.op: None for v in e.sources[:1] if isinstance(v.op, Op)})
    return found


def hold(loop: Op, carried: list[int], b: Builder, c: Context) -> list[Value]:
    """Have a loop carry products in flight, before its body is written; the results that it had."""
    old, body = renewed(loop), loop.regions[0]
    c.renamed.update(zip(old, loop.results))
    for index in sorted(carried):
        at, arg = loop.define.fixed + index, body.args[1 + index]
        start, end = loop.operands[at], body.terminator.operands[index].op
        loop.results[index].type = Pending(arg.tile)
        if loop in c.chains:
            loop.operands[at] = b("pend", start)
            loop.operands[at].name = start.name
            arg.type = loop.results[index].type
            continue
        assert isinstance(start.op, Op) and isinstance(end, Op)
        loop.operands[at] = c.issued[start.op]
        body.args[1 + index] = c.flying[end] = Value(Pending(arg.tile), body, 1 + index, arg.name)
        if arg in c.uses:
            c.renamed[arg] = _wait_in(body, body.args[1 + index], loop)
    return old


def wait_behind(loop: Op, carried: list[int], old: list[Value], b: Builder, c: Context) -> None:
    """Wait for a loop's products behind it, where its results are used, which were the `old` ones."""
    if loop in c.chains:
        sums = b.op("dot_wait", *(loop.results[index] for index in carried)).results
        for index, tile in zip(carried, sums):
            tile.name = old[index].name
            c.renamed[old[index]] = tile
        return
    for index in carried:
        users = [use for use, _ in c.uses.get(old[index], ())]
        regions = dict.fromkeys(r for use in users for op in [inside(loop.block, use)] if op is not None
                                for r in op.regions if inside(r, use))
        for block in regions:
            replace(block, {old[index]: _wait_in(block, loop.results[index], loop)})
        if any(use.parent is loop.parent for use in users):
            c.renamed[old[index]] = b("dot_wait", loop.results[index])


def _wait_in(block: Block, product: Value, loop: Op) -> Value:
    """A wait for a product at a block's beginning; it sinks to where the sums are needed."""
    (tile,) = Builder(block, 0, loop.loc).op("dot_wait", product).results
    tile.name = product.name
    return tile
