"""tl.dot_scaled against numbers decoded by tables, in the evaluator and the emulator."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.errors import CompilationError
from tilejit.testing import rel_error

BF16 = ml_dtypes.bfloat16
VIEWS = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "bf16": BF16, "fp16": np.float16}


@tilejit.kernel
def scaled(a, sa, b, sb, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, FA: tl.constexpr, FB: tl.constexpr,
           A_ROWS: tl.constexpr, A_COLUMNS: tl.constexpr, B_ROWS: tl.constexpr, B_COLUMNS: tl.constexpr,
           PACK_A: tl.constexpr, PACK_B: tl.constexpr, GROUP: tl.constexpr):
    """One product of whole tensors; scales [rows, K / GROUP], or None."""
    x = tl.load(a + tl.arange(0, A_ROWS)[:, None] * A_COLUMNS + tl.arange(0, A_COLUMNS)[None, :])
    y = tl.load(b + tl.arange(0, B_ROWS)[:, None] * B_COLUMNS + tl.arange(0, B_COLUMNS)[None, :])
    g = tl.arange(0, K // GROUP)[None, :]
    if sa is not None:
        sa = tl.load(sa + tl.arange(0, M)[:, None] * (K // GROUP) + g)
    if sb is not None:
        sb = tl.load(sb + tl.arange(0, N)[:, None] * (K // GROUP) + g)
    z = tl.dot_scaled(x, sa, FA, y, sb, FB, lhs_k_pack=PACK_A, rhs_k_pack=PACK_B)
    tl.store(c + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], z)


def operand(rng, name, rows, columns, axis):
    """(array as the kernel takes it, its numbers in float64) of `rows` x `columns`; pairs of e2m1 lie along `axis`."""
    if name == "e2m1":
        codes = rng.integers(0, 16, (rows, columns))
        numbers = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])[codes & 7] * np.where(codes & 8, -1, 1)
        low, high = np.take(codes, range(0, codes.shape[axis], 2), axis), np.take(codes, range(1, codes.shape[axis], 2),
                                                                                  axis)
        return (low | high << 4).astype(np.uint8), numbers
    x = rng.standard_normal((rows, columns)).astype(VIEWS[name])
    return (x.view(np.uint8) if name in ("e4m3", "e5m2") and rng.integers(2) else x), x.astype(np.float64)


@pytest.mark.parametrize("seed", range(16))
def test_against_tables(seed):
    rng = np.random.default_rng(seed)
    m, n, k = (int(2 ** rng.integers(4, 7)) for _ in range(3))
    k = max(k, 32)
    fa, fb = (str(rng.choice(["e2m1", "e4m3", "e5m2", "bf16", "fp16"])) for _ in range(2))
    if seed < 2:
        fa, fb = ("e2m1", "bf16") if seed else ("e4m3", "e2m1")
    pack_a, pack_b = (f != "e2m1" or bool(rng.integers(2)) for f in (fa, fb))
    a, x = operand(rng, fa, m, k, 1 if pack_a else 0)
    b, y = operand(rng, fb, k, n, 0 if pack_b else 1)
    group = 32 if seed % 4 else 16
    scales = [rng.integers(124, 131, (rows, k // group)).astype(np.uint8) if rng.integers(3) else None
              for rows in (m, n)]
    for i, s in enumerate(scales):
        if s is not None:
            factor = np.repeat(2.0 ** (s.astype(np.float64) - 127), group, 1)
            x, y = (x * factor, y) if i == 0 else (x, y * factor.T)
    if scales[0] is None and scales[1] is None:
        group = 32
    for target in ("evaluator", "emulator"):
        c = np.zeros((m, n), np.float32)
        with tilejit.knobs(target=target):
            scaled[(1,)](a, scales[0], b, scales[1], c, m, n, k, fa, fb, *a.shape, *b.shape, pack_a, pack_b, group,
                         num_warps=int(2 ** (1 + seed % 3)))
        assert rel_error(c, x @ y) < 1e-6, (target, fa, fb, m, n, k)


def test_a_scale_may_be_nan():
    a, b = np.ones((16, 32), BF16), np.ones((32, 16), BF16)
    scale = np.full((16, 1), 127, np.uint8)
    scale[3] = 255
    c = np.zeros((16, 16), np.float32)
    with tilejit.knobs(target="emulator"):
        scaled[(1,)](a, scale, b, None, c, 16, 16, 32, "bf16", "bf16", 16, 32, 32, 16, True, True, 32)
    assert np.isnan(c[3]).all() and np.isfinite(np.delete(c, 3, 0)).all()


@tilejit.kernel
def of_shapes(c, LHS: tl.constexpr, FORMAT: tl.constexpr, PACK: tl.constexpr):
    x, y = tl.full((32, 64), 0, tl.uint8), tl.full((64, 32), 0, tl.uint8)
    z = tl.dot_scaled(x, tl.full((32, LHS), 0, tl.uint8), FORMAT, y, tl.full((32, 2), 0, tl.uint8), "e5m2",
                      lhs_k_pack=PACK)
    tl.store(c + tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :], z)


@pytest.mark.parametrize("lhs, name, pack, says", [
    (4, "e5m2", True, r"Operands must have the same scale factor; \(lhs: 16 vs rhs: 32\)"),
    (2, "e2m1", True, r"Reduction dimension should pack the same number of elements"),
    (2, "e5m2", False, "only mxfp4 inputs can be packed along a dimension different than K"),
    (2, "e3m4", True, "Invalid float format: e3m4"),
])
def test_what_does_not_go_together(lhs, name, pack, says):
    with pytest.raises(CompilationError, match=says):
        of_shapes.compile(np.zeros((32, 32), np.float32), lhs, name, pack)
