"""Tuples as arguments: their elements are parameters of the kernel, behind those of the call."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilejit.frontend import Arg, run_time
from tilejit.runtime.launch import Entry, Grid


def leaves(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The elements of tuples among arguments, the others as they are, by names for errors."""
    found: dict[str, Any] = {}

    def visit(name: str, x: Any) -> None:
        if isinstance(x, tuple):
            for i, e in enumerate(x):
                visit(f"{name}[{i}]", e)
        else:
            found[name] = x

    for n, x in arguments.items():
        visit(n, x)
    return found


class Spread:
    """Where the elements of tuples stand: behind the flat tuple of the call."""

    def __init__(self, args: Mapping[str, Arg], at: Mapping[str, int], flat: tuple):
        inner = {place: name for place, (name, _) in run_time(args).items() if len(place) > 1}
        self.places = [(at[place[0]], place[1:]) for place in inner]
        self.at = {**at, **{name: len(flat) + i for i, name in enumerate(inner.values())}}

    def __call__(self, flat: tuple) -> tuple:
        out = list(flat)
        for i, path in self.places:
            x = flat[i]
            for step in path:
                x = x[step]
            out.append(x)
        return tuple(out)


class SpreadEntry:
    def __init__(self, inner: Entry, spread: Spread):
        self.inner, self.spread, self.compiled = inner, spread, inner.compiled

    def launch(self, grid: Grid, flat: tuple, stream: Any) -> None:
        self.inner.launch(grid, self.spread(flat), stream)

    def for_grid(self, grid: Grid, flat: tuple, stream: Any) -> Entry:
        found = self.inner.for_grid(grid, self.spread(flat), stream)
        return self if found is self.inner else SpreadEntry(found, self.spread)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
