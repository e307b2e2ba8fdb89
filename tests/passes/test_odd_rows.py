"""Rows that may begin and end anywhere, in registers: values beside float64, what surrounds them, and what is left alone."""
import sys

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.passes import odd_walks
from tilejit.passes.odd_rows import ANYWHERE, form, left, span
from tilejit.runtime.launch import of_length

BF16 = ml_dtypes.bfloat16


@tilejit.kernel
def softmax(x, out, columns, stride, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + cols, cols < columns, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(out + row * stride + cols, (e / tl.sum(e, 0)).to(out.dtype.element_ty), cols < columns)


@tilejit.kernel
def norm(x, more, weight, bias, out, columns, stride, pitch, BLOCK: tl.constexpr):
    """Layernorm of a sum of two rows, stored with a pitch of its own."""
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    inside = cols < columns
    w = tl.load(weight + cols, mask=inside, other=1.0).to(tl.float32)
    v = tl.load(x + row * stride + cols, inside, other=0.0).to(tl.float32)
    v += tl.load(more + row * pitch + cols, inside, other=0.0).to(tl.float32)
    v = tl.where(inside, v - tl.sum(v, 0) / columns, 0.0)
    y = v * tl.rsqrt(tl.sum(v * v, 0) / columns + 1e-5) * w + tl.load(bias + cols, inside).to(tl.float32)
    tl.store(out + row * pitch + cols, y.to(out.dtype.element_ty), inside)


def rows(columns, dtype, begin, stride, seed=0):
    """Three rows of a buffer, from an element on; what is around them is NaN."""
    buffer = np.full(3 * stride + 32, np.nan, dtype)
    at = buffer[begin:begin + 3 * stride].reshape(3, stride)
    at[:, :columns] = np.random.default_rng(seed).standard_normal((3, columns)).astype(dtype)
    return at


def run(kernel, *args, **kw):
    """Launch and check under the sanitizer; gives the kernel that was launched."""
    with tilejit.knobs(target="emulator"):
        tilejit.check(kernel, (3,), *args, seeds=[0], **kw).check()
        made = kernel[(3,)](*args, **kw)
    n = dict(zip(kernel.names, args))["columns"]
    between = made.metadata.spanned and span(n, *made.metadata.spanned[1:])
    return of_length(made, between) if between else made


def close(found, wanted, dtype):
    error = (np.abs(found.astype(np.float64) - wanted) / np.maximum(np.abs(wanted), 1)).max()
    assert error <= {2: 1e-2, 4: 1e-5}[np.dtype(dtype).itemsize], error


@pytest.mark.parametrize("columns, dtype, begin, gap", [
    (1001, BF16, 0, 0), (1001, np.float16, 3, 1), (1024, np.float16, 1, 1), (1017, BF16, 7, 0), (1018, BF16, 7, 0), (513, np.float16, 5, 2),
    (777, np.float32, 1, 0), (1021, np.float32, 3, 0), (1022, np.float32, 3, 3), (2049, BF16, 0, 0), (4097, np.float16, 1, 0),
    (5201, BF16, 3, 0)])
def test_one_row(columns, dtype, begin, gap):
    """Input and output begin alike: whole vectors, and nothing beside the row."""
    stride = columns + gap
    x, out = rows(columns, dtype, begin, stride), rows(0, dtype, begin, stride)
    made = run(softmax, x, out, columns, stride, BLOCK=tilejit.next_power_of_2(columns))
    e = np.exp(x[:, :columns].astype(np.float64) - x[:, :columns].astype(np.float64).max(1, keepdims=True))
    close(out[:, :columns] * columns, e / e.sum(1, keepdims=True) * columns, dtype)
    assert np.isnan(out[:, columns:].astype(np.float32)).all()
    assert "row_read" in str(made.ir) and "vectors in registers" in made.report() and "row_load" not in str(made.ir)
    assert "ld.global.v4.b32" in made.ptx and "st.global.v4.b32" in made.ptx
    assert made.metadata.num_ctas == 1 + (columns > 5113)


@pytest.mark.parametrize("columns, dtype, wide, begins", [
    (1001, BF16, np.float32, (0, 0, 0)), (1001, np.float16, np.float16, (1, 6, 3)), (515, np.float32, BF16, (2, 3, 1)),
    (1023, np.float32, np.float32, (1, 0, 2)), (2050, BF16, BF16, (5, 2, 0))])
def test_several_rows_and_weights(monkeypatch, columns, dtype, wide, begins):
    """What lies elsewhere between 16 bytes is shifted out of vectors; an output does so element by element. (So many are
    left to shared memory, or to single elements, where nobody measures.)"""
    monkeypatch.setattr(sys.modules["tilejit.passes.odd_rows"], "ANYWHERE", ((40, 40, 40),) * 4)
    stride, pitch = columns + 1, columns + 3
    x, more, out = (rows(c, dtype, b, s, i) for i, (c, b, s) in enumerate(
        zip((columns, columns, 0), begins, (stride, pitch, pitch))))
    weight = rows(columns, wide, begins[2], columns, 3)[0]
    bias = rows(columns, dtype, 0, columns, 4)[0]
    made = run(norm, x, more, weight, bias, out, columns, stride, pitch, BLOCK=tilejit.next_power_of_2(columns))
    v = x[:, :columns].astype(np.float64) + more[:, :columns].astype(np.float64)
    v -= v.mean(1, keepdims=True)
    y = v / np.sqrt((v * v).mean(1, keepdims=True) + 1e-5) * weight.astype(np.float64) + bias.astype(np.float64)
    close(out[:, :columns], y, dtype)
    assert np.isnan(out[:, columns:].astype(np.float32)).all() and "begins=true" in str(made.ir)


@tilejit.kernel
def weighted(x, weight, bias, out, columns, stride, BLOCK: tl.constexpr, WAY: tl.constexpr = ""):
    """Rmsnorm, or layernorm, of a row a program; WAY: rows whose addresses are no sum of the program's number."""
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    inside = cols < columns
    at = (row ^ 1 if WAY == "xor" else row) * stride + cols
    v = tl.load(x + at, inside, other=0.0).to(tl.float32)
    if bias is not None:
        v = tl.where(inside, v - tl.sum(v, 0) / columns, 0.0)
    y = v * tl.rsqrt(tl.sum(v * v, 0) / columns + 1e-5) * tl.load(weight + cols, inside).to(tl.float32)
    if bias is not None:
        y += tl.load(bias + cols, inside).to(tl.float32)
    tl.store(out + at, y.to(out.dtype.element_ty), inside)


def norms(columns, dtype, begin, gap, wide, at, biased, programs):
    """Launches it for so many programs; what is found beside float64, and the kernel."""
    stride, block = columns + gap, max(1024, tilejit.next_power_of_2(columns))
    size = programs * stride
    x, out = (np.full(size + 32, np.nan, dtype)[begin:begin + size].reshape(programs, stride) for _ in "xo")
    x[:, :columns] = np.random.default_rng(5).standard_normal((programs, columns)).astype(dtype)
    weight, bias = rows(columns, wide, at, columns, 3)[0], rows(columns, wide, 0, columns, 4)[0]
    args = x, weight, bias if biased else None, out, columns, stride
    with tilejit.knobs(target="emulator"):
        tilejit.check(weighted, (programs,), *args, BLOCK=block, seeds=[0]).check()
        made = weighted[(programs,)](*args, BLOCK=block)
    v = x[:, :columns].astype(np.float64)
    v -= v.mean(1, keepdims=True) if biased else 0
    y = v / np.sqrt((v * v).mean(1, keepdims=True) + 1e-5) * weight.astype(np.float64)
    close(out[:, :columns], y + bias.astype(np.float64) if biased else y, dtype)
    assert np.isnan(out[:, columns:].astype(np.float32)).all()
    return of_length(made, span(columns, *made.metadata.spanned[1:]))


@pytest.mark.parametrize("columns, begin, gap, wide, at, biased", [
    (1301, 0, 0, BF16, 0, True), (2553, 3, 2, BF16, 1, True), (2601, 1, 0, np.float32, 2, False),
    (5120, 0, 1, BF16, 7, True)])
def test_walks_over_rows_with_weights(monkeypatch, columns, begin, gap, wide, at, biased):
    """19 programs are the work of 8 CTAs: rows that begin alike, for which weights are shifted once. Several weights of
    many warps lie in shared memory."""
    monkeypatch.setattr(sys.modules["tilejit.passes.odd_rows"], "KEEP", 2)
    monkeypatch.setattr(odd_walks, "EVERY", 2)
    made = norms(columns, BF16, begin, gap, wide, at, biased, 19)
    assert made.metadata.walks == 8 and made.metadata.blocks((19, 1, 1))[0] == 8 * made.metadata.num_ctas
    assert "num_programs {axis=0, ctas=true}" in str(made.ir) and made.metadata.num_ctas == 1 + (columns == 5120)
    assert str(made.ir).count("= stack {") == 2 * biased == str(made.ir).count("= kept ")


def test_rows_that_programs_do_not_walk_over():
    """One warp's rows with a weight, 32-bit rows, and those whose programs' rows begin anywhere apart."""
    options = {"BLOCK": 4096}
    p = ("*bf16", "*bf16", None, "*bf16", "int32", "int32")
    made = weighted.compile(*p, **options)
    assert [of_length(made, span(n, *made.metadata.spanned[1:])).metadata.walks for n in (1001, 4001)] == [0, 8]
    assert span(2001, *made.metadata.spanned[1:]) is None
    for other in (weighted.compile(*p, WAY="xor", **options), weighted.compile("*fp32", "*fp32", None, "*fp32", *p[4:], **options)):
        assert not other.metadata.spanned or span(4001, *other.metadata.spanned[1:]) is None


@pytest.mark.parametrize("columns, dtype, gap", [(3208, BF16, 0), (4000, np.float32, 16), (6016, BF16, 16), (16, BF16, 0)])
def test_rows_of_vectors(columns, dtype, gap):
    """Wide rows that consist of vectors have as many of those as they are long, too."""
    stride, block = columns + gap, max(4096, tilejit.next_power_of_2(columns))
    x, out = np.full((3, stride), np.nan, dtype), np.full((3, stride), np.nan, dtype)
    x[:, :columns] = np.random.default_rng(6).standard_normal((3, columns)).astype(dtype)
    made = run(softmax, x, out, columns, stride, BLOCK=block)
    e = np.exp(x[:, :columns].astype(np.float64))
    close(out[:, :columns] * columns, e / e.sum(1, keepdims=True) * columns, dtype)
    assert np.isnan(out[:, columns:].astype(np.float32)).all() and "row_read" in str(made.ir) and "vectors=" in str(made.ir)
    assert made.metadata.num_ctas == 1 + (columns > 5120)


@pytest.mark.parametrize("columns", [1, 7, 9, 505, 519, 1024])
def test_few_elements(columns):
    """Rows shorter than a vector begin and end in one; those as wide as their tile may reach behind it."""
    stride = columns + 1
    x, out = rows(columns, np.float16, 6, stride), rows(0, np.float16, 6, stride)
    made = run(softmax, x, out, columns, stride, BLOCK=1024)
    e = np.exp(x[:, :columns].astype(np.float64))
    close(out[:, :columns], e / e.sum(1, keepdims=True), np.float16)
    assert np.isnan(out[:, columns:].astype(np.float32)).all() and "row_read" in str(made.ir)


def test_rows_that_are_not_numbers():
    """Infinities and NaN stay in their rows, as without the pass."""
    x = rows(1001, np.float16, 1, 1003)
    x[0, :1001], x[1, 4], x[2, 1000] = -np.inf, np.nan, np.inf
    found = []
    for odd_rows in (None, False):
        out = rows(0, np.float16, 1, 1003)
        run(softmax, x, out, 1001, 1003, BLOCK=1024, odd_rows=odd_rows)
        found.append(out.copy())
    assert np.array_equal(*np.isnan(found)) and np.isnan(found[0][:, :1001]).all()


def test_in_place():
    x = rows(1001, BF16, 3, 1001)
    before = x.astype(np.float64)
    run(softmax, x, x, 1001, 1001, BLOCK=1024)
    e = np.exp(before)
    e = np.exp(e / e.sum(1, keepdims=True))            # (checked, then launched)
    close(x, e / e.sum(1, keepdims=True), BF16)


def test_spans():
    """Every length has one span, whose lengths have one form; those that end in the last vectors are a span of their own.
    Lengths around one without a form have none."""
    for unit, ahead in ((4, 3), (8, 7), (8, 0)):
        for limits in ((40, 40, 40, 40), (40, -40, 40, 56), (-40, 40)):
            seen, most = {}, 8192
            for n in range(1, most + 1, unit - ahead):
                found = span(n, most, unit, ahead, limits)
                low, high = seen.setdefault(n, found or left(n, most, unit, ahead, limits))
                assert low <= n <= high and span(low, most, unit, ahead, limits) == found
                assert high > most or span(high, most, unit, ahead, limits) == found
                assert form(low, unit, ahead, limits) == form(n, unit, ahead, limits)
    assert form(1001, 8, 7, (40,)) == (1, 1024) and form(4097, 8, 7, (40,) * 3) == (4, 5120)
    assert span(1025, 1024, 8, 7, (40,) * 3) is None and span(1300, 2048, 8, 7, (40,)) is None
    assert span(20000, 32768, 8, 7, (40,) * 3) is None and left(1300, 2048, 8, 7, (40,)) == (1274, 1 << 62)


@tilejit.kernel
def counted(x, out, columns, stride, BLOCK: tl.constexpr, WAY: tl.constexpr):
    """Things that say where an element is, or how many are outside."""
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + cols, cols < columns, other=0.0).to(tl.float32)
    if WAY == "place":
        v = v * cols
    elif WAY == "number":
        v = v + tl.sum(v + 1.0, 0)
    elif WAY == "least":
        v = v - tl.max(v, 0)
    elif WAY == "other":
        v = v - tl.sum(tl.load(x + row * stride + 2 * cols, 2 * cols < columns, other=0.0).to(tl.float32), 0)
    elif WAY == "branch":
        if columns > 7:
            tl.store(out + row * stride + cols, v.to(out.dtype.element_ty), cols < columns)
    v = v - tl.sum(v, 0)
    tl.store(out + row * stride + cols, v.to(out.dtype.element_ty), cols < columns)


@pytest.mark.parametrize("way, moved", [("place", False), ("number", False), ("least", False), ("other", False), ("branch", False),
                                        ("", True)])
def test_what_stays(way, moved):
    """Values that depend on places, and reductions to which elements outside of the row add something."""
    made = counted.compile("*fp16", "*fp16", "int32", "int32", BLOCK=1024, WAY=way)
    assert (made.metadata.spanned == ("columns", 1024, 8, 7, ANYWHERE[0])) is moved
    assert counted.compile("*fp16", "*fp16", "int32", "int32", BLOCK=1024, WAY=way, odd_rows=False).metadata.spanned is None
    aligned = counted.compile("*fp16", "*fp16", "int32:16", "int32:16", BLOCK=1024, WAY=way)
    assert aligned.metadata.spanned is None


def test_lengths_are_compiled_for_as_they_come():
    """One kernel for lengths of one span; the evaluator knows none of it."""
    with tilejit.knobs(target="emulator"):
        for columns in (1001, 1003, 777, 601):
            x, out = rows(columns, np.float16, 1, columns), rows(0, np.float16, 1, columns)
            softmax[(3,)](x, out, columns, columns, BLOCK=1024)
            e = np.exp(x.astype(np.float64))
            close(out, e / e.sum(1, keepdims=True), np.float16)
    spans = {b for e in softmax.entries.values() for b, made in e.lengths.items() if made.entry is not None}
    assert {span(n, 1024, 8, 7, ANYWHERE[0]) for n in (1001, 777, 601)} <= spans


@pytest.mark.parametrize("columns, gap, biased, ctas", [(4096, 0, True, 1), (6000, 16, False, 2), (10240, 0, True, 2)])
def test_walks_over_rows_of_vectors(monkeypatch, columns, gap, biased, ctas):
    """Rows without ends of their own; at the widths that walk, the emulator would take minutes."""
    odd_rows = sys.modules["tilejit.passes.odd_rows"]
    for name, value in (("EVEN", (4096,) * 3), ("VECTOR_WALKS", {1: (40,) * 8, 2: (40,) * 8}), ("WALKERS", 2)):
        monkeypatch.setattr(odd_rows, name, value)
    made = norms(columns, BF16, 0, gap, BF16, 0, biased, 5)
    assert made.metadata.walks == 1 and made.metadata.num_ctas == ctas
    assert "ends" not in str(made.ir) and str(made.ir).count("= row_read") == 3 + biased


def test_what_walks_of_wide_rows():
    """Rows of 262144 elements that consist of vectors, with two weights 131072, too, and their weights, if those have 16 bits."""
    def walks(n, weight, biased):
        p = ("*bf16:16", weight, weight if biased else None, "*bf16:16", "int32:16", "int32:16")
        made = weighted.compile(*p, BLOCK=n)
        between = made.metadata.spanned and span(n, *made.metadata.spanned[1:])
        return of_length(made, between).metadata.walks if between else 0

    assert [walks(n, "*bf16:16", biased) for n in (65536, 131072, 262144) for biased in (False, True)] == [0, 0, 0, 1, 1, 1]
    assert not walks(262144, "*fp32:16", False)
