"""The sanitizer: finds broken protocols by happens-before, whichever schedule ran. Limits: docs/emulator.md."""
from tilejit.emulator.sanitizer.kinds import KINDS, MACHINE
from tilejit.emulator.sanitizer.sanitizer import Sanitizer

__all__ = ["KINDS", "MACHINE", "Sanitizer"]
