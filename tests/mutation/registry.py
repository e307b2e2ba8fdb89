"""What a kind of planted bug is: where it can be planted in any kernel's text, and the findings that name it rightly."""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ptx_edit import Ptx

from tilejit.ptx.text import Instruction

Plant = Callable[[Ptx], Iterator[Ptx]]


@dataclass(frozen=True)
class Mutation:
    """A kind of bug: `plant(text)` yields one mutant for every site in a kernel's text. One of `kinds` must be among
    the findings of each."""

    name: str
    kinds: frozenset[str]
    plant: Plant


MUTATIONS: dict[str, Mutation] = {}

INIT, ARRIVE, EXPECT = r"mbarrier\.init", r"mbarrier\.arrive\.(?!expect|noC)", r"mbarrier\.arrive\.expect_tx"
#: Bulk copies into shared memory.
LOAD = r"cp\.async\.bulk\.(tensor\.\dd\.)?shared::cluster"


def plants(*kinds: str) -> Callable[[Plant], Plant]:
    """Register a kind of bug under its function's name, with the kinds of findings that name it."""
    def register(plant: Plant) -> Plant:
        name = plant.__name__.replace("_", "-")
        MUTATIONS[name] = Mutation(name, frozenset(kinds), plant)
        return plant
    return register


def constant(ins: Instruction) -> int:
    """The last operand, a number."""
    return int(ins.text.split()[-1])


def base(ins: Instruction) -> str:
    """The register of an instruction's (last) address."""
    return re.findall(r"\[(%\w+)", ins.text)[-1]


def after_init(p: Ptx) -> int:
    """The line of the last mbarrier.init; 0 if there is none."""
    return max((i.line for i in p.find(INIT)), default=0)


def inits(p: Ptx) -> Iterator[Instruction]:
    """The first mbarrier.init of each use that the kernel waits for."""
    seen = set()
    for ins in p.find(INIT):
        use = p.use(ins)
        if use not in seen and any(p.waits(use)):
            seen.add(use)
            yield ins
