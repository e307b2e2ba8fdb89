"""The command line: `python -m tilejit demo | ops | cache ls | cache clear | info`."""
from __future__ import annotations

import argparse
import sys
import time

import numpy as np


def demo(size: int) -> int:
    """Compile and run a bf16 matmul of size^3: on the GPU if there is one, else on the CPU."""
    import ml_dtypes

    import tilejit
    from tilejit import kernels
    from tilejit.runtime import driver
    from tilejit.testing import rel_error

    rng = np.random.default_rng()
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
    tiles = kernels.matmul_kernel.compile(*(tilejit.TensorDescriptor.from_tensor(a, s) for s in
                                            ((128, 64), (64, 256), (128, 256))), None, size, size, size, BM=128, BN=256,
                                          BK=64, GROUP=8, A_ROWS=True, B_ROWS=True, ACTIVATION=None, num_warps=8,
                                          num_stages=4)
    print(tiles.report())
    return 0


def ops() -> int:
    """Print the op table."""
    from tilejit.ir import OPS

    for op in sorted(OPS.values(), key=lambda o: (o.family, o.name)):
        effects = ", ".join(sorted(op.effects)) or "pure"
        print(f"{op.family:10s} {op.name:14s} ({' '.join(op.operands)}) [{effects}] {op.doc.splitlines()[0]}")
    return 0


def cache(action: str) -> int:
    """List or empty the disk cache."""
    from tilejit.runtime import cache as store

    base = store.folder()
    if base is None:
        print("the cache is off")
    elif action == "clear":
        count = len(list(base.glob("*.kernel")))
        for path in base.glob("*.kernel"):
            path.unlink(missing_ok=True)
        print(f"{count} entries deleted from {base}")
    else:
        files = sorted(base.glob("*.kernel"), key=lambda p: p.stat().st_mtime)
        for path in files:
            print(f"{time.ctime(path.stat().st_mtime)}  {path.stat().st_size:8d} bytes  {path.name}")
        print(f"{len(files)} entries in {base}")
    return 0


def info() -> int:
    """Versions, assembler and GPU."""
    import tilejit
    from tilejit.runtime import driver, ptxas

    print(f"tilejit {tilejit.__version__}, Python {sys.version.split()[0]}")
    print(f"assembler: {ptxas.version()} ({ptxas.find_ptxas() or 'no ptxas found'})")
    print(f"GPU: {'yes' if driver.available() else 'none'}")
    return 0


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tilejit", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("demo", help=demo.__doc__).add_argument("--size", type=int, default=512)
    commands.add_parser("ops", help=ops.__doc__)
    commands.add_parser("cache", help=cache.__doc__).add_argument("action", choices=["ls", "clear"])
    commands.add_parser("info", help=info.__doc__)
    args = parser.parse_args()
    if args.command == "demo":
        return demo(args.size)
    if args.command == "cache":
        return cache(args.action)
    return ops() if args.command == "ops" else info()


if __name__ == "__main__":
    sys.exit(main())
