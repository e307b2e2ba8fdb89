"""`triton.tools.tensor_descriptor`."""
from tilejit.runtime.descriptor import TensorDescriptor

__all__ = ["TensorDescriptor"]
