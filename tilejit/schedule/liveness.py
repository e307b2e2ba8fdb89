"""When the bytes of shared memory are in use: areas, their accesses, and which of two comes first."""
from __future__ import annotations

from collections.abc import Iterable

from tilejit.ir import OPS, Block, Function, Op, Value, enclosing, inside, listed, loop_around, uses
from tilejit.ir.flight import rings
from tilejit.ir.scratch import scratch_bytes
from tilejit.ir.types import Buffer
from tilejit.records import dataclass, field
from tilejit.schedule.buffers import barriers_of


@dataclass(eq=False)
class Area:
    name: str
    kind: str  # ring, store, operand or scratch
    slots: int
    stride: int
    align: int
    alloc: Op | None  # None: scratch
    private: bool  # exists once for every group of the role
    accesses: list[list[Op]]  # by role: the ops that touch it or its barriers, in order
    generic: bool  # loads or stores of threads touch it, and no proxy fence of its own follows
    barrier: bool  # each of its first accesses is right behind a barrier of the role
    ring: str = ""  # the channel whose barriers guard it
    stripes: int = 1  # of a store's staging: slots that it has at least
    ahead: bool = False  # of a ring: filled before the trip that reads it
    scratch: list[tuple[Op, int]] = field(default_factory=list)  # ops that use it as scratch, and bytes

    @property
    def bytes(self) -> int:
        return self.slots * self.stride


@dataclass(frozen=True, eq=False)
class Step:
    """Bytes that go from one area to the next: what of `first` there is in `block` comes before `then`."""

    first: Area
    then: Area
    block: Block
    wraps: bool
    there: Block | None
    loops: int
    hint: Op | None


class Liveness:
    def __init__(self, fn: Function):
        self.fn = fn
        self.roles = next((op for op in fn.body.ops if op.name == "roles"), None)
        regions = self.roles.regions if self.roles else [fn.body]
        self.groups = self.roles.attrs["groups"][0] if self.roles else 1
        #: the block of each role; where one thread does everything, what that thread does
        self.frames = [_frame(block) for block in regions]
        self.uses = uses(fn.body)
        self.order = [{op: i for i, op in enumerate(listed(block))} for block in self.frames]
        self.scratch = {op: n for block in regions for op in listed(block) if (n := scratch_bytes(op))}
        self.areas = list(self._buffers())
        self.areas += self._scratch({op for area in self.areas for ops in area.accesses for op in ops})
        self.hints = [op for op in self.order[0] if op.name == "reuse"]

    def _buffers(self) -> Iterable[Area]:
        barriers = barriers_of(self.fn)
        filled = rings(self.fn)
        for op in self.fn.body.ops:
            if op.name != "alloc":
                continue
            buffer, touching = op.result.buffer, self._touching(op.result)
            ring = filled.get(op.result, "")
            kind = "store" if any(x.name == "tma_store" for x in touching) else "ring" if ring else "operand"
            others = any("own_buffer" not in x.define.traits for x in touching)
            generic = any("generic" in x.define.traits for x in touching)
            if kind == "ring":
                ends = [barriers[name] for end in ("full", "empty") if (name := f"{ring}.{end}") in barriers]
                touching += [user for b in ends for user, _ in self.uses.get(b, ())]
            elif kind == "operand":  # products have read it where they are waited for: around a loop without a wait
                for dot in [x for x in touching if x.name == "dot_async"]:
                    waits = [user for user, _ in self.uses.get(dot.result, ()) if user.name == "dot_wait"]
                    around = [x for x in enclosing(dot) if x.name != "roles"]
                    touching += waits or around[-1:] or [dot.block.ops[-1]]
            if others:  # other CTAs write there, whenever they are ready
                touching = []
            accesses = [sorted({x for x in touching if x in order}, key=order.__getitem__) for order in self.order]
            yield Area(op.attrs["name"], kind, buffer.slots, buffer.slot_stride, max(128, 8 * buffer.swizzle), op,
                       bool(op.attrs.get("private")), accesses, generic,
                       all(self.begins_with_barrier(x) for x in accesses[0] if "shared_write" in x.define.effects)
                       and kind != "ring", ring,
                       max((x.attrs["stripes"] for x in touching if x.name == "tma_store"), default=1),
                       buffer.slots > 1 or sum("fills" in x.define.traits for x in set(touching)) > 1)

    def _touching(self, v: Value) -> list[Op]:
        found = []
        for op, _ in self.uses.get(v, ()):
            if op.name == "reuse":
                continue
            found.append(op)
            if op.results and isinstance(op.results[0].type, Buffer):  # a view
                found += self._touching(op.result)
        return found

    def _scratch(self, others: set[Op]) -> list[Area]:
        """One area for all uses between which no other area is touched; all of a role that only loads."""
        found: list[Area] = []
        for role, order in enumerate(self.order):
            current: Area | None = None
            for op in order:
                if op in self.scratch:
                    if current is None:
                        current = Area("", "scratch", 1, 0, 128, None, True, [[] for _ in self.order], True, True)
                        found.append(current)
                    current.accesses[role].append(op)
                    current.scratch.append((op, self.scratch[op]))
                    current.stride = max(current.stride, -(-self.scratch[op] // 16) * 16)
                elif op in others:
                    current = None
        for area in found:
            area.name = f"scratch of {', '.join(sorted({op.name for op, _ in area.scratch}))}"
        return found

    def begins_with_barrier(self, op: Op) -> bool:
        """Whether there is a barrier of the role after what came before `op` and before it touches shared memory."""
        if self.barrier(op):
            return True
        for before in reversed(op.block.ops[:op.block.ops.index(op)]):
            if before.name == "role_sync":
                return True
            if before in self.scratch or not before.define.pure and before.name != "reuse":
                return False
        return False

    def barrier(self, op: Op) -> bool:
        """Whether an op itself is, or begins with, a barrier of all threads of the role."""
        return ("barrier" in op.define.traits or op in self.scratch
                or op.name == "tma_store" and op.attrs["stripes"] == 1 and "now" not in op.attrs)

    # -- positions --
    def chains(self, areas: Iterable[Area], role: int) -> list[list[Block]]:
        """The blocks in which areas are touched, each with those around it, from the role's own on."""
        found = []
        for block in dict.fromkeys(op.block for area in areas for op in area.accesses[role]):
            found.append([block])
            while (first := found[-1][0]) is not self.frames[role] and first.parent is not None:
                found[-1].insert(0, first.parent.block)
        return found

    def span(self, area: Area, role: int, block: Block) -> tuple[int, int]:
        """The first and the last op of a block that touch an area, or contain such ops."""
        found = {inside(block, op) for op in area.accesses[role]}
        places = [i for i, op in enumerate(block.ops) if op in found]
        return places[0], places[-1]

    def rings(self) -> dict[str, int]:
        return {a.ring: a.slots for a in self.areas if a.ring}

    def start(self, area: Area) -> int:
        return self.order[0][area.accesses[0][0]] if area.accesses[0] else 0

    def steps(self, x: Area, y: Area) -> list[Step] | None:
        """How bytes may go from one of two areas to the other and, in a loop, back again; None if they may not."""
        if x.kind == y.kind == "scratch" and bool(x.accesses[0]) == bool(y.accesses[0]):
            return []  # every use of scratch begins with a barrier
        if not x.accesses[0] or not y.accesses[0] or self.groups > 1 and not (x.private and y.private):
            return None
        chains = self.chains((x, y), 0)
        depth = next((d for d, level in enumerate(zip(*chains)) if len(set(map(id, level))) > 1),
                     min(map(len, chains))) - 1
        block = chains[0][depth]
        (x0, x1), (y0, y1) = self.span(x, 0, block), self.span(y, 0, block)
        if x1 >= y0 and y1 >= x0:
            return None
        first, then = (x, y) if x1 < y0 else (y, x)
        if len(self.frames) == 1 and self.fn.attrs.get("num_ctas", 1) > 1 and "ring" in (x.kind, y.kind):
            return None  # the CTAs of a cluster fill each other's slots, no barrier on the way
        around = [b.parent.name for b in chains[0][1:depth + 1] if b.parent is not None]
        loops = sum("loop" in OPS[name].traits for name in around)
        # A ring that is filled ahead is in use throughout the innermost loop around its uses.
        views = [op for a in (x, y) if a.kind == "ring" and a.ahead for op in a.accesses[0] if op.name == "view"]
        if loops and not all((loop := loop_around(op)) and inside(block, loop) for op in views):
            return None
        there = None
        for area in (x, y):
            if len(self.frames) > 1 and area.kind == "ring" and area.accesses[1]:
                same = self._mirror(area, depth, around)
                if same is None or there not in (None, same) or loops and set(around) != {"for"}:
                    return None
                there = same
        if there is not None and x.accesses[1] and y.accesses[1] and \
                self.span(first, 1, there)[1] >= self.span(then, 1, there)[0]:
            return None
        steps = [self._step(first, then, block, False, there, loops)]
        if loops:
            steps.append(self._step(then, first, block, True, there, loops))
        return steps

    def _step(self, first: Area, then: Area, block: Block, wraps: bool, there: Block | None, loops: int) -> Step:
        between = set(block.ops[self.span(first, 0, block)[1] + 1:self.span(then, 0, block)[0]])
        hint = next((h for h in self.hints if first.alloc is not None and first.alloc.result in h.operands
                     and (wraps or inside(block, h) in between)), None)
        return Step(first, then, block, wraps, there if there is not None and then.accesses[1] else None, loops, hint)

    def _mirror(self, ring: Area, depth: int, around: list[str]) -> Block | None:
        """The block of the loading role that stands for a block of the computing one, both at `depth`."""
        found = self.chains([ring], 1)
        if any([b.parent.name for b in chain[1:depth + 1] if b.parent is not None] != around for chain in found):
            return None
        same = {chain[depth] for chain in found}
        return same.pop() if len(same) == 1 else None

    def where(self, area: Area) -> str:
        """The live range in words."""
        ops = area.accesses[0] or [op for ops in area.accesses for op in ops]
        if not ops:
            return "throughout"
        role = 0 if area.accesses[0] else 1
        outer = [inside(self.frames[role], op) or op for op in ops]
        first, last = outer[0].place, outer[-1].place
        if len(set(outer)) == 1 and "loop" in outer[0].define.traits:
            return f"in the loop at {first}"
        return f"at {first}" if first == last else f"from {first} to {last}"


def _frame(block: Block) -> Block:
    """What a role does: the region of its elected thread where that is everything."""
    elects = [op for op in block.ops if op.name == "elect"]
    if len(elects) == 1 and all(op is elects[0] or op.define.pure for op in block.ops):
        return elects[0].regions[0]
    return block
