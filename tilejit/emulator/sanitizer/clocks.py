from __future__ import annotations

import numpy as np

SEEN, FENCED = 0, 1


class Clock:
    """`ticks` int64[2, warps] (seen, fenced); `ops` and `fenced_ops` are bit sets."""

    __slots__ = ("ticks", "ops", "fenced_ops")

    def __init__(self, ticks: np.ndarray, ops: int = 0, fenced_ops: int = 0):
        self.ticks, self.ops, self.fenced_ops = ticks, ops, fenced_ops

    @staticmethod
    def nothing(warps: int) -> Clock:
        return Clock(np.zeros((2, warps), np.int64))

    def join(self, other: Clock) -> Clock:
        if other is self:
            return self
        return Clock(np.maximum(self.ticks, other.ticks), self.ops | other.ops, self.fenced_ops | other.fenced_ops)

    def meet(self, other: Clock) -> Clock:
        return Clock(np.minimum(self.ticks, other.ticks), self.ops & other.ops, self.fenced_ops & other.fenced_ops)

    def with_ops(self, bits: int) -> Clock:
        return self if self.ops | bits == self.ops else Clock(self.ticks, self.ops | bits, self.fenced_ops)

    def ticked(self, warp: int) -> Clock:
        ticks = self.ticks.copy()
        ticks[SEEN, warp] += 1
        return Clock(ticks, self.ops, self.fenced_ops)

    def fenced(self) -> Clock:
        return Clock(np.stack([self.ticks[SEEN]] * 2), self.ops, self.ops)
