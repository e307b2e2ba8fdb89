from __future__ import annotations

from functools import lru_cache

import numpy as np


@lru_cache(maxsize=None)
def _table(dtype: str) -> np.ndarray:
    import ml_dtypes

    codes = np.arange(256, dtype=np.uint8)
    kind = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "s8": np.int8, "u8": np.uint8}[dtype]
    return codes.view(kind).astype(np.float32)


def from_bits(raw: np.ndarray, dtype: str) -> np.ndarray:
    """float32 values of bit patterns; tf32 drops the low 13 bits as the tensor core does."""
    if dtype == "bf16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    if dtype == "f16":
        return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)
    if dtype == "tf32":
        return np.ascontiguousarray(raw & np.uint32(0xFFFFE000)).view(np.float32)
    return _table(dtype)[raw]
