"""A small launch of every row kernel, forward and backward: what runs under every schedule."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilejit import kernels
from tilejit.kernels.rows import (
    divergences,
    dropout,
    embedding,
    gates,
    group_norm,
    norm_gradients,
    softmax,
    sorting,
    sums,
    transpose,
)
from tilejit.kernels.rows.cross_entropy import cross_entropy_forward, cross_entropy_gradient
from tilejit.kernels.rows.rope import rope_gradient

F32 = np.float32


def random(*shape: int, dtype: Any = F32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


T = np.arange(-1, 4)
X, Y, W = random(5, 72), random(5, 72, seed=1), random(72, seed=2)

#: name -> what launches it. (int64 results are given: what lies in new memory might be taken for addresses.)
ROWS: dict[str, Callable[[], Any]] = {
    "masked log_softmax": lambda: kernels.log_softmax(X, X > 0, 0.5),
    "softmax gradient": lambda: softmax.softmax_gradient(X, Y),
    "log_softmax gradient in blocks": lambda: softmax.log_softmax_gradient(random(1, 9001), random(1, 9001, seed=1)),
    "add_rmsnorm": lambda: kernels.add_rmsnorm(X, Y, W),
    "long add_layernorm": lambda: kernels.add_layernorm(random(1, 9001), random(1, 9001, seed=1)),
    "layernorm gradient": lambda: norm_gradients.layernorm_gradient(X, Y, W, W, 1e-5, 0.0, True, True),
    "rmsnorm gradient of heads": lambda: norm_gradients.rmsnorm_gradient(X, Y, Y, None, 1e-5, 1.0, True, False),
    "cross_entropy": lambda: kernels.cross_entropy(X, T, ignore_index=-1, label_smoothing=0.1),
    "cross_entropy in place": lambda: kernels.cross_entropy_(X.copy(), T, W * W, -1, 0.1, 0.1, 5.0),
    "cross_entropy gradient": lambda: cross_entropy_gradient(
        np.ones((), F32), X, T, None, *cross_entropy_forward(X, T, None, -1)[1:], -1, 0.1, 0.1, 5.0, "mean"),
    "cross_entropy in blocks": lambda: kernels.cross_entropy_(random(1, 9001), T[1:2]),
    "rope": lambda: kernels.rope(X[None, :, None], X[:, :20], Y[:, :20]),
    "rope turned back": lambda: rope_gradient(X[None, :, None], X[:, :20], Y[:, :20], T[None] + 1, True),
    "glu": lambda: gates.glu_gradient(X, kernels.glu(X, Y), Y, "gelu"),
    "relu_squared": lambda: gates.relu_squared_gradient(X, kernels.relu_squared(Y)),
    "sum": lambda: sums.sum_gradient(kernels.sum(X), X),
    "mean": lambda: kernels.mean(random(2, 5000)),
    "cumsum": lambda: sums.cumsum_gradient(kernels.cumsum(X), False),
    "argmax": lambda: kernels.argmax(X, indices=np.zeros(5, np.int64)),
    "sort": lambda: sorting.sort_gradient(X, *kernels.sort(X, indices=np.zeros((5, 72), np.int64))),
    "topk": lambda: kernels.topk(X, 5, indices=np.zeros((5, 5), np.int64)),
    "dropout": lambda: dropout.dropout_gradient(kernels.dropout(X, 0.5, 3), 0.5, 3),
    "embedding": lambda: embedding.embedding_gradient(kernels.embedding(X, T), X, T, None, True),
    "transpose": lambda: transpose.transpose_gradient(kernels.transpose(X)),
    "quantise": lambda: [kernels.dequantise(*kernels.quantise(X, of, np.int8), F32) for of in ("tensor", "row", "block")],
    "group_norm": lambda: group_norm.group_norm_gradient(kernels.group_norm(X, 8), X, 8, W, None, 1e-5),
    "kl_divergence": lambda: divergences.kl_divergence_gradient(kernels.kl_divergence(X, Y, True), X, Y, True),
    "js_divergence": lambda: divergences.js_divergence_gradient(kernels.js_divergence(X, Y), X, Y, 0.5),
    "linear_cross_entropy": lambda: kernels.linear_cross_entropy(random(5, 32, dtype=np.float16),
                                                                 random(16, 32, dtype=np.float16), T, -1),
}

#: The same of kernels that find tensors by addresses in a table, which the evaluator cannot follow.
LISTS: dict[str, Callable[[], Any]] = {
    "adamw_": lambda: kernels.adamw_([X.copy(), W.copy()], [Y, W], [X * 0, W * 0], [X * 0, W * 0], 1),
    "clip_factor": lambda: kernels.clip_factor([X, W], 1.0),
    "clip_grad_norm_": lambda: kernels.clip_grad_norm_([X.copy(), W.copy()], 1.0),
}
