"""Operands of products that a loop does not change are written to shared memory once."""
import importlib

import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit import passes
from tilejit.frontend import Const, KernelSource, Param, build
from tilejit.ir import enclosing, walk
from tilejit.ir.types import Ptr, fp16, fp32, int32
from tilejit.ir.verify import verify
from tilejit.schedule import run as schedule

ALLOCATE = importlib.import_module("tilejit.schedule.allocate")
OPS = ("role_sync", "local_store", "fence_async", "dot_async", "for")
ONCE = ["role_sync", "local_store", "fence_async", "role_sync"]


@tilejit.kernel
def one_loop(a, b, c, n, CHANGES: tl.constexpr, LOOPS: tl.constexpr, DEEP: tl.constexpr):
    """A block of rows, halved, times block after block of columns: in one loop or two, or in a loop in a loop."""
    i = tl.arange(0, 64)
    at = i[:, None] * 64 + i[None, :]
    left = (tl.load(a + at).to(tl.float32) * 0.5).to(tl.float16)
    total = tl.zeros((64, 64), tl.float32)
    for _ in tl.static_range(LOOPS):
        for j in range(n):
            for k in range(DEEP):
                x = (left.to(tl.float32) * j).to(tl.float16) if CHANGES else left
                total += tl.exp2(tl.dot(x, tl.load(b + j * 4096 + at)))
    tl.store(c + at, total)


def written(CHANGES=False, LOOPS=1, DEEP=1):
    """What writes operands and multiplies, by loops around it, and the lines of the report about it."""
    types = {"a": Param(Ptr(fp16), 16), "b": Param(Ptr(fp16), 16), "c": Param(Ptr(fp32), 16), "n": Param(int32),
             "CHANGES": Const(CHANGES), "LOOPS": Const(LOOPS), "DEEP": Const(DEEP)}
    seen = {}

    def see(name, fn):
        verify(fn)
        return seen.setdefault(name, fn)

    schedule(passes.run(build(KernelSource(one_loop.fn), types, {"num_warps": 4})), see)
    fn = seen["asyncify"]
    lines = [x for x in fn.attrs["report"] if x.kind == "operand_kept"]
    return [(len([*enclosing(op)]), op.name) for op in walk(fn.body) if op.name in OPS], len(lines)


def test_an_operand_that_does_not_change():
    ops, lines = written()
    assert ops[:4] == [(0, name) for name in ONCE] and "local_store" not in [name for _, name in ops[4:]] and lines == 1


def test_the_same_operand_of_two_loops():
    ops, lines = written(LOOPS=2)
    names = [name for _, name in ops]
    assert names[:4] == ONCE and names.count("dot_async") == 2 and names.count("local_store") == 1 and lines == 1


def test_through_two_loops():
    ops, lines = written(DEEP=3)
    assert ops[:4] == [(0, name) for name in ONCE] and (2, "dot_async") in ops and lines == 1


def test_an_operand_that_changes():
    ops, lines = written(CHANGES=True)
    assert (1, "local_store") in ops and (0, "local_store") not in ops and lines == 0


@tilejit.kernel
def products(a, b, c, n, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Two blocks of rows, scaled, times block after block of columns, whose results add up."""
    row, col, k = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :], tl.arange(0, K)
    left = (tl.load(a + row * K + k[None, :]).to(tl.float32) * 0.5).to(tl.float16)
    other = (left.to(tl.float32) * 0.5).to(tl.float16)
    total = tl.zeros((M, N), tl.float32)
    for i in range(n):
        x = tl.load(b + i * K * N + k[:, None] * N + col)
        total += tl.exp2(tl.dot(left, x))
        total += tl.exp2(tl.dot(other, x))
    tl.store(c + row * N + col, total)


def scheduled(**options):
    args = {"a": Param(Ptr(fp16), 16), "b": Param(Ptr(fp16), 16), "c": Param(Ptr(fp32), 16), "n": Param(int32), "M": Const(64),
            "N": Const(64), "K": Const(64)}
    return schedule(passes.run(build(KernelSource(products.fn), args, {"num_warps": 4, **options})))


def test_where_there_is_no_room_it_is_written_in_every_iteration(monkeypatch):
    def writes(kilobytes):
        monkeypatch.setattr(ALLOCATE, "limit", lambda fn: kilobytes * 1024)
        fn = scheduled(num_stages=3)
        assert fn.attrs["shared_bytes"] <= kilobytes * 1024
        return [op.parent is fn.body for op in walk(fn.body) if op.name == "local_store"]

    assert writes(100) == [True, True] and writes(36) == [False, False]


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
def test_the_same_results(target):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) / 8 for s in ((64, 64), (3, 64, 64)))
    c = np.zeros((64, 64), np.float32)
    with tilejit.knobs(target=target):
        products[(1,)](a, b, c, 3, M=64, N=64, K=64, num_warps=4)
    parts = [(a.astype(np.float32) * f).astype(np.float16).astype(np.float64) for f in (0.5, 0.25)]
    assert np.allclose(c, sum(np.exp2(part @ x.astype(np.float64)) for x in b for part in parts), rtol=1e-3)


def test_no_schedule_of_the_emulator_finds_anything():
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(s).astype(np.float16) / 8 for s in ((64, 64), (3, 64, 64)))
    with tilejit.knobs(target="emulator"):
        assert tilejit.check(products, (1,), a, b, np.zeros((64, 64), np.float32), 3, M=64, N=64, K=64, num_warps=4).ok


@tilejit.kernel
def changing(a, b, c, n):
    """Blocks of both operands change on their way from memory to the product."""
    i = tl.arange(0, 64)
    at = i[:, None] * 64 + i[None, :]
    total = tl.zeros((64, 64), tl.float32)
    for j in range(n):
        x, y = tl.load(a + j * 4096 + at), tl.load(b + j * 4096 + at)
        total = tl.dot((x.to(tl.float32) * 0.5).to(tl.float16), tl.exp2(y.to(tl.float32)).to(tl.float16), total * 0.5)
    tl.store(c + at, total)


def test_two_operands_share_meetings_behind_the_loads_before():
    types = {"a": Param(Ptr(fp16), 16), "b": Param(Ptr(fp16), 16), "c": Param(Ptr(fp32), 16), "n": Param(int32)}
    fn = schedule(passes.run(build(KernelSource(changing.fn), types, {"num_warps": 4, "num_stages": 1})))
    loop = next(op for op in walk(fn.body) if op.name == "for")
    found = [op.name for op in loop.regions[0].ops if op.name in ("load", "exp2", *OPS)]
    stores = ["local_store", "local_store", "fence_async", "role_sync", "dot_async"]
    assert found in (["load", "load", "role_sync", "exp2", *stores], ["load", "load", "role_sync", stores[0], "exp2", *stores[1:]])


def test_shared_meetings_give_the_same_results():
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal((3, 64, 64)).astype(np.float16) / 8 for _ in range(2))
    c, want = np.zeros((64, 64), np.float32), np.zeros((64, 64))
    for x, y in zip(a, b):
        x, y = (x.astype(np.float32) * 0.5).astype(np.float16), np.exp2(y.astype(np.float32)).astype(np.float16)
        want = want * 0.5 + x.astype(np.float64) @ y.astype(np.float64)
    with tilejit.knobs(target="emulator"):
        assert tilejit.check(changing, (1,), a, b, c, 3, num_warps=4, num_stages=1).ok
        changing[(1,)](a, b, c, 3, num_warps=4, num_stages=1)
    assert np.allclose(c, want, rtol=1e-3, atol=1e-3)
