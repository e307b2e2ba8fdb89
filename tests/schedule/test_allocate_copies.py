"""Bytes that go from rings of one kind of copy to rings of another one, and how deep open rings become."""
import sys

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit import passes, schedule
from tilejit.frontend import Const, KernelSource, Param, build
from tilejit.ir.types import Desc, bf16, int32
from tilejit.schedule.allocate import Allocator

BF16 = ml_dtypes.bfloat16
ALLOCATE = sys.modules[Allocator.__module__]
LIMIT = 232448 - 1023


def mixed(a, b, a_desc, b_desc, c_desc, K: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr):
    """Two products of the same blocks, each through descriptors or through pointers."""
    rows, k = tl.arange(0, 64), tl.arange(0, 64)
    for half in tl.static_range(2):
        acc = tl.zeros((64, 64), tl.float32)
        for i in tl.range(0, K // 64, warp_specialize=False):
            if (SECOND if half else FIRST) == "desc":
                acc = tl.dot(a_desc.load([half * 64, i * 64]), b_desc.load([0, i * 64]).T, acc)
            else:
                x = tl.load(a + (half * 64 + rows)[:, None] * K + i * 64 + k[None, :])
                y = tl.load(b + rows[:, None] * K + i * 64 + k[None, :])
                acc = tl.dot(x, y.T, acc)
        c_desc.store([half * 64, 0], acc.to(c_desc.dtype))


@pytest.mark.parametrize("first, second", [("desc", "ptr"), ("ptr", "desc"), ("ptr", "ptr")])
def test_kinds_of_copies_share(first, second, monkeypatch):
    monkeypatch.setattr(ALLOCATE, "limit", lambda fn: 60000)        # each of the rings takes 49152
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-3, 4, (n, 320)).astype(BF16) for n in (128, 64))
    out = np.zeros((128, 64), BF16)
    desc = tilejit.TensorDescriptor.from_tensor
    args = a, b, desc(a, (64, 64)), desc(b, (64, 64)), desc(out, (64, 64)), 320, first, second
    with tilejit.knobs(target="emulator", cache=False):
        fresh = tilejit.kernel(mixed)
        report = fresh.compile(*args, num_stages=3).report()
        tilejit.check(fresh, 1, *args, num_stages=3, seeds=[0, 1]).check()
    assert "saved by reuse" in report or "goes on in the slots" in report
    assert np.array_equal(out, (a.astype(np.float32) @ b.astype(np.float32).T).astype(BF16))


def pair(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, WS: tl.constexpr):
    """Two loops whose rings are not alike: the blocks come in another order."""
    acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(tl.cdiv(K, 64), warp_specialize=WS):
        acc = tl.dot(a_desc.load([0, k * 64]), b_desc.load([0, k * 64]).T, acc)
    for k in tl.range(tl.cdiv(K, 64), warp_specialize=WS):
        b = b_desc.load([BN, k * 64])
        acc = tl.dot(a_desc.load([0, k * 64]), b.T, acc)
    c_desc.store([0, 0], acc.to(c_desc.dtype))


def scheduled(bm, bn, ws, limit, monkeypatch):
    monkeypatch.setattr(ALLOCATE, "limit", lambda fn: limit)
    args = {"a_desc": Param(Desc(bf16, (bm, 64))), "b_desc": Param(Desc(bf16, (bn, 64))),
            "c_desc": Param(Desc(bf16, (bm, bn))), "K": Param(int32), "BM": Const(bm), "BN": Const(bn), "WS": Const(ws)}
    return schedule.run(passes.run(build(KernelSource(pair), args, {"num_warps": 8})))


@pytest.mark.parametrize("bm, bn, ws, limit, slots, separated", [
    (128, 256, True, LIMIT, 4, True),       # two slots without reuse: the rings take turns
    (128, 64, True, LIMIT, 4, False),       # four slots without: no role waits for the other
    (128, 64, True, 10 ** 6, 8, False),     # the most
    (128, 256, False, LIMIT, 3, False),     # one role: threads meet in between anyway
    (128, 256, False, 130000, 2, False)])   # and fewer slots where three do not fit
def test_depth_follows_from_what_reuse_leaves(bm, bn, ws, limit, slots, separated, monkeypatch):
    fn = scheduled(bm, bn, ws, limit, monkeypatch)
    assert fn.attrs["num_stages"] == slots and fn.attrs["shared_bytes"] <= limit
    assert any("mbarrier between" in line for line in fn.attrs["report"]) == separated
