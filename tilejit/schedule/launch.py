"""When a launch may begin: behind the kernel ahead of it in the stream, or before that one has ended."""
from __future__ import annotations

from tilejit.ir import Block, Builder, Function, listed, needed
from tilejit.ir.target import target_of
from tilejit.ir.types import Tile

#: Masks of a thread that it looks at before it loads, at most.
MASKS = 8


def await_launch(fn: Function) -> Function:
    fn.attrs["dependent_launch"], why = dependent(fn)
    fn.say("dependent_launch", why)
    if fn.attrs.get("straight"):
        _leave(fn.body)
    if fn.attrs["dependent_launch"]:
        _place(fn.body)
    return fn


def _leave(body: Block) -> None:
    """Mark the first load, where threads whose masks keep all that they would store are done: nothing waits for one."""
    loads, stores = ([op for op in body.ops if op.name == name] for name in ("load", "store"))
    if not loads or any("collective" in op.define.traits or op.regions or not op.define.pure for op in body.ops
                        if op not in loads and op not in stores and op.name not in ("return", "assume")) or \
            any(len(op.operands) < 3 or not isinstance(op.operands[2].type, Tile) for op in stores) or \
            sum(op.operands[2].tile.layout.num_registers // op.attrs["vec"] for op in stores) > MASKS:  # type: ignore
        return
    first = needed([op.operands[2].maker for op in stores], body.ops)
    if stores and first.isdisjoint(loads):
        at = body.ops.index(loads[0])
        late = [op for op in body.ops[at:] if op in first]
        body.ops[at:] = [*late, *(op for op in body.ops[at:] if op not in first)]
        loads[0].attrs["leave"] = True


def _place(block: Block) -> None:
    """Put in one wait for a block's threads, ahead of what may touch global memory; those of a role have their own."""
    for i, op in enumerate(block.ops):
        if op.define.regions == "warps":
            for region in op.regions:
                _place(region)
        elif op.regions or op.define.effects & {"read", "write"}:
            while "pieces" in op.define.traits and i and block.ops[i - 1].define.pure:
                i -= 1  # the store computes its value piece by piece
            Builder(block, i, op.loc).op("launch_wait")
            return


def dependent(fn: Function) -> tuple[bool | str, str]:
    """Whether a kernel may start before the one ahead of it has ended ("even", "few": in launches of which
    `LoadedKernel.early` says so), and why (docs/modules.md)."""
    asked, ctas = fn.attrs.get("launch_pdl", "auto"), fn.attrs.get("num_ctas", 1)
    if not target_of(fn).hopper:
        return False, f"dependent launch: off, {target_of(fn).name} has none"
    if fn.attrs.get("launch_cooperative_grid"):
        return False, "dependent launch: off, a cooperative grid begins when there is room for all of it"
    if asked != "auto":
        return bool(asked), f"dependent launch: {'on' if asked else 'off'}, as launch_pdl says"
    if ctas > 1:
        return True, f"dependent launch: on, programs are clusters of {ctas}"
    if any(op.name.startswith("dot") for op in listed(fn.body)):
        return "even", ("dependent launch: on, there are products: set-up overlaps with the end of the kernel ahead, "
                        "where programs get multiprocessors evenly all the same")
    if fn.attrs.get("straight"):
        return "few", "dependent launch: on, in launches of few programs, which do one thing each"
    return False, "dependent launch: off, there are no products: memory would be shared with the kernel ahead"
