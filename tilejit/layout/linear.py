"""LinearLayout: one idea for every way a tile is spread over threads or memory."""
from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cached_property, lru_cache
from math import prod

import numpy as np

from tilejit.records import dataclass

Basis = tuple[int, ...]
#: Passes and emitters ask the same few layouts for the same few others at every op.
_remembered = lru_cache(maxsize=4096)


@dataclass(frozen=True)
class LinearLayout:
    """`bases`: per input name (register, lane, warp or offset), one coordinate vector per bit, low first. Equality is
    by value.
    """

    bases: tuple[tuple[str, tuple[Basis, ...]], ...]
    shape: tuple[int, ...]

    @cached_property
    def _hash(self) -> int:
        return hash((self.bases, self.shape))

    def __hash__(self) -> int:
        """Computed once: layouts are keys."""
        return self._hash

    @staticmethod
    def from_bases(bases: Mapping[str, object], shape: tuple[int, ...]) -> LinearLayout:
        """Raises ValueError for a bad basis, and for sizes that `check_odd` refuses."""
        rows, sizes = [], [max(s, 1) for s in shape]
        for name, vectors in bases.items():
            row = tuple([tuple(map(int, v)) for v in vectors])  # type: ignore[attr-defined]
            for v in row:
                if len(v) != len(sizes) or [x for x, s in zip(v, sizes) if not 0 <= x < s]:
                    raise ValueError(f"basis {v} of {name} does not fit shape {shape}")
            rows.append((name, row))
        layout = LinearLayout(tuple(rows), tuple(shape))
        layout.check_odd()
        return layout

    def check_odd(self) -> None:
        """Raise ValueError unless the last registers, or warps of their own, choose among the parts of a size that is
        no power of two.
        """
        free = True  # whether the last registers choose among no other size's parts
        for d in self.odd_dims:
            unit = self.shape[d] & -self.shape[d]
            above = [(n, b) for n, row in self.bases for b in row if b[d] >= unit]
            chooses = [tuple((unit << i) * (k == d) for k in range(self.rank))
                       for i in range((self.shape[d] // unit).bit_length())]
            by_registers = above == [("register", b) for b in self.bases_of("register")[-len(chooses):]] and free
            if [b for _, b in above] != chooses or not (by_registers or all(n == "warp" for n, _ in above)):
                raise ValueError(f"{self.shape[d]} is no power of two, and no registers of their own choose among its "
                                 f"{self.shape[d] // unit} parts")
            free = free and not by_registers

    # -- reading --
    @property
    def rank(self) -> int:
        return len(self.shape)

    def bases_of(self, name: str) -> tuple[Basis, ...]:
        return self._by_name.get(name, ())

    @cached_property
    def _by_name(self) -> dict[str, tuple[Basis, ...]]:
        return dict(self.bases)

    def in_bits(self, name: str) -> int:
        return len(self.bases_of(name))

    def in_size(self, name: str) -> int:
        return 1 << self.in_bits(name)

    @cached_property
    def odd_dims(self) -> tuple[int, ...]:
        return tuple(d for d, s in enumerate(self.shape) if s & (s - 1))

    def among_warps(self, d: int) -> bool:
        return any(b[d] >= self.shape[d] & -self.shape[d] for b in self.bases_of("warp"))

    @cached_property
    def num_registers(self) -> int:
        count = self.in_size("register")
        for d in self.odd_dims:
            if not self.among_warps(d):
                count = count * self.shape[d] >> _bits(self.shape[d])
        return count

    def apply(self, **places: int) -> tuple[int, ...]:
        out = [0] * self.rank
        for name, value in places.items():
            for i, basis in enumerate(self.bases_of(name)):
                if value >> i & 1:
                    out = [a ^ b for a, b in zip(out, basis)]
        return tuple(out)

    @_remembered
    def registers(self) -> tuple[tuple[int, ...], ...]:
        dims = []
        for d in range(self.rank):
            out = [0]
            for basis in self.bases_of("register"):
                out += [x ^ basis[d] for x in out]
            dims.append(out[:self.num_registers])
        return tuple(zip(*dims)) if dims else ((),) * self.num_registers

    def coords(self, name: str) -> np.ndarray:
        """Coordinates for every value of one input that exists, the others 0: [values, rank]."""
        table = np.zeros((1, self.rank), dtype=np.int64)
        for basis in self.bases_of(name):
            table = np.concatenate([table, table ^ np.array(basis, dtype=np.int64)])
        return table[(table < self.shape).all(1)] if name in ("register", "warp") else table

    def table(self) -> np.ndarray:
        """Coordinates of every place: [warps, lanes, registers, rank]."""
        r, lane, warp = (self.coords(n) for n in ("register", "lane", "warp"))
        return warp[:, None, None] ^ lane[None, :, None] ^ r[None, None, :]

    def zero_bits(self, name: str) -> tuple[int, ...]:
        return tuple(i for i, b in enumerate(self.bases_of(name)) if not any(b))

    # -- algebra --
    def _map(self, change, shape: tuple[int, ...]) -> LinearLayout:
        return LinearLayout(tuple((n, tuple(tuple(change(b)) for b in row)) for n, row in self.bases), shape)

    @_remembered
    def canonical(self) -> LinearLayout:
        kept: list[Basis] = []
        echelon: list[int] = []
        for basis in self.bases_of("register"):
            value = self._flat(basis)
            for row in echelon:
                value = min(value, value ^ row)
            if value:
                kept.append(basis)
                echelon.append(value)
        return LinearLayout(tuple((n, tuple(kept) if n == "register" else row) for n, row in self.bases),
                            self.shape)

    @_remembered
    def transpose(self, order: tuple[int, ...]) -> LinearLayout:
        return self._map(lambda b: [b[i] for i in order], tuple(self.shape[i] for i in order))

    @_remembered
    def reshape(self, shape: tuple[int, ...]) -> LinearLayout:
        """The same elements in row-major order. Raises ValueError where `regrouped` does."""
        groups = regrouped(self.shape, shape)

        def relabel(b: Basis) -> list[int]:
            out: list[int] = []
            for (start, stop), sizes in groups:
                flat, part = 0, []
                for x, s in zip(b[start:stop], self.shape[start:stop]):
                    flat = flat * s + x
                for s in reversed(sizes):
                    part.append(flat % s)
                    flat //= s
                out += reversed(part)
            return out
        return self._map(relabel, tuple(shape))

    @_remembered
    def expand_dims(self, axis: int) -> LinearLayout:
        return self._map(lambda b: [*b[:axis], 0, *b[axis:]],
                         (*self.shape[:axis], 1, *self.shape[axis:]))

    @_remembered
    def drop_dim(self, axis: int) -> LinearLayout:
        assert self.shape[axis] == 1, f"dimension {axis} of {self.shape} is not 1"
        return self._map(lambda b: [*b[:axis], *b[axis + 1:]],
                         (*self.shape[:axis], *self.shape[axis + 1:]))

    @_remembered
    def project(self, shape: tuple[int, ...]) -> LinearLayout:
        """The layout of the source of a broadcast to this one: dimensions that are 1 in `shape` vanish."""
        return self._map(lambda b: [x if s > 1 else 0 for x, s in zip(b, shape)], tuple(shape)).canonical()

    def reduce(self, axis: int) -> LinearLayout:
        """The layout that a fold along `axis` leaves: every place that took part holds the result."""
        ones = tuple(1 if i == axis else s for i, s in enumerate(self.shape))
        return self.project(ones).drop_dim(axis)

    @_remembered
    def part(self, axis: int, size: int) -> LinearLayout:
        """The layout of each of the equal parts of `size` elements (a power of two) along a dimension."""
        def chooses(b: Basis) -> bool:
            return b[axis] >= size

        if any(chooses(b) and (n != "register" or b[axis] % size or any(x for d, x in enumerate(b) if d != axis))
               for n, row in self.bases for b in row):
            raise ValueError(f"parts of {size} along dimension {axis} of {self} are not registers of their own")
        shape = tuple(size if d == axis else s for d, s in enumerate(self.shape))
        return LinearLayout(tuple((n, tuple(b for b in row if not chooses(b))) for n, row in self.bases), shape)

    @_remembered
    def split(self) -> LinearLayout:
        """The layout of both halves of a last dimension of size 2."""
        pair = (*([0] * (self.rank - 1)), 1)
        if self.shape[-1] != 2 or pair not in self.bases_of("register") \
                or sum(b[-1] for _, row in self.bases for b in row) != 1:
            raise ValueError(f"the last dimension of {self} is not one register bit of size 2")
        return LinearLayout(tuple((n, tuple(b[:-1] for b in row if b != pair)) for n, row in self.bases),
                            self.shape[:-1])

    @_remembered
    def join(self) -> LinearLayout:
        wide = self._map(lambda b: [*b, 0], (*self.shape, 2))
        new = (*([0] * self.rank), 1)
        return LinearLayout(tuple((n, (new, *row) if n == "register" else row) for n, row in wide.bases),
                            wide.shape)

    # -- inverses and products --
    def _flat(self, basis: Basis) -> int:
        flat = 0
        for x, s in zip(basis, self.shape):
            flat = (flat << _bits(s)) | x
        return flat

    def columns(self) -> list[tuple[str, int, int]]:
        return [(n, i, self._flat(b)) for n, row in self.bases for i, b in enumerate(row)]

    def is_surjective(self) -> bool:
        return len(_echelon(self, None)) == sum(map(_bits, self.shape))

    def is_injective(self) -> bool:
        return len(_echelon(self, None)) == sum(len(row) for _, row in self.bases)

    def place_of(self, coords: Basis, among: tuple[str, ...] | None = None) -> dict[str, int]:
        """One place (input name -> value) that holds the element. Raises ValueError if there is none."""
        flat, mask = self._flat(coords), 0
        for top, value, columns in _echelon(self, among):
            if flat >> top & 1:
                flat, mask = flat ^ value, mask ^ columns
        if flat:
            raise ValueError(f"{coords} is not held in {self}" + (f" by {among} alone" if among else ""))
        place: dict[str, int] = {n: 0 for n, _ in self.bases}
        index = 0
        for name, row in self.bases:
            place[name] = mask >> index & ((1 << len(row)) - 1)
            index += len(row)
        return place

    def invert(self) -> LinearLayout:
        """Coordinates -> place (by `place_of`)."""
        rows = {}
        for d, size in enumerate(self.shape):
            units = (tuple(1 << i if k == d else 0 for k in range(self.rank))
                     for i in range(_bits(size)))
            rows[f"dim{d}"] = [tuple(self.place_of(u).values()) for u in units]
        return LinearLayout.from_bases(rows, tuple(1 << len(row) for _, row in self.bases))

    def compose(self, outer: LinearLayout) -> LinearLayout:
        """`outer` after this layout: its inputs, in order, take this layout's coordinates."""
        names = [n for n, _ in outer.bases]
        if len(names) != self.rank or any(s > outer.in_size(n) for n, s in zip(names, self.shape)):
            raise ValueError(f"coordinates of {self} are not places of {outer}")
        return self._map(lambda b: list(outer.apply(**dict(zip(names, b)))), outer.shape)

    def invert_and_compose(self, other: LinearLayout) -> LinearLayout:
        """`other`^-1 . self: where `other` has what is here."""
        if tuple(map(_bits, self.shape)) != tuple(map(_bits, other.shape)):
            raise ValueError(f"layouts of different tiles: {self.shape} and {other.shape}")
        return self.compose(other.invert())

    def contiguous_registers(self, dim: int = -1) -> int:
        """How many consecutive elements along `dim` the low register bits walk."""
        run = 1
        for basis in self.bases_of("register"):
            if basis != tuple(run if d == dim % self.rank else 0 for d in range(self.rank)):
                break
            run *= 2
        return run

    # -- text --
    def __str__(self) -> str:
        rows = " ".join(f"{n}={list(map(list, row))}".replace(" ", "") for n, row in self.bases)
        return f"<{'x'.join(map(str, self.shape))} {rows}>"

    @staticmethod
    def parse(text: str) -> LinearLayout:
        shape, *rows = text.strip()[1:-1].split(" ")
        bases = {}
        for row in rows:
            name, _, value = row.partition("=")
            bases[name] = ast.literal_eval(value)
        return LinearLayout.from_bases(bases, tuple(map(int, shape.split("x"))) if shape else ())


def regrouped(shape: tuple[int, ...], target: tuple[int, ...]) -> list[tuple[tuple[int, int], tuple[int, ...]]]:
    """How a row-major reshape maps dimensions. Raises ValueError for sizes that it cannot."""
    assert prod(shape) == prod(target), (shape, target)
    groups, start, at = [], 0, 0
    while start < len(shape) or at < len(target):
        # A size of 1 is a group without a counterpart, unless that is 1 as well.
        stop, end = start + (target[at:at + 1] != (1,)), at + (shape[start:start + 1] != (1,))
        if stop == start and end == at:
            stop, end = start + 1, at + 1
        while (left := prod(shape[start:stop])) != (right := prod(target[at:end])):
            stop, end = stop + (left < right), end + (left > right)
        if any(s & (s - 1) for s in (*shape[start + 1:stop], *target[at + 1:end])):
            raise ValueError("a size that is no power of two may only become another one and powers of two after it, "
                             f"or be made of such; found {list(shape)} and {list(target)}")
        groups.append(((start, stop), target[at:end]))
        start, at = stop, end
    return groups


def _bits(size: int) -> int:
    return (size - 1).bit_length()


@lru_cache(maxsize=4096)
def _echelon(layout: LinearLayout, among: tuple[str, ...] | None) -> tuple[tuple[int, int, int], ...]:
    """Gaussian elimination over the columns: (leading bit, value, set of columns whose xor is the value)."""
    rows: list[tuple[int, int, int]] = []
    for index, (name, _, value) in enumerate(layout.columns()):
        if among is not None and name not in among:
            continue
        mask = 1 << index
        for top, v, m in rows:  # a row has no leading bit of the rows before it: one pass is enough
            if value >> top & 1:
                value, mask = value ^ v, mask ^ m
        if value:
            rows.append((value.bit_length() - 1, value, mask))
    return tuple(sorted(rows, reverse=True))
