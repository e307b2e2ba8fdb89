"""The host descriptor, where Triton programs look for it."""
from tilejit.runtime.arrays import TensorDescriptor

__all__ = ["TensorDescriptor"]
