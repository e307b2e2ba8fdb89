"""Inputs of the ready kernels, and what their results must be in float64: what several test modules use."""
from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tilejit import kernels


def poisoned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An output that shows every element that was not written."""
    return np.full(shape, np.nan, np.float32).astype(dtype)


def matrix(rng: np.random.Generator, rows: int, columns: int, dtype: Any, rows_first: bool) -> np.ndarray:
    """A random matrix in row- or column-major order."""
    if rows_first:
        return rng.standard_normal((rows, columns)).astype(dtype)
    return rng.standard_normal((columns, rows)).astype(dtype).T


def row_kernels(shape: tuple[int, int], dtype: Any) -> Iterator[tuple[Callable[..., Any], tuple, np.ndarray]]:
    """add, softmax, layernorm and rmsnorm: the host function, its arguments, and the reference."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    w, b = (rng.standard_normal(shape[1]).astype(dtype) for _ in range(2))
    d = x.astype(np.float64)
    e = np.exp(d - d.max(1, keepdims=True))
    centred = d - d.mean(1, keepdims=True)
    norm = centred / np.sqrt((centred ** 2).mean(1, keepdims=True) + 1e-5)
    yield kernels.add, (x, y), d + y.astype(np.float64)
    yield kernels.softmax, (x,), e / e.sum(1, keepdims=True)
    yield kernels.layernorm, (x, w, b), norm * w.astype(np.float64) + b.astype(np.float64)
    yield kernels.rmsnorm, (x, w), d / np.sqrt((d * d).mean(1, keepdims=True) + 1e-6) * w.astype(np.float64)


class StandIn:
    """In a kernel's place: launches call `launch(grid, *args, **kwargs)`."""

    def __init__(self, launch: Callable[..., Any], **given: Any):
        self.launch, self.given = launch, given

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        return functools.partial(self.launch, grid, **self.given)

    def partial(self, **given: Any) -> StandIn:
        return StandIn(self.launch, **self.given, **given)
