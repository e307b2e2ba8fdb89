"""Everything that must hold on a GPU, in one run of a few minutes: correctness, speed, caching, machine code.

    PYTHONPATH=. python benchmarks/gpu_smoke.py [--only rows,matmul,...] [--out benchmarks/results]

Each part runs in a process of its own with a time limit, so that a hang costs that part only. Inputs are
fresh random numbers, outputs are poisoned with NaN, references are float64 (float32 for large products).
"""
from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

#: part -> seconds it may take
PARTS = {"rows": 150, "bandwidth": 120, "matmul": 300, "speed": 240, "cache": 60, "sass": 60, "launch": 90,
         "sm80": 180}
BOUNDS = {"fp32": 2e-5, "fp16": 2e-3, "bf16": 8e-3, "fp8": 8e-3, "tf32": 1.5e-3}


def report(part: str, failures: list[str], total: int) -> int:
    """Print the verdict of a part; the exit status."""
    for f in failures:
        print(f"  FAIL {f}")
    print(f"{'PASS' if not failures else 'FAIL'} {part}: {total - len(failures)} of {total}", flush=True)
    return 1 if failures else 0


def rows(out: str) -> int:
    """add, softmax, layernorm, rmsnorm against float64 on ragged and aligned shapes."""
    import torch

    from tilejit import kernels
    from tilejit.testing import rel_error

    shapes = [(1, 1), (3, 7), (17, 33), (64, 128), (5, 1000), (128, 1024), (33, 4095), (16, 4096), (7, 8191),
              (4, 16384), (3, 20000), (2, 65536)]
    failures, total = [], 0
    for dtype, name in ((torch.float32, "fp32"), (torch.float16, "fp16"), (torch.bfloat16, "bf16")):
        for r, c in shapes:
            x = torch.randn(r, c, device="cuda").to(dtype)
            y = torch.randn(r, c, device="cuda").to(dtype)
            w = torch.randn(c, device="cuda").to(dtype)
            b = torch.randn(c, device="cuda").to(dtype)
            d = x.double()
            norm = (d - d.mean(1, keepdim=True)) / torch.sqrt(d.var(1, unbiased=False, keepdim=True) + 1e-5)
            cases = {
                "add": (lambda o: kernels.add(x, y, out=o), d + y.double()),
                "softmax": (lambda o: kernels.softmax(x, out=o), torch.softmax(d, 1)),
                "layernorm": (lambda o: kernels.layernorm(x, w, b, out=o), norm * w.double() + b.double()),
                "rmsnorm": (lambda o: kernels.rmsnorm(x, w, out=o),
                            d / torch.sqrt((d * d).mean(1, keepdim=True) + 1e-6) * w.double()),
            }
            for kernel, (run, ref) in cases.items():
                o = torch.full_like(x, float("nan"))
                run(o)
                torch.cuda.synchronize()
                total += 1
                error = rel_error(o, ref)
                if not error <= BOUNDS[name]:
                    failures.append(f"{kernel} {name} {r}x{c}: {error:.2e}")
    return report("rows", failures, total)


def bandwidth(out: str) -> int:
    """Softmax and add against a device-to-device copy of the same traffic, torch, and the same source in Triton."""
    import torch
    from peers import Peer, compare, plot, triton_twin
    from records import record

    from tilejit import kernels
    from tilejit.kernels.add import add_kernel
    from tilejit.kernels.rows.softmax import softmax_kernel

    x = torch.randn(32768, 4096, device="cuda").bfloat16()
    o, dst = torch.empty_like(x), torch.empty_like(x)
    n = 2 ** 28
    a, b = torch.randn(n, device="cuda"), torch.randn(n, device="cuda")
    s, c = torch.empty_like(a), torch.empty_like(a)

    both, all_three = 2 * x.nbytes, 3 * a.nbytes
    peers: list[Peer] = [("copy", lambda: dst.copy_(x), both), ("torch", lambda: torch.softmax(x, 1), both)]
    if twin := triton_twin(softmax_kernel):
        peers.append(("triton", lambda: twin[(32768,)](x, dst, 4096, 4096, 4096, BLOCK=4096, num_warps=8), both))
    table = compare("bandwidth", "softmax 32768x4096", "bf16", "GB/s", lambda: kernels.softmax(x, out=o), both, peers,
                    rounds=5)
    peers = [("copy", lambda: c.copy_(a), 2 * a.nbytes), ("torch", lambda: torch.add(a, b, out=c), all_three)]
    if add_twin := triton_twin(add_kernel):
        peers.append(("triton", lambda: add_twin[(n // 1024,)](a, b, c, n, BLOCK=1024), all_three))
    table += compare("bandwidth", "add 2^28", "fp32", "GB/s", lambda: kernels.add(a, b, out=s), all_three, peers, 5)
    record("bandwidth", table, out)
    plot(table, Path(out, "bandwidth.png"))
    return report("bandwidth", [f"{r['case']}: {r['ratio']:.3f} of copy bandwidth" for r in table
                                if r["peer"] == "copy" and r["ratio"] < 0.90], 2)


def random_matrix(rows: int, columns: int, dtype, rows_first: bool):
    """A random matrix in row- or column-major order."""
    import torch

    x = torch.randn(rows, columns, device="cuda") if rows_first else torch.randn(columns, rows, device="cuda").T
    return x.to(dtype)


def matmul(out: str) -> int:
    """30 random shapes x four dtypes x four majors, bias and activations on some."""
    import random

    import torch

    import tilejit
    from tilejit import kernels
    from tilejit.testing import rel_error

    rng = random.Random(time.time_ns())
    seed = rng.randrange(2 ** 31)
    rng, _ = random.Random(seed), torch.manual_seed(seed)
    print(f"  seed {seed}")
    shapes = [(rng.randrange(1, 700), rng.randrange(1, 700), rng.randrange(8, 600)) for _ in range(18)]
    shapes += [(rng.randrange(1, 40) * 16, rng.randrange(1, 40) * 16, rng.randrange(1, 40) * 16) for _ in range(8)]
    shapes += [(2048, 1536, 1024), (1000, 4096, 8), (300, 200, 8), (128, 256, 64)]
    kinds = [(torch.bfloat16, "bf16"), (torch.float16, "fp16"), (torch.float8_e4m3fn, "fp8"), (torch.float32, "tf32")]
    failures, total = [], 0
    for i, (m, n, k) in enumerate(shapes):
        print(f"  {m}x{n}x{k}", end=" ", flush=True)
        for dtype, name in kinds:
            for a_rows in (True, False):
                for b_rows in (True, False):
                    a, b = random_matrix(m, k, dtype, a_rows), random_matrix(k, n, dtype, b_rows)
                    act = ("relu", "gelu", "silu")[i] if i < 3 else None
                    odt = torch.bfloat16 if name == "fp8" else dtype
                    bias = torch.randn(n, device="cuda").to(odt) if i < 3 or i == 9 else None
                    o = torch.full((m, n), float("nan"), device="cuda", dtype=odt)
                    total += 1
                    label = f"{name} {m}x{n}x{k} {'NT'[not a_rows]}{'NT'[not b_rows]} bias={bias is not None} {act}"
                    try:
                        kernels.matmul(a, b, bias=bias, activation=act, out=o)
                        torch.cuda.synchronize()
                    except tilejit.TileJitError as error:
                        failures.append(f"{label}: {type(error).__name__}: {str(error)[:300]}")
                        if isinstance(error, tilejit.CudaError):
                            return report("matmul", failures, total)
                        continue
                    ref = a.double() @ b.double()
                    if bias is not None:
                        ref = ref + bias.double()
                    ref = {None: lambda x: x, "relu": torch.relu, "gelu": torch.nn.functional.gelu,
                           "silu": torch.nn.functional.silu}[act](ref)
                    error = rel_error(o, ref)
                    if not error <= BOUNDS[name]:
                        failures.append(f"{label}: {error:.2e}")
    print()
    return report("matmul", failures, total)


def speed(out: str) -> int:
    """The ordinary matmul kernel against cuBLAS (torch.matmul with out=), and against its own source in Triton."""
    import torch
    from peers import Peer, compare, plot, triton_twin
    from records import record

    from tilejit import kernels

    table: list[dict] = []
    twin = triton_twin(kernels.matmul_kernel, ("M", "N", "K"))
    shapes = [(4096, 4096, 4096), (8192, 8192, 8192), (2048, 2048, 2048), (1024, 1024, 1024), (4096, 14336, 4096),
              (16384, 16384, 1024)]
    for m, n, k in shapes:
        for order in ("NT", "NN"):
            a = torch.randn(m, k, device="cuda").bfloat16()
            b = random_matrix(k, n, torch.bfloat16, order == "NN")
            o, r = (torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            peers: list[Peer] = [("cublas", lambda: torch.matmul(a, b, out=r), 2 * m * n * k)]
            if twin and order == "NT" and m == n == k and m >= 4096:
                peers.append(("triton", lambda: launch_twin(twin, a, b, r), 2 * m * n * k))
            table += compare("matmul", f"{m}x{n}x{k} {order}", "bf16", "TFLOP/s", lambda: kernels.matmul(a, b, out=o),
                             2 * m * n * k, peers)
    record("matmul", table, out)
    plot(table, Path(out, "matmul.png"))
    judged = [r for r in table if r["peer"] == "cublas" and r["case"].startswith(("4096x4096x", "8192x8192x"))]
    slow = [f"{r['case']}: {r['ratio']:.3f} of cuBLAS" for r in judged if r["ratio"] < 0.85]
    return report("speed", slow, len(judged))


def launch_twin(kernel: Any, a: Any, b: Any, out: Any) -> None:
    """Our matmul's source under Triton, B column-major; with four stages its epilogue would not fit."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    m, n, k = *out.shape, a.shape[1]
    descs = (TensorDescriptor(a, [m, k], [k, 1], [128, 64]), TensorDescriptor(b, [n, k], [k, 1], [256, 64]),
             TensorDescriptor(out, [m, n], [n, 1], [128, 256]))
    kernel[(min(132, m // 128 * (n // 256)),)](*descs, None, m, n, k, BM=128, BN=256, BK=64, GROUP=8, A_ROWS=True,
                                               B_ROWS=False, ACTIVATION=None, num_warps=8, num_stages=3)


_CACHED = """
import time, torch, sys
from tilejit import kernels
from tilejit.runtime import ptxas
a = torch.randn(512, 512, device="cuda").bfloat16(); torch.cuda.synchronize()
calls = []
real = ptxas.assemble
ptxas.assemble = lambda *x: calls.append(1) or real(*x)
t = time.perf_counter(); kernels.matmul(a, a); torch.cuda.synchronize()
print(f"{(time.perf_counter() - t) * 1e3:.1f} {len(calls)} {ptxas.version()}")
"""


def cache(out: str) -> int:
    """Two processes one after the other: the second launches without assembling."""
    from records import record, row

    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "TILEJIT_CACHE_DIR": os.path.join(folder, "cache")}
        lines = [subprocess.run([sys.executable, "-c", _CACHED], env=env, capture_output=True, text=True)
                 for _ in range(2)]
    if any(r.returncode for r in lines):
        return report("cache", [lines[0].stderr[-500:] + lines[1].stderr[-500:]], 1)
    (cold, made, tool), (warm, again, _) = (r.stdout.split(" ", 2) for r in lines)
    print(f"  first matmul: {cold} ms cold ({made} assembled, {tool.strip()}), {warm} ms from disk "
          f"({again} assembled)")
    ratio = float(cold) / float(warm)
    record("cache", [row("cache", "first matmul of a process", "bf16", float(warm), "compiling", float(cold), "ms",
                         ratio, (ratio, ratio))], out)
    return report("cache", [] if again == "0" and float(warm) < float(cold) else ["the second process assembled"], 1)


def sass(out: str) -> int:
    """The matmul's machine code: tensor cores and TMA, no local memory, no spills."""
    import torch

    from tilejit import TensorDescriptor
    from tilejit.kernels.planning import LARGE as TILES
    from tilejit.kernels.product.plain import matmul_kernel

    os.environ["TILEJIT_CACHE"] = "0"
    t = TILES[0]
    a, b, c = (torch.empty(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    d = TensorDescriptor.from_tensor
    k = matmul_kernel.compile(d(a, (t.m, 64)), d(b, (t.n, 64)), d(c, (t.m, t.n)), None, 4096, 4096, 4096, BM=t.m,
                              BN=t.n, BK=64, GROUP=8, A_ROWS=True, B_ROWS=False, ACTIVATION=None, **t.options())
    text = k.sass()
    counts = {name: sum(name in line for line in text.splitlines())
              for name in ("HGMMA", "UTMALDG", "UTMASTG", "USETMAXREG", "LDL", "STL")}
    print("  " + "  ".join(f"{n} {c}" for n, c in counts.items()))
    print("  " + k.report().replace("\n", "\n  "))
    bad = [n for n in ("HGMMA", "UTMALDG") if not counts[n]] + [n for n in ("LDL", "STL") if counts[n]]
    assert k.resources is not None
    if k.resources.spill_stores or k.resources.spill_loads or k.resources.stack:
        bad.append("spills")
    return report("sass", bad, 6)


def launch(out: str) -> int:
    """Host time of launches and of ready kernels (`launch.py`); what is slower than it should be is said, not a failure:
    it depends on the machine's processor too."""
    import launch as host

    missed = host.launch(out)
    for m in missed:
        print(f"  slow: {m}")
    return report("launch", [], len(host.GOALS))


def sm80(out: str) -> int:
    """target="sm_80" through the driver: products and rows against float64, and its speed beside cuBLAS for the record;
    then products of few rows, which mma.sync does on sm_90a."""
    import torch
    from peers import Peer, compare
    from records import record

    import tilejit
    from tilejit import kernels
    from tilejit.testing import rel_error

    failures, total = [], 0

    def check(label: str, o: Any, ref: Any, bound: float) -> None:
        nonlocal total
        torch.cuda.synchronize()
        total += 1
        error = rel_error(o, ref)
        if not error <= bound:
            failures.append(f"{label}: {error:.2e}")

    shapes = [(512, 384, 1024), (300, 200, 264), (70, 90, 48), (5, 61, 33), (1024, 1024, 1024)]
    kinds = [(torch.bfloat16, "bf16"), (torch.float16, "fp16"), (torch.float32, "tf32")]
    with tilejit.knobs(arch="sm_80"):
        for m, n, k in shapes:
            for dtype, name in kinds:
                for a_rows, b_rows in ((True, True), (True, False), (False, True)):
                    a, b = random_matrix(m, k, dtype, a_rows), random_matrix(k, n, dtype, b_rows)
                    o = torch.full((m, n), float("nan"), device="cuda", dtype=dtype)
                    kernels.matmul(a, b, out=o)
                    check(f"{name} {m}x{n}x{k} {'NT'[not a_rows]}{'NT'[not b_rows]}", o, a.double() @ b.double(),
                          BOUNDS[name])
        x = torch.randn(333, 5000, device="cuda")
        check("softmax", kernels.softmax(x), torch.softmax(x.double(), 1), BOUNDS["fp32"])
        n = 4096
        a, b = torch.randn(n, n, device="cuda").bfloat16(), random_matrix(n, n, torch.bfloat16, False)
        o, r = (torch.empty(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        peers: list[Peer] = [("cublas", lambda: torch.matmul(a, b, out=r), 2 * n ** 3)]
        table = compare("sm80", f"{n}x{n}x{n} NT, target sm_80", "bf16", "TFLOP/s",
                        lambda: kernels.matmul(a, b, out=o), 2 * n ** 3, peers)
        record("sm80", table, out)
        check(f"bf16 {n}", o, a.float() @ b.float(), BOUNDS["bf16"])
    for rows in (16, 32):
        a, b = torch.randn(rows, 512, device="cuda").half(), torch.randn(64, 512, device="cuda").half()
        o = torch.full((rows, 64), float("nan"), device="cuda", dtype=torch.float16)
        descs = [tilejit.TensorDescriptor.from_tensor(t, (t.shape[0], 64)) for t in (a, b, o)]
        kernels.matmul_kernel[(1,)](*descs, None, rows, 64, 512, BM=rows, BN=64, BK=64, GROUP=1, A_ROWS=True,
                                    B_ROWS=False, ACTIVATION=None)
        check(f"{rows} rows on sm_90a", o, a.double() @ b.double().T, BOUNDS["fp16"])
    return report("sm80", failures, total)


def main() -> int:
    """Run the parts, each in its own process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run, separated by commas")
    parser.add_argument("--out", default="benchmarks/results", help="folder for the records")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        return globals()[args.part](args.out)
    os.makedirs(args.out, exist_ok=True)
    status = 0
    for part in args.only.split(","):
        print(f"== {part}", flush=True)
        try:
            done = subprocess.run([sys.executable, __file__, "--part", part, "--out", args.out], timeout=PARTS[part])
            status |= done.returncode
        except subprocess.TimeoutExpired:
            print(f"FAIL {part}: no result in {PARTS[part]} s", flush=True)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
