"""The op families; importing this package fills the op table."""
from tilejit.ir.ops import arith, assembly, block, control, local, memory, scheduled, sequential, shape, tensor

__all__ = ["arith", "assembly", "block", "control", "local", "memory", "scheduled", "sequential", "shape", "tensor"]
