"""From a call of a host function to its launches: what those depend on, and what is remembered.

Most of a launch is a function of facts of arrays (`facts`), which do not change from call to call: host functions
compute it once per problem, and put its descriptors over the arrays of each call (`Launch`). A call that comes again
with arrays of the same facts, wherever they lie, is repeated without that (`Calls`).
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tilejit
from tilejit import ArrayInfo, active_knobs

#: launches for arrays at other addresses; False where a launch has to go the usual way
Repeated = Callable[[tuple[int, ...]], bool]
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

    def again(self, addresses: tuple[int, ...], arrays: tuple[Any, ...], infos: tuple[ArrayInfo, ...], *more: Any,
              **named: Any) -> Repeated | None:
        """What repeats the same call for arrays elsewhere (`tilejit.Kernel.again`)."""
        found: Repeated | None = self.kernel.again(addresses, self.grid, *self._over(arrays, infos), *more, **named)
        return found

    def _over(self, arrays: tuple[Any, ...], infos: tuple[ArrayInfo, ...]) -> list[tilejit.TensorDescriptor]:
        return [d.over(x, i) for d, x, i in zip(self.descriptors, arrays, infos)]


#: A launch, its arguments, and those by name.
Call = tuple[Launch, tuple[Any, ...], dict[str, Any]]


class Calls:
    """What calls of a function launched, by what they were given: the facts of arrays, and all else. What is called so
    a second time is repeated from then on: only addresses are new. No array is kept alive."""

    _KEPT = 4096

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], list[Repeated]] = {}

    def repeat(self, key: tuple[Any, ...]) -> bool:
        """Launch what a call with this key launched; False if that is not known."""
        addresses, facts = _split(key)
        launches = self.known.get(facts)
        return bool(launches) and all([launch(addresses) for launch in launches])  # type: ignore[union-attr]

    def run(self, key: tuple[Any, ...] | None, *launches: Call) -> None:
        """Launch all; the key (None: these cannot be repeated) stands for them from the second time on. It has the
        `ArrayInfo` of every array that the launches are given."""
        for launch, args, named in launches:
            launch(*args, **named)
        if key is None:
            return
        addresses, facts = _split(key)
        if facts not in self.known:
            if len(self.known) >= self._KEPT:
                self.known.clear()
            self.known[facts] = []
            return
        found = [launch.again(addresses, *args, **named) for launch, args, named in launches]
        self.known[facts] = [] if None in found else found  # type: ignore[assignment]


def _split(key: tuple[Any, ...]) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """The addresses of a key's arrays, and the rest of it with what matters of the addresses: alignment, and which of
    them are equal."""
    addresses: list[int] = []
    facts: list[Any] = []
    _collect(key, addresses, facts)
    if len(set(addresses)) < len(addresses):
        facts.append(tuple(map(addresses.index, addresses)))
    return tuple(addresses), tuple(facts)


def _collect(key: tuple[Any, ...], addresses: list[int], facts: list[Any]) -> None:
    for x in key:
        if type(x) is ArrayInfo:
            address, dtype, shape, strides, device, _ = x               # what a caller has: nothing to spare
            addresses.append(address)
            facts += (address % _ALIGNMENT, dtype.name, shape, strides, device)
        elif type(x) is tuple:
            facts.append(len(x))
            _collect(x, addresses, facts)
        else:
            facts.append(x)
