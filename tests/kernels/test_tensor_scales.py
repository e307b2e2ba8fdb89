"""A scale for each operand, on every way that a product takes."""
import importlib
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import tilejit
from tilejit.kernels import matmul, matmul_streamk
from tilejit.kernels.planning import LARGE, SMALL, Plan, choose
from tilejit.kernels.way import Way
from tilejit.testing import rel_error

BF16, E4M3, F32 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float32
targets = pytest.mark.parametrize("target", ["evaluator", "emulator"])
STREAMED = Way(256, 256, 8, 2)
SCALES = dict(scale_a=np.array([3.0], F32), scale_b=np.array([[0.25]], F32))


@pytest.fixture
def chosen(monkeypatch):
    """Makes `matmul` take a way."""
    module = importlib.import_module("tilejit.kernels.matmul")

    def choose(way):
        monkeypatch.setattr(module, "choose", lambda *_: Plan(way, 0.0))
    return choose


def operands(m, n, k, dtype=E4M3):
    rng = np.random.default_rng(0)
    return rng.standard_normal((m, k), F32).astype(dtype), rng.standard_normal((n, k), F32).astype(dtype).T


def meant(a, b, bias=None, scale=0.75):
    z = scale * (a.astype(np.float64) @ b.astype(np.float64))
    return np.maximum(z if bias is None else z + bias.astype(np.float64), 0)


@targets
@pytest.mark.parametrize("given, scale", [(SCALES, 0.75), (dict(scale_a=SCALES["scale_a"]), 3.0),
                                          (dict(scale_b=np.full((), 0.25, F32)), 0.25)], ids=["both", "a", "b"])
@pytest.mark.parametrize("m, n, k, dtype", [(72, 96, 160, E4M3), (72, 96, 72, BF16), (8, 160, 4096, E4M3)], ids=str)
def test_matmul(m, n, k, dtype, given, scale, target):
    """Before the bias and the activation; few rows, whose product is turned, included."""
    a, b = operands(m, n, k, dtype)
    bias = np.random.default_rng(1).standard_normal(n).astype(BF16)
    with tilejit.knobs(target=target):
        out = matmul(a, b, bias, "relu", **given)
    assert rel_error(out, meant(a, b, bias, scale)) < 8e-3


@targets
def test_turned(chosen, target):
    chosen(Way(64, 64, 4, swap=True))
    a, b = operands(136, 200, 160)
    with tilejit.knobs(target=target):
        out = matmul(a, b, activation="relu", **SCALES)
    assert rel_error(out, meant(a, b)) < 4e-3


def test_streamed(chosen, monkeypatch):
    """Tiles shared out: parts of tiles meet unscaled."""
    m, n = 2 * STREAMED.m - 16, 2 * STREAMED.n
    monkeypatch.setattr(tilejit, "multiprocessors", lambda *_: 2 * STREAMED.ctas)
    chosen(replace(STREAMED, stream=3, programs=2))
    a, b = operands(m, n, 384)
    with tilejit.knobs(target="emulator"):
        out = matmul(a, b, activation="relu", **SCALES)
    assert rel_error(out, meant(a, b)) < 4e-3


@targets
@pytest.mark.parametrize("way", [dict(split=3), dict(split=1), dict(ctas=2)], ids=str)
def test_divided(way, target):
    """Parts are summed first, wherever they meet."""
    a, b = operands(100, 120, 768)
    with tilejit.knobs(target=target):
        out = matmul_streamk(a, b, activation="relu", **SCALES, **way)
    assert rel_error(out, meant(a, b)) < 4e-3


def test_registers(monkeypatch):
    """A bias, an activation, scales and fp32 results take tiles with room for all of them, which spill nothing."""
    module = importlib.import_module("tilejit.kernels.matmul")
    fp8, bf16, fp32 = (tilejit.ir.types.DTYPES[x] for x in ("fp8e4nv", "bf16", "fp32"))
    facts = [tilejit.ArrayInfo(0, *x, 0) for x in (
        (fp8, (4096, 4096), (4096, 1)), (fp8, (4096, 14336), (1, 4096)), (bf16, (14336,), (1,)),
        (fp32, (4096, 14336), (14336, 1)))]
    for scaled in (False, True):
        one = tilejit.ArrayInfo(0, fp32, (1,), (1,), 0) if scaled else None
        plans = []
        monkeypatch.setattr(module, "choose", lambda *x: plans.append(choose(*x)) or plans[-1])
        module._work((*facts, one, None), "silu", 132, None, None)
        for way in (plan.way for plan in plans):
            assert way.roomy(4, scaled) or way.swap and way.roomy(2) and not scaled
    assert {t.sums for t in (*LARGE, *SMALL) if t.roomy(4) and not t.roomy(4, scaled=True)} == {160}


def test_what_is_no_scale():
    a, b = operands(32, 32, 64)
    with pytest.raises(tilejit.LaunchError, match=r"matmul: scale_b must be one number in fp32, found fp32 \[2\]"):
        matmul(a, b, scale_b=np.ones(2, F32))
    with pytest.raises(tilejit.LaunchError, match=r"matmul_streamk: scale_a must be one number in fp32, found bf16 \[1\]"):
        matmul_streamk(a, b, scale_a=np.ones(1, BF16))
    with pytest.raises(tilejit.LaunchError, match="accumulate adds to an fp32 `out`, without bias, activation or scales"):
        matmul_streamk(a, b, out=np.zeros((32, 32), F32), accumulate=True, **SCALES)
