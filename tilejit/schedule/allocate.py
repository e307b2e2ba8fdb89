"""Places buffers, barriers and scratch areas in shared memory.

Ring buffers live as long as the kernel (asynchronous copies may be in flight at any time), so they never
share bytes. Scratch areas of reductions and layout conversions are used between two synchronisations of
one role, so all scratch of a role shares one area.
"""
from __future__ import annotations

from tilejit.errors import CompilationError
from tilejit.ir import Block, Function, walk
from tilejit.ir.types import Barrier, Buffer
from tilejit.ptx.scratch import scratch_bytes
from tilejit.schedule.plan import Plan

#: Shared memory that one CTA may use on sm_90 (CUDA programming guide, compute capability 9.0), less the
#: bytes that rounding the base up to 1024 may cost.
LIMIT = 232448 - 1023


def allocate(fn: Function, plan: Plan) -> Function:
    """Set `offset` on every alloc and barriers op and `scratch` on every op that needs it."""
    offset = 0
    rows: list[tuple[str, int, int]] = []

    def take(name: str, size: int, align: int) -> int:
        nonlocal offset
        at = -(-offset // align) * align
        offset = at + size
        rows.append((name, at, size))
        return at

    for op in fn.body.ops:
        if op.name == "alloc":
            buffer = op.attrs["type"]
            assert isinstance(buffer, Buffer)
            # The swizzle is a function of address bits, so slots start on its 8-row pattern.
            align = max(128, 8 * buffer.swizzle)
            op.attrs["offset"] = take(op.attrs["name"], buffer.slots * buffer.slot_stride, align)
    for role, block in _roles(fn):
        users = [(op, scratch_bytes(op)) for op in walk(block)]
        size = max((n for _, n in users), default=0)
        if size:
            at = take(f"scratch {role}", size, 128)
            for op, n in users:
                if n:
                    op.attrs["scratch"] = at
    for op in fn.body.ops:
        if op.name == "barriers":
            barrier = op.attrs["type"]
            assert isinstance(barrier, Barrier)
            op.attrs["offset"] = take(op.attrs["name"], 8 * barrier.slots, 8)
    fn.attrs["shared_bytes"] = offset
    for name, at, size in rows:
        plan.report.append(f"shared {at:7d} + {size:6d}  {name}")
    if offset > LIMIT:
        _too_big(fn, plan, rows, offset)
    return fn


def _roles(fn: Function) -> list[tuple[str, Block]]:
    roles = next((op for op in fn.body.ops if op.name == "roles"), None)
    if roles is None:
        return [("all", fn.body)]
    return list(zip(roles.attrs["names"], roles.regions))


def _too_big(fn: Function, plan: Plan, rows: list[tuple[str, int, int]], total: int) -> None:
    """Say what takes the space and the largest num_stages that fits."""
    rings = [r for r in plan.rings if r.slots > 1]
    per_stage = sum(r.bytes for r in rings)
    notes = [f"{name}: {size} bytes" for name, _, size in rows]
    if rings:
        depth = max(r.slots for r in rings)
        fits = depth - -(-(total - LIMIT) // per_stage)
        notes.append(f"num_stages={fits} fits" if fits >= 1 else "no num_stages fits: use smaller blocks")
    raise CompilationError(f"shared memory: {total} bytes needed, {LIMIT} available", fn.loc, tuple(notes))

