from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from tilejit.ptx import isa
from tilejit.ptx.text import Entry, Instruction, Reg, Sym

_LOAD = re.compile(r"ld(matrix)?\b.*\.shared\b")


def late_reads(program: Any) -> dict[int, frozenset[int]]:
    """Load -> the arrivals that a warp may reach before it has used what it loads, and behind which it does."""
    entry: Entry = program.entry
    arrivals = {pc for pc, x in enumerate(entry.instructions) if x.opcode.startswith("mbarrier.arrive")}
    found = {}
    for pc, load in enumerate(entry.instructions if arrivals else ()):
        if not _LOAD.match(load.opcode):
            continue
        loaded = frozenset(_registers(load.operands[:1]))
        late = frozenset(at for at in arrivals & set(_before_use(entry, pc, loaded)) if any(
            loaded & _touched(entry.instructions[x])[0] for x in _before_use(entry, at, loaded)))
        if late:
            found[pc] = late
    return found


def _before_use(entry: Entry, start: int, loaded: frozenset[int]) -> Iterator[int]:
    """What may follow `start`, up to and with the first that reads or writes one of these registers."""
    seen: set[int] = set()
    todo = _next(entry, start)
    while todo:
        pc = todo.pop()
        if pc in seen or pc >= len(entry.instructions):
            continue
        seen.add(pc)
        yield pc
        if not any(loaded & registers for registers in _touched(entry.instructions[pc])):
            todo += _next(entry, pc)


def _next(entry: Entry, pc: int) -> list[int]:
    x = entry.instructions[pc]
    name, *_ = x.opcode.split(".")
    after = [pc + 1] if x.guard >= 0 or name not in ("bra", "brx", "ret", "exit", "trap") else []
    names = [o.name for o in x.operands if isinstance(o, Sym)] if name in ("bra", "brx") else []
    return after + [entry.labels[n] for name in names for n in entry.tables.get(name, (name,))]


@lru_cache(maxsize=4096)
def _touched(x: Instruction) -> tuple[frozenset[int], frozenset[int]]:
    """Registers that an instruction reads, and those that it writes."""
    form = isa.lookup(x.opcode)
    kinds = form[0].operands.replace("?", "") if form else ""
    written = [o for kind, o in zip(kinds, x.operands) if kind in "dp"]
    both = x.opcode.startswith(("wgmma", "mma"))
    read = [o for kind, o in zip(kinds, x.operands) if both or kind not in "dp"]
    return frozenset([*_registers(read), *([x.guard] if x.guard >= 0 else [])]), frozenset(_registers(written))


def _registers(operands: Iterable[object]) -> Iterator[int]:
    for o in operands:
        if isinstance(o, Reg):
            yield o.index
        elif isinstance(o, tuple):
            yield from _registers(o)
