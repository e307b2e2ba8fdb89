"""Operands whose lines TMA cannot read are copied first."""
import importlib
import re

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.kernels._calls import Work, known_of
from tilejit.kernels._operands import operand
from tilejit.kernels.copy import copy, made, pitched
from tilejit.kernels.product.copies import copy_kernel
from tilejit.kernels.product.kernel import product_kernel

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
    other = numbers((5, 300), np.float16, to_rows)
    work, pairs = Work(2), []
    for i, (array, rows_first) in enumerate(((x, to_rows), (other, from_rows))):
        matrix = operand("copy", "x", tilejit.array_info(array), i)
        pairs.append((matrix, made(work, pitched(matrix, rows_first))))
        assert max(pairs[-1][1].strides) * 2 % 128 == 0 and min(pairs[-1][1].strides) == 1
    work.launches.append(copy(*pairs))
    bases = [np.zeros(m.shape, np.float16) for m in work.memory]
    Work(4, work.launches).run(x, other, *bases)
    assert np.array_equal(bases[0][:, :150] if to_rows else bases[0][:, :37].T, x)
    assert np.array_equal(bases[1][:, :300] if from_rows else bases[1][:, :5].T, other)


@pytest.mark.parametrize("columns, at_once", [(4610, "b32"), (4612, "v2.b32"), (4611, "b16"), (10, "b32")])
def test_lines_are_copied_in_units_that_divide_them(columns, at_once):
    x = operand("copy", "x", tilejit.ArrayInfo(0, tilejit.language.bfloat16, (33, columns), (columns, 1), 0))
    launch = copy((x, made(Work(1), pitched(x, True))))
    first, (_, _, *rest), _ = launch.arguments
    with tilejit.knobs(target="emulator"):
        ptx = copy_kernel.compile(first, ("*bf16:16", "*bf16:16", *rest), None, **launch.kernel.given).ptx
    assert {found for found in re.findall(r"(?:ld|st)\.global\.(\S+)", ptx)} == {at_once}


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float32])
@pytest.mark.parametrize("orders", [(True, False), (True, True), (False, False), (False, True)])
def test_matmul_of_odd_lines(dtype, orders, monkeypatch):
    """All orders, odd lines, and an output that TMA cannot write: exact, through TMA."""
    monkeypatch.setattr(matmul, "PIECE", 99)
    monkeypatch.setattr(matmul, "brief", lambda problem, chip: False)
    monkeypatch.setattr(product_kernel, "entries", {})
    a, b = numbers((69, 51), dtype, orders[0]), numbers((51, 75), dtype, orders[1])
    before = a.copy(), b.copy()
    out = matmul.matmul(a, b)
    assert np.array_equal(out.astype(np.float32), a.astype(np.float32) @ b.astype(np.float32))
    assert np.array_equal(a, before[0]) and np.array_equal(b, before[1])
    (entry,) = product_kernel.entries.values()
    assert "TMA tiles, wgmma reads the slots" in entry.compiled.report()


@pytest.mark.parametrize("m, n, k", [(4, 200, 1501), (19, 21, 1379), (137, 26, 1519), (130, 1343, 641), (1, 77, 2049)])
def test_few_ragged_rows_are_copied_and_divided(m, n, k):
    """However few the rows are: no product walks a deep K element by element."""
    a, b = numbers((m, k), ml_dtypes.bfloat16, True), numbers((k, n), ml_dtypes.bfloat16, True)
    out = matmul.matmul(a, b)
    work = matmul._work(known_of(a, b, None, out), None, 132, None, None)
    assert work.launches[0].kernel.kernel is copy_kernel
    want = a.astype(np.float32) @ b.astype(np.float32)
    assert np.allclose(out.astype(np.float32), want, rtol=2 ** -8)


def test_sums_go_straight_to_a_ragged_result():
    """Operands that TMA reads, a deep K, and a result that it cannot write: nothing is copied."""
    a, b = numbers((160, 8192), np.float16, True), numbers((8192, 77), np.float16, False)
    work = matmul._work(known_of(a, b, None, np.zeros((160, 77), np.float16)), None, 132, None, None)
    assert copy_kernel not in [x.kernel.kernel for x in work.launches]
    assert np.array_equal(matmul.matmul(a, b), (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16))


@pytest.mark.parametrize("m, n, k", [(70, 100, 64), (1, 100, 64), (300, 260, 200), (40, 12, 2048)])
def test_nothing_is_written_beside_a_view(m, n, k):
    """TMA writes whole units of 16 bytes: rows that end within one, and go on as somebody else's, end through pointers."""
    a, b = numbers((m, k), np.float16, True), numbers((k, n), np.float16, True)
    wide = np.full((m, n + 28 & ~7), 7, np.float16)
    out = wide[:, :n]
    assert n * 2 % 16
    matmul.matmul(a, b, out=out)
    assert np.array_equal(out, (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)) and (wide[:, n:] == 7).all()


@pytest.mark.parametrize("target, m, n, k, piece, dtype, orders", [
    ("emulator", 24, 402, 1030, 4, np.float16, (True, True)), ("emulator", 70, 100, 516, 8, np.float16, (False, False)),
    ("emulator", 130, 36, 260, 8, ml_dtypes.float8_e4m3fn, (True, False)),
    *(("evaluator", *size, *how) for size in ((24, 402, 1030, 4), (3, 132, 2050, 8)) for how in (
        (np.float16, (True, True)), (np.float16, (False, True)), (np.float32, (True, False)),
        (ml_dtypes.float8_e4m3fn, (True, False))))])
def test_pieces(dtype, orders, m, n, k, piece, target):
    """Lines that begin at multiples of 4 or 8 bytes are copied in such pieces, straight into the blocks: with K and
    columns that end within a block, an operand that TMA reads beside, K divided."""
    unit = max(1, piece // np.dtype(dtype).itemsize)
    m, n, k = (-(-x // unit) * unit for x in (m, n, k))
    a, b = numbers((m, k), dtype, orders[0]), numbers((k, n), dtype, orders[1])
    out = np.full((m, n), np.nan, np.float32)
    call = matmul._call(known_of(a, b, None, out), None, 132, None, None)
    found = [r for r in matmul._routes(call) if any(r.call.problem.units)]
    with tilejit.knobs(target=target):
        for route in found[:2]:
            work = matmul.routed(Work(7), call, route)
            out.fill(np.nan)
            work.run(a, b, None, out, None, None, ())
            assert np.array_equal(out, a.astype(np.float32) @ b.astype(np.float32))
    assert found


@pytest.mark.parametrize("target", ["emulator", "evaluator"])
@pytest.mark.parametrize("m, n, k, dtype, orders", [
    (130, 71, 25, np.float16, (True, True)), (70, 33, 3, np.float16, (False, False)), (1, 49, 4, np.float16, (True, True)),
    (56, 200, 8, ml_dtypes.bfloat16, (True, True)), (150, 96, 16, ml_dtypes.float8_e4m3fn, (True, False)),
    (37, 29, 17, ml_dtypes.float8_e4m3fn, (True, False)), (64, 30, 20, np.float32, (True, False))])
def test_a_short_k_is_read_straight(m, n, k, dtype, orders, target):
    """Operands of one block of K: one launch, whatever their lines; exact by every route without copies."""
    a, b = numbers((m, k), dtype, orders[0]), numbers((k, n), dtype, orders[1])
    out = np.full((m, n), np.nan, np.float32)
    call = matmul._call(known_of(a, b, None, out), None, 132, None, None)
    found = [r for r in matmul._routes(call) if any(r.call.problem.units) and not any(r.copied)]
    with tilejit.knobs(target=target):
        for route in found:
            work = matmul.routed(Work(7), call, route)
            assert len(work.launches) == 1
            out.fill(np.nan)
            work.run(a, b, None, out, None, None, ())
            assert np.array_equal(out, a.astype(np.float32) @ b.astype(np.float32))
    assert found


def test_few_rows_of_large_lines_come_in_pieces():
    """Weights whose lines begin at multiples of 4 bytes, for few rows, are read once; autotuning tries copies too."""
    infos = [tilejit.ArrayInfo(0, tilejit.language.bfloat16, x, (x[1], 1), 0) for x in ((24, 8632), (8632, 4610), (24, 4610))]
    call = (*infos[:2], None, infos[2]), None, 132, None, None
    assert copy_kernel not in [x.kernel.kernel for x in matmul._work(*call).launches]
    plans = matmul._plans(*call)
    assert any(name.startswith("pieces of b") for name in plans) and any(name.startswith("b copied") for name in plans)


@pytest.mark.parametrize("m, n", [(3, 5), (70, 129), (64, 64)])
def test_nothing_to_sum(m, n):
    """K of 0: what follows the sums of zeros, whatever the strides of what has no elements."""
    a, b, bias = np.zeros((m, 0), np.float16), np.zeros((0, n), np.float16), np.arange(n, dtype=np.float32)
    assert np.array_equal(matmul.matmul(a, b, bias), np.tile(bias, (m, 1)).astype(np.float16))


@tilejit.kernel
def moved(x, y):
    m = tl.program_id(0) * 16
    y.store([m, 32], x.load([m, 32]))


@pytest.mark.parametrize("n, start, at_once", [(100, 0, "v2.b32"), (98, 0, "b32"), (99, 0, "b16"), (100, 1, "b16")])
def test_what_threads_move_at_once(n, start, at_once, monkeypatch):
    """Of descriptors without TMA: units of what lines begin and end at multiples of; nothing beside is written."""
    monkeypatch.setattr(moved, "entries", {})
    wide = np.arange(2 * 16 * (40 * n // 16 + 3), dtype=np.float16).reshape(2, -1)
    x, y = (row[(first := -row.ctypes.data % 16 // 2 + start):first + 40 * n].reshape(40, n) for row in wide)
    before, want = wide[1].copy(), y.copy()
    want[:, 32:96] = x[:, 32:96]
    with tilejit.knobs(target="emulator"):
        moved[(3,)](*(tilejit.TensorDescriptor.from_tensor(z, (16, 64)) for z in (x, y)))
    assert np.array_equal(y, want) and (wide[1] != before).sum() == (want[:, 32:96] != before[
        (first := -wide[1].ctypes.data % 16 // 2 + start):first + 40 * n].reshape(40, n)[:, 32:96]).sum()
    (entry,) = moved.entries.values()
    assert set(re.findall(r"(?:ld|st)\.global\.(\S+)", entry.compiled.ptx)) == {at_once}
