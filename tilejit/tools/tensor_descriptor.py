"""The host descriptor, where Triton programs look for it."""
from tilejit.runtime.descriptor import TensorDescriptor

__all__ = ["TensorDescriptor"]
