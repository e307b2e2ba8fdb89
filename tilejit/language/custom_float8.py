"""fp8e4b15 by integer operations, for conversions only."""
from __future__ import annotations

from typing import Any

from tilejit.ir.types import DType, fp8e4b15, fp16, uint8, uint16
from tilejit.language import semantics as sem
from tilejit.language.tensor import tensor
from tilejit.language.terms import Term


def widened(b: Any, x: tensor) -> tensor:
    """As fp16, exactly."""
    bits = Term(b, x).bits(uint8).cast(uint16)
    return (((bits & 0x7F) << 7) | ((bits & 0x80) << 8)).bits(fp16).tensor


def narrowed(b: Any, x: tensor) -> tensor:
    """Truncated to fp16, saturated at 1.75 (NaN too), then rounded to nearest, ties away from zero, as Triton's."""
    assert isinstance(x.elem, DType)
    bits = Term(b, sem.cast(b, x, fp16, "rtz" if x.elem.bits > 16 else None)).bits(uint16)
    size = (bits & 0x7FFF).op("minimum", 0x3F00, nan=False)
    return (((size + 0x40) >> 7) | ((bits & 0x8000) >> 8)).cast(uint8).bits(fp8e4b15).tensor
