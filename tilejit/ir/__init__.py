"""Tile IR: what to compute (and, after scheduling, when and where)."""
from tilejit.ir import ops as _ops  # fills the op table
from tilejit.ir import types
from tilejit.ir.core import (
    Block,
    Builder,
    Edge,
    Function,
    Op,
    Value,
    clone_block,
    clone_op,
    computes,
    controls,
    divides_k,
    edge_at,
    edge_of,
    edges,
    enclosing,
    erase,
    keep_edges,
    product_warps,
    replace,
    total_warps,
    uses,
    walk,
)
from tilejit.ir.table import OPS, OpDef

__all__ = ["OPS", "Block", "Builder", "Edge", "Function", "Op", "OpDef", "Value", "clone_block", "clone_op", "computes",
           "controls", "divides_k", "edge_at", "edge_of", "edges", "enclosing", "erase", "keep_edges", "product_warps",
           "replace", "total_warps", "types", "uses", "walk", "_ops"]
