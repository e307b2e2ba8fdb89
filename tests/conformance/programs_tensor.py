"""TMA: tensor tiles of rank 1 to 5 under every swizzle, clipped at both ends; element strides, fills, reductions,
maps edited on the device."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import ml_dtypes
import numpy as np
from programs import ANY_NAN, KINDS, Buffer, Map, Program, View, kernel, random, whole
from programs_copy import HEADER, START, WAIT, cleared, dump, fill
from values import F32, scattered, tuples

#: rank -> (tensor, box), outermost first, of 16-bit elements.
SHAPES: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {
    1: ((102,), (32,)), 2: ((20, 40), (8, 16)), 3: ((5, 12, 24), (2, 4, 16)), 4: ((3, 4, 5, 24), (2, 2, 3, 16)),
    5: ((2, 3, 4, 5, 24), (1, 2, 2, 3, 16))}
SWIZZLES = (0, 32, 64, 128)
SLOT = 4096
NUMPY = {"uint8": np.uint8, "uint16": np.uint16, "int32": np.int32, "uint32": np.uint32, "int64": np.int64, "uint64": np.uint64,
         "fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp32": np.float32, "tf32": np.float32, "fp64": np.float64}


def box_bytes(m: Map) -> int:
    """Bytes that one load of a map counts on its barrier. The element stride of the innermost dimension is ignored
    (CUDA driver API, cuTensorMapEncodeTiled, elementStrides)."""
    n = np.dtype(NUMPY[m.dtype]).itemsize * m.box[-1]
    for size, step in zip(m.box[:-1], m.steps or (1,) * len(m.box)):
        n *= -(-size // step)
    return n


def starts(m: Map) -> dict[str, tuple[int, ...]]:
    """Corners inside, across the far end, across the near end, across both, outside altogether, and across the far end
    of every second dimension. Along the innermost dimension they are whole units of 16 bytes, as Hopper wants them."""
    unit = 16 // np.dtype(NUMPY[m.dtype]).itemsize
    whole_units = lambda corner: (*corner[:-1], corner[-1] // unit * unit)
    inside = (*(min(1, n - b) for n, b in zip(m.shape[:-1], m.box)), min(unit, m.shape[-1] - m.box[-1]))
    far = tuple(n - b + b // 2 for n, b in zip(m.shape, m.box))
    near = tuple(-(b // 2) for b in m.box)
    mixed = tuple(f if i % 2 else n for i, (f, n) in enumerate(zip(far, near)))
    beyond = tuple(f if i % 2 else n for i, (f, n) in enumerate(zip(far, inside)))
    outside = (*m.shape[:-1], m.shape[-1] + unit - 1)
    found = {"inside": inside, "far": far, "near": near, "mixed": mixed, "outside": outside, "beyond": beyond}
    return {name: whole_units(corner) for name, corner in found.items()}


def written(m: Map) -> dict[str, tuple[int, ...]]:
    """Corners of stores: none before the tensor, which Hopper does not take."""
    return {name: corner for name, corner in starts(m).items() if min(corner) >= 0}


def clipped(m: Map) -> tuple[tuple[int, ...], ...]:
    """The first four corners of `starts`."""
    return tuple(starts(m).values())[:4]


def coordinates(start: tuple[int, ...]) -> str:
    """As the instruction wants them: innermost first."""
    return "{" + ", ".join(str(c) for c in reversed(start)) + "}"


def maps_ready(count: int) -> str:
    """Generic addresses of the maps in %rd20, %rd21, ..."""
    return "".join(f"mov.b64 %rd{20 + i}, m{i}; cvta.param.u64 %rd{20 + i}, %rd{20 + i}; prefetch.tensormap [%rd{20 + i}];" for i in range(count))


def load(name: str, m: Map, values: np.ndarray, corners: tuple[tuple[int, ...], ...] = ()) -> Program:
    """Loads of one map at several corners, each into a slot of its own over 0xEE bytes."""
    corners = corners or clipped(m)
    rank = len(m.shape)
    n = SLOT * len(corners)
    body = maps_ready(1) + cleared(n) + f"@%p1 bra S; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], {box_bytes(m) * len(corners)};"
    for i, corner in enumerate(corners):
        form = "shared::cluster.global" + (".tile" if i % 2 else "")
        body += (f"add.u32 %r6, %r5, {SLOT * i}; cp.async.bulk.tensor.{rank}d.{form}.mbarrier::complete_tx::bytes "
                 f"[%r6], [%rd20, {coordinates(corner)}], [%r4];")
    y = Buffer("y", np.zeros(n, np.uint8))
    params = (m, Buffer("x", values), y)
    views = tuple(View("y", f"at {corner}", SLOT * i, np.dtype(values.dtype).name, SLOT // values.itemsize)
                  for i, corner in enumerate(corners))
    return Program(name, kernel("mov.u32 %r1, %tid.x;" + START + body + "S:" + WAIT + dump(n), params, HEADER), params, views)


def save(name: str, maps: list[Map], corners: list[tuple[int, ...]], image: np.ndarray, before: np.ndarray, op: str = "",
         any_nan: bool = False) -> Program:
    """Stores (or reductions) of the same shared bytes through several maps, one a corner."""
    form = f"cp.reduce.async.bulk.tensor.{{}}d.global.shared::cta.{op}.tile.bulk_group" if op else "cp.async.bulk.tensor.{}d.global.shared::cta.bulk_group"
    body = maps_ready(len(maps)) + fill(image.nbytes) + "@%p1 bra S;"
    for i, (m, corner) in enumerate(zip(maps, corners)):
        body += f"{form.format(len(m.shape))} [%rd{20 + i}, {coordinates(corner)}], [%r5];"
    body += "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;\nS:"
    y = Buffer("y", before)
    params = (*maps, Buffer("x", image), y)
    return Program(name, kernel("mov.u32 %r1, %tid.x;" + START + body, params, HEADER), params, (whole(y, ANY_NAN if any_nan else None),))


def tiles() -> Iterator[Program]:
    """Loads and stores of every rank and swizzle."""
    for rank, (shape, box) in SHAPES.items():
        for swizzle in SWIZZLES:
            mine = (*box[:-1], swizzle // 2) if swizzle and box[-1] * 2 > swizzle else box
            m = Map("x", "uint16", shape, mine, swizzle)
            rng = random(f"tma.{rank}.{swizzle}")
            values = rng.integers(0, 1 << 16, shape, dtype=np.uint16)
            yield load(f"tma.load.{rank}d.swizzle{swizzle}", m, values)
            w = Map("y", "uint16", shape, mine, swizzle)
            for name, corner in written(w).items():
                image, before = rng.integers(0, 256, SLOT, dtype=np.uint8), np.full(values.nbytes, 0xDD, np.uint8)
                yield save(f"tma.store.{rank}d.swizzle{swizzle}.{name}", [w], [corner], image, before)
    for swizzle in SWIZZLES[1:]:
        m = Map("x", "uint16", (70, 128), (256 // 16 * 2, swizzle // 2), swizzle)
        yield load(f"tma.load.atoms.swizzle{swizzle}", m, random(f"atoms{swizzle}").integers(0, 1 << 16, m.shape, dtype=np.uint16), tuple(starts(m).values())[:5])
    m = Map("y", "uint16", (8, 64), (4, 16), offset=1024)
    yield save("tma.store.maps", [replace(m, offset=1024 * i) for i in range(4)], list(written(m).values()), random("maps").integers(0, 256, 128, dtype=np.uint8),
               np.full(4096, 0xDD, np.uint8))


def elements() -> Iterator[Program]:
    """Every element type, fills of both kinds, element strides, sub-tensors with wider strides."""
    for dtype, kind in NUMPY.items():
        size = np.dtype(kind).itemsize
        m = Map("x", dtype, (10, 160 // size), (8, 64 // size), 64)
        raw = random(f"tma.{dtype}").integers(0, 256, 10 * 160, dtype=np.uint8).view(kind)
        if dtype == "tf32":
            raw = scattered("f32", 10 * 40, random("tma.tf32"))
        yield load(f"tma.load.{dtype}", m, raw)
        if dtype in ("fp16", "bf16", "fp32", "tf32", "fp64"):
            yield load(f"tma.fill-nan.{dtype}", Map("x", dtype, m.shape, m.box, 64, "nan"), raw, tuple(starts(m).values())[:5])
    for steps, shape, box in (((2, 1), (16, 64), (8, 16)), ((1, 2), (16, 64), (4, 32)), ((3, 4), (20, 64), (9, 32)), ((1, 1, 8), (3, 5, 64), (2, 3, 64)),
                              ((2, 3, 1), (6, 10, 32), (3, 7, 8))):
        m = Map("x", "fp32", shape, box, steps=steps)
        values = scattered("f32", int(np.prod(shape)), random(f"steps{steps}"))
        label = "x".join(map(str, steps))
        yield load(f"tma.element-strides.{label}", m, values)
        if steps[-1] == 1:
            w = Map("y", "fp32", shape, box, steps=steps)
            yield save(f"tma.store.element-strides.{label}", [w], [starts(m)["inside"]], scattered("f32", 1024, random("image")),
                       np.full(values.size, -7.5, np.float32))
    m = Map("x", "tf32", (4, 128), (4, 128))
    ties = (np.arange(512, dtype=np.uint32) * 0x9E3779B1 & 0xFFFFE000) | np.resize(np.array([0x1000, 0xFFF, 0x1001, 0, 0x1FFF], np.uint32), 512)
    ties[:len(F32)] = F32.view(np.uint32)
    yield load("tma.load.tf32.rounding", m, ties.view(np.float32), ((0, 0),))
    wide = Map("x", "uint16", (6, 10, 21), (2, 4, 16), 32, strides=(576, 48, 1), offset=32)
    yield load("tma.load.strides", wide, random("strides").integers(0, 1 << 16, 6 * 576 + 64, dtype=np.uint16))
    overlapped = Map("x", "uint16", (5, 6, 16), (3, 4, 16), 0, strides=(16, 8, 1))
    yield load("tma.load.overlapping", overlapped, random("overlap").integers(0, 1 << 16, 256, dtype=np.uint16))


def reductions() -> Iterator[Program]:
    """cp.reduce.async.bulk.tensor of every operation and type, clipped at an end."""
    types = {"u32": "uint32", "s32": "int32", "u64": "uint64", "s64": "int64", "f16": "fp16", "bf16": "bf16", "f32": "fp32", "f64": "fp64"}
    ops = {"add": ("u32", "s32", "u64", "f16", "bf16", "f32", "f64"), "min": ("u32", "s32", "u64", "s64", "f16", "bf16"),
           "max": ("u32", "s32", "u64", "s64", "f16", "bf16"), "inc": ("u32",), "dec": ("u32",), "and": ("u32", "u64"), "or": ("u32", "u64"),
           "xor": ("u32", "u64")}
    for op, kinds in ops.items():
        for kind in kinds:
            size = np.dtype(KINDS[kind][2]).itemsize
            shape, box = (10, 128 // size), (8, 64 // size)
            image, before = tuples((kind, kind), 10 * 128 // size, random(f"tma.{op}.{kind}"))
            m = Map("y", types[kind], shape, box, 64)
            yield save(f"tma.reduce.{op}.{kind}", [m], [(4, box[1] // 2)], image[:512 // size].copy(), before, op, kind == "f64")


def ranks() -> Iterator[Program]:
    """Reductions and prefetches of every rank."""
    for rank, (shape, box) in SHAPES.items():
        rng = random(f"tma.reduce.{rank}")
        m = Map("y", "uint32", shape, box)
        before, image = (rng.integers(0, 1 << 32, n, dtype=np.uint32) for n in (int(np.prod(shape)), 1024))
        for name, corner in starts(m).items():
            if min(corner) >= 0:
                yield save(f"tma.reduce.{rank}d.{name}", [m], [corner], image, before, "add" if rank % 2 else "xor")
            body = maps_ready(1) + f"@!%p1 cp.async.bulk.prefetch.tensor.{rank}d.L2.global [%rd20, {coordinates(corner)}];"
            y = Buffer("y", before)
            yield Program(f"tma.prefetch.{rank}d.{name}", kernel("mov.u32 %r1, %tid.x;" + START + body, (m, y), HEADER), (m, y), (whole(y),))


def edited() -> Iterator[Program]:
    """tensormap.replace of several fields in shared memory, then a load through the edited map."""
    values = random("replace").integers(0, 1 << 16, (32, 64), dtype=np.uint16)
    m = Map("x", "uint16", (32, 64), (8, 16))
    body = (maps_ready(1) + cleared(4096) + "ld.param.u64 %rd40, [z]; ld.param.u64 %rd41, [x]; add.u64 %rd41, %rd41, 1024; mad.lo.u32 %r7, %r1, 4, %r5; mad.wide.u32 %rd42, %r1, 4, %rd20;"
            "ld.u32 %r8, [%rd42]; st.shared.u32 [%r7+4096], %r8; bar.warp.sync -1; add.u32 %r9, %r5, 4096; @%p1 bra R; tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r9], %rd41;"
            "tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r9], 1, 7; tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r9], 0, 24;"
            "tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%r9], 0, 32; tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%r9], 1, 4;"
            "tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%r9], 2; mov.u64 %rd43, 256; tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%r9], 0, %rd43;"
            "tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%r9], 1, 1;\nR: bar.warp.sync -1; cvt.u64.u32 %rd44, %r9;"
            "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd40], [%r9], 128; fence.proxy.tensormap::generic.acquire.gpu [%rd40], 128;"
            "@%p1 bra S; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 256; cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r5], [%rd40, {8, 5}], [%r4];\nS:")
    y, z = Buffer("y", np.zeros(4096, np.uint8)), Buffer("z", np.zeros(128, np.uint8))
    params = (m, Buffer("x", values), z, y)
    yield Program("tensormap.replace", kernel("mov.u32 %r1, %tid.x;" + START + body + WAIT + dump(4096), params, HEADER), params,
                  (View("y", "tile", 0, "uint16", 2048),))
    body = maps_ready(1) + ("@%p1 bra S; createpolicy.fractional.L2::evict_first.b64 %rd7, 1.0; cp.async.bulk.prefetch.tensor.2d.L2.global [%rd20, {0, 0}];"
                            "cp.async.bulk.prefetch.tensor.2d.L2.global.tile.L2::cache_hint [%rd20, {8, 8}], %rd7; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 256;"
                            "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%r5], [%rd20, {8, 3}], [%r4], %rd7;\nS:" + WAIT
                            + "@%p1 bra T; fence.proxy.async; cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group.L2::cache_hint [%rd20, {40, 20}], [%r5], %rd7;"
                              "cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; cp.async.bulk.wait_group 0;\nT:")
    x = Buffer("x", values)
    yield Program("tma.hints", kernel("mov.u32 %r1, %tid.x;" + START + body, (m, x), HEADER), (m, x), (whole(x),))


def programs() -> Iterator[Program]:
    """Everything that needs a tensor map, in one CTA."""
    yield from tiles()
    yield from elements()
    yield from reductions()
    yield from ranks()
    yield from edited()
