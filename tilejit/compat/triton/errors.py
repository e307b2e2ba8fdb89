from tilejit.errors import TileJitError as TritonError

__all__ = ["TritonError"]
