"""What Python carries out: form name -> function(cluster, site, external).

A function returns None, or (key, Waiter) if the split must wait.
"""
from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from tilejit.emulator.decode import External
from tilejit.emulator.machine import Cluster, Site, Waiter

Executor = Callable[[Cluster, Site, External], "tuple[Hashable, Waiter] | None"]
EXECUTE: dict[str, Executor] = {}


def executes(*names: str) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        EXECUTE.update(dict.fromkeys(names, function))
        return function
    return register
