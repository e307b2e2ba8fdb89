"""What the functions that make a function asynchronous (`asyncify`) share: what the text says, what stands for what."""
from __future__ import annotations

from typing import TYPE_CHECKING

from tilejit.ir import Builder, Function, Op, Value
from tilejit.records import dataclass, field
from tilejit.schedule.loads import Uses
from tilejit.schedule.pieces import Pieces

if TYPE_CHECKING:
    from tilejit.schedule.handed import Handed


@dataclass
class Context:
    """`fn` is rewritten in place; `uses` are those before. `renamed`: what takes a value's place, at the end."""

    fn: Function
    uses: Uses
    top: Builder
    tickets: dict[Op, list[Op]] = field(default_factory=dict)  # load -> all that fill the slot with it
    peeked: set[str] = field(default_factory=set)  # rings of which the next slot is looked at
    chains: dict[Op, dict[Op, int]] = field(default_factory=dict)  # loop -> its dots, in order: carried index
    pieces: dict[Op, Pieces] = field(default_factory=dict)  # product -> how its first operand is made
    piecewise: set[Op] = field(default_factory=set)  # ops that are written where their pieces are needed
    multiplied: set[Op | None] = field(default_factory=set)  # loads whose slots wgmma reads
    renamed: dict[Value, Value] = field(default_factory=dict)
    buffers: dict[tuple[str, int], Value] = field(default_factory=dict)  # ring, index of a load
    fills: list[Op] = field(default_factory=list)
    views: dict[Op, Value] = field(default_factory=dict)  # load -> the slot that holds it
    issued: dict[Op, Value] = field(default_factory=dict)  # product that stays in flight -> its sums
    flying: dict[Op, Value | None] = field(default_factory=dict)  # product that a loop carries -> what it carries
    through: dict[Op, list[Value]] = field(default_factory=dict)  # product -> buffers that its operands go through
    staged: dict[tuple, Value] = field(default_factory=dict)  # tile, block where it is written, how -> the view
    added_to: set[Op] = field(default_factory=set)  # products whose sums another one adds to, at once
    handed: dict[Op, Handed] = field(default_factory=dict)  # product -> what of its operands a trip hands on
    fragments: dict[Value, Value] = field(default_factory=dict)  # operand of mma.sync -> the buffer it is read from

    def now(self, v: Value) -> Value:
        while v in self.renamed:
            v = self.renamed[v]
        return v
