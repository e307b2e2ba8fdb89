"""Tiles of very many elements a thread: through a loop of chunks, with the same results, or a line that says why not."""
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.passes import chunks

RNG = np.random.default_rng(3)


@tilejit.kernel
def chain(x, y, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + at, mask=at < n, other=1.0)
    tl.store(y + at, tl.exp(-v) / (1 + v * v), mask=at < n)


@tilejit.kernel
def long(x, y, n, B: tl.constexpr, LENGTH: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + at, mask=at < n, other=1.0)
    for _ in tl.static_range(LENGTH):
        v = v * 0.5 + 1
    tl.store(y + at, v, mask=at < n)


@tilejit.kernel
def matrix(x, y, M: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    flat = tl.load(x + tl.arange(0, M * N))
    tl.store(y + at, tl.reshape(flat, (M, N)) * 2 + tl.arange(0, N)[None, :])


@tilejit.kernel
def in_place(x, y, B: tl.constexpr):
    at = tl.arange(0, B)
    for k in range(3):
        v = tl.load(x + at)
        tl.store(x + at, v * 3 + k)


@tilejit.kernel
def two_results(x, y, B: tl.constexpr):
    at = tl.arange(0, B)
    v = tl.load(x + at)
    tl.store(y + at, v + 1)
    tl.store(y + B + at, v - 1)


@tilejit.kernel
def shifted(x, y, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(x + at + 1, tl.load(x + at) + 1)


@tilejit.kernel
def whole(x, y, B: tl.constexpr):
    at = tl.arange(0, B)
    v = tl.load(x + at)
    tl.store(y + at, v - tl.sum(v, 0))


@tilejit.kernel
def normed(x, y, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    v = tl.load(x + at)
    v = v - tl.expand_dims(tl.max(v, AXIS), AXIS)
    tl.store(y + at, v / tl.expand_dims(tl.sum(v, AXIS), AXIS))


@tilejit.kernel
def places(x, y, M: tl.constexpr, N: tl.constexpr):
    v = tl.load(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    best, at = tl.max(v, 1, return_indices=True)
    tl.store(y + tl.arange(0, M), best + at)
    tl.store(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], tl.cumsum(v, 1) + best[:, None])


@tilejit.kernel
def lines(x, y, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    v = tl.cumsum(tl.load(x + at), AXIS)
    if AXIS == 1:
        v = tl.sort(tl.flip(v, 1))
    tl.store(y + at, v)


@tilejit.kernel
def transposed(x, y, N: tl.constexpr):
    rows, cols = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(y + rows * N + cols, tl.trans(tl.load(x + rows * N + cols)) + rows)


@tilejit.kernel
def summed_too(x, y, M: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    v = tl.exp(tl.load(x + at) * 0.25)
    total = tl.sum(v, 1)
    tl.store(y + at, v * total[:, None])
    tl.store(x, tl.max(total, 0))


@tilejit.kernel
def met(x, y, B: tl.constexpr):
    at = tl.arange(0, B)
    v = tl.load(x + at)
    tl.debug_barrier()
    tl.store(y + at, v)


@tilejit.kernel
def prefixes(x, y, B: tl.constexpr, REVERSE: tl.constexpr):
    at = tl.arange(0, B)
    v = tl.load(x + at)
    tl.store(y + at, tl.cumsum(v, 0, reverse=REVERSE) + tl.flip(v, 0))


@tilejit.kernel
def from_both_ends(x, y, B: tl.constexpr):
    v = tl.load(x + tl.arange(0, B))
    tl.store(y + tl.arange(0, B), tl.cumsum(v, 0) + tl.cumsum(v, 0, reverse=True))


@tilejit.kernel
def later(a, i, b, j):
    take = (b > a) | ((b == a) & (j < i))
    return tl.where(take, b, a), tl.where(take, j, i)


@tilejit.kernel
def running_places(x, y, B: tl.constexpr):
    at = tl.arange(0, B)
    best, where = tl.associative_scan((tl.flip(tl.load(x + at), 0), at), 0, later)
    tl.store(y + at, best * 1024 + where)


@tilejit.kernel
def affine(a, b, c, d):
    return c * a, c * b + d


@tilejit.kernel
def recurrence(x, y, B: tl.constexpr, REVERSE: tl.constexpr):
    at = tl.arange(0, B)
    v = tl.load(x + at).to(tl.int32)
    _, w = tl.associative_scan((v % 5, v), 0, affine, reverse=REVERSE)
    tl.store(y + at, (w & 0xFFFF).to(tl.float32))


@tilejit.kernel
def counted(x, y, B: tl.constexpr):
    v = tl.load(x + tl.arange(0, B)).to(tl.int32)
    tl.store(y + tl.arange(0, 16), tl.histogram(v, 16).to(tl.float32))


@tilejit.kernel
def joined(x, y, B: tl.constexpr):
    v = tl.load(x + tl.arange(0, B))
    tl.store(y + tl.arange(0, 2 * B), tl.reshape(tl.join(v, -v), (2 * B,)))


@tilejit.kernel
def added(x, y, B: tl.constexpr):
    tl.atomic_add(y + tl.arange(0, B), tl.load(x + tl.arange(0, B)) + 1)


@tilejit.kernel
def both_sides(x, y, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    v = tl.load(x + at)
    tl.store(y + at, tl.trans(v) + v)


@tilejit.kernel
def summed_by_loops(x, y, B: tl.constexpr):
    at, acc = tl.arange(0, B), tl.zeros((B,), tl.float32)
    for t in range(2):
        for k in range(3):
            acc = acc * 0.5 + tl.load(x + t * B + at) * k
    tl.store(y + at, acc)


@tilejit.kernel
def product(x, y, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, TRIPS: tl.constexpr):
    rows, cols, k = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :], tl.arange(0, K)
    acc = tl.zeros((M, N), tl.float32)
    for t in range(TRIPS):
        a = tl.load(x + rows * K * TRIPS + t * K + k[None, :])
        acc = tl.dot(a, tl.load(x + (t * K + k)[:, None] * N + cols), acc)
    acc = acc - tl.max(acc, 1)[:, None]
    tl.store(y + rows * N + cols, acc)


@tilejit.kernel
def blocks(x, y, M: tl.constexpr, N: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [M, N], [N, 1], [M, N])
    tl.make_tensor_descriptor(y, [M, N], [N, 1], [M, N]).store([0, 0], source.load([0, 0]) * 2)


def results(kernel, *args):
    """What a kernel makes of x and y in the evaluator and the emulator, and the report."""
    found = []
    for target in ("evaluator", "emulator"):
        x, y = RNG.integers(-8, 8, 2048).astype(np.float32), np.zeros(4096, np.float32)
        x[:] = np.arange(2048) % 13
        with tilejit.knobs(target=target):
            kernel[(1,)](x, y, *args, num_warps=1)
        found += [x, y]
    compiled = kernel.compile("*fp32", "*fp32", *("int32" if isinstance(a, np.integer) else a for a in args), num_warps=1)
    return found, compiled


@pytest.mark.parametrize(("kernel", "args", "count"), [
    (chain, (np.int32(1000), 1024), 8), (matrix, (16, 64), 8), (matrix, (1, 1024), 8), (in_place, (1024,), 8),
    (normed, (32, 32, 1), 8), (normed, (32, 32, 0), 8), (normed, (2, 512, 1), 2), (normed, (2, 512, 0), 8),
    (lines, (32, 32, 1), 8), (lines, (32, 32, 0), 8), (transposed, (32,), 8), (places, (32, 32), 0),
    (summed_too, (32, 32), 0),
    (prefixes, (1024, False), 8), (prefixes, (1024, True), 8), (from_both_ends, (1024,), 0), (running_places, (1024,), 8),
    (recurrence, (1024, False), 8), (recurrence, (1024, True), 8),
    (joined, (512,), 8), (added, (1024,), 8), (both_sides, (32,), 8), (summed_by_loops, (1024,), 8),
    (two_results, (1024,), 0), (shifted, (1024,), 0), (whole, (1024,), 0), (met, (1024,), 0)],
    ids=lambda x: getattr(x, "name", str(x)))
def test_chunks_compute_the_same(monkeypatch, kernel, args, count):
    before, _ = results(kernel, *args)
    monkeypatch.setattr(chunks, "MOST", 0)
    monkeypatch.setattr(chunks, "ELEMENTS", 4)
    monkeypatch.setenv("TILEJIT_CACHE", "0")
    fresh = tilejit.kernel(kernel.fn)
    after, compiled = results(fresh, *args)
    for was, now in zip(before, after):
        np.testing.assert_array_equal(was, now)
    assert (f"through a loop of {count} chunks" in compiled.report()) == bool(count), compiled.report()
    if not count:
        assert "as every element of a thread has its own: " in compiled.report()


@pytest.mark.parametrize(("kernel", "args", "count"), [(counted, (1024,), 8), (product, (64, 64, 16, 1), 4),
                                                       (product, (64, 64, 8, 2), 4)], ids=lambda x: getattr(x, "name", str(x)))
def test_what_adds_up_goes_through_chunks(monkeypatch, kernel, args, count):
    before, _ = results(kernel, *args)
    for name, value in {"REGISTERS": 16, "ELEMENTS": 4, "MOST_SUMS": 8, "SUMS": 32}.items():
        monkeypatch.setattr(chunks, name, value)
    monkeypatch.setenv("TILEJIT_CACHE", "0")
    after, compiled = results(tilejit.kernel(kernel.fn), *args)
    for was, now in zip(before, after):
        np.testing.assert_array_equal(was, now)
    assert f"through a loop of {count} chunks" in compiled.report()


@tilejit.kernel
def narrow_blocks(x, y, M: tl.constexpr, N: tl.constexpr):
    made = tl.make_tensor_descriptor(y, [N, M], [M, 1], [N, M])
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    made.store([0, 0], tl.trans(tl.sort(tl.load(x + at))))


def test_blocks_of_descriptors_keep_16_bytes(monkeypatch):
    """Rows of 8 numbers were cut into chunks of one, which no descriptor takes."""
    before, _ = results(narrow_blocks, 8, 256)
    for name, value in {"REGISTERS": 16, "ELEMENTS": 2}.items():
        monkeypatch.setattr(chunks, name, value)
    monkeypatch.setenv("TILEJIT_CACHE", "0")
    after, compiled = results(tilejit.kernel(narrow_blocks.fn), 8, 256)
    for was, now in zip(before, after):
        np.testing.assert_array_equal(was, now)
    assert "through a loop of 2 chunks" in compiled.report()


@tilejit.kernel
def two_loops(x, y, M: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    a = b = tl.load(x + at)
    for i in range(2):
        a += tl.max(tl.max(tl.load(x + i + at), 1), 0)
    for i in range(3):
        b -= tl.max(tl.max(tl.load(x + i + at), 1), 0)
    tl.store(y + at, a + b)


def test_loops_that_are_part_of_a_loop_of_chunks_are_left_alone(monkeypatch):
    """A loop's rows were put in chunks after the loop itself had become part of a loop of chunks: a KeyError."""
    before, _ = results(two_loops, 16, 32)
    for name, value in {"MOST": 0, "ELEMENTS": 2, "REGISTERS": 1, "SHARED": 32}.items():
        monkeypatch.setattr(chunks, name, value)
    monkeypatch.setenv("TILEJIT_CACHE", "0")
    after, _ = results(tilejit.kernel(two_loops.fn), 16, 32)
    for was, now in zip(before, after):
        np.testing.assert_array_equal(was, now)


@pytest.mark.parametrize(("kernel", "args", "dtype"), [
    (product, (256, 256, 256, 1), "fp32"), (product, (256, 256, 64, 2), "fp16"), (blocks, (256, 256), "fp32"),
    (prefixes, (65536, True), "fp32")], ids=lambda x: getattr(x, "name", str(x)))
def test_what_no_registers_and_no_shared_memory_hold(kernel, args, dtype):
    """256 x 256 fp32: products of them, sums in loops, blocks of descriptors were errors, or spilled tens of KB."""
    x, found = RNG.integers(-8, 8, 65536).astype("e" if dtype == "fp16" else "f"), []
    for target in ("evaluator", "emulator"):
        y = np.zeros(65536, np.float32)
        with tilejit.knobs(target=target):
            kernel[(1,)](x, y, *args)
        found.append(y)
    np.testing.assert_array_equal(*found)
    made = kernel.compile(f"*{dtype}:16", "*fp32:16", *args)
    assert made.ptx.count(";") < 3000 and "chunks" in made.report()
    assert made.resources is None or not made.resources.spill_stores


def test_large_tiles_do_not_explode():
    """2048 elements a thread: a few thousand instructions, and a line in the report; smaller tiles have no loop."""
    big = chain.compile("*fp32", "*fp32", "int32", 1 << 18, num_warps=4)
    assert big.ptx.count(";") < 20_000 and "chunks" in big.report()
    small = chain.compile("*fp32", "*fp32", "int32", 4096, num_warps=4)
    assert "chunks" not in small.report()


@pytest.mark.parametrize(("kernel", "args", "warps"), [
    (normed, (256, 256, 1), 4), (normed, (64, 1024, 1), 16), (lines, (256, 256, 0), 4), (lines, (256, 256, 1), 8),
    (transposed, (256,), 4)])
def test_what_takes_more_registers_than_there_are(kernel, args, warps):
    """256 x 256 fp32: rows normed by 4 warps spilled 4,820 bytes, others found no room in shared memory."""
    made = kernel.compile("*fp32", "*fp32", *args, num_warps=warps)
    assert f"through a loop of {512 // warps // 8} chunks" in made.report() and made.ptx.count(";") < 6000


@pytest.mark.parametrize("block", [1024, 65536])
def test_chains_may_be_longer_than_python_calls_are_deep(block):
    made = long.compile("*fp32:16", "*fp32:16", "int32", B=block, LENGTH=700)
    assert ("they go through a loop" in made.report()) == (block > 1024)


@tilejit.kernel
def picked(x, at, out, M: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    v = tl.load(x + i) * 2 + tl.arange(0, N)[None, :]
    tl.store(out + i, tl.gather(tl.flip(v, 1), tl.load(at + i), 1))


@tilejit.kernel
def picked_before(x, at, out, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    tl.store(x + i, v + 1)
    tl.store(out + i, tl.gather(v, tl.load(at + i), 0))


@tilejit.kernel
def counted_before(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    tl.store(x + i, tl.full((B,), 0, tl.int32))
    tl.store(out + tl.arange(0, 16), tl.histogram(v, 16))


@tilejit.kernel
def best(x, out, N: tl.constexpr, K: tl.constexpr):
    tl.store(out + tl.arange(0, K), tl.topk(tl.load(x + tl.arange(0, N)), K))


@tilejit.kernel
def row_sums(x, out, M: tl.constexpr, N: tl.constexpr):
    v = tl.load(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    total = tl.sum(v, 1)
    tl.store(out + tl.arange(0, M), total / tl.max(total, 0))


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize(("kernel", "sizes", "dtype"), [
    (picked, (4, 512), "f"), (picked, (64, 64), "i"), (picked_before, (512,), "f"), (counted_before, (1024,), "i")])
def test_what_is_gathered_and_counted_in_chunks(kernel, sizes, dtype, target, monkeypatch):
    """As of whole tiles, also where what was loaded has been stored over."""
    for name, value in {"REGISTERS": 2, "ELEMENTS": 2}.items():
        monkeypatch.setattr(chunks, name, value)
    monkeypatch.setenv("TILEJIT_CACHE", "0")
    n = int(np.prod(sizes))
    x, at = RNG.integers(0, 15, n).astype(dtype), RNG.integers(-n, n, n).astype(np.int64)
    out, last = np.zeros_like(x), sizes[-1]
    v = x.reshape(sizes) * 2 + np.arange(last) if kernel is picked else x.reshape(-1, last)
    want = np.take_along_axis(v[:, ::-1] if kernel is picked else v, at.reshape(v.shape) % last, 1).ravel()
    with tilejit.knobs(target=target):
        made = tilejit.kernel(kernel.fn)
        if kernel is counted_before:
            want, out = np.bincount(x, minlength=16), np.zeros(16, "i")
            made[(1,)](x, out, *sizes, num_warps=1)
        else:
            compiled = made[(1,)](x, at, out, *sizes, num_warps=1)
            assert ("computed again" in compiled.report()) == (kernel is picked)
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
def test_the_best_of_very_many(target):
    """They were an error (fp32) or tens of thousands of instructions."""
    x = RNG.permutation(65536).astype("f")
    out = np.zeros(16, "f")
    with tilejit.knobs(target=target):
        compiled = best[(1,)](x, out, 65536, 16, num_warps=8)
    np.testing.assert_array_equal(out, np.sort(x)[:-17:-1])
    assert "through a loop of 8 chunks" in compiled.report() and compiled.ptx.count(";") < 10_000


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
def test_few_numbers_of_each_row_are_kept(target, monkeypatch):
    for name, value in {"REGISTERS": 16, "ELEMENTS": 8}.items():
        monkeypatch.setattr(chunks, name, value)
    monkeypatch.setenv("TILEJIT_CACHE", "0")
    x, out = RNG.integers(1, 9, (32, 128)).astype("f"), np.zeros(32, "f")
    with tilejit.knobs(target=target):
        compiled = tilejit.kernel(row_sums.fn)[(1,)](x, out, 32, 128, num_warps=4)
    np.testing.assert_array_equal(out, x.sum(1) / x.sum(1).max())
    assert "chunks" in compiled.report()


@tilejit.kernel
def ordered(x, out, N: tl.constexpr, FALLING: tl.constexpr, BITONIC: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at) * 2
    if BITONIC:
        v = tl.bitonic_merge(v, descending=FALLING)
    else:
        v = tl.sort(v, descending=FALLING)
    tl.store(out + at, v + at)


@pytest.mark.remarks("stack", reason="chunks are kept in memory of the threads")
@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("bitonic", [False, True])
@pytest.mark.parametrize(("n", "dtype", "falling"), [(512, "f", False), (1024, "h", True), (256, "d", True), (2048, "B", False)])
def test_sorts_through_memory(n, dtype, falling, bitonic, target, monkeypatch):
    for name, value in {"REGISTERS": 4, "ELEMENTS": 4}.items():
        monkeypatch.setattr(chunks, name, value)
    monkeypatch.setenv("TILEJIT_CACHE", "0")
    x = RNG.integers(0, 100, n).astype(dtype)
    if bitonic:
        x = np.concatenate([np.sort(x[:n // 2]), np.sort(x[n // 2:])[::-1]])
    out, want = np.zeros_like(x), np.sort(x * 2)
    with tilejit.knobs(target=target):
        compiled = tilejit.kernel(ordered.fn)[(1,)](x, out, n, falling, bitonic, num_warps=1)
    np.testing.assert_array_equal(out, (want[::-1] if falling else want) + np.arange(n).astype(dtype))
    assert "in memory of the threads" in compiled.report() and ".local" in compiled.ptx


@pytest.mark.remarks("stack", reason="chunks are kept in memory of the threads")
def test_a_sort_of_very_many_does_not_explode():
    """139,264 instructions by 4 warps, if each element of a thread had its own."""
    x = RNG.permutation(65536).astype("f")
    out = np.zeros_like(x)
    with tilejit.knobs(target="emulator"):
        compiled = ordered[(1,)](x, out, 65536, False, False, num_warps=4)
    np.testing.assert_array_equal(out, 3 * np.arange(65536, dtype="f"))
    assert compiled.ptx.count(";") < 20_000 and "about 139264 instructions" in compiled.report()


@tilejit.kernel
def sorted_whole(x, out, N: tl.constexpr):
    v = tl.sort(tl.load(x + tl.arange(0, N)))
    tl.store(out + tl.arange(0, N), v - tl.sum(v))


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
def test_a_sorted_tile_that_is_needed_whole_stays_in_registers(target, monkeypatch):
    for name, value in {"REGISTERS": 4, "ELEMENTS": 4}.items():
        monkeypatch.setattr(chunks, name, value)
    monkeypatch.setenv("TILEJIT_CACHE", "0")
    x = RNG.integers(0, 100, 1024).astype("f")
    out = np.zeros_like(x)
    with tilejit.knobs(target=target):
        compiled = tilejit.kernel(sorted_whole.fn)[(1,)](x, out, 1024, num_warps=1)
    np.testing.assert_array_equal(out, np.sort(x) - x.sum())
    assert ".local" not in compiled.ptx and "sort at" in compiled.report() and "in memory of" not in compiled.report()
