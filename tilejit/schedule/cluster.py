"""Programs of several CTAs (`num_ctas`): who holds what, and which loads are shared by multicast."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from tilejit.errors import ClusterError
from tilejit.ir import Function, Op, divides_k, listed
from tilejit.ir.scratch import scratch_bytes
from tilejit.ir.types import Tile, shape_of
from tilejit.layout.clusters import Cuts, cta_bases, cuts_of, divided, strip, strip_size
from tilejit.schedule.cluster_barrier import of_one_number
from tilejit.schedule.loads import shared_operand
from tilejit.schedule.rings import Ring


def divide(fn: Function, rings: Sequence[Ring]) -> None:
    """Write on every load what each CTA copies."""
    ctas = fn.attrs.get("num_ctas", 1)
    if ctas == 1:
        return
    by_k = divides_k(fn)
    cuts = cuts_of("M" if by_k else fn.attrs.get("cluster_split", "M"), ctas)
    ops = listed(fn.body)
    tiles = [ring for ring in rings if ring.kind != "row"]
    form = "the kernel is not specialised" if tiles and "producers" not in fn.attrs else ""
    if not form and not all(ring.views for ring in tiles):
        form = "blocks that are read into registers cannot be divided between CTAs"
    for problem, loc in chain([(form, fn.loc)], ((_op_problem(op, ctas, by_k, cuts), op.loc) for op in ops)):
        if problem:
            raise ClusterError(f"num_ctas={ctas}: {problem}", loc)
    for dot in [op for op in ops if op.name == "dot"]:
        for index in (0, 1):
            load, transposed = shared_operand(dot.operands[index])  # type: ignore[misc]
            for d, n, bit in cuts:  # their own K of both, rows of the first, columns of the second
                if by_k or d == index:
                    load.attrs["slice"] = ((int(transposed != ((index == 0) == by_k)), n, bit),)
                else:
                    load.attrs["multicast"] = n, bit
    for i, ring in enumerate(rings):
        for load in ring.loads if ring.kind == "row" else ():
            if (size := strip_size(load.result.layout, ctas)) is not None:  # None: a small row, all of it for each
                load.attrs.update(strip=size, ctas=ctas)
        shared = [load for load in ring.loads if "multicast" in load.attrs]
        if shared and ring.text not in [other.text for other in rings[:i] if other.text]:
            names = ", ".join(load.result.name for load in shared)
            fn.say("multicast", f"cluster of {ctas} CTAs: {names} by multicast", ring.name, ctas=ctas)
    if by_k:
        fn.say("divided_k", f"cluster of {ctas} CTAs, which divide K: each has a part of every sum", ctas=ctas)
    if any(map(of_one_number, ops)):
        fn.say("atomics", "atomics of one number: one CTA does them, and tells the others")


def _op_problem(op: Op, ctas: int, by_k: bool, cuts: Cuts) -> str:
    if op.name == "dot":
        if any(shared_operand(op.operands[i]) is None for i in (0, 1)):
            return "operands of products must be loaded through descriptors"
        if not by_k and divided(op.result.layout, ctas) != cuts:
            return (f"a product of {op.result.tile.shape[0]} rows does not divide: it takes 64 for every warpgroup of "
                    "every CTA")
        return ""
    if op.name == "desc_load" and (why := _merged_problem(op, ctas)):
        return why
    if scratch_bytes(op) == 0 or of_one_number(op):
        return ""
    tiles = [v.type for v in (*op.operands, *op.results) if isinstance(v.type, Tile)]
    bases = [cta_bases(t.layout, ctas) for t in tiles if t.layout is not None]
    if op.name == "convert" and (bases[0] == bases[1] or not any(map(any, bases[0]))):
        return ""  # each CTA has what it needs
    if op.name == "reduce" and len({bool(b[op.attrs["axis"]]) for b in bases[0]}) == 1:
        return ""  # along what CTAs divide, or each has what it folds
    return f"{op.name} would move elements between CTAs"


def _merged_problem(load: Op, ctas: int) -> str:
    """Why a block whose tile has merged dimensions cannot be divided along the first; empty if it can."""
    desc, shape = load.operands[0].desc, shape_of(load.result.type)
    if desc.ahead_of(len(shape)) is not None:
        return ""
    first = desc.block_shape[0]
    if strip(first, ctas) and strip(shape[0], ctas) == strip(first, ctas) * (shape[0] // first):
        return ""
    return (f"a block {list(desc.block_shape)} as {list(shape)} does not divide: of dimensions that are merged, the "
            f"first must be a multiple of {ctas} and the others powers of two")
