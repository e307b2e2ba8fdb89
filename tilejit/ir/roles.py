"""Scheduled functions in the evaluator: roles, mbarriers and rings of shared memory, one program after another."""
from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilejit.records import dataclass, field


class Stuck(Exception):
    """Every group waits for another one."""


class _Ended(Exception):
    """Another group has failed: this one ends as well."""


class Barriers:
    """A ring of mbarriers that complete a phase after `count` arrivals; bytes count when they are announced."""

    def __init__(self, name: str, slots: int, count: int):
        self.name, self.count = name, count
        self.arrived, self.completed = [0] * slots, [0] * slots

    def arrive(self, slot: Any, times: int) -> None:
        i = int(slot)
        self.arrived[i] += times
        if self.arrived[i] >= self.count:
            self.arrived[i] -= self.count
            self.completed[i] += 1

    def over(self, slot: Any, parity: Any) -> bool:
        return self.completed[int(slot)] % 2 != int(parity)


class Ring:
    """Slots of shared memory."""

    def __init__(self, name: str, shape: tuple[int, ...], private: bool):
        self.name, self.shape, self.private = name, shape, private
        self.filled = self.awaited = 0
        self.slots: dict[tuple[int, int], Any] = {}


@dataclass(frozen=True)
class View:
    """A slot, read when it is used; `order` permutes its dimensions, `part` (first, end) is some of a row."""

    ring: Ring
    key: tuple[int, int]
    order: tuple[int, ...] | None = None
    part: tuple[int, int] | None = None

    def read(self) -> Any:
        value = self.ring.slots[self.key]
        if self.part is not None:
            return value[slice(*self.part)]
        return value if self.order is None else np.transpose(value, self.order)

    def strip(self, i: int, size: int) -> View:
        return View(self.ring, self.key, None, (i * size, (i + 1) * size))

    def transposed(self, order: tuple[int, ...]) -> View:
        before = self.order or tuple(range(len(order)))
        return View(self.ring, self.key, tuple(before[i] for i in order))


@dataclass
class Role:
    """Who runs."""

    warps: int
    group: int = 0
    shared: bool = True
    elected: bool = False
    crew: Crew = field(default_factory=lambda: Crew())

    def key(self, ring: Ring, slot: Any) -> tuple[int, int]:
        return (0 if self.shared or not ring.private else self.group, int(slot))

    def arrivals(self, per: str) -> int:
        if self.elected:
            return 1
        return {"thread": 32 * self.warps, "warp": self.warps, "warpgroup": max(1, self.warps // 4)}[per]

    def wait(self, barriers: Barriers, slot: Any, parity: Any) -> None:
        self.crew.wait(lambda: barriers.over(slot, parity), f"{barriers.name}[{int(slot)}]")


class Crew:
    """The groups of one program, of which one runs at a time."""

    def __init__(self) -> None:
        self.turn = threading.Condition()
        self.running: int = 0
        self.waiting: dict[int, tuple[Callable[[], bool], str]] = {}
        self.ended: set[int] = set()
        self.failure: BaseException | None = None
        self.size = 1

    def run(self, bodies: Sequence[Callable[[], None]]) -> None:
        self.size = len(bodies)
        threads = []
        for i, body in enumerate(bodies):
            context = contextvars.copy_context()
            threads.append(threading.Thread(target=context.run, args=(self._run, i, body), daemon=True))
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if self.failure is not None:
            raise self.failure

    def _run(self, me: int, body: Callable[[], None]) -> None:
        try:
            with self.turn:
                self.turn.wait_for(lambda: self.running == me or self.failure)
            if self.failure is None:
                with np.errstate(all="ignore"):
                    body()
        except _Ended:
            pass
        except BaseException as e:  # whatever it is, the one who called `run` gets it
            self.failure = self.failure or e
        with self.turn:
            self.ended.add(me)
            try:
                self._hand_on(me)
            except Stuck as e:
                self.failure = self.failure or e
            self.turn.notify_all()

    def wait(self, ready: Callable[[], bool], what: str) -> None:
        if ready():
            return
        me = self.running
        if self.size == 1:
            raise Stuck(f"nobody completes the phase that is waited for: {what}")
        with self.turn:
            self.waiting[me] = (ready, what)
            self._hand_on(me)
            self.turn.notify_all()
            self.turn.wait_for(lambda: self.running == me or self.failure)
            if self.failure is not None:
                raise _Ended
            del self.waiting[me]

    def _hand_on(self, me: int) -> None:
        for step in range(1, self.size + 1):
            other = (me + step) % self.size
            if other not in self.ended and (other not in self.waiting or self.waiting[other][0]()):
                self.running = other
                return
        if len(self.ended) < self.size:
            raise Stuck("every role waits: " + ", ".join(what for _, what in self.waiting.values()))
