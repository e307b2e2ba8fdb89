"""Attention on the GPU: captured in CUDA graphs, equal bits every time, random settings beside cuDNN. Needs torch with
CUDA."""
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

from tilejit.kernels import attention, latent_attention  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))
from attention_reference import reference  # noqa: E402

pytestmark = pytest.mark.gpu
BF16, FP16 = torch.bfloat16, torch.float16
RUNS = 50


def random(*shape, dtype=BF16):
    return torch.randn(shape, device="cuda").to(dtype)


def error(found, want):
    want = torch.as_tensor(want, dtype=torch.float64, device="cuda")
    return float((found.detach().double() - want).norm() / want.norm().clamp(min=1e-9))


def exact(q, k, v, used, scale):
    """Few queries of every sequence, which has so many keys, in float64: [batch, queries, heads, dv]."""
    outs = []
    for b, n in enumerate(used.tolist()):
        keys, values = (x[b, :n].double().repeat_interleave(q.shape[2] // x.shape[2], 1) for x in (k, v))
        p = torch.softmax(torch.einsum("qhd,nhd->hqn", q[b].double(), keys) * scale, -1)
        outs.append(torch.einsum("hqn,nhd->qhd", p, values))
    return torch.stack(outs)


@pytest.mark.parametrize("latent", [False, True])
def test_decoding_in_a_graph(latent):
    """What a graph has captured reads how many keys there are when it is replayed."""
    batch, most = 4, 3000
    used = torch.tensor([1, 700, 3000, 64], device="cuda", dtype=torch.int32)
    q = random(batch, 1, 16, 576 if latent else 128)
    cache = random(batch, most, 1, q.shape[3])
    k, v = (cache, cache[..., :512]) if latent else (cache, random(batch, most, 1, 128))

    def run():
        return latent_attention(q, cache[:, :, 0], used_keys=used) if latent else attention(q, k, v, used_keys=used)

    run()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
        with torch.cuda.graph(graph, stream=stream):
            out = run()
    for counts in ([1, 700, 3000, 64], [3000, 2, 129, 1500]):
        used.copy_(torch.tensor(counts))
        q.copy_(random(*q.shape))
        graph.replay()
        torch.cuda.synchronize()
        assert error(out, exact(q, k, v, used, q.shape[3] ** -0.5)) <= 5e-3


@pytest.mark.parametrize("d, causal", [(64, True), (128, False), (128, True), (256, False)])
def test_equal_bits(d, causal):
    """Results, logarithms and deterministic gradients."""
    q, k, v = random(2, 1100, 4, d), random(2, 1200, 2, d), random(2, 1200, 2, d)
    grad = random(2, 1100, 4, d)

    def run():
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        out, lse = attention(*leaves, causal=causal, deterministic=True, return_lse=True)
        return [out.detach(), lse.detach(), *torch.autograd.grad(out, leaves, grad)]

    first = run()
    assert all(torch.equal(a, b) for _ in range(RUNS) for a, b in zip(run(), first))


def test_decoding_with_equal_bits():
    q, k, v = random(3, 1, 32, 128), random(3, 5000, 4, 128), random(3, 5000, 4, 128)
    first = attention(q, k, v)
    assert all(torch.equal(attention(q, k, v), first) for _ in range(RUNS))


def test_many_keys():
    """128k of them, for one query and for blocks of queries, whose keys are divided, too."""
    k, v = random(1, 131072, 1, 128), random(1, 131072, 1, 128)
    used = torch.tensor([131072], dtype=torch.int32)
    for queries in (1, 200):
        q = random(1, queries, 2, 128)
        out = attention(q, k, v)
        assert error(out, exact(q, k, v, used, 128 ** -0.5)) <= 5e-3
        assert all(torch.equal(attention(q, k, v), out) for _ in range(RUNS))


def setting(seed):
    """Shapes and options of one case: every option in some, extremes in some."""
    rng = np.random.default_rng(seed)
    d = int(rng.choice([8, 40, 64, 96, 128, 192, 256]))
    n, m = (int(rng.choice([1, 63, 64, 129, int(rng.integers(2, 400))])) for _ in range(2))
    kv = int(rng.choice([1, 2]))
    sizes: tuple[int, ...] = int(rng.integers(1, 4)), n, m, kv * int(rng.choice([1, 2, 3])), kv, d
    options: dict = {"causal": bool(rng.integers(2))}
    if rng.random() < 0.4:                       # what cuDNN can do
        return (*sizes[:2], n, *sizes[3:]), options, bool(rng.integers(2)), BF16 if rng.integers(2) else FP16
    if rng.random() < 0.2:
        options["window"] = (int(rng.integers(0, 200)), None if rng.integers(2) else int(rng.integers(0, 50)))
    if rng.random() < 0.1:
        options["chunk"] = int(rng.choice([32, 100]))
    if rng.random() < 0.2:
        options["softcap"] = float(rng.choice([2.0, 30.0]))
    if rng.random() < 0.2:
        options["alibi"] = rng.random(sizes[3]).astype(np.float32)
    if rng.random() < 0.2:
        options["sinks"] = rng.standard_normal(sizes[3]).astype(np.float32)
    if rng.random() < 0.2:
        options["used_keys"] = rng.integers(0, m + 1, sizes[0]).astype(np.int32)
    return sizes, options, bool(rng.integers(2)), BF16 if rng.integers(2) else FP16


@pytest.mark.remarks("spills", "stack", reason="with slopes, gradients of 65 to 128 elements keep 11 registers in memory")
@pytest.mark.parametrize("seed", range(100))
def test_random_settings(seed):
    """Results and gradients of a random setting no further from float64 than cuDNN's, where that can do it. Gradients
    are of the result that was kept: where hardly anything but a sink or one key has weight, its rounding is most."""
    (batch, n, m, heads, kv, d), options, deterministic, dtype = setting(seed)
    torch.manual_seed(seed)
    q, k, v = random(batch, n, heads, d, dtype=dtype), *(random(batch, m, kv, d, dtype=dtype) for _ in range(2))
    grad = random(batch, n, heads, d, dtype=dtype)
    given = {key: torch.from_numpy(x).cuda() if isinstance(x, np.ndarray) else x for key, x in options.items()}
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out, lse = attention(*leaves, deterministic=deterministic, return_lse=True, **given)
    found = [out, *torch.autograd.grad(out, leaves, grad)]
    host = [x.detach().double().cpu().numpy() for x in (q, k, v)]
    named = {{"used_keys": "keys"}.get(key, key): x for key, x in options.items()}
    want = reference(*host, grad=grad.double().cpu().numpy(), **named)
    rounded = reference(*host, grad=grad.double().cpu().numpy(), kept=out.detach().double().cpu().numpy(), **named)
    logs = lse.detach().cpu().numpy()
    seen = np.isfinite(want[1])
    assert np.array_equal(np.isneginf(logs), ~seen) and (not seen.any() or np.abs(logs - want[1])[seen].max() < 1e-3)
    bound = [5e-3 if dtype == BF16 else 1e-3] * 4
    bound = [most + float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-9)) for most, a, b in zip(
        bound, (want[0], *rounded[2:5]), (want[0], *want[2:5]))]
    if set(options) == {"causal"} and n == m and d % 8 == 0:
        again = [x.detach().requires_grad_() for x in (q, k, v)]
        try:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                peer = scaled_dot_product_attention(*(x.transpose(1, 2) for x in again), is_causal=options["causal"],
                                                    enable_gqa=heads != kv).transpose(1, 2)
                theirs = [peer, *torch.autograd.grad(peer, again, grad)]
        except RuntimeError:
            theirs = []
        bound[:len(theirs)] = [max(1.1 * error(a, b), 1e-6) for a, b in zip(theirs, (want[0], *want[2:5]))]
    for a, b, most in zip(found, (want[0], *want[2:5]), bound):
        assert error(a, b) <= most or float(np.abs(b).max(initial=0)) < 1e-6
