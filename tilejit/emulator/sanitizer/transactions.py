"""Transaction bytes: what each phase of an mbarrier expects, against what its copies bring."""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tilejit.emulator.events import WarpId
from tilejit.emulator.sanitizer import kinds
from tilejit.emulator.sanitizer.records import Op
from tilejit.emulator.sanitizer.reporting import Reporter


@dataclass
class Transactions:
    """A copy belongs to the phase of its warp's last expect_tx on the barrier; without one before, to the phase at
    issue."""

    expected: Counter[int] = field(default_factory=Counter)
    brought: Counter[int] = field(default_factory=Counter)
    expected_at: dict[int, tuple[int, WarpId]] = field(default_factory=dict)
    brought_by: dict[int, Op] = field(default_factory=dict)
    own_phase: dict[WarpId, int] = field(default_factory=dict)
    issue_first: set[WarpId] = field(default_factory=set)
    latest: dict[WarpId, int] = field(default_factory=dict)

    def expect(self, agent: WarpId, pc: int, phase: int, count: int) -> None:
        self.expected[phase] += count
        self.expected_at[phase] = pc, agent
        if agent not in self.issue_first:
            self.own_phase[agent] = phase

    def phase_of_issue(self, agent: WarpId, phase: int) -> int:
        if agent in self.own_phase:
            return self.own_phase[agent]
        self.issue_first.add(agent)
        return phase

    def bring(self, op: Op, count: int) -> None:
        self.brought[op.phase] += count
        self.brought_by[op.phase] = op
        self.latest[op.agent] = max(op.phase, self.latest.get(op.agent, 0))

    def check(self, reporter: Reporter, name: str, all_done: bool) -> None:
        """With `all_done` False (a deadlock) copies that are still to be issued are no mistake."""
        for phase in sorted({*self.expected, *self.brought}):
            want, got = self.expected[phase], self.brought[phase]
            late = not all_done and any(last < phase for last in self.latest.values())
            if want == got or want > got and late:
                continue
            op = self.brought_by.get(phase)
            by_copy = (op.pc, op.agent) if op is not None else (-1, WarpId(0, 0))
            pc, agent = self.expected_at.get(phase, by_copy)
            by = f", the last by {reporter.operation(op)}" if op is not None else ""
            told = f"phase {phase} of {name} expects {want} bytes, its copies bring {got}{by}"
            reporter.add(kinds.TX_BYTES, told, pc, (agent,), name, place=name)
            return
