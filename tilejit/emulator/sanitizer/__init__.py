"""The sanitizer: finds broken protocols by happens-before, from the events of a run. Limits: docs/emulator.md.

Warps and operations in flight carry vector clocks (`clocks`); a shadow of shared memory holds the last write and the
reads since. An access that is not ordered after a conflicting one is a finding whichever schedule ran.
"""
from tilejit.emulator.sanitizer.kinds import KINDS, MACHINE
from tilejit.emulator.sanitizer.sanitizer import Sanitizer

__all__ = ["KINDS", "MACHINE", "Sanitizer"]
