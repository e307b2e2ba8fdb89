from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tilejit import language as _language
from tilejit.compat.triton import knobs
from tilejit.compat.triton._processes import run_in_process
from tilejit.compat.triton.runtime.driver import driver
from tilejit.compat.triton.runtime.stand_ins import TensorWrapper, reinterpret
from tilejit.ir.types import DType
from tilejit.runtime.arrays import as_dtype

int_dtypes = ["int8", "int16", "int32", "int64"]
uint_dtypes = ["uint8", "uint16", "uint32", "uint64"]
integral_dtypes = int_dtypes + uint_dtypes
float_dtypes = ["float16", "float32", "float64"]
float_dtypes_with_bfloat16 = [*float_dtypes, "bfloat16"]
dtypes = integral_dtypes + float_dtypes
dtypes_with_bfloat16 = [*dtypes, "bfloat16"]
torch_float8_dtypes = ["float8_e4m3fn", "float8_e5m2"]
torch_dtypes = ["bool", *int_dtypes, "uint8", *float_dtypes, "bfloat16"]
tma_dtypes = sorted({*dtypes_with_bfloat16} - {"int64", "uint64", "float64"})


def is_interpreter() -> bool:
    return False


def is_cuda() -> bool:
    return True


def _at_least(major: int) -> Callable[[], bool]:
    return lambda: int(driver.active.get_current_target().arch) >= 10 * major


is_ampere_or_newer, is_hopper_or_newer = _at_least(8), _at_least(9)


def is_hopper() -> bool:
    return driver.active.get_current_target().arch == 90


supports_tma = supports_ws = is_hopper_or_newer


def __getattr__(name: str) -> Any:
    """Other chips, and modes of Triton's test runner: `is_hip_...`, `is_blackwell`, ...: never."""
    if re.match(r"(is|supports)_\w+$", name):
        return lambda: False
    raise AttributeError(name)


def get_current_target() -> Any:
    return driver.active.get_current_target()


def get_arch() -> str:
    return str(get_current_target().arch)


def tma_skip_msg(byval_only: bool = False) -> str:
    return "needs TMA (Hopper)"


requires_tma = pytest.mark.skipif(not supports_tma(), reason=tma_skip_msg())


def random_int(low: int, high: int, *, warmup_value: Any = None, **kwargs: Any) -> int:
    return int(torch.randint(low, high, size=(), **kwargs).item())


def random_float(*, warmup_value: float = 0.5, **kwargs: Any) -> float:
    return float(torch.rand((), **kwargs).item())


def numpy_random(shape: Any, dtype_str: str, rs: Any = None, low: int | None = None, high: int | None = None) -> Any:
    """Integers without 0 over their whole range (or [low, high)), normal floats; bfloat16 as float32 that bf16 holds
    exactly, float8 as bytes."""
    rs = rs or np.random.RandomState(seed=17)
    shape = (shape,) if isinstance(shape, int) else shape
    if dtype_str in integral_dtypes:
        limits = np.iinfo(dtype_str)
        first = limits.min if low is None else max(low, limits.min)
        last = limits.max if high is None else min(high, limits.max)
        x = rs.randint(first, last, shape, dtype=dtype_str)
        return np.where(x == 0, 1, x).astype(dtype_str)
    if "float8" in dtype_str:
        return rs.randint(20, 40, shape, dtype=np.int8)
    normal = rs.normal(0, 1, shape)
    if dtype_str in float_dtypes:
        return normal.astype(dtype_str)
    if dtype_str == "bfloat16":
        return (normal.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    if dtype_str in ("bool", "int1", "bool_"):
        return normal > 0
    raise RuntimeError(f"Unknown dtype {dtype_str}")


def to_triton(x: np.ndarray, device: Any, dst_type: str | None = None) -> Any:
    name = x.dtype.name
    if name in uint_dtypes:
        return reinterpret(torch.tensor(x.view(name[1:]), device=device), getattr(_language, name))
    tensor = torch.tensor(x, device=device)
    if dst_type and "float8" in dst_type:
        return reinterpret(tensor, getattr(_language, dst_type))
    return tensor.bfloat16() if name == "float32" and dst_type == "bfloat16" else tensor


def to_numpy(x: Any) -> np.ndarray:
    if isinstance(x, TensorWrapper):
        return x.base.cpu().numpy().view(torch_dtype_name(x.dtype))
    return (x.cpu().float() if x.dtype is torch.bfloat16 else x.cpu()).numpy()


def unwrap_tensor(x: Any) -> Any:
    return x.base if isinstance(x, TensorWrapper) else x


def str_to_triton_dtype(x: str) -> DType:
    return as_dtype(getattr(torch, x)) if not hasattr(_language, x) else getattr(_language, x)


def torch_dtype_name(dtype: Any) -> str:
    if isinstance(dtype, torch.dtype):
        return str(dtype).removeprefix("torch.")
    if not isinstance(dtype, DType):
        raise TypeError(f"not a triton or torch dtype: {type(dtype)}")
    return next((k for k in dtypes_with_bfloat16 if getattr(_language, k) == dtype), str(dtype))


def _fresh_knobs_impl(skipped_attr: set[str] | None = None) -> tuple[Callable[[], Any], Callable[[], None]]:
    """Two functions: one puts unset copies of all groups of `triton.knobs` (but those named) in place, the other
    puts all back."""
    before = {name: group for name, group in vars(knobs).items()
              if isinstance(group, knobs.base_knobs) and name not in (skipped_attr or ())}
    keys = [setting.key for group in before.values() for setting in group.knob_descriptors.values()]
    environment, propagated = {key: os.environ.get(key) for key in keys}, knobs.propagate_env

    def fresh() -> Any:
        for name, group in before.items():
            setattr(knobs, name, group.copy().reset())
        for key in keys:
            os.environ.pop(key, None)
        knobs.propagate_env = True
        return knobs

    def reset() -> None:
        for name, group in before.items():
            setattr(knobs, name, group)
            group.restored()
        for key, value in environment.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
        knobs.propagate_env = propagated

    return fresh, reset


def default_alloc_fn(size: int, align: int, stream: Any) -> Any:
    return torch.empty(size, dtype=torch.int8, device=driver.active.get_active_torch_device())


__all__ = ["run_in_process"]
