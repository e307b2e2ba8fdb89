"""How the result of a matrix product is divided between tiles and launches."""
from __future__ import annotations

import importlib
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tilejit
from tilejit import kernels
from tilejit.kernels.tiles import (
    LAUNCH,
    OF_SECTORS,
    ROUND_TRIP,
    STREAMED,
    TILES,
    Chip,
    Cost,
    divide_result,
    raggedness,
)
from tilejit.kernels.way import DEALT, Part, Way
from tilejit.schedule.consumers import TURN_REGISTERS
from tilejit.testing import rel_error

ROOMY = tuple(t for t in TILES if t.roomy(2))


def test_tiles_with_room():
    """A bias and an activation find registers in every tile but those with 192 sums a thread; where results are 32 bits
    wide, in those with 160 at most, or with 80 of three warpgroups."""
    assert {t.sums for t in TILES if t not in ROOMY} == {192}
    assert {(t.sums, t.warps == 12) for t in TILES if t in ROOMY and not t.roomy(4)} == {(176, False), (96, True), (88, True)}
    assert {t.sums for t in TILES if t.roomy(4) and not t.roomy(4, scaled=True)} == {160}
    assert all(t.roomy(2, scaled=True) == t.roomy(2) for t in TILES)


def test_wide_tiles_in_turn():
    """Two groups of consumers take tiles of four warps in turn, which is asked for where the compiler does not do so by
    itself; stores are hidden where there are more tiles."""
    wide = [t for t in TILES if "num_consumer_groups" in t.options]
    assert wide and DEALT == TURN_REGISTERS and all(t.in_turn and t.sums > TURN_REGISTERS and t.options["num_consumer_groups"] == 2 for t in wide)
    assert all(t in wide or t.sums <= TURN_REGISTERS for t in TILES if t.in_turn)
    chip, t = Chip(132, 64), wide[0]
    assert chip.store(t, False) - chip.store(t, True) == ROUND_TRIP and chip.store(TILES[0], True) == chip.store(TILES[0], False)
    activated = Chip(132, 64, activated=True)
    assert 0 < activated.store(t, True) - chip.store(t, True) < activated.store(t, False) - chip.store(t, False)


def test_what_is_walked_together_stays_in_l2():
    """2048 rows, 4096 where K is short, and where that is all of a matrix of 17 MiB or less; rounded up to tiles, of which
    there are at most 16 or 32."""
    assert {t.m: (t.group(8192, 64), t.group(8192, 16)) for t in TILES} == {
        256: (8, 16), 192: (11, 22), 128: (16, 32), 64: (16, 32)}
    t = Way(128, 192, 4)
    assert [t.group(m, blocks) for m, blocks in ((8192, 64), (8192, 32), (4096, 32), (4096, 33), (8192, 16), (512, 8))] == [
        16, 16, 32, 32, 32, 32]
    assert t.group(4096, 64) == 16
    assert all(t.n & -t.n >= 32 and t.ctas == 2 for t in TILES if t.columns), "strips of 16 columns for each of two CTAs"


@settings(max_examples=200, deadline=None)
@example(641, 2113, 39, 10, 0.0, TILES)                       # three rows of tiles of 192 rows, none of 128
@given(st.integers(1, 9000), st.integers(1, 9000), st.integers(1, 400), st.integers(1, 160),
       st.sampled_from([0.0, OF_SECTORS, 1.0]), st.sampled_from([TILES, ROOMY]))
def test_parts_cover_the_result(m, n, blocks, multiprocessors, ragged, tiles):
    """Every element belongs to one part; no part takes longer than one launch for all would."""
    parts = divide_result(m, n, blocks, multiprocessors, ragged, tiles)
    assert all(p.way.tile in tiles for p in parts)
    assert sum((p.m1 - p.m0) * (p.n1 - p.n0) for p in parts) == m * n
    assert all(0 <= p.m0 < p.m1 <= m and 0 <= p.n0 < p.n1 <= n for p in parts)
    for i, p in enumerate(parts):
        for q in parts[:i]:
            assert p.m0 >= q.m1 or q.m0 >= p.m1 or p.n0 >= q.n1 or q.n0 >= p.n1
        # Inner ends lie where no tile crosses them.
        assert (p.m1 == m or (p.m1 - p.m0) % p.way.m == 0) and (p.n1 == n or (p.n1 - p.n0) % p.way.n == 0)
    chip = Chip(multiprocessors, blocks, ragged)
    whole = chip.best(m, n, tiles)
    assert sum(chip.time(p) + LAUNCH for p in parts) <= chip.cycles(whole, m, n) + LAUNCH
    for p in parts:
        programs = p.way.room(multiprocessors)
        assert not p.way.stream or p.way.tile == STREAMED and programs < p.way.stream < 2 * programs


def test_raggedness():
    """Rows that begin with lines of L2 (128 bytes), with sectors (32), and elsewhere."""
    assert [raggedness(2 * n) for n in (4096, 64, 2000, 16, 5000, 4104)] == [0, 0, OF_SECTORS, OF_SECTORS, 1, 1]
    assert Chip(132, 64, OF_SECTORS).speed(TILES[0]) == pytest.approx(1 - 0.22 * OF_SECTORS)


def test_the_transpose_is_computed_where_that_is_less():
    """More tiles fit, or a ragged result would be stored in narrow strips; not where both are equal."""
    (part,) = divide_result(2049, 6152, 65, 132, 1.0, TILES, TILES, True)
    assert part.way.swap and (part.m1, part.n1) == (6152, 2049)
    assert not any(p.way.swap for p in divide_result(2049, 6152, 65, 132, 1.0, TILES, (), True))
    assert Chip(132, 65, 1.0, True).store(part.way, True) > Chip(132, 65, 1.0).store(part.way, True) > 0
    assert Chip(132, 65, 1.0, True).store(TILES[1], True) == Chip(132, 65, 1.0).store(TILES[1], True), "strips of whole lines"


@pytest.mark.parametrize("orders, turned, strip", [("NT", True, 16), ("NN", True, 16), ("TN", False, 64)])
def test_rows_of_columns_are_read_in_whole_lines(orders, turned, strip):
    """Of two row-major operands the transposes are multiplied, whose second operand has K contiguous; where none has,
    tiles have strips of 64 columns."""
    matmul, bf16 = importlib.import_module("tilejit.kernels.matmul"), tilejit.ir.types.bf16
    a, b, c = (tilejit.ArrayInfo(0, bf16, (5000, 5000), (5000, 1) if o == "N" else (1, 5000), 0) for o in orders + "N")
    for step in matmul._launches(a, b, None, c, None, 132):
        out, given = step.launch.descriptors[2], step.launch.kernel.given
        bm, bn = given["BM"], given["BN"]
        assert step.way.swap is turned and given["C_ROWS"] is not turned
        assert out.block_shape == ((bn, bm) if turned else (bm, bn))
        assert given["B_ROWS"] is (orders == "TN")
        t = next(t for t in TILES if (t.m, t.n, t.warps) == (bm, bn, given["num_warps"]))
        assert t.strip >= strip


def test_matmul_leaves_room_for_an_epilogue():
    """The widest tiles, whose CTAs divide columns, are for products without a bias and an activation."""
    matmul = importlib.import_module("tilejit.kernels.matmul")
    bf16 = tilejit.ir.types.bf16
    a, b, c, bias = (tilejit.ArrayInfo(0, bf16, *x, 0) for x in (((8192, 8192), (8192, 1)), ((8192, 28672), (1, 8192)),
                                                               ((8192, 28672), (28672, 1)), ((28672,), (1,))))
    for add, activation in ((None, None), (bias, None), (None, "relu"), (bias, "gelu")):
        for step in matmul._launches(a, b, add, c, activation, 132):
            given = step.launch.kernel.given
            t = next(t for t in TILES if given.items() >= {"BM": t.m, "BN": t.n, **t.options}.items())
            assert t.roomy(2) is not (add is None and activation is None)
            assert step.launch.descriptors[1].block_shape == (t.n, 64)


SMALL, TALL = (next(t for t in TILES if (t.m, t.n) == shape) for shape in ((64, 64), (64, 128)))


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("parts", [
    (Part(0, 0, 64, 128, TALL), Part(0, 128, 64, 200, SMALL), Part(64, 0, 100, 200, SMALL)),
    (Part(0, 0, 100, 128, Way(128, 32, 4, 2, programs=2, stream=3)), Part(0, 128, 100, 200, SMALL)),
    (Part(0, 0, 100, 192, Way(64, 96, 4, 2, "N")), Part(0, 192, 100, 200, SMALL))], ids=["strips", "streamed", "columns"])
def test_matmul_in_parts(target, monkeypatch, parts):
    """The launches of the parts make one result, the bias's columns included."""
    matmul = importlib.import_module("tilejit.kernels.matmul")
    monkeypatch.setattr(matmul, "divide_result", lambda *args: parts)
    monkeypatch.setattr(matmul, "handed_on", lambda *_: (False, 0.0))
    monkeypatch.setattr(tilejit, "multiprocessors", lambda *_: 4)
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((100, 96), (200, 96)))
    bias = rng.standard_normal(200).astype(np.float32)
    out = np.full((100, 200), np.nan, np.float32)
    with tilejit.knobs(target=target):
        kernels.matmul(a, b.T, bias=bias, out=out)
    np.testing.assert_allclose(out, a.astype(np.float32) @ b.T.astype(np.float32) + bias, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("k, size, tail", [(4112, 1, 32), (2000, 1, 96), (4104, 2, 16), (4096, 2, 0), (4095, 2, 0),
                                           (120, 1, 0), (5000, 2, 16)])
def test_what_is_left_of_k(k, size, tail):
    """In steps of 32 bytes, behind whole blocks; not of tiles in turn, nor for other chips."""
    module = importlib.import_module("tilejit.kernels.matmul")
    assert module._tail(k, size, TILES[0]) == tail
    assert not any(module._tail(k, size, t) for t in TILES if t.in_turn) and not module._tail(k, size, TILES[0], "relu")
    with tilejit.knobs(arch="sm_80"):
        assert module._tail(k, size, TILES[0]) == 0


@pytest.mark.parametrize("k", [136, 200, 248])
@pytest.mark.parametrize("part", [Part(0, 0, 100, 200, TILES[0]), Part(0, 0, 200, 100, replace(TILES[0], swap=True))])
def test_matmul_of_ragged_k(monkeypatch, part, k):
    """Both orders of tiles, K that ends in any quarter of a block."""
    matmul = importlib.import_module("tilejit.kernels.matmul")
    monkeypatch.setattr(matmul, "divide_result", lambda *args: (part,))
    monkeypatch.setattr(matmul, "handed_on", lambda *_: (False, 0.0))
    monkeypatch.setattr(tilejit, "multiprocessors", lambda *_: 1)
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((100, k), (200, k)))
    with tilejit.knobs(target="emulator"):
        out = matmul.matmul(a, b.T, out_dtype=tilejit.language.float32)
    assert rel_error(out, a.astype(np.float64) @ b.T.astype(np.float64)) <= 1e-6


def test_a_choice_is_quick(monkeypatch):
    """Ways that cannot be the best, whatever the strips beside them take, are not looked into: a thousandth of a second
    for a new shape, not thirty."""
    asked = []
    cycles = Cost.cycles
    monkeypatch.setattr(Cost, "cycles", lambda *args: asked.append(args) or cycles(*args))
    for m, n, k in ((5000, 5000, 5000), (3000, 7000, 2000), (4104, 8192, 4096), (7777, 3336, 5128), (2049, 6152, 4104)):
        asked.clear()
        divide_result.__wrapped__(m, n, -(-k // 64), 132, 1.0, TILES, TILES, True)
        assert len(TILES) < len(asked) < 4000, len(asked)
