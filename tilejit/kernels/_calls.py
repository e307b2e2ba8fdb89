"""From a call of a host function to its launches."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tilejit
from tilejit import ArrayInfo, active_knobs
from tilejit.records import dataclass, field

_ALIGNMENT = 16


def infos_of(*arrays: Any) -> tuple[Any, ...]:
    """None for None. Raises LaunchError for what is no array."""
    return tuple([None if x is None else tilejit.array_info(x) for x in arrays])


def facts_of(*infos: ArrayInfo | None) -> tuple[Any, ...]:
    """What a launch may depend on: of the address only its alignment."""
    return tuple([None if i is None else ArrayInfo(i[0] % _ALIGNMENT, *i[1:]) for i in infos])


def known_of(*arrays: Any) -> tuple[Any, ...]:
    return facts_of(*infos_of(*arrays))


def place(info: ArrayInfo) -> tuple[int, Any]:
    """What a choice depends on beside the arrays: multiprocessors, and the knobs that hold (`tilejit.chip`)."""
    return tilejit.multiprocessors(info.device), active_knobs()


@dataclass(frozen=True)
class At:
    """Array `index` of a call, or what a descriptor sees of it."""

    index: int
    descriptor: tilejit.TensorDescriptor | None = None


def given(index: int, info: Any) -> At | None:
    return None if info is None else At(index)


@dataclass(frozen=True)
class Memory:
    """An array that is made for a call."""

    shape: tuple[int, ...]
    dtype: Any
    zeroed: bool = False


@dataclass(frozen=True)
class Launch:
    """Arguments have places for arrays, in tuples too."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]


@dataclass
class Work:
    """The launches of a call of so many arrays, and the memory that it takes beside those."""

    arrays: int
    launches: list[Launch] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)

    def new(self, shape: tuple[int, ...], dtype: Any, zeroed: bool = False) -> int:
        """The index of a new array."""
        self.memory.append(Memory(shape, dtype, zeroed))
        return self.arrays + len(self.memory) - 1

    def run(self, *arrays: Any) -> None:
        """The first array says where others live."""
        there = [*arrays, *((tilejit.zeros_like if m.zeroed else tilejit.empty_like)(arrays[0], m.shape, m.dtype)
                            for m in self.memory)]
        for launch in self.launches:
            launch.kernel[launch.grid](*_filled(launch.arguments, there))


def _filled(x: Any, arrays: list[Any]) -> Any:
    if isinstance(x, At):
        array = arrays[x.index]
        return array if x.descriptor is None else x.descriptor.over(array)
    if not isinstance(x, tuple):
        return x
    inside = [_filled(e, arrays) for e in x]
    return type(x)(*inside) if hasattr(x, "_fields") else tuple(inside)


def called(work: Callable[..., Work], arrays: tuple[Any, ...], *options: Any) -> None:
    """Launch what `work(facts of the arrays, *options, multiprocessors, knobs)` says."""
    known = known_of(*arrays)
    work(known, *options, *place(known[0])).run(*arrays)
