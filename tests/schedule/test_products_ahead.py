"""Products issued an iteration ahead of their use: what is decided, and what it computes under every schedule."""
from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.emulator import Program, Sanitizer
from tilejit.ir import walk
from tilejit.ir.text import parse_function
from tilejit.runtime.emulated import emulated

BF16 = ml_dtypes.bfloat16
block = tilejit.TensorDescriptor.from_tensor


@tilejit.kernel
def weighed(a_desc, b_desc, c_desc, weights, M, N, FIRST, K, BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr):
    """C = sum over blocks of 64 of K, from FIRST to K, of weights[block] * (A @ B^T) + 1, a tile after the other."""
    tiles_n = tl.cdiv(N, BN)
    for tile in range(tl.program_id(0), tl.cdiv(M, BM) * tiles_n, tl.num_programs(0)):
        m = tile // tiles_n * BM
        n = tile % tiles_n * BN
        acc = tl.zeros((BM, BN), tl.float32)
        count = 0
        for k in range(FIRST, K, STEP):
            weight = tl.load(weights + k // 64)
            part = tl.dot(a_desc.load([m, k]), b_desc.load([n, k]).T)
            acc += part * weight
            count += 1
        c_desc.store([m, n], acc + count)


@tilejit.kernel
def summed(a_desc, b_desc, c_desc, weights, M, N, FIRST, K, BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr):
    """A plain product."""
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(FIRST, K, STEP):
        acc = tl.dot(a_desc.load([0, k]), b_desc.load([0, k]).T, acc)
    c_desc.store([0, 0], acc)


@tilejit.kernel
def reduced(a_desc, b_desc, c_desc, weights, M, N, FIRST, K, BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr):
    """The result of a product is reduced before the next one is used."""
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(FIRST, K, STEP):
        part = tl.dot(a_desc.load([0, k]), b_desc.load([0, k]).T)
        acc += part - tl.max(part, 1)[:, None]
    c_desc.store([0, 0], acc)


@tilejit.kernel
def unused(a_desc, b_desc, c_desc, weights, M, N, FIRST, K, BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr):
    """The last product alone is used, through the loop's end."""
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(FIRST, K, STEP):
        acc = tl.dot(a_desc.load([0, k]), b_desc.load([0, k]).T)
    c_desc.store([0, 0], acc)


@tilejit.kernel
def weighed_ahead(a_desc, b_desc, c_desc, weights, M, N, FIRST, K, BM: tl.constexpr, BN: tl.constexpr,
                  STEP: tl.constexpr):
    """`weighed`, the next weight loaded behind the product, without the one."""
    acc = tl.zeros((BM, BN), tl.float32)
    weight = tl.load(weights)
    for k in range(FIRST, K, STEP):
        part = tl.dot(a_desc.load([0, k]), b_desc.load([0, k]).T)
        twice = weight + weight
        weight = tl.load(weights + tl.minimum(k + STEP, K - 1) // 64)
        acc += part * twice
    c_desc.store([0, 0], acc)


def problem(blocks, bm=64, bn=64, first=0, step=1, tiles=(2, 1), **options):
    """Arguments, constants, the result's array, and what `weighed` should write there."""
    rng = np.random.default_rng(blocks)
    m, n, k = tiles[0] * bm - 8, tiles[1] * bn, 64 * blocks
    a, b = (rng.integers(-3, 4, (rows, max(k, 64))).astype(BF16) for rows in (m, n))
    weights = rng.integers(1, 5, max(blocks, 1)).astype(np.float32)
    out = np.full((m, n), np.nan, np.float32)
    args = block(a, [bm, 64]), block(b, [bn, 64]), block(out, [bm, bn]), weights, m, n, 64 * first, k
    taken = range(first, blocks, step)
    want = sum((a[:, 64 * i:64 * i + 64].astype(np.float32) @ b[:, 64 * i:64 * i + 64].astype(np.float32).T * weights[i]
                for i in taken), np.float32(len(taken)) + np.zeros((m, n), np.float32))
    return args, dict(BM=bm, BN=bn, STEP=64 * step, num_warps=bm // 16, **options), out, want


@pytest.mark.parametrize("blocks", range(6))
def test_lengths(blocks):
    """Loops of no iteration to five, twice in a program (the tickets run on), under all policies."""
    args, constants, out, want = problem(blocks, num_stages=2)
    tilejit.check(weighed, (1,), *args, seeds=[0], **constants).check()
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("options", [
    dict(bm=128), dict(bm=128, bn=128, num_stages=3), dict(first=1, step=2), dict(num_consumer_groups=1),
    dict(tiles=(3, 2), num_consumer_groups=2), dict(store_role=True, num_stages=3)], ids=str)
@pytest.mark.parametrize("blocks", [4, 5])
def test_forms(options, blocks):
    """Two warpgroups, groups that take turns, a store role, other bounds of the loop."""
    args, constants, out, want = problem(blocks, **options)
    tilejit.check(weighed, (2,), *args, seeds=[0], **constants).check()
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("blocks", [1, 4])
def test_clusters(blocks):
    """A slot is released to both CTAs, behind the wait."""
    args, constants, out, want = problem(blocks, bm=128, num_ctas=2, num_stages=2)
    constants["num_warps"] = 4
    tilejit.check(weighed, (1,), *args, seeds=range(2), **constants).check()
    np.testing.assert_array_equal(out, want)


def test_the_result_itself_is_carried():
    args, constants, out, _ = problem(3, tiles=(1, 1))
    tilejit.check(unused, (1,), *args, seeds=[0], **constants).check()
    a, b = (x.base.astype(np.float32)[:, 128:] for x in args[:2])
    np.testing.assert_array_equal(out, a @ b.T)


def compiled(kernel=weighed, blocks=4, **options):
    args, constants, _, _ = problem(blocks, **options)
    return emulated("test", kernel, (1,), args, constants).entry.compiled


def test_what_is_written():
    """Two products in the loop, each awaited with the other in flight; both sets of registers stay where they are."""
    kernel = compiled()
    ops = [op for op in walk(parse_function(kernel.scheduled).body)]
    assert [op.name for op in ops].count("dot_async") == 4
    loop = next(op for op in ops if op.name == "for" and any(x.name == "dot_async" for x in op.regions[0].ops))
    inside = [(op.name, op.attrs.get("pending"), "zero" in op.attrs) for op in loop.regions[0].ops
              if op.name in ("dot_async", "dot_wait", "mbar_test", "mbar_wait", "mbar_arrive")]
    half = [("mbar_wait", None, False), ("dot_async", None, True), ("mbar_test", None, False), ("dot_wait", 1, False),
            ("mbar_arrive", None, False)]
    assert inside == [*half, *half]
    known = [op.operands[3] for op in loop.regions[0].ops if op.name == "mbar_wait"]
    tests = [op.result for op in loop.regions[0].ops if op.name == "mbar_test"]
    assert known[1] is tests[0] and known[0] in loop.regions[0].args and tests[1] in loop.regions[0].terminator.operands
    accs = dict.fromkeys(re.findall(r"wgmma\.mma_async\S+ (\{.*?\}),", kernel.ptx))
    assert len(accs) == 3                   # the two sets, and the last product's
    sums = {r for acc in accs for r in re.findall(r"%f\d+", acc)}
    moved = {r for pair in re.findall(r"mov\.f32 (%f\d+), (%f\d+);", kernel.ptx) for r in pair}
    assert not sums & moved
    assert "part of the next iteration is in flight while this one's is used (products_ahead)" in kernel.report()


def test_what_was_loaded_is_used_before_more_is():
    """What is made of the iteration before's loads stands in front of the product, the next loads behind it."""
    args, constants, out, want = problem(4, tiles=(1, 1))
    tilejit.check(weighed_ahead, (1,), *args, seeds=[0], **constants).check()
    np.testing.assert_array_equal(out, 2 * (want - 4))
    ops = walk(parse_function(compiled(weighed_ahead, tiles=(1, 1)).scheduled).body)
    loop = next(op for op in ops if op.name == "for" and any(x.name == "dot_async" for x in op.regions[0].ops))
    inside = [op for op in loop.regions[0].ops if op.name in ("mbar_wait", "dot_async", "load") or op.name == "add"
              and op.operands[0] is op.operands[1]]
    assert [op.name for op in inside] == 2 * ["add", "mbar_wait", "dot_async", "load"]


@pytest.mark.remarks("spills", "stack", reason="one kernel issues products ahead although registers do not suffice")
def test_choice():
    """Where registers suffice, or as the author says; the report says why not where it was asked for."""
    def said(*kernel, **options):
        return {r.kind: str(r) for r in compiled(*kernel, **options).report_lines}

    wide = dict(bm=64, bn=192)
    assert "products_ahead" not in said(products_ahead=False) and "products_ahead" not in said(**wide)
    assert "products_ahead" in said(products_ahead=True, **wide)
    for kernel, options, reason in [(reduced, {}, "may have to wait for others"),
                                    (weighed, {"warp_specialize": False}, "the kernel is not specialised"),
                                    (weighed, {"num_stages": 1}, "a ring has one slot")]:
        assert reason in said(kernel, products_ahead=True, **options)["no_products_ahead"]
        assert "no_products_ahead" not in said(kernel, **options)
    assert "round_in_flight" in said(summed, products_ahead=True)


@pytest.mark.parametrize("number", range(3))
def test_a_wait_for_fewer_is_found(number):
    """Each wait that leaves a product in flight leaves two: sums are read, and the slot overwritten, too early."""
    args, constants, _, _ = problem(5, num_stages=2)
    entry = emulated("test", weighed, (1,), args, constants).entry
    sites = [m.start(1) for m in re.finditer(r"wgmma\.wait_group\.sync\.aligned (1);", entry.compiled.ptx)]
    assert len(sites) == 3
    if number == 2:                         # of the last two products: of an even number
        args, constants, _, _ = problem(4, num_stages=2)
        entry = emulated("test", weighed, (1,), args, constants).entry
    at = sites[number]
    entry.program = Program(entry.compiled.ptx[:at] + "2" + entry.compiled.ptx[at + 1:])
    report = entry.run((1, 1, 1), args, policy="adversarial", seed=0, listener=Sanitizer())
    assert {f.kind for f in report.findings} & {"wgmma-registers", "slot-overwritten"}


@pytest.mark.parametrize("number", range(3))
def test_a_test_that_lies_is_found(number):
    """What was looked at is taken for there: the product reads a slot that may still be filled."""
    args, constants, _, _ = problem(5, num_stages=3)
    entry = emulated("test", weighed, (1,), args, constants).entry
    sites = list(re.finditer(r"mbarrier\.test_wait\S+ (%p\d+), .*;\n\s+not\.pred (%p\d+), \1;", entry.compiled.ptx))
    assert len(sites) == 4                  # before the loop, two in it, and of two last products the first one's
    m = sites[number]
    entry.program = Program(entry.compiled.ptx[:m.start()] + f"setp.ne.u32 {m[2]}, 0, 0;" + entry.compiled.ptx[m.end():])
    kinds = {f.kind for seed in range(3) for policy in ("adversarial", "random")
             for f in entry.run((1, 1, 1), args, policy=policy, seed=seed, listener=Sanitizer()).findings}
    assert kinds
