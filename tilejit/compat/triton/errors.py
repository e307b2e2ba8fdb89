"""`triton.errors`: the base of all errors."""
from tilejit.errors import TileJitError as TritonError

__all__ = ["TritonError"]
