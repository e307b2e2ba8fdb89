"""The op families; importing this package fills the op table."""
from tilejit.ir.ops import arith, assembly, block, control, memory, scheduled, sequential, shape, tensor

__all__ = ["arith", "assembly", "block", "control", "memory", "scheduled", "sequential", "shape", "tensor"]
