"""wgmma of every type, both sources of A, every shared-memory layout, against numpy.

Operands come in by TMA with the swizzle under test (or, without swizzle, as core matrices laid out by numpy),
and the descriptors are those of the PTX manual's canonical layouts.
"""
from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ptx_programs import assembles, kernel, pointer

from tilejit.emulator import Program, encode_tensor_map

RNG = np.random.default_rng(3)
ELEMENT = {"f16": (np.float16, "fp16"), "bf16": (ml_dtypes.bfloat16, "bf16"), "tf32": (np.float32, "fp32"),
           "e4m3": (ml_dtypes.float8_e4m3fn, "uint8"), "e5m2": (ml_dtypes.float8_e5m2, "uint8"), "s8": (np.int8, "uint8"),
           "u8": (np.uint8, "uint8")}
MODE = {0: 0, 128: 1, 64: 2, 32: 3}


def integers(kind: str, shape: tuple[int, int]) -> np.ndarray:
    low = 0 if kind == "u8" else -4
    return RNG.integers(low, 5, shape).astype(np.float32).astype(ELEMENT[kind][0])


def core_matrices(x: np.ndarray) -> np.ndarray:
    """K-major without swizzle: 8 rows x 16 bytes contiguous, then along K, then along rows."""
    b = x.view(np.uint8).reshape(x.shape[0] // 8, 8, -1, 16)
    return np.ascontiguousarray(b.transpose(0, 2, 1, 3)).reshape(-1)


def product(*form: Any, **options: Any) -> None:
    """The product is exact in every CTA."""
    got, want = products(*form, **options)
    assert (got == want).all()


def products(n: int, kinds: tuple[str, str], out: str, swizzle: int = 128, trans: tuple[int, int] = (0, 0),
             registers: bool = False, scale: int = 0, signs: tuple[int, int] = (1, 1), steps: int = 1,
             policy: str = "round_robin", seed: int = 0, ctas: int = 1,
             start: str = "shr.u32 %r5, %r5, 4;") -> tuple[np.ndarray, np.ndarray]:
    """D (+)= sum over k-steps of A B^T for one m64nNkK tile of `steps` instructions, in every CTA of a cluster, and what
    it should be: float64[ctas, 64, n] and [64, n]. `start` makes the first field of a descriptor from the address in %r5."""
    ka, kb = kinds
    size = np.dtype(ELEMENT[ka][0]).itemsize
    depth = 32 // size
    k = depth * steps
    a, b = integers(ka, (64, k)), integers(kb, (n, k))
    a_off, b_off, bar = 0, 32768, 98304
    loads, maps, memory, descs = [], [], [], []
    for x, off, t in ((a, a_off, trans[0]), (b, b_off, trans[1])):
        rows = x.shape[0]
        source = x.T.copy() if t else x.copy()
        if swizzle == 0:
            flat = core_matrices(x) if not t else core_matrices_mn(source)
            maps.append(pointer(flat))
            memory.append(flat)
            loads.append(f"ld.param.u64 %rd1, [x{len(maps) - 1}]; add.u32 %r4, %r2, {off};"
                         "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%rd1], "
                         f"{flat.nbytes}, [%r3];")
            lbo, sbo = (128, 16 * k * size // 2) if not t else (128, 128 * (k // 8))
            if not t:
                sbo = 8 * k * size
            step = 256 if not t else 128 * (depth // 8)
        else:
            width = swizzle // size
            box = (k, min(width, rows)) if t else (rows, min(width, k))
            maps.append(encode_tensor_map(source.ctypes.data, ELEMENT[ka][1], source.shape, (source.shape[1], 1), box, swizzle))
            memory.append(source)
            for piece in range(-(-source.shape[1] // box[1])):
                loads.append(f"mov.b64 %rd1, x{len(maps) - 1}; cvta.param.u64 %rd1, %rd1; add.u32 %r4, %r2, "
                             f"{off + piece * box[0] * box[1] * size}; cp.async.bulk.tensor.2d.shared::cluster.global."
                             f"mbarrier::complete_tx::bytes [%r4], [%rd1, {{{piece * box[1]}, 0}}], [%r3];")
            lbo, sbo = (k * swizzle if t else 16), 8 * swizzle
            step = depth * swizzle if t else 32
        descs.append((off, lbo, sbo, step, MODE[swizzle]))
    total = sum(m.nbytes for m in memory)
    count = n // 4 if out == "f16" else n // 2
    cls, pre = ("f32", "%f") if out == "f32" else ("b32", "%q")
    body = (".reg .b32 %q<160>; mov.u32 %r1, %tid.x; mov.u32 %r2, smem; add.u32 %r2, %r2, 1023; and.b32 %r2, %r2, -1024;"
            f"add.u32 %r3, %r2, {bar}; setp.ne.u32 %p1, %r1, 0; @%p1 bra I; mbarrier.init.shared.b64 [%r3], 1;"
            "fence.mbarrier_init.release.cluster; mbarrier.arrive.expect_tx.shared.b64 _, [%r3], " + str(total) + ";"
            + "".join(loads) + "\nI: bar.sync 0;\nW: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 bra W;\n")
    body += "".join(f"mov.{cls} {pre}{i}, {'0f40000000' if cls == 'f32' else (0x40004000 if out == 'f16' else 2)};"
                    for i in range(count))
    if registers:
        body += fragment_loads(ka, k, size)
    body += f"setp.ne.u32 %p3, {scale}, 0; wgmma.fence.sync.aligned;"
    acc = ", ".join(f"{pre}{i}" for i in range(count))
    for i in range(steps):
        words = []
        for (off, lbo, sbo, step, mode), reg in zip(descs, ("%rd2", "%rd3")):
            body += (f"add.u32 %r5, %r2, {off + step * i}; {start} cvt.u64.u32 {reg}, %r5; or.b64 {reg}, {reg}, "
                     f"{(mode << 62) - (1 << 64 if mode >> 1 else 0) | (sbo >> 4) << 32 | (lbo >> 4) << 16};")
            words.append(reg)
        left = "{" + ", ".join(f"%r{20 + 4 * i + j}" for j in range(4)) + "}" if registers else words[0]
        flags = "" if out == "s32" else f", {signs[0]}, {signs[1]}"
        if size == 2:
            flags += f", {trans[1]}" if registers else f", {trans[0]}, {trans[1]}"
        pred = "%p3" if i == 0 else "1"
        body += (f"wgmma.mma_async.sync.aligned.m64n{n}k{depth}.{out}.{ka}.{kb} {{{acc}}}, {left}, {words[1]}, {pred}{flags};")
    body += "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    body += f"ld.param.u64 %rd4, [y]; mov.u32 %r6, %ctaid.x; mad.lo.u32 %r6, %r6, 128, %r1; mad.wide.u32 %rd4, %r6, {4 * count}, %rd4;"
    body += "".join(f"st.global.{'f32' if cls == 'f32' else 'b32'} [%rd4+{4 * i}], {pre}{i};" for i in range(count))
    decls = [f".param .align 64 .b8 x{i}[128]" if swizzle else f".param .u64 x{i}" for i in range(2)]
    raw_a = a.copy()
    text = kernel(body, [*decls, ".param .u64 y", ".param .u64 z"], ".extern .shared .align 1024 .b8 smem[];",
                  ".maxntid 128, 1, 1")
    assembles(text)
    result = np.zeros((ctas * 128, count), np.uint32)
    Program(text).launch((ctas,), 128, [*maps, pointer(result), pointer(raw_a)], shared_bytes=100 * 1024, cluster=(ctas, 1, 1),
                         memory=[*memory, result, raw_a], policy=policy, seed=seed).check()
    if out == "f16":
        got = result.view(np.float16).reshape(ctas, 4, 8, 4, n // 8, 2, 2)
    else:
        got = result.view(np.float32 if out == "f32" else np.int32).reshape(ctas, 4, 8, 4, n // 8, 2, 2)
    got = got.transpose(0, 1, 5, 2, 4, 3, 6).reshape(ctas, 64, n)          # CTA, warp, half, row, column tile, chunk, bit
    want = signs[0] * signs[1] * (a.astype(np.float64) @ b.astype(np.float64).T) + (2 if scale else 0)
    return got.astype(np.float64), want


def core_matrices_mn(t: np.ndarray) -> np.ndarray:
    """MN-major without swizzle, from [k, mn]: 8 k x 16 bytes of mn contiguous, then along k, then along mn."""
    b = t.view(np.uint8).reshape(t.shape[0] // 8, 8, -1, 16)
    return np.ascontiguousarray(b.transpose(2, 0, 1, 3)).reshape(-1)


def fragment_loads(kind: str, k: int, size: int) -> str:
    """Load A's register fragments from its row-major copy at parameter z into %r20.. (4 a k-step)."""
    out = ("ld.param.u64 %rd5, [z]; and.b32 %r6, %r1, 31; shr.u32 %r7, %r1, 5; shr.u32 %r8, %r6, 2; mad.lo.u32 %r8, %r7, 16, %r8;"
           f"and.b32 %r9, %r6, 3; mul.lo.u32 %r8, %r8, {k * size}; mad.lo.u32 %r8, %r9, 4, %r8; cvt.u64.u32 %rd6, %r8;"
           "add.u64 %rd5, %rd5, %rd6;")
    for step in range(k * size // 32):
        for j in range(4):
            out += f"ld.global.b32 %r{20 + 4 * step + j}, [%rd5+{32 * step + 16 * (j >> 1) + 8 * (j & 1) * k * size}];"
    return out


@pytest.mark.parametrize("kinds,out", [
    (("bf16", "bf16"), "f32"), (("f16", "f16"), "f32"), (("f16", "f16"), "f16"), (("tf32", "tf32"), "f32"),
    (("e4m3", "e5m2"), "f32"), (("e5m2", "e4m3"), "f16"), (("s8", "s8"), "s32"), (("u8", "s8"), "s32")])
@pytest.mark.parametrize("registers", [False, True])
def test_types(kinds: tuple[str, str], out: str, registers: bool) -> None:
    product(32, kinds, out, registers=registers, scale=1, steps=2)


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("trans", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_layouts(swizzle: int, trans: tuple[int, int]) -> None:
    product(64, ("bf16", "bf16"), "f32", swizzle, trans, steps=1 if swizzle == 32 and not all(trans) else 2)


@pytest.mark.parametrize("n", [8, 24, 96, 136, 256])
def test_widths(n: int) -> None:
    product(n, ("bf16", "bf16"), "f32")


@pytest.mark.parametrize("signs", [(-1, 1), (1, -1), (-1, -1)])
def test_signs(signs: tuple[int, int]) -> None:
    product(16, ("f16", "f16"), "f32", signs=signs, scale=1)


@pytest.mark.parametrize("policy,seed", [("random", 1), ("adversarial", 0), ("adversarial", 1)])
def test_late_completion(policy: str, seed: int) -> None:
    product(64, ("bf16", "bf16"), "f32", steps=4, scale=1, policy=policy, seed=seed)


@pytest.mark.parametrize("swizzle", [0, 128])
def test_descriptors_in_a_cluster(swizzle: int) -> None:
    """A CTA's own addresses have its rank from bit 24 on: shifted as a whole, they change the descriptor's leading offset,
    which matters for MN-major operands of more than one atom, in all CTAs but the first."""
    form = (128, ("f16", "f16"), "f32", swizzle, (0, 1))
    product(*form, ctas=2, start="bfe.u32 %r5, %r5, 4, 14;")
    got, want = products(*form, ctas=2)
    assert (got[0] == want).all() and not (got[1] == want).all()
