from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilejit.emulator.machine import AsyncOp, Cluster
    from tilejit.emulator.program import Program

POLICIES = ("round_robin", "random", "adversarial")
#: Instructions that a warp may run before others get a turn.
FUEL = 200_000
#: Shares of turns in which the random policy lets an operation go on, and which are short.
ADVANCE, SHORT = 0.25, 0.25
#: The longest short turn, instructions.
SHORT_TURN = 40
#: How the adversary times operations: (loads, wgmma and stores) early?, newest first?
TIMES = ((False, False, True), (True, True, False), (False, True, False), (True, False, True), (False, False, False))

#: Operations that fill shared memory; the rest read it.
_LOADS = frozenset({"tma_load", "bulk_load", "bulk_smem", "cp_async", "st_async", "red_async"})


class RoundRobin:
    def __init__(self, seed: int):
        self.seed = seed

    def early(self, op: AsyncOp) -> bool:
        return True

    def advances(self, c: Cluster) -> bool:
        return False

    def pick(self, c: Cluster) -> int:
        return c.runnable[0]

    def fuel(self, c: Cluster) -> int:
        return FUEL

    def choose(self, c: Cluster) -> AsyncOp:
        return c.inflight[0]

    def impatient(self, c: Cluster) -> bool:
        """Whether a try_wait gives up at once."""
        return False


class Random(RoundRobin):
    TIMEOUT = 0.05

    def early(self, op: AsyncOp) -> bool:
        return False

    def advances(self, c: Cluster) -> bool:
        return c.rng.random() < ADVANCE

    def pick(self, c: Cluster) -> int:
        return c.rng.choice(c.runnable)

    def fuel(self, c: Cluster) -> int:
        return c.rng.randint(1, SHORT_TURN) if c.rng.random() < SHORT else FUEL

    def choose(self, c: Cluster) -> AsyncOp:
        return c.rng.choice(c.inflight)

    def impatient(self, c: Cluster) -> bool:
        return c.rng.random() < self.TIMEOUT


class Adversary(RoundRobin):
    def __init__(self, seed: int, units: list[tuple[int, ...]]):
        super().__init__(seed)
        self.units = units
        self.pairs = len(units) * len(TIMES)
        round_, unit = divmod(seed, len(units))
        self.starved = frozenset(units[unit])
        self.loads_early, self.rest_early, self.newest = TIMES[(unit + round_) % len(TIMES)]

    def early(self, op: AsyncOp) -> bool:
        return self.loads_early if op.kind in _LOADS else self.rest_early

    def pick(self, c: Cluster) -> int:
        pool = [w for w in c.runnable if w not in self.starved] or c.runnable
        if c.idle_rounds >= len(pool):  # they only poll: what they poll for must come from the others
            return c.runnable[0]
        return pool[-1] if self.newest else pool[0]

    def choose(self, c: Cluster) -> AsyncOp:
        return c.inflight[-1 if self.newest else 0]


def starvable(program: Program, warps: int, ctas: int) -> list[tuple[int, ...]]:
    """Each role (else warpgroup, else warp), each CTA of several, nobody, then every warp alone; without repetition."""
    roles: dict[object, list[int]] = {}
    for w in range(warps):
        roles.setdefault(program.role(w) or (w // 4 if warps > 4 else w), []).append(w)
    units = [tuple(cta * warps + w for cta in range(ctas) for w in members) for members in roles.values()]
    if ctas > 1:
        units += [tuple(range(cta * warps, (cta + 1) * warps)) for cta in range(ctas)]
    units.append(())
    units += [(w,) for w in range(ctas * warps)]
    return list(dict.fromkeys(units))


def make_policy(name: str, seed: int, program: Program, warps: int, ctas: int) -> RoundRobin:
    if name == "random":
        return Random(seed)
    if name == "adversarial":
        return Adversary(seed, starvable(program, warps, ctas))
    return RoundRobin(seed)
