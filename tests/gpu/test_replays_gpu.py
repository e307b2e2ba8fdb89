"""Ready kernels called again and again on the GPU, so that they are replayed: each call gets new arrays of the same facts,
allocates into memory full of NaN, and its results are compared with float64 after all calls, while they all live.
Needs torch with CUDA."""
from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from tilejit import kernels  # noqa: E402
from tilejit.kernels.add import add_kernel  # noqa: E402

pytestmark = pytest.mark.gpu
CALLS = 10
BF16, FP16, FP32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
BOUNDS = {BF16: 8e-3, FP16: 2e-3, FP32: 2e-3, FP8: 3e-2, torch.int64: 0.0}


def new(*shape, dtype=BF16):
    return torch.randn(shape, device="cuda").to(dtype)


def poison():
    """Memory that torch hands out next is full of NaN."""
    held = [torch.full((n,), float("nan"), device="cuda") for n in (1, 16, 128, 1024, 8192, 65536, 1 << 19, 1 << 22)
            for _ in range(3)]
    del held


def several(x):
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def doubled(x):
    if isinstance(x, torch.Tensor):
        return x.double() if x.is_floating_point() else x
    return tuple(map(doubled, x)) if isinstance(x, tuple) else x


def error(found, wanted):
    if not found.is_floating_point():
        return float((found != wanted).sum())
    scale = max(float(wanted.double().norm()), 1e-3 * wanted.numel() ** 0.5)
    return float((found.double() - wanted.double()).norm()) / scale


def matrix(rows, columns, dtype=BF16, by_rows=True):
    return new(rows, columns, dtype=dtype) if by_rows else new(columns, rows, dtype=dtype).T


def product(m, n, k, dtype=BF16, a_rows=True, b_rows=True, bias=False, activation=None):
    """Arguments, ours and torch's function."""
    act = {None: lambda x: x, "relu": F.relu, "gelu": F.gelu, "silu": F.silu}[activation]

    def make():
        given = matrix(m, k, dtype, a_rows), matrix(k, n, dtype, b_rows)
        return (*given, new(n, dtype=BF16 if dtype == FP8 else dtype)) if bias else given

    return (make, lambda *x: kernels.matmul(*x, activation=activation),
            lambda a, b, c=None: act(a @ b if c is None else a @ b + c))


def rows(ours, theirs, *shapes, dtype=BF16):
    return lambda: tuple(new(*s, dtype=dtype) for s in shapes), ours, theirs


def heads(batch, length, count, kv, d, **options):
    def theirs(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=kv != count,
                                              is_causal=options.get("causal", False)).transpose(1, 2)

    return (lambda: (new(batch, length, count, d), new(batch, length, kv, d), new(batch, length, kv, d)),
            lambda *x: kernels.attention(*x, **options), theirs)


def gated(a, b):
    return F.silu(a @ b[0]) * (a @ b[1])


def turned(x, cos, sin):
    half = cos.shape[1]
    c, s = cos[:x.shape[1], None], sin[:x.shape[1], None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * c - b * s, b * c + a * s], -1)


def with_target(ours, theirs, n, columns, dtype=BF16):
    return (lambda: (new(n, columns, dtype=dtype), torch.randint(0, columns, (n,), device="cuda")), ours, theirs)



#: name -> (what makes arguments, ours, torch's in fp64)
CASES = {
    **{f"matmul {m}x{n}x{k} {str(t)[6:]} {'NT'[not ar]}{'NT'[not br]}": product(m, n, k, t, ar, br)
       for m, n, k, t, ar, br in [
           (256, 256, 256, BF16, True, True), (128, 512, 64, FP16, False, True), (1000, 333, 77, BF16, True, True),
           (16, 4096, 4096, BF16, True, False), (1, 8192, 512, FP16, True, False), (512, 512, 16384, BF16, True, True),
           (300, 200, 128, FP32, True, False), (257, 129, 65, FP32, True, True), (384, 640, 256, FP8, True, False),
           (2048, 2048, 1024, BF16, False, False), (4096, 24, 500, BF16, True, True)]},
    "matmul bias gelu": product(512, 384, 256, bias=True, activation="gelu"),
    "matmul bias relu, ragged": product(130, 70, 50, bias=True, activation="relu"),
    "matmul silu, few rows": product(8, 2048, 1024, activation="silu", b_rows=False),
    "fused, residual": (lambda: (new(512, 256), new(256, 384), new(512, 384)),
                        lambda a, b, r: kernels.fused_matmul(a, b, residual=r), lambda a, b, r: a @ b + r),
    "fused, few rows": (lambda: (new(8, 1024), matrix(1024, 2048, by_rows=False), new(8, 2048)),
                        lambda a, b, r: kernels.fused_matmul(a, b, residual=r), lambda a, b, r: a @ b + r),
    "gated": (lambda: (new(256, 512), new(2, 256, 512).transpose(1, 2)), kernels.gated_matmul, gated),
    "batched": (lambda: (new(5, 200, 64), new(5, 64, 136)), kernels.batched_matmul, lambda a, b: a @ b),
    "streamk": (lambda: (new(256, 8192), new(8192, 256)), kernels.matmul_streamk, lambda a, b: a @ b),
    "add": rows(kernels.add, lambda x, y: x + y, (1000, 77), (1000, 77)),
    "softmax": rows(kernels.softmax, lambda x: x.softmax(-1), (64, 1000)),
    "softmax fp32": rows(kernels.softmax, lambda x: x.softmax(-1), (3, 5, 257), dtype=FP32),
    "softmax, wide": rows(kernels.softmax, lambda x: x.softmax(-1), (5, 70000)),
    "log_softmax": rows(kernels.log_softmax, lambda x: x.log_softmax(-1), (64, 512)),
    "rmsnorm": rows(kernels.rmsnorm, lambda x, w: F.rms_norm(x, x.shape[1:], w, 1e-6), (64, 4096), (4096,)),
    "layernorm": rows(kernels.layernorm, lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b), (64, 768), (768,), (768,)),
    "add_rmsnorm": rows(kernels.add_rmsnorm, lambda x, r, w: (F.rms_norm(x + r, x.shape[1:], w, 1e-6), x + r),
                        (64, 512), (64, 512), (512,)),
    "glu": rows(kernels.glu, lambda a, b: F.silu(a) * b, (64, 500), (64, 500)),
    "relu_squared": rows(kernels.relu_squared, lambda x: F.relu(x) ** 2, (100, 100)),
    "sum": rows(kernels.sum, lambda x: x.sum(-1), (64, 1000), dtype=FP32),
    "mean": rows(kernels.mean, lambda x: x.mean(-1), (64, 1000), dtype=FP32),
    "cumsum": rows(kernels.cumsum, lambda x: x.cumsum(-1), (64, 1000), dtype=FP32),
    "transpose": rows(kernels.transpose, lambda x: x.T.contiguous(), (100, 300)),
    "group_norm": rows(lambda x, w, b: kernels.group_norm(x, 4, w, b), lambda x, w, b: F.group_norm(x, 4, w, b),
                       (6, 16, 10, 10), (16,), (16,), dtype=FP32),
    "rope": (lambda: (new(2, 30, 4, 64), new(40, 32), new(40, 32)), kernels.rope, turned),
    "cross_entropy": with_target(kernels.cross_entropy, F.cross_entropy, 100, 5000),
    "kl_divergence": (lambda: (new(50, 300, dtype=FP32).log_softmax(-1), new(50, 300, dtype=FP32).softmax(-1)),
                      lambda x, y: kernels.kl_divergence(x, y),
                      lambda x, y: F.kl_div(x, y, reduction="none").sum(-1)),
    "embedding": (lambda: (new(1000, 128), torch.randint(0, 1000, (77,), device="cuda")), kernels.embedding,
                  lambda w, i: w[i]),
    "attention": heads(2, 256, 4, 4, 64),
    "attention, causal": heads(1, 512, 8, 8, 128, causal=True),
    "attention, grouped, ragged": heads(2, 200, 8, 2, 64, causal=True),
    "attention, long": heads(1, 2048, 4, 4, 128)}
#: Those with a gradient of all floating arguments.
GRADED = [n for n in CASES if not n.startswith(("fused", "gated", "batched", "streamk", "matmul 384x640"))]


def compare(found, wanted, bound):
    wrong = {}
    for call, (ours, theirs) in enumerate(zip(found, wanted)):
        assert len(ours) == len(theirs)
        for i, (a, b) in enumerate(zip(ours, theirs)):
            e = error(a, b) if a.shape == b.shape else float("inf")
            if not e <= bound:
                wrong[f"call {call}, result {i}"] = e
    assert not wrong


@pytest.mark.parametrize("name", CASES)
def test_replays(name):
    """The results of all calls, after the last; no result shares memory with another or with an argument."""
    make, ours, theirs = CASES[name]
    torch.manual_seed(0)
    found, wanted, held = [], [], []
    for _ in range(CALLS):
        given = make()
        wanted.append(several(theirs(*doubled(given))))
        poison()
        found.append(several(ours(*given)))
        held.append(given)
    torch.cuda.synchronize()
    spans = sorted((x.data_ptr(), x.data_ptr() + x.numel() * x.element_size())
                   for x in [x for xs in found for x in xs] + [x for xs in held for x in xs] if x.numel())
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:]))
    compare(found, wanted, BOUNDS[held[0][0].dtype])


@pytest.mark.remarks("spills", "stack", reason="shares of 128 elements keep two registers in memory behind their loop")
@pytest.mark.parametrize("name", GRADED)
def test_gradients(name):
    """Forward and backward, of arguments that come again in other memory."""
    make, ours, theirs = CASES[name]
    torch.manual_seed(0)
    found, wanted = [], []
    for _ in range(CALLS // 2):
        given = [x.detach().requires_grad_() if x.is_floating_point() else x for x in make()]
        doubles = [x.detach().double().requires_grad_() if x.is_floating_point() else x for x in given]
        graded = [i for i, x in enumerate(given) if x.requires_grad]
        if name == "rope":
            graded = [0]                                            # angles are constants
        if name == "kl_divergence":
            graded = [0]
        for i, x in enumerate(given):
            if x.requires_grad and i not in graded:
                x.requires_grad_(False)
        result = several(theirs(*doubles))
        grads = [torch.randn(r.shape, device="cuda").to(given[0].dtype) for r in result]
        wanted.append(torch.autograd.grad(result, [doubles[i] for i in graded], [g.double() for g in grads]))
        poison()
        mine = several(ours(*given))
        poison()
        found.append(torch.autograd.grad(mine, [given[i] for i in graded], [g.to(m.dtype) for g, m in zip(grads, mine)]))
    torch.cuda.synchronize()
    compare(found, wanted, 3e-2 if given[0].dtype == BF16 else 5e-3)


def step(a, b, w, q):
    y = kernels.matmul(kernels.rmsnorm(a, w), b, activation="silu")
    seen = kernels.attention(q, q, q, causal=True)
    return kernels.softmax(y), seen, kernels.matmul(a, y)


def step64(a, b, w, q):
    y = F.silu(F.rms_norm(a, a.shape[1:], w, 1e-6) @ b)
    t = q.transpose(1, 2)
    return y.softmax(-1), F.scaled_dot_product_attention(t, t, t, is_causal=True).transpose(1, 2), a @ y


@pytest.mark.parametrize("warm", [1, 2, 5])
def test_graphs(warm):
    """A CUDA graph of ready kernels, captured after so many calls (so while they are recorded, or replayed), and played
    with other contents."""
    torch.manual_seed(0)
    given = new(256, 256), new(256, 256) / 16, new(256), new(1, 128, 4, 64)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm):
            step(*given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(*given)
    for _ in range(4):
        for x, scale in zip(given, (1, 1 / 16, 1, 1)):
            x.copy_(new(*x.shape) * scale)
        for x in captured:
            x.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        compare([captured], [step64(*doubled(given))], 2e-2)
    compare([step(*given)], [step64(*doubled(given))], 2e-2)


def test_bound_launches():
    """A launch and a call that are bound: with other contents, on another stream, by threads, and in a graph."""
    x, y, out = new(1000, dtype=FP32), new(1000, dtype=FP32), new(1000, dtype=FP32)
    a, b = new(4096, 4096), new(4096, 4096)
    repeats = (add_kernel.bind((1,), x, y, out, 1000, BLOCK=1024), kernels.matmul.bind(a, b), kernels.softmax.bind(a),
               kernels.matmul.bind(a[:256, :256], b[:256, :256]))
    wanted = (lambda: x + y, lambda: a.double() @ b.double(), lambda: a.double().softmax(-1),
              lambda: a[:256, :256].double() @ b[:256, :256].double())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [repeat() for repeat in repeats]
    results[0] = out

    def check():
        for found, want in zip(results, wanted):
            assert error(found, want()) < BOUNDS[BF16]

    def poisoned():
        for t in results:
            t.fill_(float("nan"))
        for t in (x, y, a, b):
            t.normal_()
        torch.cuda.synchronize()

    for _ in range(3):
        for run in (lambda: [repeat() for repeat in repeats], graph.replay):
            poisoned()
            run()
            check()
    poisoned()
    with torch.cuda.stream(torch.cuda.Stream()):
        for repeat in repeats:
            repeat()
        torch.cuda.current_stream().synchronize()
        check()
    threads = [threading.Thread(target=lambda: [repeat() for _ in range(200) for repeat in (repeats[0], repeats[3])])
               for _ in range(8)]
    poisoned()
    repeats[1](), repeats[2]()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    torch.cuda.synchronize()
    check()


def test_streams():
    """Replays go to the stream that is current, which waits for what is before it there."""
    a, b = new(4096, 4096), new(4096, 4096)
    for _ in range(3):
        kernels.matmul(a, b)
    for _ in range(5):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            x = a * 0
            torch.cuda._sleep(2_000_000)
            x.copy_(a)
            y = kernels.matmul(x, b)
        stream.synchronize()
        assert error(y, a.double() @ b.double()) < BOUNDS[BF16]
