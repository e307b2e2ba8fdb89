"""Kernels whose shared memory fits only because bytes are used again, in the emulator under many schedules."""
import sys

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.schedule import separate
from tilejit.schedule.allocate import Allocator

BF16 = ml_dtypes.bfloat16


def two_products(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, WS: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, tl.cdiv(K, BK), warp_specialize=WS):
        acc = tl.dot(a_desc.load([0, k * BK]), b_desc.load([0, k * BK]).T, acc)
    c_desc.store([0, 0], acc.to(c_desc.dtype))
    acc2 = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, tl.cdiv(K, BK), warp_specialize=WS):
        b = b_desc.load([0, k * BK])             # before a: not the ring of the first loop
        acc2 = tl.dot(a_desc.load([BM, k * BK]), b.T, acc2)
    c_desc.store([BM, 0], acc2.to(c_desc.dtype))


def one_product(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, WS: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, tl.cdiv(K, BK), warp_specialize=WS):
        acc = tl.dot(a_desc.load([tl.program_id(0) * BM, k * BK]), b_desc.load([0, k * BK]).T, acc)
    c_desc.store([tl.program_id(0) * BM, 0], acc.to(c_desc.dtype))


def persistent(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, WS: tl.constexpr):
    for m in range(2):
        acc = tl.zeros((BM, BN), tl.float32)
        for k in tl.range(0, tl.cdiv(K, BK), warp_specialize=WS):
            acc = tl.dot(a_desc.load([m * BM, k * BK]), b_desc.load([0, k * BK]).T, acc)
        c_desc.store([m * BM, 0], acc.to(c_desc.dtype))


def persistent_pairs(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                     WS: tl.constexpr):
    for m in range(2):
        acc = tl.zeros((BM, BN), tl.float32)
        for k in tl.range(0, tl.cdiv(K, 2 * BK), warp_specialize=WS):
            acc = tl.dot(a_desc.load([m * BM, 2 * k * BK]), b_desc.load([0, 2 * k * BK]).T, acc)
        for k in tl.range(0, tl.cdiv(K, 2 * BK), warp_specialize=WS):
            b = b_desc.load([0, 2 * k * BK + BK])
            acc = tl.dot(a_desc.load([m * BM, 2 * k * BK + BK]), b.T, acc)
        c_desc.store([m * BM, 0], acc.to(c_desc.dtype))


def normalised(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, WS: tl.constexpr):
    """Rings read into registers, scratch of a reduction, operands that go through registers."""
    biggest = tl.zeros((BM,), tl.float32)
    for k in tl.range(0, tl.cdiv(K, BK)):
        biggest = tl.maximum(biggest, tl.max(tl.abs(a_desc.load([0, k * BK]).to(tl.float32)), 1))
    acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, tl.cdiv(K, BK), warp_specialize=WS):
        a = (a_desc.load([0, k * BK]).to(tl.float32) - biggest[:, None]).to(tl.bfloat16)
        acc = tl.dot(a, b_desc.load([0, k * BK]).T, acc)
    c_desc.store([0, 0], acc.to(c_desc.dtype))


def run(kernel, monkeypatch, limit, bm=64, bn=64, ws=True, k=320, grid=1, seeds=(0, 1), **options):
    """(what the runs found, the result, the exact one, the report) of a kernel that may have `limit` bytes."""
    monkeypatch.setattr(sys.modules[Allocator.__module__], "limit", lambda fn: limit)
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-3, 4, (rows, k)).astype(BF16) for rows in (2 * bm, bn))
    out = np.zeros((2 * bm, bn), BF16)
    desc = tilejit.TensorDescriptor.from_tensor
    args = desc(a, (bm, 64)), desc(b, (bn, 64)), desc(out, (bm, bn)), k, bm, bn, 64, ws
    fresh = tilejit.kernel(kernel)
    with tilejit.knobs(target="emulator", cache=False):
        report = fresh.compile(*args, **options).report()
        found = tilejit.check(fresh, grid, *args, seeds=seeds, **options)
    left = a.astype(np.float32)
    if kernel is normalised:
        left = (left - np.abs(left).max(1, keepdims=True)).astype(BF16).astype(np.float32)
        left[bm:] = 0
    return found, out, (left @ b.astype(np.float32).T).astype(BF16), report


#: kernel, options, bytes that it may have (it needs more without reuse), what the report says it did
TIGHT = {
    "two loops": (two_products, {"num_warps": 4, "num_stages": 3, "bn": 128}, 92000, "an mbarrier between"),
    "two loops, a role's own": (two_products, {"num_warps": 4, "num_stages": 3, "bn": 128, "ws": False}, 92000, "saved by reuse"),
    "staging": (one_product, {"num_warps": 8, "num_stages": 3, "bm": 128, "bn": 256, "grid": 2}, 150000, "role_sync between"),
    "staging that meets": (one_product, {"num_warps": 4, "num_stages": 3, "grid": 2}, 50000, "saved by reuse"),
    "tiles": (persistent, {"num_warps": 8, "num_stages": 2, "bm": 128, "bn": 256}, 100000, "an mbarrier between"),
    "pairs of loops": (persistent_pairs, {"num_warps": 8, "num_stages": 2, "bm": 128}, 56000, "in every iteration"),
    "pairs of loops, a role's own": (persistent_pairs, {"num_warps": 4, "num_stages": 2, "bn": 128, "ws": False}, 52000,
                                     "role_sync between"),
    "two loops of a cluster": (two_products, {"num_warps": 4, "num_stages": 3, "bm": 128, "num_ctas": 2}, 60000,
                               "an mbarrier between"),
    "staging of a cluster": (one_product, {"num_warps": 8, "num_stages": 3, "bm": 256, "bn": 128, "num_ctas": 2}, 110000,
                             "role_sync between"),
    "tiles of a cluster": (persistent, {"num_warps": 8, "num_stages": 2, "bm": 256, "bn": 128, "num_ctas": 2}, 70000,
                           "an mbarrier between"),
    "registers": (normalised, {"num_warps": 4, "num_stages": 2}, 42000, "saved by reuse"),
    "registers, a role's own": (normalised, {"num_warps": 4, "num_stages": 2, "ws": False}, 42000, "saved by reuse"),
}


@pytest.mark.parametrize("name", TIGHT)
def test_what_fits_thanks_to_reuse(name, monkeypatch):
    kernel, options, limit, said = TIGHT[name]
    found, out, exact, report = run(kernel, monkeypatch, limit, **options)
    assert said in report and "saved by reuse" in report
    found.check()
    rows = out.shape[0] // (2 if kernel is one_product and options.get("grid", 1) == 1 else 1)
    assert np.array_equal(out[:rows], exact[:rows])


@pytest.mark.parametrize("name, dropped", [("two loops", "_hand_over"), ("staging", "_meet"), ("tiles", "_hand_over"),
                                           ("tiles", "_meet"), ("pairs of loops, a role's own", "_meet")])
def test_without_its_separation_a_kernel_is_found_out(name, dropped, monkeypatch):
    """The separations are needed: without one kind of them the sanitizer finds races, or results are wrong."""
    monkeypatch.setattr(separate, dropped, lambda *args: None)
    kernel, options, limit, _ = TIGHT[name]
    found, *_ = run(kernel, monkeypatch, limit, seeds=[0], **options)
    assert not found.ok and any("race" in kind or "overwritten" in kind for kind in found.kinds), found.kinds


def three_products(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, WS: tl.constexpr):
    for m in range(2):
        acc = tl.zeros((BM, BN), tl.float32)
        for k in tl.range(0, tl.cdiv(K, 4 * BK), warp_specialize=WS):
            acc = tl.dot(a_desc.load([m * BM, 4 * k * BK]), b_desc.load([0, 4 * k * BK]).T, acc)
        if m == 0:
            for k in tl.range(0, tl.cdiv(K, BK), warp_specialize=WS):
                acc = tl.dot(a_desc.load([m * BM, k * BK]), b_desc.load([0, k * BK]).T, acc)
        for k in tl.range(0, tl.cdiv(K, BK), warp_specialize=WS):
            acc = tl.dot(a_desc.load([m * BM, k * BK]), b_desc.load([0, k * BK]).T, acc)
        c_desc.store([m * BM, 0], acc.to(c_desc.dtype))


@pytest.mark.parametrize("ws, warps", [(True, 8), (True, 4), (False, 4)])
def test_loops_one_after_another_go_on_in_one_ring(ws, warps, monkeypatch):
    """Tickets run on from loop to loop and from tile to tile; a loop under a condition has its own ring."""
    found, out, _, report = run(three_products, monkeypatch, 231424, bm=16 * warps, ws=ws, num_warps=warps,
                                num_stages=3, num_consumer_groups=1)
    assert "goes on in the slots of load0_load1" in report
    assert report.count(": 3 slots x") == 2 and "separation" not in report
    found.check()
    rng = np.random.default_rng(3)
    bm = 16 * warps
    a, b = (rng.integers(-3, 4, (rows, 320)).astype(BF16).astype(np.float32) for rows in (2 * bm, 64))
    some = [slice(first, first + 64) for first in (0, 256)]
    exact = a @ b.T + sum(a[:, s] @ b[:, s].T for s in some)
    exact[:bm] += a[:bm] @ b.T
    assert np.array_equal(out, exact.astype(BF16))
