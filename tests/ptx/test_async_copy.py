"""What copies without a tensor map look like in PTX, and that ptxas takes them: no spills, no remarks."""
import re

import pytest
from pointer_kernels import matmul

import tilejit
import tilejit.language as tl

pytestmark = pytest.mark.one_schedule          # nothing is launched


@pytest.fixture(autouse=True)
def copies():
    """Pointers stay pointers, which TMA could do too."""
    with tilejit.knobs(pointer_tma=False):
        yield


@tilejit.kernel
def row_sums(x, out, n, stride, HINT: tl.constexpr, CACHE: tl.constexpr, BLOCK: tl.constexpr):
    stride = tl.multiple_of(stride, HINT)
    acc = tl.zeros((BLOCK,), tl.float32)
    for i in tl.range(0, n, num_stages=3):
        acc += tl.load(x + i * stride + tl.arange(0, BLOCK), cache_modifier=CACHE).to(tl.float32)
    tl.store(out + tl.arange(0, BLOCK), acc)


def clean(kernel):
    """The kernel's PTX, if ptxas (where it is there) says nothing about it."""
    r = kernel.resources
    assert r is None or (r.spill_stores, r.spill_loads, r.stack, r.messages) == (0, 0, 0, ())
    return kernel.ptx


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("orders", [(0, 1), (0, 0), (1, 0), (1, 1)], ids=["NT", "NN", "TN", "TT"])
@pytest.mark.parametrize("bm, bn, bk, warps, stages", [(128, 128, 64, 8, 4), (128, 256, 64, 8, 3), (64, 128, 64, 4, 4)])
def test_pointer_products(dtype, orders, bm, bn, bk, warps, stages):
    """16 bytes a copy, two operands in each of `stages` places, no register between memory and wgmma."""
    strides = [n for order in orders for n in ((1, 1024) if order else (1024, 1))]
    kernel = matmul.compile(*[f"*{dtype}"] * 2, "*fp32", 1024, 1024, 1024, *strides, BM=bm, BN=bn, BK=bk, num_warps=warps,
                            num_stages=stages)
    ptx = clean(kernel)
    copies = re.findall(r"cp\.async\.(c[ag])\.shared\.global \[[^]]+\], \[[^]]+\], (\d+), %r\d+;", ptx)
    assert set(copies) == {("cg", "16")}
    assert len(copies) == stages * (bm + bn) * bk * 2 // 16 // (32 * warps)
    assert ptx.count("cp.async.mbarrier.arrive.noinc.shared.b64") == stages
    assert "ld.global" not in ptx and "st.shared" not in ptx.split("loop_end")[0]


@pytest.mark.parametrize("bm, bn, warps, roles", [(128, 128, 8, True), (64, 128, 4, True), (128, 256, 8, False)])
def test_a_role_that_copies(bm, bn, warps, roles):
    """As many producer warps as consumers; not where the accumulators need the registers."""
    kernel = matmul.compile(*["*bf16"] * 2, "*fp32", 1024, 1024, 1024, 1024, 1, 1, 1024, BM=bm, BN=bn, BK=64,
                            num_warps=warps, num_stages=3, ROLES=True)
    consumer, *producer = clean(kernel).split("role producer")
    assert bool(producer) == roles and kernel.metadata.num_threads == 32 * warps * (1 + roles)
    if roles:
        assert "cp.async" not in consumer and "wgmma" not in producer[0]
        assert "cp.async.wait_all" in producer[0], "nobody leaves before its copies have landed"
    else:
        assert "inline: 128 accumulators a thread leave no registers for 8 producer warps" in kernel.report()


@pytest.mark.parametrize("block, hint, cache, size", [(128, 1, "", 4), (256, 2, "", 8), (512, 2, "", 8), (1024, 1, "", 4)])
def test_width_follows_alignment(block, hint, cache, size):
    """Rows that start at multiples of 4 or 8 bytes: as many bytes a copy, through the first-level cache."""
    ptx = clean(row_sums.compile("*fp32", "*fp32", 100, "int32", HINT=hint, CACHE=cache, BLOCK=block, num_warps=4))
    assert set(re.findall(r"cp\.async\.(c[ag])\.shared\.global \S+ \S+ (\d+);", ptx)) == {("ca", str(size))}


def test_rows_that_start_at_multiples_of_16_bytes_are_one_copy():
    ptx = clean(row_sums.compile("*fp32", "*fp32", 100, "int32", HINT=4, CACHE="", BLOCK=512, num_warps=4))
    assert "cp.async.c" not in ptx
    assert ptx.count("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes") == 4   # three before the loop
    assert re.search(r"mbarrier\.arrive\.expect_tx\.shared::cta\.b64 _, \[[^]]+\], 2048;", ptx)


def test_one_thread_copies_what_several_hold():
    """A row of 64 for 128 threads."""
    ptx = clean(row_sums.compile("*fp32", "*fp32", 100, "int32", HINT=1, CACHE="", BLOCK=64, num_warps=4))
    copies = [line for line in ptx.splitlines() if "cp.async.ca" in line]
    assert len(copies) == 4 and all(line.strip().startswith("@%p") for line in copies)
    assert not any("noinc" in line and "@" in line for line in ptx.splitlines()), "all of them arrive"


def test_narrow_elements_are_loads():
    kernel = row_sums.compile("*fp16", "*fp32", 100, "int32", HINT=1, CACHE="", BLOCK=256, num_warps=4)
    assert "cp.async" not in clean(kernel)
    assert "not known to be aligned to 4 bytes (2 found)" in kernel.report()


@tilejit.kernel
def column_sums(x, out, n, pitch, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows, columns = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None, :]
    acc = tl.zeros((ROWS, BLOCK), tl.float32)
    for i in tl.range(0, n, num_stages=3):
        acc += tl.load(x + (i * ROWS + rows) * pitch + columns).to(tl.float32)
    tl.store(out + rows * BLOCK + columns, acc)


@pytest.mark.parametrize("block, lines", [(16, True), (32, True), (64, False)])
def test_narrow_rows_ask_for_lines(block, lines):
    ptx = clean(column_sums.compile("*bf16:16", "*fp32:16", "int32", "int32:16", ROWS=64, BLOCK=block))
    assert "cp.async.cg" in ptx and (".global.L2::128B [" in ptx) == lines
