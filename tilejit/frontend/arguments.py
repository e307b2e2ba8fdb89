from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Union

from tilejit.ir.types import Type
from tilejit.records import dataclass


@dataclass(frozen=True)
class Param:
    """A run-time argument: its type, what is known to divide it (bytes for pointers, rows without TMA), its sign."""

    type: Type
    divisible: int = 1
    nonnegative: bool = False
    padding: str = "zero"
    ragged: bool = False
    most: int = 0


@dataclass(frozen=True)
class Const:
    value: Any


@dataclass(frozen=True)
class Group:
    kind: type
    items: tuple[Arg, ...]


Arg = Union[Param, Const, Group]


def run_time(args: Mapping[str, Arg]) -> dict[tuple, tuple[str, Param]]:
    found: dict[tuple, Param] = {}

    def visit(place: tuple, arg: Arg) -> None:
        if isinstance(arg, Param):
            found[place] = arg
        elif isinstance(arg, Group):
            for i, item in enumerate(arg.items):
                visit((*place, i), item)

    for n, arg in args.items():
        visit((n,), arg)
    names: dict[tuple, str] = {}
    for place in found:
        name = "_".join(map(str, place))
        while len(place) > 1 and (name in args or name in names.values()):
            name += "_"
        names[place] = name
    return {place: (names[place], p) for place, p in found.items()}
