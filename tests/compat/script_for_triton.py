"""A program written for Triton: run by test_triton_names.py, with tilejit in Triton's place."""
import sys

import numpy as np
import triton
import triton.language as tl
from triton.runtime.autotuner import Autotuner


class Counting(Autotuner):
    """A subclass that overrides `run`, as some packages have one."""

    runs = 0

    def run(self, *args, **kwargs):
        Counting.runs += 1
        return super().run(*args, **kwargs)


def tuned(configs, key):
    return lambda fn: Counting(fn, fn.arg_names, configs, key, None, None)


@triton.heuristics({"EVEN": lambda args: args["n"] % 128 == 0})
@tuned([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128}, num_warps=2, num_stages=1)], key=["n"])
@triton.jit
def scale(x, out, n, s, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * s, mask=i < n)


if __name__ == "__main__":
    x = np.arange(300, dtype=np.float32)
    out = np.zeros_like(x)
    scale[lambda meta: (triton.cdiv(300, meta["BLOCK"]),)](x, out, 300, 2.0)
    assert (out == 2 * x).all() and Counting.runs == 1
    print("ran", triton.__name__, *sys.argv[1:])
