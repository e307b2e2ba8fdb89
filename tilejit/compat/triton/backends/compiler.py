from tilejit.compat.triton.runtime.driver import GPUTarget

__all__ = ["GPUTarget"]
