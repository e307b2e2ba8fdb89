"""Autotuning: the wall time of a search over 40 configurations of one matrix product, tilejit and Triton on the same source.

    PYTHONPATH=. python benchmarks/autotune.py [--size 4096] [--planted] [--out benchmarks/results]

Each runs in a process of its own with an empty cache: seconds from the first launch to its result (compiling included,
imports not), then what was chosen and its milliseconds; tilejit once more with what is on disk. `--planted` adds a
configuration that hangs, one that writes far outside of its arrays and one that computes something else, asks for checks, and
says what became of them; the exit status says if all three were named and the result is right.
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

SIDE = os.environ.get("AUTOTUNE_SIDE", "tilejit")
if SIDE == "triton":
    import triton as pkg
    import triton.language as tl
else:
    import tilejit as pkg
    import tilejit.language as tl

TILES = ((128, 256), (256, 128), (128, 128), (64, 256), (128, 64))
CONFIGS = [pkg.Config({"BM": m, "BN": n, "BK": k, "GROUP": 8, "BAD": ""}, num_warps=w, num_stages=s)
           for m, n in TILES for k in (32, 64) for s in (3, 4) for w in (4, 8)]
PLANTED = [pkg.Config({"BM": 128, "BN": 128, "BK": 64, "GROUP": 8, "BAD": bad}, num_warps=8, num_stages=3)
           for bad in ("hang", "fault", "wrong")]


@pkg.jit
def product(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
            BAD: tl.constexpr):
    """C = A @ B, all row-major; sizes are multiples of the tiles'. Groups of rows of tiles share B in L2."""
    pid, columns = tl.program_id(0), N // BN
    group = pid // (GROUP * columns)
    row = group * GROUP + pid % GROUP
    column = pid % (GROUP * columns) // GROUP
    at_m, at_n, at_k = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN), tl.arange(0, BK)
    a_at = a + at_m[:, None] * K + at_k[None, :]
    b_at = b + at_k[:, None] * N + at_n[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        acc = tl.dot(tl.load(a_at), tl.load(b_at), acc)
        a_at += BK
        b_at += BK * N
    if BAD == "hang":
        while tl.load(a, volatile=True) == tl.load(a, volatile=True):
            pass
    c_at = c + at_m[:, None] * N + at_n[None, :]
    if BAD == "fault":
        tl.store(c + (1 << 40) + at_m, at_m.to(c.dtype.element_ty))
    tl.store(c_at, (acc * 2 if BAD == "wrong" else acc).to(c.dtype.element_ty))


def search(size: int, planted: bool) -> dict[str, Any]:
    """One search, and the milliseconds of its choice."""
    import torch

    a, b = (torch.randn(size, size, device="cuda", dtype=torch.float16) for _ in range(2))
    c = torch.empty_like(a)
    options: dict[str, Any] = {"check": True, "timeout": 5.0} if planted else {}
    k = pkg.autotune([*CONFIGS, *PLANTED] if planted else CONFIGS, key=["M", "N", "K"], **options)(product)

    def call() -> None:
        k[lambda m: ((size // m["BM"]) * (size // m["BN"]),)](a, b, c, size, size, size)

    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    error = float((c.double() - (a.double() @ b.double())).norm() / c.double().norm())
    found = {"side": SIDE, "seconds": seconds, "choice": str(k.best_config), "error": error,
             "ms": float(pkg.testing.do_bench(call, quantiles=[0.5]))}
    if SIDE == "tilejit":
        (failures,), (times,) = k.failures.values(), k.timings.values()
        found |= {"measured": len(times), "left out": {str(f): str(e).split("\n")[0] for f, e in failures.items()},
                  "notes": next(iter(k.notes.values()), [])}
    return found


def run(side: str, folder: str, arguments: argparse.Namespace, planted: bool = False) -> dict[str, Any] | None:
    """A search in a process of its own."""
    env = {**os.environ, "AUTOTUNE_SIDE": side, "TILEJIT_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder}
    command = [sys.executable, __file__, "--inside", "--size", str(arguments.size), *["--planted"] * planted]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, timeout=300)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        print(f"{side}: failed ({done.returncode})", flush=True)
        return None
    row: dict[str, Any] = json.loads(lines[-1])
    print(f"{row['side']:8} {row['seconds']:7.2f} s, then {row['ms']:.4f} ms a call, error {row['error']:.1e}: "
          f"{row['choice']}", flush=True)
    for config, why in row.get("left out", {}).items():
        print(f"         left out: {config}: {why[:160]}")
    for note in row.get("notes", ()):
        print(f"         {note}")
    return row


def main() -> int:
    """Both sides."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", default="")
    arguments = parser.parse_args()
    if arguments.size % 2048:
        parser.error("--size: a multiple of 2048, so that all tiles make whole groups")
    if arguments.inside:
        print(json.dumps(search(arguments.size, arguments.planted)), flush=True)
        return 0
    with tempfile.TemporaryDirectory() as ours, tempfile.TemporaryDirectory() as theirs:
        if arguments.planted:
            row = run("tilejit", ours, arguments, planted=True)
            words = sorted(why.split(":")[0] for why in row["left out"].values()) if row else []
            return 0 if row and row["error"] < 2e-3 and set(words) >= {"hung", "faulted", "wrong"} else 1
        print(f"{len(CONFIGS)} configurations of {arguments.size}^3, fp16; seconds of the search")
        rows = [run("tilejit", ours, arguments), run("tilejit", ours, arguments), run("triton", theirs, arguments)]
    if arguments.out and all(rows):
        from records import record

        record("autotune", [r for r in rows if r], arguments.out)
    return 0 if all(r and r["error"] < 2e-3 for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
