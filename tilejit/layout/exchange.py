"""What each CTA of a cluster sends to which other one when a tile that all have a part of is summed."""
from __future__ import annotations

from functools import cached_property

from tilejit.layout.clusters import within
from tilejit.layout.linear import Basis, LinearLayout
from tilejit.records import dataclass


@dataclass(frozen=True)
class Parts:
    """How a tile of 4-byte elements that every CTA has a part of (`source`) becomes one that they divide (`result`)."""

    source: LinearLayout
    result: LinearLayout
    ctas: int
    rounds: int

    @property
    def bytes(self) -> int:
        n = 4
        for s in self.source.shape:
            n *= s
        return n

    @property
    def share(self) -> int:
        return self.bytes // self.ctas // self.rounds

    @property
    def vector(self) -> int:
        return min(4, self.result.num_registers // self.rounds)

    @property
    def most_rounds(self) -> int:
        return max(1, self.result.num_registers // 4)

    @property
    def per_round(self) -> int:
        return self.result.num_registers // self.rounds

    @cached_property
    def offsets(self) -> dict[Basis, int]:
        """Where in a share a basis of the result leads."""
        low, high = self.vector.bit_length() - 1, self.per_round.bit_length() - 1
        registers = self.result.bases_of("register")
        order = (*registers[:low], *self.result.bases_of("lane"), *registers[low:high],
                 *(b for b in within(self.result, self.ctas).bases_of("warp") if any(b)))
        return {b: 4 << i for i, b in enumerate(order)}

    @cached_property
    def owners(self) -> dict[Basis, int]:
        """Bits of the index of the CTA that keeps an element."""
        bits = self.ctas.bit_length() - 1
        return {b: 1 << i for i, b in enumerate(self.result.bases_of("warp")[-bits:])}

    def sent(self, rnd: int) -> dict[int, list[tuple[int, list[int]]]]:
        """For the first thread."""
        rounds = self.result.bases_of("register")[self.per_round.bit_length() - 1:]
        bases = self.source.bases_of("register")
        low = self.result.bases_of("register")[:self.vector.bit_length() - 1]
        steps = [1 << bases.index(b) for b in low]
        found: dict[int, list[tuple[int, list[int]]]] = {}
        for r in range(self.source.num_registers):
            mine = [b for i, b in enumerate(bases) if r >> i & 1]
            if any(b in low for b in mine) or sum(1 << rounds.index(b) for b in mine if b in rounds) != rnd:
                continue
            owner = sum(self.owners.get(b, 0) for b in mine)
            access = [r + sum(s for k, s in enumerate(steps) if i >> k & 1) for i in range(self.vector)]
            found.setdefault(owner, []).append((sum(self.offsets.get(b, 0) for b in mine), access))
        return found
