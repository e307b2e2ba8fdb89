"""The timeline's clock: what waits for what, and what each unit has to do."""
from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from ptx_programs import kernel, pointer

from tilejit.emulator import Program, Rates
from tilejit.emulator.replay import Replay, Span, merged
from tilejit.emulator.timeline import Gate, Recorder, shape_of, stages

START = "mov.u32 %r1, %tid.x; mov.u32 %r2, bars; shr.u32 %r3, %r1, 5; setp.ne.u32 %p1, %r1, 0;"
BAR = ".shared .align 8 .b8 bars[64];\n"


def record(body: str, threads: int = 64, grid: int = 1, ctas: int = 8) -> tuple[Recorder, list[Span]]:
    out = np.zeros(64, np.uint32)
    recorder = Recorder(ctas)
    program = Program(kernel(START + body, [".param .u64 y"], BAR))
    program.launch((grid,), threads, [pointer(out)], memory=[out], listener=recorder)
    return recorder, Replay(recorder, Rates()).run()


def test_instructions_take_their_time_on_every_warp() -> None:
    recorder, spans = record("add.u32 %r4, %r1, 1; add.u32 %r4, %r4, 1;", threads=96)
    count = sum(a.instructions for a in recorder.warps[0, 1])
    assert count >= 6 and [(s.lane, s.start, s.end) for s in spans] == [(w, 0, 2 * count) for w in range(3)]


def test_a_named_barrier_holds_the_early_warp() -> None:
    """Warp 1 counts to 1000 first: warp 0 waits from its arrival to warp 1's, and both go on together."""
    _, spans = record("setp.eq.u32 %p2, %r3, 0; @%p2 bra J; mov.u32 %r4, 0;\nL: add.u32 %r4, %r4, 1; setp.lt.u32 %p3, %r4, 1000;"
                      "@%p3 bra L;\nJ: bar.sync 0;")
    early, late = ([s for s in spans if s.kind == "wait" and s.lane == lane] for lane in (0, 1))
    assert [s.name for s in early + late] == ["barrier 0", "barrier 0"] and early[0].start < 100
    assert early[0].end == late[0].end == late[0].start + Rates().barrier > 3000 * 2


def test_a_wait_that_never_ends_lasts_to_the_end_of_the_picture() -> None:
    recorder, spans = record("@%p1 bra I; mbarrier.init.shared.b64 [%r2], 5;\nI: bar.sync 0;\n"
                             "W: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra W;")
    stuck = [s for s in spans if s.name.endswith("for ever")]
    assert {s.lane for s in stuck} == {0, 1} and len({s.end for s in stuck}) == 1
    assert all(s.kind == "wait" and s.line for s in stuck)


def test_only_the_first_ctas_are_kept() -> None:
    recorder, spans = record("bar.sync 0;", grid=5, ctas=2)
    assert {s.cta for s in spans} == {0, 1} == {w.cta for w in recorder.warps}


def test_shapes_and_stages_are_read_from_the_text() -> None:
    assert shape_of("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {...}, %rd1, %rd2, 1, 1, 1, 0, 0") == (64 * 256 * 16, 16)
    assert shape_of("wgmma.mma_async.sync.aligned.m64n8k32.f16.e4m3.e5m2") == (64 * 8 * 32, 8)
    assert shape_of("wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32")[1] == 32
    names = {(0, 8): "ring.full[3]", (0, 16): "once", (1, 0): "mbarrier 0x0"}
    assert stages(names, [(0, 16), (1, 0)]) == {(0, 8): 3, (0, 16): 0, (1, 0): 0}


@pytest.mark.parametrize("type_, clocks", (("bf16", 128), ("e4m3", 64), ("tf32", 256)))
def test_a_product_takes_as_long_as_the_tensor_core_needs(type_: str, clocks: int) -> None:
    from tilejit.emulator.timeline import Op

    macs, width = shape_of(f".m64n256k16.f32.{type_}.{type_} ")
    assert Rates().product(Op("wgmma", 0, 0, 0, macs=macs, width=width)) == clocks


def test_neighbours_that_say_the_same_are_one() -> None:
    run = [Span(0, 0, 0, 2, "run", "run"), Span(0, 0, 2, 5, "run", "run"), Span(0, 0, 6, 7, "run", "run")]
    waits = [Span(0, 1, 0, 2, "wait", "x"), Span(0, 1, 2, 5, "wait", "x")]
    assert [(s.lane, s.start, s.end) for s in sorted(merged(run + waits), key=lambda s: (s.lane, s.start))] == [
        (0, 0, 5), (0, 6, 7), (1, 0, 2), (1, 2, 5)]


def gemm(name: str, m: int, n: int, k: int, ctas: int) -> list[Span]:
    """The spans of a product of the test data: D = A @ B^T, persistent, a producer and two consumer warpgroups."""
    import ml_dtypes
    from ptx_programs import u32

    from tilejit.emulator import encode_tensor_map

    text = (Path(__file__).parent / "data" / f"gemm_{name}.ptx").read_text()
    bm, bn, bk, cluster, shared = map(int, re.findall(r"\d+", text.split("\n")[0]))
    a, b = (np.ones(s, ml_dtypes.bfloat16) for s in ((m, k), (n, k)))
    d = np.zeros((m, n), ml_dtypes.bfloat16)
    maps = [encode_tensor_map(x.ctypes.data, "bf16", x.shape, (x.shape[1], 1), box, 128)
            for x, box in ((a, (bm, bk)), (b, (bn // cluster, bk)), (d, (64, 64)))]
    recorder = Recorder()
    Program(text).launch((ctas,), 384, [*maps, u32(m), u32(n), u32(k)], shared_bytes=shared, cluster=(cluster, 1, 1),
                         memory=[a, b, d], listener=recorder).check()
    spans = Replay(recorder, Rates()).run()
    assert all(isinstance(g, Gate) for g in recorder.needs) and all(s.end > s.start >= 0 for s in spans)
    return spans


def lane(spans: list[Span], cta: int, name: int | str) -> list[Span]:
    return [s for s in spans if (s.cta, s.lane) == (cta, name)]


def bytes_of(spans: list[Span]) -> int:
    return sum(int(s.name.split()[-2]) for s in spans)


def test_a_foreign_kernel_with_roles_copies_and_stores() -> None:
    """The cooperative product: two k blocks through TMA, eight stores, 16 wgmmas."""
    m, n, k = 128, 256, 128
    spans = gemm("cooperative", m, n, k, 1)
    loads, stores, products = (lane(spans, 0, unit) for unit in ("load", "store", "tensor core"))
    assert bytes_of(loads) == (m + n) * k * 2 and len(loads) == 2
    assert bytes_of(stores) == m * n * 2 and len(stores) == 8
    assert sum(s.end - s.start for s in products) == m * n * k // Rates().macs
    arrival = {s.stage: s.end for s in loads}
    assert all(p.start >= arrival[p.stage] for p in products) and {p.stage for p in products} == {0, 1}
    assert min(s.start for s in stores) > max(p.end for p in products if p.stage == 0)
    assert any(s.kind == "epilogue" for s in spans)


def test_ping_pong_hides_its_epilogues() -> None:
    """One CTA, four tiles: while a consumer is in its epilogue, the tensor cores work for the other one."""
    spans = gemm("pingpong", 256, 256, 320, 1)
    products = lane(spans, 0, "tensor core")
    busy = sum(p.end - p.start for p in products) / (products[-1].end - products[0].start)
    assert busy > 0.9 and {p.stage for p in products} == set(range(5))
    for warp in (4, 8):
        first = next(s for s in lane(spans, 0, warp) if s.kind == "epilogue")
        assert any(p.start <= first.start < p.end or first.start <= p.start < first.end for p in products)


def test_a_multicast_copy_fills_the_slots_of_every_cta() -> None:
    spans = gemm("cluster2", 256, 256, 192, 2)
    for cta in (0, 1):
        loads = lane(spans, cta, "load")
        assert len(loads) == 3 and bytes_of(loads) == (128 + 256) * 192 * 2
    assert any(s.name == "cluster barrier" for s in spans)
