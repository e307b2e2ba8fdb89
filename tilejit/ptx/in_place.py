"""Sums of mma.sync that a loop carries are computed where they are carried: the next contents of a register are written
into it, where nothing reads the present ones any more.

    %f9 = mul %f1, %f2                %f9 = mul %f1, %f2
    %f8 = mma ..., %f9         ->     %f1 = mma ..., %f9
    %f1 = mov %f8

The assembler joins such registers itself, but not those that tensor cores take four in a row: of 128 sums, rescaled
before the product, it kept a second set, and moved or spilled them in every iteration.
"""
from __future__ import annotations

import re
from collections import Counter

from tilejit.ptx.build import CLASSES
from tilejit.ptx.emit import Emitter

_REGISTER = re.compile(r"(%(?:p|h|rd|r|fd|f)\d+\b)")
#: What a text is read for: registers, ends of instructions, labels, and products, also such as run on when issued.
_TOKEN = re.compile(r"%(?:p|h|rd|r|fd|f)\d+\b|;|[\w$]+:(?!:)|\bbra[.\w]*\s+[\w$]+|\bmma\.sync|wgmma\.mma_async")
_CLASS = {f"%{name}": cls for cls, name in CLASSES.items()}


class Body:
    """The text of a loop's body, which begins where this is made."""

    def __init__(self, e: Emitter):
        self.e, self.begin = e, len(e.p.lines)
        self.role, self.mark, self.counts = e.role, e.role.mark, dict(e.p.counts)

    def settle(self, pairs: list[tuple[str, str]]) -> set[str]:
        """Rename registers in the text as it is now, its end. pairs: register that is carried, what it is to be at the
        end. Returns those that are carried and need no copy any more.

        A register is renamed if a product of the body makes it, no sooner than the last instruction that reads what was
        carried (nor in an inner loop that goes on from the one to the other), and no two pairs want it."""
        lines, hoisted = self.e.p.lines, self.role.mark - self.mark
        above = set(_REGISTER.findall("\n".join(lines[self.mark:self.role.mark])))
        often = Counter([r for pair in pairs for r in pair])
        wanted = [(to, new) for to, new in pairs
                  if often[to] == often[new] == 1 and new not in above and self._is_new(new)]
        if not wanted:
            return set()
        text = "\n".join(lines[self.begin + hoisted:])
        if "mma.sync" not in text:
            return set()
        first, last, loops = _places(text)
        names = {}
        for to, new in wanted:
            begin, end = first.get(new, -1), last.get(to, -1)
            if 0 <= begin >= end and not any(a <= end and begin <= b for a, b in loops):
                names[new] = to
        if names:
            pieces = [names[x] if x in names else x for x in _REGISTER.split(text)]
            lines[self.begin + hoisted:] = "".join(pieces).split("\n")
        return set(names.values())

    def _is_new(self, register: str) -> bool:
        """Whether a register was made since the body began."""
        name = register.rstrip("0123456789")
        return int(register[len(name):]) >= self.counts[_CLASS[name]]


def _places(text: str) -> tuple[dict[str, int], dict[str, int], list[tuple[int, int]]]:
    """The first instruction that names each register of products by mma.sync, the last one that names each register
    (beyond the end: products by wgmma, which run on), and those from which to which inner loops go."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    labels: dict[str, int] = {}
    loops = []
    joined: set[str] = set()
    running: set[str] = set()
    at, product = 0, None
    for token in _TOKEN.findall(text):
        if token == ";":
            at, product = at + 1, None
        elif token[0] == "%":
            if token not in first:
                first[token] = at
            last[token] = at
            if product is not None:
                product |= {token}
        elif token[-1] == ":":
            labels[token[:-1]] = at
        elif token[:3] == "bra":
            target = token.split()[1]
            if target in labels:
                loops.append((labels[target], at))
        else:
            product = joined if token[0] == "m" else running
    last.update(dict.fromkeys(running, at + 1))
    return {r: first[r] for r in joined - running}, last, loops
