"""Ping-pong inside a loop: warpgroups that share a role issue their products one after the other.

While one warpgroup's products run, the others do what is between products (FlashAttention-3, arXiv 2407.08608, section
3.1). Asked for (`ping_pong`), never chosen: warpgroups of a loop in two stages fall into step by themselves. Products
that are issued with no wait between them go together.

    %p = dot_async %q, %k, %s                  order_wait {groups=2}
    %o = dot_async %w, %v, %a                  %p = dot_async %q, %k, %s
    %x = dot_wait %p {pending=1}       ->      %o = dot_async %w, %v, %a
                                               order_arrive {groups=2}
                                               %x = dot_wait %p {pending=1}
"""
from __future__ import annotations

from tilejit.ir import Block, Builder, Function, Op, beside, listed


def order(fn: Function) -> Function:
    roles = [op for op in fn.body.ops if op.name == "roles"]
    for block in [region for op in roles for region in op.regions] or [fn.body]:
        most = 0
        for loop in listed(block):
            groups = loop.attrs.get("ping_pong", 0) if loop.name == "for" else 0
            if groups > 1 and _deal(loop.regions[0], groups):
                most = max(most, groups)
        if most:
            Builder(block, 0, block.ops[0].loc).op("order_begin", groups=most)
            ends = "terminator" in block.ops[-1].define.traits
            Builder(block, len(block.ops) - ends, block.ops[-1].loc).op("order_end", groups=most)
    return fn


def _deal(body: Block, groups: int) -> bool:
    together: list[tuple[Op, Op]] = []          # the first and last of products that go together
    goes_on = False
    for op in body.ops:
        if op.name == "dot_async":
            together[-1:] = [(together[-1][0], op)] if goes_on else [*together[-1:], (op, op)]
            goes_on = True
        elif op.name in ("dot_wait", "dot_fence") or op.regions and op.define.regions != "fold":
            goes_on = False
    for first, last in together:
        beside(first).op("order_wait", groups=groups)
        beside(last, behind=True).op("order_arrive", groups=groups)
    return bool(together)
