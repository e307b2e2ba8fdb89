"""Descriptors that round fp32 to tf32 as they load (`round_f32_to_tf32`)."""
import numpy as np
import pytest
from run import both

import tilejit
import tilejit.language as tl
from tilejit import TensorDescriptor
from tilejit.errors import LaunchError


def nearest(x):
    """Ties to even; infinities and NaNs stay, as numbers' signs do."""
    bits = x.view(np.uint32)
    kept = bits + np.uint32(0xFFF) + (bits >> 13 & 1) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), kept.view(np.float32), x)


@pytest.fixture
def x():
    """Any bits, ties of both kinds, a carry into infinity, subnormal numbers."""
    bits = np.random.default_rng(0).integers(0, 2 ** 32, (16, 32), dtype=np.uint64).astype(np.uint32)
    bits[0, :8] = 0x3F801000, 0x3F803000, 0xBF801000, 0x3FFFF000, 0x7F7FF000, 0x7F800000, 0xFFC00000, 0x0000F123
    return bits.view(np.float32)


@tilejit.kernel
def copied(out, desc, row):
    tl.store(out + tl.arange(0, 16)[:, None] * 32 + tl.arange(0, 32)[None, :], desc.load([row, 0]))


@tilejit.kernel
def gathered(out, desc, row):
    rows = (tl.arange(0, 16) + row) % 16
    tl.store(out + tl.arange(0, 16)[:, None] * 32 + tl.arange(0, 32)[None, :], desc.gather(rows, 0))


@tilejit.kernel
def chosen(out, a, b, row):
    desc = a
    if row > 0:
        desc = b
    for i in range(2):
        if i == 1:
            desc = a
        tl.store(out + tl.arange(0, 16)[:, None] * 32 + tl.arange(0, 32)[None, :], desc.load([row, 0]))


@tilejit.kernel
def written(desc, x):
    at = tl.arange(0, 16)[:, None] * 32 + tl.arange(0, 32)[None, :]
    desc.store([0, 0], tl.load(x + at))


@tilejit.kernel
def product(out, a, b, K: tl.constexpr):
    acc = tl.zeros((16, 32), tl.float32)
    for k in range(0, K, 16):
        acc = tl.dot(a.load([0, k]), b.load([k, 0]), acc)
    tl.store(out + tl.arange(0, 16)[:, None] * 32 + tl.arange(0, 32)[None, :], acc)


def aligned(x, tma):
    """The same numbers, where TMA can read them or not."""
    room = np.zeros(x.size + 8, np.float32)
    at = -room.ctypes.data % 16 // 4 + (not tma)
    room[at:at + x.size] = x.ravel()
    return room[at:at + x.size].reshape(x.shape)


def rounding(x, block, **options):
    return TensorDescriptor(x, x.shape, x.strides and (x.shape[1], 1), block, round_f32_to_tf32=True, **options)


@pytest.mark.parametrize("tma", [True, False])
@pytest.mark.parametrize("padding", ["zero", "nan"])
@pytest.mark.parametrize("row", [0, 5, -3])
def test_loads(x, tma, padding, row):
    desc = rounding(aligned(x, tma), (16, 32), padding=padding)
    assert desc.tma == tma and desc.round_f32_to_tf32 and not TensorDescriptor.from_tensor(x, [16, 32]).round_f32_to_tf32
    want = np.full_like(x, 0 if padding == "zero" else np.nan)
    lo, hi = max(0, -row), min(16, 16 - row)
    want[lo:hi] = nearest(x)[lo + row:hi + row]
    for out, in both(copied, [np.zeros_like(x)], desc, row):
        np.testing.assert_array_equal(out, want)


def test_gathers(x):
    desc = TensorDescriptor.from_tensor(aligned(x, True), [1, 32], round_f32_to_tf32=True)
    for out, in both(gathered, [np.zeros_like(x)], desc, 3):
        np.testing.assert_array_equal(out, np.roll(nearest(x), -3, 0))


@pytest.mark.parametrize("row", [0, 2])
def test_one_of_two(x, row):
    a, b = (rounding(aligned(v, True), (16, 32)) for v in (x, x[::-1].copy()))
    want = np.zeros_like(x)
    want[:16 - row] = nearest(x)[row:]
    for out, in both(chosen, [np.zeros_like(x)], a, b, row):
        np.testing.assert_array_equal(out, want)


def test_stores_do_not_round(x):
    for target in ("evaluator", "emulator"):
        out = aligned(np.zeros_like(x), True)
        with tilejit.knobs(target=target):
            written[(1,)](rounding(out, (16, 32)), x.copy())
        np.testing.assert_array_equal(out, x)


def test_products_are_of_rounded_numbers():
    """What tensor cores cut off is zero then: numbers between two of tf32 go to the nearest, not downwards."""
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=s).astype(np.float32) for s in ((16, 64), (64, 32)))
    want = nearest(a).astype(np.float64) @ nearest(b)
    for out, in both(product, [np.zeros((16, 32), np.float32)], rounding(a, (16, 16)), rounding(b, (16, 32)), K=64):
        np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)


def test_it_is_of_fp32(x):
    with pytest.raises(LaunchError, match="round_f32_to_tf32 is only supported for float32, found fp16"):
        TensorDescriptor.from_tensor(np.zeros((16, 32), np.float16), [16, 32], round_f32_to_tf32=True)
    other = rounding(aligned(x, True), (16, 32))
    other.block_shape = [8, 32]
    assert other.round_f32_to_tf32 and other.over(aligned(x, True)).round_f32_to_tf32


@pytest.mark.gpu
def test_a_gpu_rounds_alike(x):
    torch = pytest.importorskip("torch")
    given = torch.from_numpy(x.view(np.int32)).cuda().view(torch.float32)
    out = torch.zeros_like(given)
    copied[(1,)](out, TensorDescriptor.from_tensor(given, [16, 32], round_f32_to_tf32=True), 0)
    np.testing.assert_array_equal(out.cpu().numpy(), nearest(x))
