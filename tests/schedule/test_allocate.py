"""The allocator on random kernels and on textual IR: what shares bytes, and what is put in between."""
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilejit
import tilejit.language as tl
from tilejit import passes, schedule
from tilejit.errors import CompilationError
from tilejit.frontend import Const, KernelSource, Param, build
from tilejit.ir import walk
from tilejit.ir.text import parse_function, print_function
from tilejit.ir.types import Desc, bf16, int32
from tilejit.ir.verify import verify
from tilejit.schedule.allocate import Allocator, allocate
from tilejit.schedule.packing import overlap
from tilejit.schedule.separate import missing

BF16 = ml_dtypes.bfloat16
ALLOCATE = sys.modules[Allocator.__module__]


def part(a_desc, b_desc, c_desc, K, m, KIND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, WS: tl.constexpr):
    """One piece of work: 1 product, 2 product of changed operands, 3 sums of rows, 4 two products at once."""
    acc = tl.zeros((BM, BN), tl.float32)
    if KIND == 1:
        for k in tl.range(0, tl.cdiv(K, 64), warp_specialize=WS):
            acc = tl.dot(a_desc.load([m, k * 64]), b_desc.load([0, k * 64]).T, acc)
    elif KIND == 2:
        for k in tl.range(0, tl.cdiv(K, 64), warp_specialize=WS):
            acc = tl.dot(a_desc.load([m, k * 64]) + 1.0, b_desc.load([0, k * 64]).T, acc)
    elif KIND == 3:
        for k in tl.range(0, tl.cdiv(K, 64), warp_specialize=WS):
            acc += tl.sum(a_desc.load([m, k * 64]).to(tl.float32), 1)[:, None] + tl.sum(acc, 0)[None, :] * 0.0
    elif KIND == 4:
        a = a_desc.load([m, 0])
        for k in tl.range(0, tl.cdiv(K, 64), warp_specialize=WS):
            acc = tl.dot(a, b_desc.load([0, k * 64]).T, acc)
            acc = tl.dot(a_desc.load([m, k * 64]), b_desc.load([0, 0]).T, acc)
    c_desc.store([m, 0], acc.to(c_desc.dtype))


piece = tilejit.kernel(part)


def pieces(a_desc, b_desc, c_desc, K, X: tl.constexpr, Y: tl.constexpr, Z: tl.constexpr, TILES: tl.constexpr,
           BM: tl.constexpr, BN: tl.constexpr, WS: tl.constexpr):
    if TILES:
        for t in range(2):
            piece(a_desc, b_desc, c_desc, K, t * BM, X, BM, BN, WS)
            if Y:
                piece(a_desc, b_desc, c_desc, K, (2 + t) * BM, Y, BM, BN, WS)
    else:
        piece(a_desc, b_desc, c_desc, K, 0, X, BM, BN, WS)
        if Y:
            piece(a_desc, b_desc, c_desc, K, 2 * BM, Y, BM, BN, WS)
    if Z:
        piece(a_desc, b_desc, c_desc, K, 4 * BM, Z, BM, BN, WS)


def scheduled(limit, stages, warps, bm=64, bn=64, **constants):
    """The function with shared memory laid out in `limit` bytes, or None where it does not fit."""
    described = {"a_desc": Param(Desc(bf16, (bm, 64))), "b_desc": Param(Desc(bf16, (bn, 64))),
                 "c_desc": Param(Desc(bf16, (bm, bn))), "K": Param(int32), "BM": Const(bm), "BN": Const(bn),
                 **{n: Const(v) for n, v in constants.items()}}
    options = {"num_warps": warps, "num_stages": stages, "num_consumer_groups": 1}
    before, ALLOCATE.limit = ALLOCATE.limit, lambda fn: limit
    try:
        return schedule.run(passes.run(build(KernelSource(pieces), described, options)))
    except CompilationError as e:
        assert "bytes needed" in e.message, e
        return None
    finally:
        ALLOCATE.limit = before


def places(live):
    """(area, first byte, bytes) of every area, as the ops say."""
    return [(a, a.alloc.attrs["offset"] if a.alloc else a.scratch[0][0].attrs["scratch"], a.bytes) for a in live.areas]


def in_turn(block, x, y):
    """Whether the ops of a block touch areas x and y in turn: all of one, then all of the other; also in its loops."""
    order = []
    for op in block.ops:
        inner = {op, *(o for r in op.regions for o in walk(r))}
        touched = [bool(inner & set(a.accesses[0])) for a in (x, y)]
        if all(touched):
            return sum(bool({o, *(i for r in o.regions for i in walk(r))} & {*x.accesses[0], *y.accesses[0]})
                       for o in block.ops) == 1 and all(in_turn(r, x, y) for r in op.regions)
        order += [touched.index(True)] if any(touched) else []
    return order == sorted(order) or order == sorted(order, reverse=True)


KINDS = st.integers(1, 4)
KERNELS = st.fixed_dictionaries({
    "X": KINDS, "Y": st.integers(0, 4), "Z": st.integers(0, 4), "TILES": st.booleans(), "WS": st.booleans(),
    "stages": st.integers(1, 3)})


@given(KERNELS, st.sampled_from([4, 8]), st.integers(30, 130))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_is_live_at_once_shares_no_byte(kernel, warps, kilobytes):
    fn = scheduled(kilobytes * 1024, warps=warps, bm=16 * warps, **kernel)
    if fn is None:
        return
    verify(fn)
    live = Allocator(fn).live
    found = places(live)
    assert fn.attrs["shared_bytes"] <= kilobytes * 1024
    barriers = [(op.attrs["offset"], 8 * op.attrs["type"].slots) for op in fn.body.ops if op.name == "barriers"]
    for i, (x, at, size) in enumerate(found):
        assert at % x.align == 0 and at + size <= fn.attrs["shared_bytes"]
        assert not any(overlap((at, size), barrier) for barrier in barriers)
        for y, other, length in found[:i]:
            if not overlap((at, size), (other, length)) or x.kind == y.kind == "scratch":
                continue
            assert in_turn(live.frames[0], x, y), (x.name, y.name)
            for step in live.steps(x, y):
                if not step.there:
                    assert missing(live, step) == [], (step.first.name, step.then.name)
                else:
                    waits = [op for op in step.there.ops if op.name == "mbar_wait" and ".room" in
                             op.operands[0].op.attrs["name"]]
                    assert any(step.there.ops.index(w) < live.span(step.then, 1, step.there)[0] for w in waits)


def expected(kind, a, b):
    a, b = a.astype(np.float32), b.astype(np.float32)
    if kind == 1:
        return a @ b.T
    if kind == 2:
        return (a + 1) @ b.T
    if kind == 3:
        return np.repeat(a.sum(1)[:, None], len(b), 1)
    steps = range(0, a.shape[1], 64)
    return sum(a[:, :64] @ b[:, k:k + 64].T + a[:, k:k + 64] @ b[:, :64].T for k in steps)


@pytest.mark.remarks("C7508", "C7510", "C7514", "C7517", "spills", reason="any mixture of pieces, none of them tuned")
@given(KERNELS, st.sampled_from([4, 8]), st.integers(0, 3))
@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_random_kernels_in_the_emulator(kernel, warps, tightness):
    """The tightest memory in which a kernel fits, or a little more: right results, and no findings."""
    bm, stages = 16 * warps, kernel["stages"]
    constants = {n: kernel[n] for n in ("X", "Y", "Z", "TILES", "WS")}
    full = scheduled(10 ** 6, warps=warps, bm=bm, **kernel).attrs["shared_bytes"]
    fits = [n for n in range(8192, full + 8192, 8192) if scheduled(n, warps=warps, bm=bm, **kernel) is not None]
    limit = fits[min(tightness, len(fits) - 1)]
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-2, 3, (n, 192)).astype(BF16) for n in (5 * bm, 64))
    out = np.zeros((5 * bm, 64), BF16)
    desc = tilejit.TensorDescriptor.from_tensor
    before, ALLOCATE.limit = ALLOCATE.limit, lambda fn: limit
    try:
        with tilejit.knobs(target="emulator", cache=False):
            fresh = tilejit.kernel(pieces)
            tilejit.check(fresh, 1, desc(a, (bm, 64)), desc(b, (64, 64)), desc(out, (bm, 64)), 192, BM=bm, BN=64,
                          **constants, num_warps=warps, num_stages=stages, num_consumer_groups=1, seeds=[0]).check()
    finally:
        ALLOCATE.limit = before
    tiles = 1 + kernel["TILES"]
    exact = np.zeros((5 * bm, 64), np.float32)
    for kind, first, count in ((kernel["X"], 0, tiles), (kernel["Y"], 2, tiles), (kernel["Z"], 4, 1)):
        rows = slice(first * bm, (first + count) * bm)
        if kind:
            exact[rows] = expected(kind, a[rows], b)
    assert np.array_equal(out, exact.astype(BF16))


#: A kernel of two warpgroups with one ring and the staging of its store, as the rewrite leaves it.
TEXT = """
#rows = <128x64 register=[[0,1],[8,0],[0,8],[0,16],[0,32]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] \
warp=[[16,0],[32,0],[64,0]]>
kernel @f(%src: desc<bf16[128x64]>, %dst: desc<bf16[128x64]>) {num_warps=8} {
  %full = barriers {name="x.full"} : barrier<2, count=1>
  %empty = barriers {name="x.empty"} : barrier<2, count=8>
  %x = alloc {name="x"} : buffer<2xbf16[128x64], swizzle=128, order=1x0>
  %stage = alloc {name="stage", private=true} : buffer<2xbf16[64x64], swizzle=128, order=1x0>
  %0 = const {value=0} : int32
  %1 = const {value=1} : int32
  elect {
    mbar_wait %empty, %0, %1
    mbar_expect %full, %0 {bytes=16384}
    tma_load %x, %0, %full, %src, %0, %0
  }
  mbar_wait %full, %0, %0
  %view = view %x, %0 : buffer<view bf16[128x64], swizzle=128, order=1x0>
  %tile = local_load %view : bf16[128x64, #rows]
  mbar_arrive %empty, %0 {per="warp", ctas=1}
  %sum = add %tile, %tile : bf16[128x64, #rows]
  tma_store %dst, %sum, %stage, %0, %0 {size=64, axis=1, stripes=2}
  store_wait
  return
}
"""


def test_text_in_and_out(monkeypatch):
    """Where there is room, only offsets are added; where there is none, one more line: a meeting before the store."""
    def lines(limit):
        monkeypatch.setattr(ALLOCATE, "limit", lambda fn: limit)
        fn = parse_function(TEXT)
        verify(fn)
        allocate(fn)
        verify(fn)
        text = print_function(fn)
        assert print_function(parse_function(text)) == text
        return [line.strip() for line in text.splitlines()[1:]], fn.attrs["report"], fn.attrs["shared_bytes"]

    roomy, report, size = lines(100000)
    assert size == 2 * 16384 + 2 * 8192 + 32 and not any("separation" in x for x in report)
    tight, report, size = lines(40000)
    assert size == 2 * 16384 + 32 and "separation: role_sync between x and stage" in report
    assert "shared memory: 32800 bytes, 16384 saved by reuse" in report
    assert tight[tight.index("role_sync") + 1].startswith("tma_store %dst")
    assert [x.split("{")[0] for x in tight if x != "role_sync"] == [x.split("{")[0] for x in roomy]
    assert '%stage = alloc {name="stage", private=true, offset=0}' in "\n".join(tight)


@pytest.mark.parametrize("attrs, meets", [("stripes=2", False), ("stripes=1", True), ("stripes=1, now=true", False)])
def test_a_store_begins_with_a_meeting_or_not(attrs, meets, monkeypatch):
    """A store by all threads meets before it writes, unless the one before it has been waited for at its end."""
    monkeypatch.setattr(ALLOCATE, "limit", lambda fn: 40000)
    fn = parse_function(TEXT.replace("stripes=2", attrs))
    allocate(fn)
    assert fn.attrs["shared_bytes"] == 2 * 16384 + 32
    assert any(op.name == "role_sync" for op in walk(fn.body)) != meets
