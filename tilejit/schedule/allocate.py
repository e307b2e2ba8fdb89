"""Places buffers, barriers and scratch areas in shared memory."""
from __future__ import annotations

from collections.abc import Mapping

from tilejit.errors import SharedMemoryError
from tilejit.ir import Function, Op, listed
from tilejit.ir.report import Record
from tilejit.ir.scratch import kept_bytes, scratch_bytes
from tilejit.ir.target import target_of
from tilejit.records import dataclass
from tilejit.schedule.liveness import Area, Liveness
from tilejit.schedule.packing import Item, overlap, pack
from tilejit.schedule.separate import DRAIN, FREE, MEET, WAIT, cost, separate

#: Bytes that rounding the base of shared memory up to 1024 may cost.
_ROUNDING = 1023
#: Bytes after which every swizzle pattern repeats: private areas of groups are this far apart, or a multiple.
_ATOM = 1024
#: Slots of a ring that hide the latency of copies: more are not worth that roles wait for each other; with fewer, one
#: more is worth a store's second staging tile (products on an H200: 0 to 4% faster).
ENOUGH_SLOTS = 4


@dataclass(frozen=True)
class Placement:
    """First byte of every area, where all end, and how far apart copies of private ones are (0: one copy)."""

    offsets: dict[Area, int]
    total: int
    private_bytes: int


class Allocator:
    def __init__(self, fn: Function):
        self.live, self.limit = Liveness(fn), limit(fn)
        self.fixed = sum(map(fixed_bytes, fn.body.ops))
        alone = self.live.groups == 1
        #: those of all groups together, and those of which every group has its own
        self.areas = [[a for a in self.live.areas if private != (alone or not a.private)] for private in (False, True)]
        self.costs = [[[cost(self.live, x, y) for y in areas[:i]] for i, x in enumerate(areas)] for areas in self.areas]
        self._clashes: dict[tuple[int, bool], list[set[int]]] = {}

    def bound(self, rings: Mapping[str, int], slots: int) -> None:
        """These rings with their slots bound."""
        for area in self.live.areas:
            if area.ring in rings:
                area.slots = slots * rings[area.ring]

    def clashes(self, level: int, private: bool) -> list[set[int]]:
        """For each of the private areas, or of the others, those that it may not share bytes with for `level`."""
        if (level, private) not in self._clashes:
            found: list[set[int]] = [set() for _ in self.areas[private]]
            for i, costs in enumerate(self.costs[private]):
                for j, price in enumerate(costs):
                    if price > level:
                        found[i].add(j)
                        found[j].add(i)
            self._clashes[level, private] = found
        return self._clashes[level, private]

    def place(self, level: int, rings: Mapping[str, int] | None = None, slots: int = 0,
              lean: bool = False) -> Placement:
        """The smallest placement found in which sharing costs no more than `level`."""
        slots_of = {ring: slots * times for ring, times in (rings or {}).items()}

        def packed(private: bool) -> tuple[dict[Area, int], int]:
            areas = self.areas[private]
            found = pack([Item(slots_of.get(a.ring, a.stripes if lean and a.kind == "store" else a.slots) * a.stride,
                               a.align, self.live.start(a)) for a in areas], self.clashes(level, private))
            return dict(zip(areas, found.offsets)), found.total

        (offsets, end), stride = packed(False), 0
        if self.areas[True]:
            inner, size = packed(True)
            start = -(-end // _ATOM) * _ATOM
            stride = -(-size // _ATOM) * _ATOM
            offsets.update({a: start + at for a, at in inner.items()})
            end = start + self.live.groups * stride
        deep = self.live.rings()  # separations between roles may add two mbarriers for each
        barriers = self.fixed + (16 * len(deep) if level >= WAIT and self.live.roles else 0)
        barriers += sum(16 * (slots_of[ring] - n) for ring, n in deep.items() if ring in slots_of)
        return Placement(offsets, -(-end // 8) * 8 + barriers if barriers else end, stride)

    def levels(self) -> range:
        """What sharing may cost: rings are drained from tile to tile only to have two slots at all."""
        deep = any(a.kind == "ring" and a.slots > 2 for a in self.live.areas)
        return range(FREE, WAIT + 1 if deep else DRAIN + 1)

    def best(self) -> Placement:
        return next((p for p in map(self.place, self.levels()) if p.total <= self.limit), None) or \
            min(map(self.place, self.levels()), key=lambda p: p.total)

    def slots(self, rings: Mapping[str, int], most: int, lean: bool = False) -> int:
        """How many slots, up to `most`, these rings can have."""
        found = self.deepest(MEET, rings, most, lean)
        if found < ENOUGH_SLOTS:
            found = max(found, min(self.deepest(WAIT, rings, most, lean), ENOUGH_SLOTS))
        return found if found > 1 else max(1, self.deepest(DRAIN, rings, 2, lean))

    def deepest(self, level: int, rings: Mapping[str, int], most: int, lean: bool = False) -> int:
        return next((n for n in range(most, 0, -1) if self.place(level, rings, n, lean).total <= self.limit), 0)

    def fewer(self, rings: Mapping[str, int], asked: int) -> int:
        """The most slots below `asked` that these rings can have, whatever has to be waited for; at least one."""
        return self.deepest(WAIT, rings, asked - 1) or self.deepest(DRAIN, rings, min(2, asked - 1)) or 1


def fixed_bytes(op: Op) -> int:
    """Bytes of an op that share with nobody: mbarriers, the address of a CTA's tensor maps, what threads keep."""
    if op.name == "stack":
        return op.attrs["slots"] * op.attrs.get("threads", 0) * kept_bytes(op.result.tile)
    return 8 * op.result.barrier.slots if op.name == "barriers" else 8 if op.name in ("tensor_maps", "steps") else 0


def limit(fn: Function) -> int:
    """Shared memory that the buffers of one CTA may take on the chip that the function is compiled for."""
    return target_of(fn).shared_bytes - _ROUNDING


def fits(fn: Function) -> bool:
    return bool(fn.attrs["shared_bytes"] <= limit(fn))


def allocate(fn: Function, allocator: Allocator | None = None) -> Function:
    """Set `offset`, `scratch` and `shared_bytes`, and put in the separations that sharing needs."""
    allocator = allocator or Allocator(fn)
    live, where = allocator.live, allocator.best()
    table = sorted((at, a.slots * a.stride, a.name, live.where(a)) for a, at in where.offsets.items())
    shared = [(x, y) for i, x in enumerate(live.areas) for y in live.areas[:i]
              if overlap((where.offsets[x], x.bytes), (where.offsets[y], y.bytes))]
    for area, at in where.offsets.items():
        if area.alloc is not None:
            area.alloc.attrs["offset"] = at
        for op, _ in area.scratch:
            op.attrs["scratch"] = at
    if where.private_bytes:
        assert live.roles is not None
        live.roles.attrs["private_bytes"] = where.private_bytes
        start = min(where.offsets[a] for a in live.areas if a.private)
        table.append((start + where.private_bytes, (live.groups - 1) * where.private_bytes,
                         f"the same for {live.groups - 1} more", ""))
    said = separate(live, shared)
    end = max((at + size for at, size, _, _ in table), default=0)
    for op in fn.body.ops:
        if size := fixed_bytes(op):
            op.attrs["offset"] = -(-end // 16) * 16 if op.name == "stack" else -(-end // 8) * 8
            end = op.attrs["offset"] + size
            name = {"stack": "kept by threads", "tensor_maps": "address of tensor maps"}.get(op.name, op.name)
            name = op.attrs.get("name", name)
            table.append((op.attrs["offset"], size, name, ""))
    fn.attrs["shared_bytes"] = end
    for at, size, name, used in table:
        fn.say("shared", f"shared {at:7d} + {size:6d}  {name}{used and f'    {used}'}", name, offset=at, bytes=size)
    saved = sum(size for _, size, _, _ in table) - end
    if shared and saved > 0:
        fn.say("reuse", f"shared memory: {end} bytes, {saved} saved by reuse", bytes=end, saved=saved)
    fn.attrs.setdefault("report", []).extend(said)
    return fn


def check_size(fn: Function) -> None:
    """Raise SharedMemoryError for too much shared memory; at the line that takes most, if that is all of it."""
    total, most = fn.attrs["shared_bytes"], limit(fn)
    if total <= most:
        return
    report = [x for x in fn.attrs["report"] if isinstance(x, Record)]
    notes = [f"{x.at}: {x.numbers['bytes']} bytes" for x in report if x.kind == "shared"]
    if any(x.kind == "ring" for x in report):
        notes.append("no num_stages fits: use smaller blocks")
    greatest = max(listed(fn.body), key=scratch_bytes)
    whole = scratch_bytes(greatest) > most and greatest.loc is not None
    if whole:
        notes.append(f"a tile {greatest.operands[-1].type} goes through shared memory at once ({greatest.name}): use "
                     "smaller tiles, or elements of fewer bits")
    raise SharedMemoryError(total, most, greatest.loc if whole else fn.loc, tuple(notes))
