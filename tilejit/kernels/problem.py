from __future__ import annotations

from typing import Any, NamedTuple

import tilejit
from tilejit.kernels._calls import At, given
from tilejit.kernels._operands import DTYPES, Matrix, check_dense, check_one_of, check_operands, operand, result
from tilejit.kernels.activations import ACTIVATIONS
from tilejit.kernels.chip import Chip, current
from tilejit.records import dataclass, replace


@dataclass(frozen=True)
class Problem:
    """`batches` products of a [m, k] and b [k, n], `size` bytes an element (docs/modules.md)."""

    m: int
    n: int
    k: int
    size: int = 2
    a_rows: bool = True
    b_rows: bool = False
    pitches: tuple[int, int, int] = (0, 0, 0)
    out_bytes: float = 2
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

    @property
    def across(self) -> tuple[int, int]:
        """Bytes of lines of a and b that lie across K (0: they lie along it)."""
        return 0 if self.a_rows else self.m * self.size, self.n * self.size if self.b_rows else 0

    def __str__(self) -> str:
        order = "NT"[not self.a_rows] + "NT"[not self.b_rows]
        return f"{f'{self.batches} x ' * (self.batches > 1)}{self.m}x{self.n}x{self.k} {order}, {8 * self.size} bits"


class End(NamedTuple):
    """What follows sums: scales, a bias, an activation; or a caller's function (`own`), its arguments."""

    bias: At | None = None
    scale_a: At | None = None
    scale_b: At | None = None
    activation: str | None = None
    own: Any = None
    args: At | None = None


class Call(NamedTuple):
    """A checked product: its matrices, the facts that it is planned by, the rates of its chip."""

    a: Matrix
    b: Matrix
    c: Matrix
    problem: Problem
    chip: Chip
    end: End = End()


def facts(a: Matrix, b: Matrix, c: Matrix, end: End = End(), **others: Any) -> Problem:
    of_a, of_b, of_c = (0 if x.in_reach or 0 in x.shape else x.unit * x.dtype.bytes for x in (a, b, c))
    pitch_a, pitch_b, pitch_c = (max(x.strides[-2:]) * x.dtype.bytes for x in (a, b, c))
    ended, scaled = (any(x is not None for x in some) for some in ((end.bias, end.activation, end.own), end[1:3]))
    found = Problem(a.shape[-2], b.shape[-1], a.shape[-1], a.dtype.bytes, a.rows_first, b.rows_first,
                    (pitch_a, pitch_b, pitch_c), c.dtype.bytes, ended, scaled, end.activation in ("gelu", "silu"),
                    units=(of_a, of_b), stores=of_c)
    return replace(found, **others)


def call_of(what: str, infos: tuple[Any, ...], activation: str | None, multiprocessors: int, own: Any = None,
            ranks: tuple[int, int] = (2, 2), dtypes: tuple[str, ...] = DTYPES) -> Call:
    """Of arrays 0 and 1 of a call with bias 2, result 3, numbers that scale 4 and 5 (if there are so many) and, for an
    `own` END, arguments 6. Raises LaunchError for those that do not go together."""
    a, b, bias, c, *scales = infos
    ma, mb = operand(what, "a", a, 0, ranks[0]), operand(what, "b", b, 1, ranks[1])
    check_operands(what, ma, mb, dtypes)
    check_one_of(what, "activation", activation, ACTIVATIONS)
    check_dense(what, "bias", bias, mb.shape[-1])
    mc = result(what, c, (*map(max, ma.shape[:-2], mb.shape[:-2]), ma.shape[-2], mb.shape[-1]), 3)
    for name, info in zip(("scale_a", "scale_b"), scales):
        if info is not None and (info.dtype != tilejit.language.float32 or any(n != 1 for n in info.shape)):
            raise tilejit.LaunchError(f"{what}: {name} must be one number in fp32, found {info.dtype} "
                                      f"{list(info.shape)}")
    scale_a, scale_b = map(given, (4, 5), scales or (None, None))
    end = End(given(2, bias), scale_a, scale_b, activation, own, None if own is None else At(6))
    return Call(ma, mb, mc, facts(ma, mb, mc, end), current(a.device, multiprocessors), end)
