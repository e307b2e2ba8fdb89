"""Which of a tile's registers differ by what is the same in all threads."""
from __future__ import annotations

from collections.abc import Hashable, Sequence

from tilejit.ir.core import Edge, Op, Value
from tilejit.ir.types import DType, Pending, Ptr, Tile, elem_of, int64, uint64
from tilejit.layout.linear import LinearLayout
from tilejit.ptx.places import renamed, repeated, source_layout

#: Multiples of scalars: each with how many of it, in the order in which they were met.
Multiples = tuple[tuple[Value, int], ...]
#: A register as a sum: the number of what it has in common with others, how far it is from that, and in multiples.
Step = tuple[int, int, Multiples]
#: What numbers are counted from.
ZERO = 0


class Steps:
    def __init__(self, known: dict[Value, list[Step]] | None = None, bases: dict[Hashable, int] | None = None):
        self.known: dict[Value, list[Step]] = {} if known is None else known
        self.bases: dict[Hashable, int] = {(): ZERO} if bases is None else bases
        self._roots: dict[Value, list[int]] = {}

    def of(self, v: Value) -> list[Step]:
        if v not in self.known:
            self.known[v] = self._find(v) or [(self.base(v, i), 0, ()) for i in range(_count(v))]
        return self.known[v]

    def base(self, *what: Hashable) -> int:
        return self.bases.setdefault(what, len(self.bases))

    def roots(self, v: Value) -> list[int]:
        """For each register, the one that it is counted from: the least with the same base."""
        if v not in self._roots:
            found = self.of(v)
            sizes = [(sum([abs(k) for _, k in far]) if far else 0, n) for _, n, far in found]
            least: dict[int, int] = {}
            for i, (base, *_) in enumerate(found):
                if base not in least or sizes[i] < sizes[least[base]]:
                    least[base] = i
            self._roots[v] = [least[base] for base, *_ in found]
        return self._roots[v]

    def apart(self, v: Value) -> list[tuple[int, Multiples]]:
        found = self.of(v)
        from_ = [found[root] for root in self.roots(v)]
        return [(m - n, _sum(some, others, -1) if some or others else ())
                for (_, m, some), (_, n, others) in zip(found, from_)]

    def spread(self, v: Value) -> bool:
        roots = self.roots(v)
        return roots != list(range(len(roots)))

    def by_roots(self, op: Op) -> bool:
        if op.name != "ptr_add" and (op.name != "mul" or elem_of(op.result.type) not in (int64, uint64)):
            return False
        return self.spread(op.result)

    def carried(self, ways: Sequence[Edge]) -> list[Edge]:
        together = [w for w in ways if w.init is not None and counts(w.result) and self.spread(w.init)]
        while together:
            trial = Steps(dict(self.known), self.bases)
            for w in together:
                assert w.init is not None
                for v in (*w.args, w.result):
                    trial.known[v] = [(self.base(v, base), n, far) for base, n, far in self.of(w.init)]
            stay = [w for w in together if _alike(trial.of(w.args[0]), trial.of(w.ends[0]))]
            if len(stay) == len(together):
                for w in stay:
                    self.known.update({v: trial.known[v] for v in (*w.args, w.result)})
                break
            together = stay
        return together

    def _find(self, v: Value) -> list[Step] | None:
        op = v.op
        if not isinstance(op, Op) or not counts(v):
            return None
        if op.name == "const":
            return [(ZERO, int(op.attrs["value"]), ())] * _count(v)
        if op.name == "arange":
            return self._range(op)
        if op.name == "splat":
            return self.of(op.operands[0]) * _count(v)
        if op.name in ("expand_dims", "reshape", "trans"):
            inner = self.of(op.operands[0])
            return [inner[i] for i in renamed(source_layout(op), v.layout, op)]
        if op.name == "broadcast":
            inner = self.of(op.operands[0])
            return [inner[i] for i in repeated(op)]
        if op.name == "hint":
            return self.of(op.operands[0])
        if op.name == "cast" and _widens(op):
            t = elem_of(v.type)
            return [(self.base(t, base) if base else ZERO, n, far) for base, n, far in self.of(op.operands[0])]
        summed = op.name == "ptr_add" or op.name in ("add", "sub", "mul")
        if summed and all(counts(x) and _signed(x) for x in op.operands):
            return self._sums(op)
        return None

    def _range(self, op: Op) -> list[Step] | None:
        layout: LinearLayout = op.result.layout
        threads = sum({b for name in ("lane", "warp") for (b,) in layout.bases_of(name)})
        numbers = [n for (n,) in layout.registers()]
        if any(threads & n for n in numbers):
            return None
        base = self.base("arange", layout)
        return [(base, op.attrs["start"] + n, ()) for n in numbers]

    def _sums(self, op: Op) -> list[Step] | None:
        left, right = map(self.of, op.operands)
        if op.name == "mul":
            if any(base for base, *_ in left):
                left, right = right, left
            if any(base for base, *_ in left):
                return self._multiples(op)
            return [(self.base("mul", c, base) if base else ZERO, c * n, far and tuple((s, c * k) for s, k in far))
                    for (_, c, _), (base, n, far) in zip(left, right)]
        t = elem_of(op.result.type)
        size = t.elem.bytes if isinstance(t, Ptr) else -1 if op.name == "sub" else 1
        return [(self.base(op.name, size, a, b) if a or b else ZERO, m + size * n,
                 _sum(some, others, size) if others else some)
                for (a, m, some), (b, n, others) in zip(left, right)]

    def _multiples(self, op: Op) -> list[Step] | None:
        for v, by in (op.operands, op.operands[::-1]):
            scalar, found = _scalar(by), self.of(v)
            if scalar is not None and elem_of(by.type).bits == 64 and not any(far for *_, far in found):
                return [(self.base("multiple", scalar, base), 0, ((scalar, n),) if n else ()) for base, n, _ in found]
        return None


def _scalar(v: Value) -> Value | None:
    while isinstance(v.type, Tile) and isinstance(v.op, Op) and v.op.name in ("splat", "broadcast", "expand_dims"):
        v = v.op.operands[0]
    return None if isinstance(v.type, Tile) else v


def _sum(some: Multiples, others: Multiples, times: int) -> Multiples:
    if not others:
        return some
    found = dict(some)
    for scalar, n in others:
        found[scalar] = found.get(scalar, 0) + times * n
    return tuple((scalar, n) for scalar, n in found.items() if n)


def _alike(before: list[Step], after: list[Step]) -> bool:
    moved: dict[int, tuple[int, int, Multiples]] = {}
    for (base, n, some), (other, m, others) in zip(before, after):
        by = other, m - n, _sum(others, some, -1)
        if moved.setdefault(base, by) != by:
            return False
    return True


def _count(v: Value) -> int:
    return v.layout.num_registers if isinstance(v.type, Tile) else 1


def counts(v: Value) -> bool:
    if not isinstance(v.type, (Tile, DType, Ptr)) or isinstance(v.type, Pending):
        return False
    t = elem_of(v.type)
    return isinstance(t, Ptr) or t.family in ("int", "uint") and t.bits >= 32


def _signed(v: Value) -> bool:
    t = elem_of(v.type)
    return isinstance(t, Ptr) or t.is_signed


def _widens(op: Op) -> bool:
    x = op.operands[0]
    if not counts(x):
        return False
    old, new = elem_of(x.type), elem_of(op.result.type)
    return isinstance(old, DType) and isinstance(new, DType) and new.bits >= old.bits and new.is_signed >= old.is_signed
