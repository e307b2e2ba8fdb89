"""The `@kernel` decorator: signatures, specialisation, and the launch path.

A launch builds a flat key from its arguments (dtypes, alignment, `== 1`, divisibility by 16, constants); a key
that was seen before goes straight to its compiled kernel. What is specialised follows Triton: integers that
are 1 become constants, integers divisible by 16 and 16-byte aligned pointers are marked so.
"""
from __future__ import annotations

import difflib
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from tilejit.errors import LaunchError
from tilejit.frontend import Const, KernelSource, Param
from tilejit.ir.types import DTYPES, Desc, DType, Ptr, fp32, int1, int32, int64, uint64
from tilejit.language.tensor import constexpr
from tilejit.runtime.arrays import ArrayInfo, TensorDescriptor, describe, is_torch, torch_dtype
from tilejit.runtime.compile import CompiledKernel, compile_kernel, tile_ir
from tilejit.runtime.params import Frame

#: Launch options and their defaults; anything else that is no argument of the kernel is an error.
OPTIONS: dict[str, Any] = {"num_warps": 4, "num_stages": 3, "num_ctas": 1, "debug": False}
#: Triton names that only tune its own compiler: accepted, no effect here.
IGNORED = {"enable_fp_fusion", "maxnreg", "launch_pdl", "launch_cooperative_grid"}


class ArgumentError(LaunchError, TypeError):
    """The arguments of a launch do not fit the kernel's signature."""


class Kernel:
    """A kernel function: `k[grid](*args, **options)` launches, `k.compile(*args)` only compiles."""

    def __init__(self, fn: Callable[..., Any], do_not_specialize: tuple = (), debug: bool = False):
        self.source = KernelSource(fn)
        self.fn, self.__name__, self.__doc__, self.__module__ = fn, fn.__name__, fn.__doc__, fn.__module__
        self.names = tuple(self.source.signature.parameters)
        self.constexprs = self.source.constexprs
        self.fixed = {self.names[i] if isinstance(i, int) else i for i in do_not_specialize}
        self.defaults = {**OPTIONS, "debug": debug}
        self.entries: dict[tuple, Entry] = {}
        self.lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise LaunchError(f"{self.__name__} is a kernel: launch it with {self.__name__}[grid](...), or call it "
                          "from another kernel")

    def __getitem__(self, grid: Any) -> Callable[..., CompiledKernel | None]:
        return lambda *args, **kwargs: self.run(grid, args, kwargs)

    def __repr__(self) -> str:
        return f"<tilejit kernel {self.__name__}{self.source.signature}>"

    # -- arguments ------------------------------------------------------------------------------------
    def bind(self, args: tuple, kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """(arguments by name, options); raises ArgumentError as Python would for a call."""
        if len(args) > len(self.names):
            raise ArgumentError(f"{self.__name__}() takes {len(self.names)} arguments, found {len(args)}; its "
                                f"signature is {self.__name__}{self.source.signature}")
        values = dict(zip(self.names, args))
        options = dict(self.defaults)
        for k, v in kwargs.items():
            if k in self.names:
                if k in values:
                    raise ArgumentError(f"{self.__name__}() got argument {k!r} twice")
                values[k] = v
            elif k in options:
                options[k] = v
            elif k not in IGNORED:
                near = difflib.get_close_matches(k, [*self.names, *options], 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ArgumentError(f"{self.__name__}() got an unknown option {k!r}{hint}")
        if len(values) < len(self.names):
            for n, p in self.source.signature.parameters.items():
                if n not in values:
                    if p.default is p.empty:
                        raise ArgumentError(f"{self.__name__}() misses argument {n!r}; its signature is "
                                            f"{self.__name__}{self.source.signature}")
                    values[n] = p.default
        if options["num_ctas"] != 1:
            raise ArgumentError(f"num_ctas={options['num_ctas']}: clusters are not available yet, use 1")
        return values, options

    def key(self, values: dict[str, Any], options: dict[str, Any], addresses: dict[str, int],
            host: set[str]) -> tuple:
        """The specialisation key; fills the addresses of arrays, and the names of those in host memory."""
        out: list[Any] = [*options.values(), *self.source.captured()]
        for n in self.names:
            x = values[n]
            if n in self.constexprs:
                x = values[n] = x.value if isinstance(x, constexpr) else x
                out.append((type(x), x if isinstance(x, (int, float, str, bool, tuple, DType, type(None)))
                            else getattr(x, "source", x)))
            elif is_torch(x):
                a = addresses[n] = x.data_ptr()
                if not x.is_cuda:
                    host.add(n)
                out.append((x.dtype, a % 16 == 0))
            elif type(x) is int:
                out.append((int, x) if x == 1 and n not in self.fixed else
                           (int, x % 16 == 0 and n not in self.fixed, -2 ** 31 <= x < 2 ** 31, x < 2 ** 63))
            elif isinstance(x, TensorDescriptor):
                addresses[n] = x.address
                if isinstance(x.base, np.ndarray) or is_torch(x.base) and not x.base.is_cuda:
                    host.add(n)
                out.append((x.dtype, x.block_shape, x.tma))
            elif isinstance(x, (bool, float, str, type(None), DType, tuple)):
                out.append((type(x), None if isinstance(x, (bool, float)) else x))
            elif isinstance(x, (int, np.integer)):
                values[n] = int(x)
                out.append((int, int(x) % 16 == 0, -2 ** 31 <= int(x) < 2 ** 31, True))
            elif isinstance(x, np.floating):
                values[n] = float(x)
                out.append((float, None))
            else:
                info = describe(x)
                if info is None:
                    out.append((type(x), getattr(x, "source", x)))
                    continue
                addresses[n] = info.address
                if not info.on_gpu:
                    host.add(n)
                out.append((info.dtype, info.address % 16 == 0))
        return tuple(out)

    def describe_args(self, values: dict[str, Any]) -> dict[str, Param | Const]:
        """What the compiler is told of each argument."""
        return {n: Const(values[n]) if n in self.constexprs else self._describe(n, values[n]) for n in self.names}

    def _describe(self, name: str, x: Any) -> Param | Const:
        if isinstance(x, str) and x.lstrip("*") != x or isinstance(x, str) and x in DTYPES:
            t = DTYPES.get(x.lstrip("*"))
            if t is None:
                raise ArgumentError(f"argument {name!r}: unknown type {x!r}; known: *{', *'.join(DTYPES)}")
            return Param(Ptr(t), 16) if x.startswith("*") else Param(t)
        if isinstance(x, (str, type(None), DType, tuple, constexpr)) or hasattr(x, "source"):
            return Const(x)
        if isinstance(x, bool):
            return Param(int1)
        if isinstance(x, int):
            if x == 1 and name not in self.fixed:
                return Const(1)
            t = int32 if -2 ** 31 <= x < 2 ** 31 else int64 if x < 2 ** 63 else uint64
            if x >= 2 ** 64 or x < -2 ** 63:
                raise ArgumentError(f"argument {name!r}: {x} does not fit 64 bits")
            return Param(t, 16 if x % 16 == 0 and name not in self.fixed else 1)
        if isinstance(x, float):
            return Param(fp32)
        if isinstance(x, TensorDescriptor):
            for d in x.block_shape:
                if not isinstance(d, int) or d < 1 or d & (d - 1):
                    raise ArgumentError(f"argument {name!r}: block_shape {x.block_shape} must be powers of two")
            return Param(Desc(x.dtype, x.block_shape, x.tma))
        info = ArrayInfo(x.data_ptr(), torch_dtype(x.dtype), (), (), True) if is_torch(x) else describe(x)
        if info is None:
            raise ArgumentError(f"argument {name!r}: expected an array, a number, a TensorDescriptor or a "
                                f"constant, found {type(x).__name__}")
        return Param(Ptr(info.dtype), 16 if info.address % 16 == 0 else info.dtype.bytes)

    # -- running ----------------------------------------------------------------------------------------
    def compile(self, *args: Any, grid: Any = None, **kwargs: Any) -> CompiledKernel:
        """Compile for these arguments without launching; needs no GPU. Types may be given as text: "*bf16"."""
        values, options = self.bind(args, kwargs)
        return compile_kernel(self.source, self.describe_args(values), options)

    warmup = compile

    def run(self, grid: Any, args: tuple, kwargs: dict[str, Any]) -> CompiledKernel | None:
        """Launch on a grid (1 to 3 integers, or a callable of the arguments by name)."""
        stream = kwargs.pop("stream", None)
        values, options = self.bind(args, kwargs)
        addresses: dict[str, int] = {}
        host: set[str] = set()
        key = self.key(values, options, addresses, host)
        dims = grid_dims(grid, values, options)
        if 0 in dims:
            return None
        if host:
            self._on_host(host, dims, values, options)
            return None
        entry = self.entries.get(key)
        if entry is None:
            with self.lock:
                entry = self.entries.get(key)
                if entry is None:
                    entry = Entry(compile_kernel(self.source, self.describe_args(values), options))
                    self.entries[key] = entry
        entry.launch(dims, values, addresses, stream)
        return entry.compiled

    def _on_host(self, host: set[str], dims: tuple[int, int, int], values: dict[str, Any],
                 options: dict[str, Any]) -> None:
        """Host arrays run in the IR evaluator, and only where there is no GPU."""
        from tilejit.runtime import driver

        if driver.available():
            name = sorted(host)[0]
            raise ArgumentError(f"argument {name!r} is on the cpu; move it with tilejit.to_device(array), or "
                                "tensor.cuda()")
        _say_once()
        from tilejit.ir.evaluate import evaluate

        fn = tile_ir(self.source, self.describe_args(values), options)
        names = {a.name for a in fn.body.args}
        evaluate(fn, dims, {n: _numpy(v) for n, v in values.items() if n in names})


def _numpy(x: Any) -> Any:
    return x.numpy() if is_torch(x) else x


def _say_once(said: list[bool] = []) -> None:  # noqa: B006  (one flag for the process, on purpose)
    if not said:
        said.append(True)
        print("tilejit: no GPU here; kernels run in the tile IR evaluator (numpy)", file=sys.stderr)


class Entry:
    """A compiled kernel that is loaded, with one parameter frame per thread."""

    def __init__(self, compiled: CompiledKernel):
        from tilejit.runtime import driver

        self.compiled, self.driver = compiled, driver
        meta = compiled.metadata
        self.loaded = driver.LoadedKernel(compiled.cubin or compiled.ptx.encode(), meta.name, meta.shared_bytes)
        self.threads, self.shared = meta.num_threads, meta.shared_bytes
        self.frames: dict[int, Frame] = {}

    def launch(self, dims: tuple[int, int, int], values: dict[str, Any], addresses: dict[str, int],
               stream: int | None) -> None:
        """Fill this thread's frame and launch on the given or current stream."""
        thread = threading.get_ident()
        frame = self.frames.get(thread)
        if frame is None:
            frame = self.frames[thread] = Frame(self.compiled.metadata, self.driver.encode_tensor_map)
        params = frame.fill(values, addresses)
        self.driver.launch(self.loaded, dims, self.threads, self.shared,
                           self.driver.current_stream() if stream is None else int(stream), params)


def grid_dims(grid: Any, values: dict[str, Any], options: dict[str, Any]) -> tuple[int, int, int]:
    """The grid as three integers; raises LaunchError for anything that is no grid."""
    if callable(grid):
        grid = grid({**options, **values})
    dims = (grid,) if isinstance(grid, (int, np.integer)) else tuple(grid) if isinstance(grid, (tuple, list)) else None
    if dims is None or not 1 <= len(dims) <= 3 or not all(isinstance(d, (int, np.integer)) for d in dims):
        raise LaunchError(f"a grid is 1 to 3 integers (or a callable that returns them), found {grid!r}")
    x, y, z = (*map(int, dims), 1, 1)[:3]
    if min(x, y, z) < 0 or x > 2 ** 31 - 1 or y > 65535 or z > 65535:
        raise LaunchError(f"grid {(x, y, z)} is out of range: x up to 2^31-1, y and z up to 65535")
    return x, y, z


def kernel(fn: Callable[..., Any] | None = None, *, do_not_specialize: tuple = (), debug: bool = False,
           **ignored: Any) -> Any:
    """Make a GPU kernel of a Python function written in the tile language.

    Usable bare or with arguments: `do_not_specialize` lists arguments (names or indices) whose values are
    not specialised; `debug` keeps `tl.device_assert`."""
    if fn is None:
        return lambda f: Kernel(f, do_not_specialize, debug)
    return Kernel(fn, do_not_specialize, debug)
