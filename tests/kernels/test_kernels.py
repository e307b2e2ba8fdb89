"""The ready kernels against float64 references, without a GPU: their tile IR in the evaluator, and their PTX on the
emulated SM."""
from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from references import matrix, poisoned, row_kernels

import tilejit
from tilejit import kernels
from tilejit.errors import LaunchError
from tilejit.testing import rel_error

BOUNDS = {np.float32: 2e-5, np.float16: 2e-3, ml_dtypes.bfloat16: 8e-3, ml_dtypes.float8_e4m3fn: 8e-3}
ROWS = [(1, 1), (2, 7), (3, 1000), (2, 20000)]


@pytest.fixture(autouse=True, params=["evaluator", "emulator"])
def target(request):
    """Where the test's launches run."""
    with tilejit.knobs(target=request.param):
        yield request.param


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", ROWS)
def test_row_kernels(shape, dtype):
    """add, softmax, layernorm and rmsnorm; 20000 columns take the kernels that walk a row in blocks."""
    for kernel, args, ref in row_kernels(shape, dtype):
        out = poisoned(shape, dtype)
        kernel(*args, out=out)
        assert rel_error(out, ref) <= BOUNDS[dtype], kernel.__name__


@pytest.mark.parametrize("dtype", list(BOUNDS))
@pytest.mark.parametrize("a_rows", [True, False])
@pytest.mark.parametrize("b_rows", [True, False])
@pytest.mark.parametrize("shape", [(70, 90, 48), (128, 192, 80), (5, 64, 8)])
def test_matmul(shape, dtype, a_rows, b_rows):
    """All majors, aligned shapes (descriptors) and ragged ones (pointers)."""
    m, n, k = shape
    rng = np.random.default_rng(1)
    a, b = matrix(rng, m, k, dtype, a_rows), matrix(rng, k, n, dtype, b_rows)
    out = poisoned((m, n), ml_dtypes.bfloat16 if dtype == ml_dtypes.float8_e4m3fn else dtype)
    kernels.matmul(a, b, out=out)
    bound = 1.5e-3 if dtype == np.float32 else BOUNDS[dtype]        # fp32 inputs are multiplied as tf32
    assert rel_error(out, a.astype(np.float64) @ b.astype(np.float64)) <= bound


def test_matmul_epilogue():
    """Bias and every activation."""
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal((64, 64)).astype(np.float16) for _ in range(2))
    bias = rng.standard_normal(64).astype(np.float16)
    z = a.astype(np.float64) @ b.astype(np.float64) + bias
    refs = {None: z, "relu": np.maximum(z, 0), "silu": z / (1 + np.exp(-z)),
            "gelu": 0.5 * z * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))}
    for activation, ref in refs.items():
        assert rel_error(kernels.matmul(a, b, bias=bias, activation=activation), ref) <= 2e-3, activation


def test_matmul_rejects():
    """Shapes, dtypes and names that do not fit are told apart."""
    a, b = np.zeros((8, 16), np.float16), np.zeros((8, 16), np.float16)
    with pytest.raises(LaunchError, match="16 != 8"):
        kernels.matmul(a, b)
    with pytest.raises(LaunchError, match="int32 x fp16"):
        kernels.matmul(a.astype(np.int32), b)
    with pytest.raises(LaunchError, match="activation"):
        kernels.matmul(a, b.T, activation="swish")
    with pytest.raises(LaunchError, match=r"bias must be a contiguous \[8\] array, found shape \[16\]"):
        kernels.matmul(a, b.T, bias=np.zeros(16, np.float16))
    with pytest.raises(LaunchError, match="out must be"):
        kernels.matmul(a, b.T, out=np.zeros((8, 9), np.float16))


@pytest.mark.parametrize("n", [40, 41])
def test_matmul_of_few_rows(n):
    """Turned where TMA can write the result; computed as it is where it cannot."""
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((5, 2048), (n, 2048)))
    with tilejit.knobs(target="emulator"):
        assert rel_error(kernels.matmul(a, b.T), a.astype(np.float64) @ b.T.astype(np.float64)) < 1e-3


@pytest.mark.parametrize("m, k, n", [(16, 64, 1), (300, 64, 1), (1, 64, 16), (1, 100, 8), (8, 1, 8), (1, 1, 1), (1, 4096, 1),
                                     (200, 8192, 1), (100, 72, 8)], ids=str)
@pytest.mark.parametrize("orders", ["NN", "NT", "TN", "TT"])
def test_lines_of_one_number(m, k, n, orders, target):
    """Shapes one wide, whose lines have no pitch: TMA reads few of them, whatever their strides say."""
    rng = np.random.default_rng(m + n)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((m, k), (k, n)))
    ref = a.astype(np.float64) @ b.astype(np.float64)
    a, b = (x if o == "N" else np.ascontiguousarray(x.T).T for x, o in zip((a, b), orders))
    wide = np.zeros((m, 104), np.float16)
    wide[:, :min(k, 104)] = a[:, :104]
    with tilejit.knobs(target=target):
        out = kernels.matmul(a, b)
        cut = kernels.matmul(wide[:, :k], b) if k <= 104 else out
    np.testing.assert_allclose(out, ref, atol=2e-2 * max(1, k) ** 0.5)
    np.testing.assert_array_equal(cut, out)



@pytest.mark.parametrize("n, columns", [(33, 64), (7, 17), (5, 100), (3, 1000), (1, 1), (2, 4096)])
@pytest.mark.parametrize("name", ["softmax", "rmsnorm", "layernorm"])
def test_several_rows_a_program(name, n, columns):
    """Narrow rows share a program, whose last one may have fewer."""
    rng = np.random.default_rng(columns)
    x, w = rng.standard_normal((n, columns)).astype(np.float32), rng.standard_normal(columns).astype(np.float32)
    v = x.astype(np.float64)
    with tilejit.knobs(target="emulator"):
        if name == "softmax":
            out, e = kernels.softmax(x), np.exp(v - v.max(1, keepdims=True))
            want = e / e.sum(1, keepdims=True)
        elif name == "rmsnorm":
            out, want = kernels.rmsnorm(x, w), v / np.sqrt((v * v).mean(1, keepdims=True) + 1e-6) * w
        else:
            out = kernels.layernorm(x, w, w)
            want = (v - v.mean(1, keepdims=True)) / np.sqrt(v.var(1, keepdims=True) + 1e-5) * w + w
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=2e-6)


def test_how_rows_are_launched():
    from tilejit.kernels._host import LEAST, WIDEST, row_launch

    for n, columns in ((10 ** 6, 64), (3, 64), (10, 2048), (10, 16384), (10, 32768)):
        launch = row_launch(n, columns)
        assert launch.whole and launch.grid[0] * launch.rows >= n > (launch.grid[0] - 1) * launch.rows
        assert launch.rows * launch.options["BLOCK"] >= min(LEAST, n * columns)
    assert row_launch(10, 65536, WIDEST).whole and row_launch(10, 1 << 20, WIDEST).whole and not row_launch(10, 65536).whole
    assert row_launch(10, 20000).whole and not row_launch(10, 40000).whole
    uneven = row_launch(10, 1001), row_launch(10, 9999), row_launch(10, 50257, WIDEST)
    assert all(x.whole and x.rows == 1 for x in uneven)          # 32 elements a thread or more: rows in shared memory
    assert all(x.options["BLOCK"] >= 1024 * x.options["num_warps"] * x.options.get("num_ctas", 1) for x in uneven)
    assert not row_launch(10, 1 << 20, WIDEST, size=4).whole
    assert row_launch(10, 1 << 20, WIDEST, size=4, together=8).options == {"BLOCK": 65536, "num_warps": 8, "num_ctas": 8}
