"""Registers that stay."""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from tilejit.ir import Block, Op, Value, inside
from tilejit.ir.types import DType, Tile
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
        self.known, self.mark, self.counts = e.role.known, e.role.known.mark or 0, dict(e.p.counts)

    def settle(self, pairs: list[tuple[str, str]]) -> set[str]:
        """Rename registers of the text up to now, its end; returns carried ones that need no copy any more."""
        lines, above = self.e.p.lines, self.known.mark or 0
        hoisted = above - self.mark
        made_above = set(_REGISTER.findall("\n".join(lines[self.mark:above])))
        often = Counter([r for pair in pairs for r in pair])
        wanted = [(to, new) for to, new in pairs
                  if often[to] == often[new] == 1 and new not in made_above and self._is_new(new)]
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
        name = register.rstrip("0123456789")
        return int(register[len(name):]) >= self.counts[_CLASS[name]]


def _places(text: str) -> tuple[dict[str, int], dict[str, int], list[tuple[int, int]]]:
    """The first instruction that names each register of products by mma.sync, the last one that names each register
    (beyond the end: products by wgmma), and the span of each inner loop.
    """
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


def stays(branch: Op, uses: Mapping[Value, list[tuple[Op, int]]]) -> dict[int, Value]:
    """Results of an `if` that one branch hands on as they were, in registers nothing needs: which tile."""
    block = branch.parent
    found: dict[int, Value] = {}
    assert block is not None
    for region in reversed(branch.regions):  # first `else`, which an author leaves out
        for i, v in enumerate(region.terminator.operands):
            if i not in found and v not in found.values() and _owns(v, block, uses) \
                    and not _is_read_behind(v, branch, uses):
                found[i] = v
    return found


def _owns(v: Value, block: Block, uses: Mapping[Value, list[tuple[Op, int]]]) -> bool:
    """Whether a tile has registers of its own; not sums in flight."""
    t = v.type.elem if isinstance(v.type, Tile) else None
    if not isinstance(t, DType) or t.family != "float" or t.bits < 32:
        return False
    if isinstance(v.op, Block):
        return v.op is block and block.parent is not None and block.parent.name == "for"
    if v.op is None or v.op.parent is not block:
        return False
    if v.op.name == "dot_wait":
        sums = v.op.operands[v.index]
        while isinstance(sums.op, Op) and sums.op.name in ("dot_async", "dot_fence") and len(uses[sums]) == 1:
            sums = sums.op.operands[2 if sums.op.name == "dot_async" else sums.index]
        return isinstance(sums.op, Op) and sums.op.name == "pend" and sums.op.parent is block
    return v.op.name in ("if", "for", "dot_mma")


def _is_read_behind(v: Value, branch: Op, uses: Mapping[Value, list[tuple[Op, int]]]) -> bool:
    block = branch.block
    for user, _ in uses.get(v, ()):
        at = inside(block, user)
        if at is branch:
            continue
        if at is None or block.ops.index(at) > block.ops.index(branch):
            return True
        copies = at is user and "elementwise" in user.define.traits and user.name not in ("cast", "bitcast") \
            and not user.define.traits & {"registers", "identity"}
        if not copies and any(_is_read_behind(r, branch, uses) for r in at.results):
            return True
    return False
