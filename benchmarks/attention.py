"""Attention: `tilejit.kernels.attention` against everyone who is there (`attention_peers.py`): cuDNN and FlashAttention 2
(through torch), FlashAttention 4, Pallas Mosaic GPU, and Triton's tutorial under Triton and under tilejit.

    PYTHONPATH=. python benchmarks/attention.py [--sets forward backward decode latent variants fp8 ablation]
        [--heads 16] [--tokens 16384] [--dims 64 128 256] [--lengths 512 4096] [--peers cudnn tutorial ..]
        [--tutorials triton/python/tutorials] [--forms] [--out benchmarks/results]

Every result is compared with float64 first (on few heads). TFLOP/s count 4 * queries * keys * d for every head (10 for
gradients), half of that for causal masks; decoding has tables of its own (`attention_decode.py`). Medians over short interleaved
bursts; ratios are of pairs, above 1 tilejit is faster. Who cannot take part is named with the reason. `--forms` adds
both forms of forward programs, one block of queries each and several, one of which is what tilejit chooses.
"""
from __future__ import annotations

import argparse
import dataclasses
import re
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attention_decode import decoding, latent
from attention_peers import by_torch, flash_attention_4, pallas, tutorial_06
from bursts import bench_group, gpu_burst
from contender import Absent, reason
from records import pair_ratio, record, row

from tilejit.kernels import attention
from tilejit.testing import rel_error

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


#: Peers by name: functions of a mask and the arguments of the command, which give functions of q, k and v.
PEERS: dict[str, Callable[[bool, Any], Callable[..., Any]]] = {
    "cudnn": lambda causal, args: by_torch(_backend("CUDNN_ATTENTION"), causal),
    "flash-attention-2": lambda causal, args: by_torch(_backend("FLASH_ATTENTION"), causal),
    "flash-attention-4": lambda causal, args: flash_attention_4(causal),
    "triton tutorial": lambda causal, args: tutorial_06(args.tutorials, "triton", causal),
    "tutorial by tilejit": lambda causal, args: tutorial_06(args.tutorials, "tilejit.compat.triton", causal)}
#: Those that only take part in forward attention.
FORWARD_ONLY = ("triton tutorial", "tutorial by tilejit")
_said: set[str] = set()


def _backend(name: str) -> Any:
    from torch.nn.attention import SDPBackend

    return getattr(SDPBackend, name)


def say(name: str, why: object) -> None:
    """Once, why a peer does not take part."""
    if (text := f"  no {name}: {' '.join(str(why).split())[:150]}") not in _said:
        _said.add(text)
        print(text, flush=True)


def peers(causal: bool, args: Any, gradients: bool = False) -> dict[str, Callable[..., Any]]:
    """Everyone else who is there, by name: functions of q, k and v."""
    found = {}
    for name in args.peers:
        if name not in PEERS or gradients and name in FORWARD_ONLY:
            continue
        try:
            found[name] = PEERS[name](causal, args)
        except Exception as error:
            say(name, reason(error))
    return found


#: Forms of our forward programs that `--forms` adds: options of `attention`.
FORMS: dict[str, dict[str, Any]] = {"tilejit, one block a program": {"persistent": False},
                                    "tilejit, several blocks a program": {"persistent": True}}


def forward_calls(q: Any, k: Any, v: Any, causal: bool, args: Any) -> Calls:
    """Forward attention by everyone; ours is first."""
    import torch

    out = torch.empty_like(q)
    calls: Calls = {"tilejit": lambda: attention(q, k, v, causal=causal, out=out)}
    for name, options in FORMS.items() if args.forms else ():
        calls[name] = lambda options=options: attention(q, k, v, causal=causal, out=out, **options)
    for name, run in peers(causal, args).items():
        calls[name] = lambda run=run: run(q, k, v)
    return calls


def backward_calls(q: Any, k: Any, v: Any, causal: bool, args: Any) -> Calls:
    """The gradients of q, k and v by everyone, for a gradient that depends on the shape only."""
    import torch

    grad = gradient(q)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    calls: Calls = {}
    everyone: dict[str, Callable[..., Any]] = {
        "tilejit": lambda *x: attention(*x, causal=causal),
        "tilejit deterministic": lambda *x: attention(*x, causal=causal, deterministic=True),
        **peers(causal, args, gradients=True)}
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
        except Exception as error:
            if name.startswith("tilejit"):
                raise
            say(name, reason(error))


def errors(kind: str, d: int, causal: bool, dtype: Any, args: Any) -> dict[str, list[float]]:
    """Errors of everyone against float64 at a small size: of the result, or of the gradients of q, k and v. Raises
    AssertionError where ours is above the bound."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v = inputs(1, 640, 2, d, dtype)
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    out = scaled_dot_product_attention(*(x.transpose(1, 2) for x in exact), is_causal=causal).transpose(1, 2)
    want = [out] if kind == "forward" else torch.autograd.grad(out, exact, gradient(q).double())
    calls = (forward_calls if kind == "forward" else backward_calls)(q, k, v, causal, args)
    found = {name: [rel_error(a, b) for a, b in zip(got if isinstance(got, tuple) else [got], want)]
             for name, got in results(calls)}
    assert all(max(e) <= BOUND for n, e in found.items() if n.startswith("tilejit")), found
    return found


def measure(calls: Calls, work: float, unit: str, label: str, dtype: str, rounds: int,
            others: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Times of everyone in turn, printed, as records; work: what `unit` counts, of a millisecond; others: bursts of who
    is timed in another way."""
    bursts = {name: gpu_burst(calls[name]) for name, _ in results(calls)} | (others or {})
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
                                                              for n, e in errors(kind, d, causal, dtype, args).items()})
            for length in args.lengths:
                batch = max(1, args.tokens // length)
                q, k, v = inputs(batch, length, args.heads, d, torch.bfloat16)
                calls = (forward_calls if kind == "forward" else backward_calls)(q, k, v, causal, args)
                others = with_pallas(q, k, v, causal, args) if kind == "forward" else {}
                work = (4e-9 if kind == "forward" else 1e-8) * batch * args.heads * length * length * d
                yield from measure(calls, work * (0.5 if causal else 1), "TFLOP/s",
                                   f"{kind} d{d} {mask} B{batch} S{length} H{args.heads}", "bf16", args.rounds, others)


def with_pallas(q: Any, k: Any, v: Any, causal: bool, args: Any) -> dict[str, Any]:
    """A burst of Pallas Mosaic GPU (in fp16), if it is asked for and right."""
    if "pallas" not in args.peers:
        return {}
    try:
        call, burst = pallas(q, k, v, causal)
        error = rel_error(call()[:1, :, :1], attention(q, k, v, causal=causal)[:1, :, :1].double())
        if error > 2 * BOUND:
            raise Absent(f"its error is {error:.1e}")
        return {"pallas mosaic (fp16)": burst}
    except Exception as error:
        say("pallas", reason(error))
        return {}


#: Steps to the form that is chosen, each with those before it: (heads, whether they are causal) -> tiles and options.
STEPS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("products drained", {"products_ahead": False}), ("+ overlap", {}), ("+ ping-pong", {"ping_pong": True}))


def ablation(args: Any) -> Iterator[dict[str, Any]]:
    """What each step gains: one block of queries a program with drained products, then overlap in a warpgroup, turns of
    warpgroups, several blocks a program, three warpgroups; loops of masked blocks apart from the others."""
    import torch

    for d in args.dims:
        for causal in (False, True):
            q, k, v = inputs(4, 4096, args.heads, d, torch.bfloat16)
            out = torch.empty_like(q)
            tiles = (128, 128 if d <= 128 else 80)
            calls: Calls = {"tilejit": lambda: attention(q, k, v, causal=causal, out=out)}
            for name, options in STEPS:
                calls[name] = form(q, k, v, out, causal, tiles, False, **options)
            if causal:
                calls["every block masked"] = form(q, k, v, out, causal, tiles, False, SPLIT=0)
            calls["several blocks a program"] = form(q, k, v, out, causal, tiles, True)
            if d == 64:
                calls["three warpgroups"] = form(q, k, v, out, causal, (192, 128), True)
            if d <= 128:
                calls["store role"] = form(q, k, v, out, causal, tiles, True, store_role=True)
            work = (2e-9 if causal else 4e-9) * 4 * args.heads * 4096 * 4096 * d
            yield from measure(calls, work, "TFLOP/s", f"ablation d{d} {'causal' if causal else 'full'}", "bf16",
                               args.rounds)


def form(q: Any, k: Any, v: Any, out: Any, causal: bool, tiles: tuple[int, int], persistent: bool,
         **options: Any) -> Callable[[], Any]:
    """Our forward kernel with other constants and launch options."""
    from tilejit.kernels._calls import Work, known_of, place
    from tilejit.kernels.attention.cases import Case, Extras
    from tilejit.kernels.attention.forward import forward_work

    known = known_of(q, k, v, out, None)
    chosen = forward_work(*known, Extras(), Case(q.shape[-1] ** -0.5, right=0 if causal else None), tiles, persistent,
                          *place(known[0]))
    work = Work(chosen.arrays, [dataclasses.replace(x, kernel=x.kernel.partial(**options)) for x in chosen.launches])
    return lambda: work.run(q, k, v, out, None, *[None] * (chosen.arrays - 5))


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
                exact = by_torch(_backend("MATH"), causal)(*(x[:1, :, :1].double() for x in small))
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


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """TFLOP/s by length, a panel for each head dimension, mask and direction (skipped where matplotlib is missing)."""
    panels: dict[str, dict[str, dict[int, float]]] = {}
    for x in rows:
        found = re.match(r"(forward|backward) (d\d+ \w+) B\d+ S(\d+)", x["case"])
        if found:
            lines = panels.setdefault(f"{found[1]} {found[2]}", {})
            lines.setdefault("tilejit", {})[int(found[3])] = x["ours"]
            lines.setdefault(x["peer"], {})[int(found[3])] = x["peer_value"]
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("  no matplotlib: no plot")
        return
    if not panels:
        return
    across = min(4, len(panels))
    fig, axes = plt.subplots(-(-len(panels) // across), across, figsize=(4 * across, 3 * -(-len(panels) // across)),
                             squeeze=False)
    for ax, (title, lines) in zip(axes.flat, panels.items()):
        for name, points in lines.items():
            ax.plot(*zip(*sorted(points.items())), marker="o", label=name, linewidth=2.5 if name == "tilejit" else 1)
        ax.set_xscale("log", base=2)
        ax.set_ylim(bottom=0)
        ax.set_title(f"{title}, TFLOP/s by length", fontsize=9)
        ax.legend(fontsize=6)
    fig.tight_layout()
    fig.savefig(path, dpi=110)


def main() -> None:
    """Check, measure, print a table, write records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=["forward", "backward"])
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=16384, help="batch x length of every case")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--contexts", type=int, nargs=2, action="append", metavar=("BATCH", "KEYS"),
                        help="batches and contexts of --sets decode latent")
    parser.add_argument("--peers", nargs="+", default=[*PEERS, "pallas"], choices=[*PEERS, "pallas"])
    parser.add_argument("--tutorials", default="", help="python/tutorials of a Triton checkout")
    parser.add_argument("--forms", action="store_true", help="also both forms of our forward programs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", default="benchmarks/results")
    args = parser.parse_args()
    rows = []
    for kind in args.sets:
        special = {"decode": decoding, "variants": variants, "fp8": fp8, "latent": latent, "ablation": ablation}
        rows += special[kind](args) if kind in special else products(kind, args)
    print(record("attention", rows, args.out))
    plot(rows, Path(args.out, "attention.png"))


if __name__ == "__main__":
    main()
