from __future__ import annotations

from dataclasses import dataclass

from tilejit import ArrayInfo
from tilejit.kernels._operands import (
    DTYPES,
    Matrix,
    check_dense,
    check_one_of,
    check_operands,
    in_reach,
    operand,
    result,
    unit,
)
from tilejit.kernels.activations import ACTIVATIONS


@dataclass(frozen=True)
class Problem:
    """`batches` products of a [m, k] and b [k, n], `size` bytes an element.

    a_rows, b_rows: row-major, else column-major. pitches: bytes from line to line of a, b and the result (out_bytes
    an element). units: bytes of a and b that threads copy at once (0: TMA); stores: those of the result. ended: a
    bias or activation follows, `activated`: a long one, `scaled`: sums are scaled. step: its STEP; bits: of a
    widened element of b; group: elements of K that share a scale (0: all). grouped: batches are groups of rows, of m
    on average.
    """

    m: int
    n: int
    k: int
    size: int = 2
    a_rows: bool = True
    b_rows: bool = False
    pitches: tuple[int, int, int] = (0, 0, 0)
    out_bytes: int = 2
    ended: bool = False
    scaled: bool = False
    activated: bool = False
    batches: int = 1
    units: tuple[int, int] = (0, 0)
    stores: int = 0
    step: str = "accumulate"
    bits: int = 0
    group: int = 0
    grouped: bool = False

    @property
    def share(self) -> float:
        return self.bits / 8 / self.size if self.bits else 1.0

    @property
    def k_bytes(self) -> int:
        return self.k * self.size

    def __str__(self) -> str:
        order = "NT"[not self.a_rows] + "NT"[not self.b_rows]
        return f"{f'{self.batches} x ' * (self.batches > 1)}{self.m}x{self.n}x{self.k} {order}, {8 * self.size} bits"


def facts(a: Matrix, b: Matrix, out: ArrayInfo, biased: bool = False, activation: str | None = None,
          scaled: bool = False, batches: int = 1) -> Problem:
    def threads(x: Matrix) -> int:
        """Bytes of a matrix that threads move at once, 0 where TMA does."""
        return 0 if in_reach(x) else unit(x) * x.dtype.bytes

    (m, k), n, all_three = a.shape[-2:], b.shape[-1], (a, b, Matrix(out, out.shape, out.strides, True))
    of_a, of_b, of_c = (max(x.info.strides[-2:]) * x.dtype.bytes for x in all_three)
    of_threads = [threads(x) for x in all_three]
    return Problem(m, n, k, a.dtype.bytes, a.rows_first, b.rows_first, (of_a, of_b, of_c), out.dtype.bytes,
                   biased or activation is not None, scaled, activation in ("gelu", "silu"), batches,
                   (of_threads[0], of_threads[1]), of_threads[2])


def checked(what: str, a: ArrayInfo, b: ArrayInfo, bias: ArrayInfo | None, out: ArrayInfo, activation: str | None,
            rank: int = 2, in_place: bool = True, dtypes: tuple[str, ...] = DTYPES) -> tuple[Matrix, Matrix, Matrix]:
    """Arrays 0, 1 and 3 of activation(a @ b + bias), as the tensor cores read them (`in_place`). Raises LaunchError."""
    ma, mb = operand(what, "a", a, 0, rank, in_place), operand(what, "b", b, 1, rank, in_place)
    check_operands(what, ma, mb, dtypes, in_place)
    check_one_of(what, "activation", activation, ACTIVATIONS)
    check_dense(what, "bias", bias, mb.shape[-1])
    shape = *map(max, ma.shape[:-2], mb.shape[:-2]), ma.shape[-2], mb.shape[-1]
    return ma, mb, result(what, out, shape, 3, in_place=in_place)
