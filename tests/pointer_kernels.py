"""Kernels that load operands of products through pointers: what several test folders compile or run."""
from __future__ import annotations

import tilejit
import tilejit.language as tl


@tilejit.kernel
def matmul(a, b, c, M, N, K, am, ak, bk, bn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
           ROLES: tl.constexpr = None):
    """Triton's tutorial: pointers that the loop carries, every edge masked. ROLES: the loop's `warp_specialize`."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    a_ptrs = a + m[:, None] * am + k[None, :] * ak
    b_ptrs = b + k[:, None] * bk + n[None, :] * bn
    acc = tl.zeros((BM, BN), tl.float32)
    for i in tl.range(0, tl.cdiv(K, BK), warp_specialize=ROLES):
        x = tl.load(a_ptrs, mask=(m[:, None] < M) & (k[None, :] < K - i * BK), other=0.0)
        y = tl.load(b_ptrs, mask=(k[:, None] < K - i * BK) & (n[None, :] < N), other=0.0)
        acc = tl.dot(x, y, acc)
        a_ptrs += BK * ak
        b_ptrs += BK * bk
    tl.store(c + m[:, None] * N + n[None, :], acc, (m[:, None] < M) & (n[None, :] < N))
