"""Descriptors that kernels write on the device: of loaded pointers and computed sizes; and what goes wrong without fences."""
from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import tilejit
import tilejit.language as tl
from tilejit.emulator import Program, Sanitizer
from tilejit.errors import EmulatorError
from tilejit.ir import enclosing, walk
from tilejit.ir.text import parse_function
from tilejit.ptx.emit import emitters
from tilejit.runtime.emulated import emulated


@tilejit.kernel
def grouped(pa, pb, pc, heights, n, k, groups, programs, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    tile = tl.program_id(0)
    end = 0
    across = tl.cdiv(n, N)
    for g in range(groups):
        m = tl.load(heights + g)
        tiles = tl.cdiv(m, M) * across
        if tile < end + tiles:
            a = tl.make_tensor_descriptor(tl.load(pa + g).to(tl.pointer_type(tl.float16)), [m, k], [k, 1], [M, K])
            b = tl.make_tensor_descriptor(tl.load(pb + g).to(tl.pointer_type(tl.float16)), [n, k], [k, 1], [N, K])
            c = tl.make_tensor_descriptor(tl.load(pc + g).to(tl.pointer_type(tl.float16)), [m, n], [n, 1], [M, N])
            while tile < end + tiles:
                i, j = (tile - end) // across, (tile - end) % across
                total = tl.zeros((M, N), tl.float32)
                for at in range(0, k, K):
                    total = tl.dot(a.load([i * M, at]), b.load([j * N, at]).T, total)
                c.store([i * M, j * N], total.to(tl.float16))
                tile += programs
        end += tiles


def problems(heights=(70, 0, 130), n=64, k=96):
    rng = np.random.default_rng(0)
    a = [rng.normal(size=(max(m, 1), k)).astype(np.float16) for m in heights]
    b = [rng.normal(size=(n, k)).astype(np.float16) for _ in heights]
    c = [np.full((max(m, 1), n), 7, np.float16) for m in heights]
    places = [np.array([x.ctypes.data for x in arrays], np.int64) for arrays in (a, b, c)]
    return (a, b, c), (*places, np.array(heights, np.int32), n, k, len(heights), 1)


def check_grouped(arrays, heights):
    for a, b, c, m in zip(*arrays, heights):
        np.testing.assert_allclose(c[:m].astype(np.float32), (a @ b.T)[:m].astype(np.float32), rtol=2e-2, atol=1e-1)
        assert m or (c == 7).all()


@pytest.mark.one_schedule                # it explores itself
@pytest.mark.parametrize("options", [{}, {"num_warps": 8}, {"warp_specialize": False}])
def test_grouped_products_of_loaded_pointers(options):
    arrays, args = problems()
    tilejit.check(grouped, (1,), *args, M=64, N=64, K=32, policies=("random",), **options).check()
    with tilejit.knobs(target="emulator"):
        k = grouped[(1,)](*args, 64, 64, 32, **options)
    check_grouped(arrays, args[3])
    assert k.report().count("is written by the program") == 3 and "cp.async.bulk.tensor" in k.ptx


def drop(pattern):
    return lambda ptx: re.sub(pattern, "", ptx)


def one_box_high(ptx):
    return re.sub(r"tensormap.replace.tile.box_dim.global.b1024.b32 (\S+), 1, 64", r"tensormap.replace.tile.box_dim.global.b1024.b32 \1, 1, 300", ptx)


@pytest.mark.parametrize("change, kinds", [
    (lambda ptx: ptx, set()),
    (drop(r"fence.proxy.tensormap::generic.acquire[^;]*;"), {"map-fence", "stale-map"}),
    (drop(r"fence.proxy.tensormap::generic.release[^;]*;"), {"map-fence"}),
    (one_box_high, {"descriptor"})])
def test_fences_of_tensor_maps(change, kinds):
    """Each fence has a twin without it, which the emulator finds."""
    arrays, args = problems()                        # noqa: F841 (addresses in args point to them)
    made = emulated("test", grouped, (1,), args, {"M": 64, "N": 64, "K": 32})
    made.entry.program = Program(change(made.entry.compiled.ptx))
    found = {f.kind for f in made.entry.run(made.grid, made.flat, listener=Sanitizer()).findings}
    assert found <= kinds and bool(found) == bool(kinds)


def test_maps_are_written_when_copies_through_them_are_done(monkeypatch):
    """The producer runs ahead of its copies: it waits for them before it writes a descriptor again."""
    x = np.zeros((3, 64, 96), np.float16)
    args, constants = (x, x.copy(), x.copy(), 3, 64, 64, 96), {"M": 64, "N": 64, "K": 32, "PROGRAMS": 1}
    found = []
    for wait in (True, False):
        if not wait:
            monkeypatch.setitem(emitters(), "mbar_landed", lambda e, op: None)
        monkeypatch.setattr(batched, "entries", {})
        with tilejit.knobs(always_compile=True):
            made = emulated("test", batched, (1,), args, constants)
        runs = [made.entry.run(made.grid, made.flat, listener=Sanitizer(), policy="adversarial", seed=s) for s in range(3)]
        found.append({f.kind for r in runs for f in r.findings})
    assert found == [set(), {"map-in-use"}]


def test_places_are_given_back():
    """A kernel that kept its place would stop the launches after it, once all places are taken."""
    arrays, args = problems()                        # noqa: F841 (addresses in args point to them)
    made = emulated("test", grouped, (1,), args, {"M": 64, "N": 64, "K": 32})
    assert made.entry.compiled.ptx.index("tensor_maps_taken") < made.entry.compiled.ptx.index("tensor_maps[")
    taken = made.entry.program.decoded.variables[:1024].view(np.uint32)
    for _ in range(2):
        made.entry.run(made.grid, made.flat).check()
        assert not taken.any()
    taken[:] = 0xFFFFFFFF
    taken[3] = 0                                     # elsewhere all are taken
    made.entry.run(made.grid, made.flat).check()
    assert not taken[3] and (taken[[0, 1, 2, 4]] == 0xFFFFFFFF).all()


@tilejit.kernel
def shifted(x, y, offsets, rows, n, width: tl.constexpr, pitch, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
            PADDING: tl.constexpr):
    """Copies matrices that begin anywhere; twice, the second time added to the first."""
    for i in range(n):
        start = tl.load(offsets + i)
        height = tl.load(rows + i)
        a = tl.make_tensor_descriptor(x + start * pitch, [height, width], [pitch, 1], [ROWS, COLUMNS], PADDING)
        b = tl.make_tensor_descriptor(y + i * 3 * ROWS * pitch, [3 * ROWS, width], [pitch, 1], [ROWS, COLUMNS])
        for j in range(3):
            b.store([j * ROWS, 0], a.load([j * ROWS - 2, 0]))
        tl.debug_barrier()


TYPES = [np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.int32, np.int64]


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@settings(max_examples=10, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(data=st.data(), kind=st.sampled_from(TYPES), n=st.integers(2, 4), rows=st.sampled_from([4, 8]),
       columns=st.sampled_from([32, 64, 128]), options=st.sampled_from([{}, {"num_warps": 2}, {"num_warps": 8}]))
def test_computed_bases_and_sizes(target, data, kind, n, rows, columns, options):
    unit = 16 // np.dtype(kind).itemsize
    width = data.draw(st.sampled_from([columns, columns // 2, columns + unit, unit]))
    pitch = max(width, columns) // 16 * 16 + 16          # a signature tells multiples of 16
    heights = np.array(data.draw(st.lists(st.integers(0, 3 * rows), min_size=n, max_size=n)), np.int32)
    starts = np.array(data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)), np.int32)
    x = np.arange((3 * rows + 6) * pitch).reshape(-1, pitch).astype(np.int8).astype(kind)
    padding = "nan" if data.draw(st.booleans()) and not np.issubdtype(kind, np.integer) else "zero"
    y = np.zeros((n, 3 * rows, pitch), kind)
    with tilejit.knobs(target=target):
        k = shifted[(1,)](x, y, starts, heights, n, width, pitch, rows, columns, padding, **options)
    fill = np.array(float("nan") if padding == "nan" else 0).astype(kind)
    want = np.zeros_like(y)
    for i in range(n):
        whole = np.full((3 * rows + 2, width), fill, kind)
        whole[2:2 + heights[i]] = x[starts[i]:starts[i] + heights[i], :width]
        want[i, :, :min(width, columns)] = whole[:3 * rows, :min(width, columns)]
    np.testing.assert_array_equal(y.astype(np.float32), want.astype(np.float32))
    assert k.report().count("is written by the program") == 2


@tilejit.kernel
def batched(a, b, c, batches, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PROGRAMS: tl.constexpr):
    """A flat loop over tiles and blocks of K, whose descriptors change with the tile."""
    across, down, blocks = tl.cdiv(n, N), tl.cdiv(m, M), tl.cdiv(k, K)
    tile = tl.program_id(0) - PROGRAMS
    each = (batches * across * down - tl.program_id(0) + PROGRAMS - 1) // PROGRAMS
    at, i, j, z = -1, 0, 0, 0
    left = tl.make_tensor_descriptor(a + z * m * k, [m, k], [k, 1], [M, K])
    right = tl.make_tensor_descriptor(b + z * n * k, [n, k], [k, 1], [N, K])
    into = tl.make_tensor_descriptor(c + z * m * n, [m, n], [n, 1], [M, N])
    total = tl.zeros((M, N), tl.float32)
    for _ in range(each * blocks):
        at = tl.where(at == blocks - 1, 0, at + 1)
        if at == 0:
            tile += PROGRAMS
            z, i, j = tile // (across * down), tile // across % down, tile % across
            left = tl.make_tensor_descriptor(a + z * m * k, [m, k], [k, 1], [M, K])
            right = tl.make_tensor_descriptor(b + z * n * k, [n, k], [k, 1], [N, K])
            into = tl.make_tensor_descriptor(c + z * m * n, [m, n], [n, 1], [M, N])
        total = tl.dot(left.load([i * M, at * K]), right.load([j * N, at * K]).T, total)
        if at == blocks - 1:
            into.store([i * M, j * N], total.to(tl.float16))
            total = tl.zeros((M, N), tl.float32)


@pytest.mark.one_schedule                # it explores itself
@pytest.mark.parametrize("options", [{}, {"warp_specialize": False}, {"num_warps": 8}])
def test_descriptors_that_a_loop_carries_are_written_where_they_change(options):
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(3, n, 96)).astype(np.float16) for n in (80, 64))
    c = np.zeros((3, 80, 64), np.float16)
    args, constants = (a, b, c, 3, 80, 64, 96), {"M": 64, "N": 64, "K": 32, "PROGRAMS": 2}
    tilejit.check(batched, (2,), *args, **constants, policies=("adversarial",), **options).check()
    with tilejit.knobs(target="emulator"):
        k = batched[(2,)](*args, **constants, **options)
    want = a.astype(np.float32) @ b.astype(np.float32).transpose(0, 2, 1)
    np.testing.assert_allclose(c.astype(np.float32), want, rtol=2e-2, atol=1e-1)
    assert k.report().count("is written by the program") == 3
    for op in [op for op in walk(parse_function(k.ir).body) if op.name == "write_desc"]:
        assert not any(x.name == "for" and op.parent is x.regions[0] for x in enclosing(op))


@tilejit.kernel
def chosen(x, y, out, which, n, m, N: tl.constexpr):
    """Chosen by a branch, kept by another, swapped: whatever loops do to descriptors."""
    total = tl.zeros((4, N), tl.float32)
    one = tl.make_tensor_descriptor(x, [4, N], [N, 1], [4, N])
    two = tl.make_tensor_descriptor(y, [4, N], [N, 1], [4, N])
    for i in range(n):
        w = tl.load(which + i)
        if w == 0:
            one = tl.make_tensor_descriptor(x + i * 4 * N, [4, N], [N, 1], [4, N])
        elif w == 1:
            two = tl.make_tensor_descriptor(y + i * 4 * N, [i % 4 + 1, N], [N, 1], [4, N])
        elif w == 2:
            one, two = two, one
        for j in range(m):
            total += one.load([j, 0]) - 2 * two.load([0, 0])
    tl.store(out + tl.arange(0, 4)[:, None] * N + tl.arange(0, N)[None, :], total)


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@settings(max_examples=8, deadline=None)
@given(which=st.lists(st.integers(0, 3), min_size=2, max_size=7), m=st.integers(2, 3))
def test_descriptors_in_loops_and_branches(target, which, m):
    n, width = len(which), 32
    rng = np.random.default_rng(0)
    x, y = (rng.integers(0, 9, (n, 4, width)).astype(np.float32) for _ in range(2))
    out = np.zeros((4, width), np.float32)
    with tilejit.knobs(target=target):
        chosen[(1,)](x, y, out, np.array(which, np.int32), n, m, width)
    want, one, two = np.zeros_like(out), x[0], y[0]
    for i, w in enumerate(which):
        if w == 0:
            one = x[i]
        elif w == 1:
            two = np.where(np.arange(4)[:, None] < i % 4 + 1, y[i], 0)
        elif w == 2:
            one, two = two, one
        for j in range(m):
            want += np.concatenate([one[j:], np.zeros((j, width))]) - 2 * two
    np.testing.assert_array_equal(out, want)


@tilejit.kernel
def combined(x, pointers, rows, KIND: tl.constexpr, N: tl.constexpr):
    """Atomics that pointers have not."""
    i = tl.program_id(0)
    y = tl.load(pointers + i % 2).to(tl.pointer_type(x.dtype.element_ty))
    d = tl.make_tensor_descriptor(y, [2, tl.load(rows), N], [4 * N, N, 1], [2, 4, N])
    part = tl.load(x + i * 8 * N + tl.arange(0, 8 * N)).reshape(2, 4, N)
    if KIND == "min":
        d.atomic_min([0, i // 2, 0], part)
    else:
        d.atomic_max([0, i // 2, 0], part)


@pytest.mark.parametrize("kind, dtype", [("min", np.float16), ("max", ml_dtypes.bfloat16)])
def test_atomics_that_only_tma_has(kind, dtype):
    n, rows = 32, 3
    rng = np.random.default_rng(0)
    x = rng.integers(-99, 99, (4, 2, 4, n)).astype(dtype)
    y = rng.integers(-99, 99, (2, 2, 4, n)).astype(dtype)
    want = y.astype(np.float32)
    for i in range(4):
        into = want[i % 2][:, i // 2:rows]
        into[:] = getattr(np, f"{kind}imum")(into, x[i][:, :rows - i // 2].astype(np.float32))
    places = np.array([y[0].ctypes.data, y[1].ctypes.data], np.int64)
    with tilejit.knobs(target="emulator"):
        k = combined[(4,)](x, places, np.array([rows], np.int32), kind, n)
    np.testing.assert_array_equal(y.astype(np.float32), want)
    assert "is written by the program" in k.report()


@tilejit.kernel
def misplaced(pointers, out, N: tl.constexpr):
    d = tl.make_tensor_descriptor(tl.load(pointers).to(tl.pointer_type(tl.float32)), [8, N], [N, 1], [1, N])
    for i in range(8):
        tl.store(out + i * N + tl.arange(0, N), d.load([i, 0]).reshape([N]))


def test_loaded_addresses_that_do_not_fit_stop_the_program():
    x, out = np.arange(33 * 8 + 4, dtype=np.float32), np.zeros((8, 32), np.float32)
    first = -x.ctypes.data // 4 % 4
    with tilejit.knobs(target="emulator"):
        misplaced[(1,)](np.array([x.ctypes.data + 4 * first], np.int64), out, 32)
        np.testing.assert_array_equal(out.ravel(), x[first:first + 256])
        with pytest.raises(EmulatorError, match="trap"):
            misplaced[(1,)](np.array([x.ctypes.data + 4 * first + 4], np.int64), out, 32)
