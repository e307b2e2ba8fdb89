"""The CUDA driver through cuda-python, imported on first use: context, modules, launches, tensor maps, memory."""
from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from typing import Any

from tilejit.errors import CudaError, LaunchError

#: Errors after which the context is lost (CUDA driver API, CUresult).
_STICKY = {700, 702, 710, 714, 715, 716, 717, 718, 719}


@lru_cache(maxsize=1)
def api() -> Any:
    """cuda.bindings.driver, initialised."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise LaunchError(f"the CUDA bindings cannot be imported: {error}") from error
    try:
        result = driver.cuInit(0)
    except RuntimeError as error:
        raise LaunchError(f"no CUDA driver here ({error})") from error
    if int(result[0]):
        raise LaunchError(f"no usable GPU here: cuInit says {result[0].name}")
    return driver


def available() -> bool:
    """True if a GPU can be used."""
    try:
        api()
    except LaunchError:
        return False
    return True


def check(result: tuple, doing: str) -> Any:
    """The values of a driver call, or a CudaError that says what was being done."""
    code = result[0]
    if int(code):
        driver = api()
        text = driver.cuGetErrorString(code)[1]
        note = ""
        if int(code) in _STICKY:
            note = "; the CUDA context is lost, restart the process"
        raise CudaError(f"{doing}: {code.name} ({int(code)}): {text.decode() if text else ''}{note}")
    return result[1] if len(result) == 2 else result[1:]


@lru_cache(maxsize=16)
def primary_context(device: int) -> Any:
    """The primary context of a device, retained for the life of the process."""
    driver = api()
    dev = check(driver.cuDeviceGet(device), "cuDeviceGet")
    return check(driver.cuDevicePrimaryCtxRetain(dev), "cuDevicePrimaryCtxRetain")


def ensure_context() -> None:
    """Make the current thread have a context: its own, or device 0's primary one."""
    driver = api()
    current = check(driver.cuCtxGetCurrent(), "cuCtxGetCurrent")
    if not int(current):
        check(driver.cuCtxSetCurrent(primary_context(0)), "cuCtxSetCurrent")


def attribute(name: str) -> int:
    """A CU_DEVICE_ATTRIBUTE of the current device."""
    driver = api()
    ensure_context()
    dev = check(driver.cuCtxGetDevice(), "cuCtxGetDevice")
    return check(driver.cuDeviceGetAttribute(
        getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), dev), "cuDeviceGetAttribute")


@lru_cache(maxsize=1)
def multiprocessors() -> int:
    """Number of SMs of the current device."""
    return attribute("MULTIPROCESSOR_COUNT")


@lru_cache(maxsize=1)
def capability() -> tuple[int, int]:
    """Compute capability of the current device."""
    return attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")


class LoadedKernel:
    """A module loaded from a cubin or from PTX text, and its entry function."""

    def __init__(self, code: bytes, name: str, shared_bytes: int):
        driver = api()
        ensure_context()
        if capability()[0] != 9:
            raise LaunchError(f"tilejit's PTX is for compute capability 9.0 (Hopper), this GPU has "
                              f"{'.'.join(map(str, capability()))}")
        image = code if code[:4] == b"\x7fELF" else code + b"\0"
        options = driver.CUjit_option
        log = bytes(8192)                # the driver writes into it
        result = driver.cuModuleLoadDataEx(
            image, 2, [options.CU_JIT_ERROR_LOG_BUFFER, options.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES],
            [log, len(log)])
        if int(result[0]):
            raise CudaError(f"loading kernel {name}: {result[0].name}: "
                            f"{log.rstrip(bytes(1)).decode(errors='replace')}")
        self.module = result[1]
        self.function = check(driver.cuModuleGetFunction(self.module, name.encode()), f"finding {name}")
        self.name = name
        if shared_bytes > 48 * 1024:
            key = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(driver.cuFuncSetAttribute(self.function, key, shared_bytes), f"shared memory of {name}")

    def registers(self) -> int:
        """Registers per thread at launch."""
        driver = api()
        key = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS
        return check(driver.cuFuncGetAttribute(key, self.function), "cuFuncGetAttribute")


def launch(kernel: LoadedKernel, grid: tuple[int, int, int], threads: int, shared: int, stream: int,
           params: int) -> None:
    """Launch with a prepacked `void*` array at address `params`."""
    result = api().cuLaunchKernel(kernel.function, *grid, threads, 1, 1, shared, stream, params, 0)
    if int(result[0]):
        check(result, f"launching {kernel.name} with grid {grid}")


def current_stream() -> int:
    """torch's current stream if torch is loaded, else the legacy default stream."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())
    return 0


#: tilejit dtype name -> CUtensorMapDataType (fp8 travels as bytes).
_MAP_TYPES = {"uint8": "UINT8", "int8": "UINT8", "fp8e4nv": "UINT8", "fp8e5": "UINT8", "int1": "UINT8",
              "uint16": "UINT16", "int16": "UINT16", "uint32": "UINT32", "int32": "INT32", "uint64": "UINT64",
              "int64": "INT64", "fp16": "FLOAT16", "bf16": "BFLOAT16", "fp32": "FLOAT32", "tf32": "FLOAT32",
              "fp64": "FLOAT64"}


def encode_tensor_map(address: int, dtype: str, elem_bytes: int, shape: tuple[int, ...],
                      strides: tuple[int, ...], box: tuple[int, ...], swizzle: int, fill: str) -> bytes:
    """The 128 bytes of a CUtensorMap; sizes, strides (elements) and box are outermost first."""
    d = api()
    ensure_context()
    kind = getattr(d.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_MAP_TYPES[dtype]}")
    result = d.cuTensorMapEncodeTiled(
        kind, len(shape), address, [d.cuuint64_t(x) for x in reversed(shape)],
        [d.cuuint64_t(x * elem_bytes) for x in reversed(strides[:-1])],
        [d.cuuint32_t(x) for x in reversed(box)], [d.cuuint32_t(1)] * len(shape), d.CUtensorMapInterleave(0),
        d.CUtensorMapSwizzle({0: 0, 32: 1, 64: 2, 128: 3}[swizzle]),
        d.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        d.CUtensorMapFloatOOBfill(1 if fill == "nan" else 0))
    tmap = check(result, f"encoding a tensor map of {dtype}{list(shape)}, strides {list(strides)}, box {list(box)}")
    return ctypes.string_at(int(tmap.getPtr()), 128)


def malloc(nbytes: int) -> int:
    """Device memory."""
    ensure_context()
    return int(check(api().cuMemAlloc(nbytes), f"allocating {nbytes} bytes"))


def free(address: int) -> None:
    """Free device memory; errors at shutdown are of no use to anybody."""
    api().cuMemFree(address)


def copy_to_device(dst: int, src: int, nbytes: int) -> None:
    """Host to device, synchronous."""
    check(api().cuMemcpyHtoD(dst, src, nbytes), "copying to the device")


def copy_to_host(dst: int, src: int, nbytes: int) -> None:
    """Device to host, synchronous."""
    ensure_context()
    check(api().cuMemcpyDtoH(dst, src, nbytes), "copying from the device")


def synchronize() -> None:
    """Wait for the context's work."""
    ensure_context()
    check(api().cuCtxSynchronize(), "cuCtxSynchronize")
