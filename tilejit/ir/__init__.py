"""Tile IR: what to compute (and, after scheduling, when and where)."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilejit.ir import types
from tilejit.ir.core import (
    Block,
    Builder,
    Edge,
    Function,
    Op,
    Value,
    beside,
    blocks,
    clone_block,
    clone_op,
    computes,
    const_of,
    controls,
    divides_k,
    edge_at,
    edge_of,
    edges,
    enclosing,
    erase,
    inside,
    keep_edges,
    listed,
    loop_around,
    made_in,
    needed,
    of_size,
    product_warps,
    reached,
    read,
    replace,
    total_warps,
    uses,
    walk,
    whole,
)
from tilejit.ir.table import OpDef

if TYPE_CHECKING:
    from tilejit.ir.table import OPS

__all__ = ["OPS", "Block", "Builder", "Edge", "Function", "Op", "OpDef", "Value", "beside", "blocks", "clone_block",
           "clone_op", "computes", "const_of", "controls", "divides_k", "edge_at", "edge_of", "edges", "enclosing",
           "erase", "inside", "keep_edges", "listed", "loop_around", "made_in", "needed", "of_size", "product_warps",
           "reached", "read", "replace", "total_warps", "types", "uses", "walk", "whole"]


def __getattr__(name: str) -> Any:
    if name != "OPS":
        raise AttributeError(f"module 'tilejit.ir' has no attribute {name!r}")
    from tilejit.ir import ops  # noqa: F401
    from tilejit.ir.table import OPS

    globals()["OPS"] = OPS
    return OPS
