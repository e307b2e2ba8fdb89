"""Where divided warps meet again."""
from __future__ import annotations


def reconvergence(count: int, targets: dict[int, tuple[int, ...]], exits: set[int],
                  falls: set[int]) -> dict[int, int]:
    """Branch -> the instruction at which its lanes meet again, -1 for none."""
    leaders = {0} | {t for ts in targets.values() for t in ts if t < count}
    leaders |= {pc + 1 for pc in (*targets, *exits) if pc + 1 < count}
    starts = sorted(leaders)
    number = {pc: i for i, pc in enumerate(starts)}
    exit_node = len(starts)
    successors: list[list[int]] = []
    for i, start in enumerate(starts):
        last = (starts[i + 1] if i + 1 < len(starts) else count) - 1
        out = [number.get(t, exit_node) for t in targets.get(last, ())]
        if last in exits:
            out.append(exit_node)
        if last not in targets and last not in exits or last in falls:
            out.append(number.get(last + 1, exit_node))
        successors.append(list(dict.fromkeys(out)))
    idom = _post_dominators(successors, exit_node)
    block = {}
    for i, start in enumerate(starts):
        for pc in range(start, starts[i + 1] if i + 1 < len(starts) else count):
            block[pc] = i
    out_map = {}
    for pc in targets:
        meet = idom[block[pc]]
        out_map[pc] = starts[meet] if 0 <= meet < exit_node else -1
    return out_map


def _post_dominators(successors: list[list[int]], exit_node: int) -> list[int]:
    predecessors: list[list[int]] = [[] for _ in range(exit_node + 1)]
    for i, outs in enumerate(successors):
        for o in outs:
            predecessors[o].append(i)
    order: list[int] = []  # reverse post-order of the reversed graph, from the exit
    seen = {exit_node}
    stack = [(exit_node, iter(predecessors[exit_node]))]
    while stack:
        node, rest = stack[-1]
        for p in rest:
            if p not in seen:
                seen.add(p)
                stack.append((p, iter(predecessors[p])))
                break
        else:
            order.append(node)
            stack.pop()
    order.reverse()
    rank = {n: i for i, n in enumerate(order)}
    idom = [-1] * (exit_node + 1)
    idom[exit_node] = exit_node
    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            new = -1
            for s in successors[node]:
                if s not in rank or idom[s] < 0:
                    continue
                if new < 0:
                    new = s
                    continue
                a, b = new, s
                while a != b:
                    while rank[a] > rank[b]:
                        a = idom[a]
                    while rank[b] > rank[a]:
                        b = idom[b]
                new = a
            if new >= 0 and idom[node] != new:
                idom[node] = new
                changed = True
    return idom
