"""Checks of what the stub driver itself is asked: memory, errors, its assembler, other chips; `test_driver.py` runs each in a process of its own."""
from __future__ import annotations

import sys

from stub_driver import (
    FLOAT,
    Tensor,
    fail,
    fake_torch,
    raises,
    setting,
    state,
    tensors,
)


def arrays():
    """Our own arrays: copies there and back, zeros, and freed memory."""
    import numpy as np

    import tilejit
    import tilejit.language as tl

    x = np.arange(12, dtype=np.float16).reshape(3, 4)
    a = tilejit.to_device(x)
    assert a.device == 0 and (a.numpy() == x).all() and "gpu 0" in repr(a)
    interface = a.__cuda_array_interface__
    assert interface["data"] == (a.address, False) and interface["typestr"] == "<f2" and interface["shape"] == (3, 4)
    assert (tilejit.zeros(5, tl.float32).numpy() == 0).all() and tilejit.empty((0,), tl.int8).numpy().size == 0

    class Foreign:
        def __init__(self, interface):
            self.__cuda_array_interface__ = interface

    info = tilejit.array_info(Foreign({**interface, "strides": (8, 2), "stream": 1}))
    assert (info.address, info.strides, info.device, state.waits) == (a.address, (4, 1), 0, 1)
    a_address = a.address
    assert state.allocated == 1
    del a
    assert state.allocated == 0 and a_address
    d = tilejit.TensorDescriptor.from_tensor(tilejit.to_device(x), (2, 4))
    assert d.device == 0 and not d.tma


def errors():
    """Errors of the driver name the call, the kernel and its launch; others leave the context alive."""
    fake_torch()
    import tilejit
    from tilejit.kernels.add import add_kernel
    from tilejit.runtime import driver
    from tilejit.runtime.driver import DriverError

    x, y, o = tensors(3)
    fail("cuModuleLoadDataEx", 222)
    raises(DriverError, "the stub refuses this image", lambda: add_kernel[(1,)](x, y, o, 1000, BLOCK=512))
    raises(DriverError, "driver 580", lambda: add_kernel[(1,)](x, y, o, 1000, BLOCK=512))
    fail("", 0)
    add_kernel[(1,)](x, y, o, 1000, BLOCK=512)
    fail("cuLaunchKernelEx", 701)
    error = raises(tilejit.CudaError, "launching add_kernel with grid (4, 1, 1)",
                   lambda: add_kernel[(4,)](x, y, o, 1000, BLOCK=512))
    assert error.code == 701 and error.name == "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
    fail("", 0)
    add_kernel[(4,)](x, y, o, 1000, BLOCK=512)
    assert state.launches == 2
    fail("cuMemAlloc", 2)
    raises(tilejit.CudaError, "allocating", lambda: tilejit.empty(10, tilejit.language.float32))
    host, other = Tensor((1024,), FLOAT, 0x90000, -1), Tensor((1024,), FLOAT, 0x90000, 1)
    raises(TypeError, "argument 'x' is on the cpu", lambda: add_kernel[(1,)](host, host, host, 1000, BLOCK=512))
    raises(TypeError, "'y' on gpu 1", lambda: add_kernel[(1,)](x, other, o, 1000, BLOCK=512))
    big = driver.device(0).max_shared + 1
    raises(tilejit.LaunchError, "shared memory", lambda: driver.LoadedKernel(driver.device(0), b"", "k", 32, big))
    setting("stub_capturing", 1)
    raises(tilejit.LaunchError, "before the capture", lambda: add_kernel[(1,)](x, y, o, 1000, BLOCK=256))
    add_kernel[(4,)](x, y, o, 1000, BLOCK=512)                  # loaded already: may be captured


def lost():
    """After an error that destroys the context every call raises at once and names the kernel."""
    fake_torch()
    import tilejit
    from tilejit.kernels.add import add_kernel
    from tilejit.runtime import driver

    x, y, o = tensors(3)
    add_kernel[(1,)](x, y, o, 1000, BLOCK=512)
    fail("cuCtxSynchronize", 700)
    error = raises(tilejit.CudaError, "last launch: add_kernel", driver.device(0).synchronize)
    assert error.code == 700
    fail("", 0)
    launches = state.launches
    raises(tilejit.CudaError, "was lost", lambda: add_kernel[(1,)](x, y, o, 1000, BLOCK=512))
    raises(tilejit.CudaError, "was lost", lambda: tilejit.empty(1, tilejit.language.float32))
    assert state.launches == launches


def blocking():
    """TILEJIT_LAUNCH_BLOCKING waits for each launch."""
    fake_torch()
    import tilejit
    from tilejit.kernels.add import add_kernel

    x, y, o = tensors(3)
    add_kernel[(1,)](x, y, o, 1000, BLOCK=512)
    assert state.waits == 0
    with tilejit.knobs(launch_blocking=True):
        add_kernel[(1,)](x, y, o, 1000, BLOCK=512)
    assert state.waits == 1 and state.loads == 2


def without_ptxas():
    """The driver gets the PTX text, and says what it used."""
    fake_torch()
    import tilejit
    from tilejit.kernels.add import add_kernel

    with tilejit.knobs(ptxas="driver"):
        k = add_kernel[(1,)](*tensors(3), 1000, BLOCK=512)
    assert k.cubin is None and k.resources.registers == 40 and "40 registers" in k.report()
    raises(FileNotFoundError, "no cubin", k.sass)


def other_chip():
    """A GPU that is no Hopper is refused by name."""
    fake_torch()
    setting("stub_major", 8)
    import tilejit
    from tilejit.kernels.add import add_kernel

    raises(tilejit.LaunchError, "Stub has compute capability 8.0; target=\"sm_80\" runs there", lambda: add_kernel[(1,)](*tensors(3), 1000, BLOCK=512))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
