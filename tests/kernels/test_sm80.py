"""target="sm_80": the ready kernels in the portable subset of PTX: it assembles for sm_80, uses nothing newer, and
computes what it should under every schedule of the emulator. (Spills fail a test by themselves, see conftest.)"""
from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from references import matrix, poisoned, row_kernels

import tilejit
import tilejit.language as tl
from tilejit import kernels
from tilejit.kernels.add import add_kernel
from tilejit.kernels.product.kernel import product_kernel
from tilejit.kernels.product.plain import matmul_kernel
from tilejit.kernels.rows.softmax import softmax_kernel
from tilejit.kernels.way import Way
from tilejit.ptx.isa import required_sm
from tilejit.ptx.text import parse
from tilejit.testing import rel_error

BF16 = ml_dtypes.bfloat16


@pytest.fixture
def emulated():
    with tilejit.knobs(target="emulator", arch="sm_80"):
        yield


def newest(ptx: str) -> int:
    """The compute capability that a module's instructions need."""
    return max(required_sm(i.opcode) for entry in parse(ptx).entries.values() for i in entry.instructions)


@pytest.mark.parametrize("tiles", [Way(128, 256, 8), Way(128, 128, 4), Way(64, 256, 4), Way(64, 128, 4), Way(64, 64, 4),
                                   Way(64, 16, 4), Way(128, 32, 4)], ids=lambda t: f"{t.m}x{t.n}")
@pytest.mark.parametrize("dtype, a_rows, b_rows", [
    ("fp16", True, True), ("bf16", False, False), ("fp32", True, False)])
def test_matmul_assembles(tiles, dtype, a_rows, b_rows):
    """For sm_80, with rings that ldmatrix reads, and no instruction of later chips."""
    bk = 128 // (4 if dtype == "fp32" else 2)

    def desc(rows, columns):
        return f"desc<{dtype}[{rows}x{columns}]>"

    k = matmul_kernel.compile(
        desc(tiles.m, bk) if a_rows else desc(bk, tiles.m), desc(bk, tiles.n) if b_rows else desc(tiles.n, bk),
        desc(tiles.m, tiles.n), f"*{dtype}", "int32", "int32", "int32", BM=tiles.m, BN=tiles.n, BK=bk, GROUP=8,
        A_ROWS=a_rows, B_ROWS=b_rows, ACTIVATION="gelu", num_warps=tiles.warps, target="sm_80")
    assert "\n.target sm_80\n" in k.ptx and k.metadata.target == "sm_80"
    assert newest(k.ptx) <= 80
    assert all(x in k.ptx for x in ("ldmatrix", "mma.sync", "cp.async.cg", "mbarrier.test_wait"))
    assert any("cp.async, mma.sync reads the slots" in line for line in k.report_lines)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("shape", [(3, 7), (2, 1000), (2, 20000)])
def test_row_kernels(emulated, dtype, shape):
    """add, softmax, layernorm and rmsnorm."""
    bound = {np.float32: 2e-5, np.float16: 2e-3, BF16: 8e-3}[dtype]
    for kernel, args, ref in row_kernels(shape, dtype):
        out = poisoned(shape, dtype)
        kernel(*args, out=out)
        assert rel_error(out, ref) <= bound, kernel.__name__
    for kernel in (add_kernel, softmax_kernel):
        assert all(newest(entry.compiled.ptx) <= 80 for entry in kernel.entries.values()
                   if entry.compiled.metadata.target == "sm_80")


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("a_rows, b_rows", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("shape", [(70, 90, 48), (128, 192, 80), (5, 60, 8), (64, 64, 512)])
def test_matmul(emulated, shape, dtype, a_rows, b_rows):
    """All orders; rows that end inside a vector, blocks that end outside the matrix."""
    m, n, k = shape
    rng = np.random.default_rng(1)
    a, b = matrix(rng, m, k, dtype, a_rows), matrix(rng, k, n, dtype, b_rows)
    out = poisoned((m, n), dtype)
    kernels.matmul(a, b, out=out)
    bound = {np.float32: 1.5e-3, np.float16: 2e-3, BF16: 8e-3}[dtype]
    assert rel_error(out, a.astype(np.float64) @ b.astype(np.float64)) <= bound


@pytest.mark.parametrize("dtype", [np.float16, np.float32], ids=lambda d: np.dtype(d).name)
def test_matmul_under_schedules(dtype):
    """Several tiles a program, so that the rings run on from tile to tile; the sanitizer looks on."""
    m, n, k, bk = 128, 64, 160, 64 // np.dtype(dtype).itemsize
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((n, k)).astype(dtype)
    c = np.zeros((m, n), dtype)
    descs = [tilejit.TensorDescriptor.from_tensor(x, s) for x, s in ((a, (64, bk)), (b, (32, bk)), (c, (64, 32)))]
    tilejit.check(matmul_kernel, (1,), *descs, None, m, n, k, BM=64, BN=32, BK=bk, GROUP=8, A_ROWS=True,
                  B_ROWS=False, ACTIVATION=None, target="sm_80", seeds=range(2)).check()
    assert rel_error(c, a.astype(np.float64) @ b.astype(np.float64).T) <= 2e-3


@tilejit.kernel
def blocks(src, dst, M, N, dm, dn, down, BM: tl.constexpr, BN: tl.constexpr):
    """A block of a matrix to a place in another one, outside of any loop."""
    x = tl.make_tensor_descriptor(src, [M, N], [down, 1], [BM, BN])
    y = tl.make_tensor_descriptor(dst, [M, N], [down, 1], [BM, BN])
    y.store([dm, dn], x.load([dm, dn]) * 2)


@pytest.mark.parametrize("at", [(0, 0), (16, 24), (24, 40), (-8, -16)])
@pytest.mark.parametrize("columns", [64, 61])
@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float64], ids=lambda d: np.dtype(d).name)
def test_blocks_at_the_edge(emulated, at, columns, dtype):
    """Zeros come from outside the tensor, and nothing is written there."""
    src = np.arange(40 * 64).reshape(40, 64).astype(dtype)
    dst = np.full((40, 64), 7, dtype)
    rows, down = 32, 64
    at = (at[0], at[1] // (16 // np.dtype(dtype).itemsize) * (16 // np.dtype(dtype).itemsize))
    if min(at) < 0:
        expected_rows, expected_columns = slice(0, 32 + at[0]), slice(0, max(0, min(columns, 32 + at[1])))
    else:
        expected_rows = slice(at[0], min(rows, at[0] + 32))
        expected_columns = slice(at[1], min(columns, at[1] + 32))
    blocks[(1,)](src, dst, rows, columns, *at, down, BM=32, BN=32)
    expected = np.full((40, 64), 7, dtype)
    expected[expected_rows, expected_columns] = src[expected_rows, expected_columns] * 2
    assert (dst == expected).all()


@tilejit.kernel
def sums(d, x, BM: tl.constexpr, BN: tl.constexpr):
    rows, columns = tl.arange(0, BM), tl.arange(0, BN)
    d.atomic_add([0, 0], tl.load(x + rows[:, None] * BN + columns[None, :]))


def test_atomics_of_descriptors(emulated):
    """Element by element, where TMA would add a block."""
    x, out = np.ones((16, 32), np.float32), np.ones((16, 32), np.float32)
    sums[(3,)](tilejit.TensorDescriptor.from_tensor(out, (16, 32)), x, 16, 32)
    assert (out == 4).all()


@tilejit.kernel
def roles(a_desc, out, BM: tl.constexpr):
    acc = tl.zeros((BM, 64), tl.float32)
    for k in tl.range(4, warp_specialize=True):
        x = a_desc.load([0, k * 64])
        acc = tl.dot(x, x.T, acc)
    tl.store(out + tl.arange(0, 64), tl.sum(acc, 0))


@tilejit.kernel
def product(x, y, BM: tl.constexpr):
    at = tl.arange(0, BM)[:, None] * BM + tl.arange(0, BM)[None, :]
    a = tl.load(x + at)
    tl.store(y + at, tl.dot(a, a))


@tilejit.kernel
def widen(x, y):
    at = tl.arange(0, 64)
    tl.store(y + at, tl.load(x + at).to(tl.float32))


@pytest.mark.parametrize("kernel, args, options, message", [
    (add_kernel, ("*fp32", "*fp32", "*fp32", "int32", 256), {"num_ctas": 2}, "sm_80 has no clusters"),
    (add_kernel, ("*fp32", "*fp32", "*fp32", "int32", 256), {"num_consumer_groups": 2}, "num_consumer_groups=2"),
    (roles, ("desc<fp16[64x64]>", "*fp32", 64), {}, "warp_specialize=True: sm_80 has no roles"),
    (product, ("*fp8e4nv", "*fp32", 64), {}, "sm_80 has no tensor cores for fp8e4nv"),
    (widen, ("*fp8e5", "*fp32"), {}, "needs sm_89, the kernel is compiled for sm_80"),
])
def test_what_sm_80_cannot_do(kernel, args, options, message):
    with pytest.raises(tilejit.CompilationError, match=message):
        kernel.compile(*args, target="sm_80", **options)


def test_unknown_targets():
    with pytest.raises(tilejit.CompilationError, match="target='sm_75' is not one of 'sm_90a', 'sm_80'"):
        add_kernel.compile("*fp32", "*fp32", "*fp32", "int32", 256, target="sm_75")
    with pytest.raises(tilejit.LaunchError, match="TILEJIT_ARCH='sm_75'"), tilejit.knobs(arch="sm_75"):
        pass


def test_the_target_is_part_of_the_key(emulated):
    """An option beats the knob; a kernel compiled for one chip never serves the other."""
    args = ("*fp32", "*fp32", "*fp32", "int32", 256)
    assert add_kernel.compile(*args).metadata.target == "sm_80"
    assert add_kernel.compile(*args, target="sm_90a").metadata.target == "sm_90a"
    x = np.ones(64, np.float32)
    made = [add_kernel[(1,)](x, x, x.copy(), 64, BLOCK=256, **o) for o in ({}, {"target": "sm_90a"}, {})]
    assert [m.metadata.target for m in made] == ["sm_80", "sm_90a", "sm_80"] and made[0] is made[2]


@tilejit.kernel
def conversions(x, y, n, TO: tl.constexpr):
    at = tl.arange(0, 256)
    v = tl.load(x + at)
    tl.store(y + at, v.to(TO))


@pytest.mark.parametrize("source", [np.int32, np.int64, np.uint32, np.float64])
def test_casts_to_bf16_round_once(emulated, source):
    """sm_80 converts to bf16 from fp32 only: the way there rounds to odd."""
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.integers(0, 2 ** 31 - 1, 224), 2 ** 23 + 2 ** 15 + np.arange(-16, 16)]).astype(source)
    if source == np.float64:
        x = x * (1 + 2.0 ** -30)
    y = np.zeros(256, BF16)
    conversions[(1,)](x, y, 256, tl.bfloat16)
    for value, got in zip(x, y):
        scale = 2 ** (math.frexp(float(value))[1] - 8) if value else 1
        exact = int(value) if source != np.float64 else float(value)
        assert abs(float(got) - exact) <= scale / 2, (value, got)


@tilejit.kernel
def bf16_arithmetic(x, y, out):
    at = tl.arange(0, 128)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(out + at, a + b)
    tl.store(out + 128 + at, a - b)
    tl.store(out + 256 + at, a * b)
    tl.store(out + 384 + at, tl.where(a < b, a, b))


def test_bf16_arithmetic_is_the_same_bits(emulated):
    """fma in place of add, sub and mul, signs of zeros included."""
    rng = np.random.default_rng(4)
    special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, 3e38, 1e-40], np.float32)
    x, y = (v.ravel() for v in np.meshgrid(special, special))
    x, y = (np.concatenate([v, rng.standard_normal(64)]).astype(BF16) for v in (x, y))
    got = {}
    for target in ("sm_80", "sm_90a"):
        out = np.zeros(512, BF16)
        bf16_arithmetic[(1,)](x, y, out, target=target)
        nan = np.isnan(out.astype(np.float32))
        got[target] = np.where(nan, 0x7FFF, out.view(np.uint16))
    assert (got["sm_80"] == got["sm_90a"]).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32], ids=lambda d: np.dtype(d).name)
def test_sm_80_through_the_driver(dtype):
    """The driver assembles PTX for sm_80 on whatever GPU there is: products of whole tiles, and of few columns."""
    rng = np.random.default_rng(5)
    bound = {np.float16: 2e-3, BF16: 8e-3, np.float32: 1.5e-3}[dtype]
    x = rng.standard_normal((64, 1000)).astype(np.float32)
    before = set(product_kernel.entries)
    with tilejit.knobs(target="cuda", arch="sm_80"):
        for n in (600, 200):
            a, b = rng.standard_normal((600, 264)).astype(dtype), rng.standard_normal((264, n)).astype(dtype)
            out = kernels.matmul(tilejit.to_device(a), tilejit.to_device(b))
            assert rel_error(out.numpy(), a.astype(np.float64) @ b.astype(np.float64)) <= bound
        made = [entry for key, entry in product_kernel.entries.items() if key not in before]
        assert {entry.compiled.metadata.target for entry in made} == {"sm_80"}
        soft = kernels.softmax(tilejit.to_device(x))
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    assert rel_error(soft.numpy(), e / e.sum(1, keepdims=True)) <= 2e-5


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.float8_e4m3fn, np.int8], ids=lambda d: np.dtype(d).name)
def test_few_rows_on_the_gpu(dtype):
    """mma.sync beside TMA rings, for products of too few rows for wgmma."""
    rng = np.random.default_rng(6)
    a, b = ((rng.standard_normal((64, 64)) * 4).astype(dtype) for _ in range(2))
    y = tilejit.zeros((64, 64), np.int32 if dtype == np.int8 else np.float32)
    for side in (16, 32):
        product[(1,)](tilejit.to_device(np.ascontiguousarray(a[:side, :side])), y, side)
        got = y.numpy().ravel()[:side * side].reshape(side, side)
        x = a[:side, :side].astype(np.float64)
        assert rel_error(got, x @ x) <= 2e-3


def halves(rng, *shape):
    """Random fp16 numbers."""
    return rng.standard_normal(shape).astype(np.float16)


def wide(*arrays):
    """The product of two arrays in float64."""
    a, b = (x.astype(np.float64) for x in arrays)
    return a @ b


def test_the_matmul_family(emulated):
    """Fused, gated, batched, grouped, stream-K, decode and weight-only products through their host functions."""
    rng = np.random.default_rng(7)
    a, b, residual = halves(rng, 64, 96), halves(rng, 96, 72), halves(rng, 64, 72)
    assert rel_error(kernels.fused_matmul(a, b, residual=residual, activation="relu"),
                     np.maximum(wide(a, b), 0) + residual) <= 2e-3
    pair = halves(rng, 2, 72, 96).transpose(0, 2, 1)
    gate = wide(a, pair[0])
    assert rel_error(kernels.gated_matmul(a, pair), gate / (1 + np.exp(-gate)) * wide(a, pair[1])) <= 4e-3
    a, b = halves(rng, 3, 64, 64), halves(rng, 3, 64, 64)
    assert rel_error(kernels.batched_matmul(a, b), wide(a, b)) <= 2e-3
    rows, offsets = halves(rng, 64, 64), np.array([0, 24, 24, 64], np.int32)
    expected = np.concatenate([wide(rows[:24], b[0]), wide(rows[24:], b[2])])
    assert rel_error(kernels.grouped_matmul(rows, b, offsets), expected) <= 2e-3
    for m, b in ((64, halves(rng, 512, 64)), (8, halves(rng, 64, 512).T)):
        a = halves(rng, m, 512)
        assert rel_error(kernels.matmul_streamk(a, b), wide(a, b)) <= 2e-3
    x, w = halves(rng, 16, 128), rng.integers(-8, 8, (64, 128)).astype(np.int8)
    assert rel_error(kernels.weight_only_matmul(x, w, np.full((64, 1), 0.5, np.float16)), wide(x, w.T) / 2) <= 2e-3


_MODULE = """.version 8.4
.target sm_80
.address_size 64
.visible .entry f() {{
    .reg .pred %p<4>;
    .reg .b16 %h<8>;
    .reg .b32 %r<16>;
    .reg .f32 %f<8>;
    .reg .f64 %fd<2>;
    .reg .b64 %rd<8>;
    .shared .align 16 .b8 s[64];
    {line}
    ret;
}}
"""


@pytest.mark.parametrize("line", [
    "add.rn.bf16 %h0, %h1, %h2;", "fma.rn.bf16 %h0, %h1, %h2, %h3;", "add.rn.f16 %h0, %h1, %h2;",
    "setp.lt.bf16 %p0, %h0, %h1;", "setp.lt.f16 %p0, %h0, %h1;", "min.bf16 %h0, %h1, %h2;", "neg.bf16 %h0, %h1;",
    "cvt.rn.bf16.f32 %h0, %f0;", "cvt.rn.bf16.s32 %h0, %r0;", "cvt.f32.bf16 %f0, %h0;",
    "cvt.rn.f16.bf16 %h0, %h1;", "cvt.rzi.s32.bf16 %r0, %h0;", "cvt.rn.bf16.f64 %h0, %fd0;",
    "cvt.rn.f16x2.e4m3x2 %r0, %h0;", "cvt.rn.satfinite.e4m3x2.f32 %h0, %f0, %f1;", "cvt.rn.f16.s32 %h0, %r0;",
    "mbarrier.try_wait.parity.shared::cta.b64 %p0, [s], %r0;", "mbarrier.test_wait.parity.shared::cta.b64 %p0, [s], %r0;",
    "mbarrier.arrive.shared::cta.b64 _, [s];", "cp.async.mbarrier.arrive.noinc.shared.b64 [s];",
    "cp.async.cg.shared.global [s], [%rd0], 16, %r0;", "fence.proxy.async.shared::cta;", "elect.sync %r0|%p0, -1;",
    "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [s];", "stmatrix.sync.aligned.m8n8.x1.shared.b16 [s], {%r0};",
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f0, %f1, %f2, %f3}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, "
    "{%f0, %f1, %f2, %f3};",
    "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%f0, %f1, %f2, %f3}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, "
    "{%f0, %f1, %f2, %f3};",
    "atom.relaxed.gpu.global.add.noftz.f16 %h0, [%rd0], %h1;", "atom.relaxed.gpu.global.add.noftz.bf16 %h0, [%rd0], %h1;",
    "atom.relaxed.cluster.global.add.u32 %r0, [%rd0], %r1;", "redux.sync.add.u32 %r0, %r1, -1;",
    "griddepcontrol.wait;", "fence.acq_rel.gpu;", "ex2.approx.ftz.f32 %f0, %f1;",
])
def test_the_table_says_what_ptxas_says(line):
    """An instruction assembles for sm_80 exactly if the instruction table has it there."""
    from tilejit.runtime import ptxas

    if ptxas.find_ptxas() is None:
        pytest.skip("no ptxas")
    try:
        ptxas.assemble(_MODULE.format(line=line), "sm_80")
        legal = True
    except tilejit.AssemblyError:
        legal = False
    assert (required_sm(line.split()[0].rstrip(";")) <= 80) == legal
