"""The command line: `python -m tilejit demo | ops | stages KERNEL | cache ls, why, clear | info |
calibrate`."""
from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np


def demo(size: int) -> int:
    """Compile and run a bf16 matmul of size^3: on the GPU if there is one, else on the CPU."""
    import ml_dtypes

    import tilejit
    from tilejit import kernels
    from tilejit.kernels.product.kernel import product_kernel
    from tilejit.runtime import driver
    from tilejit.testing import rel_error

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size)).astype(ml_dtypes.bfloat16) for _ in range(2))
    reference = a.astype(np.float32) @ b.astype(np.float32)
    gpu = driver.available()
    x, y = (tilejit.to_device(a), tilejit.to_device(b)) if gpu else (a, b)
    start = time.perf_counter()
    out = kernels.matmul(x, y)
    result = out.numpy() if gpu else out
    seconds = time.perf_counter() - start
    where = "on the GPU, compilation included" if gpu else "on the CPU"
    print(f"{size} x {size} x {size} bf16 matmul {where}: {seconds:.2f} s, "
          f"relative error {rel_error(result, reference):.1e}")
    for report in (getattr(entry, "report", None) for entry in product_kernel.entries.values()):
        if report is not None:
            print(f"emulated: {report}")
    tiles = kernels.matmul_kernel.compile(*(tilejit.TensorDescriptor.from_tensor(a, s) for s in
                                            ((128, 64), (64, 256), (128, 256))), None, size, size, size, BM=128, BN=256,
                                          BK=64, GROUP=8, A_ROWS=True, B_ROWS=True, ACTIVATION=None, num_warps=8,
                                          num_stages=4)
    print(tiles.report())
    return 0


def ops() -> int:
    """Print the op table of tile IR."""
    from tilejit.ir import OPS

    for op in sorted(OPS.values(), key=lambda o: (o.family, o.name)):
        effects = ", ".join(sorted(op.effects)) or "pure"
        print(f"{op.family:10s} {op.name:14s} ({' '.join(op.operands)}) [{effects}] {op.doc.splitlines()[0]}")
    return 0


def cache(action: str, kernel: str) -> int:
    """The disk cache: `ls` lists it, `why KERNEL` says how the kernel's last entry differs from earlier ones, `clear`
    empties it.
    """
    from tilejit.runtime import cache as store

    base = store.folder()
    if base is None:
        print("the cache is off")
        return 1
    if action == "clear":
        print(f"{store.clear()} entries deleted from {base}")
        return 0
    rows = [e for e in store.entries() if not kernel or e.key.get("kernel") == kernel]
    if action == "why":
        return why(rows, kernel)
    for e in rows:
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(e.used))} {e.size:9d} bytes  {summary(e.key)}")
    print(f"{len(rows)} entries, {sum(e.size for e in rows)} bytes in {base}")
    return 0


def summary(key: dict[str, Any]) -> str:
    def value(v: Any) -> str:
        return v[1] if isinstance(v, list) and isinstance(v[1], str) else str(v)

    args = [f"{n}={value(a['const'])}" if "const" in a else f"{n}: {a['type']}" + f"/{a['divisible']}" *
            (a["divisible"] > 1) for n, a in key["args"].items()]
    return f"{key['kernel']}({', '.join(args)}) " + " ".join(f"{n}={value(v)}" for n, v in key["options"].items())


def why(rows: list[Any], kernel: str) -> int:
    """Print how a kernel's last used cache entry differs from the entry most like it."""
    from tilejit.runtime.cache import difference

    if len(rows) < 2:
        print(f"{len(rows)} cached compilations of {kernel or 'any kernel'}: nothing to compare")
        return 0
    new = rows[0]
    old = min(rows[1:], key=lambda e: len(difference(e.key, new.key)))
    print(f"{summary(new.key)}\nis another entry than\n{summary(old.key)}\nby")
    print("\n".join(f"  {line}" for line in difference(old.key, new.key)))
    return 0


def stages(kernel: str, only: str) -> int:
    """Compile a ready kernel (matmul, attention) and print it after each pass."""
    import ml_dtypes

    import tilejit
    from tilejit import kernels

    x = np.zeros((256, 512), ml_dtypes.bfloat16)
    q = np.zeros((1, 128, 1, 64), ml_dtypes.bfloat16)
    with tempfile.TemporaryDirectory(prefix="tilejit-") as folder, tilejit.knobs(dump=folder, target="emulator"):
        if kernel == "matmul":
            desc = tilejit.TensorDescriptor.from_tensor
            kernels.matmul_kernel.compile(desc(x, (128, 64)), desc(x, (64, 256)), desc(x, (128, 256)), None, 1024, 1024,
                                          1024, BM=128, BN=256, BK=64, GROUP=8, A_ROWS=True, B_ROWS=True,
                                          ACTIVATION=None, num_warps=8)
        else:
            kernels.attention(q, q, q, causal=True)
        for path in sorted(Path(folder).glob("*/*")):
            if only in path.name:
                print(f"// ---- {path.name}\n{path.read_text()}")
    return 0


def info() -> int:
    """Versions, assembler, GPU, cache and settings."""
    import tilejit
    from tilejit.runtime import cache as store
    from tilejit.runtime import driver, knobs, ptxas

    print(f"tilejit {tilejit.__version__}, Python {sys.version.split()[0]}, numpy {np.__version__}")
    print(f"assembler: {ptxas.version()} ({ptxas.find_ptxas() or 'no ptxas found'})")
    print(f"disassembler: {ptxas.find_tool('nvdisasm') or ptxas.find_tool('cuobjdump') or 'none found'}")
    if driver.available():
        dev = driver.current_device()
        print(f"GPU: {dev.name}, compute capability {'.'.join(map(str, dev.capability))}, {dev.multiprocessors} SMs, "
              f"driver for CUDA {driver.driver_version()}")
    else:
        print(f"GPU: none, {driver.unavailable()}")
    print(f"cache: {store.folder() or 'off'}")
    print(f"knobs: {knobs.current()}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tilejit", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("demo", help=demo.__doc__).add_argument("--size", type=int, default=512)
    commands.add_parser("ops", help=ops.__doc__)
    stored = commands.add_parser("cache", help=cache.__doc__)
    stored.add_argument("action", choices=["ls", "why", "clear"])
    stored.add_argument("kernel", nargs="?", default="", help="only this kernel")
    shown = commands.add_parser("stages", help=stages.__doc__)
    shown.add_argument("kernel", choices=["matmul", "attention"])
    shown.add_argument("--only", default="", help="only stages whose names have this")
    commands.add_parser("info", help=info.__doc__)
    rates = commands.add_parser("calibrate", help="measure the chip's rates, by which products are planned")
    rates.add_argument("--seconds", type=float, default=150, help="to measure; 0: fit what --times holds")
    rates.add_argument("--seed", type=int, help="of the products; a fresh one without")
    rates.add_argument("--times", type=Path, help="file of measured times, which is added to")
    rates.add_argument("--out", type=Path, help="the chip's file to write (tilejit/kernels/chips/NAME.json)")
    args = parser.parse_args()
    if args.command == "calibrate":
        from tilejit.tools.calibrate import calibrate

        return calibrate(args.seconds, args.seed, args.times, args.out)
    if args.command == "demo":
        return demo(args.size)
    if args.command == "stages":
        return stages(args.kernel, args.only)
    if args.command == "cache":
        return cache(args.action, args.kernel)
    return ops() if args.command == "ops" else info()


if __name__ == "__main__":
    sys.exit(main())
