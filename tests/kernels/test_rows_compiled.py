"""What the row kernels are compiled to, as the host launches them at real widths: no spills (every test looks at what it
compiled), and conversions between layouts, counted. Nothing is run."""
from __future__ import annotations

import re
import sys
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilejit
from tilejit import kernels
from tilejit.kernels.rows import gates, norm_gradients, softmax
from tilejit.runtime.launch import EvaluatorEntry, merged, of_length, spanned

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import rows_plain  # noqa: E402
from family_rows import rows  # noqa: E402

BF16, F32 = ml_dtypes.bfloat16, np.float32


@pytest.fixture
def compiled(monkeypatch):
    """The kernels of this test's launches (the table of calls is the benchmarks'), which do nothing."""
    found: list[Any] = []
    monkeypatch.setattr(EvaluatorEntry, "launch", lambda self, grid, flat, stream: found.append(self.compiled))
    with tilejit.knobs(target="evaluator"):
        yield found


#: columns -> name -> conversions between layouts in the kernels that a call launches
CONVERSIONS: dict[int, dict[str, tuple[int, ...]]] = {
    1000: {"softmax": (0,), "masked log_softmax": (0,), "softmax gradient": (0,), "rmsnorm": (0,), "layernorm": (0,),
           "add_rmsnorm": (0,), "layernorm gradient": (3, 0), "rmsnorm gradient": (2, 0), "cross_entropy": (2, 0),
           "cross_entropy_": (0, 0, 0, 0), "cross_entropy gradient": (2,), "quantise row": (0,), "glu": (0,),
           "glu gradient": (0,), "rope": (0,), "rope gradient": (0,), "dropout": (0,), "embedding": (1,),
           "transpose": (1,), "sum": (0,), "cumsum": (0,), "argmax": (0,), "topk": (1,), "sort": (0,),
           "quantise block": (1,), "kl_divergence": (0,), "group_norm": (0,)},
    131072: {"softmax": (0,), "masked log_softmax": (0,), "softmax gradient": (0,), "rmsnorm": (0,), "layernorm": (0,),
             "add_rmsnorm": (0,), "layernorm gradient": (0, 0), "rmsnorm gradient": (0, 0), "cross_entropy": (0, 0),
             "cross_entropy_": (0, 0, 0, 0), "cross_entropy gradient": (0,), "quantise row": (0,)}}


def conversions(found: list[Any]) -> tuple[int, ...]:
    return tuple(len(re.findall(r"= convert ", k.scheduled)) for k in found)


@pytest.mark.parametrize("columns", CONVERSIONS)
def test_conversions(compiled, columns):
    calls, counted = rows(np.zeros((4, columns), BF16)), {}
    for name in CONVERSIONS[columns]:
        compiled.clear()
        calls[name]()
        counted[name] = conversions(compiled)
    assert counted == CONVERSIONS[columns]


@pytest.mark.parametrize("columns", [1, 64, 1001])
@pytest.mark.parametrize("dtype, size", [("bf16", 2), ("fp64", 8)])
def test_plain_forms(columns, dtype, size):
    """One row a program, as people write them: small ones merged, those that begin anywhere in registers; no spills."""
    block, p, pitch = tilejit.next_power_of_2(columns), f"*{dtype}", (columns, columns)
    options = {"BLOCK": block, "num_warps": 4 if block < 2048 else 8}
    found = [rows_plain.plain_softmax.compile(p, p, *pitch, columns, **options),
             rows_plain.plain_rmsnorm.compile(p, p, p, *pitch, columns, 1e-6, **options),
             rows_plain.plain_layernorm.compile(p, p, p, p, *pitch, columns, 1e-5, **options)]
    if columns == 1001 and size == 2:
        found[:2] = [of_length(k, spanned(k, columns)) for k in found[:2]]      # in shared memory with two weights
        for k in found:
            assert k.metadata.mergeable == k.metadata.num_warps == 1 and not k.resources.spill_stores
        return
    together = min(1 << (4096 // (size * block)).bit_length() >> 1, 128) or 1
    assert [k.metadata.mergeable for k in found] == [together] * 3
    for k in found if together > 1 else ():
        assert merged(k).metadata.programs == together


def test_numbers_of_16_bits_behind_masks(compiled):
    """What masks leave out is no copy of a register, which ptxas may widen wrongly (a remark)."""
    kernels.topk(np.zeros((2, 1001), np.float16), 8)
    assert compiled


@pytest.mark.parametrize("dtype", [BF16, F32], ids=["bf16", "fp32"])
def test_no_spills_in_gradients_of_norms(compiled, dtype, monkeypatch):
    """What needs most registers: two sums, a third row, weights of 32 bits; rows, and arrays, that begin anywhere."""
    monkeypatch.setattr(tilejit, "clusters", lambda ctas, device: {1: 132, 2: 66, 4: 30, 8: 15, 16: 7}[ctas])
    for columns, begin in ((2048, 0), (16384, 0), (131072, 0), (16, 1), (64, 3), (4097, 1), (6, 0), (32001, 0), (50257, 0),
                           (92811, 0)):
        x, w = np.zeros(600 * columns + 8, BF16)[begin:begin + 600 * columns].reshape(600, columns), np.zeros(columns, dtype)
        norm_gradients.rmsnorm_gradient(x, x, w, w, 1e-5, 0.0, True, True)
        norm_gradients.layernorm_gradient(x, x, w, w, 1e-5, 0.0, True, True)
        norm_gradients.add_layernorm_gradient(x, x, x, w, w, 1e-5, 0.0, True, True)
    assert compiled


def test_no_spills_where_registers_are_scarce(compiled):
    """fp64, whose elements have two; numbers that are loaded one by one, many a thread."""
    def odd(*shape, dtype):
        return np.zeros(prod(shape) + 1, dtype)[1:].reshape(shape)

    x = np.zeros((2, 140000))          # more than the shared memory of eight CTAs
    gates.glu_gradient(x, x, x, "gelu_tanh")
    softmax.log_softmax_gradient(x, x)
    norm_gradients.add_layernorm_gradient(x, x, x, x[0], x[0], 1e-5, 0.0, True, True)
    kernels.argmax(np.zeros((20000, 16)))
    kernels.cross_entropy_(np.zeros((20000, 16)), np.zeros(20000, np.int64), None, -100, 0.1, 0.1, 20.0)
    kernels.cross_entropy(odd(20000, 16, dtype=F32), np.zeros(20000, np.int64), None, -100, 0.1, 0.1, 20.0)
    x, w = np.zeros((500, 4, 16), BF16), odd(4, 16, dtype=BF16)
    norm_gradients.add_rmsnorm_gradient(x, x, x, w, w, 1e-5, 1.0, True, True)
    x, w = np.zeros((1, 4, 976), F32), odd(4, 976, dtype=F32)      # pieces with a register a thread
    norm_gradients.layernorm_gradient(x, x, w, None, 1e-5, 0.0, True, False)
    assert len(compiled) > 12


def test_short_rows_are_folded_by_a_warp_each(compiled):
    """Four rows of 291, an element a thread and load: warps need not meet."""
    kernels.softmax(np.zeros((4000, 291), BF16))
    assert " 0 bytes of shared memory" in compiled[0].report()


def test_losses_in_registers(compiled):
    """Cross-entropy alone stores no row, but is one of vectors as other kernels of rows are."""
    for columns in (1001, 50257):
        compiled.clear()
        kernels.cross_entropy(np.zeros((2, columns), BF16), np.zeros(2, np.int64), None, -100, 0.1)
        made = of_length(compiled[0], spanned(compiled[0], columns))
        assert "vectors in registers" in made.report() and "ld.global.v4" in made.ptx and not made.resources.spill_stores


WIDTHS = [1, 7, 64, 128, 1000, 1001, 1024, 4096, 4097, 5120, 8192, 16384, 20000, 32768, 50257, 65536, 131072, 262144,
          1 << 20]


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("dtype", [BF16, np.float16, F32], ids=["bf16", "fp16", "fp32"])
@pytest.mark.slow
def test_no_spills_at_any_width(compiled, columns, dtype):
    x, t, w = np.zeros((2, columns), dtype), np.zeros(2, np.int64), np.zeros(columns, F32)
    calls = rows(x)
    for name in CONVERSIONS[131072]:
        calls[name]()
    for options in ((None, -100, 0.1, 1e-3), (w, -100, 0.1), (None, -100, 0.0, 0.0, 30.0)):
        kernels.cross_entropy(x, t, *options)
    norm_gradients.add_layernorm_gradient(x, x, x, w, w, 1e-5, 0.0, True, True)
    for kernel in (kernels.argmax, kernels.sum, kernels.cumsum, kernels.transpose):
        kernel(x)
    kernels.topk(x, min(columns, 8))
    assert compiled
