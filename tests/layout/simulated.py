"""Conversions of layouts, carried out in numpy."""
from math import prod

import numpy as np

from tilejit.layout.convert import Plan, Registers, Shuffles, Swaps
from tilejit.layout.linear import LinearLayout


def simulate(p: Plan, src: LinearLayout, dst: LinearLayout, held: np.ndarray) -> np.ndarray:
    """Carry a plan out on `held` [warps, lanes, src registers]: [warps, lanes, dst registers]."""
    if isinstance(p, Registers):
        return held[:, :, list(p.source)]
    if isinstance(p, Swaps):
        now = held.copy()
        lanes = np.arange(held.shape[1])
        for i, j in p.steps:
            upper = (lanes >> i & 1).astype(bool)
            for r in range(held.shape[2]):
                if not r >> j & 1:
                    first, second = now[:, :, r].copy(), now[:, :, r | 1 << j].copy()
                    given = np.where(upper, first, second)[:, lanes ^ 1 << i]
                    now[:, :, r], now[:, :, r | 1 << j] = np.where(upper, given, first), np.where(upper, second, given)
        return now[:, :, list(p.source)]
    if isinstance(p, Shuffles):
        out = np.zeros((*held.shape[:2], dst.num_registers), held.dtype)
        for r in range(dst.num_registers):
            for lane in range(held.shape[1]):
                source = p.constant[r]
                for i, b in enumerate(p.lane_bases):
                    source ^= b if lane >> i & 1 else 0
                choice = sum((lane >> bit & 1) << j for j, bit in enumerate(p.select))
                out[:, lane, r] = held[:, source, p.registers[r][choice]]
        return out
    src, dst = src.reshape(p.shape), dst.reshape(p.shape)
    memory = np.zeros(prod(src.shape), held.dtype)
    memory[src.invert_and_compose(p.layout).table()[..., :src.num_registers, 0]] = held
    return memory[dst.invert_and_compose(p.layout).table()[..., :dst.num_registers, 0]]
