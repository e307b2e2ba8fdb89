"""The kernels of products: whole tiles, tiles whose blocks of K programs share out, and even parts of K.

All tiles together are tiles * steps blocks of K. The first `stream_tiles` tiles are cut into as many equal runs of
blocks as there are programs (stream-K: arXiv 2301.03598); split-K is the case in which the number of programs is a
multiple of the number of tiles. The rest are whole tiles, one a program at a time.

A run covers parts of tiles. Where every program has one part of one tile, that is another kernel (`split_kernel`): it
stores the part, and a second one sums the parts of each tile (`parts.py`). Otherwise parts of one tile meet in a
workspace tile of fp32, in one of three ways:

    ADD         the output is fp32 and holds numbers to add to: every part is added to it by TMA, in no fixed order
    ORDERED     part after part: each waits for the tile's flag to say that the blocks before its own are done, adds
                itself, and moves the flag on; the last one has the sum, runs the epilogue and clears the flag
    neither     parts are added in no fixed order and counted; who completes the count runs the epilogue, and leaves
                workspace and flag zero for the next launch

Where the tiles times 2, 4 or 8 are about as many as multiprocessors, nothing meets in memory: a program is a cluster of
so many CTAs, which divide K and sum their parts in shared memory (`cluster_split="K"`), always in the same order.

Programs take their last tile first: a tile's early parts are thus the first thing that a program does, and whoever
needs them waits only for what runs at the same time. All programs must be resident (at most one per multiprocessor).
"""
from __future__ import annotations

import tilejit
import tilejit.language as tl
from tilejit.kernels.activations import end_tile, store_tile, tensor_scale
from tilejit.kernels.order import tile_at


@tilejit.kernel
def block_of(desc, at, k, ROWS: tl.constexpr, EVICTION: tl.constexpr = ""):
    """The block of an operand at `at` and k, which lies in memory as it is, or as its transpose."""
    if ROWS:
        return desc.load([at, k], EVICTION)
    return desc.load([k, at], EVICTION).T


@tilejit.kernel(do_not_specialize=("M", "N", "K", "M0", "N0"))
def matmul_kernel(a_desc, b_desc, c_desc, bias, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                  GROUP: tl.constexpr, A_ROWS: tl.constexpr, B_ROWS: tl.constexpr, ACTIVATION: tl.constexpr, M0=0,
                  N0=0, C_ROWS: tl.constexpr = True, TAIL: tl.constexpr = 0, scale_a=None, scale_b=None, end_args=None,
                  END: tl.constexpr = None):
    """Each program walks tiles in groups of GROUP tile rows, so that a wave's operands stay in L2.

    The result's rows M0 to M and columns N0 to N. A_ROWS: a_desc sees A as [M, K], else as its transpose [K, M].
    B_ROWS: b_desc sees [K, N], else [N, K]. C_ROWS: c_desc sees [M, N], else [N, M], and bias has a value per row.
    TAIL: 0, or K does not divide into blocks, and what is left of it is so much, or less, filled up with zeros.
    scale_a, scale_b: None, or where a number is that the sums are multiplied by. END: None, or what is done with them
    instead of a bias and an activation, as `end_tile` says, with end_args."""
    tiles_m = tl.cdiv(M - M0, BM)
    tiles_n = tl.cdiv(N - N0, BN)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
        row, column = tile_at(tile, tiles_m, tiles_n, GROUP)
        m = M0 + row * BM
        n = N0 + column * BN
        acc = tl.zeros((BM, BN), tl.float32)
        blocks = K // BK if TAIL > 0 else tl.cdiv(K, BK)
        for k in range(0, blocks):
            a = block_of(a_desc, m, k * BK, A_ROWS)
            b = block_of(b_desc, n, k * BK, not B_ROWS).T
            acc = tl.dot(a, b, acc)
        if TAIL > 0:
            for k in range(blocks, blocks + 1):      # as a loop: in the slots of the one before
                a = block_of(a_desc, m, k * BK, A_ROWS)
                b = block_of(b_desc, n, k * BK, not B_ROWS).T
                acc = tl.dot(a, b, acc, depth=TAIL)
        scale = tensor_scale(scale_a, scale_b)
        if END is None:
            store_tile(acc, c_desc, scale, bias, m, n, M, N, BM, BN, C_ROWS, ACTIVATION)
        else:
            end_tile(acc, c_desc, scale, END, end_args, m, n, M, N, BM, BN, C_ROWS)


@tilejit.kernel(do_not_specialize=("M", "N", "K", "stream_tiles"))
def streamk_kernel(a_desc, b_desc, c_desc, part_desc, parts, flags, bias, M, N, K, stream_tiles, BM: tl.constexpr,
                   BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, A_ROWS: tl.constexpr, B_ROWS: tl.constexpr,
                   C_ROWS: tl.constexpr, ACTIVATION: tl.constexpr, ADD: tl.constexpr, ORDERED: tl.constexpr,
                   scale_a=None, scale_b=None):
    """C [M, N] = act(A [M, K] @ B [K, N] + bias), or with ADD: C += A @ B. scale_a, scale_b: None, or where a number is
    that the product is multiplied by first (not with ADD).

    A_ROWS, B_ROWS, C_ROWS: the descriptor sees the matrix itself, else its transpose; with C_ROWS false bias has a
    value per row. parts: the workspace, fp32 [stream_tiles * BM, BN], seen by part_desc in blocks [BM, BN]; flags:
    int32 [stream_tiles], zero; None, all three: there are whole tiles only."""
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    steps = tl.cdiv(K, BK)
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    blocks = stream_tiles * steps
    share = blocks // programs
    extra = blocks % programs
    begin = pid * share + tl.minimum(pid, extra)
    end = begin + share + tl.where(pid < extra, 1, 0)
    last = (end - 1) // steps
    pieces = tl.where(end > begin, last - begin // steps + 1, 0)
    whole = tl.cdiv(tl.maximum(tiles_m * tiles_n - stream_tiles - pid, 0), programs)
    for i in tl.range(0, pieces + whole):
        tile = tl.where(i < pieces, last - i, stream_tiles + (i - pieces) * programs + pid)
        k0 = tl.where(i < pieces, tl.maximum(begin - tile * steps, 0), 0)
        k1 = tl.where(i < pieces, tl.minimum(end - tile * steps, steps), steps)
        row, column = tile_at(tile, tiles_m, tiles_n, GROUP)
        m = row * BM
        n = column * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(k0, k1):
            a = block_of(a_desc, m, k * BK, A_ROWS)
            b = block_of(b_desc, n, k * BK, not B_ROWS).T
            acc = tl.dot(a, b, acc)
        if ADD:
            if C_ROWS:
                c_desc.atomic_add([m, n], acc)
            else:
                c_desc.atomic_add([n, m], acc.T)
        else:
            finish = True
            if flags is not None:
                finish = k1 - k0 == steps
            if flags is not None and k1 - k0 < steps:
                if ORDERED:
                    finish = k1 == steps
                    if k0 > 0:
                        while tl.atomic_cas(flags + tile, k0, k0, sem="acquire") != k0:
                            pass
                    if k1 < steps:
                        if k0 == 0:
                            part_desc.store([tile * BM, 0], acc)
                        else:
                            part_desc.atomic_add([tile * BM, 0], acc)
                        tl.atomic_xchg(flags + tile, k1, sem="release")
                else:
                    part_desc.atomic_add([tile * BM, 0], acc)
                    finish = tl.atomic_add(flags + tile, k1 - k0, sem="acq_rel") + k1 - k0 == steps
                    if finish:
                        acc = tl.zeros((BM, BN), tl.float32)
            if finish:
                if flags is not None and k1 - k0 < steps:
                    mine = parts + tile * (BM * BN)
                    at = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
                    acc += tl.load(mine + at)
                    if not ORDERED:
                        tl.debug_barrier()           # a thread may clear what another one reads
                        tl.store(mine + at, tl.zeros((BM, BN), tl.float32))
                    tl.store(flags + tile, 0)
                store_tile(acc, c_desc, tensor_scale(scale_a, scale_b), bias, m, n, M, N, BM, BN, C_ROWS, ACTIVATION)


@tilejit.kernel(do_not_specialize=("M", "N", "K"))
def split_kernel(a_desc, b_desc, part_desc, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                 GROUP: tl.constexpr, A_ROWS: tl.constexpr, B_ROWS: tl.constexpr, PARTS: tl.constexpr):
    """One tile of part_desc: the product of A [M, K] and B [K, N] over one of PARTS parts of K.

    A_ROWS, B_ROWS: the descriptor sees the matrix itself, else its transpose. part_desc: fp32, PARTS times [BM, BN]
    for every tile, one below the other. Programs side by side have the same part, so that who reads the same starts at
    the same time (on an H200 5% faster at 512x512x65536, 1 to 15% elsewhere, than parts of a tile side by side). A part
    has every PARTS'th block of K, so that what all programs read at a time is close together. Operands leave L2 first:
    they are read once or twice, and parts that stay need not go to memory (1% there, 8% at 256x256x131072)."""
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    tile = tl.program_id(0) % (tiles_m * tiles_n)
    part = tl.program_id(0) // (tiles_m * tiles_n)
    row, column = tile_at(tile, tiles_m, tiles_n, GROUP)
    m, n = row * BM, column * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(part, tl.cdiv(K, BK), PARTS):
        a = block_of(a_desc, m, k * BK, A_ROWS, "evict_first")
        b = block_of(b_desc, n, k * BK, not B_ROWS, "evict_first").T
        acc = tl.dot(a, b, acc)
    part_desc.store([(tile * PARTS + part) * BM, 0], acc)
