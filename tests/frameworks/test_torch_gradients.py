"""Gradients of the ready kernels, and the kernels as operators of torch. Needs torch (the `torch` extra)."""
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import tilejit  # noqa: E402
from tilejit import kernels  # noqa: E402
from tilejit.errors import LaunchError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
ROWS = [(1, 3), (5, 7), (3, 1000), (130, 48), (2, 20000)]


@pytest.fixture(autouse=True)
def emulated():
    torch._dynamo.reset()
    with tilejit.knobs(target="emulator"):
        yield


def leaves(*shapes, dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(s).to(dtype).requires_grad_() for s in shapes]


def agree(ours, theirs, inputs, bound):
    """Values and gradients, for a gradient that is not uniform."""
    expected = theirs(*[x.double() for x in inputs])
    grad = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, inputs, grad)
    found = ours(*inputs)
    got = torch.autograd.grad(found, inputs, grad.to(found.dtype))
    for a, b in ((found, expected), *zip(got, wanted)):
        error = (a.double() - b.double()).norm() / max(1e-12, b.double().norm())
        assert a.shape == b.shape and error <= bound, error
    assert [g.dtype for g in got] == [x.dtype for x in inputs]


def layernorm64(x, w, b):
    return F.layer_norm(x, x.shape[-1:], w, b, 1e-5)


def rmsnorm64(x, w):
    return F.rms_norm(x, x.shape[-1:], w, 1e-6)


@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_row_kernels(shape):
    agree(kernels.softmax, lambda x: torch.softmax(x, -1), leaves(shape), 2e-5)
    agree(kernels.rmsnorm, rmsnorm64, leaves(shape, shape[1:]), 2e-5)
    agree(kernels.layernorm, layernorm64, leaves(shape, shape[1:], shape[1:]), 2e-5)


def test_row_kernels_without_weights():
    (x,) = leaves((4, 100))
    agree(kernels.rmsnorm, lambda x: F.rms_norm(x, (100,), None, 1e-6), [x], 2e-5)
    agree(lambda x: kernels.layernorm(x, eps=1e-3), lambda x: F.layer_norm(x, (100,), None, None, 1e-3), [x], 2e-5)


def test_rows_over_ctas():
    """layernorm of rows that its gradient spreads over CTAs."""
    agree(kernels.layernorm, layernorm64, leaves((2, 9000), (9000,), (9000,)), 2e-5)


def test_bf16():
    agree(kernels.rmsnorm, rmsnorm64, leaves((16, 256), (256,), dtype=torch.bfloat16), 1e-2)
    agree(kernels.add, torch.add, leaves((4, 30), (4, 30), dtype=torch.bfloat16), 1e-2)


def act(x, activation):
    return {None: lambda x: x, "relu": torch.relu, "gelu": F.gelu, "silu": F.silu}[activation](x)


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu"])
def test_matmul(activation):
    agree(lambda a, b, bias: kernels.matmul(a, b, bias, activation), lambda a, b, bias: act(a @ b + bias, activation),
          leaves((48, 64), (64, 80), (80,), dtype=torch.float16), 3e-3)


#: name -> (shapes of a, b and what else has a gradient, the function of those, the same in float64)
PRODUCTS = {
    **{f"batched {a} {b} {activation}": (
        ((a, 24, 16), (b, 16, 40), (40,)), lambda *x, f=activation: kernels.batched_matmul(*x, f),
        lambda a, b, bias, f=activation: act(a @ b + bias, f))
       for a, b, activation in ((3, 3, None), (3, 3, "relu"), (3, 1, "silu"), (1, 3, "gelu"), (1, 1, "relu"))},
    "batched without a bias, in fp32": (
        ((2, 8, 16), (2, 16, 24)), lambda a, b: kernels.batched_matmul(a, b, out_dtype=torch.float32), torch.bmm),
    **{f"fused {activation}": (
        ((40, 24), (24, 56), (56,), (40, 56)),
        lambda a, b, bias, r, f=activation: kernels.fused_matmul(a, b, bias=bias, activation=f, residual=r),
        lambda a, b, bias, r, f=activation: act(a @ b + bias, f) + r) for activation in (None, "relu", "gelu", "silu")},
    "fused, without more": (((40, 24), (24, 56)), lambda a, b: kernels.fused_matmul(a, b, activation="relu"),
                            lambda a, b: torch.relu(a @ b)),
    **{f"gated {activation}": (
        ((40, 24), (2, 56, 24), (2, 56), (40, 56)),
        lambda a, w, bias, r, f=activation: kernels.gated_matmul(a, w.mT, bias=bias, activation=f, residual=r),
        lambda a, w, bias, r, f=activation: act(a @ w[0].T + bias[0], f) * (a @ w[1].T + bias[1]) + r)
       for activation in (None, "relu", "gelu", "silu")},
    "gated of matrices apart": (
        ((33, 24), (3, 40, 24)), lambda a, w: kernels.gated_matmul(a, w[::2].mT, scale_a=torch.ones(1) / 2),
        lambda a, w: F.silu(a @ w[0].T / 2) * (a @ w[2].T / 2)),
    "swiglu": (((40, 24), (112, 24)), lambda a, w: kernels.swiglu(a, w.T), lambda a, w: F.silu(a @ w[:56].T) * (a @ w[56:].T)),
    "stream-k": (((24, 256), (256, 40), (40,)), lambda *x: kernels.matmul_streamk(*x, "gelu", split=2),
                 lambda a, b, bias: F.gelu(a @ b + bias)),
    "scaled": (((33, 20), (20, 17), (17,)), lambda *x: kernels.matmul(*x, "silu", scale_a=torch.ones(1) / 2, scale_b=torch.ones(1) * 3),
               lambda a, b, bias: F.silu(1.5 * (a @ b) + bias)),
}


@pytest.mark.parametrize("name, compiled", [
    *[(n, False) for n in PRODUCTS],
    *[(n, True) for n in PRODUCTS if n.startswith("batched 1") or not n.endswith((" relu", " gelu"))]])
def test_products(name, compiled):
    shapes, ours, theirs = PRODUCTS[name]
    ours = torch.compile(ours, backend="aot_eager", fullgraph=True) if compiled else ours
    agree(ours, theirs, leaves(*shapes, dtype=torch.float16), 3e-3)


def by_groups(a, b, places):
    """Of rows in groups; zeros elsewhere."""
    rows = torch.zeros(*a.shape[:-1], b.shape[2], dtype=a.dtype)
    for e, place in enumerate(places):
        rows[place] = a[place] @ b[e]
    return rows


@pytest.mark.parametrize("columns, width, compiled", [(24, 40, False), (24, 40, True), (13, 131, False)])
@pytest.mark.parametrize("offsets, counts", [([0, 3, 3, 70, 100], None), ([2, 2, 50, 81], None), (None, [40, 0, 33])], ids=str)
def test_grouped_products(offsets, counts, columns, width, compiled):
    """Empty groups have gradients of zeros, and so have rows of no group, whatever theirs hold."""
    masked, groups = offsets is None, len(counts or offsets[1:])
    places = [(e, slice(n)) for e, n in enumerate(counts)] if masked else [slice(*x) for x in zip(offsets, offsets[1:])]
    a, b = leaves((groups, 40, columns) if masked else (100, columns), (groups, columns, width), dtype=torch.float16)
    sizes = torch.tensor(counts or offsets, dtype=torch.int32)
    function = kernels.masked_grouped_matmul if masked else kernels.grouped_matmul
    function = torch.compile(function, backend="aot_eager", fullgraph=True) if compiled else function
    inside = torch.zeros(a.shape[:-1], dtype=torch.bool)
    for place in places:
        inside[place] = True
    expected = by_groups(a.double(), b.double(), places)
    grad = torch.randn(expected.shape, dtype=torch.float16)
    wanted = torch.autograd.grad(expected, (a, b), torch.where(inside[..., None], grad, 0).double())
    got = torch.autograd.grad(function(a, b, sizes), (a, b), torch.where(inside[..., None], grad, torch.nan))
    for found, g in zip(got, wanted):
        assert (found.double() - g.double()).norm() <= 3e-3 * g.double().norm()


def test_products_without_a_gradient():
    a, b = leaves((16, 32), (32, 16), dtype=torch.float16)
    scale = torch.ones(1, requires_grad=True)
    with pytest.raises(LaunchError, match="no gradient of scale_a: detach it"):
        kernels.matmul(a, b, scale_a=scale).sum().backward()
    with pytest.raises(LaunchError, match="grouped products have gradients in 16 bits only"):
        kernels.grouped_matmul(scale.expand(4, 4), scale.expand(1, 4, 4), torch.tensor([0, 4], dtype=torch.int32)).sum().backward()
    with pytest.raises(LaunchError, match="z cannot be given where a gradient is asked for"):
        kernels.fused_matmul(a, b, z=torch.empty(16, 16, dtype=torch.float16))
    with pytest.raises(LaunchError, match="has no gradient"):
        kernels.weight_only_matmul(a, torch.ones(16, 32, dtype=torch.int8), torch.ones(16)).sum().backward()
    with pytest.raises(LaunchError, match="products of fp8, or with scales of rows"):
        kernels.fused_matmul(a, b, scale_a=torch.ones(16, 1)).sum().backward()
    with pytest.raises(LaunchError, match="products of fp8, or with scales of rows or columns, have no gradient"):
        kernels.matmul(a.to(torch.float8_e4m3fn), b.T.contiguous().T.to(torch.float8_e4m3fn)).sum().backward()


def test_matmul_of_a_transposed_weight_and_another_dtype():
    x, w = leaves((40, 64), (80, 64), dtype=torch.float16)
    agree(lambda x, w: kernels.matmul(x, w.T, out_dtype=torch.float32), lambda x, w: x @ w.T, [x, w], 2e-3)


def block(x, w1, w2, scale, centre):
    """A feed-forward block: norm, two products, residual, norm."""
    h = kernels.matmul(kernels.rmsnorm(x, scale), w1, activation="silu")
    return kernels.layernorm(kernels.add(kernels.matmul(h, w2), x), scale, centre)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_block_equals_the_eager_one(backend):
    inputs = leaves((32, 64), (64, 96), (96, 64), (64,), (64,), dtype=torch.float16)
    expected = block(*inputs)
    grad = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, inputs, grad)
    found = torch.compile(block, backend=backend, fullgraph=True)(*inputs)
    assert torch.equal(found, expected)
    for a, b in zip(torch.autograd.grad(found, inputs, grad), wanted):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-3)


def test_outputs_that_are_given_carry_no_gradient():
    (x,) = leaves((4, 16))
    with pytest.raises(LaunchError, match="out cannot be given where a gradient"):
        kernels.softmax(x, out=torch.empty(4, 16))
    with torch.no_grad():
        out = torch.empty(4, 16)
        assert kernels.softmax(x, out=out) is out


def test_exported_block():
    class Block(torch.nn.Module):
        def forward(self, *inputs):
            return block(*inputs)

    inputs = [x.detach() for x in leaves((32, 64), (64, 96), (96, 64), (64,), (64,), dtype=torch.float16)]
    exported = torch.export.export(Block(), tuple(inputs))
    assert torch.equal(exported.module()(*inputs), block(*inputs))


@pytest.mark.parametrize("compiled", [False, True])
def test_attention(compiled):
    """Gradients of q, k, v and sinks, through the result and through logarithms of sums; followed by torch's compiler."""
    def ours(q, k, v, sinks):
        out, lse = kernels.attention(q, k, v, causal=True, sinks=sinks, return_lse=True)
        return torch.cat([out.double().flatten(), lse.double().flatten()])

    def theirs(q, k, v, sinks):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        scores = q @ k.repeat_interleave(2, 1).transpose(2, 3) / 8
        rows, columns = scores.shape[2:]
        scores = scores.masked_fill(torch.ones(rows, columns).triu(columns - rows + 1).bool(), -torch.inf)
        lse = torch.logaddexp(scores.logsumexp(-1), sinks[:, None])
        out = (scores - lse[..., None]).exp() @ v.repeat_interleave(2, 1)
        return torch.cat([out.transpose(1, 2).flatten(), lse.flatten()])

    q, k, v = leaves((1, 40, 2, 64), (1, 70, 1, 64), (1, 70, 1, 64), dtype=torch.float16)
    (sinks,) = leaves((2,))
    agree(torch.compile(ours, fullgraph=True, backend="aot_eager") if compiled else ours, theirs, [q, k, v, sinks], 3e-3)
