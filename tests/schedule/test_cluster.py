"""Programs of several CTAs: what is divided, what is multicast, what cannot be."""
import re

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.emulator
import tilejit.language as tl
from tilejit.emulator import Program
from tilejit.kernels.product.plain import matmul_kernel

BF16 = ml_dtypes.bfloat16


def product(m, n, k, bm, bn, a_rows=True, b_rows=False, grid=2, bias=None, bk=64, kernel=matmul_kernel, **options):
    """The kernel's result and the exact one."""
    rng = np.random.default_rng(1)
    a = rng.integers(-3, 4, (m, k) if a_rows else (k, m)).astype(BF16)
    b = rng.integers(-3, 4, (k, n) if b_rows else (n, k)).astype(BF16)
    out = np.full((m, n), np.nan, BF16)

    def desc(x, rows, columns, first):
        return tilejit.TensorDescriptor.from_tensor(x, (rows, columns) if first else (columns, rows))

    with tilejit.knobs(target="emulator"):
        compiled = kernel[(grid,)](
            desc(a, bm, bk, a_rows), desc(b, bk, bn, b_rows), desc(out, bm, bn, True), bias, m, n, k, BM=bm, BN=bn, BK=bk,
            GROUP=4, A_ROWS=a_rows, B_ROWS=b_rows, ACTIVATION=None, **options)
    a, b = (a if a_rows else a.T).astype(np.float32), (b if b_rows else b.T).astype(np.float32)
    exact = a @ b + (0 if bias is None else bias.astype(np.float32))
    return out, exact.astype(BF16), compiled


@pytest.mark.parametrize("ctas, warps, bm, bn", [(2, 8, 256, 64), (2, 4, 128, 128), (4, 4, 256, 64)])
def test_clusters_of_each_form(ctas, warps, bm, bn):
    out, exact, k = product(300, 200, 200, bm, bn, num_ctas=ctas, num_warps=warps)
    assert np.array_equal(out, exact)
    assert k.metadata.cluster == (ctas, 1, 1)
    assert f"cluster of {ctas} CTAs: b by multicast" in k.report()
    assert ".multicast::cluster" in k.ptx and f".reqnctapercluster {ctas}, 1, 1" in k.ptx
    assert "mbarrier.arrive.shared::cluster.b64" in k.ptx and "release.cluster.shared::cluster" not in k.ptx


@pytest.mark.parametrize("a_rows", [True, False])
@pytest.mark.parametrize("b_rows", [True, False])
def test_orders_and_bias(a_rows, b_rows):
    bias = np.arange(136).astype(BF16)
    out, exact, _ = product(264, 136, 128, 256, 128, a_rows, b_rows, bias=bias, num_ctas=2, num_warps=8)
    assert np.array_equal(out, exact)


def test_half_of_the_second_operand_is_copied_by_each():
    _, _, k = product(256, 128, 64, 256, 128, num_ctas=2, num_warps=8, grid=1)
    boxes = {p.base_arg: p.box for p in k.metadata.params if hasattr(p, "box")}
    assert boxes["a_desc"] == (128, 64) and boxes["b_desc"] == (64, 64)


@tilejit.kernel
def plain_kernel(x, out, N: tl.constexpr):
    offs = tl.arange(0, N)
    tl.store(out + offs, tl.load(x + offs) + 1.0)


@tilejit.kernel
def symmetric(a_desc, b_desc, out):
    acc = tl.zeros((128, 128), tl.float32)
    for k in range(0, 2):
        acc = tl.dot(a_desc.load([0, k * 64]), b_desc.load([0, k * 64]).T, acc)
    tl.store(out + tl.arange(0, 128)[:, None] * 128 + tl.arange(0, 128)[None, :], acc + acc.T)


@tilejit.kernel
def moved(a_desc, b_desc):
    b_desc.store([0, 0], a_desc.load([0, 0]))


def test_what_cannot_be_divided():
    """Programs of one CTA do what a cluster cannot, and the report says why; unless the author says how to divide it."""
    types = "desc<bf16[128x64]>", "desc<bf16[128x64]>"
    for kernel, args, why in ((moved, types, "the kernel is not specialised"),
                              (symmetric, (*types, "*fp32"), "convert would move elements between CTAs")):
        made = kernel.compile(*args, num_ctas=2)
        assert made.metadata.num_ctas == 1 and made.metadata.num_warps == 8 and made.options["num_ctas"] == 1
        assert why in made.report_lines[0] and "programs of one CTA of 8 warps" in made.report_lines[0]
        again = kernel.compile(*args, num_ctas=2)
        assert again.options == made.options and again.ir == made.ir and again.report_lines == made.report_lines
        with pytest.raises(tilejit.CompilationError, match=f"num_ctas=2: .*{why}"):
            kernel.compile(*args, num_ctas=2, cluster_split="M")
    assert "64 for every warpgroup of every CTA" in product(128, 128, 64, 128, 128, num_ctas=2, num_warps=8)[2].report()
    with pytest.raises(tilejit.CompilationError, match="num_ctas=3 is not legal"):
        plain_kernel.compile("*fp32", "*fp32", N=1024, num_ctas=3)


@pytest.mark.parametrize("options", [{}, {"cluster_split": "K", "num_consumer_groups": 1}])
def test_descriptors_have_the_offset_in_the_cta(options):
    """On a GPU the address of a CTA's own shared memory has its rank from bit 24 on; in a matrix descriptor that would
    be added to the leading offset."""
    bk = 128 if options else 64
    _, _, k = product(256, 128, 128, 256, 128, True, True, bk=bk, num_ctas=2, num_warps=8, grid=1, **options)
    low = set(re.findall(r"cvt\.u64\.u32 %rd\d+, (%r\d+);", k.ptx))
    made = {line for line in k.ptx.split("\n") if any(f" {r}," in line for r in low) and "cvt." not in line}
    assert made and all(re.fullmatch(r"\s*bfe\.u32 %r\d+, %r\d+, 4, 14;", line) for line in made)


@pytest.mark.one_schedule                # under the sanitizer the planted one is a finding
@pytest.mark.parametrize("planted", [False, True])
def test_the_emulator_sees_the_rank_in_a_descriptor(planted, monkeypatch):
    """The same descriptors made of the whole address: the first CTA's rows are right, the second's are not."""
    texts = []

    def program(text):
        texts.append(re.sub(r"bfe\.u32 (%r\d+, %r\d+), 4, 14;", r"shr.u32 \1, 4;", text) if planted else text)
        return Program(texts[-1])

    monkeypatch.setattr(tilejit.emulator, "Program", program)
    fresh = tilejit.kernel(matmul_kernel.fn)          # a launch of its own: nobody else gets this program
    out, exact, k = product(256, 128, 128, 256, 128, True, True, num_ctas=2, num_warps=8, grid=1, kernel=fresh)
    assert len(texts) == 1 and (texts[0] != k.ptx) == planted
    assert np.array_equal(out[:128], exact[:128]) and np.array_equal(out[128:], exact[128:]) == (not planted)


def test_errors_that_are_not_the_clusters_are_the_authors(monkeypatch):
    def broken(fn, stages=None):
        raise tilejit.CompilationError(f"broken with {fn.attrs.get('num_ctas', 1)}")

    monkeypatch.setattr("tilejit.runtime.compile.schedule", broken)
    with pytest.raises(tilejit.CompilationError, match="broken with 2"):
        plain_kernel.compile("*fp32", "*fp32", N=8192, num_ctas=2)


def test_where_one_cta_cannot_either_its_error_is_told():
    """Not that of the cluster, which the author did not need."""
    with pytest.raises(tilejit.errors.SharedMemoryError, match="bytes needed"):
        moved.compile("desc<int64[64x1024]>", "desc<int64[64x1024]>", num_ctas=2)
