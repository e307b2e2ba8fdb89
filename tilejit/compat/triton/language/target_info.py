from __future__ import annotations

import re
from collections.abc import Callable

from tilejit.compat.triton.runtime.driver import GPUTarget, driver
from tilejit.frontend.functions import constexpr_function


def current_target() -> GPUTarget:
    return driver.active.get_current_target()


@constexpr_function
def is_cuda() -> bool:
    return True


@constexpr_function
def cuda_capability_geq(major: int, minor: int = 0) -> bool:
    return int(current_target().arch) >= 10 * major + minor


@constexpr_function
def _never() -> bool:
    return False


def __getattr__(name: str) -> Callable[[], bool]:
    if re.match(r"is_(hip|xpu)", name):
        return _never
    raise AttributeError(name)


__all__ = ["cuda_capability_geq", "current_target", "is_cuda"]
