"""From a call of a host function to its launches, and what those depend on.

Most of a launch is a function of facts of arrays (`facts`), which do not change from call to call: host functions
compute it once per problem, and put its descriptors over the arrays of each call (`Launch`). A call that comes again
with arrays of the same facts, wherever they lie, is replayed without any of that (`tilejit.replayed`).
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilejit
from tilejit import ArrayInfo, active_knobs

#: What TMA and a specialisation must know of an address: what it is modulo this.
_ALIGNMENT = 16


def facts(info: ArrayInfo) -> ArrayInfo:
    """What a launch may depend on: of the address only its alignment."""
    address, dtype, shape, strides, device, spare = info
    return ArrayInfo(address % _ALIGNMENT, dtype, shape, strides, device, spare)


def infos_of(*arrays: Any) -> tuple[Any, ...]:
    """The `ArrayInfo` of each array that is there, None for None. Raises LaunchError for what is no array."""
    return tuple([None if x is None else tilejit.array_info(x) for x in arrays])


def facts_of(*infos: ArrayInfo | None) -> tuple[Any, ...]:
    """The facts of each array that is there."""
    return tuple([None if i is None else facts(i) for i in infos])


def place(info: ArrayInfo) -> tuple[int, Any]:
    """What a choice depends on beside the arrays: multiprocessors where one of them is, and the knobs that hold here
    (`tilejit.chip`)."""
    return tilejit.multiprocessors(info.device), active_knobs()


@dataclass(frozen=True)
class Launch:
    """A launch that waits for its arrays: a kernel with its sizes and constants given, and descriptors to put over the
    first of its arguments."""

    kernel: Any
    grid: tuple[int]
    descriptors: tuple[tilejit.TensorDescriptor, ...]

    def __call__(self, arrays: tuple[Any, ...], infos: tuple[ArrayInfo, ...], *more: Any, **named: Any) -> None:
        """Launch it for arrays in the descriptors' order, of which `infos` says what they are, and other arguments."""
        self.kernel[self.grid](*self._over(arrays, infos), *more, **named)

    def _over(self, arrays: tuple[Any, ...], infos: tuple[ArrayInfo, ...]) -> list[tilejit.TensorDescriptor]:
        return [d.over(x, i) for d, x, i in zip(self.descriptors, arrays, infos)]


#: A launch, its arguments, and those by name.
Call = tuple[Launch, tuple[Any, ...], dict[str, Any]]


def run(*launches: Call) -> None:
    """Launch all."""
    for launch, args, named in launches:
        launch(*args, **named)
