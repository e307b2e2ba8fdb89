"""How the consumers work: chains of products that stay in flight, and ping-pong groups."""
from __future__ import annotations

from tilejit.errors import CompilationError
from tilejit.ir import Block, Builder, Function, Op, Value, edge_of, enclosing, listed
from tilejit.ir.report import Record
from tilejit.ir.scratch import scratch_bytes
from tilejit.schedule.cluster_barrier import of_one_number
from tilejit.schedule.pieces import from_registers
from tilejit.schedule.ping_pong import tickets
from tilejit.schedule.plan import Plan, kind_of, place, reads_slot
from tilejit.schedule.registers import accumulators, register_split, room


def find_chains(fn: Function, plan: Plan, table: dict[Value, list[tuple[Op, int]]]) -> None:
    """Loops all of whose products only pass their accumulators on: one round of wgmma groups stays in flight.

    A first operand in registers is made in pieces, and then its product must be the only one of the loop: while one
    piece is computed, the product of the piece before, of the last iteration's for the first one, is in flight."""
    for loop in listed(fn.body):
        if loop.name != "for" or "pipelined" in loop.attrs:
            continue
        body = loop.regions[0]
        found: dict[Op, int] = {}
        dots = [op for op in listed(body) if op.name == "dot"]
        for dot in dots:
            acc = edge_of(dot.operands[2])
            if dot.parent is not body or acc is None or acc[0] is not loop or table.get(dot.operands[2]) != [(dot, 2)]:
                break
            index = acc[1].index
            if table.get(dot.result) != [(body.terminator, index)]:
                break
            if "unit" in dot.attrs or reads_slot(dot, 1) is None:
                break
            if reads_slot(dot, 0) is None and dot not in plan.pieces:
                break
            if dot in plan.pieces and len(dots) > 1:
                break
            found[dot] = index
        # A slot released one iteration late needs a second slot, or the producer and the consumer wait
        # for each other.
        if not dots or len(found) < len(dots) or any(r.slots < 2 for r in plan.rings if r.loop is loop and r.views):
            if any(dot.parent is body and from_registers(dot) for dot in dots):
                plan.report.append(Record("drained", f"loop at {place(loop)}: every iteration waits for its products, "
                                          "which take first operands from registers", place(loop)))
            continue
        plan.chains[loop] = found


def check_warpgroups(fn: Function, plan: Plan) -> None:
    """Raise CompilationError where three warpgroups cannot run a kernel: layouts have bits for four, so no op may count
    on what the fourth would hold."""
    warps = fn.attrs["num_warps"]
    if warps % 3:
        return
    if not plan.specialised or plan.threads_produce:
        raise CompilationError(f"num_warps={warps}: three warpgroups multiply what a producer warp loads by TMA, and "
                               "this kernel has no such loop: use 8 or 16", fn.loc)
    for op in listed(fn.body):
        if scratch_bytes(op) and op.name != "convert" and not of_one_number(op):
            raise CompilationError(f"{op.name}: warps fold in pairs, which num_warps={warps} does not make: use 8 or "
                                   "16", op.loc)


def choose_ping_pong(fn: Function, plan: Plan, asked: int | None) -> None:
    """Two groups of consumers that take the iterations of a persistent loop by turns (ping-pong): the stores of
    one tile happen behind the products of the next (CUTLASS calls the scheme so).

    By default where num_warps is 4 and a group's accumulators leave room; `num_consumer_groups` says otherwise.
    Raises CompilationError where it was asked for and cannot be."""
    if asked == 1 or asked is None and (fn.attrs["num_warps"] != 4 or not plan.specialised):
        return
    loop, problem = _dealt_loop(fn, plan)
    if not problem and asked is None and accumulators(fn) > room(register_split(fn, 8).computing, "tile"):
        problem = "the accumulators of a whole tile do not fit one warpgroup's registers"
    if loop is not None and not problem:
        plan.ping_pong, plan.groups = loop, asked or 2
    elif asked is not None:
        raise CompilationError(f"num_consumer_groups={asked}: {problem}", fn.loc)
    else:
        plan.report.append(Record("no_ping_pong", f"no ping-pong: {problem}"))


def _dealt_loop(fn: Function, plan: Plan) -> tuple[Op | None, str]:
    """The loop whose iterations may be dealt to groups, the outermost of those, or why there is none."""
    if not plan.specialised:
        return None, "the kernel is not specialised"
    if fn.attrs["num_warps"] != 4:
        return None, f"a group is one warpgroup, num_warps=4; found {fn.attrs['num_warps']}"
    block, problem = fn.body, ""
    while True:
        loops = [op for op in block.ops if any(kind_of(x) or x.name == "dot" for r in op.regions for x in listed(r))]
        if len(loops) != 1 or loops[0].name != "for":
            return None, problem or "all products must be in one loop over tiles"
        loop = loops[0]
        if any(op is not loop and op is not block.terminator and op.define.effects - {"read"} for op in block.ops):
            return None, problem or "something is stored outside of the loop over tiles"
        within = _deal_problem(loop, plan)
        if not within:
            return loop, ""
        block, problem = loop.regions[0], problem or within


def _deal_problem(loop: Op, plan: Plan) -> str:
    """Why a loop's iterations may not be dealt to groups; empty if they may."""
    if len(loop.operands) > 3:
        return f"the loop at {loop.loc.short() if loop.loc else '?'} carries values from tile to tile"
    body = loop.regions[0]
    for ring in plan.rings:
        if ring.local and ring.loop is loop:
            return "consumers copy a load that is directly in the loop over tiles"
        if any(loop not in enclosing(load) for load in ring.loads):
            return "a load is not in the loop over tiles"
        if not ring.local and tickets(body, ring.loads[-1:], Builder(Block())) is None:
            return f"how often it loads {ring.name} is not known before an iteration"
    return ""

