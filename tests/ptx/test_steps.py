"""Registers of addresses that are sums of others: one is computed, and carried round loops, the others are numbers away."""
import re

import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.ir import walk
from tilejit.ir.text import parse_function
from tilejit.ptx.steps import Steps

HEAD = """
#w = <128 register=[[1],[64]] lane=[[2],[4],[8],[16],[32]] warp=[[0],[0]]>
kernel @k(%p: ptr<fp32>, %n: int32) {num_warps=4} {
"""
RANGE = "%r = arange {start=0, end=128} : int32[128, #w]"


def roots(*lines: str) -> list[int]:
    """Which register each register of the value %x is counted from."""
    fn = parse_function(HEAD + "\n".join(f"  {x}" for x in lines) + "\n  return\n}\n")
    return Steps().roots(next(r for op in walk(fn.body) for r in op.results if r.name == "x"))


@pytest.mark.parametrize("lines", [
    ["%x = mul %r, %r : int32[128, #w]"],
    ["%c = const {value=1, type=int32[128]} : int32[128, #w]", "%x = xor %r, %c : int32[128, #w]"],
    ["%u = cast %r {dtype=uint32} : uint32[128, #w]", "%c = const {value=1, type=uint32[128]} : uint32[128, #w]",
     "%x = sub %u, %c : uint32[128, #w]"]])
def test_registers_of_their_own(lines):
    assert roots(RANGE, *lines) == [0, 1, 2, 3]


@pytest.mark.parametrize("lines", [
    ["%x = add %r, %r : int32[128, #w]"],
    ["%s = splat %n {shape=(128,)} : int32[128, #w]", "%x = add %s, %r : int32[128, #w]"],
    ["%c = const {value=-3, type=int32[128]} : int32[128, #w]", "%x = mul %r, %c : int32[128, #w]"],
    ["%s = splat %p {shape=(128,)} : ptr<fp32>[128, #w]", "%w = cast %r {dtype=int64} : int64[128, #w]",
     "%x = ptr_add %s, %w : ptr<fp32>[128, #w]"]])
def test_numbers_apart(lines):
    """All from the least."""
    assert roots(RANGE, *lines) == [3 if "-3" in lines[0] else 0] * 4


@tilejit.kernel
def walked(x, y, n, STRIDE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Sums of blocks by pointers that a loop moves, less those by offsets that another one does."""
    row, col = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None, :]
    at = row * STRIDE + col
    p = x + at
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for _ in tl.range(n, num_stages=1):
        total += tl.load(p)
        p += BLOCK
    for _ in tl.range(n, num_stages=1):
        total -= 3 * tl.load(x + at)
        at += BLOCK
    tl.store(y + at, total)
    tl.store(p + 0, total)


@tilejit.kernel
def twisted(x, y, n, BLOCK: tl.constexpr):
    """Pointers that do not stay as far apart as they enter."""
    p = x + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in tl.range(n, num_stages=1):
        total += tl.load(p)
        p += tl.arange(0, BLOCK)
    tl.store(y + tl.arange(0, BLOCK), total)


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
def test_what_loops_carry(target):
    x = np.random.default_rng(0).standard_normal((16, 512)).astype(np.float32)
    blocks, y, z = x.reshape(16, 4, 128), np.zeros_like(x), np.zeros(1024, np.float32)
    with tilejit.knobs(target=target):
        walked[(1,)](there := x.copy(), y, 3, STRIDE=512, ROWS=16, BLOCK=128)
        twisted[(1,)](x, z, 3, BLOCK=1024)
    total = blocks[:, :3].sum(1)
    assert np.allclose(y[:, 384:], -2 * total, atol=1e-5) and np.array_equal(there[:, 384:], y[:, 384:])
    flat, at = x.reshape(-1), np.arange(1024)
    assert np.allclose(z, flat[at] + flat[2 * at] + flat[3 * at], atol=1e-6)


def test_one_register_goes_round():
    """Of 16 pointers, and of 16 offsets; of those that move apart, all."""
    def moves(kernel, **constants):
        ptx = kernel.compile("*fp32:16", "*fp32:16", "int32", **constants).ptx
        body = ptx[ptx.index("$loop"):ptx.rindex("$loop_end")]
        return len(re.findall(r"mov\.b(?:32|64) ", body))

    assert moves(walked, STRIDE=512, ROWS=16, BLOCK=128) < 8 < 16 <= moves(twisted, BLOCK=2048)
