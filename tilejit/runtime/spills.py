"""Kernels that ptxas would spill, or that lack a few registers for one more program on a multiprocessor."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Union

from tilejit.errors import AssemblyError
from tilejit.ir.report import Record
from tilejit.ir.target import target_named
from tilejit.ptx.metadata import ALL, WISH, KernelMetadata
from tilejit.runtime import ptxas
from tilejit.runtime.ptxas import Resources

#: What one program more beside n, at most so many, may cost: 1/(3 n) of the registers.
MOST_PROGRAMS, SHARE = 4, 3

#: A text, its cubin and resources, and a record where it is not as it was given.
Assembled = tuple[str, bytes, Resources, Union[Record, None]]


def assembled(ptx: str, meta: KernelMetadata, meanwhile: Callable[[], Any]) -> Assembled:
    """The text that was kept, its cubin and resources, and a record of a changed text."""
    cubin, resources = ptxas.assemble(ptx, meta.target, meanwhile)
    if resources.spill_stores and WISH in ptx:
        ptx = _without_wishes(ptx)
        cubin, resources = ptxas.assemble(ptx, meta.target)
    if ".minnctapersm" in ptx and (WISH not in ptx or ALL in ptx) or ".maxnreg" in ptx:
        return ptx, cubin, resources, None
    return (_for_fewer if resources.spill_stores else _for_more)(ptx, meta, cubin, resources)


def _for_fewer(ptx: str, meta: KernelMetadata, cubin: bytes, least: Resources) -> Assembled:
    found: Assembled = ptx, cubin, least, None
    most = target_named(meta.target).programs(meta.num_threads, least.registers, meta.shared_bytes)
    for programs in sorted({max(1, most - 1), 1}, reverse=True):
        text = _with_room(ptx, programs)
        again, needs = ptxas.assemble(text, meta.target)
        if needs.spill_stores < found[2].spill_stores:
            found = text, again, needs, _record("more_registers", f"a multiprocessor has room for {programs} programs",
                                                programs, least, needs)
        if not found[2].spill_stores or needs.registers >= 255:  # a thread has no more
            break
    return found


def _for_more(ptx: str, meta: KernelMetadata, cubin: bytes, most: Resources) -> Assembled:
    room, threads = target_named(meta.target).programs, meta.num_threads
    programs = room(threads, most.registers, meta.shared_bytes)
    least = -int(-most.registers * (1 - 1 / (SHARE * programs)) // 8) * 8
    if programs <= MOST_PROGRAMS and room(threads, least, meta.shared_bytes) > programs:
        text = _with_room(ptx, programs + 1)
        try:
            again, needs = ptxas.assemble(text, meta.target)
        except AssemblyError:  # an instruction that needs more registers
            return ptx, cubin, most, None
        if not needs.spill_stores and needs.messages == most.messages:
            return text, again, needs, _record("fewer_registers", f"{programs + 1} programs share a multiprocessor",
                                               programs + 1, most, needs)
    return ptx, cubin, most, None


def _without_wishes(ptx: str) -> str:
    return "\n".join(line for line in ptx.split("\n") if not line.endswith(WISH)) if WISH in ptx else ptx


def _with_room(ptx: str, programs: int) -> str:
    head, directive, rest = _without_wishes(ptx).partition(".maxntid ")
    line, end, rest = rest.partition("\n")
    return f"{head}{directive}{line}\n.minnctapersm {programs}{end}{rest}"


def _record(kind: str, so: str, programs: int, before: Resources, after: Resources) -> Record:
    text = f"{after.registers} registers a thread, so that {so}: ptxas took {before.registers}"
    if before.spill_stores:
        text += f" and spilled {before.spill_stores} bytes"
    return Record(kind, text, programs=programs, registers=after.registers, spilled=before.spill_stores)
