"""Places buffers, barriers and scratch areas in shared memory.

Ring buffers live as long as the kernel (asynchronous copies may be in flight at any time), so they never
share bytes. Scratch areas of reductions and layout conversions are used between two synchronisations of
one role, so all scratch of a role shares one area.
"""
from __future__ import annotations

from tilejit.errors import CompilationError
from tilejit.ir import Block, Function, Op, walk
from tilejit.ir.target import target_of
from tilejit.ir.types import Barrier, Buffer
from tilejit.ptx.scratch import scratch_bytes
from tilejit.schedule.plan import Plan

#: Bytes that rounding the base of shared memory up to 1024 may cost.
_ROUNDING = 1023
#: Bytes after which every swizzle pattern repeats: private areas of groups are this far apart, or a multiple.
_ATOM = 1024


def limit(fn: Function) -> int:
    """Shared memory that the buffers of one CTA may take on the chip that the function is compiled for."""
    return target_of(fn).shared_bytes - _ROUNDING


def allocate(fn: Function, plan: Plan) -> Function:
    """Set `offset` on every alloc and barriers op, `scratch` on every op that needs it, and `shared_bytes`."""
    offset = 0
    roles = next((op for op in fn.body.ops if op.name == "roles"), None)
    rows: list[tuple[str, int, int]] = []

    def take(name: str, size: int, align: int) -> int:
        nonlocal offset
        at = -(-offset // align) * align
        offset = at + size
        rows.append((name, at, size))
        return at

    private: list[Op] = []
    small: list[Op] = []
    for op in fn.body.ops:
        if op.name == "alloc" and op.attrs.get("private"):
            private.append(op)
        elif op.name == "alloc" and _size(op)[1] < _ATOM:
            small.append(op)         # after what is aligned wider, so that nothing is lost between them
        elif op.name == "alloc":
            op.attrs["offset"] = take(op.attrs["name"], *_size(op))
    for i, (role, groups, block) in enumerate(_roles(fn)):
        start = offset
        if groups > 1 and i == 0:
            start = offset = -(-offset // _ATOM) * _ATOM
        for op in private if i == 0 else []:        # the first role computes and stores
            op.attrs["offset"] = take(op.attrs["name"], *_size(op))
        users = [(op, scratch_bytes(op)) for op in walk(block)]
        size = max((n for _, n in users), default=0)
        if size:
            at = take(f"scratch {role}", size, 128)
            for op, n in users:
                if n:
                    op.attrs["scratch"] = at
        if groups > 1 and i == 0 and offset > start:
            stride = -(-(offset - start) // _ATOM) * _ATOM
            roles.attrs["private_bytes"] = stride     # type: ignore[union-attr]
            take(f"the same for {groups - 1} more", start + groups * stride - offset, 1)
    for op in small:
        op.attrs["offset"] = take(op.attrs["name"], *_size(op))
    for op in fn.body.ops:
        if op.name == "barriers":
            barrier = op.attrs["type"]
            assert isinstance(barrier, Barrier)
            op.attrs["offset"] = take(op.attrs["name"], 8 * barrier.slots, 8)
    fn.attrs["shared_bytes"] = offset
    for name, at, size in rows:
        plan.report.append(f"shared {at:7d} + {size:6d}  {name}")
    plan.map = rows
    return fn


def _size(op: Op) -> tuple[int, int]:
    """Bytes and alignment of an alloc op's buffer."""
    buffer = op.attrs["type"]
    assert isinstance(buffer, Buffer)
    # The swizzle is a function of address bits, so slots start on its 8-row pattern.
    return buffer.slots * buffer.slot_stride, max(128, 8 * buffer.swizzle)


def _roles(fn: Function) -> list[tuple[str, int, Block]]:
    """Name, groups and block of each role."""
    roles = next((op for op in fn.body.ops if op.name == "roles"), None)
    if roles is None:
        return [("all", 1, fn.body)]
    return list(zip(roles.attrs["names"], roles.attrs["groups"], roles.regions))


def check_size(fn: Function, plan: Plan) -> None:
    """Raise CompilationError for too much shared memory: what takes it, and the largest num_stages that fits."""
    total, most = fn.attrs["shared_bytes"], limit(fn)
    if total <= most:
        return
    rings = [r for r in plan.rings if r.slots > 1]
    notes = [f"{name}: {size} bytes" for name, _, size in plan.map]
    if rings:
        depth = max(r.slots for r in rings)
        fits = depth - -(-(total - most) // sum(r.bytes for r in rings))
        notes.append(f"num_stages={fits} fits" if fits >= 1 else "no num_stages fits: use smaller blocks")
    raise CompilationError(f"shared memory: {total} bytes needed, {most} available", fn.loc, tuple(notes))
