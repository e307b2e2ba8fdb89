"""A kernel of your own inside a function that torch compiles: no operator to write, no graph break.

Needs: torch
"""
import torch

import tilejit
import tilejit.language as tl

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@tilejit.kernel
def scale_kernel(x, out, factor, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) * factor, at < n)


tuned_kernel = tilejit.autotune([tilejit.Config({"BLOCK": b}) for b in (64, 256)], key=["n"])(scale_kernel)


def scaled(x, factor):
    first, second = torch.empty_like(x), torch.empty_like(x)
    n = x.numel()
    scale_kernel[(tilejit.cdiv(n, 128),)](x, first, factor, n, BLOCK=128)
    tuned_kernel[lambda meta: (tilejit.cdiv(meta["n"], meta["BLOCK"]),)](first, second, 2.0, n)
    return torch.relu(second) + 1


def main():
    compiled = torch.compile(scaled, fullgraph=True, backend="inductor" if DEVICE == "cuda" else "aot_eager")
    for rows in (4, 9):                                    # the second size is compiled with sizes as symbols
        x = torch.randn(rows, 50, device=DEVICE)
        torch.testing.assert_close(compiled(x, 3.0), torch.relu(6 * x) + 1)
    print("kernels in a compiled function: one graph, right at two sizes")


if __name__ == "__main__":
    main()
