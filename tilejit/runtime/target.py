"""Where kernels run by default: on the GPU, or on the CPU (said once on stderr)."""
from __future__ import annotations

import sys
from functools import lru_cache

from tilejit.runtime import driver, knobs

#: Where host arrays run when no GPU is found and TILEJIT_TARGET says nothing.
CPU_TARGET = "emulator"


def default_target() -> str:
    """`cuda`, `emulator` or `evaluator`. Raises LaunchError if cuda is asked for and not there."""
    asked = knobs.current().target
    if asked == "cuda":
        driver.api()
    if asked:
        return asked
    if driver.available():
        return "cuda"
    _say(driver.unavailable())
    return CPU_TARGET


@lru_cache(maxsize=1)
def _say(reason: str) -> None:
    print(f"tilejit: {reason}; kernels run on the CPU ({CPU_TARGET})", file=sys.stderr)
