"""Trains a small GPT on Python's own library, with tilejit's kernels and with torch's.

Needs: torch

    python docs/examples/gpt/train.py [--steps 300] [--batch 16] [--tiny] [--out FOLDER]

Four runs of the same model and data: torch with two seeds, tilejit and torch.compile with the first one. Prints losses
every few steps, tokens a second (of the steps behind the first ten), and how far tilejit's curve is from torch's beside
how far torch's two seeds are from each other. `--tiny`: a model for which seconds on a CPU are enough. `--out`: where
gpt.json gets a record.
"""
from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3] / "benchmarks")]
from model import GPT, Operators, Size, ours, plain  # noqa: E402
from records import record, row  # noqa: E402

TINY = Size(layers=1, width=32, heads=2, hidden=32, length=32, batch=2)
#: Steps whose losses are averaged before curves are compared, and those that are not timed.
WINDOW, WARMUP = 10, 10


def text() -> torch.Tensor:
    """The bytes of Python's library, in the order of its files' names."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    return torch.tensor(list(b"".join(p.read_bytes() for p in files)[:4 << 20]), dtype=torch.int64)


def train(size: Size, ops: Operators, seed: int, steps: int, data: torch.Tensor, device: str,
          compiled: bool = False) -> tuple[list[float], float]:
    """The losses of all steps, and tokens a second."""
    torch.manual_seed(seed)
    model: Any = GPT(size, ops).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3 if size.layers > 1 else 1e-2, weight_decay=0.1)
    if compiled:
        model = torch.compile(model)
    order = torch.Generator().manual_seed(0)
    losses, began = [], time.perf_counter()
    for step in range(steps):
        if step == WARMUP:
            losses = [float(x) for x in losses]                    # waits for the GPU
            began = time.perf_counter()
        starts = torch.randint(len(data) - size.length - 1, (size.batch, 1), generator=order)
        rows = data[starts + torch.arange(size.length + 1)].to(device, non_blocking=True)
        loss = model(rows[:, :-1], rows[:, 1:])
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.detach())
    losses = [float(x) for x in losses]
    return losses, max(0, steps - WARMUP) * size.batch * size.length / (time.perf_counter() - began)


def distance(one: list[float], two: list[float]) -> float:
    """The mean distance of two curves of losses, averaged over a few steps."""
    means = [torch.tensor(x).unfold(0, min(WINDOW, len(x)), 1).mean(1) for x in (one, two)]
    return float((means[0] - means[1]).abs().mean())


def save(folder: str, case: str, curves: dict[str, list[float]], speeds: dict[str, float]) -> None:
    """Record tokens a second against torch's, and how far curves are from torch's, averaged as `distance` does."""
    rows = [row("gpt", case, "bf16", speeds["tilejit"], name, x, "tokens/s", speeds["tilejit"] / x, (0, 0))
            for name, x in speeds.items() if name in ("torch", "torch.compile")]
    near, seeds = (distance(curves["torch"], curves[x]) for x in ("tilejit", "torch, another seed"))
    means = {name: [round(sum(x[i:i + WINDOW]) / WINDOW, 4) for i in range(0, len(x) - WINDOW + 1, WINDOW)]
             for name, x in curves.items()}
    rows.append({**row("gpt", case, "bf16", near, "torch, another seed", seeds, "mean distance from torch's losses",
                       seeds / near, (0, 0)), "losses": means})
    print(record("gpt", rows, folder))


def main(argv: list[str] | None = None) -> dict[str, list[float]]:
    """The command; gives the losses of all runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", default="")
    args = parser.parse_args(argv)
    device, size = "cuda" if torch.cuda.is_available() else "cpu", TINY if args.tiny else Size(batch=args.batch)
    data, curves, speeds = text(), {}, {}
    runs: dict[str, tuple[Operators, int, bool]] = {
        "torch": (plain, 0, False), "torch, another seed": (plain, 1, False), "tilejit": (ours, 0, False)}
    if device == "cuda":
        runs["torch.compile"] = plain, 0, True
    for name, (ops, seed, compiled) in runs.items():
        curves[name], speeds[name] = train(size, ops, seed, args.steps, data, device, compiled)
        shown = " ".join(f"{x:.3f}" for x in curves[name][::max(1, args.steps // 10)])
        print(f"{name:20s} {speeds[name]:9.0f} tokens/s  losses {shown} .. {curves[name][-1]:.3f}", flush=True)
    near, seeds = (distance(curves["torch"], curves[x]) for x in ("tilejit", "torch, another seed"))
    print(f"from torch's curve: tilejit {near:.4f}, torch with another seed {seeds:.4f}")
    if args.out:
        save(args.out, f"{size.layers} layers of {size.width}, {size.batch} x {size.length} tokens, {args.steps} steps",
             curves, speeds)
    return curves


if __name__ == "__main__":
    main()
