"""END: what becomes of the sums [BM, BN] of a tile. end(p, at, sums); p.end is its tuple."""
from __future__ import annotations

import tilejit
import tilejit.language as tl
from tilejit.kernels.activations import ended

#: Ragged descriptors: rows of a tile that ends at `end`, `rows` before its group's, go to [WRAP, end, WRAP - rows,
#: column].
WRAP = 2 ** 30
_WRAP = tl.constexpr(WRAP)


@tilejit.kernel
def put(p, at, desc, y):
    """Where `desc` sees a matrix (p.SWAP: its transpose), a stack, or rows in groups (`_operands.ragged`)."""
    RANK: tl.constexpr = len(desc.block_shape)
    r = at.n if p.SWAP else at.m
    c = at.m if p.SWAP else at.n
    if p.SWAP:
        y = y.T
    if RANK == 2:
        desc.store([r, c], y)
    elif RANK == 3:
        desc.store([at.batch, r, c], y.reshape(*desc.block_shape))
    else:
        desc.store([_WRAP, at.start + at.count, _WRAP - at.count + r, c], y.reshape(*desc.block_shape))


@tilejit.kernel
def store(p, at, acc):
    """p.end: descriptor of the result, and the tuple of `activations.ended`."""
    c_desc = p.end[0]
    high = at.m + tl.arange(0, p.BM)[:, None]
    wide = at.n + tl.arange(0, p.BN)[None, :]
    if p.SWAP:
        acc = ended(acc, wide, high, p.N, p.M, p.end[1:], c_desc.dtype)
    else:
        acc = ended(acc, high, wide, p.M, p.N, p.end[1:], c_desc.dtype)
    put(p, at, c_desc, acc.to(c_desc.dtype))


@tilejit.kernel
def part(p, at, acc):
    """For `sums.sum_parts_kernel`. p.end: a descriptor of tiles [BM, BN] in fp32, one below the other, at the place's
    slot."""
    p.end[0].store([at.slot * p.BM, 0], acc)


@tilejit.kernel
def added(p, at, acc):
    """Added to what the result, in fp32, holds, in no fixed order. p.end: its descriptor."""
    if p.SWAP:
        p.end[0].atomic_add([at.n, at.m], acc.T)
    else:
        p.end[0].atomic_add([at.m, at.n], acc)


@tilejit.kernel
def pass_on(p, at, acc, steps):
    """Wait until the parts of a tile before this one are there, and unless it is the last one add it, and say so."""
    part_desc, _, flags, _, _ = p.end
    if at.first > 0:
        while tl.atomic_cas(flags + at.slot, at.first, at.first, sem="acquire") != at.first:
            pass
    if at.last < steps:
        if at.first == 0:
            part_desc.store([at.slot * p.BM, 0], acc)
        else:
            part_desc.atomic_add([at.slot * p.BM, 0], acc)
        tl.atomic_xchg(flags + at.slot, at.last, sem="release")


@tilejit.kernel
def handed(p, at, acc):
    """Parts of a tile meet in memory in the order of K."""
    _, parts, _, END, args = p.end
    steps = tl.cdiv(p.K, p.BK)
    shared = at.last - at.first < steps
    if shared:
        pass_on(p, at, acc, steps)
    if at.last == steps:
        if shared:
            mine = parts + at.slot * (p.BM * p.BN)
            acc += tl.load(mine + tl.arange(0, p.BM)[:, None] * p.BN + tl.arange(0, p.BN)[None, :])
        END(p._replace(end=args), at, acc)
