"""Attention: `tilejit.kernels.attention` against cuDNN and FlashAttention 2 (both through torch) and FlashAttention 4.

    PYTHONPATH=. python benchmarks/attention.py [--sets forward backward decode variants fp8] [--heads 16] [--tokens 16384]
        [--dims 64 128 256] [--lengths 512 4096] [--forms] [--out benchmarks/results]

Every result is compared with float64 first (on few heads). TFLOP/s count 4 * queries * keys * d for every head (10 for
gradients), half of that for causal masks; decoding counts GB/s of keys and values. Medians over short interleaved
bursts; ratios are of pairs, above 1 tilejit is faster. FlashAttention 4 takes part where its wheels can be
imported. `--forms` adds both forms of forward programs, one block of queries each and several, one of which is what
tilejit chooses.
"""
from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from typing import Any

from tilejit.kernels import attention
from tilejit.testing import bench_group, gpu_burst, pair_ratio, record, rel_error, row

#: Relative errors (Frobenius) of 16-bit results against float64, at most.
BOUND = 5e-3
#: Of 8-bit inputs: weights have three bits of mantissa.
FP8_BOUND = 5e-2

Calls = dict[str, Callable[[], Any]]


def inputs(batch: int, length: int, heads: int, d: int, dtype: Any, kv_heads: int = 0, keys: int = 0) -> list[Any]:
    """q, k and v [batch, sequence, heads, d]."""
    import torch

    torch.manual_seed(0)
    return [torch.randn(batch, n, h, d, device="cuda", dtype=dtype)
            for n, h in ((length, heads), *[(keys or length, kv_heads or heads)] * 2)]


def by_torch(backend: Any, causal: bool) -> Callable[..., Any]:
    """One of torch's backends; heads ahead of the sequence, by strides."""
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def run(q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal,
                                                enable_gqa=q.shape[2] != k.shape[2]).transpose(1, 2)

    return run


def flash_attention_4(causal: bool) -> Callable[..., Any]:
    """FlashAttention 4. Raises ImportError where it is not there."""
    from flash_attn.cute.interface import flash_attn_func

    def run(q: Any, k: Any, v: Any) -> Any:
        out = flash_attn_func(q, k, v, causal=causal)
        return out[0] if isinstance(out, tuple) else out

    return run


def peers(causal: bool) -> dict[str, Callable[..., Any]]:
    """Everyone else who is there, by name: functions of q, k and v."""
    from torch.nn.attention import SDPBackend

    found = {"cudnn": by_torch(SDPBackend.CUDNN_ATTENTION, causal),
             "flash-attention-2": by_torch(SDPBackend.FLASH_ATTENTION, causal)}
    try:
        found["flash-attention-4"] = flash_attention_4(causal)
    except ImportError:
        pass
    return found


#: Forms of our forward programs that `--forms` adds: options of `attention`.
FORMS: dict[str, dict[str, Any]] = {"tilejit, one block a program": {"persistent": False},
                                    "tilejit, several blocks a program": {"persistent": True}}


def forward_calls(q: Any, k: Any, v: Any, causal: bool, forms: bool = False) -> Calls:
    """Forward attention by everyone; ours is first."""
    import torch

    out = torch.empty_like(q)
    calls: Calls = {"tilejit": lambda: attention(q, k, v, causal=causal, out=out)}
    for name, options in FORMS.items() if forms else ():
        calls[name] = lambda options=options: attention(q, k, v, causal=causal, out=out, **options)
    for name, run in peers(causal).items():
        calls[name] = lambda run=run: run(q, k, v)
    return calls


def backward_calls(q: Any, k: Any, v: Any, causal: bool) -> Calls:
    """The gradients of q, k and v by everyone, for a gradient that depends on the shape only."""
    import torch

    grad = gradient(q)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    calls: Calls = {}
    everyone: dict[str, Callable[..., Any]] = {
        "tilejit": lambda *x: attention(*x, causal=causal),
        "tilejit deterministic": lambda *x: attention(*x, causal=causal, deterministic=True), **peers(causal)}
    for name, out in results({n: lambda f=f: f(*leaves) for n, f in everyone.items()}):
        calls[name] = lambda out=out: torch.autograd.grad(out, leaves, grad, retain_graph=True)
    return calls


def gradient(q: Any) -> Any:
    """The gradient of attention's result."""
    import torch

    torch.manual_seed(1)
    return torch.randn_like(q)


def results(calls: Calls) -> Iterator[tuple[str, Any]]:
    """What everyone gives; who cannot says why."""
    for name, run in calls.items():
        try:
            yield name, run()
        except RuntimeError as e:
            print(f"  {name}: {str(e).splitlines()[0][:100]}")


def errors(kind: str, d: int, causal: bool, dtype: Any) -> dict[str, list[float]]:
    """Errors of everyone against float64 at a small size: of the result, or of the gradients of q, k and v. Raises
    AssertionError where ours is above the bound."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v = inputs(1, 700, 2, d, dtype)
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    out = scaled_dot_product_attention(*(x.transpose(1, 2) for x in exact), is_causal=causal).transpose(1, 2)
    want = [out] if kind == "forward" else torch.autograd.grad(out, exact, gradient(q).double())
    calls = (forward_calls if kind == "forward" else backward_calls)(q, k, v, causal)
    found = {name: [rel_error(a, b) for a, b in zip(got if isinstance(got, tuple) else [got], want)]
             for name, got in results(calls)}
    assert all(max(e) <= BOUND for n, e in found.items() if n.startswith("tilejit")), found
    return found


def measure(calls: Calls, work: float, unit: str, label: str, dtype: str, rounds: int) -> list[dict[str, Any]]:
    """Times of everyone in turn, printed, as records; work: what `unit` counts, of a millisecond."""
    bursts = {name: gpu_burst(calls[name]) for name, _ in results(calls)}
    times = bench_group(bursts, rounds=rounds)
    speeds = {n: work / statistics.median(t) for n, t in times.items()}
    print(f"{label}: " + "  ".join(f"{n} {x:.0f}" for n, x in speeds.items()), unit, flush=True)
    rows = []
    for name in list(times)[1:]:
        ratio, spread = pair_ratio(times["tilejit"], times[name])
        rows.append(row("attention", label, dtype, speeds["tilejit"], name, speeds[name], unit, ratio, spread))
    return rows


def products(kind: str, args: Any) -> Iterator[dict[str, Any]]:
    """Forward, or backward, of every head dimension, mask and length."""
    import torch

    for d in args.dims:
        for causal in (False, True):
            mask = "causal" if causal else "full"
            for dtype in (torch.bfloat16, torch.float16):
                print(f"{kind} d{d} {mask} {dtype}: errors", {n: " ".join(f"{x:.1e}" for x in e)
                                                              for n, e in errors(kind, d, causal, dtype).items()})
            for length in args.lengths:
                batch = max(1, args.tokens // length)
                q, k, v = inputs(batch, length, args.heads, d, torch.bfloat16)
                calls = backward_calls(q, k, v, causal) if kind == "backward" else forward_calls(q, k, v, causal, args.forms)
                work = (4e-9 if kind == "forward" else 1e-8) * batch * args.heads * length * length * d
                yield from measure(calls, work * (0.5 if causal else 1), "TFLOP/s",
                                   f"{kind} d{d} {mask} B{batch} S{length} H{args.heads}", "bf16", args.rounds)


def decoding(args: Any) -> Iterator[dict[str, Any]]:
    """One query a sequence, eight query heads for each head of keys: GB/s of keys and values."""
    import torch

    for d in args.dims:
        for batch, keys in args.contexts:
            q, k, v = inputs(batch, 1, 64, d, torch.bfloat16, 8, keys)
            small = [x[:1, :, :n] for x, n in ((q, 8), (k, 1), (v, 1))]
            exact = by_torch(_math(), False)(*(x.double() for x in small))
            assert rel_error(attention(q, k, v)[:1, :, :8], exact) <= BOUND
            yield from measure(forward_calls(q, k, v, False), 1e-6 * 2 * k.numel() * k.element_size(), "GB/s",
                               f"decode d{d} B{batch} S{keys} H64/8", "bf16", args.rounds)


def _math() -> Any:
    from torch.nn.attention import SDPBackend

    return SDPBackend.MATH


def fp8(args: Any) -> Iterator[dict[str, Any]]:
    """Forward with inputs in 8 bits against 16 bits, both ours."""
    import torch

    for d in args.dims:
        for causal in (False, True):
            for length in args.lengths:
                batch = max(1, args.tokens // length)
                q, k, v = inputs(batch, length, args.heads, d, torch.bfloat16)
                small = [x.to(torch.float8_e4m3fn) for x in (q, k, v)]
                ones = [torch.ones(batch, args.heads, device="cuda") for _ in small]
                exact = by_torch(_math(), causal)(*(x[:1, :, :1].double() for x in small))
                error = rel_error(attention(*small, causal=causal, descales=ones)[:1, :, :1], exact)
                assert error <= FP8_BOUND, error
                calls: Calls = {"tilejit": lambda: attention(*small, causal=causal, descales=ones),
                                "tilejit bf16": lambda: attention(q, k, v, causal=causal)}
                work = (2e-9 if causal else 4e-9) * batch * args.heads * length * length * d
                mask = "causal" if causal else "full"
                yield from measure(calls, work, "TFLOP/s", f"fp8 d{d} {mask} B{batch} S{length} H{args.heads}", "fp8",
                                   args.rounds)


def variants(args: Any) -> Iterator[dict[str, Any]]:
    """Options of ours against plain causal attention of ours: what each costs, or saves."""
    import torch

    length = max(args.lengths)
    for d in args.dims:
        q, k, v = inputs(max(1, args.tokens // length), length, args.heads, d, torch.bfloat16)
        slopes = torch.rand(args.heads, device="cuda")
        options: dict[str, dict[str, Any]] = {
            "window 1024": {"window": (1024, 0)}, "window 4096": {"window": (4096, 0)}, "chunk 2048": {"chunk": 2048},
            "softcap": {"softcap": 30.0}, "alibi": {"alibi": slopes}, "sinks": {"sinks": slopes},
            "dropout": {"dropout": 0.1}}
        calls: Calls = {"tilejit": lambda: attention(q, k, v, True)}
        for name, option in options.items():
            calls[name] = lambda option=option: attention(q, k, v, True, **option)
        work = 2e-9 * q.shape[0] * args.heads * length * length * d
        yield from measure(calls, work, "TFLOP/s of causal attention", f"variants d{d} S{length}", "bf16", args.rounds)


def main() -> None:
    """Check, measure, print a table, write records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=["forward", "backward"])
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=16384, help="batch x length of every case")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--contexts", type=int, nargs=2, action="append", metavar=("BATCH", "KEYS"),
                        help="batches and contexts of --sets decode")
    parser.add_argument("--forms", action="store_true", help="also both forms of our forward programs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", default="benchmarks/results")
    args = parser.parse_args()
    rows = []
    args.contexts = args.contexts or [(1, 131072), (8, 16384), (32, 4096), (128, 1024)]
    for kind in args.sets:
        special = {"decode": decoding, "variants": variants, "fp8": fp8}
        rows += special[kind](args) if kind in special else products(kind, args)
    print(record("attention", rows, args.out))


if __name__ == "__main__":
    main()
