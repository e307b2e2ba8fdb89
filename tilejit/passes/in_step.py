"""Programs of a walk that are ahead of the others wait for them, but never for long."""
from __future__ import annotations

from tilejit.ir import Builder, Function, beside, listed
from tilejit.ir.types import int32

#: Steps that a program may be ahead of the average of all when it begins to wait; looks at them, at most, and
#: nanoseconds ahead of each: of loops as they are written, and of walks that hold rows in registers, which are short of
#: those (ptxas takes more for a pause).
AHEAD, LOOKS, WALK_LOOKS = 2, (16, 200), (8, 0)


def keep_in_step(fn: Function) -> Function:
    products = [op for op in listed(fn.body) if op.name == "dot"]
    for loop in [op for op in listed(fn.body) if op.name == "for" and op.attrs.get("in_step")]:
        body, every = loop.regions[0], loop.attrs["in_step"]
        why = "it is in another loop" if loop.parent is not fn.body else "it counts in 64 bits" \
            if body.args[0].type != int32 else "there are products" if products else ""
        if why:
            fn.say("in_step", f"loop at {loop.place}: its programs do not wait for one another, {why}", loop.place)
            continue
        b, (looks, pause) = beside(loop), WALK_LOOKS if fn.attrs.get("walks") else LOOKS
        steps, programs = b("steps"), b("num_programs", axis=0, ctas=True)
        Builder(body, len(body.ops) - 1, loop.loc).op(
            "in_step", steps, body.args[0], *loop.operands[2:0:-1], programs, every=every, ahead=AHEAD, looks=looks,
            pause=pause)
        fn.say("in_step", f"loop at {loop.place}: programs that are ahead wait, each {every} steps", loop.place)
    return fn
