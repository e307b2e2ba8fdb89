"""The sanitizer: finds broken protocols by happens-before, whichever schedule ran. Limits: docs/emulator.md.

Warps and operations carry vector clocks (`clocks`); a shadow holds the last write and the reads since.
"""
from tilejit.emulator.sanitizer.kinds import KINDS, MACHINE
from tilejit.emulator.sanitizer.sanitizer import Sanitizer

__all__ = ["KINDS", "MACHINE", "Sanitizer"]
