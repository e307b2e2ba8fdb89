"""Rings of products that share an operand, and loads that the author issues an iteration ahead: the plan's words."""
from __future__ import annotations

import tilejit
import tilejit.language as tl


@tilejit.kernel
def pair(a_desc, b_desc, c_desc, scales, K, EARLY: tl.constexpr, AHEAD: tl.constexpr):
    """Two products of one block of A; EARLY: the second one's other operand is loaded before the first product."""
    one = tl.zeros((64, 64), tl.float32)
    two = tl.zeros((64, 64), tl.float32)
    rows = tl.arange(0, 64)
    scale = tl.load(scales + rows)
    for k in range(0, K, 64):
        a = a_desc.load([0, k])
        b = b_desc.load([0, k])
        if EARLY:
            c = b_desc.load([64, k])
        part = tl.dot(a, b.T)
        if not EARLY:
            c = b_desc.load([64, k])
        other = tl.dot(a, c.T)
        if not AHEAD:
            scale = tl.load(scales + k + rows)
        one = tl.fma(part, scale[:, None], one)
        two = tl.fma(other, scale[:, None], two)
        if AHEAD:
            scale = tl.load(scales + k + 64 + rows)
    c_desc.store([0, 0], one.to(tl.bfloat16))
    c_desc.store([0, 64], two.to(tl.bfloat16))


def report(early, ahead):
    """What the compiler says of the rings."""
    block = "desc<bf16[64x64]>"
    kernel = pair.compile(block, block, block, "*fp32:16", "int32:16", EARLY=early, AHEAD=ahead, num_stages=3,
                          warp_specialize=True)
    return [line.split(":")[0] for line in kernel.report_lines if line.startswith("ring ")]


def test_products_that_share_an_operand_share_a_ring():
    assert report(True, True) == ["ring a_b_c"]


def test_not_where_a_product_comes_before_a_load():
    assert report(False, True) == ["ring a_b", "ring c"]


def test_a_load_for_the_next_iteration_is_the_authors():
    assert report(True, False) == ["ring a_b_c", "ring scale"]
