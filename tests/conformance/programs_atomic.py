"""atom and red: every operation and type on cells of their own (so that old values are certain), in global and
shared memory, with every ordering and scope; and sums over many threads, whose order does not matter."""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from programs import ANY_NAN, KINDS, Buffer, Near, Program, View, kernel, per_thread, random, store
from values import tuples

#: operation (with its fixed modifier) -> types
OPERATIONS = {"add": ("u32", "s32", "u64", "f32", "f64"), "add.noftz": ("f16", "f16x2", "bf16", "bf16x2"),
              "min": ("u32", "s32", "u64", "s64"), "max": ("u32", "s32", "u64", "s64"), "inc": ("u32",), "dec": ("u32",),
              "and": ("b32", "b64"), "or": ("b32", "b64"), "xor": ("b32", "b64"), "exch": ("b32", "b64"),
              "cas": ("b16", "b32", "b64")}
THREADS = 128


def cells(op: str, kind: str) -> Program:
    """Old and new values of an operation on pairs of special values: in global memory (atom, red) and in shared."""
    load, cls, dtype, per = KINDS[kind]
    letter = {"b16": "h", "b32": "r", "b64": "rd", "f32": "f", "f64": "fd"}[cls]
    old, value, compare = (f"%{letter}{30 + i}" for i in range(3))
    size = np.dtype(dtype).itemsize * per
    rng = random(f"atom.{op}.{kind}")
    x, v = tuples((kind, kind), THREADS, rng)
    compared = np.where(rng.random(len(x)) < 0.5, x, v)
    near: Near | None = ANY_NAN if kind == "f64" else None
    n = size * THREADS
    y = Buffer("y", np.full(n * 5, 0xEE, np.uint8))
    params = (Buffer("x", np.concatenate([x.view(np.uint8)] * 2)), Buffer("v", v), Buffer("c", compared), y)
    body = ("mov.u32 %r1, %tid.x;" + "".join(f"ld.param.u64 %rd{i + 1}, [{b}]; mad.wide.u32 %rd{i + 1}, %r1, {size}, %rd{i + 1};"
                                             for i, b in enumerate("xvcy"))
            + f"ld.global.{load} {value}, [%rd2]; ld.global.{load} {compare}, [%rd3]; ld.global.{load} {old}, [%rd1];"
            f"mov.u32 %r5, buf; mad.lo.u32 %r5, %r1, {size}, %r5; st.shared.{load} [%r5], {old};")
    tail = f", {compare}, {value};" if op == "cas" else f", {value};"
    body += f"atom.relaxed.gpu.global.{op}.{kind} {old}, [%rd1]{tail} st.global.{load} [%rd4], {old};"
    body += f"ld.global.{load} {old}, [%rd1]; st.global.{load} [%rd4+{n}], {old};"
    body += f"atom.relaxed.cta.shared.{op}.{kind} {old}, [%r5]{tail} st.global.{load} [%rd4+{2 * n}], {old};"
    body += f"ld.shared.{load} {old}, [%r5]; st.global.{load} [%rd4+{3 * n}], {old};"
    labels = ["atom.global: old", "atom.global: new", "atom.shared: old", "atom.shared: new"]
    if op not in ("exch", "cas"):
        body += f"red.relaxed.gpu.global.{op}.{kind} [%rd1+{n}]{tail} ld.global.{load} {old}, [%rd1+{n}]; st.global.{load} [%rd4+{4 * n}], {old};"
        labels.append("red.global: new")
    views = tuple(View("y", f"{op}.{kind} {label}", i * n, np.dtype(dtype).name, THREADS * per, near) for i, label in enumerate(labels))
    return Program(f"atom.{op}.{kind}", kernel(body, params, f".shared .align 16 .b8 buf[{n}];"), params, views, 1, THREADS)


def vectors() -> Iterator[Program]:
    """Vector reductions and atomics on global memory."""
    for kind, count in (("f32", 2), ("f32", 4), ("f16", 2), ("f16", 8), ("bf16", 4), ("f16x2", 2), ("f16x2", 4), ("bf16x2", 4)):
        load, cls, dtype, per = KINDS[kind]
        letter = {"b16": "h", "b32": "r", "f32": "f"}[cls]
        size = np.dtype(dtype).itemsize * per * count
        x, v = tuples((kind, kind), 32 * count, random(f"{kind}{count}"))
        ops = ("add",) if kind == "f32" else ("add", "min", "max")
        y = Buffer("y", np.concatenate([x.view(np.uint8)] * (2 * len(ops))))
        olds = Buffer("o", np.zeros(size * 32 * len(ops), np.uint8))
        params = (Buffer("v", v), y, olds)
        body = "mov.u32 %r1, %tid.x;" + "".join(f"ld.param.u64 %rd{i + 1}, [{b}]; mad.wide.u32 %rd{i + 1}, %r1, {size}, %rd{i + 1};"
                                                for i, b in enumerate("vyo"))
        value, old = ("{" + ", ".join(f"%{letter}{first + i}" for i in range(count)) + "}" for first in (20, 40))
        part = size // count
        for i in range(count):
            body += f"ld.global.{load} %{letter}{20 + i}, [%rd1+{i * part}];"
        for i, op in enumerate(ops):
            full = f"{op}{'' if kind == 'f32' else '.noftz'}.v{count}.{kind}"
            body += f"atom.global.{full} {old}, [%rd2+{2 * i * size * 32}], {value}; red.relaxed.gpu.global.{full} [%rd2+{(2 * i + 1) * size * 32}], {value};"
            body += "".join(f"st.global.{load} [%rd3+{i * size * 32 + j * part}], %{letter}{40 + j};" for j in range(count))
        name = np.dtype(dtype).name
        yield Program(f"atom.vector.{kind}.v{count}", kernel(body, params), params,
                      (View("y", "new", 0, name, y.data.nbytes // np.dtype(dtype).itemsize),
                       View("o", "old", 0, name, olds.data.nbytes // np.dtype(dtype).itemsize)))


def exchanges() -> Iterator[Program]:
    """Compare-and-swap with every ordering and scope."""
    scopes = ("cta", "cluster", "gpu", "sys")
    body, regs = "ld.param.u64 %rd5, [x]; mad.wide.u32 %rd5, %r1, 8, %rd5; mov.u32 %r5, 1000; add.u32 %r6, %r1, 1000;", []
    for i, (sem, scope) in enumerate((s, c) for s in ("relaxed", "acquire", "release", "acq_rel") for c in scopes):
        regs.append(f"%r{20 + i}")
        body += f"atom.{sem}.{scope}.global.cas.b32 {regs[-1]}, [%rd5], {'%r6' if i % 2 else '%r5'}, {'%r5' if i % 2 else '%r6'};"
    body += "atom.global.cas.b32 %r40, [%rd5], %r5, %r1; ld.global.u32 %r41, [%rd5];"
    x = Buffer("x", np.arange(1000, 1032, dtype=np.uint64))
    yield per_thread("atom.cas.orders", body + store([*regs, "%r40", "%r41"]), [x], len(regs) + 2)


def orders() -> Iterator[Program]:
    """Every ordering and scope; generic addresses; hints; 128 bits; sums over threads."""
    scopes = ("cta", "cluster", "gpu", "sys")
    body, regs = "ld.param.u64 %rd5, [x]; mad.wide.u32 %rd5, %r1, 4, %rd5;", []
    for i, (sem, scope) in enumerate((s, c) for s in ("relaxed", "acquire", "release", "acq_rel") for c in scopes):
        regs.append(f"%r{20 + i}")
        body += f"atom.{sem}.{scope}.global.add.u32 {regs[-1]}, [%rd5], {i + 1};"
        if sem in ("relaxed", "release"):
            body += f"red.{sem}.{scope}.global.add.u32 [%rd5], {100 * i};"
    x = Buffer("x", np.arange(1000, 1032, dtype=np.uint32))
    yield per_thread("atom.orders", body + store(regs), [x], len(regs))
    body = ("ld.param.u64 %rd5, [x]; mad.wide.u32 %rd5, %r1, 4, %rd5; createpolicy.fractional.L2::evict_last.b64 %rd6, 1.0; atom.add.u32 %r20, [%rd5], 7;"
            "atom.global.add.L2::cache_hint.u32 %r21, [%rd5], 3, %rd6; red.global.max.L2::cache_hint.s32 [%rd5], 1017, %rd6; red.add.u32 [%rd5], 5;"
            "atom.exch.b32 %r22, [%rd5], %r1; mov.u64 %rd7, buf; mad.wide.u32 %rd7, %r1, 4, %rd7; cvta.shared.u64 %rd7, %rd7; st.u32 [%rd7], 9;"
            "atom.add.u32 %r23, [%rd7], %r1; atom.cas.b32 %r24, [%rd7], 12, 50; ld.u32 %r25, [%rd7];")
    yield per_thread("atom.generic", body + store([f"%r{i}" for i in range(20, 26)]), [x], 6, header=".shared .align 16 .b8 buf[128];")
    wide = Buffer("x", random("atom.b128").integers(0, 1 << 63, 64, dtype=np.uint64))
    body = ("ld.param.u64 %rd5, [x]; mad.wide.u32 %rd5, %r1, 16, %rd5; .reg .b128 %q<4>; mov.b128 %q0, {5, 6}; atom.global.exch.b128 %q1, [%rd5], %q0;"
            "mov.b128 %q2, {7, 8}; atom.global.cas.b128 %q3, [%rd5], %q0, %q2; mov.b128 {%rd10, %rd11}, %q1; mov.b128 {%rd12, %rd13}, %q3;"
            "ld.global.v2.u64 {%rd14, %rd15}, [%rd5];")
    yield per_thread("atom.b128", body + store([f"%rd{i}" for i in range(10, 16)], "u64"), [wide], 12)
    v = Buffer("x", random("sums").integers(0, 1 << 32, 256, dtype=np.uint32))
    ops = (("add", "u32", 0), ("min", "s32", 0), ("max", "u32", 0), ("and", "b32", 0xFFFFFFFF), ("or", "b32", 0), ("xor", "b32", 0), ("inc", "u32", 0), ("dec", "u32", 0))
    y = Buffer("y", np.array([o[2] for o in ops] * 2, np.uint32))
    body = ("ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; shl.b32 %r3, %r2, 7; add.u32 %r3, %r3, %r1;"
            "mad.wide.u32 %rd1, %r3, 4, %rd1; ld.global.u32 %r4, [%rd1]; setp.eq.u32 %p1, %r1, 0;")
    for i, (op, kind, first) in enumerate(ops):
        value = "1000000" if op in ("inc", "dec") else "%r4"
        body += (f"@%p1 st.shared.u32 [buf+{4 * i}], {first}; bar.sync 0; red.shared.{op}.{kind} [buf+{4 * i}], {value}; red.global.{op}.{kind} [%rd2+{4 * i}], {value};"
                 f"bar.sync 0; ld.shared.u32 %r5, [buf+{4 * i}]; setp.eq.u32 %p2, %r2, 0; and.pred %p2, %p1, %p2; @%p2 st.global.u32 [%rd2+{32 + 4 * i}], %r5;")
    yield Program("red.many-threads", kernel(body, (v, y), ".shared .align 16 .b8 buf[32];"), (v, y), (View("y", "y", 0, "uint32", 16),), 2, 128)
    ones = Buffer("y", np.zeros(8, np.uint32))
    body = ("ld.param.u64 %rd1, [y]; red.global.add.f32 [%rd1], 0f3F800000; mov.b16 %h1, 0x3F80; red.global.add.noftz.bf16 [%rd1+4], %h1;"
            "mov.b32 %r5, 0x3C003C00; red.global.add.noftz.f16x2 [%rd1+8], %r5; mov.f64 %fd1, 0d3FF0000000000000; red.global.add.f64 [%rd1+16], %fd1;")
    yield Program("red.float-sums", kernel(body, (ones,)), (ones,), (View("y", "y", 0, "uint32", 8),), 2, 64)


def programs() -> Iterator[Program]:
    """Atomics."""
    for op, kinds in OPERATIONS.items():
        for kind in kinds:
            yield cells(op, kind)
    yield from vectors()
    yield from exchanges()
    yield from orders()
