"""Settings in groups, read from Triton's environment variables, and the hooks; what tilejit has is set there too."""
from __future__ import annotations

import importlib
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilejit.compat.triton._chains import HookChain, LaunchHook, LazyDict
from tilejit.runtime.hooks import HOOKS


class Env:
    """Its one object `env`, given to a setting: back to what the environment says."""


env = Env()
#: whether what is set is put into the environment too, for child processes
propagate_env = True


class env_base:
    def __init__(self, key: str, default: Any = None, ours: str = ""):
        self.key, self.default, self.ours = key, default, ours

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, group: Any, owner: type | None = None) -> Any:
        if group is None:
            return self
        if self.name in group.__dict__:
            return self.shown(group.__dict__[self.name])
        return self.get()

    def get(self) -> Any:
        text = os.environ.get(self.key)
        if text is None:
            return self.shown(self.default() if callable(self.default) else self.default)
        return self.shown(self.parsed(text))

    def parsed(self, text: str) -> Any:
        return text

    def shown(self, value: Any) -> Any:
        return value

    def __set__(self, group: Any, value: Any) -> None:
        if isinstance(value, Env):
            self.__delete__(group)
            return
        group.__dict__[self.name] = value
        if not propagate_env or not isinstance(value, (bool, int, str, type(None))):
            return
        for variable in filter(None, (self.key, self.ours)):
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = ("1" if value else "0") if isinstance(value, bool) else str(value)

    def __delete__(self, group: Any) -> None:
        group.__dict__.pop(self.name, None)


class env_str(env_base):
    """A text."""


class env_opt_str(env_base):
    """A text, or None."""


class env_bool(env_base):
    def __init__(self, key: str, default: Any = False, ours: str = ""):
        super().__init__(key, default, ours)

    def parsed(self, text: str) -> bool:
        return text.lower() in ("1", "true", "on", "yes", "y")


class env_opt_bool(env_bool):
    def __init__(self, key: str):
        super().__init__(key, None)


class env_int(env_base):
    def __init__(self, key: str, default: int = 0):
        super().__init__(key, default)

    def parsed(self, text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise RuntimeError(f"Unable to use {self.key}={text}: expected int") from None


class env_class(env_base):
    def __init__(self, key: str, type: str):
        super().__init__(key)
        self.type = type

    def parsed(self, text: str) -> Any:
        module, colon, name = text.partition(":")
        if not colon:
            raise RuntimeError(f"Unable to read {self.key}: '{text}' isn't of the form MODULE:CLASS")
        found = getattr(importlib.import_module(module), name)
        if self.type not in (c.__name__ for c in found.mro()):
            raise RuntimeError(f"Unable to use '{text}' from {self.key}: not of type '{self.type}'")
        return found


@dataclass
class NvidiaTool:
    path: str
    version: str

    @staticmethod
    def from_path(path: str) -> NvidiaTool | None:
        try:
            said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return None
        version = re.search(r"release (\d+\.\d+)", said)
        return NvidiaTool(path, version.group(1)) if version else None


class env_nvidia_tool(env_base):
    """A path, shown as the program there; where there is none, as the one that tilejit uses."""

    def shown(self, value: Any) -> NvidiaTool:
        for path in filter(None, (value, self.default() if callable(self.default) else None)):
            tool = NvidiaTool.from_path(str(path))
            if tool is not None:
                return tool
        raise RuntimeError(f"Cannot find {self.key.removeprefix('TRITON_').removesuffix('_PATH').lower()}")


class base_knobs:
    @property
    def knob_descriptors(self) -> dict[str, env_base]:
        return {k: v for k, v in vars(type(self)).items() if isinstance(v, env_base)}

    @property
    def knobs(self) -> dict[str, Any]:
        return {k: getattr(self, k) for k in self.knob_descriptors}

    def copy(self) -> Any:
        out = type(self)()
        out.__dict__.update(self.__dict__)
        return out

    def reset(self) -> Any:
        for k in self.knob_descriptors:
            delattr(self, k)
        return self

    @contextmanager
    def scope(self) -> Iterator[None]:
        names = [v for s in self.knob_descriptors.values() for v in (s.key, s.ours) if v]
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


def _folder(name: str) -> Callable[[], str]:
    return lambda: cache.get_triton_dir(name)


def _ptxas() -> str:
    from tilejit.runtime import ptxas

    return str(ptxas.find_ptxas() or "")


class _Cache(base_knobs):
    home_dir = env_str("TRITON_HOME", lambda: os.path.expanduser("~/"))
    dir = env_str("TRITON_CACHE_DIR", _folder("cache"), "TILEJIT_CACHE_DIR")
    dump_dir = env_str("TRITON_DUMP_DIR", _folder("dump"))
    override_dir = env_str("TRITON_OVERRIDE_DIR", _folder("override"))
    manager_class = env_class("TRITON_CACHE_MANAGER", "CacheManager")
    remote_manager_class = env_class("TRITON_REMOTE_CACHE_BACKEND", "RemoteCacheBackend")

    def get_triton_dir(self, name: str) -> str:
        return str(Path(self.home_dir, ".triton", name))


class _Compilation(base_knobs):
    always_compile = env_bool("TRITON_ALWAYS_COMPILE", ours="TILEJIT_ALWAYS_COMPILE")
    override = env_bool("TRITON_KERNEL_OVERRIDE")
    dump_ir = env_bool("TRITON_KERNEL_DUMP")
    store_binary_only = env_bool("TRITON_STORE_BINARY_ONLY")
    use_ir_loc = env_opt_str("USE_IR_LOC")
    enable_asan = env_bool("TRITON_ENABLE_ASAN")
    disable_line_info = env_bool("TRITON_DISABLE_LINE_INFO")
    front_end_debugging = env_bool("TRITON_FRONT_END_DEBUGGING")
    allow_non_constexpr_globals = env_bool("TRITON_ALLOW_NON_CONSTEXPR_GLOBALS")
    instrumentation_mode = env_str("TRITON_INSTRUMENTATION_MODE", "")
    listener: Callable[..., Any] | None = None


class _Autotuning(base_knobs):
    cache = env_bool("TRITON_CACHE_AUTOTUNING")
    print = env_bool("TRITON_PRINT_AUTOTUNING")
    listener: Callable[..., Any] | None = None


class _Runtime(base_knobs):
    interpret = env_bool("TRITON_INTERPRET")
    debug = env_bool("TRITON_DEBUG")
    override_arch = env_opt_str("TRITON_OVERRIDE_ARCH")
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


class _Language(base_knobs):
    fp32_default = env_opt_str("TRITON_F32_DEFAULT")
    default_fp_fusion = env_bool("TRITON_DEFAULT_FP_FUSION", True)


class _Nvidia(base_knobs):
    ptxas = env_nvidia_tool("TRITON_PTXAS_PATH", _ptxas, "TILEJIT_PTXAS")
    ptxas_blackwell = env_nvidia_tool("TRITON_PTXAS_BLACKWELL_PATH", _ptxas)
    cuobjdump = env_nvidia_tool("TRITON_CUOBJDUMP_PATH", lambda: "cuobjdump")
    nvdisasm = env_nvidia_tool("TRITON_NVDISASM_PATH", lambda: "nvdisasm")
    dump_nvptx = env_bool("NVPTX_ENABLE_DUMP")
    disable_ptxas_opt = env_bool("DISABLE_PTXAS_OPT")
    ptxas_options = env_opt_str("PTXAS_OPTIONS")
    mock_ptx_version = env_opt_str("TRITON_MOCK_PTX_VERSION")
    dump_ptxas_log = env_bool("TRITON_DUMP_PTXAS_LOG")
    libdevice_path = env_opt_str("TRITON_LIBDEVICE_PATH")
    libcuda_path = env_opt_str("TRITON_LIBCUDA_PATH")


class _Build(base_knobs):
    cc = env_opt_str("CC")
    cudacrt_path = env_opt_str("TRITON_CUDACRT_PATH")
    cudart_path = env_opt_str("TRITON_CUDART_PATH")
    impl: Any = None

    @property
    def backend_dirs(self) -> set[str]:
        return {path for path in (self.cudacrt_path, self.cudart_path) if path is not None}


class _Redis(base_knobs):
    key_format = env_str("TRITON_REDIS_KEY_FORMAT", "triton:{key}:{filename}")
    host = env_str("TRITON_REDIS_HOST", "localhost")
    port = env_int("TRITON_REDIS_PORT", 6379)


class _Proton(base_knobs):
    disable = env_bool("TRITON_PROTON_DISABLE")


class _Amd(base_knobs):
    use_buffer_ops = env_bool("AMDGCN_USE_BUFFER_OPS", True)
    use_buffer_atomics = env_bool("AMDGCN_USE_BUFFER_ATOMICS", True)
    use_block_pingpong = env_opt_bool("TRITON_HIP_USE_BLOCK_PINGPONG")
    use_in_thread_transpose = env_opt_bool("TRITON_HIP_USE_IN_THREAD_TRANSPOSE")
    use_async_copy = env_opt_bool("TRITON_HIP_USE_ASYNC_COPY")
    dump_amdgcn = env_bool("AMDGCN_ENABLE_DUMP")
    libhip_path = env_opt_str("TRITON_LIBHIP_PATH")


build, cache, compilation, autotuning, runtime = _Build(), _Cache(), _Compilation(), _Autotuning(), _Runtime()
language, nvidia, amd, proton, redis = _Language(), _Nvidia(), _Amd(), _Proton(), _Redis()


def refresh_knobs() -> None:
    """Nothing: what the environment says is asked at each reading."""


__all__ = ["HookChain", "LaunchHook", "LazyDict", "base_knobs", "env", "env_base", "env_bool", "env_class", "env_int",
           "env_nvidia_tool", "env_opt_bool", "env_opt_str", "env_str", "propagate_env", "refresh_knobs"]
