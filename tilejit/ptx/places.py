"""Which register of an operand is which one of the result, where ops only name registers anew."""
from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from tilejit.errors import CompilationError
from tilejit.ir import Op
from tilejit.layout.linear import LinearLayout


def renamed(src: LinearLayout, dst: LinearLayout, op: Op) -> tuple[int, ...]:
    """For each register of dst, the register of src that holds the same element in the same thread."""
    if src.bases_of("lane") != dst.bases_of("lane") or src.bases_of("warp") != dst.bases_of("warp"):
        raise CompilationError(f"{op.name}: threads hold other elements after than before: {src} -> {dst}",
                               op.loc)
    return registers_of(src, dst)


@lru_cache(maxsize=1024)
def registers_of(src: LinearLayout, dst: LinearLayout, *after: int) -> tuple[int, ...]:
    return _registers_in(src, [(*at, *after) for at in dst.registers()])


def _registers_in(layout: LinearLayout, elements: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    where: dict[tuple[int, ...], int] = {}
    for r, at in enumerate(layout.registers()):
        where.setdefault(at, r)
    return tuple([where[at] for at in elements])


def source_layout(op: Op) -> LinearLayout:
    layout = op.operands[0].layout
    if op.name == "expand_dims":
        return layout.expand_dims(op.attrs["axis"])
    if op.name == "reshape":
        return layout.reshape(tuple(op.attrs["shape"]))
    return layout.transpose(tuple(op.attrs["order"]))


def repeated(op: Op) -> tuple[int, ...]:
    source, dst = op.operands[0].layout, op.result.layout
    found = _repeated(source, op.operands[0].tile.shape, dst)
    if found is None:
        raise CompilationError(f"broadcast: {source} does not spread to {dst}", op.loc)
    return found


@lru_cache(maxsize=1024)
def _repeated(source: LinearLayout, shape: tuple[int, ...], dst: LinearLayout) -> tuple[int, ...] | None:
    target = dst.project(shape)
    if any(source.bases_of(n) != target.bases_of(n) for n in ("lane", "warp")):
        return None
    return _registers_in(source, [tuple(x if s > 1 else 0 for x, s in zip(at, shape)) for at in dst.registers()])
