"""Products whose first operand stays in registers: what is decided, what is emitted, and what it computes."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.testing import rel_error

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
NUMPY = {"bf16": BF16, "fp16": np.float16, "fp32": np.float32, "fp8e4nv": E4M3, "int8": np.int8}
LANGUAGE = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8e4nv": "float8e4nv", "int8": "int8"}


@tilejit.kernel
def scaled_first(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, DTYPE: tl.constexpr):
    """C = (A widened or doubled) @ B^T, the first operand computed in the loop."""
    m = tl.program_id(0) * BM
    acc = tl.zeros((BM, BN), tl.int32 if DTYPE == tl.int8 else tl.float32)
    for k in range(tl.cdiv(K, BK)):
        a = a_desc.load([m, k * BK])
        b = b_desc.load([0, k * BK])
        acc = tl.dot((a.to(tl.float32) * 2.0).to(DTYPE), b.T, acc)
    c_desc.store([m, 0], acc)


@pytest.mark.parametrize("dtype", list(NUMPY))
@pytest.mark.parametrize("bm, bn, bk, warps", [(64, 32, 64, 4), (128, 16, 128, 4), (128, 64, 64, 8)])
def test_every_type(dtype, bm, bn, bk, warps):
    """Products of computed operands, of every type that wgmma takes, against numpy."""
    rng = np.random.default_rng(0)
    bk = bk // 2 if dtype == "fp32" else bk
    kind, k = NUMPY[dtype], 3 * bk
    a, b = (rng.integers(-8, 8, (n, k)).astype(kind) for n in (2 * bm, bn))
    out = np.zeros((2 * bm, bn), np.int32 if dtype == "int8" else np.float32)
    describe = tilejit.TensorDescriptor.from_tensor
    with tilejit.knobs(target="emulator"):
        kernel = scaled_first[(2,)](describe(a, [bm, bk]), describe(b, [bn, bk]), describe(out, [bm, bn]), k, BM=bm,
                                    BN=bn, BK=bk, DTYPE=getattr(tl, LANGUAGE[dtype]), num_warps=warps)
    assert rel_error(out, 2 * a.astype(np.float64) @ b.astype(np.float64).T) == 0
    assert "from registers" in kernel.report()
