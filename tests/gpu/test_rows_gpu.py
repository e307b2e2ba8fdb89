"""Row kernels on the GPU: values and gradients of random rows against torch in fp64, at widths from 1 to 262144, and of a
tensor of more than 4 GB. Needs torch with CUDA."""
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import tilejit  # noqa: E402
import tilejit.language as tl  # noqa: E402
from tilejit import kernels  # noqa: E402

pytestmark = pytest.mark.gpu
WIDTHS = [*((torch.float32, n) for n in (7, 1000, 4097, 16384, 65536)),
          *((torch.bfloat16, n) for n in (1, 64, 1001, 4097, 5120, 20000, 32768, 50257, 131072, 262144))]


def target(x):
    return (torch.arange(x.shape[0], device=x.device) * 7919) % x.shape[1]


#: name -> ours, torch's, how many matrices and vectors.
CASES = {
    "softmax": (kernels.softmax, lambda x: torch.softmax(x, 1), 1, 0),
    "log_softmax": (kernels.log_softmax, lambda x: torch.log_softmax(x, 1), 1, 0),
    "layernorm": (kernels.layernorm, lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b), 1, 2),
    "add_rmsnorm": (kernels.add_rmsnorm, lambda x, r, w: (F.rms_norm(x + r, x.shape[1:], w, 1e-6), x + r), 2, 1),
    "cross_entropy": (lambda x: kernels.cross_entropy(x, target(x), None, -100, 0.1, 1e-3),
                      lambda x: F.cross_entropy(x, target(x), label_smoothing=0.1) + 1e-3 * (torch.logsumexp(x, 1) ** 2).mean(), 1, 0),
    "glu": (kernels.glu, lambda a, b: F.silu(a) * b, 2, 0),
    "sum": (kernels.sum, lambda x: x.sum(1), 1, 0),
    "cumsum": (kernels.cumsum, lambda x: x.cumsum(1), 1, 0),
    "transpose": (kernels.transpose, lambda x: x.T.contiguous(), 1, 0)}


def several(x):
    return x if isinstance(x, tuple) else (x,)


@pytest.mark.parametrize("dtype, columns", WIDTHS, ids=str)
def test_widths(dtype, columns):
    """All kernels of one width."""
    wrong = {}
    for name, (ours, theirs, matrices, vectors) in CASES.items():
        torch.manual_seed(columns)
        shapes = [(37, columns)] * matrices + [(columns,)] * vectors
        xs = [torch.randn(s, device="cuda").to(dtype).requires_grad_() for s in shapes]
        doubles = [x.detach().double().requires_grad_() for x in xs]
        found, wanted = several(ours(*xs)), several(theirs(*doubles))
        grads = [torch.randn(w.shape, device="cuda").to(dtype) for w in wanted]
        found += torch.autograd.grad(found, xs, [g.to(f.dtype) for g, f in zip(grads, found)])
        wanted += torch.autograd.grad(wanted, doubles, [g.double() for g in grads])
        # one column's deviation is 0, so that rounding is all there is in a norm
        bound = (2e-2 if dtype == torch.bfloat16 else 2e-4) * (1 if columns > 1 else 50)
        for i, (a, b) in enumerate(zip(found, wanted)):
            error = float((a.double() - b).norm() / max(1e-3 * b.numel() ** 0.5, float(b.norm())))
            if not error < bound:
                wrong[f"{name}, result {i}"] = error
    assert not wrong


def others(device):
    """name -> (found, wanted), results and gradients of the kernels that have arguments of other kinds."""
    torch.manual_seed(5)
    made = {}

    def leaf(*shape, dtype=torch.float32):
        return torch.randn(shape, device=device, dtype=dtype).requires_grad_()

    def both(name, ours, theirs, *leaves):
        doubles = [x.detach().double().requires_grad_() for x in leaves]
        found, wanted = several(ours(*leaves)), several(theirs(*doubles))
        grads = [torch.randn(w.shape, device=device) for w in wanted]
        found += torch.autograd.grad(found, leaves, [g.to(f.dtype) for g, f in zip(grads, found)])
        wanted += torch.autograd.grad(wanted, doubles, [g.double() for g in grads])
        made[name] = (found, wanted)

    def soft(x):
        return torch.log_softmax(x, -1)

    def js(x, y):
        m = torch.log((x.exp() + y.exp()) / 2)
        return (F.kl_div(m, y, reduction="none", log_target=True) + F.kl_div(m, x, reduction="none", log_target=True)).sum(-1) / 2

    index = torch.randint(0, 50, (7, 9), device=device)
    both("group_norm", lambda x, w, b: kernels.group_norm(x, 4, w, b), lambda x, w, b: F.group_norm(x, 4, w, b),
         leaf(3, 12, 5, 7), leaf(12), leaf(12))
    both("embedding", lambda w: kernels.embedding(w, index), lambda w: F.embedding(index, w), leaf(50, 72))
    fixed = torch.randn(5, 300, device=device)
    both("js_divergence", lambda x: kernels.js_divergence(x, soft(fixed)), lambda x: js(x, soft(fixed.double())),
         soft(leaf(5, 300)).detach().requires_grad_())
    both("heads", lambda x, w: kernels.rmsnorm(x, w), lambda x, w: F.rms_norm(x, x.shape[-1:], None, 1e-6) * w, leaf(11, 6, 64),
         leaf(6, 64))
    both("sort", lambda x: kernels.sort(x)[0], lambda x: x.sort(-1)[0], leaf(5, 500))
    t = torch.randint(0, 96, (130,), device=device)
    both("linear_cross_entropy", lambda x, w: kernels.linear_cross_entropy(x, w, t), lambda x, w: F.cross_entropy(x @ w.T, t),
         leaf(130, 64), leaf(96, 64))
    x = leaf(6, 1000)
    for of in ("tensor", "row", "block"):
        kind = x.detach()[:, :896].contiguous()
        made[f"quantise {of}"] = (kernels.dequantise(*kernels.quantise(kind, of, torch.int8), torch.float32),), (kind.double(),)
    y = kernels.dropout(x, 0.25, 3)
    kept = (y != 0).double()
    made["dropout"] = (y, torch.autograd.grad(y.sum(), x)[0]), (x.detach().double() * kept / 0.75, kept / 0.75)
    logits, own = x.detach().clone(), torch.rand(1000, device=device)
    at = torch.tensor([5, -100, 999, 0, 7, 8], device=device)
    loss = kernels.cross_entropy_(logits, at, own, -100, 0.1)
    double = x.detach().double().requires_grad_()
    wanted = F.cross_entropy(double, at, own.double(), label_smoothing=0.1)
    made["cross_entropy_"] = (loss, logits), (wanted, torch.autograd.grad(wanted, double)[0])
    ps, gs = [[torch.randn(n, device=device) for n in (33, 4097)] for _ in "pg"]
    doubles = [p.double().requires_grad_() for p in ps]
    adam = torch.optim.AdamW(doubles, lr=1e-3, weight_decay=0.01)
    for p, g in zip(doubles, gs):
        p.grad = g.double()
    adam.step()
    kernels.adamw_(ps, gs, [torch.zeros_like(p) for p in ps], [torch.zeros_like(p) for p in ps], 1)
    made["adamw"] = tuple(ps), tuple(p.detach() for p in doubles)
    total = torch.cat(gs).double().norm()
    clipped = [g.double() * min(1.0, float(1.0 / (total + 1e-6))) for g in gs]
    kernels.clip_grad_norm_(gs, 1.0)
    made["clip_grad_norm_"] = tuple(gs), tuple(clipped)
    return made


def test_others():
    wrong = {}
    for name, (found, wanted) in others("cuda").items():
        for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
            error = float((a.detach().double() - b.detach()).norm() / b.detach().norm())
            if not error < (2e-2 if name.startswith("quantise") else 2e-3 if name.startswith("linear") else 2e-4):
                wrong[f"{name}, result {i}"] = error
    assert not wrong


def test_more_than_four_gigabytes():
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GB")
    x = torch.randn(40000, 65536, device="cuda", dtype=torch.bfloat16)
    for ours, theirs in ((kernels.softmax, lambda v: torch.softmax(v, 1)), (kernels.relu_squared, lambda v: F.relu(v) ** 2),
                         (kernels.rmsnorm, lambda v: F.rms_norm(v, v.shape[1:], None, 1e-6))):
        y = ours(x)
        for at in (0, 16384, 32767, 32768, 39999):
            want = theirs(x[at:at + 1].double())
            assert float((y[at:at + 1].double() - want).norm() / want.norm()) < 2e-2
        del y
    y = kernels.transpose(x)
    for at in (0, 32767, 32768, 39999):
        assert bool((y[:, at] == x[at]).all())
    del y
    t = target(x)
    some = {at: x[at:at + 1].double() for at in (0, 32767, 32768, 39999)}
    loss = kernels.cross_entropy_(x, t, reduction="none")              # and the gradient in the place of x
    for at, v in some.items():
        assert abs(float(loss[at]) - float(F.cross_entropy(v, t[at:at + 1]))) < 1e-3
        want = torch.softmax(v, 1) - F.one_hot(t[at:at + 1], x.shape[1])
        assert float((x[at:at + 1].double() - want).norm() / want.norm()) < 2e-2


@tilejit.kernel
def last_programs(out, n):
    pid = tl.program_id(0)
    if pid >= n - 4:
        tl.store(out + (n - 1 - pid), pid)


def test_as_many_programs_as_there_can_be():
    out, n = torch.zeros(4, dtype=torch.int32, device="cuda"), (1 << 31) - 1
    last_programs[(n,)](out, n, num_warps=1)
    assert out.tolist() == [n - 1, n - 2, n - 3, n - 4]
