"""Which arguments a function writes through."""
from __future__ import annotations

from tilejit.ir.core import Function, Value, listed
from tilejit.ir.types import Desc, Ptr, Tile


def written(fn: Function) -> set[str]:
    """Names of the pointer and descriptor arguments that the function may write through."""
    addresses = [v for op in listed(fn.body) if "write" in op.define.effects for v in op.operands if _is_address(v)]
    found: set[str] = set()
    seen: set[Value] = set()
    while addresses:
        v = addresses.pop()
        if v in seen:
            continue
        seen.add(v)
        if v.op is fn.body:
            found.add(v.name)
            continue
        behind = [s for s in _sources(v) if _is_address(s)]
        if not behind:
            return {a.name for a in fn.body.args if _is_address(a)}
        addresses += behind
    return found


def follows_memory(fn: Function) -> bool:
    return any(_is_address(r) for op in listed(fn.body) if not op.regions for r in op.results
               if "read" in op.define.effects or not any(map(_is_address, op.operands)))


def _sources(v: Value) -> list[Value]:
    op = v.owner
    return [] if op is None else [*op.operands, *(s for region in op.regions for s in region.terminator.operands)]


def _is_address(v: Value) -> bool:
    t = v.type.elem if isinstance(v.type, Tile) else v.type
    return isinstance(t, (Desc, Ptr))
