"""Ready kernels, written in the tile language, each with a host function that takes arrays, loaded when first asked
for."""
from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilejit.kernels.add import add
    from tilejit.kernels.attention import attention, attention_blocks, latent_attention
    from tilejit.kernels.batched import batched_matmul
    from tilejit.kernels.fused import fused_matmul, gated_matmul, swiglu
    from tilejit.kernels.grouped import grouped_matmul, masked_grouped_matmul
    from tilejit.kernels.matmul import matmul, plan
    from tilejit.kernels.mixed import weight_only_matmul
    from tilejit.kernels.product.plain import matmul_kernel
    from tilejit.kernels.rows.cross_entropy import cross_entropy, cross_entropy_
    from tilejit.kernels.rows.divergences import js_divergence, kl_divergence
    from tilejit.kernels.rows.dropout import dropout
    from tilejit.kernels.rows.embedding import embedding
    from tilejit.kernels.rows.gates import glu, relu_squared
    from tilejit.kernels.rows.group_norm import group_norm
    from tilejit.kernels.rows.linear_cross_entropy import linear_cross_entropy
    from tilejit.kernels.rows.norm_gradients import add_layernorm, add_rmsnorm, layernorm, rmsnorm
    from tilejit.kernels.rows.optimiser import adamw_, clip_factor, clip_grad_norm_
    from tilejit.kernels.rows.quantisation import dequantise, quantise
    from tilejit.kernels.rows.rope import rope
    from tilejit.kernels.rows.softmax import log_softmax, softmax
    from tilejit.kernels.rows.sorting import sort, topk
    from tilejit.kernels.rows.sums import argmax, cumsum, mean, sum
    from tilejit.kernels.rows.transpose import transpose
    from tilejit.kernels.scaled import matmul_blockscaled
    from tilejit.kernels.streamk import matmul_streamk

#: module -> the names that it gives (of modules of gradients, what they are of)
_HOMES = {
    "add": "add", "attention": "attention attention_blocks latent_attention",
    "fused_gradient": "fused_matmul gated_matmul swiglu", "grouped_gradient": "grouped_matmul masked_grouped_matmul",
    "matmul": "plan", "product.plain": "matmul_kernel", "matmul_gradient": "matmul",
    "batched_gradient": "batched_matmul matmul_streamk", "mixed": "weight_only_matmul",
    "rows.gates": "glu relu_squared", "rows.norm_gradients": "add_layernorm add_rmsnorm layernorm rmsnorm",
    "rows.softmax": "log_softmax softmax", "scaled": "matmul_blockscaled",
    "rows.cross_entropy": "cross_entropy cross_entropy_", "rows.rope": "rope",
    "rows.sums": "argmax cumsum mean sum", "rows.sorting": "sort topk", "rows.dropout": "dropout",
    "rows.embedding": "embedding", "rows.transpose": "transpose", "rows.quantisation": "dequantise quantise",
    "rows.group_norm": "group_norm", "rows.divergences": "js_divergence kl_divergence",
    "rows.linear_cross_entropy": "linear_cross_entropy", "rows.optimiser": "adamw_ clip_factor clip_grad_norm_"}
_WHERE = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'tilejit.kernels' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"tilejit.kernels.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(types.ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _WHERE and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

__all__ = ["adamw_", "add", "add_layernorm", "add_rmsnorm", "argmax", "attention", "attention_blocks",
           "batched_matmul", "clip_factor", "clip_grad_norm_", "cross_entropy", "cross_entropy_", "cumsum",
           "dequantise", "dropout", "embedding", "fused_matmul", "gated_matmul", "glu", "group_norm", "grouped_matmul",
           "js_divergence", "kl_divergence", "latent_attention", "layernorm", "linear_cross_entropy", "log_softmax",
           "masked_grouped_matmul", "matmul", "matmul_blockscaled", "matmul_kernel", "matmul_streamk", "mean", "plan",
           "quantise", "relu_squared", "rmsnorm", "rope", "softmax", "sort", "sum", "swiglu", "topk", "transpose",
           "weight_only_matmul"]
