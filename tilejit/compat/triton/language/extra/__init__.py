"""`triton.language.extra`."""
from tilejit.compat.triton.language.extra import cuda, libdevice

__all__ = ["cuda", "libdevice"]
