"""A matrix product as one writes it by hand, in one piece: to read first, and to compare compilers by."""
from __future__ import annotations

import tilejit
import tilejit.language as tl
from tilejit.kernels.activations import activate, numbers
from tilejit.kernels.product.walks import tile_at


@tilejit.kernel(do_not_specialize=("M", "N", "K"))
def matmul_kernel(a_desc, b_desc, c_desc, bias, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                  GROUP: tl.constexpr, A_ROWS: tl.constexpr, B_ROWS: tl.constexpr, ACTIVATION: tl.constexpr):
    """act(A @ B + bias). A_ROWS: a_desc sees [M, K], else [K, M]. B_ROWS: b_desc sees [K, N], else [N, K]."""
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
        row, column = tile_at(tile, tiles_m, tiles_n, GROUP)
        m = row * BM
        n = column * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, tl.cdiv(K, BK)):
            if A_ROWS:
                a = a_desc.load([m, k * BK])
            else:
                a = a_desc.load([k * BK, m]).T
            if B_ROWS:
                b = b_desc.load([k * BK, n])
            else:
                b = b_desc.load([n, k * BK]).T
            acc = tl.dot(a, b, acc)
        if bias is not None:
            acc += numbers(bias, n + tl.arange(0, BN), N)
        c_desc.store([m, n], activate(acc, ACTIVATION, c_desc.dtype).to(c_desc.dtype))
