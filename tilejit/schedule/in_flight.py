"""How much a kernel that is bound by memory has under way at once: bytes in flight on a multiprocessor.

By Little's law memory is busy where what is under way covers what it delivers while a load takes its time: on an H200
4.8 TB/s and 0.7 to 1 us are 26 to 36 KB a multiprocessor.
"""
from __future__ import annotations

from tilejit.ir import Block, Function, Op, walk
from tilejit.ir.report import Record
from tilejit.ir.target import target_of
from tilejit.ir.types import Buffer, Tile, elem_of

#: Bytes on a multiprocessor below which memory idles; programs and threads that it has at most.
ENOUGH, PROGRAMS, THREADS = 40 * 1024, 32, 2048


def in_flight(fn: Function) -> Record | None:
    """The record of a kernel that loads tiles outside of loops and has no products; None for any other.

    Counted is what a program asks for before it needs any of it, at most: registers are not known here."""
    size = _bytes(fn.body) // int(fn.attrs.get("num_ctas", 1)) + _rows(fn)
    if not size or any("dot" in op.name for op in walk(fn.body)):
        return None
    threads, shared = fn.attrs["num_threads"], fn.attrs.get("shared_bytes", 0)
    programs = min(PROGRAMS, THREADS // threads, target_of(fn).shared_bytes // (shared + 2048) if shared else PROGRAMS)
    total = programs * size
    text = f"in flight: {size} bytes a CTA, {programs} of them a multiprocessor: {total / 1024:.1f} KB"
    if total < ENOUGH:
        text += (f"; memory idles below about {ENOUGH // 1024} KB: more elements a thread, fewer threads a program, or "
                 "num_ctas for less of a row in each")
    return Record("in_flight", text, bytes=size, programs=programs, total=total, enough=total >= ENOUGH)


def _bytes(block: Block) -> int:
    """Of the tiles that are loaded into registers outside of loops."""
    return sum(op.result.type.numel * max(8, elem_of(op.result.type).bits) // 8  # type: ignore[union-attr]
               for op in block.ops if op.name == "load" and isinstance(op.result.type, Tile))


def _rows(fn: Function) -> int:
    """Of the rows that a CTA copies into shared memory outside of loops."""
    copies = [op for op in walk(fn.body) if op.name == "row_copy" and not _in_loop(op)]
    return sum(op.operands[0].type.slot_bytes for op in copies if isinstance(op.operands[0].type, Buffer))


def _in_loop(op: Op) -> bool:
    while op.parent is not None and op.parent.parent is not None:
        op = op.parent.parent
        if "loop" in op.define.traits:
            return True
    return False
