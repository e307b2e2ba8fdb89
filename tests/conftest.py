"""Tests marked `gpu` are deselected unless a CUDA device is there."""
from __future__ import annotations

import ctypes

import pytest


def cuda_device() -> bool:
    """Whether the driver is installed and sees a device. (ctypes: collecting tests must not load the bindings.)"""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects what this machine cannot run."""
    if not any(item.get_closest_marker("gpu") for item in items) or cuda_device():
        return
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    config.hook.pytest_deselected(items=gpu)
    items[:] = [item for item in items if not item.get_closest_marker("gpu")]
