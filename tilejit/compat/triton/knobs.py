"""`triton.knobs`: settings in groups, read from Triton's environment variables, and the hooks.

A setting that tilejit has too is handed on: setting it sets tilejit's variable as well. The others are kept, and
have no effect.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tilejit.runtime.hooks import HOOKS, Launch


class HookChain:
    """Functions that are called one after another (or, `reversed`, the last first); `changed` hears of changes."""

    def __init__(self, reversed: bool = False):
        self.calls: list[Callable[..., Any]] = []
        self.reversed = reversed
        self.changed: Callable[[], None] | None = None

    def add(self, func: Callable[..., Any]) -> None:
        """Call it too from now on."""
        if func not in self.calls:
            self.calls.append(func)
        if self.changed is not None:
            self.changed()

    def remove(self, func: Callable[..., Any]) -> None:
        """Call it no more."""
        if func in self.calls:
            self.calls.remove(func)
        if self.changed is not None:
            self.changed()

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        for call in self.calls[::-1] if self.reversed else list(self.calls):
            call(*args, **kwargs)


class LazyDict:
    """What a launch hook gets: `get()` is a dictionary, whose expensive part is made when asked for."""

    def __init__(self, data: dict[str, Any]):
        self.data, self.extras = data, list[tuple[Callable[..., dict[str, Any]], tuple]]()

    def add(self, func: Callable[..., dict[str, Any]], args: tuple) -> None:
        """`func(*args)` has more."""
        self.extras.append((func, args))

    def get(self) -> dict[str, Any]:
        """All of it."""
        for func, args in self.extras:
            self.data = {**self.data, **func(*args)}
        self.extras.clear()
        return self.data


class LaunchHook:
    """`launch_enter_hook` or `launch_exit_hook`: a chain, or a function in its place. `tilejit.hooks` calls it, at
    every launch of a kernel of tilejit's, while there is something to call."""

    def __init__(self, add: Callable[[Callable[..., Any]], Any], reversed: bool = False):
        self.add, self.chain, self.following = add, HookChain(reversed), False
        self.chain.changed = self.follow

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, group: Any, owner: type | None = None) -> Any:
        return self if group is None else group.__dict__.get(self.name, self.chain)

    def __set__(self, group: Any, value: Any) -> None:
        group.__dict__[self.name] = value
        if isinstance(value, HookChain):
            value.changed = self.follow
        self.follow()

    def follow(self) -> None:
        """Be called by tilejit's hooks, or no more."""
        now = runtime.__dict__.get(self.name, self.chain)
        wanted = now is not None and bool(getattr(now, "calls", True))
        if wanted and not self.following:
            self.add(self.tell)
        elif self.following and not wanted:
            HOOKS.remove(self.tell)
        self.following = wanted

    def tell(self, launch: Launch) -> None:
        """Call it as Triton does: with the kernel's name and stream, and what its `launch_metadata` says."""
        from tilejit.compat.triton.runtime.driver import driver

        stream = driver.active.get_current_stream() if launch.stream is None else launch.stream
        data = LazyDict({"name": launch.compiled.name, "function": launch.compiled, "stream": stream})
        data.add(lambda: launch.metadata, ())
        runtime.__dict__.get(self.name, self.chain)(data)


class Setting:
    """A setting of a group: `variable` of the environment, its default, and tilejit's variable for the same."""

    def __init__(self, variable: str, default: Any = None, ours: str = ""):
        self.variable, self.default, self.ours = variable, default, ours

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, group: Any, owner: type | None = None) -> Any:
        if group is None:
            return self
        if self.name in group.__dict__:
            return group.__dict__[self.name]
        text = os.environ.get(self.variable, "")
        if not text:
            return self.default() if callable(self.default) else self.default
        if isinstance(self.default, bool):
            return text.lower() in ("1", "true", "on", "yes", "y")
        return int(text) if isinstance(self.default, int) else text

    def __set__(self, group: Any, value: Any) -> None:
        group.__dict__[self.name] = value
        self._export(value)

    def __delete__(self, group: Any) -> None:
        group.__dict__.pop(self.name, None)

    def _export(self, value: Any) -> None:
        """Child processes, and tilejit, see it."""
        for variable in filter(None, (self.variable, self.ours)):
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = ("1" if value else "0") if isinstance(value, bool) else str(value)


class Group:
    """Settings and hooks that belong together."""

    @classmethod
    def _settings(cls) -> dict[str, Setting]:
        return {k: v for k, v in vars(cls).items() if isinstance(v, Setting)}

    knob_descriptors = property(lambda self: self._settings())

    @property
    def knobs(self) -> dict[str, Any]:
        """What every setting is now."""
        return {k: getattr(self, k) for k in self._settings()}

    def copy(self) -> Any:
        """Another one with the same settings."""
        out = type(self)()
        out.__dict__.update(self.__dict__)
        return out

    def reset(self) -> Any:
        """Back to what the environment says."""
        for k in self._settings():
            delattr(self, k)
        return self

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is set inside is undone at its end."""
        names = [v for s in self._settings().values() for v in (s.variable, s.ours) if v]
        before, values = {n: os.environ.get(n) for n in names}, dict(self.__dict__)
        try:
            yield
        finally:
            self.__dict__.clear()
            self.__dict__.update(values)
            self.restored()
            for n, v in before.items():
                if v is None:
                    os.environ.pop(n, None)
                else:
                    os.environ[n] = v


    def restored(self) -> None:
        """A scope has ended: what hangs on the settings looks at them again."""


def _home(folder: str) -> Callable[[], str]:
    return lambda: str(Path(os.environ.get("TRITON_HOME") or Path.home(), ".triton", folder))


class _Cache(Group):
    home_dir = Setting("TRITON_HOME", lambda: str(Path.home()))
    dir = Setting("TRITON_CACHE_DIR", _home("cache"))
    dump_dir = Setting("TRITON_DUMP_DIR", _home("dump"))
    override_dir = Setting("TRITON_OVERRIDE_DIR", _home("override"))
    manager_class: Any = None
    remote_manager_class: Any = None


class _Compilation(Group):
    always_compile = Setting("TRITON_ALWAYS_COMPILE", False, "TILEJIT_ALWAYS_COMPILE")
    override = Setting("TRITON_KERNEL_OVERRIDE", False)
    dump_ir = Setting("TRITON_KERNEL_DUMP", False)
    store_binary_only = Setting("TRITON_STORE_BINARY_ONLY", False)
    use_ir_loc = Setting("USE_IR_LOC")
    enable_asan = Setting("TRITON_ENABLE_ASAN", False)
    disable_line_info = Setting("TRITON_DISABLE_LINE_INFO", False)
    front_end_debugging = Setting("TRITON_FRONT_END_DEBUGGING", False)
    allow_non_constexpr_globals = Setting("TRITON_ALLOW_NON_CONSTEXPR_GLOBALS", False)
    instrumentation_mode = Setting("TRITON_INSTRUMENTATION_MODE", "")
    listener: Callable[..., Any] | None = None


class _Autotuning(Group):
    cache = Setting("TRITON_CACHE_AUTOTUNING", False)
    print = Setting("TRITON_PRINT_AUTOTUNING", False)
    listener: Callable[..., Any] | None = None


class _Runtime(Group):
    interpret = Setting("TRITON_INTERPRET", False)
    debug = Setting("TRITON_DEBUG", False)
    override_arch = Setting("TRITON_OVERRIDE_ARCH")
    launch_enter_hook = LaunchHook(HOOKS.enter)
    launch_exit_hook = LaunchHook(HOOKS.exit, reversed=True)
    kernel_load_start_hook: Any = HookChain()
    kernel_load_end_hook: Any = HookChain(reversed=True)
    kernel_unload_hook: Any = HookChain()
    jit_cache_hook: Callable[..., Any] | None = None
    jit_post_compile_hook: Callable[..., Any] | None = None
    add_stages_inspection_hook: Callable[..., Any] | None = None

    def restored(self) -> None:
        for hook in (_Runtime.launch_enter_hook, _Runtime.launch_exit_hook):
            hook.follow()


class _Language(Group):
    fp32_default = Setting("TRITON_F32_DEFAULT")
    default_fp_fusion = Setting("TRITON_DEFAULT_FP_FUSION", True)


class _Nvidia(Group):
    ptxas = Setting("TRITON_PTXAS_PATH", lambda: _ptxas(), "TILEJIT_PTXAS")
    cuobjdump = Setting("TRITON_CUOBJDUMP_PATH")
    nvdisasm = Setting("TRITON_NVDISASM_PATH")
    disable_ptxas_opt = Setting("DISABLE_PTXAS_OPT", False)
    ptxas_options = Setting("PTXAS_OPTIONS")
    mock_ptx_version = Setting("TRITON_MOCK_PTX_VERSION")
    dump_ptxas_log = Setting("TRITON_DUMP_PTXAS_LOG", False)
    libdevice_path = Setting("TRITON_LIBDEVICE_PATH")
    libcuda_path = Setting("TRITON_LIBCUDA_PATH")


class _Tool:
    """A program of the CUDA toolkit: `path` and `version` ("13.0")."""

    def __init__(self, path: str, version: str):
        self.path, self.version = path, version


def _ptxas() -> _Tool:
    from tilejit.runtime import ptxas

    words = ptxas.version().replace(",", " ").split()
    return _Tool(str(ptxas.find_ptxas() or ""), next((w for w in words if w[:1].isdigit() and "." in w), "13.0"))


class _Build(Group):
    cc = Setting("CC")
    impl: Any = None


class _Proton(Group):
    disable = Setting("TRITON_PROTON_DISABLE", False)


class _Amd(Group):
    use_buffer_ops = Setting("AMDGCN_USE_BUFFER_OPS", True)


build, cache, compilation, autotuning, runtime = _Build(), _Cache(), _Compilation(), _Autotuning(), _Runtime()
language, nvidia, amd, proton = _Language(), _Nvidia(), _Amd(), _Proton()
base_knobs = Group
