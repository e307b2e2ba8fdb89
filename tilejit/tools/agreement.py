from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilejit.runtime.arrays import from_numpy_dtype

#: What two orders of summation may differ by, of an element and of its array's root mean square: four units in the last
#: place of 16 and 8 bits, more for wider ones.
TOLERANCE = {"fp64": 1e-10, "fp32": 1e-4, "tf32": 1e-2, "fp16": 4e-3, "bf16": 3.2e-2, "fp8e4nv": 0.5, "fp8e5": 1.0}


class Agreement:
    """The first configuration's outputs, which the others' have to equal, floats within `tolerance` (None:
    TOLERANCE)."""

    def __init__(self, tolerance: float | None = None):
        self.tolerance = tolerance
        self.first: Mapping[str, np.ndarray] | None = None
        self.agreed = self.differed = 0

    def problem(self, outputs: Mapping[str, np.ndarray]) -> str:
        if self.first is None:
            self.first = outputs
            return ""
        for name, x in outputs.items():
            found = self._difference(name, x, self.first[name])
            if found:
                self.differed += 1
                return found
        self.agreed += 1
        return ""

    def _difference(self, name: str, x: np.ndarray, y: np.ndarray) -> str:
        dtype = from_numpy_dtype(x.dtype)
        if dtype.is_int():
            wrong = x != y
            if not wrong.any():
                return ""
            at = np.unravel_index(int(wrong.argmax()), x.shape)
            return (f"wrong: {name}{_index(at)} is {x[at]}, the first configuration has {y[at]} "
                    f"({int(wrong.sum())} of {x.size} differ)")
        tolerance = TOLERANCE[dtype.name] if self.tolerance is None else self.tolerance
        a, b = x.astype(np.float64), y.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            finite = b[np.isfinite(b)]
            scale = float(np.sqrt(np.mean(finite * finite))) if finite.size else 0.0
            same = (a == b) | np.isnan(a) & np.isnan(b)
            error = np.where(same, 0.0, np.abs(a - b))
            wrong = ~(same | (error <= tolerance * (np.abs(b) + scale)))
        if not wrong.any():
            return ""
        worst = np.where(wrong, np.nan_to_num(error, nan=np.inf, posinf=np.inf), -1).argmax()
        at = np.unravel_index(int(worst), x.shape)
        return (f"wrong: {name}{_index(at)} is {a[at]:.6g}, the first configuration has {b[at]:.6g} "
                f"({int(wrong.sum())} of {x.size} differ by more than {tolerance:g})")

    def note(self) -> str:
        if self.differed > 1 and not self.agreed:
            return "all others differ from the first configuration: it may be the wrong one"
        return ""


def _index(at: tuple) -> str:
    return f"[{', '.join(str(int(i)) for i in at)}]"
