"""Forward attention: `tilejit.kernels.attention` against cuDNN and FlashAttention 2, both through torch.

    PYTHONPATH=. python benchmarks/attention.py [--heads 16] [--tokens 16384] [--dims 64 128 256] [--out benchmarks/results]

Every result is compared with float64 first (on few heads). TFLOP/s count 4 * queries * keys * d for every head, half of
that for causal masks. Medians over short interleaved bursts; ratios are of pairs, above 1 tilejit is faster. `drained`
is the same kernel without overlap (products_ahead=False).
"""
from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import tilejit
from tilejit.kernels import attention
from tilejit.kernels.attention.forward import _launch
from tilejit.testing import bench_group, gpu_burst, pair_ratio, record, rel_error, row

#: Relative errors (Frobenius) of 16-bit results against float64, at most.
BOUND = 5e-3


def inputs(batch: int, length: int, heads: int, d: int, dtype: Any) -> tuple[Any, Any, Any]:
    """q, k and v [batch, sequence, heads, d]."""
    import torch

    torch.manual_seed(0)
    return tuple(torch.randn(batch, length, heads, d, device="cuda", dtype=dtype) for _ in range(3))  # type: ignore


def by_torch(backend: Any, q: Any, k: Any, v: Any, causal: bool) -> Callable[[], Any]:
    """One of torch's backends; heads ahead of the sequence, by strides."""
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    views = [x.transpose(1, 2) for x in (q, k, v)]

    def run() -> Any:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(*views, is_causal=causal).transpose(1, 2)

    return run


def drained(q: Any, k: Any, v: Any, causal: bool) -> Callable[[], Any]:
    """Our kernel with its products one after another."""
    import torch

    infos = [tilejit.array_info(x) for x in (q, k, v)]
    out = torch.empty_like(q)
    infos.append(tilejit.array_info(out))
    launch = _launch(*infos, None, causal, None, 0, tilejit.active_knobs())
    assert launch is not None
    scale = q.shape[-1] ** -0.5 * 1.4426950408889634

    def run() -> Any:
        launch((q, k, v, out), tuple(infos), None, q.shape[1], k.shape[1], scale, q.shape[2], q.shape[0],
               products_ahead=False)
        return out

    return run


def contenders(q: Any, k: Any, v: Any, causal: bool) -> dict[str, Callable[[], Any]]:
    """Who computes it, by name; ours is first."""
    import torch
    from torch.nn.attention import SDPBackend

    out = torch.empty_like(q)
    return {"tilejit": lambda: attention(q, k, v, causal=causal, out=out), "drained": drained(q, k, v, causal),
            "cudnn": by_torch(SDPBackend.CUDNN_ATTENTION, q, k, v, causal),
            "flash-attention-2": by_torch(SDPBackend.FLASH_ATTENTION, q, k, v, causal)}


def check(d: int, causal: bool, dtype: Any) -> dict[str, float]:
    """Errors of everyone against float64 at a small size. Raises AssertionError where ours is above the bound."""
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v = inputs(1, 700, 2, d, dtype)
    want = scaled_dot_product_attention(*(x.double().transpose(1, 2) for x in (q, k, v)), is_causal=causal).transpose(1, 2)
    errors = {}
    for name, run in contenders(q, k, v, causal).items():
        try:
            errors[name] = rel_error(run(), want)
        except RuntimeError as e:
            print(f"  {name}: {str(e).splitlines()[0][:100]}")
    assert errors["tilejit"] <= BOUND and errors["drained"] <= BOUND, errors
    return errors


def main() -> None:
    """Check, measure, print a table, write records."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=16384, help="batch x length of every case")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", default="benchmarks/results")
    args = parser.parse_args()
    rows = []
    for d in args.dims:
        for causal in (False, True):
            mask = "causal" if causal else "full"
            for dtype in (torch.bfloat16, torch.float16):
                print(f"d{d} {mask} {dtype}: errors", {n: f"{e:.2e}" for n, e in check(d, causal, dtype).items()})
            for length in args.lengths:
                batch = max(1, args.tokens // length)
                q, k, v = inputs(batch, length, args.heads, d, torch.bfloat16)
                bursts = {}
                for name, run in contenders(q, k, v, causal).items():
                    try:
                        run()
                        bursts[name] = gpu_burst(run)
                    except RuntimeError:
                        continue
                times = bench_group(bursts, rounds=args.rounds)
                work = 4e-9 * batch * args.heads * length * length * d * (0.5 if causal else 1)
                speeds = {n: work / statistics.median(t) for n, t in times.items()}
                print(f"d{d} {mask} B{batch} S{length}: " + "  ".join(f"{n} {x:.0f}" for n, x in speeds.items()), flush=True)
                for name in list(times)[1:]:
                    ratio, spread = pair_ratio(times["tilejit"], times[name])
                    rows.append(row("attention", f"d{d} {mask} B{batch} S{length} H{args.heads}", "bf16", speeds["tilejit"],
                                    name, speeds[name], "TFLOP/s", ratio, spread))
    print(record("attention", rows, args.out))


if __name__ == "__main__":
    main()
