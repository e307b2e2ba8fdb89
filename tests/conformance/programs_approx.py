"""Approximate functions. Their inputs stay where the manual bounds the error; infinities and NaNs come along."""
from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
from programs import KINDS, Near, Program, elementwise, random
from values import edges

MANUAL = "PTX ISA 8.6, "
#: name -> (opcodes, kind, low, high of the inputs, bound)
FUNCTIONS: dict[str, tuple[tuple[str, ...], str, float, float, Near]] = {
    "rsqrt.approx.f32": (("rsqrt.approx.f32", "rsqrt.approx.ftz.f32"), "f32", 0, 1e6, Near(2**-22.9, 0, MANUAL + "rsqrt: 2^-22.9 relative")),
    "rsqrt.approx.f64": (("rsqrt.approx.f64", "rsqrt.approx.ftz.f64"), "f64", 0, 1e6, Near(2**-18, 0, MANUAL + "rsqrt.approx.f64 emulates the upper 32 bits; the bound is loose")),
    "rcp.approx.ftz.f64": (("rcp.approx.ftz.f64",), "f64", 0.01, 1e6, Near(2**-20, 0, MANUAL + "rcp.approx.ftz.f64: the upper 20 bits of the mantissa")),
    "sin.approx.f32": (("sin.approx.f32", "sin.approx.ftz.f32"), "f32", -3.14, 3.14, Near(0, 2**-20.5, MANUAL + "sin: 2^-20.5 absolute in [-pi, pi]")),
    "cos.approx.f32": (("cos.approx.f32", "cos.approx.ftz.f32"), "f32", -3.14, 3.14, Near(0, 2**-20.5, MANUAL + "cos: 2^-20.5 absolute in [-pi, pi]")),
    "lg2.approx.f32": (("lg2.approx.f32", "lg2.approx.ftz.f32"), "f32", 0, 50, Near(2**-22, 2**-22, MANUAL + "lg2: 2^-22 absolute in (0.5, 2), else relative")),
    "ex2.approx.f32": (("ex2.approx.f32", "ex2.approx.ftz.f32"), "f32", -140, 127, Near(2**-22, 2**-149, MANUAL + "ex2: 2^-22 relative")),
    "tanh.approx.f32": (("tanh.approx.f32",), "f32", -9, 9, Near(2**-11, 0, MANUAL + "tanh: 2^-11 relative")),
    "tanh.approx.f16": (("tanh.approx.f16",), "f16", -5, 5, Near(0, 2**-10.987, MANUAL + "tanh.f16: 2^-10.987 absolute")),
    "tanh.approx.f16x2": (("tanh.approx.f16x2",), "f16x2", -5, 5, Near(0, 2**-10.987, MANUAL + "tanh.f16x2: 2^-10.987 absolute")),
    "tanh.approx.bf16": (("tanh.approx.bf16",), "bf16", -5, 5, Near(0, 2**-8, MANUAL + "tanh.bf16: 2^-8 absolute")),
    "tanh.approx.bf16x2": (("tanh.approx.bf16x2",), "bf16x2", -5, 5, Near(0, 2**-8, MANUAL + "tanh.bf16x2: 2^-8 absolute")),
    "ex2.approx.f16": (("ex2.approx.f16",), "f16", -20, 15, Near(2**-9.9, 2**-24, MANUAL + "ex2.f16: 2^-9.9 relative")),
    "ex2.approx.f16x2": (("ex2.approx.f16x2",), "f16x2", -20, 15, Near(2**-9.9, 2**-24, MANUAL + "ex2.f16x2: 2^-9.9 relative")),
    "ex2.approx.ftz.bf16": (("ex2.approx.ftz.bf16",), "bf16", -120, 120, Near(2**-7, 0, MANUAL + "ex2.bf16: 2^-7 relative")),
    "ex2.approx.ftz.bf16x2": (("ex2.approx.ftz.bf16x2",), "bf16x2", -120, 120, Near(2**-7, 0, MANUAL + "ex2.bf16x2: 2^-7 relative")),
}


def inputs(name: str, kind: str, low: float, high: float) -> np.ndarray:
    """128 registers: the special values within the range, infinities and NaNs, then random values of the range."""
    rng = random(name)
    dtype = np.dtype(KINDS[kind][2])
    with np.errstate(invalid="ignore"):                  # a signalling NaN
        wide = edges(kind).astype(np.float64)
    keep = np.isnan(wide) | np.isinf(wide) | ((wide >= low) & (wide <= high)) | (wide == 0)
    special = edges(kind)[keep]
    n = 256 * KINDS[kind][3] - len(special)
    near = rng.standard_normal(n) * np.exp2(rng.integers(-8, 2, n))
    values = np.where(rng.random(n) < 0.3, np.clip(near, low, high), rng.uniform(low, high, n))
    if dtype == ml_dtypes.bfloat16:
        values = values.astype(np.float32)
    return np.concatenate([special, values.astype(dtype)])


def programs() -> Iterator[Program]:
    """One program a function and type."""
    for name, (ops, kind, low, high, near) in FUNCTIONS.items():
        yield elementwise(name, [(kind, inputs(name, kind, low, high))], [(f"{op} %d, %a0;", kind, near) for op in ops])
