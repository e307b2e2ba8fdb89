"""What the row kernels are compiled to, as the host launches them at real widths: no spills (every test looks at what it
compiled), and conversions between layouts, counted. Nothing is run."""
from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilejit
from tilejit import kernels
from tilejit.kernels.rows import dropout, gates, norm_gradients, softmax
from tilejit.kernels.rows.cross_entropy import cross_entropy_gradient
from tilejit.kernels.rows.rope import rope_gradient
from tilejit.runtime.launch import EvaluatorEntry

BF16, F32 = ml_dtypes.bfloat16, np.float32


@pytest.fixture
def compiled(monkeypatch):
    """The kernels of this test's launches, which do nothing."""
    found: list[Any] = []
    monkeypatch.setattr(EvaluatorEntry, "launch", lambda self, grid, flat, stream: found.append(self.compiled))
    with tilejit.knobs(target="evaluator"):
        yield found


def calls(x: np.ndarray) -> dict[str, Callable[[], Any]]:
    """name -> a call for x [rows, columns]."""
    w = np.zeros(x.shape[1], F32)
    t, one = np.zeros(len(x), np.int64), np.ones((), F32)
    each = np.zeros(len(x), F32)
    return {
        "softmax": lambda: kernels.softmax(x),
        "masked log_softmax": lambda: kernels.log_softmax(x, x, 0.5),
        "softmax gradient": lambda: softmax.softmax_gradient(x, x),
        "rmsnorm": lambda: kernels.rmsnorm(x, w),
        "layernorm": lambda: kernels.layernorm(x, w, w),
        "add_rmsnorm": lambda: kernels.add_rmsnorm(x, x, w),
        "layernorm gradient": lambda: norm_gradients.layernorm_gradient(x, x, w, w, 1e-5, 0.0, True, True),
        "rmsnorm gradient": lambda: norm_gradients.rmsnorm_gradient(x, x, w, None, 1e-5, 0.0, True, False),
        "cross_entropy": lambda: kernels.cross_entropy(x, t),
        "cross_entropy_": lambda: kernels.cross_entropy_(x, t, w, -100, 0.1, 1e-4, 30.0),
        "cross_entropy gradient": lambda: cross_entropy_gradient(one, x, t, None, each, one, -100, 0.0, 0.0, 0.0, "mean"),
        "quantise rows": lambda: kernels.quantise(x, "row", np.int8),
    }


#: columns -> name -> conversions between layouts in the kernels that a call launches
WHOLE: dict[int, dict[str, tuple[int, ...]]] = {
    1000: {"softmax": (0,), "masked log_softmax": (0,), "softmax gradient": (0,), "rmsnorm": (0,), "layernorm": (0,),
           "add_rmsnorm": (0,), "layernorm gradient": (3, 0), "rmsnorm gradient": (2, 0), "cross_entropy": (0, 0),
           "cross_entropy_": (0, 0, 0, 0), "cross_entropy gradient": (2,), "quantise rows": (0,)},
    131072: {"softmax": (0,), "masked log_softmax": (0,), "softmax gradient": (0,), "rmsnorm": (0,), "layernorm": (0,),
             "add_rmsnorm": (0,), "layernorm gradient": (0, 0), "rmsnorm gradient": (0, 0), "cross_entropy": (0, 0),
             "cross_entropy_": (0, 0, 0, 0), "cross_entropy gradient": (0,), "quantise rows": (0,)}}
#: name -> conversions in the kernels that a call of matrices [4, 1000] launches
OTHERS: dict[str, tuple[int, ...]] = {
    "glu": (0,), "glu gradient": (0,), "rope": (1,), "rope interleaved": (1,), "dropout": (0,), "embedding": (1,),
    "transpose": (0,), "sum": (1,), "cumsum": (0,), "argmax": (2,), "topk": (8,), "sort": (0,), "quantise blocks": (0,),
    "kl_divergence": (0,), "group_norm": (0,)}


def conversions(found: list[Any]) -> tuple[int, ...]:
    return tuple(len(re.findall(r"= convert ", k.scheduled)) for k in found)


@pytest.mark.parametrize("columns", [1000, 131072])
def test_whole_rows(compiled, columns):
    counted = {}
    for name, call in calls(np.zeros((4, columns), BF16)).items():
        compiled.clear()
        call()
        counted[name] = conversions(compiled)
    assert counted == WHOLE[columns]


def test_others(compiled):
    x, at = np.zeros((4, 1000), BF16), np.zeros(4, np.int64)
    c = np.zeros((4, 50), F32)
    table = {
        "glu": lambda: kernels.glu(x, x), "glu gradient": lambda: gates.glu_gradient(x, x, x, "gelu"),
        "rope": lambda: kernels.rope(x[None, :, None, :128], c, c),
        "rope interleaved": lambda: rope_gradient(x[None, :, None, :128], c, c, None, True),
        "dropout": lambda: dropout.dropout(x, 0.5, 1), "embedding": lambda: kernels.embedding(x, at),
        "transpose": lambda: kernels.transpose(x), "sum": lambda: kernels.sum(x), "cumsum": lambda: kernels.cumsum(x),
        "argmax": lambda: kernels.argmax(x), "topk": lambda: kernels.topk(x, 8), "sort": lambda: kernels.sort(x),
        "quantise blocks": lambda: kernels.quantise(x, "block", np.int8),
        "kl_divergence": lambda: kernels.kl_divergence(x, x),
        "group_norm": lambda: kernels.group_norm(x, 10)}
    counted = {}
    for name, call in table.items():
        compiled.clear()
        call()
        counted[name] = conversions(compiled)
    assert counted == OTHERS


@pytest.mark.parametrize("columns", [7, 64, 1001, 4096, 4097, 8192, 16384, 20000, 32768, 50257, 65536, 262144, 1 << 20])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=["bf16", "fp32"])
@pytest.mark.slow
def test_no_spills_at_any_width(compiled, columns, dtype):
    x, t, w = np.zeros((2, columns), dtype), np.zeros(2, np.int64), np.zeros(columns, F32)
    for call in calls(x).values():
        call()
    for options in ((None, -100, 0.1, 1e-3), (w, -100, 0.1), (None, -100, 0.0, 0.0, 30.0)):
        kernels.cross_entropy(x, t, *options)
    norm_gradients.add_layernorm_gradient(x, x, x, w, w, 1e-5, 0.0, True, True)
    for kernel in (kernels.argmax, kernels.sum, kernels.cumsum, kernels.transpose):
        kernel(x)
    kernels.topk(x, min(columns, 8))
    assert compiled
