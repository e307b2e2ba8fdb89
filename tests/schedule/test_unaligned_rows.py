"""Rows that begin and end anywhere: whole 16 bytes by bulk copies, the ends by elements, in any CTA's strips."""
import ml_dtypes
import numpy as np
import pytest
from test_strips import close, norm, normed, softmax

import tilejit
import tilejit.language as tl


def rows(columns, dtype, begin, stride, seed=0):
    """Two rows of a buffer, from an element on; what is around them is NaN."""
    buffer = np.full(2 * stride + 32, np.nan, dtype)
    at = buffer[begin:begin + 2 * stride].reshape(2, stride)
    at[:, :columns] = np.random.default_rng(seed).standard_normal((2, columns)).astype(dtype)
    return at


@pytest.mark.parametrize("columns, block, dtype, begin, warps, ctas", [
    (2000, 2048, np.float16, 1, 1, 1), (2001, 2048, np.float16, 0, 1, 1), (1029, 2048, ml_dtypes.bfloat16, 3, 1, 1),
    (4001, 4096, np.float32, 1, 2, 1), (3, 1024, np.float16, 1, 1, 1), (1, 1024, np.float16, 7, 1, 1),
    (7, 1024, np.float16, 3, 1, 1), (4001, 4096, np.float16, 1, 1, 2), (1025, 4096, np.float16, 7, 1, 2),
    (4003, 4096, ml_dtypes.bfloat16, 5, 1, 4), (2057, 4096, np.float32, 2, 1, 2)])
def test_softmax(columns, block, dtype, begin, warps, ctas):
    """Input and output begin at the same element; nothing beside a row is read into it, or written."""
    stride = columns + 3
    x, out = rows(columns, dtype, begin, stride), rows(0, dtype, begin, stride)
    args, kw = (x, out, columns, stride), {"BLOCK": block, "num_warps": warps, "num_ctas": ctas, "odd_rows": False}
    with tilejit.knobs(target="emulator"):
        tilejit.check(softmax, (2,), *args, seeds=[0], **kw).check()
    v = np.exp(x[:, :columns].astype(np.float64) - x[:, :columns].astype(np.float64).max(1, keepdims=True))
    close(out[:, :columns], v / v.sum(1, keepdims=True), dtype)
    assert np.isnan(out[:, columns:].astype(np.float32)).all()
    assert "unaligned=true" in str(softmax.compile(*args, **kw).ir)


@pytest.mark.parametrize("columns, dtype, begin, shift, warps", [
    (1001, np.float16, 1, 0, 1), (1001, np.float16, 1, 3, 1), (2047, ml_dtypes.bfloat16, 0, 7, 1), (2001, np.float32, 3, 0, 2),
    (2001, np.float32, 3, 2, 2), (9, np.float16, 1, 4, 1), (0, np.float16, 1, 0, 1)])
def test_results_go_back_through_the_row(columns, dtype, begin, shift, warps):
    """Where input and output lie alike between 16 bytes, whole 16 bytes are stored by a bulk copy; else elements are.
    In place, too."""
    stride = columns + 3
    x, out = rows(columns, dtype, begin, stride), rows(0, dtype, begin + shift, stride)
    v = np.exp(x[:, :columns].astype(np.float64) - x[:, :columns].astype(np.float64).max(1, keepdims=True, initial=0))
    v /= v.sum(1, keepdims=True)
    kw = {"BLOCK": 2048, "num_warps": warps, "odd_rows": False}
    ptx = softmax.compile(x, out, columns, stride, **kw).ptx
    assert ptx.count("cp.async.bulk.global.shared::cta") == 1 and ptx.count("st.global") == 2
    for there in (out, x) if shift == 0 else (out,):
        with tilejit.knobs(target="emulator"):
            tilejit.check(softmax, (2,), x, there, columns, stride, seeds=[0], **kw).check()
        close(there[:, :columns], v, dtype)
        assert np.isnan(there[:, columns:].astype(np.float32)).all()


@pytest.mark.parametrize("columns, dtype, begin, ctas", [
    (2000, np.float16, 1, 1), (2000, np.float16, 7, 1), (2000, np.float16, 4, 1), (2000, np.float32, 3, 1),
    (4000, ml_dtypes.bfloat16, 5, 2)])
def test_what_is_written_in_vectors_is_read_in_vectors(columns, dtype, begin, ctas):
    """A view of aligned rows, and an aligned output: 16 bytes of a thread are shifted out of two accesses."""
    stride, block = 2048 * ctas + 16, 2048 * ctas
    x = rows(columns, dtype, begin, stride)
    out, w = np.full((2, stride), np.nan, dtype), np.linspace(-1, 1, stride).astype(dtype)
    args, kw = (x, None, w, out, columns, stride), {"BLOCK": block, "num_warps": 1, "num_ctas": ctas, "MEAN": True, "odd_rows": False}
    with tilejit.knobs(target="emulator"):
        norm[(2,)](*args, **kw)
    close(out[:, :columns], normed(x[:, :columns], None, w[:columns], True), dtype)
    assert np.isnan(out[:, columns:].astype(np.float32)).all()
    assert dtype == np.float32 or "shf.r.wrap" in norm.compile(*args, **kw).ptx


@pytest.mark.parametrize("columns, warps, taken", [(1001, 2, 1), (1001, 1, 1), (1000, 2, 2), (1001, 4, 1), (1000, 4, 4)])
def test_fewer_warps(columns, warps, taken):
    """Of rows that may begin anywhere half the warps, where those have enough elements each for strips; the same from
    the disk."""
    x, out = rows(columns, np.float16, 0, 1001 if columns % 8 else 1008), rows(0, np.float16, 0, 1008)
    stride = x.strides[0] // 2
    out = np.full_like(x, np.nan)
    kw = {"BLOCK": 1024, "num_warps": warps, "odd_rows": False}
    with tilejit.knobs(target="emulator"):
        made = softmax[(2,)](x, out, columns, stride, **kw)
    v = np.exp(x[:, :columns].astype(np.float64) - x[:, :columns].astype(np.float64).max(1, keepdims=True))
    close(out[:, :columns], v / v.sum(1, keepdims=True), np.float16)
    for k in (made, softmax.compile(x, out, columns, stride, **kw)):
        assert k.metadata.num_warps == k.options["num_warps"] == taken
        assert ("copied as a whole" in k.report()) is (taken < warps)


@pytest.mark.parametrize("columns, begin, ctas", [(2001, 1, 1), (2048, 0, 1), (4003, 5, 2), (4096, 0, 2), (1040, 0, 2)])
def test_the_schedule_in_the_evaluator(columns, begin, ctas):
    """What is scheduled means the same: CTAs are one program there, whose buffers hold what all have."""
    from tilejit.ir.evaluate import evaluate
    from tilejit.ir.text import parse_function

    x, out = rows(columns, np.float16, begin, columns), rows(0, np.float16, begin, columns)
    kw = {"BLOCK": 2048 * ctas, "num_warps": 1, "num_ctas": ctas, "odd_rows": False}
    k = softmax.compile(x, out, columns, columns, **kw)
    evaluate(parse_function(k.scheduled), 2, {"x": x, "out": out, "columns": columns, "stride": columns})
    v = np.exp(x.astype(np.float64) - x.astype(np.float64).max(1, keepdims=True))
    close(out, v / v.sum(1, keepdims=True), np.float16)


@tilejit.kernel
def counted(x, weight, out, columns, stride, BLOCK: tl.constexpr):
    """Sums of numbers that are 1 behind the row's end; results of which threads store several side by side."""
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + cols, cols < columns, other=0.0).to(tl.float32)
    y = v + tl.sum(v + 1.0, 0) + tl.max(tl.where(cols < columns, cols, -1), 0)
    if weight is not None:
        y *= tl.load(weight + cols, cols < columns)
    tl.store(out + row * stride + cols, y.to(out.dtype.element_ty), cols < columns)


@pytest.mark.parametrize("columns, dtype, begin, warps", [
    *((n, np.float16, b, 1) for n, b in ((1024, 0), (1024, 1), (1024, 7), (1018, 6), (257, 3), (250, 7), (9, 4), (1, 7), (0, 5))),
    (2048, np.float16, 7, 2), (1023, ml_dtypes.bfloat16, 2, 1), (1024, np.float32, 3, 1), (5, np.float32, 2, 1)])
@pytest.mark.parametrize("weighted", [False, True])
def test_several_elements_side_by_side(columns, dtype, begin, warps, weighted):
    """Strips begin with the 16 bytes in which a row does, or with 4 beside weights; the last one may lie behind the tile."""
    block = max(1024, columns)
    stride = columns + 1 - columns % 2
    x, out = rows(columns, dtype, begin, stride), rows(0, dtype, begin, stride)
    x[:, :columns] /= 64
    w = np.linspace(0.5, 1.5, max(columns, 1)).astype(np.float32) if weighted else None
    args, kw = (x, w, out, columns, stride), {"BLOCK": block, "num_warps": warps, "odd_rows": False}
    for target in ("emulator", "evaluator"):
        out[:, :columns] = np.nan
        with tilejit.knobs(target=target):
            counted[(2,)](*args, **kw)
        v = x[:, :columns].astype(np.float64)
        want = v + v.sum(1, keepdims=True) + block + columns - 1
        np.testing.assert_allclose(out[:, :columns].astype(np.float64), want * w[:columns] if weighted else want,
                                   rtol=1e-5 if dtype == np.float32 else 2 ** -7)
        assert np.isnan(out[:, columns:].astype(np.float32)).all()
    text = counted.compile(*args, **kw).scheduled
    assert columns == 1 or "below=16" in text and ("below=4" in text) == (weighted and dtype != np.float32)
