from tilejit.compat.triton.language.extra import cuda, libdevice

#: parts of Triton for other makers' GPUs
LACKING = ("hip",)

__all__ = ["cuda", "libdevice"]
