"""Philox and what is made of it, against the algorithm in Python integers and known answers."""
import numpy as np
import pytest
from run import both, equal

import tilejit
import tilejit.language as tl


def philox(bits, key, counters, rounds):
    """Four lists of counters after `rounds` rounds, in Python integers (Salmon et al., SC 2011)."""
    mask = (1 << bits) - 1
    step0, step1, by0, by1 = {32: (0x9E3779B9, 0xBB67AE85, 0xD2511F53, 0xCD9E8D57),
                              64: (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B, 0xD2E7470EE14C6C93, 0xCA5A826395121157)}[bits]
    out = []
    for c0, c1, c2, c3 in counters:
        k0, k1 = key
        for _ in range(rounds):
            c0, c1, c2, c3 = ((c2 * by1 >> bits) ^ c1 ^ k0, c2 * by1 & mask, (c0 * by0 >> bits) ^ c3 ^ k1, c0 * by0 & mask)
            k0, k1 = (k0 + step0) & mask, (k1 + step1) & mask
        out.append((c0, c1, c2, c3))
    return np.array(out, f"u{bits // 8}").T.copy()


def test_the_reference_gives_the_published_vectors():
    """Random123's known answers for philox4x32-10."""
    assert [hex(int(x)) for x in philox(32, (0, 0), [(0, 0, 0, 0)], 10)[:, 0]] == \
        ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    ones = 0xFFFFFFFF
    assert hex(int(philox(32, (ones, ones), [(ones,) * 4], 10)[0, 0])) == "0x408f276d"


@tilejit.kernel
def four(a, b, c, d, start, seed, N: tl.constexpr, WIDE: tl.constexpr, ROUNDS: tl.constexpr):
    at = tl.arange(0, N)
    offset = at + start.to(tl.int64) if WIDE else at + start
    w, x, y, z = tl.randint4x(seed, offset, ROUNDS)
    tl.store(a + at, w)
    tl.store(b + at, x)
    tl.store(c + at, y)
    tl.store(d + at, z)


@pytest.mark.parametrize("seed,start,rounds", [(0, 0, 10), (124, 7, 10), (0x1234567890ABCDEF, 1 << 35, 10), (42, 3, 6)])
def test_randint4x(seed, start, rounds):
    wide = start >= 1 << 31
    counters = [((start + i) & 0xFFFFFFFF, (start + i) >> 32 if wide else 0, 0, 0) for i in range(64)]
    expected = philox(32, (seed & 0xFFFFFFFF, seed >> 32), counters, rounds)
    equal(four, list(expected), start, seed, N=64, WIDE=wide, ROUNDS=rounds, num_warps=1)


@tilejit.kernel
def wide(a, b, c, d, seed, N: tl.constexpr):
    at = tl.arange(0, N)
    counter = at.to(tl.uint64)
    w, x, y, z = tl.philox(seed, counter, counter * 3, counter * 0, counter * 0)
    tl.store(a + at, w)
    tl.store(b + at, x)
    tl.store(c + at, y)
    tl.store(d + at, z)


def test_counters_of_64_bits():
    equal(wide, list(philox(64, (99, 0), [(i, 3 * i, 0, 0) for i in range(32)], 10)), 99, N=32, num_warps=1)


@tilejit.kernel
def floats(u, n, seed, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(u + at, tl.rand(seed, at))
    tl.store(n + at, tl.randn(seed, at))


def test_uniform_and_normal():
    n = 4096
    first, second = philox(32, (7, 0), [(i, 0, 0, 0) for i in range(n)], 10)[:2].view(np.int32)
    uniform, angle = (np.where(x < 0, ~x, x).astype(np.float32) * np.float32(4.6566127342e-10) for x in (first, second))
    normal = np.sqrt(-2 * np.log(np.maximum(uniform, 1e-7).astype(np.float64))) * np.cos(2 * np.pi * angle.astype(float))
    for u, z in both(floats, [np.zeros(n, np.float32)] * 2, 7, N=n):
        np.testing.assert_array_equal(u, uniform)
        np.testing.assert_allclose(z, normal, 1e-4, 1e-5)
    assert 0 <= uniform.min() and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.02
