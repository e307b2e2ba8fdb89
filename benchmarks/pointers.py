"""Products of operands loaded through pointers, by the form that copies them; and what scales by rows cost.

    PYTHONPATH=. python benchmarks/pointers.py [--size 4096] [--out benchmarks/results]

Every result is compared with torch first. Peers: cuBLAS and tilejit's own product through TMA. Medians of pair ratios
over short interleaved bursts; above 1 the pointer kernel is faster.
"""
from __future__ import annotations

import argparse
from typing import Any

from bursts import bench_group, gpu_burst
from records import pair_ratio, record, row

import tilejit
import tilejit.language as tl
from tilejit.testing import assert_close

#: name -> rows, columns and K of a tile, warps, slots (1: nothing is copied ahead), a role of its own
FORMS = {"loads": (128, 128, 64, 8, 1, None), "inline 128x128": (128, 128, 64, 8, 4, None),
         "inline 128x256": (128, 256, 64, 8, 3, None), "inline 64x128": (64, 128, 64, 4, 4, None),
         "role 128x128": (128, 128, 64, 8, 4, True), "role 64x128": (64, 128, 64, 4, 6, True)}


@tilejit.kernel
def pointer_matmul(a, b, c, M, N, K, am, ak, bk, bn, cm, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                   GROUP: tl.constexpr, ROLE: tl.constexpr):
    """C [M, N] = A @ B, as in Triton's tutorial: pointers that the loop carries, every edge masked."""
    tiles_n = tl.cdiv(N, BN)
    tile = tl.program_id(0)
    first = tile // (GROUP * tiles_n) * GROUP
    height = tl.minimum(tl.cdiv(M, BM) - first, GROUP)
    rest = tile % (GROUP * tiles_n)
    m = (first + rest % height) * BM + tl.arange(0, BM)
    n = rest // height * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    a_ptrs = a + m[:, None] * am + k[None, :] * ak
    b_ptrs = b + k[:, None] * bk + n[None, :] * bn
    acc = tl.zeros((BM, BN), tl.float32)
    for i in tl.range(0, tl.cdiv(K, BK), warp_specialize=ROLE):
        x = tl.load(a_ptrs, mask=(m[:, None] < M) & (k[None, :] < K - i * BK), other=0.0)
        y = tl.load(b_ptrs, mask=(k[:, None] < K - i * BK) & (n[None, :] < N), other=0.0)
        acc = tl.dot(x, y, acc)
        a_ptrs += BK * ak
        b_ptrs += BK * bk
    tl.store(c + m[:, None] * cm + n[None, :], acc.to(c.dtype.element_ty), (m[:, None] < M) & (n[None, :] < N))


def multiply(form: str, a: Any, b: Any, out: Any) -> None:
    """out [M, N] = a @ b by one of the forms."""
    bm, bn, bk, warps, stages, role = FORMS[form]
    (m, k), n = a.shape, b.shape[1]
    pointer_matmul[(tilejit.cdiv(m, bm) * tilejit.cdiv(n, bn),)](
        a, b, out, m, n, k, *a.stride(), *b.stride(), out.stride(0), BM=bm, BN=bn, BK=bk, GROUP=8, ROLE=role,
        num_warps=warps, num_stages=stages)


def products(size: int) -> list[dict[str, Any]]:
    """Every form against cuBLAS and the TMA kernel, both orders of B."""
    import torch

    table = []
    for order in ("NT", "NN"):
        a = torch.randn(size, size, device="cuda").bfloat16()
        b = torch.randn(size, size, device="cuda").bfloat16()
        b = b.T if order == "NT" else b
        out, ref = torch.empty_like(a), torch.matmul(a, b)
        runs = {"cublas": lambda a=a, b=b, ref=ref: torch.matmul(a, b, out=ref),
                "tma": lambda a=a, b=b, out=out: tilejit.kernels.matmul(a, b, out=out)}
        for form in FORMS:
            out.fill_(float("nan"))
            multiply(form, a, b, out)
            assert_close(out, ref, 5e-3, f"{form} {order}")
            runs[form] = lambda form=form, a=a, b=b, out=out: multiply(form, a, b, out)
        times = bench_group({name: gpu_burst(run) for name, run in runs.items()})
        for form in FORMS:
            for peer in ("cublas", "tma"):
                ratio, spread = pair_ratio(times[form], times[peer])
                ours, theirs = (2e-9 * size ** 3 / sorted(times[x])[len(times[x]) // 2] for x in (form, peer))
                table.append(row("pointers", f"{size}^3 {order} {form}", "bf16", ours, peer, theirs, "TFLOP/s", ratio,
                                 spread))
    return table


def scales(size: int) -> list[dict[str, Any]]:
    """Block-scaled products against tensor-wise ones: rows of scales as bulk copies, by threads, and strided."""
    import torch

    table = []
    for case, m, across in (("rows at 16 bytes", size, True), ("rows anywhere", size - 8, True),
                            ("strided", size, False)):
        a, b = (torch.randn(n, size, device="cuda").to(torch.float8_e4m3fn) for n in (m, size))
        steps = tilejit.cdiv(size, 128)
        sa = torch.rand(steps, m, device="cuda").T if across else torch.rand(m, steps, device="cuda")
        sb = torch.rand(tilejit.cdiv(size, 128), steps, device="cuda")
        out = torch.full((m, size), float("nan"), device="cuda", dtype=torch.bfloat16)
        plain = torch.empty_like(out)
        tilejit.kernels.matmul_blockscaled(a, b.T, sa, sb, out)
        wide = (a.float() * sa.repeat_interleave(128, 1)[:, :size]) @ (
            b.float() * sb.repeat_interleave(128, 0).repeat_interleave(128, 1)[:size, :size]).T
        assert_close(out, wide, 8e-3, f"block-scaled, {case}")
        times = bench_group({
            "ours": gpu_burst(lambda a=a, b=b, sa=sa, sb=sb, out=out:
                              tilejit.kernels.matmul_blockscaled(a, b.T, sa, sb, out)),
            "plain": gpu_burst(lambda a=a, b=b, plain=plain: tilejit.kernels.matmul(a, b.T, out=plain))})
        ratio, spread = pair_ratio(times["ours"], times["plain"])
        ours, theirs = (2e-9 * m * size ** 2 / sorted(t)[len(t) // 2] for t in times.values())
        table.append(row("pointers", f"block-scaled, {case}", "fp8e4nv", ours, "tensor-wise", theirs, "TFLOP/s", ratio,
                         spread))
    return table


def main() -> None:
    """Run and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--out", default="benchmarks/results")
    options = parser.parse_args()
    table = products(options.size) + scales(options.size)
    for r in table:
        print(f"{r['case']:32s} {r['ours']:8.1f} {r['unit']}   {r['ratio']:.3f} of {r['peer']} ({r['peer_value']:.1f})")
    record("pointers", table, options.out)


if __name__ == "__main__":
    main()
