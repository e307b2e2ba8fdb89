"""Products stored as their transpose: tiles of C^T = B^T A^T, whose rows are the columns of C."""
from __future__ import annotations

import importlib
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from product_launches import work_of

import tilejit
from tilejit import kernels
from tilejit.kernels._calls import Work
from tilejit.kernels.planning import LARGE, SMALL, Plan
from tilejit.kernels.product.kernel import product_kernel
from tilejit.testing import rel_error

matmul = importlib.import_module("tilejit.kernels.matmul")
BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
#: Products of every way in which warpgroups and CTAs divide a tile.
SHAPES = ((128, 256), (128, 160), (64, 128), (256, 256), (256, 224), (256, 320), (192, 352))


def tiles(m, n):
    return next(t for t in (*LARGE, *SMALL) if (t.m, t.n) == (m, n))


def product(monkeypatch, t, m, n, k, a_rows=True, b_rows=True, dtype=BF16, out_dtype=BF16, bias=False, activation=None,
            **options):
    """`matmul` by turned tiles; what was compiled."""
    monkeypatch.setattr(matmul, "choose", lambda *_: Plan(replace(t, swap=True), 0.0))
    monkeypatch.setattr(matmul, "PIECE", 99)                     # what TMA does not read is copied first,
    monkeypatch.setattr(matmul, "brief", lambda *_: False)        # and threads read nothing straight
    monkeypatch.setattr(tilejit, "multiprocessors", lambda *_: 2 * t.ctas)
    matmul._work.cache_clear()
    product_kernel.entries.clear()
    rng = np.random.default_rng(m)
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    v = rng.standard_normal(n).astype(np.float32) if bias else None
    ref = a.astype(np.float64) @ b.astype(np.float64) + (0 if v is None else v)
    ref = np.maximum(ref, 0) if activation else ref
    pitch = -(-n // 8) * 8
    out = np.full((m, pitch), np.nan, out_dtype)
    def order(x, rows):
        return x if rows else np.ascontiguousarray(x.T).T
    kernels.matmul(order(a, a_rows), order(b, b_rows), v, activation, out=out[:, :n])
    assert np.isnan(out[:, n:].astype(np.float32)).all()
    exact = out_dtype == np.float32 != dtype                      # products of fp32 are in tf32
    assert rel_error(out[:, :n], ref) < (1e-5 if exact else 4e-3)
    return [e.compiled for e in product_kernel.entries.values()]


@pytest.fixture(params=["evaluator", "emulator"])
def target(request):
    """Where the test's launches run."""
    with tilejit.knobs(target=request.param):
        yield request.param


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_division(monkeypatch, target, shape):
    """Rows and columns hang over the ends, several tiles a program."""
    t = tiles(*shape)
    product(monkeypatch, t, 2 * t.n + 24, t.m + 40, 136)


@pytest.mark.parametrize("orders", [(True, False), (False, True), (False, False)], ids=str)
@pytest.mark.parametrize("shape", [(256, 256), (192, 352)], ids=str)
def test_orders(monkeypatch, target, shape, orders):
    product(monkeypatch, tiles(*shape), 360, 200, 72, *orders)


@pytest.mark.parametrize("options", [
    dict(bias=True, activation="relu"), dict(out_dtype=np.float32), dict(out_dtype=np.float32, bias=True),
    dict(dtype=E4M3, b_rows=False), dict(dtype=np.float32, out_dtype=np.float32, b_rows=False)], ids=str)
@pytest.mark.parametrize("shape", [(128, 256), (256, 320)], ids=str)
def test_dtypes_and_epilogues(monkeypatch, target, shape, options):
    """A bias has a value for each row of the transpose."""
    product(monkeypatch, tiles(*shape), 328, 136, 72, **options)


@pytest.mark.parametrize("shape, rows", [((128, 256), 64), ((256, 320), 32), ((192, 352), 16)], ids=str)
def test_staged_by_transposing_matrices(monkeypatch, shape, rows):
    """stmatrix turns a warp's fragments; each warpgroup has 64 columns or more of C in lines of 128 bytes."""
    with tilejit.knobs(target="emulator"):
        (built,) = product(monkeypatch, tiles(*shape), 400, 136, 72)
    assert f"staged {rows} rows at a time" in built.report() and "warpgroup its own columns" in built.report()
    t = tiles(*shape)
    assert built.ptx.count("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16") == t.sums // 8
    assert "st.shared" not in built.ptx
    assert next(p for p in built.metadata.params if getattr(p, "base_arg", "") == "end_0").box == (rows, 64)


@pytest.mark.parametrize("role", [True, False])
@pytest.mark.parametrize("shape", [(128, 256), (256, 224), (256, 320)], ids=str)
def test_with_and_without_a_store_role(role, shape):
    """As the evaluator has it, under two schedules."""
    t = tiles(*shape)
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((t.m + 8, 72)).astype(BF16), rng.standard_normal((t.n + 8, 72)).astype(BF16)
    out = np.full((t.n + 8, t.m + 8), np.nan, BF16)
    (launch,) = work_of(replace(t, swap=True), t.n + 8, t.m + 8, 72).launches
    with tilejit.knobs(target="emulator"):
        Work(4, [replace(launch, kernel=launch.kernel.partial(store_role=role), grid=(1,))]).run(b, a.T, None, out)
    assert rel_error(out, b.astype(np.float64) @ a.astype(np.float64).T) < 4e-3
