"""What Python carries out: a function returns None, or (key, Waiter) if the split must wait."""
from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from tilejit.emulator.decode import HANDLERS, Decoder, External
from tilejit.emulator.machine import Cluster, Site, Waiter

Executor = Callable[[Cluster, Site, External], "tuple[Hashable, Waiter] | None"]
EXECUTE: dict[str, Executor] = {}


def executes(*names: str) -> Callable[[Any], Any]:
    """Register the executor of forms, which are handed over with all operands unless they have a decoder."""
    def register(function: Any) -> Any:
        EXECUTE.update(dict.fromkeys(names, function))
        for name in names:
            HANDLERS.setdefault(name, Decoder.external)
        return function
    return register
