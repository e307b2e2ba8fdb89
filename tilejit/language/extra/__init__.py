from tilejit.language.extra import cuda, libdevice

__all__ = ["cuda", "libdevice"]
