"""What the scheduler decides for a matmul, and what it says about it."""
import re

import pytest

import tilejit.language as tl
from tilejit import passes, schedule
from tilejit.errors import CompilationError
from tilejit.frontend import Const, KernelSource, Param, build
from tilejit.ir import walk
from tilejit.ir.types import Buffer, Desc, Ptr, bf16, fp32, int32
from tilejit.ir.verify import verify
from tilejit.schedule.allocate import limit


def matmul(a_desc, b_desc, c_desc, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tiles_n = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BM) * tiles_n, tl.num_programs(0)):
        m = tile // tiles_n * BM
        n = tile % tiles_n * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(tl.cdiv(K, BK)):
            a = a_desc.load([m, k * BK])
            b = b_desc.load([n, k * BK])
            acc = tl.dot(a, b.T, acc)
        c_desc.store([m, n], acc.to(c_desc.dtype))


def inline_matmul(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, tl.cdiv(K, BK), warp_specialize=False):
        acc = tl.dot(a_desc.load([0, k * BK]), b_desc.load([0, k * BK]).T, acc)
    c_desc.store([0, 0], acc.to(c_desc.dtype))


def indirect_matmul(a_desc, b_desc, c_desc, table, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                    WRITE: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.cdiv(K, BK)):
        page = tl.load(table + k)
        acc = tl.dot(a_desc.load([0, page]), b_desc.load([0, page]).T, acc)
        if WRITE:
            tl.store(table + k, page + 1)
    c_desc.store([0, 0], acc.to(c_desc.dtype))


def add(x, y, out, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out + offs, tl.load(x + offs, mask) + tl.load(y + offs, mask), mask)


def scheduled(kernel, bm=128, bn=256, bk=64, warps=8, stages=4, WRITE=None, **options):
    described = {"a_desc": Param(Desc(bf16, (bm, bk))), "b_desc": Param(Desc(bf16, (bn, bk))),
                 "c_desc": Param(Desc(bf16, (bm, bn))), "table": Param(Ptr(int32), 16), "M": Param(int32),
                 "N": Param(int32), "K": Param(int32), "BM": Const(bm), "BN": Const(bn), "BK": Const(bk), "WRITE": Const(WRITE)}
    source = KernelSource(kernel)
    args = {n: described[n] for n in source.signature.parameters}
    fn = schedule.run(passes.run(build(source, args, {"num_warps": warps, "num_stages": stages, **options})))
    verify(fn)
    return fn


def names_in(block):
    return [op.name for op in walk(block)]


def roles_of(fn):
    op = next((op for op in fn.body.ops if op.name == "roles"), None)
    return dict(zip(op.attrs["names"], op.regions)) if op else {}


def rings_of(fn):
    return {op.attrs["name"]: op.attrs["type"] for op in fn.body.ops if op.name == "alloc"}


def places(fn):
    """(name, first byte, end) of every buffer and barrier array, scratch included, as the report lists them."""
    out = []
    for line in fn.attrs["report"]:
        if re.match(r"shared +\d+ \+", line):
            at, size, name = line[len("shared "):].replace("+", " ").split(maxsplit=2)
            out.append((name.split("    ")[0], int(at), int(at) + int(size)))
    return out


@pytest.mark.parametrize("bm, bn, warps, stages", [(128, 256, 8, 4), (128, 128, 8, 5), (64, 128, 4, 6), (64, 64, 4, 2)])
def test_a_persistent_matmul_is_specialised(bm, bn, warps, stages):
    fn = scheduled(matmul, bm, bn, 64, warps, stages, store_role=False)
    roles = roles_of(fn)
    assert len(roles) == 2
    (producer,) = (b for b in roles.values() if "tma_load" in names_in(b))
    (consumer,) = (b for b in roles.values() if "dot_async" in names_in(b))
    assert producer is not consumer
    # slicing: both keep the whole loop nest, only the consumer computes and stores
    assert names_in(producer).count("for") == names_in(consumer).count("for") == 2
    assert names_in(producer).count("tma_load") == 2 and "tma_load" not in names_in(consumer)
    assert "tma_store" in names_in(consumer) and "tma_store" not in names_in(producer)
    assert not {"dot_async", "dot_wait", "cast"} & set(names_in(producer))
    report = fn.attrs["report"]
    assert any(line.startswith("specialised: producer warp + 2 consumer groups of 4 warps" if warps == 4 else
                               f"specialised: producer warp + {warps // 4} consumer warpgroups") for line in report)
    assert any("one round of wgmma stays in flight" in line for line in report) == (stages > 3)


def test_tiles_are_stored_by_a_role_of_their_own():
    """One group of consumers that stores whole lines in a loop hands its tiles over, unless that is refused."""
    fn = scheduled(matmul, stages=3)
    roles = roles_of(fn)
    assert set(roles) == {"producer", "consumer", "store"}
    assert "tma_put" in names_in(roles["store"]) and "stage" in names_in(roles["consumer"])
    assert "tma_store" not in names_in(fn.body)
    assert "store role: a warp for each of 2 streams of tiles" in fn.attrs["report"]


def test_a_and_b_share_one_ring():
    fn = scheduled(matmul, store_role=False)
    a, b = (t for name, t in rings_of(fn).items() if name in ("a", "b"))
    assert (a.shape, b.shape) == ((128, 64), (256, 64)) and a.swizzle == b.swizzle == 128
    size = 2 * (128 + 256) * 64
    assert f"ring a_b: 4 slots x {size} bytes, TMA tiles, wgmma reads the slots" in fn.attrs["report"]
    expects = [op for op in walk(fn.body) if op.name == "mbar_expect"]
    assert [op.attrs["bytes"] for op in expects] == [size]
    full_and_empty = [op.attrs["type"] for op in fn.body.ops if op.name == "barriers"]
    assert [t.slots for t in full_and_empty] == [4, 4]


def test_empty_counts_one_arrival_a_warpgroup():
    """Of a ring of loads: so of 2 here. The slots of a store are full when every warp says so, empty when one does."""
    for options, staging in (({}, {"c_desc_stage.full": 4, "c_desc_stage.empty": 1}), ({"store_role": False}, {})):
        fn = scheduled(matmul, warps=8, stages=3, **options)
        counts = {op.attrs["name"]: op.attrs["type"].count for op in fn.body.ops if op.name == "barriers"}
        assert counts == {"a_b.full": 1, "a_b.empty": 2, **staging}


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_depth_is_num_stages(stages):
    fn = scheduled(matmul, stages=stages)
    buffers = rings_of(fn)
    assert [buffers[name].slots for name in ("a", "b")] == [stages, stages]
    assert any(line.startswith(f"ring a_b: {stages} slots") for line in fn.attrs["report"])


def test_the_epilogue_is_staged():
    for options in ({}, {"store_role": False}):
        fn = scheduled(matmul, stages=3, **options)
        (line,) = (x for x in fn.attrs["report"] if x.startswith("store at "))
        assert "TMA, staged 64 columns at a time in 2 x 16384 bytes" in line


@pytest.mark.parametrize("kernel, warps", [(matmul, 8), (matmul, 4), (inline_matmul, 4)])
def test_nothing_overlaps_in_shared_memory(kernel, warps):
    fn = scheduled(kernel, 64 * warps // 4, 64, 64, warps, 3)
    taken = sorted(places(fn), key=lambda row: row[1])
    assert len(taken) >= 4
    for (name, _, end), (other, start, _) in zip(taken, taken[1:]):
        # what a kernel stores after its only loop may have bytes of the loop's rings, which are read by then
        assert end <= start or kernel is inline_matmul and "c_desc_stage" in (name, other)
    assert max(end for _, _, end in taken) == fn.attrs["shared_bytes"] <= limit(fn)
    for op in fn.body.ops:
        if op.name == "alloc":
            t = op.attrs["type"]
            assert isinstance(t, Buffer)
            assert op.attrs["offset"] % max(128, 8 * t.swizzle) == 0, "the swizzle repeats every 8 spans"
            assert (op.attrs["name"], op.attrs["offset"], op.attrs["offset"] + t.slots * t.slot_bytes) in taken


def test_warp_specialize_false_is_inline():
    fn = scheduled(inline_matmul, 64, 64, 64, 4, 3)
    assert roles_of(fn) == {}
    assert "inline: warp_specialize=False" in fn.attrs["report"]
    # two tickets before the loop, one in it, two copies each
    assert names_in(fn.body).count("tma_load") == 6
    assert names_in(fn.body).count("mbar_wait") >= 2


def test_a_table_of_blocks_is_read_by_the_role_that_loads():
    found = roles_of(scheduled(indirect_matmul, 64, 64, 64, 4, 3, WRITE=False))
    assert {name: names_in(block).count("load") for name, block in found.items()} == {"producer": 1, "consumer": 0}


def test_a_table_that_changes_is_inline_and_says_why():
    fn = scheduled(indirect_matmul, 64, 64, 64, 4, 3, WRITE=True)
    assert roles_of(fn) == {}
    (line,) = (x for x in fn.attrs["report"] if x.startswith("inline: "))
    assert line.startswith("inline: a load address depends on load (test_schedule.py:")
    assert any("not pipelined" in x for x in fn.attrs["report"])


@pytest.mark.parametrize("stages, slots", [(9, 4), (5, 4), (4, 4)])
def test_too_many_stages_become_those_that_fit(stages, slots):
    fn = scheduled(matmul, stages=stages)
    assert {ring.slots for ring in rings_of(fn).values()} == {slots}
    said = [line for line in fn.attrs["report"] if line.startswith(f"num_stages={slots}: more do not fit")]
    assert len(said) == (stages > slots)


def test_blocks_that_never_fit():
    with pytest.raises(CompilationError, match="use smaller blocks"):
        scheduled(matmul, 128, 256, 512, 8, 2)


def test_a_kernel_without_rings_stays_as_it_is():
    args = {n: Param(Ptr(fp32), 16) for n in ("x", "y", "out")}
    fn = schedule.run(passes.run(build(KernelSource(add), {**args, "n": Param(int32), "BLOCK": Const(1024)},
                                       {"num_warps": 4, "num_stages": 3})))
    verify(fn)
    assert roles_of(fn) == {} and rings_of(fn) == {} and fn.attrs["shared_bytes"] == 0


def grouped(a_desc, b_desc, c_desc, table, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
            WRITE: tl.constexpr):
    for e in range(4):
        row = tl.load(table + e)
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(tl.cdiv(K, BK)):
            acc = tl.dot(a_desc.load([row, k * BK]), b_desc.load([0, k * BK]).T, acc)
        c_desc.store([row, 0], acc.to(c_desc.dtype))
        if WRITE:
            tl.store(table + e, row + 1)


def test_numbers_read_by_both_roles():
    """A number that places tiles is read for itself by each role that loads or stores, unless the kernel writes there."""
    for options, reads in (({}, {"producer": 1, "store": 1, "consumer": 0}), ({"store_role": False}, {"producer": 1, "consumer": 1})):
        found = roles_of(scheduled(grouped, WRITE=False, stages=3, **options))
        assert {name: names_in(block).count("load") for name, block in found.items()} == reads
    fn = scheduled(grouped, WRITE=True)
    assert not roles_of(fn) and any("inline: a load address depends on load" in x for x in fn.attrs["report"])


@pytest.mark.parametrize("stages, slots, pieces", [(None, 2, 4), (1, 1, 4), (2, 2, 4), (8, 4, 4)])
def test_staging_tiles_of_a_store(stages, slots, pieces):
    """No more than pieces; the only one is waited for at once."""
    fn = scheduled(matmul, 128, 256, stages=2, store_role=False, **({"store_stages": stages} if stages else {}))
    (store,) = (op for op in walk(fn.body) if op.name == "tma_store")
    assert store.operands[2].type.slots == 2 * slots and ("now" in store.attrs) == (stages == 1)
    (line,) = (x for x in fn.attrs["report"] if x.startswith("store at "))
    assert f"in {slots} x 16384 bytes, every warpgroup its own rows" in line


def test_the_form_by_launch_option():
    assert not roles_of(scheduled(matmul, warps=8, stages=2, warp_specialize=False))
    assert roles_of(scheduled(inline_matmul, 64, 64, 64, 4, 3, warp_specialize=True)), "the launch overrides the loop"
    with pytest.raises(CompilationError, match="warp_specialize=True: a load address depends on load"):
        scheduled(indirect_matmul, 64, 64, 64, 4, 3, WRITE=True, warp_specialize=True)


@pytest.mark.parametrize("option, value", [("store_stages", 3), ("store_stages", 0), ("warp_specialize", 1)])
def test_options_that_are_not_legal(option, value):
    with pytest.raises(CompilationError, match=f"{option}={value} is not legal"):
        scheduled(matmul, **{option: value})
