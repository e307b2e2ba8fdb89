"""Cases of compat.py: Liger-Kernel's operators, forward and backward, against formulas in torch."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from compat import Check, Sizes
from liger_kernel.transformers import functional as liger

CASES: dict[str, Callable[[Sizes], Check]] = {}


def case(make: Callable[[Sizes], Check]) -> Callable[[Sizes], Check]:
    """Register a case under its function's name."""
    CASES[make.__name__] = make
    return make


def rows(s: Sizes) -> tuple[int, int]:
    return s.pick(24, 8192), s.pick(200, 4096)


def rms(x: torch.Tensor, w: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w


@case
def rms_norm(s: Sizes) -> Check:
    m, n = rows(s)
    return Check(lambda x, w: liger.liger_rms_norm(x, w, 1e-6), rms, (s.randn(m, n), s.randn(n)))


@case
def rms_norm_gemma(s: Sizes) -> Check:
    m, n = rows(s)
    return Check(lambda x, w: liger.liger_rms_norm(x, w, 1e-6, 1.0, "gemma"), lambda x, w: rms(x, w + 1),
                 (s.randn(m, n), s.randn(n)))


@case
def rms_norm_many_rows(s: Sizes) -> Check:
    return Check(lambda x, w: liger.liger_rms_norm(x, w, 1e-6), rms, (s.randn(s.pick(32769, 65536), 64 if s.large else 16),
                                                                     s.randn(64 if s.large else 16)))


@case
def fused_add_rms_norm(s: Sizes) -> Check:
    m, n = rows(s)

    def reference(x: Any, r: Any, w: Any) -> Any:
        return rms(x + r, w), x + r

    return Check(lambda x, r, w: liger.liger_fused_add_rms_norm(x, r, w, 1e-6), reference,
                 (s.randn(m, n), s.randn(m, n), s.randn(n)))


@case
def modulated_rms_norm(s: Sizes) -> Check:
    b, t, n = 3, s.pick(8, 2048), s.pick(200, 4096)

    def reference(x: Any, w: Any, scale: Any, shift: Any) -> Any:
        return rms(x, w) * (1 + scale[:, None]) + shift[:, None]

    return Check(lambda x, w, a, c: liger.liger_modulated_rms_norm(x, w, a, c), reference,
                 (s.randn(b, t, n), s.randn(n), s.randn(b, n), s.randn(b, n)))


@case
def layer_norm(s: Sizes) -> Check:
    m, n = rows(s)
    return Check(lambda x, w, b: liger.liger_layer_norm(x, w, b, 1e-5),
                 lambda x, w, b: F.layer_norm(x, (n,), w, b, 1e-5), (s.randn(m, n), s.randn(n), s.randn(n)))


@case
def group_norm(s: Sizes) -> Check:
    b, c, t = s.pick(2, 32), s.pick(12, 512), s.pick(70, 1024)
    return Check(lambda x, w, z: liger.liger_group_norm(x, w, z, c, 4, 1e-5),
                 lambda x, w, z: F.group_norm(x, 4, w, z, 1e-5), (s.randn(b, c, t), s.randn(c), s.randn(c)))


@case
def poly_norm(s: Sizes) -> Check:
    m, n = rows(s)

    def norm(x: Any) -> Any:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)

    return Check(lambda x, w, b: liger.liger_poly_norm(x, w, b),
                 lambda x, w, b: w[0] * norm(x ** 3) + w[1] * norm(x ** 2) + w[2] * norm(x) + b,
                 (s.randn(m, n), s.randn(3), s.randn()))


@case
def dyt(s: Sizes) -> Check:
    m, n = rows(s)
    return Check(lambda x, a, g, b: liger.liger_dyt(x, a, g, b), lambda x, a, g, b: torch.tanh(a * x) * g + b,
                 (s.randn(m, n), s.rand(1), s.randn(n), s.randn(n)))


@case
def swiglu(s: Sizes) -> Check:
    m, n = rows(s)
    return Check(liger.liger_swiglu, lambda a, b: F.silu(a) * b, (s.randn(m, n), s.randn(m, n)))


@case
def geglu(s: Sizes) -> Check:
    m, n = rows(s)
    return Check(liger.liger_geglu, lambda a, b: F.gelu(a, approximate="tanh") * b, (s.randn(m, n), s.randn(m, n)))


@case
def relu_squared(s: Sizes) -> Check:
    m, n = rows(s)
    return Check(liger.liger_relu_squared, lambda x: F.relu(x).square(), (s.randn(m, n),))


@case
def softmax(s: Sizes) -> Check:
    m, n = rows(s)
    return Check(liger.liger_softmax, lambda x: torch.softmax(x, -1), (s.randn(m, n),))


@case
def sparsemax(s: Sizes) -> Check:
    m, n = rows(s)

    def reference(x: Any) -> Any:
        ordered = torch.sort(x, -1, descending=True).values
        sums = ordered.cumsum(-1) - 1
        k = torch.arange(1, x.shape[-1] + 1, device=x.device)
        count = (ordered * k > sums).sum(-1, keepdim=True)
        return F.relu(x - sums.gather(-1, count - 1) / count)

    return Check(liger.liger_sparsemax, reference, (s.randn(m, n),))


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat((-b, a), -1) * sin[:, None]


def angles(s: Sizes, t: int, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    turn = torch.arange(t)[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
    turn = torch.cat((turn, turn), -1)[None]
    return turn.cos().to(s.device, s.dtype), turn.sin().to(s.device, s.dtype)


@case
def rope(s: Sizes) -> Check:
    b, h, g, t, d = 2, s.pick(3, 32), s.pick(2, 8), s.pick(9, 2048), s.pick(32, 128)
    cos, sin = angles(s, t, d)
    return Check(lambda q, k: liger.liger_rope(q, k, cos, sin),
                 lambda q, k: (rotated(q, cos.to(q), sin.to(q)), rotated(k, cos.to(q), sin.to(q))),
                 (s.randn(b, h, t, d), s.randn(b, g, t, d)))


@case
def qwen2vl_mrope(s: Sizes) -> Check:
    b, h, g, t, d = 2, s.pick(3, 32), s.pick(2, 8), s.pick(9, 2048), s.pick(32, 128)
    section = [d // 8, d // 8 + d // 16, d // 8 + d // 16]
    section[0] = d // 2 - section[1] - section[2]
    turn = s.rand(3, b, t, d // 2)
    cos, sin = (f(torch.cat((turn, turn), -1)) for f in (torch.cos, torch.sin))

    def merged(table: Any) -> Any:
        parts = table.split(section * 2, -1)
        return torch.cat([p[i % 3] for i, p in enumerate(parts)], -1)

    def reference(q: Any, k: Any) -> Any:
        c, n = merged(cos).to(q), merged(sin).to(q)
        return rotated(q, c, n), rotated(k, c, n)

    return Check(lambda q, k: liger.liger_qwen2vl_mrope(q, k, cos, sin, section), reference,
                 (s.randn(b, h, t, d), s.randn(b, g, t, d)))


@case
def llama4_rope(s: Sizes) -> Check:
    from liger_kernel.ops.llama4_rope import LigerLlama4RopeFunction

    b, h, g, t, d = 2, s.pick(3, 32), s.pick(2, 8), s.pick(9, 2048), s.pick(32, 128)
    turn = torch.rand(t, d // 2, generator=s.generator, device=s.device)
    around = torch.polar(torch.ones_like(turn), turn)

    def reference(q: Any, k: Any) -> Any:
        def turned(x: Any) -> Any:
            z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * around.to(torch.complex128)[:, None]
            return torch.view_as_real(z).flatten(-2)

        return turned(q), turned(k)

    return Check(lambda q, k: LigerLlama4RopeFunction.apply(q, k, around), reference,
                 (s.randn(b, t, h, d), s.randn(b, t, g, d)))


def logits(s: Sizes) -> tuple[torch.Tensor, torch.Tensor]:
    m, v = s.pick(12, 4096), s.pick(300, 32000)
    return s.randn(m, v), s.randint(v, m)


@case
def cross_entropy(s: Sizes) -> Check:
    return Check(lambda x, y: liger.liger_cross_entropy(x, y), lambda x, y: F.cross_entropy(x, y), logits(s))


@case
def cross_entropy_smooth(s: Sizes) -> Check:
    x, y = logits(s)
    y[3] = -100

    def reference(x: Any, y: Any) -> Any:
        x = 30 * torch.tanh(x / 30)
        z = torch.logsumexp(x, -1).square()[y != -100].sum() / (y != -100).sum()
        return F.cross_entropy(x, y, label_smoothing=0.1) + 1e-4 * z

    return Check(lambda x, y: liger.liger_cross_entropy(x, y, label_smoothing=0.1, lse_square_scale=1e-4, softcap=30.0),
                 reference, (x, y))


@case
def cross_entropy_weighted(s: Sizes) -> Check:
    x, y = logits(s)
    w = s.rand(x.shape[1])
    return Check(lambda x, y: liger.liger_cross_entropy(x, y, weight=w),
                 lambda x, y: F.cross_entropy(x, y, weight=w.to(x)), (x, y))


@case
def fused_linear_cross_entropy(s: Sizes) -> Check:
    m, h, v = s.pick(12, 4096), s.pick(40, 2048), s.pick(200, 32000)
    y = s.randint(v, m)
    return Check(lambda x, w: liger.liger_fused_linear_cross_entropy(x, w, y), lambda x, w: F.cross_entropy(x @ w.T, y),
                 (s.randn(m, h), s.randn(v, h, scale=0.2)))


def log_probabilities(s: Sizes) -> tuple[torch.Tensor, torch.Tensor]:
    m, v = s.pick(12, 4096), s.pick(300, 32000)
    return torch.log_softmax(s.randn(m, v), -1), torch.log_softmax(s.randn(m, v), -1)


@case
def kl_div(s: Sizes) -> Check:
    x, y = log_probabilities(s)
    return Check(lambda x: liger.liger_kl_div(x, y.exp(), reduction="batchmean"),
                 lambda x: F.kl_div(x, y.exp().to(x), reduction="batchmean"), (x,))


def jensen_shannon(x: torch.Tensor, y: torch.Tensor, beta: float = 0.5) -> torch.Tensor:
    m = beta * y.exp() + (1 - beta) * x.exp()
    both = beta * y.exp() * (y - m.log()) + (1 - beta) * x.exp() * (x - m.log())
    return both.sum() / x.shape[0]


@case
def jsd(s: Sizes) -> Check:
    x, y = log_probabilities(s)
    return Check(lambda x: liger.liger_jsd(x, y), lambda x: jensen_shannon(x, y.to(x)), (x,))


@case
def jsd_forward_kl(s: Sizes) -> Check:
    x, y = log_probabilities(s)
    return Check(lambda x: liger.liger_jsd(x, y, beta=0.0),
                 lambda x: (y.to(x).exp() * (y.to(x) - x)).sum() / x.shape[0], (x,))


@case
def tvd(s: Sizes) -> Check:
    x, y = (z.exp() for z in log_probabilities(s))
    return Check(lambda x: liger.liger_tvd(x, y, reduction="batchmean"),
                 lambda x: (x - y.to(x)).abs().sum() / 2 / x.shape[0], (x,))


def small_product(s: Sizes) -> tuple[torch.Tensor, torch.Tensor]:
    m, h, v = s.pick(8, 1024), s.pick(40, 2048), s.pick(200, 32000)
    return s.randn(m, h), s.randn(v, h, scale=0.2)


@case
def fused_linear_jsd(s: Sizes) -> Check:
    (x, w), (tx, tw) = small_product(s), small_product(s)

    def reference(x: Any, w: Any) -> Any:
        return jensen_shannon(torch.log_softmax(x @ w.T, -1), torch.log_softmax(tx.to(x) @ tw.to(x).T, -1))

    return Check(lambda x, w: liger.liger_fused_linear_jsd(x, w, tx, tw), reference, (x, w))


@case
def fused_linear_kl_div(s: Sizes) -> Check:
    x, w = small_product(s)
    y = torch.softmax(s.randn(x.shape[0], w.shape[0]), -1)
    return Check(lambda x, w: liger.liger_fused_linear_kl_div(x, w, y),
                 lambda x, w: F.kl_div(torch.log_softmax(x @ w.T, -1), y.to(x), reduction="batchmean"), (x, w))


@case
def embedding(s: Sizes) -> Check:
    from liger_kernel.ops import LigerEmbeddingFunction

    v, n, m = s.pick(50, 32000), s.pick(72, 4096), s.pick(20, 8192)
    y = s.randint(v, m)
    return Check(lambda w: LigerEmbeddingFunction.apply(w, y), lambda w: F.embedding(y, w), (s.randn(v, n),))


@case
def multi_token_attention(s: Sizes) -> Check:
    b, c, t = 2, s.pick(3, 16), s.pick(12, 512)

    def reference(x: Any, w: Any, z: Any) -> Any:
        over = torch.triu(torch.ones(t, t, dtype=torch.bool, device=x.device), 1)
        p = torch.softmax(x.masked_fill(over, -1e9), -1)
        return F.conv2d(p, w, z, padding=1).masked_fill(over, 0)

    return Check(lambda x, w, z: liger.liger_multi_token_attention(x, w, z, padding=1), reference,
                 (s.randn(b, c, t, t), s.randn(c, c, 3, 3), s.randn(c)))


@case
def fused_neighborhood_attention(s: Sizes) -> Check:
    b, h, t, d = 1, s.pick(2, 16), s.pick(40, 1024), s.pick(32, 64)

    def reference(q: Any, k: Any, v: Any) -> Any:
        i = torch.arange(t, device=q.device)
        far = (i[:, None] - i).abs() > 3
        p = torch.softmax((q @ k.mT * d ** -0.5).masked_fill(far, -torch.inf), -1)
        return p @ v

    return Check(lambda q, k, v: liger.liger_fused_neighborhood_attention(q, k, v, 7), reference,
                 (s.randn(b, h, t, d), s.randn(b, h, t, d), s.randn(b, h, t, d)), tolerance=5e-3)


@case
def attn_res(s: Sizes) -> Check:
    n, b, t, d = 4, 2, s.pick(5, 1024), s.pick(96, 2048)

    def reference(v: Any, q: Any, w: Any) -> Any:
        score = (rms(v, w) * q).sum(-1)
        return (torch.softmax(score, 0)[..., None] * v).sum(0)

    return Check(lambda v, q, w: liger.liger_attn_res(v, q, w), reference,
                 (s.randn(n, b, t, d), s.randn(d, scale=0.3), s.randn(d)))
