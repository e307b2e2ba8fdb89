"""Activation functions that end a matrix product."""
from __future__ import annotations

import tilejit
import tilejit.language as tl

#: What `activate` knows.
ACTIVATIONS = (None, "relu", "gelu", "silu")


@tilejit.kernel
def activate(x, ACTIVATION: tl.constexpr):
    """An activation function of fp32 values: None, "relu", "gelu" (exact) or "silu"."""
    if ACTIVATION == "relu":
        x = tl.maximum(x, 0.0)
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "silu":
        x = x * tl.sigmoid(x)
    return x
