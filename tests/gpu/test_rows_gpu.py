"""Row kernels on the GPU: values and gradients of random rows against torch in fp64, at widths from 1 to 262144, and of a
tensor of more than 4 GB. Needs torch with CUDA."""
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from tilejit import kernels  # noqa: E402

pytestmark = pytest.mark.gpu
WIDTHS = [*((torch.float32, n) for n in (7, 1000, 16384, 65536)),
          *((torch.bfloat16, n) for n in (1, 64, 5120, 20000, 32768, 50257, 131072, 262144))]


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
