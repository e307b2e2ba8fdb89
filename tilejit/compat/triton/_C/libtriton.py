from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any


class CublasLt:
    def __init__(self, workspace: Any):
        self.workspace = workspace

    def matmul(self, a: Any, b: Any, c: Any) -> None:
        """Overwrite c [M, N] by a [M, K] @ b [N, K] transposed; of one dtype, fp16, fp32 or fp8e4nv."""
        self.gemm(a, b, None, c, 1.0, 0.0)

    def gemm(self, a: Any, b: Any, d: Any, c: Any, alpha: float, beta: float) -> None:
        torch = sys.modules["torch"]
        if a.dtype == torch.float8_e4m3fn:
            one = torch.ones((), device=a.device)
            product = torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.float16)
        else:
            product = a @ b.t()
        product = product if alpha == 1 else alpha * product
        c.copy_(product if d is None or not beta else product + beta * d.to(product.dtype))


nvidia = SimpleNamespace(cublas=SimpleNamespace(CublasLt=CublasLt))
