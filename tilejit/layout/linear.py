"""LinearLayout: one idea for every way a tile is spread over threads or memory.

A tile with power-of-two sizes has element coordinates made of bits. The hardware place that holds an
element (register, lane, warp; or an offset in shared memory) is made of bits too. In all layouts that
matter on a GPU, the element that a place holds depends on the place's bits *linearly over GF(2)*: the
coordinates are the xor of one fixed vector (a *basis*) per set bit. So a layout is just its bases.

Example: a 4x8 tile over 8 lanes with 4 registers each, two neighbouring columns and two rows a lane:

    register bit 0 -> (0,1)      lane bit 0 -> (0,2)
    register bit 1 -> (1,0)      lane bit 1 -> (0,4)
                                 lane bit 2 -> (2,0)

    lane 5 = 0b101, register 3 = 0b11:  (0,2)^(2,0) ^ (0,1)^(1,0) = (3,3)

What makes this worth one class: transposing permutes the entries of every basis; reshaping relabels bits;
a broadcast is a zero basis (two places hold the same element); a reduction along a dimension zeroes that
entry; a swizzle is a basis with bits in two dimensions; converting between layouts is `dst^-1 . src`, a
matrix product. Direction is place -> element because several places may hold one element.

Source: 'Linear Layouts: Robust Code Generation of Efficient Tensor Computation Using F2', arXiv 2505.23819.
"""
from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

Basis = tuple[int, ...]


@dataclass(frozen=True)
class LinearLayout:
    """`bases`: per input name (register, lane, warp or offset), one coordinate vector per bit, low first.

    `shape` is the tile's shape; every coordinate entry is below its size. Equality is by value."""

    bases: tuple[tuple[str, tuple[Basis, ...]], ...]
    shape: tuple[int, ...]

    @staticmethod
    def from_bases(bases: Mapping[str, object], shape: tuple[int, ...]) -> LinearLayout:
        """Build from a mapping; raises ValueError for a size that is no power of two or a bad basis."""
        for s in shape:
            if s < 1 or s & (s - 1):
                raise ValueError(f"layout sizes must be powers of two, found {shape}")
        rows = []
        for name, vectors in bases.items():
            row = tuple(tuple(int(x) for x in v) for v in vectors)  # type: ignore[attr-defined]
            for v in row:
                if len(v) != len(shape) or any(not 0 <= x < max(s, 1) for x, s in zip(v, shape)):
                    raise ValueError(f"basis {v} of {name} does not fit shape {shape}")
            rows.append((name, row))
        return LinearLayout(tuple(rows), tuple(shape))

    # -- reading --------------------------------------------------------------------------------------
    @property
    def rank(self) -> int:
        return len(self.shape)

    def bases_of(self, name: str) -> tuple[Basis, ...]:
        """The bases of one input, low bit first; empty if it has none."""
        return next((b for n, b in self.bases if n == name), ())

    def in_bits(self, name: str) -> int:
        """Number of bits of an input."""
        return len(self.bases_of(name))

    def in_size(self, name: str) -> int:
        """Number of values of an input."""
        return 1 << self.in_bits(name)

    @property
    def num_registers(self) -> int:
        """Registers per thread of a distributed tile."""
        return self.in_size("register")

    def apply(self, **places: int) -> tuple[int, ...]:
        """Coordinates of the element at a place; inputs that are not named are 0."""
        out = [0] * self.rank
        for name, value in places.items():
            for i, basis in enumerate(self.bases_of(name)):
                if value >> i & 1:
                    out = [a ^ b for a, b in zip(out, basis)]
        return tuple(out)

    def coords(self, name: str) -> np.ndarray:
        """Coordinates for every value of one input, the others 0: int array [in_size, rank]."""
        table = np.zeros((1, self.rank), dtype=np.int64)
        for basis in self.bases_of(name):
            table = np.concatenate([table, table ^ np.array(basis, dtype=np.int64)])
        return table

    def table(self) -> np.ndarray:
        """Coordinates of every place: int array [warps, lanes, registers, rank]."""
        r, lane, warp = (self.coords(n) for n in ("register", "lane", "warp"))
        return warp[:, None, None] ^ lane[None, :, None] ^ r[None, None, :]

    def zero_bits(self, name: str) -> tuple[int, ...]:
        """Bits of an input that do not change the element: places that differ in them hold copies."""
        return tuple(i for i, b in enumerate(self.bases_of(name)) if not any(b))

    # -- algebra --------------------------------------------------------------------------------------
    def _map(self, change, shape: tuple[int, ...]) -> LinearLayout:
        return LinearLayout(tuple((n, tuple(tuple(change(b)) for b in row)) for n, row in self.bases), shape)

    def canonical(self) -> LinearLayout:
        """Without the register bits that hold copies (a thread needs no second copy)."""
        return LinearLayout(tuple((n, tuple(b for b in row if n != "register" or any(b)))
                                  for n, row in self.bases), self.shape)

    def transpose(self, order: tuple[int, ...]) -> LinearLayout:
        """Dimension i of the result is dimension order[i] of this layout."""
        return self._map(lambda b: [b[i] for i in order], tuple(self.shape[i] for i in order))

    def reshape(self, shape: tuple[int, ...]) -> LinearLayout:
        """The same elements in row-major order under another shape."""
        def relabel(b: Basis) -> list[int]:
            flat = 0
            for x, s in zip(b, self.shape):
                flat = flat * s + x
            out = []
            for s in reversed(shape):
                out.append(flat % s)
                flat //= s
            return out[::-1]
        return self._map(relabel, tuple(shape))

    def expand_dims(self, axis: int) -> LinearLayout:
        """Insert a dimension of size 1 before `axis`."""
        return self._map(lambda b: [*b[:axis], 0, *b[axis:]],
                         (*self.shape[:axis], 1, *self.shape[axis:]))

    def drop_dim(self, axis: int) -> LinearLayout:
        """Remove a dimension of size 1."""
        assert self.shape[axis] == 1, f"dimension {axis} of {self.shape} is not 1"
        return self._map(lambda b: [*b[:axis], *b[axis + 1:]],
                         (*self.shape[:axis], *self.shape[axis + 1:]))

    def project(self, shape: tuple[int, ...]) -> LinearLayout:
        """The layout of the source of a broadcast to this one: dimensions that are 1 in `shape` vanish."""
        return self._map(lambda b: [x if s > 1 else 0 for x, s in zip(b, shape)], tuple(shape)).canonical()

    def reduce(self, axis: int) -> LinearLayout:
        """The layout that a fold along `axis` leaves: every place that took part holds the result."""
        ones = tuple(1 if i == axis else s for i, s in enumerate(self.shape))
        return self.project(ones).drop_dim(axis)

    def join(self) -> LinearLayout:
        """A new last dimension of size 2, its bit the lowest register bit."""
        wide = self._map(lambda b: [*b, 0], (*self.shape, 2))
        new = (*([0] * self.rank), 1)
        return LinearLayout(tuple((n, (new, *row) if n == "register" else row) for n, row in wide.bases),
                            wide.shape)

    # -- inverses -------------------------------------------------------------------------------------
    def _flat(self, basis: Basis) -> int:
        """A coordinate vector as one integer: the bits of the dimensions side by side, last lowest."""
        flat = 0
        for x, s in zip(basis, self.shape):
            flat = (flat << (s.bit_length() - 1)) | x
        return flat

    def columns(self) -> list[tuple[str, int, int]]:
        """(input name, bit, flat coordinate bits) of every basis."""
        return [(n, i, self._flat(b)) for n, row in self.bases for i, b in enumerate(row)]

    def is_surjective(self) -> bool:
        """True if every element is held somewhere."""
        return _rank([c for _, _, c in self.columns()]) == sum(s.bit_length() - 1 for s in self.shape)

    def solve(self) -> dict[int, int]:
        """For each flat coordinate bit: a set of columns (bit mask over `columns()`) whose xor is that bit.

        Raises ValueError if some element is held nowhere. Later columns are used only when earlier ones
        (registers, then lanes, then warps) do not do."""
        pivots: dict[int, tuple[int, int]] = {}
        for index, (_, _, column) in enumerate(self.columns()):
            value, mask = column, 1 << index
            for bit, (v, m) in pivots.items():
                if value >> bit & 1:
                    value, mask = value ^ v, mask ^ m
            if value:
                top = value.bit_length() - 1
                for bit, (v, m) in list(pivots.items()):
                    if v >> top & 1:
                        pivots[bit] = (v ^ value, m ^ mask)
                pivots[top] = (value, mask)
        total = sum(s.bit_length() - 1 for s in self.shape)
        if len(pivots) != total:
            raise ValueError(f"layout does not hold every element of {self.shape}")
        return {bit: mask for bit, (_, mask) in pivots.items()}

    def place_of(self, basis: Basis) -> dict[str, int]:
        """One place (input name -> value) that holds the element at these coordinates."""
        columns, solution, flat = self.columns(), _solution(self), self._flat(basis)
        mask = 0
        for bit, m in solution.items():
            if flat >> bit & 1:
                mask ^= m
        place: dict[str, int] = {n: 0 for n, _ in self.bases}
        for index, (name, bit, _) in enumerate(columns):
            if mask >> index & 1:
                place[name] |= 1 << bit
        return place

    # -- text -----------------------------------------------------------------------------------------
    def __str__(self) -> str:
        rows = " ".join(f"{n}={list(map(list, row))}".replace(" ", "") for n, row in self.bases)
        return f"<{'x'.join(map(str, self.shape))} {rows}>"

    @staticmethod
    def parse(text: str) -> LinearLayout:
        """The inverse of str()."""
        shape, *rows = text.strip()[1:-1].split(" ")
        bases = {}
        for row in rows:
            name, _, value = row.partition("=")
            bases[name] = ast.literal_eval(value)
        return LinearLayout.from_bases(bases, tuple(map(int, shape.split("x"))) if shape else ())


@lru_cache(maxsize=1024)
def _solution(layout: LinearLayout) -> dict[int, int]:
    return layout.solve()


def _rank(columns: list[int]) -> int:
    rows: list[int] = []
    for c in columns:
        for r in rows:
            c = min(c, c ^ r)
        if c:
            rows.append(c)
    return len(rows)
