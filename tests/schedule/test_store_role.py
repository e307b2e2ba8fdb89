"""Stores by a role of their own: who does what, right results, clean under schedules, and when consumers store after all."""
import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.ir import erase, walk
from tilejit.ir.text import parse_function
from tilejit.kernels.product.plain import matmul_kernel
from tilejit.schedule import split
from tilejit.schedule.store_role import write_stores

BF16 = ml_dtypes.bfloat16
desc = tilejit.TensorDescriptor.from_tensor


def integers(*shape, dtype=BF16):
    return np.random.default_rng().integers(-3, 4, shape).astype(dtype)


def product(m, n, k, bm, bn, grid=2, check=False, **options):
    """The compiled kernel, its result and the exact one; with `check` under schedules, which must find nothing."""
    a, b, out = integers(m, k), integers(n, k), np.full((m, n), np.nan, BF16)
    args = desc(a, (bm, 64)), desc(b, (bn, 64)), desc(out, (bm, bn)), None, m, n, k
    given = dict(BM=bm, BN=bn, BK=64, GROUP=4, A_ROWS=True, B_ROWS=False, ACTIVATION=None, store_role=True, **options)
    with tilejit.knobs(target="emulator"):
        if check:
            tilejit.check(matmul_kernel, (grid,), *args, seeds=range(2), **given).check()
            out[:] = np.nan
        compiled = matmul_kernel[(grid,)](*args, **given)
    return compiled, out, (a.astype(np.float32) @ b.astype(np.float32).T).astype(BF16)


def roles_of(compiled):
    fn = parse_function(compiled.scheduled)
    (op,) = (op for op in fn.body.ops if op.name == "roles")
    return op, {name: [x.name for x in walk(block)] for name, block in zip(op.attrs["names"], op.regions)}


@pytest.mark.parametrize("options", [
    dict(bm=128, bn=256, num_warps=8), dict(bm=128, bn=256, num_warps=8, store_stages=4),
    dict(bm=128, bn=128, num_warps=8, store_stages=1), dict(bm=128, bn=128, num_warps=4),
    dict(bm=64, bn=256, num_warps=4, store_stages=4), dict(bm=64, bn=64, num_warps=4, num_consumer_groups=3),
    dict(bm=64, bn=128, num_warps=4, num_consumer_groups=1), dict(bm=64, bn=256, num_warps=8),
    dict(bm=256, bn=128, num_warps=8, num_ctas=2), dict(bm=128, bn=128, num_warps=4, num_ctas=2)])
def test_results(options):
    """Ragged edges, more than one tile a group, pieces that do not go into the slots evenly."""
    compiled, out, exact = product(520, 264, 136, **options)
    assert np.array_equal(out, exact)
    assert "store role: a warp" in compiled.report() and "role store" in compiled.ptx


@pytest.mark.parametrize("options", [dict(num_warps=8), dict(num_warps=4), dict(num_warps=4, bm=256, num_ctas=2)])
def test_schedules(options):
    _, out, exact = product(384, 200, 128, **{"bm": 128, "bn": 128, "check": True, **options})
    assert np.array_equal(out, exact)


def test_who_does_what():
    compiled, _, _ = product(256, 256, 128, 128, 128, num_warps=8)
    op, names = roles_of(compiled)
    assert op.attrs["warps"] == (8, 1, 2) and op.attrs["groups"] == (1, 1, 2)
    assert "tma_load" in names["producer"] and "dot_async" in names["consumer"]
    assert names["consumer"].count("stage") == 1 and names["store"].count("tma_put") == 2
    assert "tma_store" not in names["consumer"] and not {"store_wait", "bulk_wait", "role_sync"} & set(names["consumer"])
    assert names["store"].count("for") == 1, "the loop over K is no concern of this role"
    assert not {"tma_load", "dot_async", "stage"} & set(names["store"])
    assert names["store"][-1] == "bulk_wait"
    full, empty = (next(x.attrs["type"] for x in parse_function(compiled.scheduled).body.ops
                        if x.attrs.get("name") == f"c_desc_stage.{kind}") for kind in ("full", "empty"))
    assert (full.slots, full.count, empty.slots, empty.count) == (4, 4, 4, 1)


def test_text_and_back():
    """The scheduled form prints and parses, and consumers meet nowhere."""
    compiled, _, _ = product(128, 128, 64, 64, 128, grid=1, num_warps=4)
    assert str(parse_function(compiled.scheduled)) == compiled.scheduled
    assert compiled.ptx.count("bar.sync") == 1, "the only meeting is after the barriers' initialisation"
    assert "setmaxnreg.dec" in compiled.ptx and compiled.ptx.count("setmaxnreg.dec") == 1, "one for the warpgroup"


@tilejit.kernel
def two_results(a_desc, b_desc, c_desc, d_desc, tiles, k_blocks, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(k_blocks):
            acc = tl.dot(a_desc.load([tile * BM, k * BK]), b_desc.load([0, k * BK]).T, acc)
        c_desc.store([tile * BM, 0], acc.to(c_desc.dtype))
        if tile % 2 == 1:
            d_desc.atomic_add([0, 0], acc)
        c_desc.store([tile * BM, BN], (acc + 1.0).to(c_desc.dtype))


def test_stores_of_other_widths_under_conditions_and_sums():
    """fp32 sums have pieces of 32 columns, two rings; the kernel is a loop that two groups share."""
    bm, bn, bk, tiles, blocks = 64, 128, 64, 7, 2
    a, b = integers(tiles * bm, blocks * bk), integers(bn, blocks * bk)
    out, total = np.full((tiles * bm, 2 * bn), np.nan, BF16), np.zeros((bm, bn), np.float32)
    args = desc(a, (bm, bk)), desc(b, (bn, bk)), desc(out, (bm, bn)), desc(total, (bm, bn)), tiles, blocks, bm, bn, bk
    with tilejit.knobs(target="emulator"):
        compiled = two_results[(2,)](*args, store_role=True)
        exact = a.astype(np.float32) @ b.astype(np.float32).T
        assert np.array_equal(out[:, :bn], exact.astype(BF16)) and np.array_equal(out[:, bn:], (exact + 1).astype(BF16))
        assert np.array_equal(total, sum(exact[i * bm:(i + 1) * bm] for i in range(1, tiles, 2)))
        tilejit.check(two_results, (2,), *args, seeds=range(2), store_role=True).check()
    assert "2 consumer groups" in compiled.report()
    assert "store role: a warp for each of 2 streams" in compiled.report()
    assert "cp.reduce.async.bulk.tensor" in compiled.ptx


@tilejit.kernel
def two_widths(a_desc, b_desc, w_desc, c_desc, d_desc, tiles, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    for tile in range(tiles):
        narrow = tl.zeros((BM, BN), tl.float32)
        wide = tl.zeros((BM, 2 * BN), tl.float32)
        for k in range(2):
            a = a_desc.load([tile * BM, k * BK])
            narrow = tl.dot(a, b_desc.load([0, k * BK]).T, narrow)
            wide = tl.dot(a, w_desc.load([0, k * BK]).T, wide)
        c_desc.store([tile * BM, 0], narrow.to(c_desc.dtype))
        d_desc.store([tile * BM, 0], wide.to(d_desc.dtype))


def test_stores_of_other_numbers_of_pieces_share_their_slots():
    """Two pieces go through the slots once, four twice."""
    bm, bn, bk, tiles = 64, 128, 64, 3
    a, b, w = integers(tiles * bm, 2 * bk), integers(bn, 2 * bk), integers(2 * bn, 2 * bk)
    c, d = (np.full((tiles * bm, n), np.nan, BF16) for n in (bn, 2 * bn))
    with tilejit.knobs(target="emulator"):
        compiled = two_widths[(1,)](desc(a, (bm, bk)), desc(b, (bn, bk)), desc(w, (2 * bn, bk)), desc(c, (bm, bn)),
                                    desc(d, (bm, 2 * bn)), tiles, bm, bn, bk, num_consumer_groups=1, store_role=True)
    assert compiled.report().count("_stage.full") == 1
    for out, other in ((c, b), (d, w)):
        assert np.array_equal(out, (a.astype(np.float32) @ other.astype(np.float32).T).astype(BF16))


@tilejit.kernel
def flagged(a_desc, b_desc, c_desc, flag, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SEM: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(3):
        acc = tl.dot(a_desc.load([0, k * BK]), b_desc.load([0, k * BK]).T, acc)
    c_desc.store([0, 0], acc.to(c_desc.dtype))
    tl.atomic_add(flag, 1, sem=SEM)


@tilejit.kernel
def placed(a_desc, b_desc, c_desc, flag, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SEM: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(3):
        acc = tl.dot(a_desc.load([0, k * BK]), b_desc.load([0, k * BK]).T, acc)
    tl.store(flag, 0)
    c_desc.store([tl.load(flag), 0], acc.to(c_desc.dtype))


@tilejit.kernel
def relay(a_desc, b_desc, part_desc, parts, flag, c_desc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Programs add their products to a sum one after the other, each told by the one before; the last one finishes."""
    p, last = tl.program_id(0), tl.num_programs(0) - 1
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(2 * p, 2 * p + 2):
        acc = tl.dot(a_desc.load([0, k * BK]), b_desc.load([0, k * BK]).T, acc)
    if p > 0:
        while tl.atomic_cas(flag, p, p, sem="acquire") != p:
            pass
    if p < last:
        if p == 0:
            part_desc.store([0, 0], acc)
        else:
            part_desc.atomic_add([0, 0], acc)
        tl.atomic_xchg(flag, p + 1, sem="release")
    else:
        at = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
        c_desc.store([0, 0], (acc + tl.load(parts + at)).to(c_desc.dtype))


def relayed(bm, programs=3, **options):
    """What is found in `relay` by rows of bm, and its result; checked where nothing is found."""
    bn, bk = 64, 64
    a, b, out = integers(bm, 2 * bk * programs), integers(bn, 2 * bk * programs), np.full((bm, bn), np.nan, BF16)
    parts, flag = np.full((bm, bn), np.nan, np.float32), np.zeros(1, np.int32)
    args = desc(a, (bm, bk)), desc(b, (bn, bk)), desc(parts, (bm, bn)), parts, flag, desc(out, (bm, bn)), bm, bn, bk
    kernel = tilejit.kernel(relay.fn)
    with tilejit.knobs(target="emulator", cache=False):
        found = tilejit.check(kernel, (programs,), *args, seeds=range(2), store_role=True, **options)
        if not found.kinds:
            compiled = kernel[(programs,)](*args, store_role=True, **options)
            assert np.array_equal(out, (a.astype(np.float32) @ b.astype(np.float32).T).astype(BF16))
            assert "wait until the store role's are written" in compiled.report() and "role store" in compiled.ptx
    return found


@pytest.mark.one_schedule                # it explores itself
@pytest.mark.parametrize("bm, options", [(64, dict(num_warps=4)), (128, dict(num_warps=8)),
                                         (64, dict(num_warps=4, store_stages=1)), (128, dict(num_warps=4, num_ctas=2))])
def test_what_an_atomic_releases_is_written(monkeypatch, bm, options):
    """Both store warps are done before any consumer goes on; without that other programs read too early."""
    assert not relayed(bm, **options).kinds

    def only_told(fn, block, puts, b):
        write_stores(fn, block, puts, b)
        erase({op for op in walk(block) if op.name == "bulk_wait" and "read" not in op.attrs}, block)

    monkeypatch.setattr(split, "write_stores", only_told)
    assert "global-race" in relayed(bm, **options).kinds


@tilejit.kernel
def counted(a_desc, b_desc, c_desc, counts, tiles, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """An atomic a tile (the default releases and acquires), two in a row in each second one."""
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(2):
            acc = tl.dot(a_desc.load([tile * BM, k * BK]), b_desc.load([0, k * BK]).T, acc)
        c_desc.store([tile * BM, 0], acc.to(c_desc.dtype))
        tl.atomic_add(counts, 1)
        if tile % 2 == 1:
            tl.atomic_add(counts + 1, 1)


@pytest.mark.one_schedule
@pytest.mark.parametrize("bm, options", [(64, dict(num_warps=4)), (64, dict(num_warps=4, num_consumer_groups=3)),
                                         (128, dict(num_warps=8))])
def test_drains_of_groups_that_take_turns(bm, options):
    tiles, bn, bk = 11, 64, 64
    a, b, out = integers(tiles * bm, 2 * bk), integers(bn, 2 * bk), np.full((tiles * bm, bn), np.nan, BF16)
    counts = np.zeros(2, np.int32)
    args = desc(a, (bm, bk)), desc(b, (bn, bk)), desc(out, (bm, bn)), counts, tiles, bm, bn, bk
    with tilejit.knobs(target="emulator"):
        tilejit.check(counted, (2,), *args, seeds=range(2), store_role=True, **options).check()
        out[:], counts[:] = np.nan, 0
        compiled = counted[(2,)](*args, store_role=True, **options)
    assert np.array_equal(out, (a.astype(np.float32) @ b.astype(np.float32).T).astype(BF16))
    assert counts.tolist() == [tiles, tiles // 2] and "stores.drained" in compiled.report()


@tilejit.kernel
def decided(a_desc, b_desc, c_desc, flag, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SEM: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(3):
        acc = tl.dot(a_desc.load([0, k * BK]), b_desc.load([0, k * BK]).T, acc)
    c_desc.store([0, 0], acc.to(c_desc.dtype))
    if tl.load(flag) == 0:
        tl.atomic_add(flag, 1, sem=SEM)


@pytest.mark.parametrize("kernel, sem, options, reason", [
    (flagged, "release", {}, ""), (flagged, "relaxed", {}, ""),
    (decided, "release", {}, "whether an atomic releases stores depends on load (test_store_role.py:"),
    (placed, "", {}, "a store address depends on load (test_store_role.py:"),
    (flagged, "relaxed", dict(warp_specialize=False), "the kernel is not specialised"),
    (flagged, "relaxed", dict(num_warps=16, BM=256), "4 consumer warpgroups store, 3 warps are idle")])
def test_consumers_store_where_nobody_else_can(kernel, sem, options, reason):
    options = dict(options)
    bm = options.pop("BM", 64)
    a, b, out, flag = integers(bm, 192), integers(64, 192), np.zeros((bm, 64), BF16), np.zeros(1, np.int32)
    with tilejit.knobs(target="emulator"):
        compiled = kernel[(1,)](desc(a, (bm, 64)), desc(b, (64, 64)), desc(out, (bm, 64)), flag, bm, 64, 64, sem,
                                store_role=True, **options)
    assert np.array_equal(out, (a.astype(np.float32) @ b.astype(np.float32).T).astype(BF16))
    assert (f"no store role: {reason}" in compiled.report()) == bool(reason)
    assert ("role store" in compiled.ptx) != bool(reason)


def compiled(bm=128, bn=128, num_warps=8, dtype="bf16", **options):
    return matmul_kernel.compile(
        f"desc<bf16[{bm}x64]>", f"desc<bf16[{bn}x64]>", f"desc<{dtype}[{bm}x{bn}]>", None, "int32", "int32", "int32", BM=bm,
        BN=bn, BK=64, GROUP=4, A_ROWS=True, B_ROWS=False, ACTIVATION=None, num_warps=num_warps, **options)


@pytest.mark.parametrize("options", [dict(), dict(bn=256), dict(bn=192, dtype="fp32"), dict(bn=256, store_stages=1),
                                     dict(bm=256, num_ctas=2), dict(bm=256, bn=256, num_ctas=2, cluster_split="N")])
def test_left_open_it_is_there_where_it_pays(options):
    """One group stores whole lines in a loop. The code is that of a role that is asked for; one may be refused."""
    texts = {role: compiled(**options, store_role=role).ptx for role in (None, True, False)}
    assert texts[None] == texts[True] and "role store" in texts[True] and "role store" not in texts[False]


@pytest.mark.parametrize("options", [dict(bn=160), dict(bn=32), dict(bn=320, bm=256, num_ctas=2, cluster_split="N"),
                                     dict(num_warps=4), dict(num_warps=4, num_consumer_groups=2, bn=64)])
def test_left_open_consumers_store_where_it_does_not_pay(options):
    """Pieces that are narrower than a line; groups that take turns. It is silent there, and is had where it is asked for."""
    texts = {role: compiled(**options, store_role=role) for role in (None, True, False)}
    assert texts[None].ptx == texts[False].ptx and "store role" not in texts[None].report()
    assert "role store" in texts[True].ptx and "role store" not in texts[None].ptx


def test_left_open_consumers_store_what_is_stored_once():
    types = ("desc<bf16[128x64]>", "desc<bf16[128x64]>", "desc<bf16[128x128]>", "*int32", 128, 128, 64, "relaxed")
    texts = {role: flagged.compile(*types, num_warps=8, store_role=role).ptx for role in (None, True, False)}
    assert texts[None] == texts[False] and "role store" in texts[True]


@tilejit.kernel
def repeated(a_desc, b_desc, c_desc, blocks, BM: tl.constexpr, BN: tl.constexpr):
    """Stores in a loop, behind the products: consumers may stage them where the operands were."""
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(blocks):
        acc = tl.dot(a_desc.load([0, k * 64]), b_desc.load([0, k * 64]).T, acc)
    for i in range(2):
        c_desc.store([i * BM, 0], (acc + i).to(c_desc.dtype))


@pytest.mark.parametrize("stages, role", [(3, True), (4, False)])
def test_left_open_consumers_store_where_there_is_no_room(stages, role):
    """Rings of four slots, 192 KB, and 64 KB of staging tiles of its own do not fit."""
    a, b, out = integers(128, 320), integers(256, 320), np.full((256, 256), np.nan, BF16)
    args = desc(a, (128, 64)), desc(b, (256, 64)), desc(out, (128, 256)), 5, 128, 256
    options = dict(num_warps=8, num_stages=stages, store_stages=4)
    with tilejit.knobs(target="emulator"):
        build = repeated[(1,)](*args, **options)
    assert ("role store" in build.ptx) == role and ("saved by reuse" in build.report()) != role
    exact = a.astype(np.float32) @ b.astype(np.float32).T
    assert np.array_equal(out, np.concatenate([exact, exact + 1]).astype(BF16))


def test_consumers_store_where_there_is_no_room_for_what_is_asked_for():
    """As many slots as the author says do not fit beside its staging tiles."""
    build = compiled(bn=256, num_stages=4, store_stages=4, store_role=True)
    assert "role store" not in build.ptx and "no store role: there is no shared memory for it" in build.report()


BY_COLUMNS = dict(bm=256, bn=256, num_ctas=2, cluster_split="N")


@pytest.mark.parametrize("options, slots, staging", [
    (BY_COLUMNS, 4, 1), (dict(BY_COLUMNS, bn=384, store_role=False), 3, 1),
    (dict(BY_COLUMNS, store_stages=2), 3, 2), (dict(BY_COLUMNS, num_stages=3), 3, 2), (dict(bm=128, bn=256), 4, 2),
    (dict(BY_COLUMNS, bn=384), 3, 1)], ids=["slot", "role", "staging given", "slots given", "enough slots", "not bought"])
def test_staging_gives_way_to_a_slot(options, slots, staging):
    """Below four slots of a ring whose depth is open, one more is worth a staging tile whose number is open. (Three pieces
    go through one staging tile anyway where a role stores them.)"""
    report = compiled(**options).report()
    assert f"{slots} slots x " in report and f"staged 64 columns at a time in {staging} x " in report
    assert report.count("ring a_b: ") == report.count("store at ") == 1, "the report is of the schedule that was taken"
