"""Packages written for GPUs on a machine without one: torch answers as if its host memory were a Hopper GPU's.

Only benchmarks use this: it replaces functions of torch, so that code that asks for `torch.cuda` or places tensors on
"cuda" gets host tensors, which tilejit's emulator takes.
"""
from __future__ import annotations

import contextlib
from typing import Any

import torch


class Properties:
    """Facts of an H200."""

    name, major, minor, multi_processor_count = "NVIDIA H200", 9, 0, 132
    total_memory, shared_memory_per_block_optin, warp_size = 140 << 30, 232448, 32
    L2_cache_size, gcnArchName, max_threads_per_multi_processor = 50 << 20, "", 2048


class _Place(contextlib.nullcontext):
    """`torch.cuda.device(...)` and `torch.cuda.stream(...)`: nothing to switch."""

    def __init__(self, *args: Any):
        super().__init__()
        self.cuda_stream, self.prev_idx, self.idx = 0, -1, 0

    def __enter__(self) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


_MAKERS = ("empty zeros ones full rand randn randint arange tensor as_tensor empty_like zeros_like ones_like full_like "
           "randn_like rand_like randint_like linspace eye randperm empty_strided scalar_tensor").split()


def _is_gpu(device: Any) -> bool:
    return isinstance(device, int) and not isinstance(device, bool) or str(device).startswith("cuda")


def _on_host(function: Any) -> Any:
    def made(*args: Any, **kwargs: Any) -> Any:
        if _is_gpu(kwargs.get("device", "")):
            kwargs["device"] = "cpu"
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return function(*args, **kwargs)

    return made


def pretend() -> None:
    """Replace torch's answers; once, before the packages are imported."""
    cuda = torch.cuda
    answers: dict[str, Any] = {
        "is_available": True, "device_count": 1, "current_device": 0, "get_device_capability": (9, 0),
        "get_device_name": Properties.name, "get_device_properties": Properties, "synchronize": None,
        "is_bf16_supported": True, "is_current_stream_capturing": False, "empty_cache": None, "set_device": None,
        "max_memory_allocated": 0, "reset_peak_memory_stats": None, "manual_seed": None, "manual_seed_all": None}
    for name, value in answers.items():
        setattr(cuda, name, lambda *args, _value=value, **kwargs: _value)
    cuda.is_initialized = lambda: False
    cuda.device = cuda.device_of = cuda.stream = cuda.Stream = cuda._DeviceGuard = _Place
    cuda.current_stream = lambda *args: _Place()
    torch.cpu.current_device = lambda: 0
    for name in _MAKERS:
        setattr(torch, name, _on_host(getattr(torch, name)))
    torch.Tensor.cuda = lambda self, *args, **kwargs: self
    move = torch.Tensor.to
    torch.Tensor.to = lambda self, *args, **kwargs: move(
        self, *("cpu" if isinstance(a, (str, torch.device)) and _is_gpu(a) else a for a in args),
        **{k: "cpu" if k == "device" and _is_gpu(v) else v for k, v in kwargs.items()})
    torch.nn.Module.cuda = lambda self, *args: self
    torch.Tensor.is_cuda = property(lambda self: True)
