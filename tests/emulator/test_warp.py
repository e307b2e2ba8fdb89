"""Warp-level instructions, divergence, memory forms and atomics."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from ptx_programs import assembles, kernel, lanes, pointer

from tilejit.emulator import Program
from tilejit.errors import EmulatorError

RNG = np.random.default_rng(11)
LANE = np.arange(32)


def run(body: str, arrays: list[np.ndarray], threads: int = 32, header: str = "", shared: int = 0, grid: int = 1,
        assemble: bool = True, **options):  # type: ignore[no-untyped-def]
    """Launch a kernel whose pointers %rd1, %rd2, ... are `arrays`."""
    loads = "".join(f"ld.param.u64 %rd{i + 1}, [x{i}];\n" for i in range(len(arrays)))
    text = kernel(f"{loads}mov.u32 %r1, %tid.x;\n{body}", [f".param .u64 x{i}" for i in range(len(arrays))], header)
    if assemble:
        assembles(text)
    return Program(text).launch((grid,), threads, [pointer(a) for a in arrays], shared_bytes=shared, memory=arrays, **options)


def per_lane(body: str, threads: int = 32, **options) -> np.ndarray:  # type: ignore[no-untyped-def]
    """The u32 in %r63 of every thread after `body`."""
    out = np.zeros(threads, np.uint32)
    run(f"{body}\nmad.wide.u32 %rd20, %r1, 4, %rd1; st.global.u32 [%rd20], %r63;", [out], threads, **options).check()
    return out


@pytest.mark.parametrize("mode,source", [
    ("bfly", lambda i: i ^ 5), ("idx", lambda i: np.full(32, 7)), ("down", lambda i: np.where(i + 3 < 32, i + 3, i)),
    ("up", lambda i: np.where(i - 3 >= 0, i - 3, i))])
def test_shuffle(mode: str, source) -> None:  # type: ignore[no-untyped-def]
    arg = {"bfly": 5, "idx": 7}.get(mode, 3)
    clamp = 0 if mode == "up" else 31
    got = per_lane(f"mul.lo.u32 %r2, %r1, 10; shfl.sync.{mode}.b32 %r63, %r2, {arg}, {clamp}, -1;")
    assert (got == source(LANE) * 10).all()


def test_shuffle_segments_and_predicate() -> None:
    got = per_lane("shfl.sync.down.b32 %r2|%p1, %r1, 2, 0x1807, -1; selp.u32 %r63, %r2, 99, %p1;")
    assert (got == np.where(LANE % 8 < 6, LANE + 2, 99)).all()


def test_vote_match_redux() -> None:
    assert (per_lane("setp.gt.u32 %p1, %r1, 20; vote.sync.ballot.b32 %r63, %p1, -1;") == 0xFFE00000).all()
    assert (per_lane("setp.gt.u32 %p1, %r1, 20; vote.sync.any.pred %p2, %p1, -1; selp.u32 %r63, 1, 0, %p2;") == 1).all()
    assert (per_lane("setp.gt.u32 %p1, %r1, 20; vote.sync.all.pred %p2, !%p1, -1; selp.u32 %r63, 1, 0, %p2;") == 0).all()
    assert (per_lane("and.b32 %r2, %r1, 3; match.any.sync.b32 %r63, %r2, -1;") == 0x11111111 << (LANE & 3)).all()
    assert (per_lane("redux.sync.add.u32 %r63, %r1, -1;") == 496).all()
    assert (per_lane("sub.u32 %r2, 5, %r1; redux.sync.min.s32 %r63, %r2, -1;").view(np.int32) == -26).all()
    assert (per_lane("redux.sync.xor.b32 %r63, %r1, -1;") == 0).all()


def test_elect_and_activemask() -> None:
    got = per_lane("mov.u32 %r63, 0; elect.sync _|%p1, -1; @%p1 mov.u32 %r63, 1;")
    assert got.sum() == 1
    got = per_lane("setp.lt.u32 %p1, %r1, 4; mov.u32 %r63, 0; @!%p1 bra L; activemask.b32 %r63; L:")
    assert (got == np.where(LANE < 4, 15, 0)).all()


def test_loops_diverge_and_meet_again() -> None:
    """Each lane loops lane+1 times; afterwards the whole warp shuffles together."""
    got = per_lane("mov.u32 %r2, 0; mov.u32 %r3, 0;\nL: add.u32 %r3, %r3, %r2; add.u32 %r2, %r2, 1;"
                   "setp.le.u32 %p1, %r2, %r1; @%p1 bra L;\nredux.sync.add.u32 %r63, %r3, -1;")
    want = sum(sum(range(i + 1)) for i in range(32))
    assert (got == want).all()


def test_nested_divergence() -> None:
    got = per_lane("and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0; and.b32 %r3, %r1, 2; setp.eq.u32 %p2, %r3, 0;"
                   "@%p1 bra E;\n@%p2 bra O2; mov.u32 %r63, 3; bra J;\nO2: mov.u32 %r63, 1; bra J;\n"
                   "E: @%p2 bra E2; mov.u32 %r63, 2; bra J;\nE2: mov.u32 %r63, 0;\n"
                   "J: vote.sync.ballot.b32 %r4, %p1, -1; add.u32 %r63, %r63, %r4;")
    assert (got == LANE % 4 + 0x55555555).all()


def test_one_side_waits_for_the_other() -> None:
    """Independent thread scheduling: lane 0 waits on an mbarrier at which lane 1 arrives."""
    body = ("mov.u32 %r5, bar; setp.eq.u32 %p1, %r1, 0; @!%p1 bra A; mbarrier.init.shared.b64 [%r5], 1;\n"
            "A: bar.sync 0; @!%p1 bra B;\nW: mbarrier.try_wait.parity.shared.b64 %p2, [%r5], 0; @!%p2 bra W; bra C;\n"
            "B: setp.eq.u32 %p3, %r1, 1; @%p3 mbarrier.arrive.shared.b64 _, [%r5];\nC: mov.u32 %r63, 5;")
    assert (per_lane(body, header=".shared .align 8 .b64 bar;") == 5).all()


def test_early_exit_of_lanes() -> None:
    out = np.zeros(32, np.uint32)
    run("setp.lt.u32 %p1, %r1, 10; @%p1 ret; mad.wide.u32 %rd2, %r1, 4, %rd1; st.global.u32 [%rd2], 7;", [out]).check()
    assert (out == np.where(LANE < 10, 0, 7)).all()


def test_branch_table() -> None:
    got = per_lane("rem.u32 %r2, %r1, 3;\nT: .branchtargets L0, L1, L2;\nbrx.idx %r2, T;\nL0: mov.u32 %r63, 10; bra J;\n"
                   "L1: mov.u32 %r63, 11; bra J;\nL2: mov.u32 %r63, 12;\nJ: redux.sync.add.u32 %r4, %r1, -1;"
                   "add.u32 %r63, %r63, %r4;", assemble=False)
    assert (got == 10 + LANE % 3 + 496).all()


def test_vectors_and_local_memory() -> None:
    x = RNG.integers(0, 1 << 32, 128, dtype=np.uint32)
    y = np.zeros(128, np.uint32)
    run(".local .align 16 .b8 buf[32]; mad.wide.u32 %rd3, %r1, 16, %rd1; mad.wide.u32 %rd4, %r1, 16, %rd2;"
        "ld.global.nc.L1::no_allocate.v4.u32 {%r2, %r3, %r4, %r5}, [%rd3]; mov.b64 %rd5, buf;"
        "st.local.v2.u32 [%rd5+8], {%r2, %r3}; st.local.v2.u32 [%rd5], {%r4, %r5};"
        "ld.local.v4.b32 {%r6, %r7, %r8, %r9}, [%rd5]; st.global.v4.b32 [%rd4], {%r6, %r7, %r8, %r9};", [x, y]).check()
    assert (y.reshape(32, 4) == x.reshape(32, 4)[:, [2, 3, 0, 1]]).all()


def test_bytes_sign_extend() -> None:
    x = np.arange(-16, 16, dtype=np.int8)
    got = lanes("mov.u16 %d, %a0;", [x], "uint16")
    assert (got.view(np.int16) == x).all()


@pytest.mark.parametrize("op,kind,fn", [
    ("add", "u32", lambda v: v.sum()), ("max", "s32", lambda v: v.max()), ("min", "u32", lambda v: v.min()),
    ("and", "b32", np.bitwise_and.reduce), ("or", "b32", np.bitwise_or.reduce), ("xor", "b32", np.bitwise_xor.reduce)])
def test_atomics(op: str, kind: str, fn) -> None:  # type: ignore[no-untyped-def]
    v = RNG.integers(0, 1 << 20, 64).astype(np.uint32)
    cell = np.array([v[0]], np.uint32)
    run(f"mad.wide.u32 %rd3, %r1, 4, %rd2; ld.global.u32 %r2, [%rd3]; setp.eq.u32 %p1, %r1, 0; @%p1 bra E;"
        f"atom.relaxed.gpu.global.{op}.{kind} %r3, [%rd1], %r2;\nE:", [cell, v], 64).check()
    assert cell[0] == np.uint32(fn(v))


def test_atomic_cas_exch_float_and_shared() -> None:
    cell = np.zeros(4, np.uint32)
    run(".shared .align 4 .b32 s; setp.eq.u32 %p1, %r1, 0; @%p1 st.shared.u32 [s], 0; bar.sync 0;"
        "atom.shared.add.u32 %r2, [s], 1; atom.global.cas.b32 %r3, [%rd1], %r1, 100;"
        "red.global.add.f32 [%rd1+4], 0f3F800000; bar.sync 0; ld.shared.u32 %r4, [s]; @%p1 st.global.u32 [%rd1+8], %r4;"
        "atom.global.inc.u32 %r5, [%rd1+12], 9;", [cell]).check()
    assert cell[0] == 100 and cell.view(np.float32)[1] == 32.0 and cell[2] == 32 and cell[3] == 2


def test_half_atomics() -> None:
    cell = np.zeros(4, np.uint16)
    run("mov.b16 %h1, 0x3F80; red.relaxed.gpu.global.add.noftz.bf16 [%rd1], %h1; mov.b32 %r2, 0x3C003C00;"
        "red.relaxed.gpu.global.add.noftz.f16x2 [%rd1+4], %r2;", [cell]).check()
    assert cell[:1].view(ml_dtypes.bfloat16)[0] == 32 and (cell[2:].view(np.float16) == 32).all()


def test_ldmatrix_stmatrix() -> None:
    x = RNG.integers(0, 1 << 16, (32, 8), dtype=np.uint16)
    y, z = np.zeros((32, 8), np.uint16), np.zeros((32, 8), np.uint16)
    run(".shared .align 128 .b8 s[512]; mov.u32 %r2, s; mad.lo.u32 %r3, %r1, 16, %r2; mad.wide.u32 %rd4, %r1, 16, %rd1;"
        "ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd4]; st.shared.v4.u32 [%r3], {%r4, %r5, %r6, %r7}; bar.warp.sync -1;"
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r8, %r9, %r10, %r11}, [%r3];"
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r12, %r13, %r14, %r15}, [%r3];"
        "mad.wide.u32 %rd5, %r1, 16, %rd2; st.global.v4.u32 [%rd5], {%r8, %r9, %r10, %r11}; bar.warp.sync -1;"
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r3], {%r12, %r13, %r14, %r15}; bar.warp.sync -1;"
        "ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r3]; mad.wide.u32 %rd5, %r1, 16, %rd3;"
        "st.global.v4.u32 [%rd5], {%r4, %r5, %r6, %r7};", [x, y, z]).check()
    mats = x.reshape(4, 8, 4, 2)
    assert (y.reshape(8, 4, 4, 2) == mats.transpose(1, 2, 0, 3)).all()
    assert (z.reshape(4, 8, 8) == x.reshape(4, 8, 8).transpose(0, 2, 1)).all()


MMA = [("m16n8k16", "f32", "f16", np.float16), ("m16n8k16", "f32", "bf16", ml_dtypes.bfloat16),
       ("m16n8k8", "f32", "tf32", np.float32), ("m16n8k8", "f32", "f16", np.float16), ("m16n8k16", "f16", "f16", np.float16),
       ("m16n8k32", "s32", "s8", np.int8), ("m16n8k16", "s32", "u8", np.uint8)]


@pytest.mark.parametrize("shape,dtype,kind,element", MMA)
def test_mma_sync(shape: str, dtype: str, kind: str, element) -> None:  # type: ignore[no-untyped-def]
    """Fragments of the PTX manual: a register holds 32 / bits neighbouring k at chunk lane % 4 of row lane / 4."""
    depth = int(shape.split("k")[1])
    a, b = RNG.integers(0, 5, (16, depth)).astype(element), RNG.integers(0, 5, (8, depth)).astype(element)
    per = 4 // a.itemsize
    fa = np.ascontiguousarray(a.reshape(2, 8, depth // (4 * per), 4, per).transpose(1, 3, 2, 0, 4)).view(np.uint32)
    fb = np.ascontiguousarray(b.reshape(8, depth // (4 * per), 4, per).transpose(0, 2, 1, 3)).view(np.uint32)
    fa, fb = fa.reshape(32, -1).copy(), fb.reshape(32, -1).copy()
    na, nb, nd = fa.shape[1], fb.shape[1], 2 if dtype == "f16" else 4
    out = np.zeros((32, nd), np.uint32)
    cls, prefix = ("f32", "%f") if dtype == "f32" else ("b32", "%r2")
    body = ("mul.wide.u32 %rd9, %r1, " + str(4 * na) + "; add.u64 %rd4, %rd1, %rd9; mul.wide.u32 %rd9, %r1, " + str(4 * nb)
            + "; add.u64 %rd5, %rd2, %rd9; mul.wide.u32 %rd9, %r1, " + str(4 * nd) + "; add.u64 %rd6, %rd3, %rd9;")
    body += "".join(f"ld.global.u32 %r{10 + i}, [%rd4+{4 * i}];" for i in range(na))
    body += "".join(f"ld.global.u32 %r{30 + i}, [%rd5+{4 * i}];" for i in range(nb))
    regs = [f"{prefix}{i}" for i in range(nd)]
    body += "".join(f"mov.b32 {r}, 0;" if cls == "b32" else f"mov.f32 {r}, 0f00000000;" for r in regs)
    d = ", ".join(regs)
    listed = [", ".join(f"%r{base + i}" for i in range(n)) for base, n in ((10, na), (30, nb))]
    body += (f"mma.sync.aligned.{shape}.row.col.{dtype}.{kind}.{kind}.{dtype} {{{d}}}, {{{listed[0]}}}, {{{listed[1]}}}, {{{d}}};"
             * 2)
    body += "".join(f"st.global.b32 [%rd6+{4 * i}], {r};" if cls == "b32" else f"st.global.f32 [%rd6+{4 * i}], {r};"
                    for i, r in enumerate(regs))
    run(body, [fa, fb, out]).check()
    want = 2 * (a.astype(np.float64) @ b.astype(np.float64).T)
    kinds = {"f32": np.float32, "f16": np.float16, "s32": np.int32}
    values = out.view(kinds[dtype]).reshape(8, 4, 2, 2).transpose(2, 0, 1, 3).reshape(16, 8)
    assert (values == want).all()


@pytest.mark.parametrize("line,word", [("frobnicate.u32 %r1, %r2;", "frobnicate"), ("add.u77 %r1, %r2, %r3;", "add.u77"),
                                       ("add.u32 %r1, %r2;", "operands"), ("mov.u32 %r1, %nosuch;", "%nosuch"),
                                       ("bra NOWHERE;", "NOWHERE"), ("call foo;", "call")])
def test_unknown_text_names_line_and_instruction(line: str, word: str) -> None:
    text = kernel(line)
    number = text.split(line)[0].count("\n") + 1
    with pytest.raises(EmulatorError, match=f"(?s)line {number}.*{word}"):
        Program(text)


def test_out_of_bounds_and_misaligned() -> None:
    x = np.zeros(8, np.uint32)
    r = run("st.global.u32 [%rd1+32], 1;", [x])
    assert [f.kind for f in r.findings] == ["out-of-bounds"] and r.findings[0].ptx_line
    r = run("st.global.u32 [%rd1+2], 1;", [x])
    assert [f.kind for f in r.findings] == ["misaligned"]
    x.flags.writeable = False
    r = run("st.global.u32 [%rd1], 1;", [x])
    assert [f.kind for f in r.findings] == ["out-of-bounds"] and "read-only" in r.findings[0].message
    assert [f.kind for f in run("trap;", [x]).findings] == ["trap"]
