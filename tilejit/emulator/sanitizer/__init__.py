"""The sanitizer: finds broken protocols by happens-before, from the events of a run.

Warps and operations in flight carry vector clocks (`clocks`); a shadow of shared memory holds the last write and the
reads since (`shadow`, `shared_memory`). An access that is not ordered after a conflicting one is a finding whichever
schedule ran. `kinds.KINDS` lists all that is found.

Limits: lanes of a warp are not checked against each other, nor scopes; strong accesses of global memory order whole
CTAs; global memory is checked between CTAs only, against the last write.
"""
from tilejit.emulator.sanitizer.kinds import KINDS, MACHINE
from tilejit.emulator.sanitizer.sanitizer import Sanitizer

__all__ = ["KINDS", "MACHINE", "Sanitizer"]
