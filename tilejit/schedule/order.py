"""Ping-pong inside a loop: warpgroups that share a role issue their products one after the other."""
from __future__ import annotations

from itertools import takewhile

from tilejit.ir import Block, Builder, Function, Op, beside, listed


def order(fn: Function) -> Function:
    when = fn.attrs.get("ping_pong", True)
    roles = [op for op in fn.body.ops if op.name == "roles"]
    for block in [region for op in roles for region in op.regions] or [fn.body]:
        most = 0
        for loop in listed(block):
            groups = loop.attrs.get("ping_pong", 0) if loop.name == "for" else 0
            if groups > 1 and _deal(loop.regions[0], groups, when):
                most = max(most, groups)
        if most:
            Builder(block, 0, block.ops[0].loc).op("order_begin", groups=most)
            ends = "terminator" in block.ops[-1].define.traits
            Builder(block, len(block.ops) - ends, block.ops[-1].loc).op("order_end", groups=most)
    return fn


def _deal(body: Block, groups: int, when: bool | str) -> bool:
    together: list[tuple[Op, Op]] = []  # the first and last of products that go together
    goes_on = False
    for op in body.ops:
        if op.name == "dot_async":
            together[-1:] = [(together[-1][0], op)] if goes_on else [*together[-1:], (op, op)]
            goes_on = True
        elif op.name in ("dot_wait", "dot_fence") or op.regions and op.define.regions != "fold":
            goes_on = False
    for first, last in together:
        beside(first).op("order_wait", groups=groups)
        used = _used(body, first, when) if isinstance(when, str) else None
        if used is None:
            beside(last, behind=True).op("order_arrive", groups=groups)
            continue
        fold, wait, releases = used
        if when == "products":
            moved = [wait, *releases]
            body.ops = [op for op in body.ops if op not in moved]
            at = body.ops.index(fold) + 1
            body.ops[at:at] = moved
            beside(wait).op("order_stay")
        turn = beside(fold if when == "scores" else wait, behind=True)
        turn.op("order_arrive", groups=groups)
        turn.op("order_stay")
    return bool(together)


def _used(body: Block, dot: Op, when: str) -> tuple[Op, Op, list[Op]] | None:
    """What folds the sums of a turn's first product, and the wait for the others behind that, with its releases."""
    ops = body.ops[body.ops.index(dot):]
    waits = [i for i, op in enumerate(ops) if op.name == "dot_wait"]
    if len(waits) != 2 or dot.result not in ops[waits[0]].operands:
        return None
    folds: list[Op] = []
    for op in ops[waits[0]:waits[1]]:
        if op.name == "reduce" and (not folds or op.operands == [folds[-1].result]):
            folds.append(op)
    if not folds:
        return None
    alone = [op for op in folds if when == "products" and _alone(op)]
    fold = (alone[:-1] or alone or folds)[-1]
    if any(v.op in ops[ops.index(fold):] for v in ops[waits[1]].operands):
        return None
    releases = list(takewhile(lambda op: op.name == "mbar_arrive", ops[waits[1] + 1:]))
    return fold, ops[waits[1]], releases


def _alone(fold: Op) -> bool:
    """Whether threads fold what they hold themselves."""
    layout, axis = fold.operands[0].tile.layout, fold.attrs["axis"]
    return layout is not None and not any(b[axis] for kind in ("lane", "warp") for b in layout.bases_of(kind))
