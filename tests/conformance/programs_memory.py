"""Loads and stores: every width, vector, space, cache operator, ordering and hint; matrix loads and stores."""
from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from programs import KINDS, Buffer, Program, View, kernel, per_thread, random, store, whole
from values import scattered

TYPES = ("b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "b64", "u64", "s64", "f32", "f64")
CLASS = {"8": ("b16", "h"), "16": ("b16", "h"), "32": ("b32", "r"), "64": ("b64", "rd")}


def names(kind: str, count: int, first: int = 20) -> list[str]:
    """Registers of the class of a load's type."""
    letter = {"f32": "f", "f64": "fd"}.get(kind) or CLASS[kind[1:]][1]
    return [f"%{letter}{first + i}" for i in range(count)]


def braces(regs: Sequence[str]) -> str:
    """One register, or a vector."""
    return regs[0] if len(regs) == 1 else "{" + ", ".join(regs) + "}"


def vector(count: int) -> str:
    """The vector modifier of `count` values."""
    return f".v{count}" if count > 1 else ""


def copied(name: str, moves: Sequence[tuple[str, str, str, int]], block: int = 32, header: str = "", start: str = "") -> Program:
    """Every move (load of REG from AT, store of REG to AT, type, count) copies a thread's values from x to its own part of y."""
    sizes = [int(kind[1:]) // 8 * count for _, _, kind, count in moves]
    total = sum(sizes) * block
    x, y = Buffer("x", random(name).integers(0, 256, total, dtype=np.uint8)), Buffer("y", np.full(total, 0xEE, np.uint8))
    body, at, views = "mov.u32 %r1, %tid.x; ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y];\n" + start, 0, []
    order = sorted(range(len(moves)), key=lambda i: -sizes[i])            # the widest first: all stay aligned
    for i in order:
        load, save, kind, count = moves[i]
        regs = braces(names(kind, count))
        body += (f"mad.wide.u32 %rd3, %r1, {sizes[i]}, %rd1; mad.wide.u32 %rd4, %r1, {sizes[i]}, %rd2; "
                 + load.replace("REG", regs).replace("AT", f"[%rd3+{at}]") + " "
                 + save.replace("REG", regs).replace("AT", f"[%rd4+{at}]") + "\n")
        views.append(View("y", load + " " + save, at, "uint8", sizes[i] * block))
        at += sizes[i] * block
    return Program(name, kernel(body, (x, y), header), (x, y), tuple(views), 1, block)


def through(space: str, kind: str, count: int) -> str:
    """A load followed by a round trip through a space at the address %r5 (shared) or %rd5 (local)."""
    regs, again = names(kind, count), names(kind, count, 30)
    base = "%r5" if "shared" in space else "%rd5"
    moves = "; ".join(f"mov.{'b' + kind[1:] if kind[1:] != '8' else 'b16'} {r}, {a}" for r, a in zip(regs, again))
    if kind in ("f32", "f64"):
        moves = "; ".join(f"mov.{kind} {r}, {a}" for r, a in zip(regs, again))
    return (f"ld.global{vector(count)}.{kind} REG, AT; st{space}{vector(count)}.{kind} [{base}], {braces(regs)}; "
            f"ld{space}{vector(count)}.{kind} {braces(again)}, [{base}]; {moves};")


def widths() -> Iterator[Program]:
    """Every type and vector length, in every space."""
    shapes = [(kind, count) for kind in TYPES for count in (1, 2, 4) if int(kind[1:]) * count <= 128]
    for space in (".global", ""):
        yield copied(f"ld-st{space or '.generic'}", [(f"ld{space}{vector(c)}.{k} REG, AT;", f"st{space}{vector(c)}.{k} AT, REG;", k, c)
                                                     for k, c in shapes])
    saves = {(k, c): f"st.global{vector(c)}.{k} AT, REG;" for k, c in shapes}
    for space in (".shared", ".shared::cta", ".local"):
        start = ("mov.u32 %r5, buf; mad.lo.u32 %r5, %r1, 16, %r5;" if "shared" in space
                 else ".local .align 16 .b8 mine[16]; mov.u64 %rd5, mine;")
        yield copied(f"ld-st{space}", [(through(space, k, c), saves[k, c], k, c) for k, c in shapes],
                     header=".shared .align 16 .b8 buf[512];", start=start)
    generic = [(through("", k, c), saves[k, c], k, c) for k, c in shapes]
    for space in ("shared", "local"):
        where = {"shared": "mov.u64 %rd5, buf; mad.wide.u32 %rd5, %r1, 16, %rd5; cvta.shared.u64 %rd5, %rd5;",
                 "local": ".local .align 16 .b8 mine[16]; mov.u64 %rd5, mine; cvta.local.u64 %rd5, %rd5;"}[space]
        yield copied(f"ld-st.generic-{space}", generic, header=".shared .align 16 .b8 buf[512];", start=where)


def hints() -> Iterator[Program]:
    """Cache operators, eviction priorities, policies, prefetch sizes, the read-only path, orderings and scopes."""
    def pair(load: str, save: str = "st.global.u32", kind: str = "u32", count: int = 1, hint: str = "") -> tuple[str, str, str, int]:
        return (load + " REG, AT" + hint * ("cache_hint" in load) + ";", save + " AT, REG" + hint * ("cache_hint" in save) + ";",
                kind, count)

    yield copied("ld.cache", [pair(f"ld.global.{c}.{'v4.' * v}u32", count=4 if v else 1, save=f"st.global.{'v4.' * v}u32")
                              for c in ("ca", "cg", "cs", "cv", "lu") for v in (0, 1) if (c, v) != ("cv", 1)])
    yield copied("st.cache", [pair("ld.global.u32", f"st.global.{c}.u32") for c in ("wb", "cg", "cs", "wt")])
    priorities = ("L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate")
    yield copied("ld.evict", [pair(f"ld.global.{e}.u32") for e in priorities])
    yield copied("st.evict", [pair("ld.global.u32", f"st.global.{e}.u32") for e in priorities])
    yield copied("ld.nc", [pair(f"ld.global.nc.{t}", f"st.global.{t}", t) for t in ("u8", "s16", "u32", "u64", "f32", "f64")]
                 + [pair(f"ld.global.nc.{e}.v4.u32", "st.global.v4.u32", count=4) for e in priorities]
                 + [pair("ld.global.ca.nc.v2.u32", "st.global.v2.u32", count=2), pair("ld.global.nc.L2::128B.v4.f32", "st.global.v4.f32", "f32", 4)])
    yield copied("ld.prefetch-size", [pair(f"ld.global.L2::{n}B.u32") for n in (64, 128, 256)])
    policies = ("createpolicy.fractional.L2::evict_last.b64 %rd20, 1.0; "
                "createpolicy.fractional.L2::evict_first.L2::evict_unchanged.b64 %rd20, 0.5; "
                "createpolicy.fractional.L2::evict_first.b64 %rd20;")
    yield copied("ld-st.policy", [pair("ld.global.L2::cache_hint.u32", "st.global.L2::cache_hint.u32", hint=", %rd20"),
                                  pair("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32",
                                       "st.global.L1::no_allocate.L2::cache_hint.v4.u32", "u32", 4, ", %rd20")], start=policies)
    scopes = ("cta", "cluster", "gpu", "sys")
    yield copied("ld-st.order", [pair("ld.volatile.global.u32", "st.volatile.global.u32"), pair("ld.weak.global.u32", "st.weak.global.u32")]
                 + [pair(f"ld.{a}.{s}.global.u32", f"st.{b}.{s}.global.u32") for a, b in (("relaxed", "relaxed"), ("acquire", "release"))
                    for s in scopes] + [pair(f"ld.acquire.{s}.u64", f"st.release.{s}.u64", "u64") for s in scopes])
    x, y = Buffer("x", random("b128").integers(0, 256, 512, dtype=np.uint8)), Buffer("y", np.zeros(512, np.uint8))
    body = ("mov.u32 %r1, %tid.x; ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; mad.wide.u32 %rd1, %r1, 16, %rd1; "
            "mad.wide.u32 %rd2, %r1, 16, %rd2; .reg .b128 %q; ld.global.b128 %q, [%rd1]; mov.b128 {%rd3, %rd4}, %q; "
            "mov.b128 %q, {%rd4, %rd3}; st.global.b128 [%rd2], %q;")
    yield Program("ld-st.b128", kernel(body, (x, y)), (x, y), (whole(y),))
    yield per_thread("prefetch", "ld.param.u64 %rd5, [x]; prefetch.global.L1 [%rd5]; prefetch.global.L2 [%rd5+128]; prefetchu.L1 [%rd5]; "
                     "prefetch.L2 [%rd5]; prefetch.global.L2::evict_last [%rd5]; prefetch.global.L2::evict_normal [%rd5]; "
                     "applypriority.global.L2::evict_normal [%rd5], 128; mad.wide.u32 %rd5, %r1, 4, %rd5; ld.global.u32 %r5, [%rd5];"
                     + store(["%r5"]), [Buffer("x", np.arange(64, dtype=np.uint32))], 1)


def extension() -> Iterator[Program]:
    """Narrow loads into wide registers: signs extend; stores take the low bits. Parameters, constants, isspacep."""
    wide = [("u8", "b32"), ("s8", "b32"), ("u16", "b32"), ("s16", "b32"), ("s8", "b64"), ("u8", "b64"), ("s32", "b64"), ("u32", "b64"), ("b8", "b32")]
    body, regs = "ld.param.u64 %rd5, [x]; mad.wide.u32 %rd5, %r1, 8, %rd5;", []
    for i, (kind, cls) in enumerate(wide):
        r = f"%r{20 + i}" if cls == "b32" else f"%rd{20 + i}"
        body += f"ld.global.{kind} {r}, [%rd5];"
        regs += [r] if cls == "b32" else [f"%r{40 + i}", f"%r{60 + i}"]
        body += "" if cls == "b32" else f"mov.b64 {{%r{40 + i}, %r{60 + i}}}, {r};"
    x = Buffer("x", random("extend").integers(0, 1 << 64, 32, dtype=np.uint64))
    yield per_thread("ld.extend", body + store(regs), [x], len(regs))
    yield per_thread("st.narrow", "ld.param.u64 %rd5, [x]; mad.wide.u32 %rd5, %r1, 8, %rd5; ld.global.u64 %rd6, [%rd5]; cvt.u32.u64 %r5, %rd6;"
                     "st.global.u8 [%rd1], %r5; st.global.u16 [%rd1+4], %r5; st.global.u8 [%rd1+8], %rd6; st.global.u32 [%rd1+12], %rd6;", [x], 4)
    table = ".const .align 8 .b32 table[4] = {1, 0x10, 0xFFFFFFFF, 7};\n.const .align 4 .f32 floats[2] = {0f3F800000, 0fC0200000};\n"
    yield per_thread("ld.const", "mov.u32 %r5, table; and.b32 %r6, %r1, 3; mad.lo.u32 %r5, %r6, 4, %r5; ld.const.u32 %r7, [%r5];"
                     "ld.const.v2.u32 {%r8, %r9}, [table+8]; ld.const.f32 %f1, [floats+4]; mov.b32 %r10, %f1; mov.u64 %rd5, table;"
                     "cvta.const.u64 %rd5, %rd5; ld.u32 %r11, [%rd5+4];" + store(["%r7", "%r8", "%r9", "%r10", "%r11"]), [], 5, header=table)
    yield per_thread("isspacep", "mov.u64 %rd5, buf; cvta.shared.u64 %rd5, %rd5; .local .align 4 .b8 mine[4]; mov.u64 %rd6, mine; cvta.local.u64 %rd6, %rd6;"
                     + "".join(f"isspacep.{s} %p1, {r}; selp.u32 %r{10 + i}, 1, 0, %p1;" for i, (s, r) in enumerate(
                         (s, r) for s in ("global", "shared", "local", "shared::cta") for r in ("%rd1", "%rd5", "%rd6")))
                     + "cvta.to.shared.u64 %rd7, %rd5; mov.u64 %rd8, buf; setp.eq.u64 %p1, %rd7, %rd8; selp.u32 %r22, 1, 0, %p1;"
                     + store([f"%r{10 + i}" for i in range(13)]), [], 13, header=".shared .align 4 .b8 buf[64];")


def matrices() -> Iterator[Program]:
    """ldmatrix and stmatrix, every count, with and without transposition."""
    head = ".shared .align 128 .b8 buf[1024];"
    x = Buffer("x", scattered("u16", 256, random("ldmatrix")))
    fill = ("ld.param.u64 %rd5, [x]; mad.wide.u32 %rd5, %r1, 16, %rd5; ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd5]; mov.u32 %r5, buf;"
            "mad.lo.u32 %r6, %r1, 16, %r5; st.shared.v4.u32 [%r6], {%r10, %r11, %r12, %r13}; bar.warp.sync -1; xor.b32 %r7, %r1, 5;"
            "mad.lo.u32 %r7, %r7, 16, %r5;")
    for trans in ("", ".trans"):
        loads, regs = "", []
        for count in (1, 2, 4):
            mine = [f"%r{20 + len(regs) + i}" for i in range(count)]
            loads += f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{', '.join(mine)}}}, [%r7];"
            regs += mine
        yield per_thread(f"ldmatrix{trans}", fill + loads + store(regs), [x], len(regs), header=head)
        for count in (1, 2, 4):
            mine = "{" + ", ".join(f"%r{10 + i}" for i in range(count)) + "}"
            body = ("ld.param.u64 %rd5, [x]; mad.wide.u32 %rd5, %r1, 16, %rd5; ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd5]; mov.u32 %r5, buf;"
                    "mad.lo.u32 %r6, %r1, 16, %r5; st.shared.v4.u32 [%r6], {%r10, %r10, %r10, %r10}; bar.warp.sync -1; xor.b32 %r7, %r1, 3;"
                    f"mad.lo.u32 %r7, %r7, 16, %r5; stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r7], {mine}; bar.warp.sync -1;"
                    "ld.shared.v4.u32 {%r20, %r21, %r22, %r23}, [%r6];")
            yield per_thread(f"stmatrix.x{count}{trans}", body + store([f"%r{20 + i}" for i in range(4)]), [x], 4, header=head)


def programs() -> Iterator[Program]:
    """Memory, by one thread at a time."""
    assert set(t for t in TYPES if t != "b8") <= set(KINDS)
    yield from widths()
    yield from hints()
    yield from extension()
    yield from matrices()
