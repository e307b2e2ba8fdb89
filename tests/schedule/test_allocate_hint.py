"""`tl.promote_reuse`: the author says that the memory behind a tile is free, and later buffers take it."""
import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit import passes, schedule
from tilejit.frontend import Const, KernelSource, Param, build
from tilejit.ir import walk
from tilejit.ir.text import parse_function, print_function
from tilejit.ir.types import Desc, bf16, int32
from tilejit.ir.verify import verify

BF16 = ml_dtypes.bfloat16


def plain(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.cdiv(K, 64)):
        acc = tl.dot(a_desc.load([0, k * 64]), b_desc.load([0, k * 64]).T, acc)
    c_desc.store([0, 0], acc.to(c_desc.dtype))


def hinted(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.cdiv(K, 64)):
        acc = tl.dot(a_desc.load([0, k * 64]), b_desc.load([0, k * 64]).T, acc)
    acc = tl.promote_reuse(acc)
    c_desc.store([0, 0], acc.to(c_desc.dtype))


def hinted_tiles(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr):
    for m in range(2):
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(tl.cdiv(K, 64)):
            acc = tl.dot(a_desc.load([m * BM, k * 64]), b_desc.load([0, k * 64]).T, acc)
        tl.promote_reuse(acc)
        c_desc.store([m * BM, 0], acc.to(c_desc.dtype))


def hinted_block(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr):
    """On a block that products read in place: it stays in place."""
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.cdiv(K, 64)):
        a, b = a_desc.load([0, k * 64]), b_desc.load([0, k * 64])
        acc = tl.dot(a, b.T, acc)
        tl.promote_reuse(a)
    c_desc.store([0, 0], acc.to(c_desc.dtype))


def scheduled(kernel, bm=128, bn=256, warps=8, stages=3):
    described = {"a_desc": Param(Desc(bf16, (bm, 64))), "b_desc": Param(Desc(bf16, (bn, 64))),
                 "c_desc": Param(Desc(bf16, (bm, bn))), "K": Param(int32), "BM": Const(bm), "BN": Const(bn)}
    fn = schedule.run(passes.run(build(KernelSource(kernel), described, {"num_warps": warps, "num_stages": stages})))
    verify(fn)
    return fn


def test_without_the_hint_nothing_is_shared_where_there_is_room():
    assert not any("saved by reuse" in line for line in scheduled(plain).attrs["report"])


def test_the_hint_makes_the_store_take_the_ring():
    fn, other = scheduled(hinted), scheduled(plain)
    assert fn.attrs["shared_bytes"] == other.attrs["shared_bytes"] - 32768
    assert "separation: role_sync between load1 and c_desc_stage" in fn.attrs["report"]
    consumer = next(op for op in fn.body.ops if op.name == "roles").regions[0]
    names = [op.name for op in consumer.ops]
    assert names[names.index("reuse") + 1] == "role_sync" and names.count("role_sync") == 1
    assert {v.name for v in consumer.ops[names.index("reuse")].operands} == {"load0", "load1"}


def test_the_hint_is_in_the_text():
    source = build(KernelSource(hinted), {
        "a_desc": Param(Desc(bf16, (64, 64))), "b_desc": Param(Desc(bf16, (64, 64))), "c_desc": Param(Desc(bf16, (64, 64))),
        "K": Param(int32), "BM": Const(64), "BN": Const(64)}, {"num_warps": 4, "num_stages": 2})
    for fn, op in ((source, "promote_reuse"), (scheduled(hinted), "reuse")):
        text = print_function(fn)
        assert f" {op} %" in text and print_function(parse_function(text)) == text


def test_a_block_with_a_hint_is_read_in_place():
    fn = scheduled(hinted_block)
    assert not any("local_load" in op.name for op in walk(fn.body))
    assert any("wgmma reads the slots" in line for line in fn.attrs["report"])


@pytest.mark.parametrize("kernel, rows", [(hinted, 128), (hinted_tiles, 256)])
def test_results_with_the_hint(kernel, rows):
    """The same from the evaluator, and in the emulator under every schedule."""
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-3, 4, (n, 320)).astype(BF16) for n in (rows, 256))
    exact = (a.astype(np.float32) @ b.astype(np.float32).T).astype(BF16)
    desc = tilejit.TensorDescriptor.from_tensor
    for target in ("evaluator", "emulator"):
        out = np.zeros((rows, 256), BF16)
        args = desc(a, (128, 64)), desc(b, (256, 64)), desc(out, (128, 256)), 320, 128, 256
        with tilejit.knobs(target=target, cache=False):
            fresh = tilejit.kernel(kernel)
            if target == "evaluator":
                fresh[(1,)](*args, num_warps=8, num_stages=3)
            else:
                tilejit.check(fresh, 1, *args, num_warps=8, num_stages=3, seeds=(0, 1)).check()
                assert "saved by reuse" in fresh.compile(*args, num_warps=8, num_stages=3).report()
        assert np.array_equal(out, exact)
