"""Products whose first operand stays in registers: what is decided, and what it computes under every schedule."""
from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.emulator import Program, Sanitizer
from tilejit.ir.text import parse_function, print_function
from tilejit.runtime.emulated import emulated
from tilejit.testing import rel_error

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
NUMPY = {"bf16": BF16, "fp16": np.float16, "fp32": np.float32, "fp8e4nv": E4M3, "int8": np.int8}
LANGUAGE = {"bf16": tl.bfloat16, "fp16": tl.float16, "fp32": tl.float32, "fp8e4nv": tl.float8e4nv, "int8": tl.int8}
block = tilejit.TensorDescriptor.from_tensor


@tilejit.kernel
def doubled(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, DTYPE: tl.constexpr,
            WS: tl.constexpr):
    """C = 2 A @ B^T, the first operand computed in the loop."""
    m = tl.program_id(0) * BM
    acc = tl.zeros((BM, BN), tl.int32 if DTYPE == tl.int8 else tl.float32)
    for k in tl.range(0, tl.cdiv(K, BK), warp_specialize=WS):
        a = a_desc.load([m, k * BK])
        b = b_desc.load([0, k * BK])
        acc = tl.dot((a.to(tl.float32) * 2.0).to(DTYPE), b.T, acc)
    c_desc.store([m, 0], acc)


@tilejit.kernel
def attention(q_desc, k_desc, v_desc, o_desc, N, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    """O = softmax(Q K^T scale) V, a block of keys at a time."""
    m = tl.program_id(0) * BM
    q = q_desc.load([m, 0])
    acc = tl.zeros((BM, D), tl.float32)
    high = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    for n in range(0, N, BN):
        s = tl.dot(q, k_desc.load([n, 0]).T) * scale
        new = tl.maximum(high, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        keep = tl.exp2(high - new)
        total = total * keep + tl.sum(p, 1)
        acc = tl.dot(p.to(v_desc.dtype), v_desc.load([n, 0]), acc * keep[:, None])
        high = new
    o_desc.store([m, 0], (acc / total[:, None]).to(o_desc.dtype))


@tilejit.kernel
def words(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C = A B^T, four bytes of A a word, in the order in which threads have words: bytes of a word that are two apart,
    the same of three more, then the word's other two."""
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.cdiv(K, BK)):
        x = a_desc.load([0, k * BK // 4])
        some, more = byte_pairs(x), byte_pairs(x >> 8)
        a = tl.join(some, more).reshape(BM, BK // 16, 4, 2, 2).permute(0, 1, 4, 2, 3).reshape(BM, BK)
        acc = tl.dot(a, b_desc.load([0, k * BK]).T, acc)
    c_desc.store([0, 0], acc)


@tilejit.kernel
def byte_pairs(x):
    """The first and the third byte of words as fp16: in the mantissa of 1024."""
    both = x & 0x00FF00FF | 0x64006400
    low, high = both.to(tl.int16), (both >> 16).to(tl.int16)
    return tl.join(low.to(tl.float16, bitcast=True), high.to(tl.float16, bitcast=True)) - 1024.0


@tilejit.kernel
def two_sums(w_desc, x_desc, y_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C = W (X + Y)^T with int8 W: two products of a loop share a first operand."""
    acc = tl.zeros((BM, BN), tl.float32)
    more = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.cdiv(K, BK)):
        w = w_desc.load([0, k * BK]).to(x_desc.dtype)
        acc = tl.dot(w, x_desc.load([0, k * BK]).T, acc)
        more = tl.dot(w, y_desc.load([0, k * BK]).T, more)
    c_desc.store([0, 0], acc + more)


@tilejit.kernel
def columns(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C = A^T B^T with int8 A, which is transposed in registers."""
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.cdiv(K, BK)):
        a = a_desc.load([k * BK, 0]).to(tl.bfloat16)
        acc = tl.dot(a.T, b_desc.load([0, k * BK]).T, acc)
    c_desc.store([0, 0], acc)


@tilejit.kernel
def outside(a_desc, b_desc, c_desc, N, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C = 2 A B^T, a block of columns at a time, the first operand computed once."""
    a = (a_desc.load([0, 0]).to(tl.float32) * 2.0).to(tl.bfloat16)
    for n in range(0, N, BN):
        c_desc.store([0, n], tl.dot(a, b_desc.load([n, 0]).T))


def numbers(shape, dtype="bf16", seed=0):
    """Small integers: every sum is exact."""
    return np.random.default_rng(seed).integers(-8, 8, shape).astype(NUMPY[dtype])


def a_call(dtype="bf16", bm=64, bn=32, bk=64, warps=4, blocks=3, ws=None, wide=False):
    """Arguments and constants of `doubled` over `blocks` blocks of K, and the result it must have.

    wide: A is int8, whatever the product's type."""
    k = blocks * bk
    a, b = numbers((2 * bm, k), "int8" if wide else dtype), numbers((bn, k), dtype, 1)
    out = np.zeros((2 * bm, bn), np.int32 if dtype == "int8" else np.float32)
    args = block(a, [bm, bk]), block(b, [bn, bk]), block(out, [bm, bn]), k
    constants = dict(BM=bm, BN=bn, BK=bk, DTYPE=LANGUAGE[dtype], WS=ws, num_warps=warps)
    return args, constants, out, 2 * a.astype(np.float64) @ b.astype(np.float64).T


@pytest.mark.parametrize("dtype", list(NUMPY))
@pytest.mark.parametrize("bm, bn, bk, warps", [(64, 32, 64, 4), (128, 16, 128, 4), (128, 64, 64, 8)])
def test_every_type(dtype, bm, bn, bk, warps):
    """Products of computed operands, of every type that wgmma takes."""
    args, constants, out, want = a_call(dtype, bm, bn, bk // 2 if dtype == "fp32" else bk, warps)
    with tilejit.knobs(target="emulator"):
        kernel = doubled[(2,)](*args, **constants)
    np.testing.assert_array_equal(out, want)
    assert "dot operand a at test_from_registers.py:" in kernel.report() and "from registers" in kernel.report()
    assert "through" not in kernel.report(), "nothing changes its layout, nothing is staged for a product"


@pytest.mark.parametrize("ws", [None, False])
@pytest.mark.parametrize("blocks", [1, 2, 7])
def test_every_schedule(ws, blocks):
    """Specialised and inline, loops shorter and longer than the rings: no finding, equal bits, the right ones."""
    args, constants, out, want = a_call(ws=ws, blocks=blocks, wide=True)
    tilejit.check(doubled, (2,), *args, seeds=[0, 1], **constants).check()
    np.testing.assert_array_equal(out, want)


def test_pieces_stay_in_flight():
    """Two sets of registers: while a piece is computed the product of the piece before runs, over iterations too."""
    args, constants, *_ = a_call(wide=True)
    kernel = emulated("test", doubled, (2,), args, constants).entry.compiled
    report = kernel.report()
    assert "from registers, in 2 pieces" in report and "one round of wgmma stays in flight (acc)" in report
    loop = kernel.scheduled[kernel.scheduled.index("local_load"):]
    ops = re.findall(r"local_load|dot_async|dot_fence|mbar_arrive|cast|yield", loop[:loop.index("yield") + 5])
    assert [op for op in ops if op != "cast"] == ["local_load", "dot_async", "dot_fence", "mbar_arrive", "local_load",
                                                  "dot_async", "dot_fence", "mbar_arrive", "yield"]
    assert re.findall(r"local_load .*at=\((.*?)\)", loop) == ["0, 0", "0, 32"]
    assert re.findall(r"dot_async .*k=(\d+)", loop) == ["0", "32"]
    assert re.findall(r"dot_fence .*pending=(\d)", loop) == ["1", "1"]
    assert print_function(parse_function(kernel.scheduled)) == kernel.scheduled


def test_words_are_taken_apart_in_pieces():
    """Each piece reads its part of the words behind the wait that frees its registers: ptxas moves what is computed of
    words that were read before up, over products that still read those registers."""
    packed, b = numbers((64, 192), "int8").view(np.uint8), numbers((32, 192), "fp16")
    out = np.zeros((64, 32), np.float32)
    args = block(packed.view(np.int32), [64, 16]), block(b, [32, 64]), block(out, [64, 32]), 192
    constants = dict(BM=64, BN=32, BK=64, num_warps=4)
    tilejit.check(words, (1,), *args, seeds=[0], **constants).check()
    order = packed.reshape(64, 12, 4, 2, 2).transpose(0, 1, 4, 2, 3).reshape(64, 192)
    np.testing.assert_array_equal(out, order.astype(np.float32) @ b.astype(np.float32).T)
    kernel = emulated("test", words, (1,), args, constants).entry.compiled
    assert "from registers, in 2 pieces" in kernel.report() and "one round of wgmma stays in flight" in kernel.report()
    assert re.findall(r"local_load .*at=\((.*?)\)", kernel.scheduled) == ["0, 0", "0, 8"]


def mutants(text):
    """The kernel without one of the waits of its loop."""
    for wait in re.finditer(r"wgmma\.wait_group\.sync\.aligned 1;", text):
        yield text[:wait.start()] + text[wait.end():]


def test_a_dropped_wait_is_found():
    """Registers of a first operand that are written while a wgmma reads them: the sanitizer names it."""
    args, constants, *_ = a_call(wide=True, blocks=4)
    entry = emulated("test", doubled, (2,), args, constants).entry
    text, found = entry.compiled.ptx, []
    for mutant in mutants(text):
        entry.program = Program(mutant)
        report = entry.run((2, 1, 1), args, policy="adversarial", seed=0, listener=Sanitizer())
        found.append({f.kind for f in report.findings})
    assert len(found) == 2 and all("wgmma-registers" in kinds for kinds in found)


@pytest.mark.parametrize("d, bn, dtype", [(64, 64, "bf16"), (128, 64, "fp16"), (64, 128, "bf16")])
def test_attention(d, bn, dtype):
    """P of P @ V is the accumulator of Q K^T as it lies: no conversion, no staging."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape).astype(NUMPY[dtype]) for shape in ((64, d), (2 * bn, d), (2 * bn, d)))
    out = np.zeros((64, d), np.float32)
    args = *(block(x, [n, d]) for x, n in ((q, 64), (k, bn), (v, bn), (out, 64))), 2 * bn, 1.4426950408889634 / d ** 0.5
    tilejit.check(attention, (1,), *args, seeds=[0], BM=64, BN=bn, D=d, num_warps=4, num_stages=2).check()
    s = q.astype(np.float64) @ k.astype(np.float64).T / d ** 0.5
    p = np.exp(s - s.max(1, keepdims=True))
    assert rel_error(out, p / p.sum(1, keepdims=True) @ v.astype(np.float64)) < 1e-2
    report = emulated("test", attention, (1,), args, dict(BM=64, BN=bn, D=d, num_warps=4)).entry.compiled.report()
    assert "from registers" in report and "through registers" not in report and "convert" not in report


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_two_products_of_one_operand(dtype):
    """They are not in flight over iterations: the report says so. Every int8 is widened exactly."""
    x, y = numbers((32, 256), dtype), numbers((32, 256), dtype, 2)
    w = np.arange(-128, 128).astype(np.int8)[np.arange(256) ^ np.arange(128)[:, None]]
    out = np.zeros((128, 32), np.float32)
    args = block(w, [128, 64]), block(x, [32, 64]), block(y, [32, 64]), block(out, [128, 32]), 256
    tilejit.check(two_sums, (1,), *args, seeds=[0], BM=128, BN=32, BK=64, num_warps=4).check()
    np.testing.assert_array_equal(out, w.astype(np.float32) @ (x.astype(np.float32) + y.astype(np.float32)).T)
    report = emulated("test", two_sums, (1,), args, dict(BM=128, BN=32, BK=64)).entry.compiled.report()
    assert "every iteration waits for its products, which take first operands from registers" in report


@pytest.mark.parametrize("kernel", [columns, outside])
def test_where_operands_come_from(kernel):
    """Transposed while it is computed; computed before the loop."""
    a, b = numbers((192, 64), "int8") if kernel is columns else numbers((64, 64)), numbers((192, 64), seed=1)
    b = b.T.copy()[:32] if kernel is columns else b
    out = np.zeros((64, 32 if kernel is columns else 192), np.float32)
    args = block(a, [64, 64]), block(b, [32, 64]), block(out, [64, 32]), 192
    tilejit.check(kernel, (1,), *args, seeds=[0], BM=64, BN=32, BK=64, num_warps=4).check()
    a, b = a.astype(np.float32), b.astype(np.float32)
    np.testing.assert_array_equal(out, a.T @ b.T if kernel is columns else 2 * a @ b.T)
    report = emulated("test", kernel, (1,), args, dict(BM=64, BN=32, BK=64)).entry.compiled.report()
    assert "from registers" in report and "through registers" not in report


def test_too_large_for_registers():
    """An operand of more registers than a thread should have is staged, and the report says so."""
    args, constants, out, want = a_call("fp32", 128, 16, 128)
    with tilejit.knobs(target="emulator"):
        kernel = doubled[(2,)](*args, **constants)
    np.testing.assert_array_equal(out, want)
    assert "goes through registers into" in kernel.report()
