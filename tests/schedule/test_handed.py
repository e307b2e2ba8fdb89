"""Operands that a trip of a loop hands to the next one: which are, what is written for them, and that numbers stay."""
from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.ir import walk
from tilejit.ir.text import parse_function
from tilejit.ir.verify import verify
from tilejit.schedule.asyncify import asyncify
from tilejit.schedule.decide import decide

BF16 = ml_dtypes.bfloat16


@tilejit.kernel
def behind(a_desc, w_desc, out_desc, n, LOOPS: tl.constexpr, TURNED: tl.constexpr, HOW: tl.constexpr):
    """exp2(A W^T) W, or its transpose's, summed over blocks of A; the second product is a trip behind. HOW: who else
    reads what is carried, or how far behind it is read."""
    w = w_desc.load([0, 0])
    total = tl.zeros([64, 64], tl.float32)
    rest = tl.zeros([64, 64], tl.float32)
    last = tl.zeros([64, 64], tl.bfloat16)
    before = tl.zeros([64, 64], tl.bfloat16)
    half = tl.zeros([64, 64], tl.bfloat16)
    for _ in tl.range(LOOPS):
        for i in range(n):
            x = a_desc.load([i * 64, 0])
            e = tl.exp2(tl.dot(x, w.T)).to(tl.bfloat16)
            read = before if HOW == "far" else last
            total = tl.dot(read.T if TURNED else read, w, total)
            if HOW == "two":
                rest = tl.dot(half.T, w, rest)
            if HOW == "summed":
                rest += last
            before = last
            if HOW != "some" or i % 2 == 0:
                last = e
            if HOW == "two":
                half = (e * 0.5).to(tl.bfloat16)
    if HOW != "lost":
        total = tl.dot(last.T if TURNED else last, w, total)
    if HOW == "two":
        rest = tl.dot(half.T, w, rest)
    if HOW == "far":
        total = tl.dot(before.T if TURNED else before, w, total)
    out_desc.store([0, 0], total + rest)


def compiled(loops: int = 1, turned: bool = True, how: str = "", warps: int = 4) -> Any:
    a, out = "desc<bf16[64x64]>", "desc<fp32[64x64]>"
    return behind.compile(a, a, out, "int32", LOOPS=loops, TURNED=turned, HOW=how, num_warps=warps)


@pytest.mark.parametrize("loops", [1, 2])
def test_what_a_product_reads_a_trip_later_waits_in_shared_memory(loops: int) -> None:
    assert "is handed to the next trip in 2 x 8192 bytes" in compiled(loops).report()


@pytest.mark.parametrize("turned, how", [(True, "summed"), (True, "far"), (True, "lost"), (True, "some"), (False, "")])
def test_what_else_becomes_of_it_keeps_it_in_registers(turned: bool, how: str) -> None:
    """Something else reads it, it is read two trips later, what is written last never, it is not new in each trip, or
    products read it from registers."""
    assert "is handed" not in compiled(turned=turned, how=how).report()


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("loops, turned, how", [(1, True, ""), (2, False, ""), (1, True, "far"), (1, True, "some"),
                                                (2, True, "two")])
def test_the_same_numbers(target: str, loops: int, turned: bool, how: str) -> None:
    rng = np.random.default_rng(3)
    a, w = ((rng.standard_normal(s, np.float32) / 8).astype(BF16) for s in ((192, 64), (64, 64)))
    out = np.full((64, 64), np.nan, np.float32)
    descs = [tilejit.TensorDescriptor(x, x.shape, (64, 1), (64, 64)) for x in (a, w, out)]
    v, want, last = w.astype(np.float64), np.zeros((64, 64)), None
    for i, x in enumerate([*a.reshape(3, 64, 64)] * loops):
        if how != "some" or i % 2 == 0 or last is None:
            last = np.exp2(x.astype(np.float64) @ v.T).astype(BF16).astype(np.float64)
        want += (last.T if turned else last) @ v * (1.5 if how == "two" else 1)
    with tilejit.knobs(target=target):
        if target == "emulator":
            assert tilejit.check(behind, (1,), *descs, 3, LOOPS=loops, TURNED=turned, HOW=how, num_warps=8).ok
        behind[(1,)](*descs, 3, LOOPS=loops, TURNED=turned, HOW=how, num_warps=8)
    assert np.allclose(out, want, rtol=2e-2, atol=1e-2)


TEXT = """#l = <64x64 register=[[0,1],[8,0],[0,8],[0,16],[0,32]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[[16,0],[32,0]]>
kernel @k(%ad: desc<bf16[64x64]>, %wd: desc<bf16[64x64]>, %n: int32) {num_warps=4, report=[]} {
  %z = const {value=0, type=fp32[64x64]} : fp32[64x64, #l]
  %none = const {value=0, type=bf16[64x64]} : bf16[64x64, #l]
  %0 = const {value=0} : int32
  %1 = const {value=1} : int32
  %w = desc_load %wd, %0, %0 : bf16[64x64]
  %r, %last = for %0, %n, %1, %z, %none : fp32[64x64, #l], bf16[64x64, #l] {(%i: int32, %acc: fp32[64x64, #l], %d: bf16[64x64, #l])
    %x = desc_load %ad, %i, %0 : bf16[64x64]
    %s = dot %x, %w, %z : fp32[64x64, #l]
    %t = trans %d {order=(1, 0)} : bf16[64x64]
    %o = dot %t, %w, %acc : fp32[64x64, #l]
    %e = cast %s {dtype=bf16} : bf16[64x64, #l]
    yield %o, %e
  }
  %u = trans %last {order=(1, 0)} : bf16[64x64]
  %p = dot %u, %w, %r : fp32[64x64, #l]
  return
}
"""


def test_the_text() -> None:
    """Written where it is made, read where it was; the loop carries slots and parities."""
    fn = asyncify(decide(parse_function(TEXT)))
    fn.attrs["uncounted"] = True
    verify(fn)
    loop = next(op for op in fn.body.ops if op.name == "for")
    found = [op.name for op in loop.regions[0].ops if op.name in ("mbar_wait", "mbar_arrive", "local_store", "dot_async")]
    assert found == ["dot_async", "mbar_wait", "dot_async", "mbar_wait", "local_store", "mbar_arrive"]
    assert [v.name for v in loop.results[1:]] == ["o_a_next", "o_a_next_parity", "o_a_slot", "o_a_slot_parity"]
    assert sum(op.name == "local_store" for op in walk(fn.body)) == 2


@pytest.mark.parametrize("between, waits", [("", 2), ("%j = for %0, %n, %1, %0 : int32 {(%k: int32, %c: int32)\n yield %k\n }", 3)])
def test_a_product_that_adds_to_another_ones_sums_does_not_wait_for_it(between: str, waits: int) -> None:
    """But where a loop is between."""
    text = TEXT.replace("    %t = trans", f"    {between}\n    %more = dot %x, %w, %s : fp32[64x64, #l]\n    %t = trans")
    fn = asyncify(decide(parse_function(text.replace("cast %s", "cast %more"))))
    loop = next(op for op in fn.body.ops if op.name == "for")
    assert sum(op.name == "dot_wait" for op in loop.regions[0].ops) == waits
