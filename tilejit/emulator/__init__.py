"""An emulated Hopper SM (docs/emulator.md): runs PTX text on the CPU, instruction by instruction, with no GPU."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilejit.emulator.events import Listener
    from tilejit.emulator.exploration import Exploration, explore
    from tilejit.emulator.program import Program
    from tilejit.emulator.replay import Rates
    from tilejit.emulator.report import Finding, Report
    from tilejit.emulator.sanitizer import Sanitizer
    from tilejit.emulator.tensormap import encode_tensor_map

__all__ = ["Exploration", "Finding", "Listener", "Program", "Rates", "Report", "Sanitizer", "encode_tensor_map",
           "explore"]

_HOMES = {"Exploration": "exploration", "explore": "exploration", "Program": "program", "Report": "report",
          "Finding": "report", "Listener": "events", "Rates": "replay", "Sanitizer": "sanitizer",
          "encode_tensor_map": "tensormap"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
