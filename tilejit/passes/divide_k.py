"""`cluster_split="K"`: the CTAs of a cluster divide K, so each has a part of every product until those are summed."""
from __future__ import annotations

from tilejit.errors import CompilationError
from tilejit.ir import Builder, Function, Op, Value, divides_k, edge_at, edge_of, enclosing, listed, uses
from tilejit.ir.report import Record


def divide_k(fn: Function) -> Function:
    """Raises CompilationError for a product that adds to something other than zeros or products."""
    if not divides_k(fn):
        return fn
    table = uses(fn.body)
    parts = _parts(fn, table)
    for v in parts:
        for start in _starts(v):
            if start not in parts and not _zero(start):
                raise CompilationError('cluster_split="K": a product adds to something other than zeros: add it to '
                                       "the sum", v.op.loc if isinstance(v.op, Op) else fn.loc)
    notes = fn.attrs.setdefault("report", [])
    for v in parts:
        ends = [(op, i) for op, i in table.get(v, ()) if not _continues(op, i, parts)]
        if not ends:
            continue
        home = v.home
        assert home is not None
        at = home.ops.index(v.op) + 1 if isinstance(v.op, Op) else 0
        loc = ends[0][0].loc
        total = Builder(home, at, loc).op("cluster_sum", v, ctas=fn.attrs["num_ctas"])
        total.result.name = v.name
        for op, i in ends:
            op.operands[i] = total.result
        inner = next((x for x in enclosing(total) if any(y.name == "dot" for y in x.regions[0].ops)), None)
        if inner is not None and any(y.name == "dot" for y in total.block.ops):
            where = inner.place
            notes.append(Record("summed_each_time", "products are summed over the CTAs in every iteration of the loop "
                                f"at {where}", where))
    return fn


def _parts(fn: Function, table: dict[Value, list[tuple[Op, int]]]) -> dict[Value, None]:
    found: dict[Value, None] = {}
    dots = [op for op in listed(fn.body) if op.name == "dot"]
    for op in dots:
        if "depth" in op.attrs:
            raise CompilationError(f"dot: depth={op.attrs['depth']} is of a whole block, and with cluster_split=\"K\" "
                                   "each CTA has a part of every block: leave one of them out", op.loc)
    work = [op.result for op in dots]
    while work:
        v = work.pop()
        if v in found:
            continue
        found[v] = None
        for op, i in table.get(v, ()):
            into = edge_at(op, i)
            if into is not None and op.name == "yield" and into[0].name == "for":
                work += [*into[1].args, into[1].result]
    return found


def _starts(v: Value) -> list[Value]:
    if isinstance(v.op, Op) and v.op.name == "dot":
        return [v.op.operands[2]]
    found = edge_of(v)
    assert found is not None
    return [*found[1].sources]


def _zero(v: Value) -> bool:
    op = v.op
    if isinstance(op, Op) and "spreads" in op.define.traits:
        return _zero(op.operands[0])
    return isinstance(op, Op) and op.name == "const" and op.attrs["value"] == 0


def _continues(op: Op, index: int, parts: dict[Value, None]) -> bool:
    if op.name == "dot":
        return index == 2
    into = edge_at(op, index)
    return into is not None and into[0].name == "for" and into[1].result in parts
