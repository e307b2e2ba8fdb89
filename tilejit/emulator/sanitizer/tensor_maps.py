from __future__ import annotations

import numpy as np

from tilejit.emulator.events import WarpId
from tilejit.emulator.sanitizer import kinds
from tilejit.emulator.sanitizer.clocks import Clock
from tilejit.emulator.sanitizer.global_memory import GlobalMemory
from tilejit.emulator.sanitizer.records import Op
from tilejit.emulator.sanitizer.reporting import Reporter

_BYTES = 128


class TensorMaps:
    def __init__(self, reporter: Reporter, memory: GlobalMemory):
        self.reporter, self.memory = reporter, memory
        self.released: dict[WarpId, int] = {}  # writes of the warp below this number
        self.acquired: dict[tuple[int, int], set[int]] = {}  # (CTA, address) -> writes
        self.reading: dict[WarpId, int] = {}  # what the copy that is being issued uses
        self.used: dict[int, list[Op]] = {}  # address -> copies that may not be done

    def release(self, agent: WarpId) -> None:
        self.released[agent] = len(self.memory.writes)

    def acquire(self, agent: WarpId, address: int) -> None:
        known = self.acquired.setdefault((agent.cta, address), set())
        for number in self.memory.last_writes(address, _BYTES):
            write = self.memory.writes[number]
            if write is not None and self.released.get(write.agent, 0) > number:
                known.add(number)

    def read(self, agent: WarpId, pc: int, address: int) -> None:
        self.reading[agent] = address
        known, r = self.acquired.get((agent.cta, address), set()), self.reporter
        for number in self.memory.last_writes(address, _BYTES):
            write = self.memory.writes[number]
            if write is not None and number not in known:
                missing = "no fence.proxy.tensormap::generic.release" \
                    if self.released.get(write.agent, 0) <= number else \
                    "no fence.proxy.tensormap::generic.acquire of it by this CTA"
                r.add(kinds.MAP_FENCE, f"tensor map at {address:#x}: {missing} after the {write.what} by "
                      f"{r.warp(write.agent)} at {r.at(write.pc)}", pc, (agent, write.agent), "", write.pc)
                return

    def issued(self, op: Op) -> None:
        address = self.reading.pop(op.agent, None)
        if address is not None:
            self.used.setdefault(address, []).append(op)

    def written(self, agent: WarpId, pc: int, ctas: list[int], clock: Clock, starts: np.ndarray, size: int) -> None:
        for address in [a for a in self.used if ((starts < a + _BYTES) & (a < starts + size)).any()]:
            for op in self.used.pop(address):
                if op.agent.cta in ctas and not clock.ops & op.all_bits():
                    r = self.reporter
                    r.add(kinds.MAP_IN_USE, f"tensor map at {address:#x} is written by {r.warp(agent)}, which does not "
                          f"know that the {r.operation(op)} is done", pc, (agent, op.agent), "", op.pc)
                    return
