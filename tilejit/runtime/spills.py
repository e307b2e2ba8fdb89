"""Registers of kernels that ptxas would spill: it is told to leave room for fewer programs.

Told nothing, ptxas weighs a thread's registers against the warps that find room beside each other, and now and then
stops a few words short of what a kernel needs. Such a kernel is assembled again, told to leave room for fewer programs
on a multiprocessor: first for one program fewer than those registers allow, then for one alone.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilejit.ir.report import Record
from tilejit.ir.target import target_named
from tilejit.ptx.metadata import WISH, KernelMetadata
from tilejit.runtime import ptxas
from tilejit.runtime.ptxas import Resources


def assembled(ptx: str, meta: KernelMetadata,
              meanwhile: Callable[[], Any]) -> tuple[str, bytes, Resources, Record | None]:
    """The text that was kept, its cubin and resources, and a record where that is not the text as it was given:
    a text that says itself how many registers or programs there shall be is kept, short of wishes.

    Raises AssemblyError at the user's line."""
    cubin, resources = ptxas.assemble(ptx, meta.target, meanwhile)
    if resources.spill_stores and WISH in ptx:
        ptx = "\n".join(line for line in ptx.split("\n") if not line.endswith(WISH))
        cubin, resources = ptxas.assemble(ptx, meta.target)
    kept, record = ptx, None
    if not resources.spill_stores or ".minnctapersm" in ptx or ".maxnreg" in ptx:
        return kept, cubin, resources, record
    least = resources
    most = target_named(meta.target).programs(meta.num_threads, least.registers, meta.shared_bytes)
    for programs in sorted({max(1, most - 1), 1}, reverse=True):
        text = _with_room(ptx, programs)
        again, needs = ptxas.assemble(text, meta.target)
        if needs.spill_stores < resources.spill_stores:
            kept, cubin, resources = text, again, needs
            record = _record(programs, least, needs)
        if not resources.spill_stores:
            break
    return kept, cubin, resources, record


def _with_room(ptx: str, programs: int) -> str:
    """The text with the directive behind the one that every kernel has."""
    head, directive, rest = ptx.partition(".maxntid ")
    line, end, rest = rest.partition("\n")
    return f"{head}{directive}{line}\n.minnctapersm {programs}{end}{rest}"


def _record(programs: int, before: Resources, after: Resources) -> Record:
    text = (f"{after.registers} registers a thread, so that a multiprocessor has room for {programs} programs: ptxas "
            f"took {before.registers} and spilled {before.spill_stores} bytes")
    return Record("more_registers", text, programs=programs, registers=after.registers, spilled=before.spill_stores)
