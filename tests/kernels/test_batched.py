"""Batched products by clusters and by groups in turn: blocks of rank 3, of which CTAs and warpgroups take rows."""
from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from product_launches import compiled, info
from references import StandIn

import tilejit
from tilejit.kernels import batched, launches
from tilejit.kernels.batched import batched_matmul
from tilejit.kernels.planning import Plan
from tilejit.kernels.problem import call_of, facts
from tilejit.kernels.routes import Route, shortest
from tilejit.kernels.way import Way

BF16 = ml_dtypes.bfloat16


def normal(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(BF16)


@pytest.mark.parametrize("t, b_rows, options", [
    (Way(256, 64, 8, 2), False, {}), (Way(128, 128, 4, 2), True, {}), (Way(256, 64, 4, 4), False, {}),
    (Way(128, 128, 8), True, {}), (Way(128, 128, 8), False, {"store_role": True}),
    (Way(128, 64, 4, 2), False, {"store_role": True})],
    ids=lambda x: str(x) if isinstance(x, Way) else None)
def test_rows_of_blocks(monkeypatch, t, b_rows, options):
    """Two tiles of rows and columns, the last cut short, in two batches: none writes into the next one's. Under the
    sanitizer, in the usual order and in a random one."""
    def checked(grid, *args, **kwargs):
        tilejit.check(kernel, grid, *args, seeds=[0], **{**kwargs, **options, "num_stages": 2}).check()

    monkeypatch.setattr(tilejit, "multiprocessors", lambda *_: 4)
    kernel = launches.product_kernel
    monkeypatch.setattr(launches, "product_kernel", StandIn(checked))
    a, b = normal(2, t.m + 40, 72), normal(2, 72, t.n + 24)
    held = b if b_rows else np.ascontiguousarray(b.transpose(0, 2, 1)).transpose(0, 2, 1)
    out = np.full((2, t.m + 40, t.n + 24), np.nan, BF16)
    batched_matmul(a, held, tiles=t, out=out)
    want = a.astype(np.float64) @ b.astype(np.float64)
    assert np.linalg.norm(out.astype(np.float64) - want) <= 8e-3 * np.linalg.norm(want)


@pytest.mark.parametrize("target", ["emulator", "evaluator"])
@pytest.mark.parametrize("units, t", [((0, 16), Way(64, 16, 4, together=2)), ((0, 16), Way(64, 32, 4, k_bytes=256)),
                                      ((16, 0), Way(128, 32, 8)), ((16, 16), Way(64, 16, 4)), ((0, 16), Way(64, 32, 4, swap=True))],
                         ids=str)
def test_threads_read_rows_shorter_than_lines(monkeypatch, units, t, target):
    """Of each matrix of a stack, of which one's serves all; rows across K, what is left of it, tiles cut short. No
    descriptor stands in for what threads read."""
    def route(call, tiles=None):
        p = facts(*call[:3], units=units, batches=3)
        return iter([Route(call._replace(problem=p), Plan(t, 0.0), 0.0)])

    monkeypatch.setattr(batched, "_routes", route)
    of_a, of_b = ((3, 200, 24), (1, 200, 16)) if units[0] else ((3, 90, 200), (3, 200, 16))
    a, b = normal(*of_a).transpose(0, 2, 1) if units[0] else normal(*of_a), normal(*of_b)
    out = np.full((3, a.shape[1], 16), np.nan, BF16)
    with tilejit.knobs(target=target, arch="sm_90a"):
        batched_matmul(a, b, out=out)
        (launch,) = batched._work(*([(*map(tilejit.array_info, (a, b)), None, tilejit.array_info(out))]), None, None, 132, None).launches
    want = a.astype(np.float64) @ b.astype(np.float64)
    assert np.linalg.norm(out.astype(np.float64) - want) <= 8e-3 * np.linalg.norm(want)
    text = compiled(launch, {0: "*bf16:16", 1: "*bf16:16"}).ptx
    assert "cp.async.cg" in text and ("cp.async.bulk.tensor.3d.shared" in text) is not all(units)


def test_few_columns_are_read_by_threads():
    """Of 8 columns, row-major, rows are a part of a line each."""
    def units(n):
        infos = (info("bfloat16", *x) for x in ((8, 591, 2064), (8, 2064, n), (n,), (8, 591, n)))
        call = call_of("test", tuple(infos), None, 132, ranks=(3, 3))
        return shortest(batched._routes(call._replace(problem=replace(call.problem, batches=8)))).call.problem.units

    found = [units(n) for n in (8, 128)]
    assert found == [(0, 16), (0, 0)]


def test_the_chip_decides_anew(monkeypatch):
    """Rows that are ragged are read by pairs of CTAs; where clusters are lacking a problem that was seen takes single ones."""
    found = []
    monkeypatch.setattr(launches, "product_kernel", StandIn(lambda grid, *args, **options: found.append(options.get("num_ctas", 1))))
    a, b = np.zeros((32, 1000, 1000), BF16), np.zeros((32, 1000, 1000), BF16)
    for arch in ("sm_90a", "sm_80"):
        with tilejit.knobs(arch=arch):
            batched_matmul(a, b, out=a)
    assert found == [2, 1]


def test_warpgroups_store_their_own_rows():
    """As with matrices: no meeting of all warps for each piece of a tile."""
    infos = (info("bfloat16", 2, 256, 256), info("bfloat16", 2, 256, 512), info("bfloat16", 512), info("bfloat16", 2, 256, 512))
    (launch,) = batched._work(infos, None, Way(128, 256, 8), 132, None).launches
    kernel = compiled(launch, {2: "*bf16"})
    assert "every warpgroup its own rows" in kernel.report()
