"""`import triton` finds this package."""
from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_HERE = "tilejit.compat.triton"
_SAME = {"triton.backends.compiler": f"{_HERE}.runtime.driver",
         "triton.backends.nvidia": f"{_HERE}.backends",
         "triton.backends.nvidia.compiler": f"{_HERE}.runtime.driver",
         "triton.errors": f"{_HERE}.runtime.errors",
         "triton.language.libdevice": f"{_HERE}.language.extra.libdevice",  # there in Triton 2.0
         "triton.language.extra.cuda.libdevice": f"{_HERE}.language.extra.libdevice",
         "triton.language.extra.cuda.gdc": "tilejit.language.extra.cuda",
         "triton.language.extra.cuda.utils": "tilejit.language.extra.cuda",
         "triton.language.random": f"{_HERE}.language.standard",
         "triton.language.semantic": f"{_HERE}.language.standard",
         "triton.tools.disasm": f"{_HERE}.tools",
         "triton.tools.tensor_descriptor": "tilejit.tools.tensor_descriptor"}


class _Finder(MetaPathFinder, Loader):
    def __init__(self) -> None:
        self.specs: dict[str, ModuleSpec | None] = {}

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if name != "triton" and not name.startswith("triton."):
            return None
        if name == "triton.experimental":
            raise ModuleNotFoundError("tilejit has no Gluon (triton.experimental)", name=name)
        real = _real(name)
        try:
            found = importlib.util.find_spec(real)
        except ModuleNotFoundError:
            return None
        return found and ModuleSpec(name, self, origin=found.origin, is_package=found.submodule_search_locations
                                    is not None)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(_real(spec.name))
        self.specs[module.__name__] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.specs[module.__name__]


_finder = _Finder()


def _real(name: str) -> str:
    return _SAME.get(name) or _HERE + name.removeprefix("triton")


def install() -> None:
    """Make `import triton` mean tilejit's stand-in. Raises ImportError if Triton itself has been imported already."""
    if installed():
        return
    if "triton" in sys.modules:
        raise ImportError("triton is imported already: call tilejit.compat.triton.install() before anything imports it")
    sys.meta_path.insert(0, _finder)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # its other processes would find Triton itself
    importlib.import_module("triton")


def installed() -> bool:
    return _finder in sys.meta_path


def uninstall() -> None:
    if installed():
        sys.meta_path.remove(_finder)
        for name in [n for n in sys.modules if n == "triton" or n.startswith("triton.")]:
            del sys.modules[name]
