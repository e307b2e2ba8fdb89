"""Without a GPU the device is an H200, which the emulator is."""
from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tilejit.ir.target import target_named
from tilejit.runtime import driver as _cuda
from tilejit.runtime.knobs import chip
from tilejit.runtime.target import default_target

_EMULATED = {"max_shared_mem": 232448, "max_num_regs": 65536, "multiprocessor_count": 132, "warpSize": 32,
             "sm_clock_rate": 1980000, "mem_clock_rate": 3201000, "mem_bus_width": 6144}
#: property -> the driver's name
_ATTRIBUTES = {"max_shared_mem": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", "max_num_regs": "MAX_REGISTERS_PER_BLOCK",
               "multiprocessor_count": "MULTIPROCESSOR_COUNT", "warpSize": "WARP_SIZE", "sm_clock_rate": "CLOCK_RATE",
               "mem_clock_rate": "MEMORY_CLOCK_RATE", "mem_bus_width": "GLOBAL_MEMORY_BUS_WIDTH"}


@dataclass(frozen=True)
class GPUTarget:
    backend: str
    arch: int | str
    warp_size: int


class BaseBackend:
    """Triton's class of compilers, for annotations and `isinstance`."""


def min_dot_size(target: GPUTarget) -> Any:
    """M, N, K of the least product that Triton takes, of two types."""
    return lambda lhs, rhs: (1, 1, 256 // lhs.scalar.primitive_bitwidth)


class _Utils:
    def get_device_properties(self, device: int) -> dict[str, int]:
        if default_target() != "cuda":
            return dict(_EMULATED)
        index = device if isinstance(device, int) else 0
        return {name: _cuda.device(index).attribute(key) for name, key in _ATTRIBUTES.items()}

    def set_printf_fifo_size(self, size: int) -> None:
        """Accepted, no effect."""


class _HostInterface(SimpleNamespace):
    def synchronize(self, device: Any = None) -> None:
        """Launches on the CPU are over when they return."""

    def current_device(self) -> int:
        return 0


class CudaDriver:
    def __init__(self) -> None:
        self.utils = _Utils()

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", target_named(chip()).sm, 32)

    def get_current_device(self) -> int:
        """0 on the CPU."""
        if default_target() != "cuda":
            return 0
        return _torch().cuda.current_device() if "torch" in sys.modules else _cuda.current_device().index

    def set_current_device(self, device: int) -> None:
        if default_target() == "cuda":
            _torch().cuda.set_device(device)

    def get_current_stream(self, device: int | None = None) -> int:
        if default_target() != "cuda":
            return 0
        return _cuda.current_stream(self.get_current_device() if device is None else device)

    def get_active_torch_device(self) -> Any:
        torch = _torch()
        return torch.device("cuda", self.get_current_device()) if default_target() == "cuda" else torch.device("cpu")

    def get_device_interface(self) -> Any:
        return _torch().cuda if default_target() == "cuda" else _HostInterface()

    def get_benchmarker(self) -> Callable[..., Any]:
        from tilejit.compat.triton.testing import do_bench

        return do_bench

    def get_empty_cache_for_benchmark(self) -> Any:
        return _torch().empty(256 << 20, dtype=_torch().int8, device=self.get_active_torch_device())

    def clear_cache(self, cache: Any) -> None:
        cache.zero_()


class _Driver:
    def __init__(self) -> None:
        self.active: Any = CudaDriver()
        self.default = self.active

    def set_active(self, active: Any) -> None:
        self.active = active

    def reset_active(self) -> None:
        self.active = self.default


def _torch() -> Any:
    import torch

    return torch


driver = _Driver()


def __getattr__(name: str) -> Any:
    """`driver` is the module and the object in it."""
    return getattr(driver, name)
