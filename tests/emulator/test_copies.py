"""TMA, bulk copies and reductions, cp.async, st.async, tensormap.replace against numpy."""
from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from ptx_programs import assembles, kernel, pointer

from tilejit.emulator import Program, Sanitizer, encode_tensor_map
from tilejit.errors import EmulatorError

RNG = np.random.default_rng(5)
SMEM = ".extern .shared .align 1024 .b8 smem[];"
#: Aligned base in %r2, mbarrier (count 1) at 64 KiB in %r3, thread in %r1.
SETUP = ("mov.u32 %r1, %tid.x; mov.u32 %r2, smem; add.u32 %r2, %r2, 1023; and.b32 %r2, %r2, -1024; add.u32 %r3, %r2, 65536;"
         "setp.ne.u32 %p1, %r1, 0; @%p1 bra I; mbarrier.init.shared.b64 [%r3], 1; fence.mbarrier_init.release.cluster;\n"
         "I: bar.sync 0;\n")
WAIT = "\nW: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 bra W;\n"


def dump(count: int, param: str = "y") -> str:
    """Copy `count` shared bytes from %r2 to the array of a parameter, by 32 threads."""
    return (f"ld.param.u64 %rd9, [{param}]; mov.u32 %r9, %r1;\nL: setp.ge.u32 %p3, %r9, {count // 4}; @%p3 bra E;"
            "mad.lo.u32 %r10, %r9, 4, %r2; ld.shared.u32 %r11, [%r10]; mad.wide.u32 %rd10, %r9, 4, %rd9;"
            "st.global.u32 [%rd10], %r11; add.u32 %r9, %r9, 32; bra L;\nE:")


def fill(count: int, param: str = "x") -> str:
    """Copy an array into shared memory at %r2."""
    return (f"ld.param.u64 %rd9, [{param}]; mov.u32 %r9, %r1;\nF: setp.ge.u32 %p3, %r9, {count // 4}; @%p3 bra G;"
            "mad.wide.u32 %rd10, %r9, 4, %rd9; ld.global.u32 %r11, [%rd10]; mad.lo.u32 %r10, %r9, 4, %r2;"
            "st.shared.u32 [%r10], %r11; add.u32 %r9, %r9, 32; bra F;\nG: fence.proxy.async.shared::cta; bar.sync 0;\n")


def launch(text: str, params: list[bytes], memory: list[np.ndarray], **options):  # type: ignore[no-untyped-def]
    assembles(text)
    options = {"shared_bytes": 70000, **options}
    return Program(text).launch(options.pop("grid", (1,)), 32, params, memory=memory, **options)


def swizzled(tile: np.ndarray, swizzle: int) -> np.ndarray:
    """The bytes of a C-contiguous tile as the hardware lays them out from an aligned base."""
    flat = np.ascontiguousarray(tile).view(np.uint8).reshape(-1)
    inner = tile.shape[-1] * tile.itemsize
    pitch = max(inner, swizzle)
    out = np.full(flat.size // inner * pitch, 0xFF, np.uint8)
    for i in range(0, flat.size, 16):
        at = i // inner * pitch + i % inner
        mask = {0: 0, 32: 1, 64: 3, 128: 7}[swizzle]
        at ^= (at >> 7 & mask) << 4
        out[at:at + 16] = flat[i:i + 16]
    return out


def reference_tile(x: np.ndarray, start: tuple[int, ...], box: tuple[int, ...], fill_value: float = 0) -> np.ndarray:
    out = np.full(box, fill_value, x.dtype)
    for index in itertools.product(*map(range, box)):
        at = tuple(s + i for s, i in zip(start, index))
        if all(0 <= a < n for a, n in zip(at, x.shape)):
            out[index] = x[at]
    return out


SHAPES = {1: ((100,), (32,)), 2: ((20, 40), (8, 16)), 3: ((5, 12, 24), (2, 4, 16)), 4: ((3, 4, 5, 24), (2, 2, 3, 16)),
          5: ((2, 3, 4, 5, 24), (1, 2, 2, 3, 16))}


def load_text(rank: int, start: tuple[int, ...], box_bytes: int, dump_bytes: int) -> str:
    coords = ", ".join(str(c) for c in reversed(start))
    return kernel(SETUP + "@%p1 bra S; mov.b64 %rd1, m; cvta.param.u64 %rd1, %rd1; prefetch.tensormap [%rd1];"
                  f"mbarrier.arrive.expect_tx.shared.b64 _, [%r3], {box_bytes}; cp.async.bulk.tensor.{rank}d.shared::cluster."
                  f"global.mbarrier::complete_tx::bytes [%r2], [%rd1, {{{coords}}}], [%r3];\nS:" + WAIT + dump(dump_bytes),
                  [".param .align 64 .b8 m[128]", ".param .u64 y"], SMEM)


@pytest.mark.parametrize("rank", range(1, 6))
@pytest.mark.parametrize("swizzle", (0, 32, 64, 128))
@pytest.mark.parametrize("where", ("inside", "edge", "negative"))
def test_tensor_load(rank: int, swizzle: int, where: str) -> None:
    shape, box = SHAPES[rank]
    if swizzle and box[-1] * 2 > swizzle:
        box = (*box[:-1], swizzle // 2)
    x = RNG.integers(0, 1 << 16, shape, dtype=np.uint16)
    start = {"inside": tuple(min(1, n - b) for n, b in zip(shape, box)),
             "edge": tuple(n - b + b // 2 for n, b in zip(shape, box)), "negative": tuple(-(b // 2) for b in box)}[where]
    start = (*start[:-1], start[-1] // 8 * 8)            # boxes start at multiples of 16 bytes
    tensor_map = encode_tensor_map(x.ctypes.data, "uint16", shape, tuple(s // 2 for s in x.strides), box, swizzle)
    want = swizzled(reference_tile(x, start, box), swizzle)
    y = np.zeros(want.size, np.uint8)
    launch(load_text(rank, start, int(np.prod(box)) * 2, want.size), [tensor_map, pointer(y)], [x, y]).check()
    assert (y == want).all()


def test_nan_fill_and_element_strides() -> None:
    x = RNG.standard_normal((16, 64)).astype(np.float32)
    m = encode_tensor_map(x.ctypes.data, "fp32", x.shape, (64, 1), (4, 16), 0, "nan")
    y = np.zeros((4, 16), np.float32)
    launch(load_text(2, (14, 56), 256, 256), [m, pointer(y)], [x, y]).check()
    assert np.array_equal(y[:2, :8], x[14:, 56:]) and np.isnan(y[2:]).all() and np.isnan(y[:, 8:]).all()
    m = encode_tensor_map(x.ctypes.data, "fp32", x.shape, (64, 1), (8, 16), 0, "zero", (2, 1))
    launch(load_text(2, (3, 16), 256, 256), [m, pointer(y)], [x, y]).check()
    assert np.array_equal(y, x[3:11:2, 16:32])


@pytest.mark.parametrize("start", ("-8, 5", "8, -1"))
def test_a_store_starts_in_the_tensor(start: str) -> None:
    x = np.zeros((8, 64), np.uint16)
    m = encode_tensor_map(x.ctypes.data, "uint16", x.shape, (64, 1), (8, 16), 0)
    text = kernel(SETUP + "@%p1 bra S; mov.b64 %rd1, m; cvta.param.u64 %rd1, %rd1;"
                  f"cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {{{start}}}], [%r2];"
                  "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;\nS:",
                  [".param .align 64 .b8 m[128]"], SMEM)
    with pytest.raises(EmulatorError, match="must not be negative"):
        launch(text, [m], [x]).check()


@pytest.mark.parametrize("column", (1, -4, 7, 65))
def test_a_box_starts_at_16_bytes(column: int) -> None:
    x, y = np.zeros((8, 64), np.uint16), np.zeros(256, np.uint8)
    m = encode_tensor_map(x.ctypes.data, "uint16", x.shape, (64, 1), (8, 16), 0)
    report = launch(load_text(2, (0, column), 256, 256), [m, pointer(y)], [x, y])
    with pytest.raises(EmulatorError, match=f"innermost coordinate {column} .*multiple of 16 bytes"):
        report.check()


@pytest.mark.parametrize("swizzle", (0, 32, 64, 128))
@pytest.mark.parametrize("policy,seed", [("round_robin", 0), ("random", 3), ("adversarial", 0)])
def test_tensor_store(swizzle: int, policy: str, seed: int) -> None:
    tile = RNG.integers(0, 1 << 16, (8, swizzle // 2 or 64), dtype=np.uint16)
    image = swizzled(tile, swizzle)
    x = np.zeros((12, 64), np.uint16)
    m = encode_tensor_map(x.ctypes.data, "uint16", (10, 64), (64, 1), tile.shape, swizzle)
    text = kernel(SETUP + fill(image.size) + "@%p1 bra S; mov.b64 %rd1, m; cvta.param.u64 %rd1, %rd1;"
                  "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {56, 5}], [%r2]; cp.async.bulk.commit_group;"
                  "cp.async.bulk.wait_group 0;\nS:", [".param .align 64 .b8 m[128]", ".param .u64 x"], SMEM)
    launch(text, [m, pointer(image)], [x, image], policy=policy, seed=seed).check()
    want = np.zeros_like(x)
    want[5:10, 56:] = tile[:5, :8]
    assert (x == want).all()


@pytest.mark.parametrize("op,dtype,name", [("add", np.float32, "fp32"), ("add", ml_dtypes.bfloat16, "bf16"),
                                           ("max", np.int32, "int32"), ("min", np.uint32, "uint32"), ("xor", np.uint32, "uint32")])
def test_tensor_reduce(op: str, dtype, name: str) -> None:  # type: ignore[no-untyped-def]
    x, tile = (RNG.integers(0, 50, (8, 16)).astype(dtype) for _ in range(2))
    before = x.copy()
    m = encode_tensor_map(x.ctypes.data, name, x.shape, (16, 1), (8, 16), 0)
    text = kernel(SETUP + fill(tile.nbytes) + "@%p1 bra S; mov.b64 %rd1, m; cvta.param.u64 %rd1, %rd1; mov.u32 %r5, 0;"
                  f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{op}.tile.bulk_group [%rd1, {{%r5, %r5}}], [%r2];"
                  "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;\nS:",
                  [".param .align 64 .b8 m[128]", ".param .u64 x"], SMEM)
    launch(text, [m, pointer(tile)], [x, tile]).check()
    fn = {"add": np.add, "max": np.maximum, "min": np.minimum, "xor": np.bitwise_xor}[op]
    assert np.array_equal(x, fn(before, tile))


@pytest.mark.parametrize("columns", (61, 57, 9))
@pytest.mark.parametrize("op", ("store", "add"))
def test_stores_and_reductions_write_whole_units_of_16_bytes(op: str, columns: int) -> None:
    """A row that ends within a unit goes to its end (recorded on an H200); the sanitizer says what is overwritten."""
    tile = RNG.integers(1, 99, (8, 16)).astype(np.int32)
    x = np.full((8, 64), 1000, np.int32)
    m = encode_tensor_map(x.ctypes.data, "int32", (8, columns), (64, 1), (8, 16), 0)
    first = (columns - 1) // 16 * 16
    copy = "cp.async" if op == "store" else "cp.reduce.async"
    kind = "" if op == "store" else ".add"
    text = kernel(SETUP + fill(tile.nbytes) + "@%p1 bra S; mov.b64 %rd1, m; cvta.param.u64 %rd1, %rd1;"
                  f"{copy}.bulk.tensor.2d.global.shared::cta{kind}.bulk_group [%rd1, {{{first}, 0}}], [%r2];"
                  "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;\nS:",
                  [".param .align 64 .b8 m[128]", ".param .u64 x"], SMEM)
    report = launch(text, [m, pointer(tile)], [x, tile], listener=Sanitizer())
    end = -(-columns // 4) * 4
    want = np.full_like(x, 1000)
    want[:, first:end] = tile[:, :end - first] + (1000 if op == "add" else 0)
    assert np.array_equal(x, want)
    (found,) = report.findings
    assert found.kind == "tma-beside" and "and as many in 7 other rows" in found.message
    at = x.ctypes.data + 4 * columns
    assert f"[{at:#x}, {at + 4 * (end - columns):#x})" in found.message


def test_bulk_copies_and_reduction() -> None:
    x = RNG.standard_normal(64).astype(np.float32)
    y, z = np.zeros(64, np.float32), np.ones(64, np.float32)
    text = kernel(SETUP + "@%p1 bra S; ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; ld.param.u64 %rd3, [z];"
                  "mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 256; cp.async.bulk.shared::cluster.global.mbarrier::"
                  "complete_tx::bytes [%r2], [%rd1], 256, [%r3];" + WAIT +
                  "cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r2], 256;"
                  "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd3], [%r2], 128;"
                  "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;\nS:",
                  [".param .u64 x", ".param .u64 y", ".param .u64 z"], SMEM)
    launch(text, [pointer(a) for a in (x, y, z)], [x, y, z]).check()
    assert np.array_equal(y, x) and np.array_equal(z[:32], 1 + x[:32]) and (z[32:] == 1).all()


@pytest.mark.parametrize("policy,seed", [("round_robin", 0), ("adversarial", 0), ("random", 1)])
def test_cp_async(policy: str, seed: int) -> None:
    """Two groups; then the same through an mbarrier; a short source leaves zeros."""
    x = RNG.integers(0, 255, 1024, dtype=np.uint8)
    y = np.zeros(1024, np.uint8)
    copy = ("ld.param.u64 %rd1, [x]; mad.wide.u32 %rd2, %r1, 16, %rd1; mad.lo.u32 %r5, %r1, 16, %r2;"
            "cp.async.cg.shared.global [%r5], [%rd2], 16; cp.async.commit_group;")
    text = kernel(SETUP + copy + "cp.async.ca.shared.global [%r5+512], [%rd2+512], 16, 4; cp.async.commit_group;"
                  "cp.async.wait_group 0; bar.sync 0;" + dump(1024), [".param .u64 x", ".param .u64 y"], SMEM)
    text = text.replace("cp.async.ca.shared.global [%r5+512], [%rd2+512], 16, 4", "cp.async.cg.shared.global [%r5+512], "
                        "[%rd2+512], 16, 4")
    launch(text, [pointer(x), pointer(y)], [x, y], policy=policy, seed=seed).check()
    want = x.copy()
    want[512:].reshape(32, 16)[:, 4:] = 0
    assert (y == want).all()
    text = kernel(SETUP.replace("[%r3], 1;", "[%r3], 32;") + copy + "cp.async.mbarrier.arrive.noinc.shared.b64 [%r3];" + WAIT
                  + dump(512), [".param .u64 x", ".param .u64 y"], SMEM)
    y[:] = 0
    launch(text, [pointer(x), pointer(y)], [x, y], policy=policy, seed=seed).check()
    assert (y[:512] == x[:512]).all()


def test_multicast_and_distributed_shared_memory() -> None:
    """CTA 0 loads for both; each then reads a word of its peer, and st.asyncs one to it."""
    x = RNG.integers(0, 1 << 31, 64, dtype=np.uint32)
    y = np.zeros((2, 64), np.uint32)
    z = np.zeros((2, 2), np.uint32)
    body = SETUP + ("mov.u32 %r20, %cluster_ctarank; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; @%p1 bra S;"
                    "mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 260; setp.ne.u32 %p4, %r20, 0; xor.b32 %r21, %r20, 1;"
                    "mapa.shared::cluster.u32 %r22, %r2, %r21; mapa.shared::cluster.u32 %r23, %r3, %r21; add.u32 %r24, %r20, 70;"
                    "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r22+1024], %r24, [%r23]; @%p4 bra S;"
                    "ld.param.u64 %rd1, [x]; mov.b16 %h1, 3; cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes."
                    "multicast::cluster [%r2], [%rd1], 256, [%r3], %h1;\nS:") + WAIT
    body += ("ld.param.u64 %rd2, [z]; mad.wide.u32 %rd2, %r20, 8, %rd2; ld.shared.u32 %r30, [%r2+1024]; @!%p1 st.global.u32 [%rd2], "
             "%r30; barrier.cluster.arrive; barrier.cluster.wait; xor.b32 %r21, %r20, 1; mapa.shared::cluster.u32 %r22, %r2, %r21;"
             "ld.shared::cluster.u32 %r31, [%r22+4]; @!%p1 st.global.u32 [%rd2+4], %r31;"
             "ld.param.u64 %rd8, [y]; mad.wide.u32 %rd8, %r20, 256, %rd8;") + dump(256).replace("ld.param.u64 %rd9, [y]", "mov.b64 %rd9, %rd8")
    body += "barrier.cluster.arrive; barrier.cluster.wait;"
    text = kernel(body, [".param .u64 x", ".param .u64 y", ".param .u64 z"], SMEM, ".reqnctapercluster 2, 1, 1")
    launch(text, [pointer(a) for a in (x, y, z)], [x, y, z], grid=(2,), cluster=(2, 1, 1)).check()
    assert (y == x).all() and (z[:, 0] == (71, 70)).all() and (z[:, 1] == x[1]).all()


def test_tensormap_replace() -> None:
    """A map edited in shared memory, published to global memory, used from there."""
    x = RNG.integers(0, 1 << 16, (8, 64), dtype=np.uint16)
    m = np.frombuffer(encode_tensor_map(x.ctypes.data, "uint16", (8, 64), (64, 1), (8, 16), 0), np.uint8).copy()
    store = np.zeros(192, np.uint8)
    g = store[-store.ctypes.data % 64:][:128]
    y = np.zeros((8, 16), np.uint16)
    text = kernel(SETUP + fill(128) + "@%p1 bra R; ld.param.u64 %rd1, [base];"
                  "tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r2], %rd1;"
                  "tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r2], 1, 3;\nR: bar.warp.sync -1; ld.param.u64 %rd2, [g];"
                  "cvt.u64.u32 %rd3, %r2; tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
                  "[%rd2], [%r2], 128; fence.proxy.tensormap::generic.acquire.gpu [%rd2], 128; @%p1 bra S;"
                  "mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 256; cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::"
                  "complete_tx::bytes [%r2], [%rd2, {0, 0}], [%r3];\nS:" + WAIT + dump(256),
                  [".param .u64 x", ".param .u64 y", ".param .u64 g", ".param .u64 base"], SMEM)
    base = (x.ctypes.data + 2 * 64 * 2).to_bytes(8, "little")
    launch(text, [pointer(m), pointer(y), pointer(g), base], [m, y, store, x]).check()
    assert np.array_equal(y[:3], x[2:5, :16]) and not y[3:].any()


@pytest.mark.parametrize("change,word", [
    (dict(address=8), "multiple of 16"), (dict(box=(300, 8)), "1 to 256"), (dict(box=(8, 4)), "inner box"),
    (dict(strides_elems=(7, 1)), "strides"), (dict(swizzle=32, box=(8, 64)), "exceeds"), (dict(fill="nan"), "floats"),
    (dict(strides_elems=(64, 2)), "last stride"), (dict(dtype_name="int3"), "element type")])
def test_encoder_refuses(change: dict, word: str) -> None:
    good = dict(address=4096, dtype_name="uint16", shape=(64, 64), strides_elems=(64, 1), box=(8, 8), swizzle=0)
    encode_tensor_map(**good)
    with pytest.raises(EmulatorError, match=word):
        encode_tensor_map(**{**good, **change})
