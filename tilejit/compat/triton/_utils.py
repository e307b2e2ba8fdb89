from __future__ import annotations

from collections.abc import Sequence

from tilejit.compat.triton.runtime.jit import type_canonicalisation_dict
from tilejit.language import TRITON_MAX_TENSOR_NUMEL


def is_power_of_two(x: int) -> bool:
    return x > 0 and x & (x - 1) == 0


def validate_block_shape(shape: Sequence[int]) -> int:
    """The elements of a tile."""
    numel = 1
    for i, d in enumerate(shape):
        if not isinstance(d, int):
            raise TypeError(f"Shape element {i} must have type `constexpr[int]`, got `constexpr[{type(d)}]")
        if not is_power_of_two(d):
            raise ValueError(f"Shape element {i} must be a power of 2")
        numel *= d
    if numel > TRITON_MAX_TENSOR_NUMEL:
        raise ValueError(f"numel ({numel}) exceeds triton maximum tensor numel ({TRITON_MAX_TENSOR_NUMEL})")
    return numel


def canonicalize_dtype(dtype: object) -> str:
    return type_canonicalisation_dict[str(dtype).split(".")[-1]]


__all__ = ["canonicalize_dtype", "is_power_of_two", "validate_block_shape"]
