"""`triton.backends.compiler`: what a target is."""
from tilejit.compat.triton.runtime.driver import GPUTarget

__all__ = ["GPUTarget"]
