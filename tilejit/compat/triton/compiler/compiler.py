from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tilejit.compat.triton import knobs
from tilejit.compat.triton.compiler.errors import CompilationError, placed
from tilejit.compat.triton.language.core import str_to_ty
from tilejit.compat.triton.runtime.driver import GPUTarget
from tilejit.ir.types import Desc
from tilejit.runtime.compile import CompiledKernel as Compiled
from tilejit.runtime.compile import compiler_hash

if TYPE_CHECKING:
    from tilejit.compat.triton.runtime.jit import JITFunction
    from tilejit.runtime.jit import Partial

class Metadata(Mapping[str, Any]):
    def __init__(self, facts: dict[str, Any]):
        self._facts = facts

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._facts:
            raise AttributeError(name)
        return self._facts[name]

    def __getitem__(self, name: str) -> Any:
        return self._facts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)

    def _asdict(self) -> dict[str, Any]:
        return dict(self._facts)


class CompiledKernel:
    def __init__(self, compiled: Compiled, fn: JITFunction | None, info: Mapping[str, Any]):
        self.compiled, self.fn, self.hash, self.info = compiled, fn, info["key"], info
        self.asm = compiled.asm
        self.kernel: Any = compiled.cubin
        self.module: Any = compiled
        self.function: Any = compiled
        self.src = info.get("src", compiled.kernel)
        self.loaded = 0  # the process that loaded it

    @cached_property
    def metadata(self) -> Metadata:
        m, options = self.compiled.metadata, self.compiled.options
        return Metadata({"name": self.name, "shared": m.shared_bytes, "num_warps": options.get("num_warps", 4),
                         "num_ctas": options.get("num_ctas", 1), "num_stages": m.num_stages, "cluster_dims": m.cluster,
                         "target": GPUTarget("cuda", int(m.target[3:5]), 32), "hash": self.hash, "arch": m.target,
                         "maxnreg": options.get("maxnreg"), "tmem_size": 0, "global_scratch_size": 0,
                         "profile_scratch_size": 0, "launch_pdl": m.launch_pdl, "ptx_version": None,
                         "enable_fp_fusion": options.get("enable_fp_fusion", True),
                         "launch_cooperative_grid": options.get("launch_cooperative_grid", False)})

    @cached_property
    def name(self) -> str:
        if self.fn is None or self.fn._repr is None or "signature" not in self.info:
            return self.compiled.name
        names = list(self.info["signature"])
        constants = {names[k[0]]: v for k, v in self.info["constants"].items()}
        return self.fn.repr(SimpleNamespace(name=self.compiled.name, fn=self.fn, constants=constants,
                                            signature=self.info["signature"]))

    def _init_handles(self) -> None:
        self.loaded = os.getpid()

    def __del__(self) -> None:
        if self.loaded == os.getpid() and knobs is not None:
            self.loaded, self.module, self.function = 0, None, None
            knobs.runtime.kernel_unload_hook(None, None, self.name, {}, self.hash)

    def report(self) -> str:
        return self.compiled.report()

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return self.compiled[grid]

    @property
    def packed_metadata(self) -> Metadata:
        return self.metadata

    def launch_metadata(self, grid: Any, stream: Any, *args: Any) -> None:
        """Nothing: hooks are told by the launch itself."""

    def run(self, x: int, y: int, z: int, stream: Any, function: Any, metadata: Any, launch_metadata: Any, enter: Any,
            leave: Any, *args: Any) -> None:
        """As torch's inductor launches: on torch's current stream, which it hands over."""
        whole = len(args) == len(self._fixed.kernel.names)  # constants, too
        (self._fixed if whole else self.compiled)[x, y, z](*args)

    @cached_property
    def _fixed(self) -> Partial:
        kernel = self.compiled.launched_by
        return kernel.partial(**{n: v for n, v in self.compiled.options.items() if n in kernel.defaults})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["compiled"], name)


@dataclass
class ASTSource:
    fn: JITFunction
    signature: Mapping[str, str]
    constexprs: Mapping[Any, Any] | None = None
    attrs: Mapping[Any, Any] | None = None


def compile(src: ASTSource, target: GPUTarget | None = None,
            options: Mapping[str, Any] | None = None) -> CompiledKernel:
    if not hasattr(src, "fn"):
        raise CompilationError(f"{src}: Triton's IR cannot be compiled, only kernels can (ASTSource)")
    names = src.fn.arg_names
    given = {(names[k[0]] if isinstance(k, tuple) else names[k] if isinstance(k, int) else k): v
             for k, v in (src.constexprs or {}).items()}
    given |= {n: _aligned(t, names.index(n), src.attrs or {}) for n, t in src.signature.items() if n not in given}
    extra = {k: v for k, v in (options or {}).items() if k in src.fn.defaults}
    if target is not None:
        extra["target"] = {"80": "sm_80"}.get(str(target.arch), "sm_90a")
    extra = {k: v for k, v in extra.items() if k not in names}  # the name is the kernel's, as where it is launched
    with placed():
        made = src.fn.compile(**given, **extra)
    return CompiledKernel(made, src.fn, {"key": src.fn.cache_key, "src": src})


def _aligned(kind: Any, index: int, attrs: Mapping[Any, Any]) -> Any:
    """tilejit's text for a type, with what `attrs` says of divisibility by 16."""
    if isinstance(kind, tuple):
        items = [_aligned(k, -1, {}) for k in kind]
        return type(kind)(*items) if hasattr(kind, "_fields") else tuple(items)
    if kind.startswith("tensordesc<"):
        block = str_to_ty(kind, None).block_type
        return Desc(block.scalar, block.shape)
    found = any((k[0] if isinstance(k, tuple) else k) == index and any(a[0] == "tt.divisibility" for a in v)
                for k, v in attrs.items())
    return f"{kind}:16" if found else f"{kind}:1" if kind.startswith("*") else kind


def triton_key() -> str:
    return compiler_hash()


def make_backend(target: GPUTarget) -> SimpleNamespace:
    return SimpleNamespace(target=target, hash=compiler_hash, parse_options=lambda options: SimpleNamespace(**options))
