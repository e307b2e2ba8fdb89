"""`compiled.asm`: the stages of a compilation under Triton's names."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilejit.runtime.compile import CompiledKernel

#: Triton's name of a stage -> the nearest that tilejit has
_STAGES: dict[str, Callable[[CompiledKernel], Any]] = {
    "source": lambda k: k.source, "ttir": lambda k: k.ir, "ttgir": lambda k: k.scheduled, "ptx": lambda k: k.ptx,
    "cubin": lambda k: k.cubin, "sass": lambda k: k.sass()}


class Asm(Mapping[str, Any]):
    """The stages, made on demand. `ttir` is tile IR with layouts, `ttgir` the scheduled one, `llir` the PTX."""

    def __init__(self, compiled: CompiledKernel):
        self.compiled = compiled

    def __getitem__(self, name: str) -> Any:
        return _STAGES["ptx" if name == "llir" else name](self.compiled)

    def __iter__(self) -> Iterator[str]:
        return iter([*_STAGES, "llir"])

    def __len__(self) -> int:
        return len(_STAGES) + 1
