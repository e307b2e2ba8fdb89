"""Cases of compat.py: flash-linear-attention's kernels, against its own references in Python."""
from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from compat import Check, Sizes
from fla import modules, ops

CASES: dict[str, Callable[[Sizes], Check]] = {}
assert modules


def case(make: Callable[[Sizes], Check]) -> Callable[[Sizes], Check]:
    """Register a case under its function's name."""
    CASES[make.__name__] = make
    return make


def naive(path: str) -> Callable[..., Any]:
    """A reference of the package: `gla.naive_recurrent_gla`."""
    folder, name = path.split(".")
    for module in ("naive", "recurrent_naive", "chunk_naive"):
        try:
            return getattr(importlib.import_module(f"fla.ops.{folder}.{module}"), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(path)


def first(made: Any) -> Any:
    """The output, without the final state."""
    return made[0] if isinstance(made, tuple) else made


def heads(s: Sizes, count: int, d: int | None = None) -> list[torch.Tensor]:
    """Tensors of shape [batch, time, heads, width]."""
    b, t, h = s.pick(1, 4), s.pick(70, 2048), s.pick(2, 16)
    return [s.randn(b, t, h, d or s.pick(32, 128)) for _ in range(count)]


def gates(s: Sizes, like: torch.Tensor, scalar: bool = False) -> torch.Tensor:
    """Logarithms of decays."""
    shape = like.shape[:-1] if scalar else like.shape
    return F.logsigmoid(s.randn(*shape)) / 4


def same(ours: Callable[..., Any], reference: Callable[..., Any], inputs: list[torch.Tensor], tolerance: float = 5e-3,
         grads: bool = True) -> Check:
    """A check of first outputs; the reference works in the inputs' own type."""
    return Check(lambda *x: first(ours(*x)), lambda *x: first(reference(*x)), tuple(inputs), tolerance, grads, True)


def by_heads(reference: Callable[..., Any]) -> Callable[..., Any]:
    """A reference that wants [batch, heads, time, width]."""
    return lambda *x: first(reference(*(y.transpose(1, 2) for y in x))).transpose(1, 2)


def narrow(s: Sizes) -> None:
    """Kernels that refuse float32."""
    s.dtype = torch.bfloat16


def linear(q: Any, k: Any, v: Any) -> Any:
    return naive("linear_attn.naive_recurrent_linear_attn")(q, k, v, normalize=False)


@case
def chunk_linear_attn(s: Sizes) -> Check:
    return same(lambda q, k, v: ops.chunk_linear_attn(q, k, v, normalize=False), linear, heads(s, 3))


@case
def fused_recurrent_linear_attn(s: Sizes) -> Check:
    return same(lambda q, k, v: ops.fused_recurrent_linear_attn(q, k, v, normalize=False), linear, heads(s, 3))


def with_gates(op: Callable[..., Any], path: str, scalar: bool = False) -> Callable[[Sizes], Check]:
    def make(s: Sizes) -> Check:
        q, k, v = heads(s, 3)
        return same(op, naive(path), [q, k, v, gates(s, q, scalar)])

    return make


CASES["chunk_gla"] = with_gates(lambda q, k, v, g: ops.chunk_gla(q, k, v, g), "gla.naive_recurrent_gla")
CASES["fused_recurrent_gla"] = with_gates(lambda q, k, v, g: ops.fused_recurrent_gla(q, k, v, g),
                                          "gla.naive_recurrent_gla")
CASES["chunk_simple_gla"] = with_gates(ops.chunk_simple_gla, "simple_gla.naive_recurrent_simple_gla", True)
CASES["fused_recurrent_simple_gla"] = with_gates(ops.fused_recurrent_simple_gla,
                                                 "simple_gla.naive_recurrent_simple_gla", True)
CASES["parallel_simple_gla"] = with_gates(ops.parallel_simple_gla, "simple_gla.naive_parallel_simple_gla", True)
CASES["fused_chunk_simple_gla"] = with_gates(ops.fused_chunk_simple_gla, "simple_gla.naive_recurrent_simple_gla", True)
CASES["parallel_forgetting_attn"] = with_gates(ops.parallel_forgetting_attn, "forgetting_attn.naive_forgetting_attn",
                                               True)


def retention(op: Callable[..., Any]) -> Callable[[Sizes], Check]:
    return lambda s: same(op, by_heads(naive("retention.naive_retention")), heads(s, 3))


CASES["chunk_retention"] = retention(ops.chunk_retention)
CASES["fused_recurrent_retention"] = retention(ops.fused_recurrent_retention)
CASES["parallel_retention"] = retention(ops.parallel_retention)
CASES["fused_chunk_retention"] = retention(ops.fused_chunk_retention)


@case
def parallel_attn(s: Sizes) -> Check:
    return same(ops.parallel_attn, by_heads(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
                heads(s, 3))


@case
def parallel_stickbreaking_attn(s: Sizes) -> Check:
    return same(ops.parallel_stickbreaking_attn, naive("stickbreaking_attn.naive_stickbreaking_attn"), heads(s, 3))


@case
def fused_recurrent_hgrn(s: Sizes) -> Check:
    x = s.randn(2, s.pick(70, 2048), s.pick(96, 2048))
    return same(ops.fused_recurrent_hgrn, naive("hgrn.naive_recurrent_hgrn"), [x, gates(s, x)])


@case
def chunk_hgrn(s: Sizes) -> Check:
    from fla.ops.hgrn import chunk_hgrn

    x = s.randn(2, s.pick(70, 2048), s.pick(96, 2048))
    return same(chunk_hgrn, naive("hgrn.naive_recurrent_hgrn"), [x, gates(s, x)])


def delta(op: Callable[..., Any], path: str, scalar: bool | None) -> Callable[[Sizes], Check]:
    """Delta rules: keys of length one, steps between 0 and 1, and (scalar None: no) decays."""
    def make(s: Sizes) -> Check:
        narrow(s)
        q, k, v = heads(s, 3)
        k, beta = F.normalize(k.float(), dim=-1).to(k), s.rand(*q.shape[:-1])
        decay = [] if scalar is None else [gates(s, q, scalar)]
        known = naive(path)

        def reference(*x: Any) -> Any:
            if scalar is None:
                q, k, v, beta = x
                return known(*(y.transpose(1, 2) for y in (q, k, v, beta)))[0].transpose(1, 2)
            return known(*(y.float() for y in x))

        return same(op, reference, [q, k, v, *decay, beta], 3e-2)

    return make


CASES["chunk_delta_rule"] = delta(ops.chunk_delta_rule, "delta_rule.delta_rule_recurrence", None)
CASES["fused_recurrent_delta_rule"] = delta(ops.fused_recurrent_delta_rule, "delta_rule.delta_rule_recurrence", None)


def swapped(path: str) -> Callable[..., Any]:
    """The reference with beta before the decay."""
    return lambda q, k, v, g, beta: naive(path)(q, k, v, beta, g)


def gated(op: Callable[..., Any]) -> Callable[[Sizes], Check]:
    def make(s: Sizes) -> Check:
        narrow(s)
        q, k, v = heads(s, 3)
        k, beta, g = F.normalize(k.float(), dim=-1).to(k), s.rand(*q.shape[:-1]), gates(s, q, True)
        known = swapped("gated_delta_rule.naive_recurrent_gated_delta_rule")
        return same(op, lambda *x: known(*(y.float() for y in x)), [q, k, v, g, beta], 3e-2)

    return make


CASES["chunk_gated_delta_rule"] = gated(lambda q, k, v, g, beta: ops.chunk_gated_delta_rule(q, k, v, g, beta))
CASES["kda_chunk"] = delta(lambda q, k, v, g, beta: ops.chunk_kda(q, k, v, g, beta), "kda.naive_recurrent_kda", False)


@case
def fused_recurrent_gated_delta_rule(s: Sizes) -> Check:
    check = gated(lambda q, k, v, g, beta: ops.fused_recurrent_gated_delta_rule(q, k, v, g=g, beta=beta))(s)
    check.grads = False                                     # the package has no backward of it
    return check


@case
def fused_recurrent_kda(s: Sizes) -> Check:
    check = delta(lambda q, k, v, g, beta: ops.fused_recurrent_kda(q, k, v, g, beta), "kda.naive_recurrent_kda", False)(s)
    check.grads = False
    return check


@case
def chunk_gsa(s: Sizes) -> Check:
    q, k, v = heads(s, 3)
    slots = s.randn(*q.shape[:-1], s.pick(16, 64))
    return same(lambda q, k, v, x, g: ops.chunk_gsa(q, k, v, x, g), naive("gsa.naive_recurrent_gsa"),
                [q, k, v, slots, gates(s, slots)])


@case
def chunk_abc(s: Sizes) -> Check:
    q, k, v = heads(s, 3)
    return same(ops.chunk_abc, by_heads(naive("abc.naive_recurrent_abc")), [q, k, v, s.randn(*q.shape[:-1], 32)])


@case
def parallel_based(s: Sizes) -> Check:
    return same(ops.parallel_based, by_heads(naive("based.naive_parallel_based")), heads(s, 3, 16))


def rwkv6(op: Callable[..., Any]) -> Callable[[Sizes], Check]:
    def make(s: Sizes) -> Check:
        q, k, v = heads(s, 3)

        def reference(q: Any, k: Any, v: Any, w: Any, u: Any) -> Any:
            known = naive("rwkv6.naive_recurrent_rwkv6")
            return known(*(y.transpose(1, 2) for y in (q, k, v, w)), u, scale=q.shape[-1] ** -0.5)[0].transpose(1, 2)

        return same(op, reference, [q, k, v, gates(s, q), s.randn(q.shape[2], q.shape[3])])

    return make


CASES["chunk_rwkv6"] = rwkv6(lambda *x: ops.chunk_rwkv6(*x, scale=x[0].shape[-1] ** -0.5))
CASES["fused_recurrent_rwkv6"] = rwkv6(lambda *x: ops.fused_recurrent_rwkv6(*x, scale=x[0].shape[-1] ** -0.5))


@case
def chunk_log_linear_attn(s: Sizes) -> Check:
    b, t, h, d = s.pick(1, 4), s.pick(128, 2048), s.pick(2, 16), s.pick(64, 128)
    q, k, v = (s.randn(b, t, h, d) for _ in range(3))
    levels = s.rand(b, t, h, t.bit_length())
    check = same(lambda *x: ops.chunk_log_linear_attn(*x), naive("log_linear_attn.naive_log_linear_attn"),
                 [q, k, v, gates(s, q, True), levels], 1e-2)
    check.grads = False
    return check


@case
def local_cumsum(s: Sizes) -> Check:
    from fla.ops.utils.cumsum import chunk_local_cumsum

    x = s.randn(2, 128, 3, 40)
    return Check(lambda x: chunk_local_cumsum(x, 64), lambda x: x.unflatten(1, (-1, 64)).cumsum(2).flatten(1, 2), (x,),
                 grads=False)


@case
def global_cumsum(s: Sizes) -> Check:
    from fla.ops.utils.cumsum import chunk_global_cumsum

    return Check(lambda x: chunk_global_cumsum(x), lambda x: x.cumsum(1), (s.randn(2, 200, 3, 40),), grads=False)


@case
def module_layer_norm(s: Sizes) -> Check:
    from fla.modules.layernorm import layer_norm

    m, n = s.pick(20, 8192), s.pick(96, 2048)
    return Check(lambda x, w, b: layer_norm(x, w, b), lambda x, w, b: F.layer_norm(x, (n,), w, b),
                 (s.randn(m, n), s.randn(n), s.randn(n)))


@case
def module_rms_norm(s: Sizes) -> Check:
    from fla.modules.layernorm import rms_norm

    m, n = s.pick(20, 8192), s.pick(96, 2048)
    return Check(lambda x, w: rms_norm(x, w, None), lambda x, w: F.rms_norm(x, (n,), w, 1e-5),
                 (s.randn(m, n), s.randn(n)))


@case
def module_gated_norm(s: Sizes) -> Check:
    from fla.modules.fused_norm_gate import rms_norm_gated

    m, n = s.pick(20, 8192), s.pick(96, 2048)
    return Check(lambda x, g, w: rms_norm_gated(x, g, w, None), lambda x, g, w: F.rms_norm(x, (n,), w, 1e-6) * F.silu(g),
                 (s.randn(m, n), s.randn(m, n), s.randn(n)))


@case
def module_l2norm(s: Sizes) -> Check:
    from fla.modules.l2norm import l2norm

    return Check(lambda x: l2norm(x), lambda x: x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6),
                 (s.randn(s.pick(20, 8192), s.pick(96, 128)),))


@case
def module_rotary(s: Sizes) -> Check:
    from fla.modules.rotary import rotary_embedding

    b, t, h, d = 2, s.pick(20, 2048), 3, s.pick(32, 128)
    turn = torch.rand(t, d // 2, generator=s.generator, device=s.device)

    def reference(x: Any) -> Any:
        a, b = x.chunk(2, -1)
        c, n = turn.cos().to(x)[:, None], turn.sin().to(x)[:, None]
        return torch.cat((a * c - b * n, a * n + b * c), -1)

    return Check(lambda x: rotary_embedding(x, turn.cos().to(x), turn.sin().to(x)), reference, (s.randn(b, t, h, d),))


@case
def module_causal_conv(s: Sizes) -> Check:
    from fla.modules.convolution import causal_conv1d

    b, t, d, w = 2, s.pick(40, 2048), s.pick(64, 2048), 4

    def reference(x: Any, weight: Any) -> Any:
        return F.silu(F.conv1d(F.pad(x.mT, (w - 1, 0)), weight[:, None], groups=d).mT)

    return Check(lambda x, weight: first(causal_conv1d(x, weight, activation="silu")), reference,
                 (s.randn(b, t, d), s.randn(d, w)))


@case
def module_swish(s: Sizes) -> Check:
    from fla.modules.activations import swiglu

    n = s.pick(3000, 1 << 24)
    return Check(swiglu, lambda x, y: F.silu(x) * y, (s.randn(n), s.randn(n)))


@case
def module_logsigmoid(s: Sizes) -> Check:
    from fla.modules.activations import logsigmoid

    return Check(lambda x: logsigmoid(x), F.logsigmoid, (s.randn(s.pick(3000, 1 << 24)),))


@case
def module_token_shift(s: Sizes) -> Check:
    from fla.modules.token_shift import token_shift

    return Check(lambda x: token_shift(x), lambda x: F.pad(x, (0, 0, 1, -1)) - x,
                 (s.randn(2, s.pick(40, 2048), s.pick(96, 2048)),))


@case
def module_cross_entropy(s: Sizes) -> Check:
    from fla.modules.fused_cross_entropy.ops import cross_entropy_loss

    m, v = s.pick(12, 4096), s.pick(300, 32000)
    y = s.randint(v, m)
    return Check(lambda x: first(cross_entropy_loss(x, y)).mean(), lambda x: F.cross_entropy(x, y), (s.randn(m, v),))


@case
def module_linear_cross_entropy(s: Sizes) -> Check:
    from fla.modules import FusedLinearCrossEntropyLoss

    m, h, v = s.pick(12, 4096), s.pick(40, 2048), s.pick(200, 32000)
    y = s.randint(v, m)
    return Check(lambda x, w: FusedLinearCrossEntropyLoss()(x, y, w), lambda x, w: F.cross_entropy(x @ w.T, y),
                 (s.randn(m, h), s.randn(v, h, scale=0.2)))
