"""What Triton keeps under `triton.language.extra`: CUDA's math library and what only NVIDIA's GPUs have."""
from tilejit.language.extra import cuda, libdevice

__all__ = ["cuda", "libdevice"]
