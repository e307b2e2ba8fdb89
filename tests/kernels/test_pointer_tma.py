"""Products through pointers that go by TMA: the usual pointer matmul, at sizes that divide and that do not, is the
product in the evaluator and the emulator, with and without descriptors, and for arguments that TMA does not take."""
import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl

TARGETS = ["evaluator", "emulator"]
RNG = np.random.default_rng(7)


@tilejit.kernel
def grouped_matmul(a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                   BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    """Tiles in groups of rows; indices beyond a matrix wrap around, K is masked."""
    pid = tl.program_id(axis=0)
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    width = GROUP * tiles_n
    first = pid // width * GROUP
    size = min(tiles_m - first, GROUP)
    pid_m = first + ((pid % width) % size)
    pid_n = (pid % width) // size
    rows = (pid_m * BM + tl.arange(0, BM)) % M
    columns = (pid_n * BN + tl.arange(0, BN)) % N
    ks = tl.arange(0, BK)
    pa = a + (rows[:, None] * stride_am + ks[None, :] * stride_ak)
    pb = b + (ks[:, None] * stride_bk + columns[None, :] * stride_bn)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        x = tl.load(pa, mask=ks[None, :] < K - k * BK, other=0.0)
        y = tl.load(pb, mask=ks[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(x, y, acc)
        pa += BK * stride_ak
        pb += BK * stride_bk
    rows = pid_m * BM + tl.arange(0, BM)
    columns = pid_n * BN + tl.arange(0, BN)
    at = c + stride_cm * rows[:, None] + stride_cn * columns[None, :]
    tl.store(at, acc.to(c.dtype.element_ty), mask=(rows[:, None] < M) & (columns[None, :] < N))


@tilejit.kernel
def plain_matmul(a, b, c, M, N, K, sam, sak, sbk, sbn, scm, scn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Masks on both dimensions, addresses computed anew in every iteration, rows by the second program id."""
    rows = tl.program_id(1) * BM + tl.arange(0, BM)
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        ks = k + tl.arange(0, BK)
        x = tl.load(a + rows[:, None] * sam + ks[None, :] * sak, (rows < M)[:, None] & (ks < K)[None, :], 0.0)
        y = tl.load(b + ks[:, None] * sbk + columns[None, :] * sbn, (ks[:, None] < K) & (columns[None, :] <= N - 1), 0.0)
        acc += tl.dot(x, y)
    tl.store(c + rows[:, None] * scm + columns[None, :] * scn, acc.to(c.dtype.element_ty),
             (rows < M)[:, None] & (columns < N)[None, :])


def matrix(m, n, dtype, turned=False, pad=0):
    """A matrix of small integers, its rows (columns, if turned) `pad` elements apart."""
    x = RNG.integers(-3, 4, (n, m + pad) if turned else (m, n + pad)).astype(dtype)
    return x.T[:m] if turned else x[:, :n]


def launch(kernel, m, n, k, turned=False, dtype=np.float16, pad=0, tiles=(64, 64, 32), **options):
    """(what the kernel computes, the product, the report)"""
    a, b, c = matrix(m, k, dtype, pad=pad), matrix(k, n, dtype, turned, pad), np.full((m, n + pad), 7, np.float32)
    bm, bn, bk = tiles
    step = a.itemsize
    tiles_m, tiles_n = -(-m // bm), -(-n // bn)
    grid = (tiles_m * tiles_n,) if kernel is grouped_matmul else (tiles_n, tiles_m)
    more = {"GROUP": 2} if kernel is grouped_matmul else {}
    made = kernel[grid](a, b, c, m, n, k, *(s // step for s in (*a.strides, *b.strides)), n + pad, 1, BM=bm, BN=bn, BK=bk,
                        **more, **options)
    assert (c[:, n:] == 7).all()
    return c[:, :n], a.astype(np.float32) @ b.astype(np.float32), made.report()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", [grouped_matmul, plain_matmul], ids=lambda k: k.__name__)
@pytest.mark.parametrize("m,n,k,turned", [(128, 128, 64, False), (130, 72, 40, False), (130, 72, 40, True),
                                          (40, 200, 96, False), (64, 136, 8, True)])
def test_products(kernel, m, n, k, turned, target):
    with tilejit.knobs(target=target):
        got, want, report = launch(kernel, m, n, k, turned)
    assert (got == want).all()
    assert report.count("by TMA") == 3 and "through pointers" not in report, report


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32, ml_dtypes.float8_e4m3fn], ids=str)
def test_dtypes(dtype, turned):
    with tilejit.knobs(target="emulator"):
        got, want, report = launch(grouped_matmul, 96, 80, 96, turned, dtype, tiles=(64, 64, 64))
    assert (got == want).all() and report.count("by TMA") == 3, report


@pytest.mark.parametrize("target", TARGETS)
def test_without(target):
    with tilejit.knobs(target=target):
        got, want, report = launch(grouped_matmul, 130, 72, 40, pointer_tma=False)
    assert (got == want).all() and "by TMA" not in report


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("m,n,k,pad", [(64, 72, 39, 1), (64, 71, 40, 1), (64, 72, 40, 4)])
def test_rows_that_tma_does_not_take(m, n, k, pad, target):
    """Rows that start anywhere: through pointers, with the reason."""
    with tilejit.knobs(target=target):
        got, want, report = launch(grouped_matmul, m, n, k, pad=pad)
    assert (got == want).all() and "multiple of 16 bytes" in report


@pytest.mark.parametrize("target", TARGETS)
def test_strides_that_only_the_launch_knows(target):
    """One row for all: a stride of zero is no stride of TMA's. Same signature, another kernel."""
    with tilejit.knobs(target=target):
        a, b = matrix(64, 32, np.float16), matrix(32, 64, np.float16)
        for stride in (32, 0, 32):
            c = np.zeros((64, 64), np.float32)
            grouped_matmul[(1,)](a, b, c, 64, 64, 32, stride, 1, 64, 1, 64, 1, BM=64, BN=64, BK=32, GROUP=2)
            rows = a if stride else np.broadcast_to(a[:1], a.shape)
            assert (c == rows.astype(np.float32) @ b.astype(np.float32)).all(), stride
        grouped_matmul[(1,)](a, b, c, 64, 64, 0, 32, 1, 64, 1, 64, 1, BM=64, BN=64, BK=32, GROUP=2)
        assert (c == 0).all()


def test_tiles_that_shared_memory_has_no_room_for():
    """256x256 fp32 numbers: a result of this size is stored through its pointers."""
    types = ("*fp32:16", "*fp32:16", "*fp32:16", *["int32:16"] * 4, 1, "int32:16", 1, "int32:16", 1)
    made = plain_matmul.compile(*types, BM=256, BN=256, BK=32, num_warps=8)
    lines = "\n".join(made.report_lines)
    assert "shared memory has no room for the tile" in lines


@tilejit.kernel
def doubled(x, y, m, n, stride, BM: tl.constexpr, BN: tl.constexpr):
    """Through descriptors that the kernel makes."""
    a = tl.make_tensor_descriptor(x, [m, n], [stride, 1], [BM, BN])
    b = tl.make_tensor_descriptor(y, [m, n], [stride, 1], [BM, BN])
    at = [tl.program_id(0) * BM, tl.program_id(1) * BN]
    b.store(at, a.load(at) + a.load(at))


@pytest.mark.parametrize("target", TARGETS)
def test_descriptors_of_arguments_that_tma_does_not_take(target):
    """The signature promises nothing of a stride: what is odd at a launch goes through pointers there."""
    kernel = tilejit.kernel(do_not_specialize=("stride", "n"))(doubled.fn)
    buffer = RNG.integers(-9, 9, 4096).astype(np.float32)
    with tilejit.knobs(target=target):
        for first, m, n, stride in ((0, 20, 24, 24), (1, 20, 24, 24), (0, 20, 23, 23), (0, 3, 24, 24), (0, 20, 24, 32)):
            x = buffer[first:first + m * stride]
            y = np.zeros_like(x)
            kernel[(2, 2)](x, y, m, n, stride, BM=16, BN=16)
            rows = np.lib.stride_tricks.as_strided(x, (m, n), (4 * stride, 4))
            got = np.lib.stride_tricks.as_strided(y, (m, n), (4 * stride, 4))
            assert (got == 2 * rows).all(), (first, m, n, stride)
    if target == "emulator":
        assert "TMA does not take the arguments of a launch" in kernel.report()


@pytest.mark.parametrize("n, exact", [(5, True), (100, False), (104, False)])
def test_rows_that_end_within_16_bytes_are_not_stored_by_tma(n, exact, monkeypatch):
    """TMA would write the rest of such a unit too, which may be somebody else's: rows end through pointers, and where
    there is no whole unit, all goes through them."""
    monkeypatch.setattr(plain_matmul, "entries", {})
    a, b, wide = matrix(64, 64, np.float16), matrix(64, 104, np.float16), np.full((64, 112), 7, np.float16)
    with tilejit.knobs(target="emulator"):
        plain_matmul[(2, 1)](a, b, wide, 64, n, 64, 64, 1, 104, 1, 112, 1, BM=64, BN=64, BK=64)
    (entry,) = plain_matmul.entries.values()
    assert "TMA" in entry.compiled.report() and (entry.exact.entry is not None) == exact
    assert np.array_equal(wide[:, :n], a @ b[:, :n]) and (wide[:, n:] == 7).all()


@tilejit.kernel
def row_walk(x, out, n, columns, pitch, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows less their sums, ROWS at a time, loaded ahead."""
    cols = tl.arange(0, BLOCK)[None, :]
    for start in tl.range(0, n, ROWS, num_stages=2):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < n) & (cols < columns)
        v = tl.load(x + row * pitch + cols, inside, other=0.0)
        tl.store(out + row * pitch + cols, v - tl.sum(v, 1)[:, None], inside)


@pytest.mark.parametrize("rows, columns", [(2, 1000), (4, 512), (1, 1024)])
def test_rows_wider_than_a_box(rows, columns):
    """Several rows of more columns than a TMA box has, side by side in memory: a box is part of one row."""
    x = RNG.integers(-3, 4, (5, columns)).astype(np.float32)
    out = np.full_like(x, np.nan)
    with tilejit.knobs(target="emulator"):
        row_walk[(1,)](x, out, 5, columns, columns, ROWS=rows, BLOCK=tilejit.next_power_of_2(columns))
    np.testing.assert_array_equal(out, x - x.sum(1, keepdims=True))


@pytest.mark.parametrize("offset, tma", [(1 << 20, True), (1 << 31, False), (1 << 40, False)])
def test_offsets_that_tma_does_not_count(offset, tma):
    """TMA's coordinates have 32 bits: a start beyond them would be another place."""
    @tilejit.kernel
    def far(a, c, K, OFFSET: tl.constexpr):
        rows, columns = tl.arange(0, 64), tl.arange(0, 64)
        acc = tl.zeros((64, 64), tl.float32)
        for k in range(0, K, 64):
            x = tl.load(a + rows[:, None] * K + (k + columns)[None, :])
            acc = tl.dot(x, x, acc)
        tl.store(c + rows[:, None] * K + columns[None, :] + OFFSET, acc.to(tl.float16))

    made = far.compile("*fp16", "*fp16", "int32:16", OFFSET=offset)
    assert ("cp.async.bulk.tensor.2d.global" in made.ptx) == tma
    assert tma or "more elements than TMA counts" in made.report()


@tilejit.kernel
def batch_of_products(a, c, K, pitch, BATCH: tl.constexpr, ROWS: tl.constexpr):
    """Batches, and rows of the result, further apart than 32 bits count."""
    rows, columns = tl.arange(0, 64), tl.arange(0, 64)
    z = tl.program_id(1).to(tl.int64)
    acc = tl.zeros((64, 64), tl.float32)
    for k in range(0, K, 64):
        x = tl.load(a + z * BATCH + (rows[:, None] * pitch + (k + columns)[None, :]))
        acc = tl.dot(x, x.T, acc)
    at = c + z * BATCH + (z * ROWS + rows)[:, None] * pitch + columns[None, :]
    tl.store(at, acc.to(c.dtype.element_ty))


@pytest.mark.one_schedule                        # what repeats launches keeps copies of their arrays
@pytest.mark.parametrize("target", TARGETS)
def test_starts_above_32_bits(target):
    """What 64 bits are taken for, and no mask bounds, becomes two of TMA's indices of 32 bits."""
    batch, pitch, rows, k, last = (1 << 29) + 4096, 256, 128, 128, 5
    a = np.zeros(last * batch + 64 * pitch, np.uint8)              # pages that nothing touches take no memory
    c = np.zeros(last * batch + (last * rows + 64) * pitch, np.uint8)
    kind = ml_dtypes.float8_e4m3fn
    want = []
    for z in (0, 3, last):
        x = np.sign(matrix(64, k, np.float32)).astype(kind)
        np.ndarray((64, k), np.uint8, a.data, z * batch, (pitch, 1))[:] = x.view(np.uint8)
        want.append(x.astype(np.float32) @ x.astype(np.float32).T)
    with tilejit.knobs(target=target):
        made = batch_of_products[(1, last + 1)](a.view(kind), c.view(kind), k, pitch, batch, rows)
    assert made.report().count("by TMA") == 2 and "cp.async.bulk.tensor.3d" in made.ptx, made.report()
    for z, right in zip((0, 3, last), want):
        got = np.ndarray((64, 64), np.uint8, c.data, z * (batch + rows * pitch), (pitch, 1)).view(kind)
        assert (got.astype(np.float32) == right.astype(kind).astype(np.float32)).all(), z
