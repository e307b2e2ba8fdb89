"""`triton.language.target_info`: questions about the chip that a kernel is compiled for."""
from tilejit.compat.triton.runtime.driver import GPUTarget, driver


def current_target() -> GPUTarget:
    """The chip that kernels are compiled for."""
    return driver.active.get_current_target()
