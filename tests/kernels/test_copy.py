"""Operands whose lines TMA cannot read are copied first."""
import importlib

import ml_dtypes
import numpy as np
import pytest

import tilejit
from tilejit.kernels.copy import copy_matrix, pitched

matmul = importlib.import_module("tilejit.kernels.matmul")


@pytest.fixture(autouse=True)
def evaluator():
    with tilejit.knobs(target="evaluator"):
        yield


def numbers(shape, dtype, rows_first):
    x = np.random.default_rng(0).integers(-2, 3, shape if rows_first else shape[::-1]).astype(dtype)
    return x if rows_first else x.T


@pytest.mark.parametrize("to_rows", [True, False])
@pytest.mark.parametrize("from_rows", [True, False])
def test_copy(from_rows, to_rows):
    x = numbers((37, 150), np.float16, from_rows)
    base, info = pitched(x, tilejit.array_info(x), to_rows)
    assert info.shape == (37, 150) and max(info.strides) * 2 % 128 == 0 and min(info.strides) == 1
    copy_matrix(x, tilejit.array_info(x), base, info)
    assert np.array_equal(base[:, :150] if to_rows else base[:, :37].T, x)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float32])
@pytest.mark.parametrize("orders", [(True, False), (True, True), (False, False), (False, True)])
def test_matmul_of_odd_lines(dtype, orders, monkeypatch):
    """All orders, odd lines, and an output that TMA cannot write: exact, through TMA."""
    monkeypatch.setattr(matmul, "COPIED_FROM", 0)
    monkeypatch.setattr(matmul.matmul_kernel, "entries", {})
    a, b = numbers((69, 51), dtype, orders[0]), numbers((51, 75), dtype, orders[1])
    before = a.copy(), b.copy()
    out = matmul.matmul(a, b)
    assert np.array_equal(out.astype(np.float32), a.astype(np.float32) @ b.astype(np.float32))
    assert np.array_equal(a, before[0]) and np.array_equal(b, before[1])
    (entry,) = matmul.matmul_kernel.entries.values()
    assert "through pointers" not in entry.compiled.report()
