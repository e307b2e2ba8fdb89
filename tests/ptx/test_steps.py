"""Registers of addresses that are sums of others: one is computed, and carried round loops, the others are numbers away."""
import re
from collections import Counter

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


@pytest.mark.parametrize("bits, roots_of_x", [(64, [0, 0, 0, 0]), (32, [0, 1, 2, 3])])
def test_multiples_apart(bits, roots_of_x):
    """Multiplications of 32 bits are as cheap as additions."""
    assert roots(RANGE, f"%w = cast %r {{dtype=int{bits}}} : int{bits}[128, #w]",
                 f"%m = cast %n {{dtype=int{bits}}} : int{bits}",
                 f"%s = splat %m {{shape=(128,)}} : int{bits}[128, #w]",
                 f"%x = mul %w, %s : int{bits}[128, #w]") == roots_of_x


@tilejit.kernel
def turned_blocks(x, y, n, pitch, turned, BLOCK: tl.constexpr):
    """A block of x's transpose, from its last row to the first, walked twice by pointers that a loop moves."""
    row, col = tl.arange(0, BLOCK)[:, None].to(tl.int64), tl.arange(0, BLOCK)[None, :]
    p = x + (BLOCK - 1 - row) * pitch + col
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for _ in tl.range(n, num_stages=1):
        total += tl.load(p)
        p += BLOCK * pitch
    tl.store(y + col * turned + row, total)


def test_pitches_of_64_bits():
    """Rows of a thread are multiplied once, the first of them."""
    made = turned_blocks.compile("*fp32", "*fp32", "int32", "int64", "int64", BLOCK=64, num_warps=4)
    assert made.resources.clean and len(re.findall(r"m(?:ul|ad)\.lo\.s64", made.ptx)) == 3
    x = np.random.default_rng(0).standard_normal((128, 70)).astype(np.float32)
    y = np.full((64, 66), np.nan, np.float32)
    turned_blocks[(1,)](x, y, 2, 70, 66, BLOCK=64, num_warps=4)
    want = (x[:64, :64] + x[64:, :64])[::-1].T
    np.testing.assert_array_equal(y[:, :64], want)
    assert np.isnan(y[:, 64:]).all()


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


@tilejit.kernel
def copied(x, y, pitch, n, BLOCK: tl.constexpr):
    rows, columns = tl.arange(0, 16)[:, None], tl.arange(0, BLOCK)[None, :]
    inside = (rows < n) & (columns < n)
    tl.store(y + rows * BLOCK + columns, tl.load(x + rows * pitch + columns, inside), inside)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_no_address_that_nobody_asks_for(dtype):
    """One a vector: every number and address that is computed is read."""
    kernel = copied.compile(f"*{dtype}:16", f"*{dtype}:16", "int32:16", "int32:16", BLOCK=256, pointer_tma=False)
    assert ".v4.b32" in kernel.ptx
    read = Counter(re.findall(r"%rd?\d+", kernel.ptx))
    made = re.findall(r" (?:add|mad|cvt|shl)\S* (%rd?\d+),", kernel.ptx)
    assert made and [r for r in made if read[r] == 1] == []
