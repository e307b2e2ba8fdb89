"""When a launch may begin: behind the kernel ahead of it in the stream, or before that one has ended.

The latter is programmatic dependent launch (PTX ISA, griddepcontrol; CUDA programming guide, section of that name)."""
from __future__ import annotations

from tilejit.ir import Function, walk
from tilejit.ir.target import target_of


def dependent(fn: Function) -> tuple[bool, str]:
    """Whether a kernel may start before the one ahead of it has ended, and a line of the report that says why.

    Unless the author says so, products and clusters may: kernels that are bound by memory then share it with the end of
    the one ahead (on an H200, softmax and layer norm of 65536 rows of 1024 take 82 and 84 us so, 69 and 71 without)."""
    asked, ctas = fn.attrs.get("launch_pdl", "auto"), fn.attrs.get("num_ctas", 1)
    if not target_of(fn).hopper:
        return False, f"dependent launch: off, {target_of(fn).name} has none"
    if fn.attrs.get("launch_cooperative_grid"):
        return False, "dependent launch: off, a cooperative grid begins when there is room for all of it"
    if asked != "auto":
        return bool(asked), f"dependent launch: {'on' if asked else 'off'}, as launch_pdl says"
    if ctas > 1:
        return True, f"dependent launch: on, programs are clusters of {ctas}"
    if any(op.name.startswith("dot") for op in walk(fn.body)):
        return True, "dependent launch: on, there are products: set-up overlaps with the end of the kernel ahead"
    return False, "dependent launch: off, there are no products: memory would be shared with the kernel ahead"
