"""Autotuning that trusts nobody: configurations run in a process of their own, and their outputs are compared.

Needs: numpy

A configuration that computes something else is named and left out; on a GPU so is one that hangs or faults.
"""
import numpy as np

import tilejit
import tilejit.language as tl

CONFIGS = [tilejit.Config({"BLOCK": b, "FACTOR": f}, num_warps=w)
           for b, w, f in ((256, 4, 2), (1024, 4, 2), (128, 1, 2), (512, 4, 3))]           # the last one is wrong


@tilejit.autotune(CONFIGS, key=["n"], check=True, cache_results=False)
@tilejit.kernel
def double(x, out, n, BLOCK: tl.constexpr, FACTOR: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) * FACTOR, at < n)


def main():
    n = 10_000
    host = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    x, out = tilejit.to_device(host), tilejit.zeros(n, "float32")
    double[lambda meta: (tilejit.cdiv(meta["n"], meta["BLOCK"]),)](x, out, n)
    assert np.array_equal(out.numpy(), 2 * host)
    (failures,) = double.failures.values()
    assert [str(e).split(":")[0] for e in failures.values()] == ["wrong"]
    print(double.report())


if __name__ == "__main__":
    main()
