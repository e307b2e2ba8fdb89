"""The fp8 recipe of products (arXiv 2209.05433): operands become e4m3 and gradients e5m2, each with one scale, which
its greatest number has now."""
from __future__ import annotations

from typing import Any

import tilejit
import tilejit.language as tl
from tilejit.kernels._operands import order_of
from tilejit.kernels.rows.quantisation import quantise

RECIPES = ("fp8",)


def narrowed(x: Any, dtype: Any = tl.float8e4nv) -> tuple[Any, Any]:
    """A matrix in fp8, and its scale."""
    if order_of(tilejit.array_info(x)) is False:
        q, scale = quantise(x.T, "tensor", dtype)
        return q.T, scale
    return quantise(x, "tensor", dtype)


def check_recipe(recipe: str, *scales: Any) -> None:
    if recipe not in RECIPES or any(s is not None for s in scales):
        raise tilejit.LaunchError(f"matmul: recipe is one of {RECIPES}, and makes the scales; found {recipe!r}")
