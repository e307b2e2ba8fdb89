"""Runs a kernel in the evaluator and in the emulator on the same arrays."""
from __future__ import annotations

from typing import Any

import numpy as np

import tilejit

TARGETS = ("evaluator", "emulator")


def both(kernel: Any, outputs: list[np.ndarray], *args: Any, grid: int = 1, num_warps: int = 4,
         **constants: Any) -> list[list[np.ndarray]]:
    """kernel[grid](*outputs, *args): the outputs by target, evaluator first."""
    results = []
    for target in TARGETS:
        out = [o.copy() for o in outputs]
        given = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        with tilejit.knobs(target=target):
            kernel[(grid,)](*out, *given, num_warps=num_warps, **constants)
        results.append(out)
    return results


def equal(kernel: Any, expected: list[np.ndarray], *args: Any, exact: bool = True, rtol: float = 1e-6,
          atol: float = 0.0, **options: Any) -> None:
    """Both targets give `expected`: bit for bit (NaNs alike), or within the bounds."""
    blank = [np.zeros_like(e) for e in expected]
    for target, got in zip(TARGETS, both(kernel, blank, *args, **options)):
        for i, (e, g) in enumerate(zip(expected, got)):
            if exact:
                np.testing.assert_array_equal(g, e, err_msg=f"output {i} in the {target}")
            else:
                np.testing.assert_allclose(g.astype(np.float64), e.astype(np.float64), rtol, atol,
                                           err_msg=f"output {i} in the {target}")
