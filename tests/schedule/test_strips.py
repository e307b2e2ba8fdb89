"""Wide rows in strips: the text, and the same numbers as without."""
import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit import passes
from tilejit.frontend import Const, KernelSource, Param, build
from tilejit.ir import walk
from tilejit.ir.types import Ptr, fp16, int32
from tilejit.schedule import run as schedule


@tilejit.kernel
def norm(x, residual, weight, out, columns, stride, BLOCK: tl.constexpr, MEAN: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < columns
    v = tl.load(x + row * stride + cols, mask, other=0.0).to(tl.float32)
    if residual is not None:
        v += tl.load(residual + row * stride + cols, mask, other=0.0).to(tl.float32)
    if MEAN:
        v = tl.where(mask, v - tl.sum(v, 0) / columns, 0.0)
    y = v * tl.rsqrt(tl.sum(v * v, 0) / columns + 1e-5)
    y *= tl.load(weight + cols, mask, other=0.0).to(tl.float32)
    tl.store(out + row * stride + cols, y.to(out.dtype.element_ty), mask)


@tilejit.kernel
def softmax(x, out, columns, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < columns
    v = tl.load(x + row * stride + cols, mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(out + row * stride + cols, (e / tl.sum(e, 0)).to(out.dtype.element_ty), mask)


@tilejit.kernel
def whole(x, out, stride, BLOCK: tl.constexpr):
    at = tl.program_id(0) * stride + tl.arange(0, BLOCK)
    v = tl.load(x + at).to(tl.float32)
    tl.store(out + at, (v * tl.sum(v, 0)).to(out.dtype.element_ty))


@tilejit.kernel
def ends(x, out, columns, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + cols, cols < columns, other=0.0).to(tl.float32)
    low, high = tl.min(v, 0), tl.max(v, 0)
    tl.store(out + row * stride + cols, ((v - low) / (high - low)).to(out.dtype.element_ty), cols < columns)


def normed(x, residual, weight, mean):
    v = x.astype(np.float64) + (0 if residual is None else residual.astype(np.float64))
    if mean:
        v -= v.mean(1, keepdims=True)
    return v / np.sqrt((v * v).mean(1, keepdims=True) + 1e-5) * weight.astype(np.float64)


def close(out, want, dtype):
    np.testing.assert_allclose(out.astype(np.float64), want, rtol=0 if dtype == np.float32 else 2 ** -7,
                               atol=2e-5 if dtype == np.float32 else 4e-3)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("columns", [2048, 2000])
@pytest.mark.parametrize("mean, more", [(True, False), (False, True)])
def test_norms(columns, dtype, mean, more):
    rng = np.random.default_rng(columns)
    x, r = (rng.standard_normal((2, columns)).astype(dtype) for _ in "xr")
    w, residual = rng.standard_normal(columns).astype(dtype), r if more else None
    out = np.full((2, columns), np.nan, dtype)
    with tilejit.knobs(target="emulator"):
        norm[(2,)](x, residual, w, out, columns, columns, BLOCK=2048, MEAN=mean, num_warps=1)
    close(out, normed(x, residual, w, mean), dtype)
    k = norm.compile(x, residual, w, out, columns, columns, BLOCK=2048, MEAN=mean, num_warps=1)
    assert k.report().count("stays in shared memory") == 1 + more - more       # one row leads, others come with it


@pytest.mark.parametrize("columns", [2048, 1984])
def test_softmax_under_every_schedule(columns):
    """Elements outside of the row are what `other` says, and the slot is given back behind the last strip."""
    x = np.random.default_rng(1).standard_normal((2, columns)).astype(np.float16)
    out = np.empty_like(x)
    with tilejit.knobs(target="emulator"):
        tilejit.check(softmax, (2,), x, out, columns, columns, BLOCK=2048, num_warps=2, seeds=[0]).check()
    v = np.exp(x.astype(np.float64) - x.astype(np.float64).max(1, keepdims=True))
    close(out, v / v.sum(1, keepdims=True), np.float16)


def test_text():
    """A loop for each pass over the strips before the one in which the row ends; what is left out is folded in."""
    x = np.zeros((1, 4096), np.float16)
    k = softmax.compile(x, x.copy(), 4096, 4096, BLOCK=4096, num_warps=4)
    text = str(k.scheduled)
    assert text.count("local_load") == 3 * (2 + 1 + 1) and "fp32[4096" not in text and text.count(" for ") == 3 * 2
    assert text.count("= strip") == 12 and text.count("{fill=-inf}") == 3 and text.count("= select") == 2
    loop = text[text.rindex(" for "):text.index("yield   //", text.rindex(" for "))]
    assert "store" in loop and "cmp" not in loop and text.count("  store") == 4
    assert "mbar_arrive" not in text
    assert "4 strips of 1024, read by each of 3 passes" in k.report()


@tilejit.kernel
def shifted(x, out, columns, other, BLOCK: tl.constexpr, FOLD: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    mask = cols < columns
    v = tl.load(x + cols, mask, other=0.0).to(tl.float32)
    if FOLD == "sum":                          # elements behind the end count, each with the same number
        s = tl.sum(v + other, 0)
    elif FOLD == "max":
        s = tl.max(v + other, 0)
    elif FOLD == "product":
        s = tl.reduce(tl.where(mask, v, other), 0, lambda a, b: a * b)
    else:                                      # each with another number
        s = tl.sum(tl.where(mask, v, cols), 0)
    tl.store(out + cols, (v + s).to(out.dtype.element_ty), mask)


@pytest.mark.parametrize("ctas", [1, 2])
@pytest.mark.parametrize("columns", [16, 1024, 1040, 3072, 4096])
@pytest.mark.parametrize("fold", ["sum", "max", "where"])
def test_what_lies_behind_the_end_counts(fold, columns, ctas):
    x = np.random.default_rng(columns).integers(-8, 8, columns).astype(np.float32)
    out = np.full_like(x, np.nan)
    behind = np.full(4096 - columns, 3.0) if fold != "where" else np.arange(columns, 4096)
    total = {"sum": (x + 3).sum() + behind.sum(), "max": max([*(x + 3), *behind]), "where": x.sum() + behind.sum()}[fold]
    args = x, out, columns, 3.0
    with tilejit.knobs(target="emulator"):
        shifted[(1,)](*args, BLOCK=4096, FOLD=fold, num_warps=1, num_ctas=ctas)
    np.testing.assert_allclose(out, x + total, rtol=1e-6)
    text = str(shifted.compile(*args, BLOCK=4096, FOLD=fold, num_warps=1, num_ctas=ctas).scheduled)
    assert "= strip" in text and ('pred="gt"' in text) == (fold != "where")


@pytest.mark.parametrize("ctas, columns", [(2, 4096), (4, 4000), (4, 1040), (8, 8192)])
@pytest.mark.parametrize("name", ["softmax", "norm"])
def test_rows_of_clusters(name, ctas, columns):
    """CTAs take strips of a row in turn; nothing of it passes through another one but what is folded."""
    x, r = (np.random.default_rng(s).standard_normal((2, columns)).astype(ml_dtypes.bfloat16) for s in (1, 2))
    w, out = r[0].astype(np.float32), np.full_like(x, np.nan)
    block = max(4096, columns)
    kw = {"BLOCK": block, "num_warps": 1, "num_ctas": ctas}
    with tilejit.knobs(target="emulator"):
        if name == "softmax":
            tilejit.check(softmax, (2,), x, out, columns, columns, seeds=[0], **kw).check()
            v = np.exp(x.astype(np.float64) - x.astype(np.float64).max(1, keepdims=True))
            want, k = v / v.sum(1, keepdims=True), softmax.compile(x, out, columns, columns, **kw)
        else:
            args = x, r, w, out, columns, columns
            tilejit.check(norm, (2,), *args, seeds=[0], **kw, MEAN=True).check()
            want, k = normed(x, r, w, True), norm.compile(*args, **kw, MEAN=True)
    close(out, want, ml_dtypes.bfloat16)
    text = str(k.scheduled)
    assert f"ctas={ctas}}}" in text and "convert" not in text and "= strip" in text
    assert f"buffer<1xbf16[{block // ctas}]" in text
    waits, copy, sends = (k.ptx.index(x) for x in ("barrier.cluster.wait", "cp.async.bulk", "st.async"))
    assert copy < waits < sends and k.ptx.count("barrier.cluster.wait") == 1


def test_reductions_that_do_not_need_one_another_share_a_pass():
    x = np.random.default_rng(2).standard_normal((1, 2048)).astype(np.float32)
    out = np.empty_like(x)
    with tilejit.knobs(target="emulator"):
        ends[(1,)](x, out, 2048, 2048, BLOCK=2048, num_warps=2)
    close(out, (x - x.min()) / (x.max() - x.min()), np.float32)
    k = ends.compile(x, out, 2048, 2048, BLOCK=2048, num_warps=2)
    assert "read by each of 2 passes" in k.report() and str(k.scheduled).count("= reduce") == 1
    assert k.ptx.count("bar.sync") + k.ptx.count("barrier.sync") <= 3          # they meet once for both


def test_narrow_rows_stay_in_registers():
    x = np.zeros((1, 4096), np.float16)
    for k in (softmax.compile(x, x.copy(), 2048, 4096, BLOCK=2048, num_warps=4),
              whole.compile(x, x.copy(), 4096, BLOCK=4096, num_warps=8)):
        assert "strips of" not in k.report() and "row_load" not in k.ir.__str__()


def test_fewer_warps_where_they_meet_twice_or_a_row_may_end_early():
    """Rows of 16 elements a thread that are summed, and again with what that has found, are kept by half the warps; and
    those that a mask ends, of which they leave out what is empty."""
    x, w = np.zeros((1, 4096), np.float16), np.zeros(4096, np.float16)
    for k in (softmax.compile(x, x.copy(), 4096, 4096, BLOCK=4096, num_warps=8),
              norm.compile(x, None, w, x.copy(), 4096, 4096, BLOCK=4096, num_warps=8, MEAN=False),
              norm.compile(x, None, w, x.copy(), 4096, 4096, BLOCK=4096, num_warps=8, MEAN=True)):
        assert k.options["num_warps"] == 4 and "4 warps, so that rows are copied as a whole" in k.report()


def test_bytes_in_flight_are_reported():
    """A program of 4096 bytes and a row of 65536: enough of each fit a multiprocessor, or the report says what to do."""
    x = np.zeros((1, 65536), np.float16)

    def flight(block, **kw):
        (line,) = (r for r in softmax.compile(x, x.copy(), block, block, BLOCK=block, **kw).report_lines
                   if r.kind == "in_flight")
        return line.numbers["total"], "memory idles" in line
    assert flight(2048, num_warps=4) == (16 * 4096, False) and flight(32768, num_warps=16) == (3 * 65536, False)
    assert flight(1024, num_warps=8) == (8 * 2048, True)
    assert flight(65536, num_warps=8, num_ctas=4) == (6 * 32768, False)


@tilejit.kernel
def two_rows(x, y, z, n, BLOCK: tl.constexpr):
    """A row less its scalar product with another."""
    i, row = tl.arange(0, BLOCK), tl.program_id(0) * n
    a = tl.load(x + row + i).to(tl.float32)
    b = tl.load(y + row + i).to(tl.float32)
    tl.store(z + row + i, a - b * tl.sum(a * b, axis=0))


def test_copies_of_two_rows_start_together():
    """Nothing waits for the first before the second is under way."""
    types = {"x": Param(Ptr(fp16), 16), "y": Param(Ptr(fp16), 16), "z": Param(Ptr(fp16), 16), "n": Param(int32, 16),
             "BLOCK": Const(8192)}
    names = []

    def see(name, fn):
        names.extend(op.name for op in walk(fn.body) if name == "asyncify" and op.name in ("fill", "await"))
        return fn

    schedule(passes.run(build(KernelSource(two_rows.fn), types, {"num_warps": 8})), see)
    assert names == ["fill", "fill", "await", "await"]


@tilejit.kernel
def walked(x, weight, out, n, columns, stride, BLOCK: tl.constexpr, SLOTS: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    mask = cols < columns
    w = tl.load(weight + cols, mask, other=0.0)
    for row in tl.range(tl.program_id(0), n, tl.num_programs(0), num_stages=SLOTS):
        v = tl.load(x + row * stride + cols, mask, other=0.0).to(tl.float32)
        v = tl.where(mask, v - tl.sum(v, 0) / columns, 0.0)
        y = v * tl.rsqrt(tl.sum(v * v, 0) / columns + 1e-5) * w.to(tl.float32)
        tl.store(out + row * stride + cols, y.to(out.dtype.element_ty), mask)


@pytest.mark.parametrize("ctas, slots", [(1, 2), (1, 3), (2, 3)])
def test_more_rows_than_slots(ctas, slots):
    """A slot is filled again behind the last pass over it, which gives it back: it was waited for before."""
    columns, n = 4000 * ctas, 2 * slots + 1
    x, out = np.random.default_rng(3).standard_normal((n, columns)).astype(ml_dtypes.bfloat16), np.zeros((n, columns), ml_dtypes.bfloat16)
    weight = np.random.default_rng(4).standard_normal(columns).astype(ml_dtypes.bfloat16)
    with tilejit.knobs(target="emulator"):
        options = dict(BLOCK=4096 * ctas, SLOTS=slots, num_warps=4, num_ctas=ctas)
        tilejit.check(walked, (1,), x, weight, out, n, columns, columns, seeds=[0], **options).check()
        assert "strips of" in walked[(1,)](x, weight, out, n, columns, columns, **options).report()
    close(out, normed(x, None, weight, True), ml_dtypes.bfloat16)
