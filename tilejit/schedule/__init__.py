"""When and where: turns tile IR with layouts into tile IR with rings, barriers, roles and addresses.

    plan        the schedule as data
    decide      which loads go through which ring, how deep, inline or specialised, and why
    consumers   products that stay in flight, groups of warps that take turns
    rewrite     clones the function for a role, replacing loads, products and stores by the protocol
    allocate    gives every buffer, barrier and scratch area its place in shared memory
"""
from __future__ import annotations

from tilejit.ir import Function
from tilejit.schedule.allocate import allocate
from tilejit.schedule.decide import make_plan
from tilejit.schedule.rewrite import carry_out

__all__ = ["run"]


def run(fn: Function) -> Function:
    """Schedule a function whose tiles have layouts; decisions are appended to `attrs["report"]`."""
    plan = make_plan(fn)
    return allocate(carry_out(fn, plan), plan)
