"""How many programs share a multiprocessor, and what that says about a kernel's form."""
from __future__ import annotations

from tilejit.ir import Function, listed
from tilejit.ir.registers import peak
from tilejit.ir.target import target_of
from tilejit.schedule.decide import decide
from tilejit.schedule.fit import fitted
from tilejit.schedule.registers import BESIDE, MOST
from tilejit.schedule.rings import rings_of
from tilejit.schedule.rotate import copy_function

#: Programs of a multiprocessor that hide latencies well enough, with or without one more.
ENOUGH = 2


def without_producer(fn: Function) -> Function:
    """A copy that is to be `inline` where that makes room for one more program; else the function itself."""
    loops = [op for op in fn.body.ops if op.name == "for" and any(x.name == "dot" for x in listed(op.regions[0]))]
    warps, target = fn.attrs["num_warps"], target_of(fn)
    nested = any("loop" in x.define.traits for loop in loops for x in listed(loop.regions[0]))
    said = "warp_specialize" in fn.attrs or any(loop.attrs.get("warp_specialize") is not None for loop in loops)
    if not loops or nested or said or not target.hopper:
        return fn
    registers = min(MOST, max(peak(loop.regions[0]) for loop in loops) + BESIDE["loop"])
    few, more = (target.programs(32 * threads, registers, 0) for threads in (warps + 1, warps))
    if few >= min(more, ENOUGH):
        return fn
    plan = decide(copy_function(fn))
    if "producers" not in plan.attrs or plan.attrs["registers"][-1] or any(r["open"] for r in rings_of(plan).values()):
        return fn
    inline = copy_function(fn)
    inline.attrs["inline"] = "more programs share a multiprocessor"
    shared = fitted(inline).new.attrs["shared_bytes"]
    more = target.programs(32 * warps, registers, shared)
    if few >= more:
        return fn
    inline.attrs["inline"] = (f"{more} programs share a multiprocessor without a producer warp, {few} with it "
                              f"(about {registers} registers a thread; warp_specialize=True gives loads a role)")
    return inline
