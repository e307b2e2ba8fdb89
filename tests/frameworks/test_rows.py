"""Row kernels under torch: values and gradients against torch's own in fp64, as operators, compiled. Needs torch."""
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import tilejit  # noqa: E402
from tilejit import kernels  # noqa: E402
from tilejit.errors import LaunchError  # noqa: E402
from tilejit.kernels.rows.cross_entropy import cross_entropy_forward  # noqa: E402
from tilejit.kernels.rows.linear_cross_entropy import linear_cross_entropy_forward  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def evaluated():
    torch._dynamo.reset()
    torch.manual_seed(0)
    with tilejit.knobs(target="evaluator"):
        yield


def randn(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype)


def layernorm(x, w, b):
    return F.layer_norm(x, x.shape[-1:], w, b)


#: name -> ours, torch's, the operator and what comes after its arrays, arrays of which there are gradients.
CASES = {
    "softmax": (lambda x: kernels.softmax(x, None, 0.3), lambda x: torch.softmax(x * 0.3, -1),
                lambda x: (kernels.softmax, (x, None, 0.3)), lambda: [randn(3, 4, 33)]),
    "softmax of a transpose": (kernels.softmax, lambda x: torch.softmax(x, -1), lambda x: (kernels.softmax, (x,)),
                               lambda: [randn(33, 4).T]),
    "log_softmax": (kernels.log_softmax, lambda x: torch.log_softmax(x, -1), lambda x: (kernels.log_softmax, (x,)),
                    lambda: [randn(3, 9)]),
    "layernorm": (kernels.layernorm, layernorm, lambda x, w, b: (kernels.layernorm, (x, w, b)),
                  lambda: [randn(3, 4, 33), randn(33), randn(33)]),
    "layernorm without weights": (kernels.layernorm, lambda x: F.layer_norm(x, x.shape[-1:]),
                                  lambda x: (kernels.layernorm, (x,)), lambda: [randn(4, 33)]),
    "rmsnorm": (lambda x, w: kernels.rmsnorm(x, w, 1e-6, 1.0), lambda x, w: F.rms_norm(x, x.shape[-1:], w + 1, 1e-6),
                lambda x, w: (kernels.rmsnorm, (x, w, 1e-6, 1.0)), lambda: [randn(5, 40), randn(40)]),
    "rmsnorm of heads": (kernels.rmsnorm, lambda x, w: F.rms_norm(x, x.shape[-1:], None, 1e-6) * w,
                         lambda x, w: (kernels.rmsnorm, (x, w)), lambda: [randn(5, 3, 8), randn(3, 8)]),
    "add_rmsnorm": (kernels.add_rmsnorm, lambda x, r, w: (F.rms_norm(x + r, x.shape[-1:], w, 1e-6), x + r),
                    lambda x, r, w: (kernels.add_rmsnorm, (x, r, w)), lambda: [randn(5, 40), randn(5, 40), randn(40)]),
    "add_layernorm": (kernels.add_layernorm, lambda x, r, w, b: (layernorm(x + r, w, b), x + r),
                      lambda x, r, w, b: (kernels.add_layernorm, (x, r, w, b)),
                      lambda: [randn(5, 40), randn(5, 40), randn(40), randn(40)]),
    "glu": (kernels.glu, lambda a, b: F.silu(a) * b, lambda a, b: (kernels.glu, (a, b)),
            lambda: [randn(4, 80)[:, :40], randn(4, 40)]),
    "geglu": (lambda a, b: kernels.glu(a, b, "gelu_tanh"), lambda a, b: F.gelu(a, approximate="tanh") * b,
              lambda a, b: (kernels.glu, (a, b, "gelu_tanh")), lambda: [randn(4, 40), randn(4, 40)]),
    "reglu": (lambda a, b: kernels.glu(a, b, "relu"), lambda a, b: F.relu(a) * b,
              lambda a, b: (kernels.glu, (a, b, "relu")), lambda: [randn(4, 40), randn(4, 40)]),
    "relu_squared": (kernels.relu_squared, lambda x: F.relu(x) ** 2, lambda x: (kernels.relu_squared, (x,)),
                     lambda: [randn(4, 40)]),
    "group_norm": (lambda x, w, b: kernels.group_norm(x, 2, w, b), lambda x, w, b: F.group_norm(x, 2, w, b),
                   lambda x, w, b: (kernels.group_norm, (x, 2, w, b)), lambda: [randn(3, 4, 5), randn(4), randn(4)]),
    "sum": (kernels.sum, lambda x: x.sum(-1), lambda x: (kernels.sum, (x,)), lambda: [randn(3, 4, 9)]),
    "mean": (kernels.mean, lambda x: x.mean(-1), lambda x: (kernels.mean, (x,)), lambda: [randn(3, 9)]),
    "cumsum": (kernels.cumsum, lambda x: x.cumsum(-1), lambda x: (kernels.cumsum, (x,)), lambda: [randn(3, 9)]),
    "transpose": (kernels.transpose, lambda x: x.mT.contiguous(), lambda x: (kernels.transpose, (x,)),
                  lambda: [randn(3, 9)]),
    "topk": (lambda x: kernels.topk(x, 3)[0], lambda x: x.topk(3)[0], lambda x: (kernels.topk, (x, 3)),
             lambda: [randn(3, 9, dtype=torch.float32)]),
    "sort": (lambda x: kernels.sort(x)[0], lambda x: x.sort()[0], lambda x: (kernels.sort, (x,)),
             lambda: [randn(3, 9, dtype=torch.float32)]),
    "dropout": (lambda x: kernels.dropout(x, 0.5, 3), lambda x: x * kernels.dropout(torch.ones_like(x), 0.5, 3),
                lambda x: (kernels.dropout, (x, 0.5, 3)), lambda: [randn(3, 9)]),
    "embedding": (lambda w: kernels.embedding(w, TARGET.abs(), 3), lambda w: F.embedding(TARGET.abs(), w, 3),
                  lambda w: (kernels.embedding, (w, TARGET.abs(), 3)), lambda: [randn(9, 5)]),
    "embedding in order": (lambda w: kernels.embedding(w, TARGET.abs(), None, True),
                           lambda w: F.embedding(TARGET.abs(), w), lambda w: (kernels.embedding, (w, TARGET.abs())),
                           lambda: [randn(9, 5)]),
    "kl_divergence": (lambda x: kernels.kl_divergence(x, TEACHER, True),
                      lambda x: F.kl_div(x, TEACHER, reduction="none", log_target=True).sum(-1),
                      lambda x: (kernels.kl_divergence, (x, TEACHER, True)), lambda: [randn(4, 5).log_softmax(-1).detach()]),
    "linear_cross_entropy": (lambda x, w: kernels.linear_cross_entropy(x, w, TARGET, -1),
                             lambda x, w: F.cross_entropy(x @ w.T, TARGET, ignore_index=-1),
                             lambda x, w: (linear_cross_entropy_forward, (x, w, TARGET, -1, 0.0, 0.0, 0.0, "mean", 0, True, True)),
                             lambda: [randn(4, 16, dtype=torch.float32), randn(9, 16, dtype=torch.float32)]),
    "rope": (lambda x: kernels.rope(x, *ANGLES, None, True), lambda x: turned(x, *ANGLES),
             lambda x: (kernels.rope, (x, *ANGLES, None, True)), lambda: [randn(2, 4, 6, 12)[:, :, 2:4]]),
    "cross_entropy": (lambda x: kernels.cross_entropy(x, TARGET, None, -1, 0.1, 0.3, 4.1),
                      lambda x: F.cross_entropy(4.1 * torch.tanh(x / 4.1), TARGET, ignore_index=-1, label_smoothing=0.1)
                      + 0.3 * (torch.logsumexp(4.1 * torch.tanh(x / 4.1), 1) ** 2)[1:].mean(),
                      lambda x: (cross_entropy_forward, (x, TARGET, None, -1)), lambda: [randn(4, 9)]),
    "cross_entropy of rows": (lambda x: kernels.cross_entropy(x, TARGET, None, -1, reduction="none"),
                              lambda x: F.cross_entropy(x, TARGET, ignore_index=-1, reduction="none"),
                              lambda x: (cross_entropy_forward, (x, TARGET, None, -1)), lambda: [randn(4, 9)]),
}
TEACHER = torch.log_softmax(torch.arange(20.0, dtype=torch.float64).view(4, 5).cos(), -1)
TARGET = torch.tensor([-1, 3, 8, 0])
ANGLES = torch.cos(torch.arange(20.0, dtype=torch.float64).view(4, 5)), torch.sin(torch.arange(20.0, dtype=torch.float64).view(4, 5))


def turned(x, cos, sin):
    """Interleaved pairs as complex numbers; the columns behind them as they are."""
    pairs = torch.view_as_complex(x[..., :10].unflatten(-1, (5, 2)).contiguous()) * torch.complex(cos, sin)[:, None]
    return torch.cat([torch.view_as_real(pairs).flatten(-2), x[..., 10:]], -1)


def several(x):
    return x if isinstance(x, tuple) else (x,)


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    ours, theirs, _, inputs = CASES[name]
    xs = [x.requires_grad_() for x in inputs()]
    found, wanted = several(ours(*xs)), several(theirs(*xs))
    grads = [torch.randn_like(w) for w in wanted]
    for a, b in (*zip(found, wanted), *zip(torch.autograd.grad(found, xs, grads), torch.autograd.grad(wanted, xs, grads))):
        rtol, atol = (1e-11, 1e-11) if b.dtype == torch.float64 else (1e-6, 1e-2)          # products of fp32 are of tf32
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


def test_gradient_of_what_takes_no_part():
    """As torch has it behind `masked_fill`: none, also in a row of which nothing takes part."""
    x, mask = randn(4, 9).requires_grad_(), torch.arange(36).view(4, 9) % 5 > 1
    mask[2] = False
    for of in (x, torch.cat([x] * 15000, -1)[:2]):
        there = mask[:len(of)].repeat(1, of.shape[1] // 9)
        found, wanted = kernels.log_softmax(of, there), of.masked_fill(~there, -torch.inf).log_softmax(-1)
        grad = torch.randn_like(wanted)
        torch.testing.assert_close(*(torch.autograd.grad(y, x, grad)[0] for y in (found, wanted)))


#: Cases of rows alone: nothing else is as long as there are rows, or as one has columns.
ROWS = ("softmax", "log_softmax", "layernorm", "rmsnorm", "add_rmsnorm", "add_layernorm", "glu", "relu_squared", "sum", "mean",
        "cumsum", "transpose", "sort")


@pytest.mark.parametrize("name", [*ROWS, "topk", "cross_entropy", "cross_entropy of rows", "group_norm"])
def test_special_values(name):
    """NaN in one row and infinities in others, as torch has them; of rows whose elements are not side by side."""
    ours, theirs, _, inputs = CASES[name]
    first, *others = inputs()
    first = first.repeat_interleave(2, -1)[..., ::2]
    for i, value in enumerate((float("nan"), float("inf"), -float("inf"))):
        first[(0,) * (first.ndim - 2)][i, -1 - i] = value
    for a, b in zip(several(ours(first, *others)), several(theirs(first, *others)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("name", ROWS)
def test_few(name):
    """One column, no rows: results and gradients; no columns: results."""
    ours, theirs, _, inputs = CASES[name]
    ones = [x[..., :1] for x in inputs()]
    for given in (ones, [x[:0] if x.ndim > 1 else x for x in ones]):
        xs = [x.contiguous().requires_grad_() for x in given]
        found, wanted = several(ours(*xs)), several(theirs(*xs))
        grads = [torch.randn_like(w) for w in wanted]
        found += torch.autograd.grad(found, xs, grads)
        for a, b in zip(found, (*wanted, *torch.autograd.grad(wanted, xs, grads)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)
    xs = [x[..., :0].contiguous() for x in inputs()]
    for a, b in zip(several(ours(*xs)), several(theirs(*xs)), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_operators(name):
    """torch's own checks of an operator with these arguments. (Compiled they are in `test_whole_graphs`, and in every
    operator's own check.)"""
    _, _, called, inputs = CASES[name]
    op, args = called(*[x.requires_grad_() for x in inputs()])
    torch.library.opcheck(op.overload, args, test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if n != "embedding"        # its padding has none
                                  and all(x.dtype == torch.float64 for x in case[3]())])
def test_gradcheck(name):
    """Gradients against differences, along random directions."""
    ours, _, _, inputs = CASES[name]
    torch.autograd.gradcheck(ours, [x.requires_grad_() for x in inputs()], fast_mode=True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(backend):
    """A block of several, with a graph that is whole, at two sizes."""
    def block(x, residual, w):
        y, total = kernels.add_rmsnorm(x, residual, w)
        return kernels.glu(kernels.softmax(y), kernels.layernorm(total, eps=1e-3)) + kernels.log_softmax(y)

    compiled = torch.compile(block, backend=backend, fullgraph=True)
    for rows in (3, 5):
        xs = [randn(rows, 16).requires_grad_(), randn(rows, 16).requires_grad_(), randn(16).requires_grad_()]
        found, wanted = compiled(*xs), block(*xs)
        torch.testing.assert_close(found, wanted)
        for a, b in zip(torch.autograd.grad(found.sum(), xs), torch.autograd.grad(wanted.sum(), xs)):
            torch.testing.assert_close(a, b)


#: name -> ours, and its inputs: what has no gradient, or is done in place.
PLAIN = {
    "quantise tensor": (lambda x: kernels.quantise(x, "tensor", torch.float8_e4m3fn), lambda: [randn(3, 128, dtype=torch.float32)]),
    "quantise row": (lambda x: kernels.quantise(x, "row", torch.int8), lambda: [randn(3, 128, dtype=torch.float32)]),
    "quantise block": (lambda x: kernels.dequantise(*kernels.quantise(x, "block", torch.float8_e5m2), torch.bfloat16),
                       lambda: [randn(3, 256, dtype=torch.float32)]),
    "argmax": (kernels.argmax, lambda: [randn(3, 9)]),
    "js_divergence": (lambda x: kernels.js_divergence(x, TEACHER, 0.3), lambda: [randn(4, 5).log_softmax(-1)]),
    "cross_entropy_": (lambda x: kernels.cross_entropy_(x.clone(), TARGET, None, -1, 0.1, 1e-3, 30.0), lambda: [randn(4, 9)]),
    "clip_grad_norm_": (lambda *x: kernels.clip_grad_norm_([y.clone() for y in x], 1.0),
                        lambda: [randn(7, dtype=torch.float32), randn(3, 5, dtype=torch.float32)]),
    "adamw_": (lambda *x: adam_step(*(y.clone() for y in x)), lambda: list(randn(4, 6, dtype=torch.float32).abs().unbind())),
}


def adam_step(p, g, m, v):
    kernels.adamw_([p], [g], [m], [v], 3)
    return p, m, v


@pytest.mark.parametrize("name", [*CASES, *PLAIN])
def test_whole_graphs(name):
    """Every operator under torch.compile: there is no break, and the same numbers come out."""
    f, inputs = CASES[name][::3] if name in CASES else PLAIN[name]
    xs = inputs()
    with tilejit.knobs(target="emulator" if name in ("clip_grad_norm_", "adamw_") else "evaluator"):
        found, wanted = (several(g(*xs)) for g in (torch.compile(f, backend="aot_eager", fullgraph=True), f))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


def test_what_has_no_gradient():
    x, mask = randn(4, 8), randn(4, 8).requires_grad_()
    with pytest.raises(LaunchError, match="softmax has no gradient of mask: detach it"):
        kernels.softmax(x.requires_grad_(), mask).sum().backward()
