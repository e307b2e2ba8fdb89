"""Integer, logic and bit instructions of every type, on all pairs of special values."""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from programs import Program, Variant, elementwise, random
from values import singles, tuples

SIZED = ("u16", "u32", "u64", "s16", "s32", "s64")


def wide(kind: str) -> str:
    """The kind of twice the width."""
    return f"{kind[0]}{2 * int(kind[1:])}"


def program(name: str, kinds: tuple[str, ...], what: list[Variant], n: int = 512) -> Program:
    """A program on inputs of given kinds."""
    rng = random(name)
    if len(kinds) == 1:
        return elementwise(name, [(kinds[0], singles(kinds[0], n, rng))], what)
    return elementwise(name, list(zip(kinds, tuples(kinds, n, rng))), what)


def arithmetic(kind: str) -> Iterator[Program]:
    """add, sub, mul, mad, div, rem, min, max, sad, abs, neg of one type."""
    two = "%d, %a0, %a1;"
    three = "%d, %a0, %a1, %a2;"
    sat = kind == "s32"
    yield program(f"add-sub.{kind}", (kind, kind), [(f"{op}{m}.{kind} {two}", kind, None) for op in ("add", "sub")
                                                    for m in ("", ".sat")[:1 + sat]])
    yield program(f"mul.{kind}", (kind, kind), [(f"mul.{p}.{kind} {two}", kind, None) for p in ("lo", "hi")])
    parts = [(f"mad.{p}.{kind} {three}", kind, None) for p in ("lo", "hi")]
    if sat:
        parts.append((f"mad.hi.sat.{kind} {three}", kind, None))
    yield program(f"mad.{kind}", (kind, kind, kind), parts)
    if not kind.endswith("64"):
        yield program(f"mul.wide.{kind}", (kind, kind), [(f"mul.wide.{kind} {two}", wide(kind), None)])
        yield program(f"mad.wide.{kind}", (kind, kind, wide(kind)), [(f"mad.wide.{kind} {three}", wide(kind), None)])
    rng = random(f"div.{kind}")
    a, b = tuples((kind, kind), 512, rng)
    b[b == 0] = 3                                        # a division by zero has no specified result
    if kind[0] == "s":
        b[(b == -1) & (a == np.iinfo(a.dtype).min)] = 7  # nor has one that overflows
    yield elementwise(f"div-rem.{kind}", [(kind, a), (kind, b)], [(f"{op}.{kind} {two}", kind, None) for op in ("div", "rem")])
    yield program(f"min-max.{kind}", (kind, kind), [(f"{op}.{kind} {two}", kind, None) for op in ("min", "max")])
    yield program(f"sad.{kind}", (kind, kind, kind), [(f"sad.{kind} {three}", kind, None)])
    if kind[0] == "s":
        yield program(f"abs-neg.{kind}", (kind,), [(f"{op}.{kind} %d, %a0;", kind, None) for op in ("abs", "neg")], 128)


def packed() -> Iterator[Program]:
    """16-bit pairs, relu, dp4a, carries."""
    for kind in ("u16x2", "s16x2"):
        yield program(f"add-min-max.{kind}", (kind, kind), [(f"{op}.{kind} %d, %a0, %a1;", kind, None) for op in ("add", "min", "max")])
    yield program("min-max.relu.s32", ("s32", "s32"), [(f"{op}.relu.s32 %d, %a0, %a1;", "s32", None) for op in ("min", "max")])
    yield program("min-max.relu.s16x2", ("s16x2", "s16x2"), [
        (f"{op}.relu.s16x2 %d, %a0, %a1;", "s16x2", None) for op in ("min", "max")])
    yield program("dp4a", ("b32", "b32", "b32"), [(f"dp4a.{x}.{y} %d, %a0, %a1, %a2;", "b32", None)
                                                  for x in ("u32", "s32") for y in ("u32", "s32")])
    split = "mov.b64 {%r10, %r11}, %a0; mov.b64 {%r12, %r13}, %a1; "
    yield program("carry", ("b64", "b64"), [
        (f"{split}{op}.cc.{t} %r10, %r10, %r12; {op}c.cc.{t} %r11, %r11, %r13; {op}c.{t} %d, 0, 0;", "u32", None)
        for op in ("add", "sub") for t in ("u32", "s32")] + [
        (f"{split}{op}.cc.u32 %r10, %r10, %r12; {op}c.u32 %r11, %r11, %r13; mov.b64 %d, {{%r10, %r11}};", "b64", None)
        for op in ("add", "sub")] + [
        (f"{op}.cc.{t} %rd10, %a0, %a1; {op}c.{t} %d, %a1, 5;", "b64", None) for op in ("add", "sub") for t in ("u64", "s64")])


def bits() -> Iterator[Program]:
    """Logic, counting, fields, permutations and shifts."""
    for size in (16, 32, 64):
        b = f"b{size}"
        yield program(f"logic.{b}", (b, b), [(f"{op}.{b} %d, %a0, %a1;", b, None) for op in ("and", "or", "xor")]
                      + [(f"{op}.{b} %d, %a0;", b, None) for op in ("not", "cnot")])
        yield program(f"shift.{b}", (b, "u32"), [(f"{op}.{t}{size} %d, %a0, %a1;", b, None)
                                                 for op, t in (("shl", "b"), ("shr", "b"), ("shr", "u"), ("shr", "s"))])
    yield program("logic.pred", ("b32", "b32"), [
        (f"setp.gt.u32 %p1, %a0, 31; setp.gt.u32 %p2, %a1, 31; {op}.pred %p3, %p1, %p2; selp.u32 %d, 1, 0, %p3;", "u32", None)
        for op in ("and", "or", "xor")] + [("setp.gt.u32 %p1, %a0, 31; not.pred %p3, %p1; selp.u32 %d, 1, 0, %p3;", "u32", None)])
    for size in (32, 64):
        b = f"b{size}"
        yield program(f"count.{b}", (b,), [(f"{op}.{b} %d, %a0;", "u32", None) for op in ("popc", "clz")] + [
            (f"bfind{m}.{t}{size} %d, %a0;", "u32", None) for m in ("", ".shiftamt") for t in "us"] + [(f"brev.{b} %d, %a0;", b, None)], 256)
        yield program(f"bfe.{b}", (b, "u32", "u32"), [(f"bfe.{t}{size} %d, %a0, %a1, %a2;", b, None) for t in "us"])
        rng = random(f"bfi.{b}")
        a, c = tuples((b, b), 512, rng)
        at, length = tuples(("u32", "u32"), 512, rng)
        yield elementwise(f"bfi.{b}", [(b, a), (b, c), ("u32", at), ("u32", length)],
                          [(f"bfi.{b} %d, %a0, %a1, %a2, %a3;", b, None)])
    yield program("bmsk", ("u32", "u32"), [(f"bmsk.{m}.b32 %d, %a0, %a1;", "b32", None) for m in ("clamp", "wrap")])
    yield program("szext", ("b32", "u32"), [(f"szext.{m}.{t} %d, %a0, %a1;", "b32", None)
                                            for m in ("clamp", "wrap") for t in ("u32", "s32")])
    yield program("prmt", ("b32", "b32", "b32"), [("prmt.b32 %d, %a0, %a1, %a2;", "b32", None)] + [
        (f"prmt.b32{m} %d, %a0, %a1, %a2;", "b32", None) for m in (".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16")] + [
        (f"prmt.b32 %d, %a0, %a1, {s:#x};", "b32", None) for s in (0x3210, 0x7531, 0xBA98, 0x89FE, 0x0123)])
    yield program("lop3", ("b32", "b32", "b32"), [(f"lop3.b32 %d, %a0, %a1, %a2, {t:#x};", "b32", None)
                                                  for t in (0, 1, 0x17, 0x1B, 0x80, 0x96, 0xCA, 0xE8, 0xF0, 0xFE, 0xFF)])
    yield program("shf", ("b32", "b32", "u32"), [(f"shf.{d}.{m}.b32 %d, %a0, %a1, %a2;", "b32", None)
                                                 for d in "lr" for m in ("clamp", "wrap")])


def moves() -> Iterator[Program]:
    """mov between registers, packing and unpacking, selp, slct."""
    forms = {"u16": "b16", "s16": "s16", "u32": "b32", "s32": "s32", "s64": "b64", "u64": "u64", "f32": "f32", "f64": "f64"}
    for kind in forms:
        yield program(f"mov-selp-slct.{kind}", (kind, kind, "s32"), [
            (f"mov.{forms[kind]} %d, %a0;", kind, None),
            (f"setp.gt.s32 %p1, %a2, 31; selp.{forms[kind]} %d, %a0, %a1, %p1;", kind, None),
            (f"setp.gt.s32 %p1, %a2, 31; selp.{kind} %d, %a1, %a0, %p1;", kind, None),
            (f"slct.{kind}.s32 %d, %a0, %a1, %a2;", kind, None),
            (f"mov.b32 %f1, %a2; slct.{forms[kind]}.f32 %d, %a0, %a1, %f1;", kind, None)])
    yield program("mov.pack", ("b32", "b32"), [
        ("mov.b64 %d, {%a1, %a0};", "b64", None), ("mov.b64 %rd10, {%a0, %a1}; mov.b64 {%d, %r10}, %rd10;", "b32", None),
        ("mov.b32 {%h1, %h2}, %a0; mov.b32 %d, {%h2, %h1};", "b32", None),
        ("mov.b32 {%h1, _}, %a0; mov.b16 %d, %h1;", "b16", None), ("mov.b32 {_, %d}, %a1;", "b16", None),
        ("mov.b32 {%h1, %h2}, %a0; mov.b32 {%h3, %h4}, %a1; mov.b64 %d, {%h1, %h4, %h3, %h2};", "b64", None),
        ("mov.b64 %rd10, {%a0, %a1}; mov.b64 {%h1, %h2, %h3, %h4}, %rd10; mov.b32 %d, {%h4, %h1};", "b32", None)], 128)


def programs() -> Iterator[Program]:
    """Everything on integers but comparisons."""
    for kind in SIZED:
        yield from arithmetic(kind)
    yield from packed()
    yield from bits()
    yield from moves()
