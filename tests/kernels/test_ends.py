"""A caller's own end of a product: on every way that the product takes."""
import importlib

import ml_dtypes
import numpy as np
import pytest
from product_launches import CHIP, compiled, info

import tilejit
import tilejit.language as tl
from tilejit.kernels import launches, matmul
from tilejit.kernels._calls import At, Work
from tilejit.kernels.planning import Plan
from tilejit.kernels.problem import End, call_of
from tilejit.kernels.way import Way
from tilejit.testing import rel_error

module = importlib.import_module("tilejit.kernels.matmul")
BF16, F32 = ml_dtypes.bfloat16, np.float32
targets = pytest.mark.parametrize("target", ["evaluator", "emulator"])


@tilejit.kernel
def blend(sums, rows, columns, row_count, column_count, args):
    """A gate for each column, a number for each row, another matrix."""
    gate, shift, other, stride, share = args
    x = sums * tl.sigmoid(tl.load(gate + columns, columns < column_count, other=0.0).to(tl.float32))
    x += tl.load(shift + rows, rows < row_count, other=0.0)
    inside = (rows < row_count) & (columns < column_count)
    return x * share + tl.load(other + rows * stride + columns, inside, other=0.0).to(tl.float32) * (1.0 - share)


@tilejit.kernel
def clipped(sums, rows, columns, row_count, column_count, args):
    return tl.minimum(tl.maximum(sums, -1.0), 1.0)


def arrays(m, n, k, dtype=BF16):
    rng = np.random.default_rng(m + n)
    a, b = rng.standard_normal((m, k), F32).astype(dtype), rng.standard_normal((n, k), F32).astype(dtype).T
    gate, shift, other = rng.standard_normal(n).astype(BF16), rng.standard_normal(m).astype(F32), rng.standard_normal((m, n)).astype(BF16)
    ref = a.astype(np.float64) @ b.astype(np.float64) / (1 + np.exp(-gate.astype(np.float64))) + shift[:, None]
    return a, b, (gate, shift, other, n, 0.75), 0.75 * ref + 0.25 * other.astype(np.float64)


@targets
@pytest.mark.parametrize("way", [Way(64, 64, 4), Way(128, 96, 4, swap=True), Way(64, 64, 4).divided(100, 136, 2),
                                 Way(64, 32, 4, swap=True).divided(100, 136, 3), Way(64, 64, 4, 2, "K")], ids=str)
def test_ways(monkeypatch, target, way):
    """Tiles of the result and of its transpose, and sums of parts, each cut short by the matrix's ends."""
    m, n = 100, 136
    monkeypatch.setattr(module, "choose", lambda *_: Plan(way, 0.0))
    a, b, args, ref = arrays(m, n, 640)
    with tilejit.knobs(target=target):
        out = matmul(a, b, end=blend, end_args=args)
        assert rel_error(out, ref) <= 8e-3
        assert np.abs(matmul(a, b, end=clipped, out_dtype=tl.float32)).max() == 1.0


@pytest.mark.parametrize("m, n, k", [(70, 45, 51), (3, 300, 1001), (200, 77, 64)])
def test_lines_that_tma_cannot_read(m, n, k):
    """Copied operands, tiles through registers, results that are copied."""
    a, b, args, ref = arrays(m, n, k)
    with tilejit.knobs(target="evaluator"):
        assert rel_error(matmul(a, b, end=blend, end_args=args), ref) <= 8e-3


def test_scales_come_first():
    a, b, args, _ = arrays(64, 64, 64, ml_dtypes.float8_e4m3fn)
    with tilejit.knobs(target="evaluator"):
        out = matmul(a, b, end=clipped, scale_a=np.full(1, 1e-3, F32), out_dtype=tl.float32)
    np.testing.assert_allclose(out, 1e-3 * (a.astype(F32) @ b.astype(F32)), rtol=1e-3, atol=1e-6)


def test_what_does_not_go_together():
    a, b, args, _ = arrays(64, 64, 64)
    for more in (dict(activation="relu"), dict(bias=np.zeros(64, F32))):
        with pytest.raises(tilejit.LaunchError, match="an end takes the place of a bias and an activation"):
            matmul(a, b, end=clipped, **more)


def test_it_costs_what_a_built_in_one_does():
    """The same schedule, no spills: products in flight, stores as they were."""
    w, arrays = Way(128, 256, 8), (info("bfloat16", 256, 512), info("bfloat16", 512, 512, rows_first=False), None,
                                   info("bfloat16", 256, 512))
    built = []
    for end, types in ((End(At(4)), {4: "*bf16"}), (End(own=gated, args=At(4)), {4: ("*bf16", "*fp32", "fp32")})):
        work = Work(5)
        launches.add(work, call_of("test", arrays, None, 132)._replace(end=end, chip=CHIP), w)
        built.append(compiled(work.launches[0], types))
    built_in, own = built
    assert not own.warnings() and own.metadata.num_stages == built_in.metadata.num_stages
    assert "one round of wgmma stays in flight" in own.report() and own.resources.registers == built_in.resources.registers
    assert own.ptx.count("stmatrix") == built_in.ptx.count("stmatrix")


@tilejit.kernel
def gated(sums, rows, columns, row_count, column_count, args):
    bias, shift, scale = args
    x = sums * scale + tl.load(bias + columns, columns < column_count, other=0.0).to(tl.float32)
    return tl.maximum(x + tl.load(shift + rows, rows < row_count, other=0.0), 0.0)
