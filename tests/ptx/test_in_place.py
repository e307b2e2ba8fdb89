"""Sums of mma.sync are written where a loop carries them, if nothing reads the present ones any more; what a branch
hands on as it was stays where it is."""
from types import SimpleNamespace

import numpy as np
import pytest
from hand_built import Kernel, same

import tilejit
import tilejit.language as tl
from tilejit.frontend import Param
from tilejit.ir import types as T
from tilejit.ir.types import Ptr, fp32, int32
from tilejit.ptx.build import Ptx
from tilejit.ptx.in_place import Body
from tilejit.runtime.compile import emit, schedule, tile_ir


@tilejit.kernel
def rescaled(x, out, n):
    """acc = acc / 2 + x x, n times."""
    i = tl.arange(0, 16)
    a = tl.load(x + i[:, None] * 16 + i[None, :])
    acc = tl.zeros((16, 16), tl.float32)
    for _ in range(n):
        acc = tl.dot(a, a, acc * 0.5)
    tl.store(out + i[:, None] * 16 + i[None, :], acc)


@tilejit.kernel
def compared(x, out, n):
    """The same, and the sum of (new - old)."""
    i = tl.arange(0, 16)
    a = tl.load(x + i[:, None] * 16 + i[None, :])
    acc, moved = tl.zeros((16, 16), tl.float32), tl.zeros((16, 16), tl.float32)
    for _ in range(n):
        new = tl.dot(a, a, acc * 0.5)
        moved += new - acc
        acc = new
    tl.store(out + i[:, None] * 16 + i[None, :], moved)


@pytest.mark.parametrize("kernel, copies", [(rescaled, 0), (compared, 8)])
def test_sums_are_copied_only_where_they_are_read_behind(kernel, copies):
    args = {"x": Param(Ptr(tl.float16), 16), "out": Param(Ptr(fp32), 16), "n": Param(int32)}
    text, _ = emit(schedule(tile_ir(kernel.source, args, {"num_warps": 1})))
    begin = text.index("$loop_")
    loop = text[begin:text.index("bra $loop_", begin)]
    assert "mma.sync" in loop
    assert loop.count("mov.f32 %f") == copies + 8 * (kernel is compared)        # `moved` is no product's

    x = (np.arange(256) % 5 - 2).astype(np.float16).reshape(16, 16)
    out, meant = np.zeros((16, 16), np.float32), np.zeros((16, 16), np.float32)
    kernel[(1,)](x, out, 5, num_warps=1)
    for _ in range(5):
        meant = meant / 2 + x.astype(np.float32) @ x.astype(np.float32)
    assert np.array_equal(out, meant)


MMA = "mma.sync.aligned.m16n8k16 {%f10, %f11}, {%r2}, {%r3}, {%f20, %f21};"


@pytest.mark.parametrize("lines, renamed", [
    (["mul.f32 %f20, %f1, %f2;", MMA], {"%f1"}),
    ([MMA, "mul.f32 %f20, %f1, %f2;"], set()),
    (["$again:", "mul.f32 %f20, %f1, %f2;", MMA, "@%p1 bra $again;"], set()),
    (["{ again: mul.f32 %f20, %f1, %f2;", MMA, "@%p1 bra again; }"], set()),
    (["@%p1 bra $past;", "mul.f32 %f20, %f1, %f2;", "$past:", MMA], {"%f1"}),
    (["mul.f32 %f20, %f1, %f2;", "add.f32 %f10, %f20, %f2;"], set()),
    (["wgmma.mma_async.sync.aligned.m64n8k8 {%f20}, {%f1}, %rd1, %p1, 1, 1;", MMA], set())],
    ids=["behind", "before", "in a loop", "in an author's loop", "past a branch", "no product", "in flight"])
def test_which_registers_are_renamed(lines, renamed):
    """%f10 is the next of %f1; %f11, also of the product, is that of two."""
    e = SimpleNamespace(p=Ptx(), role=SimpleNamespace(known=SimpleNamespace(mark=0)))
    e.p.counts["f32"] = 10
    body = Body(e)
    e.p.lines += lines
    assert body.settle([("%f1", "%f10"), ("%f3", "%f11"), ("%f4", "%f11")]) == renamed
    assert ("%f10" in "\n".join(e.p.lines)) == (not renamed)


@pytest.mark.parametrize("then, behind, moves", [
    (lambda k, u, v: (k("add", u, v), v), None, 1),             # one new tile
    (lambda k, u, v: (v, u), None, 4),                          # each saved first
    (lambda k, u, v: (k("add", u, v), u), None, 3),             # one is saved
    (lambda k, u, v: (k("add", u, v), v), lambda k, u: u, 4),
    (lambda k, u, v: (k("add", u, v), v), lambda k, u: k.tile(
        "reshape", u, layout=u.type.layout.reshape((64, 1)).reshape((64,)), shape=(64,)), 4)],
    ids=["new", "swapped", "turned", "read behind", "by another name"])
def test_what_a_branch_hands_on_stays_where_it_is(then, behind, moves):
    """Of two tiles that a loop carries and a branch changes in every other round."""
    k = Kernel(scalars={"n": (5, T.int32)}, x=(np.arange(64, dtype=np.float32), T.fp32),
               **{name: (np.zeros(64, np.float32), T.fp32) for name in ("u", "v", "w")})
    start = k.load("x", k.layout((64,), 2))

    def region(i, u, v, w):
        odd = k("cmp", k("and", i, k.int(1)), k.int(1), pred="eq")
        branches = [k.region([], lambda: k.op("yield", *then(k, u, v))), k.region([], lambda: k.op("yield", u, v))]
        a, b = k.op("if", odd, regions=branches).results
        k.op("yield", a, b, k("sub", a, behind(k, u)) if behind else w)

    loop = k.op("for", k.int(0), k.args["n"], k.int(1), start, k("add", start, start), start,
                regions=[k.region([T.int32, *[start.type] * 3], region)])
    for name, v in zip("uvw", loop.results):
        k.store(name, v)
    same(*k.run())
    text = k.ptx()[0]
    body = text[text.index("$loop_"):text.index("bra $loop_", text.index("$loop_"))]
    assert body.count("mov.f32 %f") == moves * 2
