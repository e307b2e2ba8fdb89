"""The row kernels and attention as the host launches them, for `compile.py`: calls of arrays of few rows."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from family import BF16, F32, Configuration

from tilejit import kernels
from tilejit.kernels.attention.backward import gradients
from tilejit.kernels.attention.cases import Case, Extras
from tilejit.kernels.attention.forward import forward
from tilejit.kernels.rows import dropout, gates, group_norm, norm_gradients, softmax
from tilejit.kernels.rows.cross_entropy import cross_entropy_gradient
from tilejit.kernels.rows.rope import rope_gradient

WIDTHS = (1000, 1024, 8192, 32768, 131072)
#: batch, queries, keys, heads, kv heads, d, dv
HEADS = ((1, 4096, 4096, 1, 1, 64, 64), (1, 4096, 4096, 2, 1, 128, 128), (1, 4096, 4096, 1, 1, 192, 128),
         (1, 4096, 4096, 1, 1, 256, 256), (1, 256, 256, 1, 1, 128, 128), (1, 1, 4096, 4, 1, 128, 128))


def rows(x: np.ndarray) -> dict[str, Callable[[], Any]]:
    """name -> a call for x [rows, columns]."""
    w, t = np.zeros(x.shape[1], F32), np.zeros(len(x), np.int64)
    one, each = np.ones((), F32), np.zeros(len(x), F32)
    width = min(x.shape[1], 128)
    c, head = np.zeros((len(x), width // 2), F32), x[None, :, None, :width]
    calls: dict[str, Callable[[], Any]] = {
        "add": lambda: kernels.add(x, x),
        "softmax": lambda: kernels.softmax(x),
        "masked log_softmax": lambda: kernels.log_softmax(x, x, 0.5),
        "softmax gradient": lambda: softmax.softmax_gradient(x, x),
        "rmsnorm": lambda: kernels.rmsnorm(x, w),
        "layernorm": lambda: kernels.layernorm(x, w, w),
        "add_rmsnorm": lambda: kernels.add_rmsnorm(x, x, w),
        "layernorm gradient": lambda: norm_gradients.layernorm_gradient(x, x, w, w, 1e-5, 0.0, True, True),
        "rmsnorm gradient": lambda: norm_gradients.rmsnorm_gradient(x, x, w, None, 1e-5, 0.0, True, False),
        "group_norm": lambda: kernels.group_norm(x, 8),
        "group_norm gradient": lambda: group_norm.group_norm_gradient(x, x, 8, w, None, 1e-5),
        "cross_entropy": lambda: kernels.cross_entropy(x, t),
        "cross_entropy_": lambda: kernels.cross_entropy_(x, t, w, -100, 0.1, 1e-4, 30.0),
        "cross_entropy gradient": lambda: cross_entropy_gradient(one, x, t, None, each, one, -100, 0.0, 0.0, 0.0, "mean"),
        "rope": lambda: kernels.rope(head, c, c),
        "rope gradient": lambda: rope_gradient(head, c, c, None, True),
        "glu": lambda: kernels.glu(x, x),
        "glu gradient": lambda: gates.glu_gradient(x, x, x, "gelu"),
        "relu_squared": lambda: kernels.relu_squared(x),
        "sum": lambda: kernels.sum(x),
        "cumsum": lambda: kernels.cumsum(x),
        "argmax": lambda: kernels.argmax(x),
        "dropout": lambda: dropout.dropout(x, 0.5, 1),
        "embedding": lambda: kernels.embedding(x, t),
        "transpose": lambda: kernels.transpose(x),
        "quantise tensor": lambda: kernels.quantise(x, "tensor", np.int8),
        "quantise row": lambda: kernels.quantise(x, "row", np.int8),
        "quantise block": lambda: kernels.quantise(x[:, :x.shape[1] // 128 * 128], "block", np.int8),
        "kl_divergence": lambda: kernels.kl_divergence(x, x),
        "js_divergence": lambda: kernels.js_divergence(x, x),
    }
    if x.shape[1] <= 8192:
        calls |= {"topk": lambda: kernels.topk(x, 8), "sort": lambda: kernels.sort(x)}
    return calls


def attention(sizes: tuple[int, ...], causal: bool) -> Callable[[], Any]:
    """A call of attention, forward and backward."""
    batch, n, m, heads, kv_heads, d, dv = sizes

    def call() -> None:
        q, k, v = (np.zeros(s, BF16) for s in ((batch, n, heads, d), (batch, m, kv_heads, d), (batch, m, kv_heads, dv)))
        case, lse = Case(d ** -0.5, right=0 if causal else None), np.zeros((batch, heads, n), F32)
        out = forward(q, k, v, case, Extras(), lse=lse)
        if n > 1:
            gradients(out, q, k, v, out, lse, None, case, Extras())

    return call


def configurations() -> Iterator[Configuration]:
    """All of them; families `memory` and `attention`."""
    for width in WIDTHS:
        for name, call in rows(np.zeros((8, width), BF16)).items():
            yield Configuration("memory", f"{name}, rows of {width}", (), call)
    for sizes in HEADS:
        for causal in (False, True):
            label = "x".join(map(str, sizes))
            yield Configuration("attention", f"{label}{' causal' * causal}", (), attention(sizes, causal))
