"""Python AST -> tile IR."""
from __future__ import annotations

from typing import Any

from tilejit.frontend.arguments import Arg, Const, Group, Param, run_time
from tilejit.frontend.source import KernelSource
from tilejit.ir.core import Function


def build(source: KernelSource, args: dict[str, Arg], attrs: dict[str, Any]) -> Function:
    from tilejit.frontend import building

    return building.build(source, args, attrs)


__all__ = ["Arg", "Const", "Group", "KernelSource", "Param", "build", "run_time"]
