"""Epilogues in a launch of their own, behind a product that `matmul` turns or divides: few rows, mostly."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilejit
import tilejit.language as tl
from tilejit import ArrayInfo
from tilejit.kernels._calls import Launch, run
from tilejit.kernels.activations import activate
from tilejit.kernels.epilogues import block_at, fold_rows, pair_scaled_biased, plus_block, scaled_biased, store_block
from tilejit.kernels.matmul import launches

#: Elements of the result that a program has, at least and at most; and programs that are enough.
LEAST, MOST, PROGRAMS = 512, 2048, 1024
#: Columns of a program, where it has several rows.
WIDE = 128


@tilejit.kernel(do_not_specialize=("M",))
def end_kernel(sums, out, z, scale_a, scale_b, bias, residual, reduced, M, N, sums_stride, out_stride, z_stride,
               z_apart, residual_stride, BM: tl.constexpr, BN: tl.constexpr, SCALE_A: tl.constexpr,
               SCALE_B: tl.constexpr, ACTIVATION: tl.constexpr, GATED: tl.constexpr, REDUCE: tl.constexpr):
    """What `fused_kernel` does with a product's sums, for those in memory: fp32 [M, N], or GATED: [M, 2 N].

    All matrices are row-major, with the given strides of rows; the second matrix of z, if GATED, starts z_apart
    elements behind the first."""
    tiles_n = tl.cdiv(N, BN)
    m = tl.program_id(0) // tiles_n * BM
    n = tl.program_id(0) % tiles_n * BN
    at, inside = block_at(sums, m, n, M, N, sums_stride, BM, BN)
    y = tl.load(at, inside, other=0.0)
    if GATED:
        up = tl.load(at + N, inside, other=0.0)
        y, up = pair_scaled_biased(y, up, scale_a, scale_b, bias, m, n, M, N, BM, BN, SCALE_A, SCALE_B)
    else:
        y = scaled_biased(y, scale_a, scale_b, bias, m, n, M, N, BM, BN, SCALE_A, SCALE_B)
    if z is not None:
        store_block(y, z, m, n, M, N, z_stride, BM, BN)
        if GATED:
            store_block(up, z + z_apart, m, n, M, N, z_stride, BM, BN)
    y = activate(y, ACTIVATION, out.dtype.element_ty)
    if GATED:
        y *= up
    if residual is not None:
        y = plus_block(y, residual, m, n, M, N, residual_stride, BM, BN)
    fold_rows(y, reduced, m, n, M, N, BM, BN, REDUCE)
    store_block(y, out, m, n, M, N, out_stride, BM, BN)


@dataclass(frozen=True)
class Ended:
    """A product [m, columns] of a and of b, seen as `b`, and the launch that finishes its sums."""

    m: int
    columns: int
    b: ArrayInfo
    end: Launch

    def run(self, arrays: tuple[Any, Any, Any], infos: tuple[Any, ...], extras: tuple[Any, ...]) -> None:
        """Launch both for a, b and out, of which `infos` says what they are, and the other arrays of `fused_matmul`."""
        (a, b, out), (scale_a, scale_b, bias, residual, z, reduced) = arrays, extras
        sums = tilejit.empty_like(a, (self.m, pitch(self.columns)), tl.float32)
        info = tilejit.array_info(sums)._replace(shape=(self.m, self.columns))
        product = launches((a, b, None, sums), (infos[0], self.b._replace(address=infos[1].address), None, info), None)
        assert product is not None           # `product_ns` says that nothing is copied
        run(*product, (self.end, ((), (), sums, out, z, scale_a, scale_b, bias, residual, reduced), {}))


def pitch(columns: int) -> int:
    """Elements from a row of the sums to the next: TMA writes rows at multiples of 16 bytes."""
    return tilejit.cdiv(columns, 4) * 4


def ended(m: int, n: int, b: ArrayInfo, out: ArrayInfo, z: ArrayInfo | None, **constants: Any) -> Ended:
    """The launches for a result [m, n], b seen as one matrix. constants: what else `end_kernel` asks for."""
    elements = min(max(LEAST, tilejit.next_power_of_2(tilejit.cdiv(m * n, PROGRAMS))), MOST)
    bm = min(tilejit.next_power_of_2(m), elements // WIDE)
    bn = elements // bm
    kernel = end_kernel.partial(
        M=m, N=n, sums_stride=pitch(b.shape[1]), out_stride=out.strides[0], z_stride=z.strides[-2] if z else 0,
        z_apart=z.strides[0] if z else 0, BM=bm, BN=bn, launch_pdl=True, **constants)
    return Ended(m, b.shape[1], b, Launch(kernel, (tilejit.cdiv(m, bm) * tilejit.cdiv(n, bn),), ()))
