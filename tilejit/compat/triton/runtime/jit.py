"""A kernel of tilejit with the attributes, hooks and caches of Triton's JITFunction."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property, partial
from typing import Any, ClassVar

from tilejit.compat.triton import knobs
from tilejit.compat.triton.compiler.compiler import CompiledKernel
from tilejit.compat.triton.compiler.errors import placed
from tilejit.compat.triton.runtime._async_compile import FutureKernel, active_mode
from tilejit.compat.triton.runtime.driver import driver
from tilejit.compat.triton.runtime.errors import OutOfResources
from tilejit.compat.triton.runtime.hooks import JitFunctionInfo, compile_info, preloaded
from tilejit.compat.triton.runtime.stand_ins import MockTensor, TensorWrapper, reinterpret
from tilejit.errors import LaunchError
from tilejit.frontend import KernelSource
from tilejit.frontend.captures import captures
from tilejit.frontend.functions import ConstexprFunction, constexpr_function
from tilejit.ir.target import DEFAULT
from tilejit.ir.types import DType, Ptr
from tilejit.language.tensor import constexpr
from tilejit.runtime import arrays
from tilejit.runtime.jit import OPTIONS, Kernel
from tilejit.runtime.launch import Entry
from tilejit.runtime.signature import ArgumentError

#: Options of Triton's compilers that tilejit lacks: accepted, no effect.
ACCEPTED = frozenset({"warp_size", "ptx_version", "ptx_options", "ir_override",
                      "supported_fp8_dtypes", "deprecated_fp8_dot_operand_dtypes", "default_dot_input_precision",
                      "allowed_dot_input_precisions", "max_num_imprecise_acc_default", "backend_name",
                      "instrumentation_mode", "cluster_dims",
                      "grf_mode", "waves_per_eu", "matrix_instr_nonkdim", "kpack"})
#: how often a kernel's text was replaced: every kernel may have been built from it
_EDITS = [0]
#: carries out a launch instead of the device, while a configuration is being measured
CARRIED_OUT_BY: ContextVar[Callable[..., Any] | None] = ContextVar("tilejit_triton_run", default=None)
type_canonicalisation_dict = {
    "bool": "i1", "int1": "i1", "uint1": "i1", "i1": "i1", "float8e4nv": "fp8e4nv", "float8e5": "fp8e5",
    "float8e4b15": "fp8e4b15", "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5", "half": "fp16", "float16": "fp16",
    "bfloat16": "bf16", "float": "fp32", "float32": "fp32", "double": "fp64", "float64": "fp64", "void": "void",
    **{f"{long}{bits}": f"{short}{bits}" for long, short in (("int", "i"), ("uint", "u")) for bits in (8, 16, 32, 64)},
    **{name: name for name in ("fp8e4nv", "fp8e5", "fp8e4b15", "fp16", "bf16", "fp32", "fp64")}}


def _readable(value: Any) -> bool:
    """By name: `tl.constexpr`s, types and named tuples; a knob allows others."""
    return isinstance(value, (constexpr, DType, Ptr)) or hasattr(value, "_fields") \
        or knobs.compilation.allow_non_constexpr_globals


class KernelInterface:
    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no run()")

    def warmup(self, *args: Any, grid: Any = None, **kwargs: Any) -> Any:
        return self.run(*map(MockTensor.wrap_dtype, args), grid=grid, warmup=True, **kwargs)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)


class KernelParam:
    def __init__(self, num: int, param: inspect.Parameter, kernel: JITFunction):
        self.num, self.name, self.default = num, param.name, param.default
        self.has_default = param.default is not inspect.Parameter.empty
        self.is_constexpr = param.name in kernel.source.constexprs
        self.annotation = "" if param.annotation is inspect.Parameter.empty else str(param.annotation)
        self.is_const = not self.is_constexpr and "const" in self.annotation
        self.do_not_specialize = not kernel.keys[param.name].ones
        self.do_not_specialize_on_alignment = not kernel.keys[param.name].align


class _Compiled(MutableMapping[str, Any]):
    def __init__(self, fn: JITFunction):
        self.fn, self.found = fn, dict[str, Any]()

    def __getitem__(self, key: str) -> Any:
        return self.found[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.found[key] = value

    def __delitem__(self, key: str) -> None:
        self.found.pop(key)
        self.fn.forget()

    def __iter__(self) -> Iterator[str]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)


class _DeviceCaches(dict[Any, tuple]):
    def __init__(self, fn: JITFunction):
        super().__init__()
        self.fn = fn

    def __missing__(self, device: Any) -> tuple:
        place = device if isinstance(device, int) else driver.active.get_current_device()
        if place != device:
            return self[place]
        self[device] = (_Compiled(self.fn), {}, driver.active.get_current_target(), None, None)
        return self[device]

    def clear(self) -> None:
        super().clear()
        self.fn.forget()


class JITCallable:
    """What a kernel may call: a function that is built in place."""


def _known(fn: Callable[..., Any], given: Iterable[int | str] | None) -> tuple[int | str, ...]:
    names = inspect.signature(fn).parameters
    return tuple(n for n in given or () if (n < len(names) if isinstance(n, int) else n in names))


class JITFunction(Kernel, JITCallable, KernelInterface):
    #: the hooks of `triton.knobs.runtime`, where they were until Triton 3.3
    cache_hook: ClassVar[Callable[..., Any] | None] = None
    compiled_hook: ClassVar[Callable[..., Any] | None] = None

    def __init__(self, fn: Callable[..., Any], version: Any = None,
                 do_not_specialize: Iterable[int | str] | None = None,
                 do_not_specialize_on_alignment: Iterable[int | str] | None = None, debug: bool | None = None,
                 noinline: bool | None = None, repr: Callable[..., str] | None = None,
                 launch_metadata: Callable[..., dict[str, Any]] | None = None):
        super().__init__(fn, bool(debug), _known(fn, do_not_specialize), _known(fn, do_not_specialize_on_alignment))
        self.defaults["extern_libs"] = None  # part of a kernel's key, and no more: libdevice's are our own
        self.source.readable = _readable
        self.version, self.debug, self.noinline, self._repr = version, debug, noinline, repr
        self.do_not_specialize, self.do_not_specialize_on_alignment = do_not_specialize, do_not_specialize_on_alignment
        self.launch_metadata, self.module = launch_metadata, fn.__module__
        self.__qualname__, self.__globals__, self.signature = fn.__qualname__, fn.__globals__, self.source.signature
        self.pre_run_hooks: list[Callable[..., Any]] = []
        self.device_caches = _DeviceCaches(self)
        self.handles: dict[int, CompiledKernel] = {}
        self.hash: str | None = None
        self.seen_edits = _EDITS[0]
        self.used_global_vals: dict[tuple[str, int], tuple[Any, Any]] = {}
        self.params = [KernelParam(i, p, self) for i, p in enumerate(self.signature.parameters.values())]
        self.arg_names = [p.name for p in self.params]  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"JITFunction({self.module}:{self.fn.__qualname__})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("Cannot call @triton.jit'd outside of the scope of a kernel")

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return partial(self._run, grid, False)

    # -- source --
    @property
    def src(self) -> str:
        return self.source.text

    @src.setter
    def src(self, text: str) -> None:
        raise AttributeError("Cannot set attribute 'src' directly. Use '_unsafe_update_src()' and manually clear "
                             "`.hash` of all callers instead.")

    @cached_property
    def raw_src(self) -> list[str]:
        return list(self.source.lines[0])

    @cached_property
    def starting_line_number(self) -> int:
        return self.source.lines[1]

    @cached_property
    def def_file_line_number(self) -> int:
        return next(n for n, line in enumerate(self.raw_src, self.starting_line_number)
                    if line.strip().startswith("def "))

    @cached_property
    def def_file_col_number(self) -> int:
        line = self.raw_src[self.def_file_line_number - self.starting_line_number]
        return len(line) - len(line.lstrip())

    @cached_property
    def file_name(self) -> str:
        return self.source.file

    def is_gluon(self) -> bool:
        return False

    def get_capture_scope(self) -> dict[str, Any]:
        return {**self.__globals__, **inspect.getclosurevars(self.fn).nonlocals}

    def _unsafe_update_src(self, text: str) -> None:
        self.source = KernelSource(self.fn, text)
        self.source.readable = _readable
        self.hash = None
        _EDITS[0] += 1

    @property
    def cache_key(self) -> str:
        if self.hash is None:
            self.hash = self.source.fingerprint()
            self.used_global_vals = {
                (c.key, id(c.table)): (c.value, c.table) for c in captures(self.source) if not c.sources
                and c.value is not None and not (c.table or {}).get("__name__", "").startswith("tilejit.")}
        return self.hash

    def parse(self) -> Any:
        return self.source.tree

    def repr(self, specialization: Any = None) -> str:
        return self._repr(specialization) if self._repr else f"{self.module}.{self.__qualname__}"

    def add_pre_run_hook(self, hook: Callable[..., Any]) -> None:
        self.pre_run_hooks.append(hook)

    # -- compiling and launching --
    def run(self, *args: Any, grid: Any, warmup: bool = False,  # type: ignore[override]
            **kwargs: Any) -> CompiledKernel | None:
        return self._run(grid, warmup, *args, **kwargs)

    def warmup(self, *args: Any, grid: Any = None, **kwargs: Any) -> CompiledKernel | None:  # type: ignore[override]
        return self._run(grid, True, *map(MockTensor.wrap_dtype, args), **kwargs)

    def _run(self, grid: Any, warmup: bool, /, *args: Any, **kwargs: Any) -> CompiledKernel | None:
        if arrays.tracing():
            self.traced(grid, args, kwargs)  # torch's compiler follows this: an operator of the kernel
            return None
        for hook in self.pre_run_hooks:
            hook(*args, **kwargs)
        kwargs = self._options(kwargs)
        if self.seen_edits != _EDITS[0]:
            self.forget()
        if warmup:
            return self._warmup(args, kwargs)
        carried_out_by = CARRIED_OUT_BY.get()
        if carried_out_by is not None:
            carried_out_by(self, grid, args, kwargs)
            return None
        try:
            compiled = self._launch(grid, *args, **kwargs)
        except _Skipped:
            return None
        return None if compiled is None else self.handles[id(compiled)]

    def _options(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Without what only concerns Triton's compiler."""
        out = {}
        for k, v in kwargs.items():
            if k in self.keys or k in self.defaults:
                out[k] = v
            elif k == "ir_override" and v:
                raise LaunchError("ir_override: Triton's IR cannot take the place of a kernel, which tilejit compiles "
                                  "from its source; TILEJIT_OVERRIDE replaces stages of tilejit's own")
            elif k != "arch" and k not in ACCEPTED:
                raise KeyError(f"Keyword argument {k} was specified but unrecognised")
        if "extern_libs" in out:
            libraries = dict(out["extern_libs"] or ())
            out["extern_libs"] = tuple(libraries.items()) or None
            if other := ", ".join(sorted(libraries.keys() - {"libdevice"})):
                raise LaunchError(f"extern_libs: {other}: bitcode cannot be linked to what tilejit compiles; "
                                  "libdevice's functions are its own")
        warps = out.get("num_warps")
        if isinstance(warps, int) and warps & (warps - 1) and warps != 12:
            raise AssertionError(f"num_warps must be a power of 2, found {warps}")
        if isinstance(warps, int) and warps > 32:
            raise OutOfResources(32 * warps, 1024, "threads")
        if knobs.runtime.debug and "debug" not in out:
            out["debug"] = True
        if not knobs.language.default_fp_fusion:
            out.setdefault("enable_fp_fusion", False)
        arch = knobs.runtime.override_arch or kwargs.get("arch")
        if arch:
            out.setdefault("target", {"sm90": DEFAULT, "sm90a": DEFAULT}.get(arch, arch.replace("sm", "sm_")))
        if out.get("target") == "sm_80" and (out.get("num_ctas") or 1) > 1:
            raise ValueError(f"num_ctas > 1 requires NVIDIA SM90+ (Hopper), found num_ctas={out['num_ctas']} for sm_80")
        return out

    def _warmup(self, args: tuple, kwargs: dict[str, Any]) -> CompiledKernel | None:
        plan, flat = self._bound(args, kwargs)
        described, options = self.describe(plan, flat, typed=True), self.options(plan, flat)
        info = compile_info(self, described, options, True)
        cache = self.device_caches[driver.active.get_current_device()][0]
        if info["key"] in cache:
            return cache[info["key"]]
        if _asked(knobs.runtime.jit_cache_hook or JITFunction.cache_hook, self, info):
            return None
        def finish(compiled: Any) -> CompiledKernel:
            handle = self._handle(compiled, info)
            _asked(knobs.runtime.jit_post_compile_hook or JITFunction.compiled_hook, self, info)
            return handle

        mode = active_mode.get()
        if mode is None:
            with placed():
                return finish(super().compile(*args, **kwargs))
        cache[info["key"]] = mode.submit(partial(super().compile, *args, **kwargs), finish)
        return cache[info["key"]]

    def preload(self, specialization_data: str) -> CompiledKernel | None:
        """Compile what a hook was told of another process's kernel (`compile["specialization_data"]`).

        Raises RuntimeError if that is another kernel, or for another chip.
        """
        return self._warmup((), preloaded(self, specialization_data))

    def _entry(self, plan: Any, flat: tuple, stream: Any) -> Entry:
        before = len(self.entries)
        info = compile_info(self, self.describe(plan, flat), self.options(plan, flat), False)
        known = self.device_caches[driver.active.get_current_device()][0].get(info["key"])
        if known is not None:
            handle = known.result() if isinstance(known, FutureKernel) else known
            self.prepared[self._key(plan, flat)] = handle.compiled
            entry = super()._entry(plan, flat, stream)
            self.handles[id(entry.compiled)] = handle
            return entry
        if _asked(knobs.runtime.jit_cache_hook or JITFunction.cache_hook, self, info):
            raise _Skipped
        load: tuple = (None, None, self.__name__, {}, info["key"])
        knobs.runtime.kernel_load_start_hook(*load)
        with placed():
            entry = super()._entry(plan, flat, stream)
        knobs.runtime.kernel_load_end_hook(*load)
        self._handle(entry.compiled, info)
        if len(self.entries) > before:
            _asked(knobs.runtime.jit_post_compile_hook or JITFunction.compiled_hook, self, info)
        return entry

    def _handle(self, compiled: Any, info: dict[str, Any]) -> CompiledKernel:
        handle = self.handles[id(compiled)] = CompiledKernel(compiled, self, info)
        self.device_caches[driver.active.get_current_device()][0][info["key"]] = handle
        return handle

    def shown(self, compiled: Any) -> Any:
        return self.handles.get(id(compiled), compiled)

    def forget(self) -> None:
        self.seen_edits, self.hash = _EDITS[0], None
        self.unlearn()
        self.entries.clear()
        self.prepared.clear()
        self.captured = []
        self.handles.clear()


class _Skipped(Exception):
    """`jit_cache_hook` took over: there is nothing to launch."""


def _asked(hook: Callable[..., Any] | None, fn: JITFunction, info: dict[str, Any]) -> Any:
    if hook is None:
        return None
    return hook(key=info["key"], repr=info["repr"], fn=JitFunctionInfo(fn.fn.__module__, fn.__qualname__, fn),
                compile=info, is_manual_warmup=info["is_warmup"], already_compiled=False)


@contextmanager
def carried_out_by(run: Callable[..., Any] | None) -> Iterator[None]:
    token = CARRIED_OUT_BY.set(run)
    try:
        yield
    finally:
        CARRIED_OUT_BY.reset(token)


def get_device_key() -> str:
    return f"cuda:{driver.active.get_current_device()}"


def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    return partial(jit, **options) if fn is None else JITFunction(fn, **options)


__all__ = ["ArgumentError", "ConstexprFunction", "JITCallable", "JITFunction", "KernelInterface", "KernelParam",
           "MockTensor", "OPTIONS", "TensorWrapper", "constexpr", "constexpr_function", "get_device_key", "jit",
           "reinterpret", "type_canonicalisation_dict"]
