"""Known miscompiles of assemblers: which text, which versions, what avoids it."""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tilejit.records import dataclass


@dataclass(frozen=True)
class Miscompile:
    """`lines` yields the 1-based PTX lines of the form; versions are ptxas releases, from `first` to before `fixed`."""

    name: str
    what: str
    instead: str
    first: tuple[int, int]
    fixed: tuple[int, int]
    lines: Callable[[str], Iterator[int]]

    def affects(self, release: tuple[int, int]) -> bool:
        return self.first <= release < self.fixed


_BY_ONE = re.compile(r"\bmad\.wide\.[su]32\s+[^,;]+,\s*[^,;]+,\s*1\s*,")
_DEFINED = re.compile(r"^\s*(?:@!?\S+\s+)?([a-z][\w.:]*)\s+(\{[^}]*\}|%\w+)")
_NEGATION = re.compile(r"^\s*(?:neg\.s32|sub\.[su]32)\s+(%\w+)\s*,\s*(?:0\s*,\s*)?%\w+\s*;")
_MINMAX = re.compile(r"^\s*(?:min|max)\.[su]32\s+%\w+\s*,\s*(%\w+)\s*,\s*(%\w+)\s*;")
_MINMAX16 = re.compile(r"^\s*(?:min|max)\.[su]16\s+(%\w+)\s*,")
_EQUAL16 = re.compile(r"^\s*setp\.(?:eq|ne)\.[bsu]16\s+%\w+\s*,\s*(%\w+)\s*,\s*(%?\w+)\s*;")
_COPY = re.compile(r"^\s*mov\.[bfsu]32\s+(%\w+),\s*(%\w+);")
_COPY16 = re.compile(r"^\s*mov\.b16\s+(%\w+),\s*(%\w+);")
_WIDENED16 = re.compile(r"^\s*cvt\.[su]32\.[su]16\s+(%\w+),\s*(%\w+);")
_HALVES_ALONE = ("shfl", "prmt", "mov", "cvt.u16", "cvt.s16")  # which never read what lies above 16 bits
_FROM_REGISTERS = re.compile(r"wgmma\.mma_async\S*\s+\{[^}]*\},\s*\{([^}]*)\}")


def _wide_by_one(ptx: str) -> Iterator[int]:
    if "mad.wide" in ptx:
        for i, line in enumerate(ptx.splitlines(), 1):
            if _BY_ONE.search(line):
                yield i


def _negated_minima(ptx: str) -> Iterator[int]:
    negated: set[str] = set()
    for i, line in enumerate(ptx.splitlines(), 1):
        if made := _NEGATION.match(line):
            negated.add(made[1])
        elif (read := _MINMAX.match(line)) and negated & {read[1], read[2]}:
            yield i


def _compared_minima(ptx: str) -> Iterator[int]:
    made: set[str] = set()
    for i, line in enumerate(ptx.splitlines(), 1):
        if found := _MINMAX16.match(line):
            made.add(found[1])
        elif (read := _EQUAL16.match(line)) and made & {read[1], read[2]}:
            yield i


def _widened_copies(ptx: str) -> Iterator[int]:
    """Copies of 16-bit registers that are also widened, for instructions that read all 32 bits."""
    copies = [(i, {copy[1], copy[2]}) for i, line in enumerate(ptx.splitlines(), 1) if (copy := _COPY16.match(line))]
    if not copies:
        return
    wide: dict[str, str] = {}
    whole: set[str] = set()
    for line in ptx.splitlines():
        if found := _WIDENED16.match(line):
            wide[found[1]] = found[2]
        elif not line.strip().startswith(_HALVES_ALONE):
            whole.update(wide[r] for r in re.findall(r"%\w+", line) if r in wide)
    yield from (i for i, registers in copies if registers & whole)


def _late_copies(ptx: str) -> Iterator[int]:
    """Copies into a product's first operand, behind a wait, of what was computed before it."""
    operands = {r.strip() for found in _FROM_REGISTERS.findall(ptx) for r in found.split(",")}
    if not operands:
        return
    defined: dict[str, int] = {}
    waited = 0
    for i, line in enumerate(ptx.splitlines(), 1):
        if "wgmma.wait_group" in line:
            waited = i
            continue
        copy = _COPY.match(line)
        if copy and copy[1] in operands and 0 < defined.get(copy[2], waited) < waited:
            yield i
        made = _DEFINED.match(line)
        if made and not made[1].startswith(("st.", "wgmma", "bra", "bar.")):
            defined.update((r.strip(), i) for r in made[2].strip("{}").split(","))


MISCOMPILES: tuple[Miscompile, ...] = (
    # Under register pressure the sum's high word is of the wrong register. Seen with ptxas 13.0, 13.1 and driver 580.
    Miscompile("mad-wide-by-one", "a 32-bit number times one added to a 64-bit one: the high word may be wrong",
               "cvt.s64.s32 (or cvt.u64.u32) and add.s64", (13, 0), (13, 3), _wide_by_one),
    # The copies are merged with what they copy, so that loads overwrite registers that the tensor cores still read.
    Miscompile("late-copy-to-wgmma", "a first operand is copied behind the wait for the product that reads it",
               "prmt.b32 d, s, 0, 0x3210 in place of the copy, or two sets of registers in turn", (12, 0), (13, 3),
               _late_copies),
    # VIMNMX3 cannot negate, and one operand loses its sign. Seen with driver 580; ptxas 12.8 to 13.3 write it.
    Miscompile("minimum-of-negations", "a minimum or maximum of negated 32-bit integers: a sign may be lost",
               "prmt.b32 d, s, 0, 0x3210 behind each negation", (12, 0), (13, 4), _negated_minima),
    # The predicate of VIMNMX.S16x2 (or U16x2) is the other way round where a == b. Versions as above.
    Miscompile("compared-minimum-of-16-bits", "a 16-bit minimum or maximum is compared with one of its operands: "
               "wrong if these are equal", "the minimum of 32 bits, cvt.u16.u32 behind it", (12, 0), (13, 4),
               _compared_minima),
    # The widening, left out where the source is known to be extended, reads all of a register whose half was copied.
    Miscompile("widened-copy-of-16-bits", "a 16-bit register is copied, and widened to 32 bits: the upper half may be "
               "anything", "cvt.u32.u16, prmt.b32 d, s, 0, 0x3210 and cvt.u16.u32 in place of the copy", (12, 0),
               (13, 3), _widened_copies),
)


def found(ptx: str, release: tuple[int, int]) -> list[tuple[Miscompile, int]]:
    return [(row, line) for row in MISCOMPILES if row.affects(release)
            for line in (next(row.lines(ptx), 0),) if line]
