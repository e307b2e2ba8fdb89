"""Kernels in a CUDA graph: captured once, replayed with other contents of the same arrays.

Needs: torch, a GPU

A kernel has to be loaded before the capture: a call, or `kernel.warmup(...)`.
"""
import torch

import tilejit
import tilejit.language as tl
from tilejit import kernels


@tilejit.kernel
def scale_kernel(x, out, factor, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) * factor, at < n)


def main():
    a, b = (torch.randn(512, 512, device="cuda", dtype=torch.float16) for _ in range(2))
    out = torch.empty_like(a)

    def step():
        product = kernels.matmul(a, b)
        scale_kernel[(tilejit.cdiv(out.numel(), 1024),)](product, out, 0.5, out.numel(), BLOCK=1024)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for seed in range(3):
        torch.manual_seed(seed)
        a.normal_(), b.normal_()
        graph.replay()
        torch.testing.assert_close(out, (0.5 * (a.float() @ b.float())).half(), rtol=1e-2, atol=1e-1)
    print("a graph of two kernels: right for three sets of inputs")


if __name__ == "__main__":
    main()
