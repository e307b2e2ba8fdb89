"""The op families; importing this package fills the op table."""
from tilejit.ir.ops import arith, control, memory, scheduled, shape, tensor

__all__ = ["arith", "control", "memory", "scheduled", "shape", "tensor"]
