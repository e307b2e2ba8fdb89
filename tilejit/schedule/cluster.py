"""Programs of several CTAs (`num_ctas`): who holds which rows, and which loads are shared by multicast.

The CTAs of a cluster divide the rows of every product; layouts number their warps one CTA after another. A block that
is the first operand of a product is loaded in slices, each CTA its own rows. A block that is the second operand is
needed by all: each CTA loads a slice of it and multicasts that to all.
"""
from __future__ import annotations

from tilejit.errors import CompilationError
from tilejit.ir import Function, Op, walk
from tilejit.ir.types import Tile
from tilejit.layout.linear import LinearLayout
from tilejit.ptx.scratch import scratch_bytes
from tilejit.schedule.plan import Plan, shared_operand


def plan_cluster(fn: Function, plan: Plan) -> None:
    """Set `plan.ctas` and, of every load, the dimension whose slices belong to CTAs.

    Raises CompilationError for a kernel that cannot be divided so."""
    ctas = fn.attrs.get("num_ctas", 1)
    if ctas == 1:
        return
    problem = _form_problem(plan)
    for op in walk(fn.body) if not problem else ():
        problem = problem or _op_problem(op, ctas)
        if problem:
            raise CompilationError(f"num_ctas={ctas}: {problem}", op.loc)
    if problem:
        raise CompilationError(f"num_ctas={ctas}: {problem}", fn.loc)
    plan.ctas = ctas
    for op in walk(fn.body):
        if op.name == "dot":
            for index in (0, 1):
                found = shared_operand(op.operands[index])
                assert found is not None
                load, transposed = found
                ring = plan.ring_of(load)
                assert ring is not None
                ring.ctas = ctas
                rows = 1 if transposed else 0
                if index == 0:
                    ring.rows[load] = rows
    for ring in plan.rings:
        shared = [load.result.name for load in ring.loads if load not in ring.rows]
        if shared:
            plan.report.append(f"cluster of {ctas} CTAs: {', '.join(shared)} by multicast")


def _form_problem(plan: Plan) -> str:
    if not plan.specialised:
        return "the kernel is not specialised"
    if any(not ring.views for ring in plan.rings):
        return "blocks that are read into registers cannot be divided between CTAs"
    return ""


def _op_problem(op: Op, ctas: int) -> str:
    """Why an op cannot be divided between CTAs; empty if it can."""
    if op.name == "dot":
        t = op.result.type
        assert isinstance(t, Tile) and t.layout is not None
        if any(shared_operand(op.operands[i]) is None for i in (0, 1)):
            return "operands of products must be loaded through descriptors"
        if cta_bases(t.layout, ctas) != [(t.shape[0] // ctas << i, 0) for i in range(ctas.bit_length() - 1)]:
            return f"a product of {t.shape[0]} rows does not divide: it takes 64 for every warpgroup of every CTA"
        return ""
    if op.name in ("atomic_rmw", "atomic_cas") and not isinstance(op.result.type, Tile):
        return f"{op.name} of one number would happen once in every CTA"
    if scratch_bytes(op) == 0:
        return ""
    tiles = [v.type for v in (*op.operands, *op.results) if isinstance(v.type, Tile)]
    bases = [cta_bases(t.layout, ctas) for t in tiles if t.layout is not None]
    if op.name == "convert" and bases[0] == bases[1] and all(any(b) for b in bases[0]):
        return ""
    if op.name == "reduce" and all(any(b) and not b[op.attrs["axis"]] for b in bases[0]):
        return ""
    return f"{op.name} would move elements between CTAs"


def cta_bases(layout: LinearLayout, ctas: int) -> list[tuple[int, ...]]:
    """What the CTA's index in its cluster contributes to coordinates: the last warp bits."""
    bits = ctas.bit_length() - 1
    return list(layout.bases_of("warp")[-bits:])
