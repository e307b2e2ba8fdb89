"""Rows that are walked block by block more than once: whole where nothing depends on the blocks, right in any case."""
import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl


@tilejit.kernel
def norm(x, out, columns, pitch, BLOCK: tl.constexpr):
    """As tutorials have it: a mean, a variance and the result, in three loops."""
    x += tl.program_id(0) * pitch
    out += tl.program_id(0) * pitch
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + at, mask=at < columns, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / columns
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.where(at < columns, tl.load(x + at, mask=at < columns, other=0.0).to(tl.float32) - mean, 0.0)
        squares += v * v
    scale = 1 / tl.sqrt(tl.sum(squares, axis=0) / columns + 1e-5)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(x + start + tl.arange(0, BLOCK), mask=at < columns).to(tl.float32)
        tl.store(out + at, ((v - mean) * scale).to(out.dtype.element_ty), mask=at < columns)


@tilejit.kernel
def greatest(x, out, columns, pitch, BLOCK: tl.constexpr):
    """x less its greatest element, which is 1 at least."""
    x += tl.program_id(0) * pitch
    top = tl.full([BLOCK], 1.0, tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        top = tl.maximum(top, tl.load(x + at, mask=at < columns, other=-float("inf")).to(tl.float32))
    m = tl.max(top, axis=0)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(x + at, mask=at < columns, other=0.0).to(tl.float32) - m
        tl.store(out + tl.program_id(0) * pitch + at, v.to(out.dtype.element_ty), mask=at < columns)


@tilejit.kernel
def odd_ways(x, out, columns, pitch, BLOCK: tl.constexpr, HOW: tl.constexpr):
    """x less its mean, in ways that blocks matter to."""
    x += tl.program_id(0) * pitch
    out += tl.program_id(0) * pitch
    total = tl.zeros([BLOCK], dtype=tl.float32)
    if HOW == "carried":
        last = 0.0
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(x + at, mask=at < columns, other=0.0).to(tl.float32)
        if HOW == "counted":
            v = tl.where(at < columns, v, v + 1.0)
        if HOW == "ends":
            v = tl.where(at >= columns, 0.0, v) + tl.abs(tl.where(columns > at, v, -0.0)) - tl.abs(v)
        if HOW == "blocks":
            v = v + start * 0.0
        if HOW == "carried":
            last += tl.sum(v, axis=0)
        if HOW == "fma":
            total = tl.fma(v, tl.full([BLOCK], 1.0, tl.float32), total)
        else:
            total += v
    mean = (last if HOW == "carried" else tl.sum(total, axis=0)) / columns
    if HOW == "counted":
        mean -= (tl.cdiv(columns, BLOCK) * BLOCK - columns) / columns
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(x + at, mask=at < columns, other=0.0).to(tl.float32) - mean
        if HOW == "in place":
            tl.store(x + at, v.to(x.dtype.element_ty), mask=at < columns)
        else:
            tl.store(out + at, v.to(out.dtype.element_ty), mask=at < columns)


def rows(columns, dtype):
    x = np.random.default_rng(columns).standard_normal((2, columns)).astype(dtype)
    return x, np.full((3, columns), np.nan, dtype)


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("columns, block, size, dtype", [
    (1000, 1024, 1024, np.float16), (257, 128, 512, np.float32), (4097, 1024, 8192, ml_dtypes.bfloat16),
    (64, 32, 64, np.float32)])
def test_normalised(columns, block, size, dtype, target):
    x, out = rows(columns, dtype)
    args, kw = (x, out, columns, columns, block), {"num_warps": 1 if block < 1024 else 4}
    with tilejit.knobs(target=target):
        norm[(2,)](*args, **kw)
    v = x.astype(np.float64)
    want = (v - v.mean(1, keepdims=True)) / np.sqrt(v.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(out[:2].astype(np.float64), want, atol=1e-5 if dtype is np.float32 else 2e-2)
    assert np.isnan(out[2].astype(np.float32)).all()
    made = norm.compile(*args, **kw)
    (line,) = [r for r in made.report_lines if r.kind == "whole_row"]
    assert line.numbers["size"] == size and line.numbers["loops"] == 3
    assert str(made.ir).count("= row_load") + str(made.ir).count("= load") == 1           # loops' loads are one
    assert " for " not in str(made.ir)


def test_the_sanitizer_finds_nothing():
    x, out = rows(4097, np.float16)
    with tilejit.knobs(target="emulator"):
        tilejit.check(norm, (2,), x, out, 4097, 4097, 1024, num_warps=4, seeds=[0]).check()


@pytest.mark.parametrize("shift", [0.0, -9.0])
def test_extrema_keep_what_they_start_from(shift):
    x, out = rows(300, np.float32)
    x += shift
    with tilejit.knobs(target="emulator"):
        greatest[(2,)](x, out, 300, 300, 128, num_warps=1)
    np.testing.assert_array_equal(out[:2], x - np.maximum(x.max(1, keepdims=True), np.float32(1)))
    assert "whole_row" in [r.kind for r in greatest.compile(x, out, 300, 300, 128).report_lines]


@pytest.mark.parametrize("how, why", [("in place", "may be written meanwhile"), ("counted", "behind the end count"),
                                      ("blocks", "the number of a block"), ("carried", "more than a sum"), ("fma", "rounds products")])
def test_blocks_that_matter_stay(how, why):
    x, out = rows(300, np.float32)
    want = x - x.astype(np.float64).mean(1, keepdims=True)
    with tilejit.knobs(target="emulator"):
        odd_ways[(2,)](x, out, 300, 300, 128, how, num_warps=1)
    np.testing.assert_allclose(x if how == "in place" else out[:2], want, atol=1e-5)
    (line,) = [r for r in odd_ways.compile(x, out, 300, 300, 128, how).report_lines if r.kind == "walked_row"]
    assert why in str(line)


def test_every_way_to_end_a_row():
    x, out = rows(300, np.float32)
    with tilejit.knobs(target="emulator"):
        made = odd_ways[(2,)](x, out, 300, 300, 128, "ends", num_warps=1)
    np.testing.assert_allclose(out[:2], x - x.astype(np.float64).mean(1, keepdims=True), atol=1e-5)
    assert "whole_row" in [r.kind for r in made.report_lines]


def test_rows_too_wide_to_keep_are_walked():
    for columns, kind in ((1 << 19, "whole_row"), (1 << 20, "walked_row")):
        made = norm.compile("*fp32", "*fp32", columns, columns, 4096, num_warps=8)
        assert kind in [r.kind for r in made.report_lines] and made.metadata.num_ctas == (16 if "whole" in kind else 1)
    made = norm.compile("*fp32", "*fp32", "int32:16", "int32:16", 4096)              # nothing is known of the width
    assert "row is read once" not in made.report()


@tilejit.kernel
def strided(x, out, columns, step, BLOCK: tl.constexpr):
    """The mean is taken from elements that lie apart."""
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + at * step, mask=at < columns, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / columns
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at * step, mask=at < columns).to(tl.float32) - mean, mask=at < columns)


def test_what_a_thread_has_no_registers_for():
    """64 elements of a thread at most where a row is not kept in shared memory: what lies apart, and older chips."""
    def kinds(kernel, columns, **kw):
        made = kernel.compile("*fp32", "*fp32", columns, 3 if kernel is strided else columns, 512, num_warps=4, **kw)
        assert made.resources is None or made.resources.spill_stores == 0
        return [r.kind for r in made.report_lines if r.kind in ("whole_row", "walked_row")]

    assert kinds(strided, 8192) == ["whole_row"] and kinds(strided, 8193) == ["walked_row"]
    assert kinds(norm, 8193) == ["whole_row"]
    assert kinds(norm, 8192, target="sm_80") == ["whole_row"] and kinds(norm, 8193, target="sm_80") == ["walked_row"]


@tilejit.kernel
def counted(x, out, count, columns, BLOCK: tl.constexpr):
    """As `norm`, and how many are not zero: clusters do not sort."""
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + at, mask=at < columns, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / columns
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(x + at, mask=at < columns, other=0.0).to(tl.float32)
        tl.store(out + at, v - mean, mask=at < columns)
    tl.store(count + tl.arange(0, 1024), tl.cumsum(tl.load(count + tl.arange(0, 1024)), 0))


def test_what_a_cluster_cannot_do_is_walked():
    made = counted.compile("*fp32", "*fp32", "*fp32", 100000, 1024, num_warps=4)
    assert made.metadata.num_ctas == 1 and "rows are not divided by" in made.report()
    assert made.resources is None or made.resources.spill_stores == 0
    assert "is read once" not in made.report()


def test_widths_are_told_apart_by_powers_of_two():
    """2^k-1 and 2^k are one compilation, 2^k+1 is another; equal keys have equal descriptions."""
    keys, ints = norm.keys["columns"], norm.keys["pitch"]
    assert keys[int](1001) == keys[int](1023) and keys[int](1023) != keys[int](1025)
    assert keys[int](1024) == keys[int](1008) and ints[int](1001) == ints[int](5001)
    assert keys[int]((1 << 20) + 1)[1] == 0
    numbers = [0, 1, 2, 3, 7, 8, 16, 1000, 1001, 1024, 1025, 2000, 1 << 20, (1 << 20) + 1, (1 << 20) + 16, -5]
    for x in numbers[:-1]:               # a launcher's comparison says what equal keys say
        guard = keys.guards[keys[int](x)]
        assert [bool(eval(guard.format(n=y))) for y in numbers] == [keys[int](x) == keys[int](y) for y in numbers]
    assert norm.source.walked == {"columns"} and "columns" in greatest.source.walked
