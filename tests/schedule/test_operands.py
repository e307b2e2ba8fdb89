"""Operands of products that a loop does not change are written to shared memory once."""
import importlib

import numpy as np
import pytest
from test_sink_waits import HALF, HEAD

import tilejit
import tilejit.language as tl
from tilejit import passes
from tilejit.frontend import Const, KernelSource, Param, build
from tilejit.ir import walk
from tilejit.ir.text import parse_function
from tilejit.ir.types import Ptr, fp16, fp32, int32
from tilejit.schedule import run as schedule
from tilejit.schedule.operands import keep_operands

ALLOCATE = importlib.import_module("tilejit.schedule.allocate")
BUFFER = f"buffer<1x{HALF}, swizzle=128, order=1x0>"
WRITE = ["%i{0} = const {{value=0}} : int32", "%v{0} = view %{0}, %i{0}", "role_sync", "local_store %v{0}, {1}", "fence_async",
         "role_sync", "%p{0} = pend %z", "%x{0} = dot_async %v{0}, %b, %p{0}", "%w{0} = dot_wait %x{0}", "%u{0} = exp2 %w{0}"]
NAMES = ("role_sync", "local_store", "fence_async", "dot_async", "for")


def allocated(*lines: str) -> list[str]:
    """The buffers that are left."""
    return [op.attrs["name"] for op in moved(*lines).body.ops if op.name == "alloc" and op.attrs["name"] in ("o", "q")]


def kept(*lines: str) -> list[str]:
    return [f"{'  ' * (op.parent is not fn.body)}{op.name}" for fn in [moved(*lines)] for op in walk(fn.body)
            if op.name in NAMES]


def moved(*lines: str):
    allocs = [f'%{name} = alloc {{name="{name}"}} : {BUFFER}' for name in ("o", "q")]
    text = HEAD + "\n".join(f"  {x}" for x in (*allocs, *lines)) + "\n  tma_load %a, %0, %full, %d, %0, %0\n  return\n}\n"
    report = []
    fn = keep_operands(parse_function(text), report)
    assert len(report) == sum(op.name == "local_store" and op.parent is fn.body for op in walk(fn.body))
    return fn


def written(name: str, value: str) -> list[str]:
    return [line.format(name, value) for line in WRITE]


VALUE = f"%h = const {{value=1.0, type={HALF}}} : {HALF}"
LOOP = "for %0, %n, %1 {(%i: int32)"
ONCE = ["role_sync", "local_store", "fence_async", "role_sync"]


def test_an_operand_that_does_not_change():
    assert kept(VALUE, LOOP, *written("o", "%h"), "yield", "}") == [*ONCE, "for", "  dot_async"]


def test_the_same_operand_of_two_loops():
    found = kept(VALUE, LOOP, *written("o", "%h"), "yield", "}", LOOP.replace("%i", "%j"), *written("q", "%h"), "yield", "}")
    assert found == [*ONCE, "for", "  dot_async", "for", "  dot_async"]
    assert allocated(VALUE, LOOP, *written("o", "%h"), "yield", "}", LOOP.replace("%i", "%j"), *written("q", "%h"), "yield",
                     "}") == ["o"]


def test_through_two_loops():
    found = kept(VALUE, LOOP, LOOP.replace("%i", "%j"), *written("o", "%h"), "yield", "}", "yield", "}")
    assert found == [*ONCE, "for", "  for", "  dot_async"]


def test_an_operand_that_changes():
    changing = f"%g = const {{value=1.0, type={HALF}}} : {HALF}"
    assert kept(LOOP, changing, *written("o", "%g"), "yield", "}") == ["for", *(f"  {x}" for x in ONCE), "  dot_async"]


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
