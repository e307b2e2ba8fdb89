"""The CUDA driver through cuda-python, imported on first use, which raises LaunchError without a GPU."""
from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from math import prod
from typing import Any, NoReturn

from tilejit.errors import CudaError, LaunchError
from tilejit.ir.target import DEFAULT, TARGETS, Target
from tilejit.ptx.metadata import FEW
from tilejit.runtime.occupancy import check_room

#: Errors after which the context is lost (CUDA driver API, CUresult).
STICKY = frozenset({700, 702, 710, 714, 715, 716, 717, 718, 719})
_INVALID_CONTEXT, _NOT_INITIALIZED, _UNSUPPORTED_PTX = 201, 3, 222


class DriverError(CudaError):
    """`code` and `name` are its CUresult."""

    def __init__(self, message: str, code: int, name: str):
        super().__init__(message)
        self.code, self.name = code, name


@lru_cache(maxsize=1)
def api() -> Any:
    """cuda.bindings.driver, initialised. Raises LaunchError."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise LaunchError(f"the CUDA bindings cannot be imported: {error}") from error
    try:
        result = driver.cuInit(0)
    except RuntimeError as error:
        raise LaunchError("no CUDA driver here (libcuda cannot be loaded)") from error
    if int(result[0]):
        raise LaunchError(f"no usable GPU here: cuInit says {result[0].name}")
    if driver.cuDeviceGetCount()[1] < 1:
        raise LaunchError("no usable GPU here: the driver lists none")
    return driver


@lru_cache(maxsize=1)
def unavailable() -> str:
    try:
        api()
    except LaunchError as error:
        return str(error)
    return ""


def available() -> bool:
    return not unavailable()


def check(result: tuple, doing: str) -> Any:
    """The values of a driver call. Raises DriverError."""
    code = int(result[0])
    if code:
        text = api().cuGetErrorString(result[0])[1]
        message = f"{doing}: {result[0].name} ({code}): {text.decode() if text else 'unknown error'}"
        if code == _UNSUPPORTED_PTX:
            message += f"; the driver knows CUDA {driver_version()}, tilejit needs 13.0 (driver 580)"
        raise DriverError(message, code, result[0].name)
    return result[1] if len(result) == 2 else result[1:]


def driver_version() -> str:
    """As `13.0`."""
    version = check(api().cuDriverGetVersion(), "cuDriverGetVersion")
    return f"{version // 1000}.{version % 1000 // 10}"


class Device:
    """One GPU and its primary context, retained for the life of the process."""

    def __init__(self, index: int):
        driver = api()
        self.index, self.pid, self.lost, self.last = index, os.getpid(), "", ""
        self.handle = check(driver.cuDeviceGet(index), f"opening GPU {index}")
        self.context = check(driver.cuDevicePrimaryCtxRetain(self.handle), f"opening a context on GPU {index}")
        self.name = check(driver.cuDeviceGetName(128, self.handle), "cuDeviceGetName").split(b"\0")[0].decode()
        self.capability = (self.attribute("COMPUTE_CAPABILITY_MAJOR"), self.attribute("COMPUTE_CAPABILITY_MINOR"))
        self.multiprocessors = self.attribute("MULTIPROCESSOR_COUNT")
        self.max_shared = self.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")

    def attribute(self, name: str) -> int:
        driver = api()
        key = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return check(driver.cuDeviceGetAttribute(key, self.handle), f"reading {name} of GPU {self.index}")

    def activate(self) -> None:
        """Make its context the thread's current one. Raises after a fork or a lost context."""
        if os.getpid() != self.pid:
            raise LaunchError("CUDA was initialised before this process was forked: use the 'spawn' start method")
        if self.lost:
            self.raise_lost()
        driver = api()
        if int(check(driver.cuCtxGetCurrent(), "cuCtxGetCurrent")) != int(self.context):
            self.check(driver.cuCtxSetCurrent(self.context), "cuCtxSetCurrent")

    def raise_lost(self) -> NoReturn:
        raise CudaError(self.lost)

    def check(self, result: tuple, doing: str) -> Any:
        try:
            return check(result, doing)
        except DriverError as error:
            if error.code in STICKY:
                after = f" (last launch: {self.last})" if self.last else ""
                self.lost = (f"the context of GPU {self.index} was lost{after}: {error}; restart the process. "
                             "compute-sanitizer, or TILEJIT_LAUNCH_BLOCKING=1, finds the kernel")
                raise DriverError(self.lost, error.code, error.name) from None
            raise

    def malloc(self, nbytes: int) -> int:
        self.activate()
        return int(self.check(api().cuMemAlloc(nbytes), f"allocating {nbytes} bytes on GPU {self.index}"))

    def free(self, address: int) -> None:
        """A failure (a lost context, the end of the process) is of no use to anybody."""
        if not self.lost and os.getpid() == self.pid:
            api().cuMemFree(address)

    def to_device(self, dst: int, src: int, nbytes: int) -> None:
        """Synchronous."""
        self.activate()
        self.check(api().cuMemcpyHtoD(dst, src, nbytes), "copying to the device")

    def to_host(self, dst: int, src: int, nbytes: int) -> None:
        self.activate()
        self.check(api().cuMemcpyDtoH(dst, src, nbytes), "copying from the device")

    def clear(self, address: int, nbytes: int) -> None:
        self.activate()
        self.check(api().cuMemsetD8(address, 0, nbytes), "clearing device memory")

    def synchronize(self, stream: int | None = None) -> None:
        self.activate()
        driver = api()
        self.check(driver.cuCtxSynchronize() if stream is None else driver.cuStreamSynchronize(stream),
                   "waiting for the device")


@lru_cache(maxsize=64)
def device(index: int) -> Device:
    return Device(index)


def current_device() -> Device:
    """torch's if torch uses CUDA, else that of the current context, else GPU 0."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return device(torch.cuda.current_device())
    driver = api()
    if int(check(driver.cuCtxGetCurrent(), "cuCtxGetCurrent")):
        return device(int(check(driver.cuCtxGetDevice(), "cuCtxGetDevice")))
    return device(0)


def warm(index: int | None) -> None:
    """Load the bindings and open a GPU; errors appear where it is used."""
    with suppress(LaunchError, CudaError):
        (current_device() if index is None else device(index)).activate()


def multiprocessors(index: int | None = None) -> int:
    """SMs of a GPU (default: the current one); 132 where there is none, and for host memory (-1)."""
    if index is None:
        return current_device().multiprocessors if available() else 132
    return 132 if index < 0 else device(index).multiprocessors


def clusters(ctas: int, index: int | None = None) -> int:
    """How many clusters of so many CTAs run at once if each CTA has a multiprocessor, at most multiprocessors over
    CTAs."""
    if ctas == 1 or (not available() if index is None else index < 0):
        return multiprocessors(index) // ctas
    return _clusters(ctas, current_device() if index is None else device(index))


@lru_cache(maxsize=64)
def _clusters(ctas: int, dev: Device) -> int:
    return LoadedKernel(dev, _NOTHING, "nothing", 32, dev.max_shared, (ctas, 1, 1)).resident()


#: A kernel to ask the driver about.
_NOTHING = b".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry nothing() { ret; }\n"


def device_name(index: int | None = None) -> str:
    """Of a GPU (default: the current one); "" where there is none."""
    if index is None:
        return current_device().name if available() else ""
    return "" if index < 0 or not available() else device(index).name


def current_stream(index: int) -> int:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return torch._C._cuda_getCurrentRawStream(index)
    return 0


def stream_getter(flat: tuple = ()) -> Callable[[int], int]:
    """The cheapest function from a GPU's index to its current stream: cupy's if its arrays are arguments."""
    cupy = sys.modules.get("cupy")
    if cupy is not None and any([isinstance(x, cupy.ndarray) or isinstance(getattr(x, "base", None), cupy.ndarray)
                                 for x in flat]):
        return lambda index: int(cupy.cuda.get_current_stream().ptr)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return torch._C._cuda_getCurrentRawStream
    return current_stream


def stream_handle(stream: Any) -> int:
    """The CUstream of an integer, an object with `__cuda_stream__()`, or torch's and cupy's streams."""
    if isinstance(stream, int):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    raise LaunchError(f"stream: expected a CUDA stream, found {type(stream).__name__}")


def capturing(stream: int) -> bool:
    result = api().cuStreamIsCapturing(stream)
    return bool(int(result[0])) or bool(int(result[1]))


class LoadedKernel:
    """A kernel loaded on one device from a cubin, or PTX that the driver assembles."""

    def __init__(self, dev: Device, code: bytes, name: str, threads: int, shared_bytes: int,
                 cluster: tuple[int, int, int] = (1, 1, 1), pdl: bool | str = False,
                 target: Target = TARGETS[DEFAULT], cooperative: bool = False, programs: int = 1, walks: int = 0):
        driver = api()
        if dev.capability[0] != 9 if target.hopper else dev.capability[0] < target.sm // 10:
            other = '; target="sm_80" runs there' if target.hopper and dev.capability >= (8, 0) else ""
            raise LaunchError(f"{name} is compiled for {target.name}; {dev.name} has compute capability "
                              f"{'.'.join(map(str, dev.capability))}{other}")
        if shared_bytes > dev.max_shared:
            raise LaunchError(f"{name} needs {shared_bytes} bytes of shared memory, {dev.name} has "
                              f"{dev.max_shared} a block: use fewer num_stages or smaller tiles")
        dev.activate()
        self.device, self.name, self.threads, self.shared, self.cluster = dev, name, threads, shared_bytes, cluster
        self.pdl, self.cooperative, self.programs, self.walks = pdl, cooperative, programs, walks
        image = code if code[:4] == b"\x7fELF" else code + b"\0"
        self.module = self._load(image)
        self.function = check(driver.cuModuleGetFunction(self.module, name.encode()), f"finding kernel {name}")
        if shared_bytes > 48 * 1024:
            key = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(driver.cuFuncSetAttribute(self.function, key, shared_bytes), f"shared memory of {name}")
        if prod(cluster) > 8:  # of which not every chip has room for one
            key = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            check(driver.cuFuncSetAttribute(self.function, key, 1), f"cluster size of {name}")
        self.call, self.success = driver.cuLaunchKernelEx, driver.CUresult.CUDA_SUCCESS
        self._config: tuple[Any, Any] = (None, None)
        self.room: int | None = None  # for so many programs at once

    def _load(self, image: bytes) -> Any:
        driver = api()
        option, log = driver.CUjit_option, bytes(8192)  # the driver writes into the log
        result = driver.cuModuleLoadDataEx(
            image, 2, [option.CU_JIT_ERROR_LOG_BUFFER, option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES], [log, len(log)])
        if int(result[0]):
            text = log.rstrip(b"\0").decode(errors="replace").strip()
            self.device.check(result, f"loading kernel {self.name}{': ' + text if text else ''}")
        return result[1]

    def attribute(self, name: str) -> int:
        driver = api()
        key = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return check(driver.cuFuncGetAttribute(key, self.function), f"reading {name} of {self.name}")

    def launch(self, grid: tuple[int, int, int], stream: int, params: int) -> None:
        """Launch a grid of programs (a cluster of blocks each, or several a block) with a `void*` array at `params`."""
        dev = self.device
        if dev.lost:
            dev.raise_lost()
        dev.last = self.name
        key, config = self._config
        if key != (grid, stream):
            config = self.configure(grid, stream)
            self._config = (grid, stream), config
        result = self.call(config, self.function, params, 0)
        if result[0] is self.success:
            return
        if int(result[0]) in (_INVALID_CONTEXT, _NOT_INITIALIZED):
            dev.activate()  # a thread without a context, or a forked process (which raises)
            result = self.call(config, self.function, params, 0)
        dev.check(result, f"launching {self.name} with grid {grid}, {self.threads} threads and {self.shared} "
                          "bytes of shared memory")

    def resident(self) -> int:
        driver, doing = api(), f"asking how many programs of {self.name} run at once"
        if self.cluster == (1, 1, 1):
            found = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self.function, self.threads, self.shared)
            return int(check(found, doing)) * self.device.multiprocessors
        return int(check(driver.cuOccupancyMaxActiveClusters(self.function, self._config_of((1, 1, 1), 0)), doing))

    def early(self, grid: tuple[int, int, int]) -> bool:
        """Whether a launch may begin before the one ahead has ended."""
        if self.pdl not in ("even", "few"):
            return bool(self.pdl)
        programs, all_ = prod(grid), self.device.multiprocessors
        if self.pdl == "few":
            return programs <= FEW * self.programs
        if self.room is None:
            self.room = self.resident()
        return self.room <= all_ or 2 * programs <= all_ * self.programs

    def configure(self, grid: tuple[int, int, int], stream: int) -> Any:
        """The CUlaunchConfig of a grid on a stream, shared by threads. Raises LaunchError for a cooperative grid too
        large."""
        if self.cooperative:
            check_room(self.name, grid, self.resident(), self.threads, self.shared, self.cluster[0])
        return self._config_of(grid, stream)

    def _config_of(self, grid: tuple[int, int, int], stream: int) -> Any:
        driver = api()
        attributes = []
        if self.cluster != (1, 1, 1):
            attributes.append(driver.CUlaunchAttribute())
            attributes[-1].id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            dim = attributes[-1].value.clusterDim
            dim.x, dim.y, dim.z = self.cluster
        if self.early(grid):
            attributes.append(driver.CUlaunchAttribute())
            attributes[-1].id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attributes[-1].value.programmaticStreamSerializationAllowed = 1
        if self.cooperative:
            attributes.append(driver.CUlaunchAttribute())
            attributes[-1].id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attributes[-1].value.cooperative = 1
        config = driver.CUlaunchConfig()
        ctas = -(-grid[0] // self.programs)
        if self.walks and ctas > self.walks:
            ctas = min(ctas, max(1, self.resident() // self.walks) * self.walks)
        config.gridDimX = ctas * self.cluster[0]
        config.gridDimY, config.gridDimZ = grid[1], grid[2]
        config.blockDimX, config.blockDimY, config.blockDimZ = self.threads, 1, 1
        config.sharedMemBytes, config.hStream = self.shared, driver.CUstream(stream)
        config.attrs, config.numAttrs = attributes, len(attributes)
        return config


#: tilejit dtype name -> CUtensorMapDataType. fp8 travels as bytes; there are no signed 8- and 16-bit kinds.
_MAP_TYPES = {"int1": "UINT8", "int8": "UINT8", "uint8": "UINT8", "fp8e4b15": "UINT8", "fp8e4nv": "UINT8",
              "fp8e5": "UINT8", "int16": "UINT16", "uint16": "UINT16", "int32": "INT32", "uint32": "UINT32",
              "int64": "INT64", "uint64": "UINT64", "fp16": "FLOAT16", "bf16": "BFLOAT16", "fp32": "FLOAT32",
              "tf32": "TFLOAT32", "fp64": "FLOAT64"}


def byte_strides(strides: list[int]) -> list[Any]:
    """globalStrides of cuTensorMapEncodeTiled, which reads rank - 1 of them but refuses a null pointer: one for rank 1.
    """
    return [api().cuuint64_t(x) for x in strides or [16]]


def encode_tensor_map(address: int, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...],
                      box: tuple[int, ...], swizzle: int, fill: str) -> bytes:
    """The 128 bytes of a CUtensorMap (cuTensorMapEncodeTiled)."""
    from tilejit.ir.types import DTYPES

    d, size = api(), DTYPES[dtype].bytes
    kind = getattr(d.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_MAP_TYPES[dtype]}")
    result = d.cuTensorMapEncodeTiled(
        kind, len(shape), address, [d.cuuint64_t(x) for x in reversed(shape)],
        byte_strides([x * size for x in reversed(strides[:-1])]), [d.cuuint32_t(x) for x in reversed(box)],
        [d.cuuint32_t(1)] * len(shape), d.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        d.CUtensorMapSwizzle({0: 0, 32: 1, 64: 2, 128: 3}[swizzle]),
        d.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        d.CUtensorMapFloatOOBfill(1 if fill == "nan" else 0))
    tmap = check(result, f"encoding a tensor map of {dtype}{list(shape)}, strides {list(strides)}, box {list(box)}, "
                         f"swizzle {swizzle}")
    return ctypes.string_at(int(tmap.getPtr()), 128)
