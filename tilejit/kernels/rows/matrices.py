from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import tilejit
from tilejit.kernels._host import WIDEST, RowLaunch, row_launch

#: Elements of a program of an elementwise kernel.
ELEMENTS = 4096
#: Bytes of rows that a program can keep in registers.
IN_REGISTERS = 32768
#: Columns from which on rows that begin anywhere have ends of their own.
LEAST = 128
#: CTAs that go over a row block by block, at most, where there are fewer rows than multiprocessors.
TOGETHER = 8


class Matrix(NamedTuple):
    """n rows of so many contiguous columns, `pitch` elements from row to row."""

    array: Any
    n: int
    columns: int
    pitch: int


def matrix(what: str, x: Any, name: str = "x") -> Matrix:
    """An input [.., columns], copied if its rows are not contiguous or evenly apart."""
    info = tilejit.array_info(x)
    if not info.shape:
        raise tilejit.LaunchError(f"{what}: {name} must have at least one dimension, found a single number")
    pitch = _pitch(info.shape, info.strides)
    if pitch is None:
        x = contiguous(x)
        pitch = info.shape[-1]
    return Matrix(x, prod(info.shape[:-1]), info.shape[-1], pitch)


def result(what: str, x: Any, name: str = "out") -> Matrix:
    info = tilejit.array_info(x)
    pitch = _pitch(info.shape, info.strides)
    if pitch is None:
        raise tilejit.LaunchError(f"{what}: {name} must have contiguous rows, evenly apart, found shape "
                                  f"{list(info.shape)} and strides {list(info.strides)}: leave it out")
    return Matrix(x, prod(info.shape[:-1]), info.shape[-1], pitch)


def vector(what: str, x: Any, size: int, name: str) -> Any:
    """An input of `size` numbers, contiguous (copied if it is not), or None. Raises LaunchError for another size."""
    if x is None:
        return None
    info = tilejit.array_info(x)
    if prod(info.shape) != size:
        raise tilejit.LaunchError(f"{what}: {name} must have {size} elements, found shape {list(info.shape)}")
    return x if is_contiguous(info) else contiguous(x)


def same(what: str, x: Any, y: Any, name: str, other: str = "x") -> None:
    """Raises LaunchError if two arrays differ in shape."""
    if tuple(x.shape) != tuple(y.shape):
        raise tilejit.LaunchError(f"{what}: {name} must have {other}'s shape {list(x.shape)}, found {list(y.shape)}")


def number(x: float, like: Any, nothing: float | None = None) -> Any:
    """As precise as an array: a launch's floats are fp32, so in fp64 it is a constant. None if it changes nothing."""
    return None if x == nothing else float(x) if share(like) == 1 else tilejit.language.constexpr(float(x))


def share(*arrays: Any) -> int:
    """A program has a fourth of the elements in fp64: each has two registers, and functions of it have many steps."""
    return 4 if tilejit.language.float64 in [tilejit.array_info(x).dtype for x in arrays] else 1


def contiguous(x: Any) -> Any:
    if hasattr(x, "contiguous"):
        return x.contiguous()
    if isinstance(x, tilejit.DeviceArray):
        return x
    import numpy

    return numpy.ascontiguousarray(x)


def is_contiguous(info: tilejit.ArrayInfo) -> bool:
    pitch = _pitch(info.shape, info.strides)
    return pitch is not None and (pitch == info.shape[-1] or prod(info.shape[:-1]) <= 1) or not info.shape


def launch_of(*kept: Matrix, double: int = WIDEST) -> RowLaunch:
    """How a kernel of whole rows of such matrices is launched (`row_launch`). double: the widest row of fp64."""
    sizes = [tilejit.array_info(m.array).dtype.bytes for m in kept]
    widest = double if max(sizes) == 8 else WIDEST
    n, together = kept[0].n, 1
    if tilejit.chip() == "sm_80":  # neither clusters nor rows that stay in shared memory
        widest = min(widest, IN_REGISTERS // sum(sizes))
    elif 0 < n < (most := tilejit.multiprocessors(tilejit.array_info(kept[0].array).device)):
        together = min(TOGETHER, tilejit.next_power_of_2(tilejit.cdiv(most, n)))
    return row_launch(n, kept[0].columns, widest, size=sum(sizes), together=together,
                      share=4 if max(sizes) == 8 else 1)


def elements(*matrices: Matrix, flat: bool = True,
             shifted: bool = False) -> tuple[tuple[Matrix, ...], tuple[int], dict[str, int]]:
    """How an elementwise kernel goes over matrices of one shape (docs/modules.md)."""
    first = matrices[0]
    n, columns = first.n, first.columns
    if flat and n > 1 and all(m.pitch == columns for m in matrices):
        matrices = tuple(Matrix(m.array, 1, n * columns, 0) for m in matrices)  # 0: of whole vectors
        n, columns = 1, n * columns
    if not n * columns:
        return matrices, (0,), {"BLOCK": 16, "ROWS": 1, **({"UNIT": 1} if shifted else {})}
    unit = unit_of(*matrices) if shifted and columns > ELEMENTS // 2 else 1
    whole = columns // unit * unit
    most = ELEMENTS // share(*[m.array for m in matrices])
    block = min(most, max(16, tilejit.next_power_of_2(whole)))
    rows = min(most // block, tilejit.next_power_of_2(max(1, n))) if unit == 1 else 1
    grid = tilejit.cdiv(n, rows) * tilejit.cdiv(whole, block)
    return matrices, (grid,), {"BLOCK": block, "ROWS": rows, **({"UNIT": unit} if shifted else {})}


def unit_of(*matrices: Matrix) -> int:
    unit, pitch = 16 // min(tilejit.array_info(m.array).dtype.bytes for m in matrices), matrices[0].pitch
    return unit if pitch % unit and all((m.pitch - pitch) % unit == 0 for m in matrices) else 1


def row_unit(*matrices: Matrix) -> int:
    """`unit_of` for kernels that have the ends of rows beside whole units, if it is worth it."""
    begin = [tilejit.array_info(m.array).address % 16 for m in matrices]
    return unit_of(*matrices) if matrices[0].columns > LEAST and not any(begin) else 1


def _pitch(shape: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    if 0 in shape:
        return shape[-1]
    if not shape or strides[-1] != 1 and shape[-1] > 1:
        return None
    pitch = reach = None
    for size, stride in zip(shape[-2::-1], strides[-2::-1]):
        if size == 1:
            continue
        if pitch is None:
            pitch = stride
        elif stride != reach:
            return None
        reach = stride * size
    return shape[-1] if pitch is None else pitch
