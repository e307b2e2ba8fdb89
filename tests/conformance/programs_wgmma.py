"""wgmma of every type and layout. Shared memory holds fixed bytes, and descriptors point anywhere into them: what a
descriptor means shows in the result, whether or not the bytes were ever a matrix."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from programs import Buffer, Program, View, kernel, random
from programs_matrix import ELEMENT, integers, specials

REGION = 65536
MODE = {0: 0, 128: 1, 64: 2, 32: 3}
TYPES = [("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32")] + [
    (out, a, b) for out in ("f32", "f16") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")] + [
    ("s32", a, b) for a in ("s8", "u8") for b in ("s8", "u8")]


@dataclass(frozen=True)
class Operand:
    """Where a matrix lies: byte offset, leading and stride byte offsets, swizzle, transposed (MN-major), base offset."""

    offset: int = 0
    leading: int = 16
    stride: int = 1024
    swizzle: int = 128
    trans: int = 0
    base: int = 0

    @property
    def high(self) -> int:
        """The upper 48 bits of the descriptor (PTX ISA, wgmma, "Matrix descriptor format"), without the address."""
        return self.leading >> 4 << 16 | self.stride >> 4 << 32 | self.base << 49 | MODE[self.swizzle] << 62


@dataclass(frozen=True)
class Step:
    """One wgmma: its operands (a None A comes from registers), the predicate scale-d and the signs."""

    a: Operand | None = Operand()
    b: Operand = Operand(offset=32768)
    scale: str = "1"
    signs: tuple[int, int] = (1, 1)
    satfinite: str = ""


def depth(kind: str) -> int:
    """k of one instruction."""
    return 32 // np.dtype(ELEMENT[kind]).itemsize


def registers(out: str, n: int) -> list[str]:
    """The accumulator."""
    return [f"%{'f' if out == 'f32' else 'acc'}{i}" for i in range(n // 4 if out == "f16" else n // 2)]


def program(name: str, types: tuple[str, str, str], n: int, products: list[list[Step]], values: np.ndarray, start: str = "",
            fragments: np.ndarray | None = None) -> Program:
    """Each product is a chain of steps in one group on a fresh accumulator, `start` a register's first bits."""
    out, ka, kb = types
    acc = registers(out, n)
    first = start or {"f32": "0x40000000", "f16": "0x40004000", "s32": "2"}[out]
    body = ("mov.u32 %r1, %tid.x; mov.u32 %r5, smem; ld.param.u64 %rd5, [x]; mov.u32 %r6, %r1;\n"
            f"F: mad.wide.u32 %rd6, %r6, 16, %rd5; ld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%rd6]; mad.lo.u32 %r7, %r6, 16, %r5; st.shared.v4.u32 [%r7], {{%r10, %r11, %r12, %r13}};"
            f"add.u32 %r6, %r6, 128; setp.lt.u32 %p1, %r6, {REGION // 16}; @%p1 bra F; fence.proxy.async; bar.sync 0; setp.ne.u32 %p2, %r1, 500; setp.eq.u32 %p3, %r1, 500;")
    body += f"ld.param.u64 %rd7, [y]; mad.wide.u32 %rd7, %r1, {4 * len(acc)}, %rd7; ld.param.u64 %rd8, [a]; mad.wide.u32 %rd8, %r1, 16, %rd8; ld.global.v4.b32 {{%r20, %r21, %r22, %r23}}, [%rd8];"
    total = 128 * 4 * len(acc)
    for i, chain in enumerate(products):
        body += "".join(f"mov.b32 {r}, {first};" for r in acc) + "wgmma.fence.sync.aligned;"
        for step in chain:
            words, flags = [], "" if out == "s32" else f", {step.signs[0]}, {step.signs[1]}"
            for operand, word in ((step.a, "%rd10"), (step.b, "%rd11")):
                if operand is None:
                    words.append("{%r20, %r21, %r22, %r23}")
                    continue
                body += (f"add.u32 %r8, %r5, {operand.offset}; and.b32 %r8, %r8, 0x3FFFF; shr.u32 %r8, %r8, 4; cvt.u64.u32 {word}, %r8; mov.u64 %rd12, {operand.high}; or.b64 {word}, {word}, %rd12;")
                words.append(word)
            if depth(ka) == 16:
                flags += "".join(f", {o.trans}" for o in (step.a, step.b) if o is not None)
            body += (f"wgmma.mma_async.sync.aligned.m64n{n}k{depth(ka)}.{out}.{ka}.{kb}{step.satfinite} {{{', '.join(acc)}}}, {words[0]}, {words[1]}, {step.scale}{flags};")
        body += "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
        body += "".join(f"st.global.b32 [%rd7+{i * total + 4 * j}], {r};" for j, r in enumerate(acc))
    y = Buffer("y", np.zeros(total * len(products), np.uint8))
    params = (Buffer("x", values), Buffer("a", values[:2048] if fragments is None else fragments), y)
    dtype = np.dtype(ELEMENT[out])
    views = tuple(View("y", f"product {i}", i * total, dtype.name, total // dtype.itemsize) for i in range(len(products)))
    head = ".extern .shared .align 1024 .b8 smem[];"
    text = kernel(".reg .b32 %acc<128>;" + body, params, head, ".maxntid 128, 1, 1")
    return Program(name, text, params, views, 1, 128, 1, REGION)


def region(kinds: tuple[str, str], name: str) -> np.ndarray:
    """The bytes of shared memory: small integers of A's type in the lower half, of B's in the upper."""
    rng = random(name)
    half = [integers(k, REGION // 2 // np.dtype(ELEMENT[k]).itemsize, rng).view(np.uint8) for k in kinds]
    return np.concatenate(half)


def types() -> Iterator[Program]:
    """Every type with N of 8 to 256, A in shared memory and in registers, two steps of K."""
    for kinds in TYPES:
        label = ".".join(kinds)
        values = region(kinds[1:], label)
        for n, from_registers in ((8, False), (16, True), (64, False), (128, True), (256, False)):
            a = [None, None] if from_registers else [Operand(), Operand(32)]
            chain = [Step(a[0], Operand(32768)), Step(a[1], Operand(32800))]
            yield program(f"wgmma.n{n}.{label}", kinds, n, [chain], values)
    for n in (24, 40, 96, 192, 248):
        yield program(f"wgmma.n{n}.f32.bf16.bf16", TYPES[2], n, [[Step(None)]], region(TYPES[2][1:], f"n{n}"))


def layouts() -> Iterator[Program]:
    """Every swizzle and both majors of both operands (16-bit types), close and wide strides, other types K-major."""
    kinds = ("f32", "bf16", "bf16")
    values = region(kinds[1:], "layouts")
    for swizzle in (0, 32, 64, 128):
        tight, wide = max(swizzle, 16) * 8, max(swizzle, 16) * 24
        for ta in (0, 1):
            for tb in (0, 1):
                chains = []
                for leading, stride in ((tight, 2 * tight), (2 * tight, tight), (wide, tight), (tight, wide // 2)):
                    chains.append([Step(Operand(0, leading, stride, swizzle, ta), Operand(32768, leading, stride, swizzle, tb)),
                                   Step(Operand(tight, leading, stride, swizzle, ta), Operand(32768 + 2 * tight, stride, leading, swizzle, tb))])
                yield program(f"wgmma.layout.swizzle{swizzle}.a{'mn' if ta else 'k'}.b{'mn' if tb else 'k'}", kinds, 64, chains, values)
        for other in (("f32", "tf32", "tf32"), ("f32", "e4m3", "e4m3"), ("s32", "s8", "s8")):
            chain = [Step(Operand(0, tight, 2 * tight, swizzle), Operand(32768, 2 * tight, tight, swizzle)),
                     Step(Operand(32 if swizzle > 32 else 2 * tight, tight, tight, swizzle), Operand(32768 + 2 * tight, 16, 2 * tight, swizzle))]
            yield program(f"wgmma.layout.swizzle{swizzle}.{other[1]}", other, 32, [chain], region(other[1:], f"layout.{other[1]}"))
        if swizzle:
            chain = [[Step(Operand(128 * i, 16, 1024, swizzle, base=i), Operand(32768 + 1024 + 128 * i, 16, 1024, swizzle, base=i))] for i in range(0, 8, 3)]
            yield program(f"wgmma.base-offset.swizzle{swizzle}", kinds, 16, chain, values)


def scales() -> Iterator[Program]:
    """scale-d of both kinds, negations, saturation, values beyond exact sums, special values."""
    for kinds in (("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32"), ("f32", "e4m3", "e5m2")):
        values = region(kinds[1:], "scales." + ".".join(kinds))
        chains = [[Step(a, scale=scale, signs=(sa, sb))] for a in (Operand(), None) for scale in ("0", "1", "%p2", "%p3") for sa in (1, -1) for sb in (1, -1)]
        yield program(f"wgmma.scale.{'.'.join(kinds)}", kinds, 8, chains, values)
    for kinds in TYPES:
        out, ka, kb = kinds
        label, rng = ".".join(kinds), random("real." + ".".join(kinds))
        if out == "s32":
            values = region(kinds[1:], label)
            for first in ("0x7FFFFFF0", "0x80000010"):
                chains = [[Step(satfinite=s), Step(None, satfinite=s)] for s in ("", ".satfinite")]
                yield program(f"wgmma.saturate.{first}.{label}", kinds, 8, chains, values, first)
            continue
        halves = [np.clip(rng.standard_normal(REGION // 2 // np.dtype(ELEMENT[k]).itemsize), -4, 4).astype(np.float32).astype(ELEMENT[k]) for k in (ka, kb)]
        values = np.concatenate([h.view(np.uint8) for h in halves])
        chain = [Step(Operand(32 * i), Operand(32768 + 32 * i)) for i in range(4)]
        yield program(f"wgmma.real.{label}", kinds, 16, [chain], values)
        yield lone(kinds, label)


def lone(kinds: tuple[str, str, str], label: str) -> Program:
    """Only k = 0 of either matrix differs from zero: every sum is one product of special values, on a zero accumulator."""
    out, ka, kb = kinds
    size = np.dtype(ELEMENT[ka]).itemsize
    values = np.zeros(REGION, np.uint8)
    for kind, start, rows in ((ka, 0, 64), (kb, 32768, 16)):
        s = specials(kind)
        for row in range(rows):                     # no swizzle, K-major: 8 rows of 16 bytes make a core matrix, stride 256
            at = start + row // 8 * 256 + row % 8 * 16
            values[at:at + size] = s[row % len(s):row % len(s) + 1].view(np.uint8)
    a, b = Operand(0, 128, 256, 0), Operand(32768, 128, 256, 0)
    return program(f"wgmma.specials.{label}", kinds, 16, [[Step(a, b)], [Step(a, b, signs=(-1, 1))]], values, "0")


def programs() -> Iterator[Program]:
    """All of wgmma."""
    yield from types()
    yield from layouts()
    yield from scales()
