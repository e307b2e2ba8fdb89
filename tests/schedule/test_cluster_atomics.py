"""Atomics of one number, barriers and pointer tiles in programs of several CTAs: each is one program."""
import re

import ml_dtypes
import numpy as np
import pytest
from edited_ptx import explored, no_wait, unchanged

import tilejit
import tilejit.language as tl

BF16 = ml_dtypes.bfloat16


@tilejit.kernel
def counted(a_desc, b_desc, out, order, seen, counter, big, half, tiles, K, BM: tl.constexpr, BN: tl.constexpr,
            BK: tl.constexpr):
    """Tiles of a product that are stored at the places that a counter gives, each as its pieces are drawn."""
    rows, cols = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, tl.cdiv(K, BK)):
            acc = tl.dot(a_desc.load([tile * BM, k * BK]), b_desc.load([0, k * BK]).T, acc)
        place = tl.atomic_add(counter, 1, sem="relaxed")
        tl.store(out + place * (BM * BN) + rows * BN + cols, acc)
        tl.store(order + place, tile)
        tl.atomic_max(seen, tile + 1, sem="relaxed")
        tl.atomic_add(half, 1.0, sem="release")
        old = tl.atomic_xchg(big + tile, tile.to(tl.int64) + 5000000000)
        tl.store(big + tiles + tile, old)


def problem(bm, bn, tiles, k):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (n, k)).astype(BF16) for n in (tiles * bm, bn))
    outs = dict(out=np.full((tiles, bm, bn), np.nan, np.float32), order=np.full(tiles, -1, np.int32),
                seen=np.zeros(1, np.int32), counter=np.zeros(1, np.int32), big=np.arange(2 * tiles, dtype=np.int64),
                half=np.zeros(1, np.float16))
    return a, b, outs


@pytest.mark.one_schedule                # which program, or group of consumers, counts first is open
@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("split, ctas, warps, bm, bn, grid", [
    ("M", 2, 4, 128, 32, 2), ("M", 4, 4, 256, 16, 1), ("M", 2, 8, 256, 64, 1), ("K", 2, 4, 64, 32, 2),
    ("K", 8, 4, 64, 16, 1)])
def test_each_happens_once(target, split, ctas, warps, bm, bn, grid):
    bk, tiles = 64 * ctas if split == "K" else 64, 3
    a, b, outs = problem(bm, bn, tiles, 256)
    descs = [tilejit.TensorDescriptor.from_tensor(x, (n, bk)) for x, n in ((a, bm), (b, bn))]
    with tilejit.knobs(target=target):
        k = counted[(grid,)](*descs, *outs.values(), tiles, 256, BM=bm, BN=bn, BK=bk, num_ctas=ctas, num_warps=warps,
                             cluster_split=split)
    z = (a.astype(np.float32) @ b.astype(np.float32).T).reshape(tiles, bm, bn)
    assert sorted(outs["order"]) == list(range(tiles)) and outs["counter"] == tiles == outs["seen"] == outs["half"]
    assert np.array_equal(outs["out"], z[outs["order"]])
    assert np.array_equal(outs["big"], [*(5000000000 + i for i in range(tiles)), *range(tiles)])
    if target == "emulator":
        assert "atomics of one number: one CTA does them" in k.report() and not k.warnings()


@tilejit.kernel
def handed_on(a_desc, b_desc, part_desc, parts, out, flags, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
              ADD: tl.constexpr):
    """Each program adds its product to a tile that goes from one to the next, by TMA or (not ADD) through pointers;
    the last one stores it."""
    pid = tl.program_id(0)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        acc = tl.dot(a_desc.load([pid * BM, k * BK]), b_desc.load([0, k * BK]).T, acc)
    at = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
    while tl.atomic_cas(flags, pid, pid, sem="acquire") != pid:
        pass
    if ADD:
        part_desc.atomic_add([0, 0], acc)
    else:
        tl.store(parts + at, tl.load(parts + at) + acc)
    tl.atomic_xchg(flags, pid + 1, sem="release")
    if pid == tl.num_programs(0) - 1:
        while tl.atomic_cas(flags, pid + 1, 0, sem="acquire") != pid + 1:
            pass
        mine = tl.load(parts + at)
        tl.debug_barrier()
        tl.store(parts + at, tl.zeros((BM, BN), tl.float32))
        tl.store(out + at, mine)


def handing_on(bm, bn, programs, bk=64, add=True):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (n, 256)).astype(BF16) for n in (programs * bm, bn))
    parts, out, flags = np.zeros((bm, bn), np.float32), np.full((bm, bn), np.nan, np.float32), np.zeros(1, np.int32)
    descs = [tilejit.TensorDescriptor.from_tensor(x, (n, bk)) for x, n in ((a, bm), (b, bn))]
    want = (a.astype(np.float32) @ b.astype(np.float32).T).reshape(programs, bm, bn).sum(0)
    args = (*descs, tilejit.TensorDescriptor.from_tensor(parts, (bm, bn)), parts, out, flags, 256)
    return args, dict(BM=bm, BN=bn, BK=bk, ADD=add), (parts, out, flags), want


@pytest.mark.one_schedule
@pytest.mark.parametrize("split, ctas, warps, bm, bn, add, store_role", [
    ("M", 2, 4, 128, 32, True, False), ("M", 2, 8, 256, 64, False, False), ("M", 2, 8, 256, 64, True, True),
    ("K", 4, 4, 64, 32, True, False), ("K", 2, 4, 64, 32, False, False), ("M", 4, 4, 256, 16, True, True)])
def test_what_one_program_hands_to_the_next(split, ctas, warps, bm, bn, add, store_role):
    args, constants, (parts, out, flags), want = handing_on(bm, bn, 3, 64 * ctas if split == "K" else 64, add)
    constants |= dict(num_ctas=ctas, num_warps=warps, cluster_split=split, store_role=store_role)
    tilejit.check(handed_on, (3,), *args, **constants, seeds=range(1)).check()
    assert store_role == ("\nstore role: a warp" in handed_on.compile(*args, **constants).report())
    assert np.array_equal(out, want) and not flags.any() and not parts.any()


def handed(edit):
    """A tile that three programs of two CTAs hand on, in two ways; `edit` changes the PTX, knowing the offsets of
    barriers."""
    args, constants, (parts, out, flags), want = handing_on(128, 16, 3, add=False)
    constants |= dict(num_ctas=2)
    return explored(handed_on, 3, args, constants, out, edit, 2)


def no_fence(text, names):
    return re.sub(r"(@%p\d+ )?fence\.acq_rel\.gpu;", "", text)


def one_cta_arrives(text, names):
    """The threads of the other CTA do not come to the barrier."""
    return re.sub(rf"@(%p\d+) (mbarrier\.arrive\.shared::cluster\S+ _, \[\S+\+{names['all_ctas[0]']}\];)",
                  r"setp.lt.and.u32 \1, %cluster_ctarank, 1, \1; @\1 \2", text)


@pytest.mark.parametrize("edit, kinds", [
    (unchanged, set()), (no_wait("told[0]"), {"slot-read-early"}), (no_wait("all_ctas[0]"), {"global-race"}),
    (no_fence, {"global-race"}), (one_cta_arrives, {"deadlock"})])
def test_the_sanitizer_knows_the_protocol(edit, kinds):
    found = handed(edit)
    assert bool(found.kinds) == bool(kinds) and (not kinds or found.kinds & kinds), found


@tilejit.kernel
def added(counter, total, x, SEM: tl.constexpr):
    tl.atomic_add(counter, 1, sem=SEM)
    tl.atomic_add(total, tl.sum(tl.load(x + tl.arange(0, 256))), sem="relaxed")


@pytest.mark.parametrize("ctas", [1, 2])
@pytest.mark.parametrize("sem, barriers", [("relaxed", 0), ("release", 1), ("acquire", 1)])
def test_who_waits_for_the_cluster(ctas, sem, barriers):
    """Nobody meets for an atomic that orders nothing and whose result nobody wants; it takes no shared memory then."""
    k = added.compile("*int32", "*fp32", "*fp32", SEM=sem, num_ctas=ctas)
    assert k.scheduled.count("cluster_barrier") == (ctas > 1 and barriers)
    assert k.scheduled.count("cluster_broadcast") == (ctas > 1 and sem == "acquire")
    assert k.scheduled.count("alone=true") == 2 - (ctas == 1 and sem == "release")
    assert ("fence.acq_rel.gpu" in k.ptx) == (ctas > 1 and barriers > 0)
