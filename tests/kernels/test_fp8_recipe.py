"""matmul(recipe="fp8"): results and gradients as of operands with 4 and 3 bits, by fp8 products."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilejit
from tilejit.kernels import matmul
from tilejit.testing import rel_error

#: 3 and 2 bits behind the first one: half a last place, as a share of numbers that are even between powers of two.
E4M3, E5M2 = 2 ** -4 * 0.45, 2 ** -3 * 0.45


def test_errors_are_of_eight_bits():
    torch = pytest.importorskip("torch")
    torch.manual_seed(3)
    x, w, bias = (torch.randn(s).bfloat16().requires_grad_() for s in ((33, 70), (50, 70), (50,)))
    for activation in (None, "gelu"):
        y = matmul(x, w.T, bias, activation, recipe="fp8")
        g = torch.randn_like(y)
        exact = [t.detach().double().requires_grad_() for t in (x, w, bias)]
        want = exact[0] @ exact[1].T + exact[2]
        want = torch.nn.functional.gelu(want, approximate="tanh") if activation else want
        assert 0.01 < rel_error(y.detach().float().numpy(), want.detach().numpy()) < 2 * E4M3
        found = torch.autograd.grad(y, (x, w, bias), g)
        for ours, theirs, most in zip(found, torch.autograd.grad(want, exact, g.double()), (2 * E5M2, 2 * E5M2, 1e-2)):
            assert rel_error(ours.float().numpy(), theirs.numpy()) < most


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_scales_follow_the_numbers(scale):
    """Products of fp8: what e4m3 holds exactly, times powers of two, is exact whatever its size."""
    a = np.random.default_rng(0).integers(-4, 5, (20, 48)).astype(np.float32)
    a[0, 0] = 7                                                # 448 = 7 * 64: the scale is a power of two
    power = 2.0 ** round(np.log2(scale))
    out = matmul((a * power).astype(ml_dtypes.bfloat16), a.T.astype(ml_dtypes.bfloat16), recipe="fp8",
                 out_dtype=tilejit.language.float32)
    assert np.array_equal(out, a @ a.T * power)


def test_rejects():
    a = np.zeros((16, 16), ml_dtypes.bfloat16)
    for given in ({"recipe": "mx"}, {"recipe": "fp8", "scale_a": np.ones(1, np.float32)}):
        with pytest.raises(tilejit.LaunchError, match="recipe is one of .*'fp8'.*, and makes the scales"):
            matmul(a, a, **given)
