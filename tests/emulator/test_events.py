"""Listeners hear what happens, in order, and change nothing."""
from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from ptx_programs import kernel, pointer, u32

from tilejit.emulator import Listener, Program, encode_tensor_map

DATA = Path(__file__).parent / "data"


class Recorder(Listener):
    """Keeps (event, arguments)."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[str, tuple[Any, ...]]] = []

    def __getattribute__(self, name: str) -> Any:
        if callable(Listener.__dict__.get(name)) and not name.startswith("_"):
            return lambda *args: self.log.append((name, args))
        return super().__getattribute__(name)

    def of(self, name: str) -> list[tuple[Any, ...]]:
        """The arguments of every event of a name."""
        return [args for event, args in self.log if event == name]


def gemm(listener: Listener | None) -> np.ndarray:
    m, n, k = 128, 256, 128
    a, b = (np.ones(shape, ml_dtypes.bfloat16) for shape in ((m, k), (n, k)))
    d = np.zeros((m, n), ml_dtypes.bfloat16)
    maps = [encode_tensor_map(x.ctypes.data, "bf16", x.shape, (x.shape[1], 1), box, 128)
            for x, box in ((a, (128, 64)), (b, (256, 64)), (d, (64, 64)))]
    text = (DATA / "gemm_cooperative.ptx").read_text()
    Program(text).launch((1,), 384, [*maps, u32(m), u32(n), u32(k)], shared_bytes=int(text.split("\n")[0].split()[-1]),
                         memory=[a, b, d], listener=listener).check()
    return d


def test_a_matrix_product_tells_its_story() -> None:
    r = Recorder()
    assert np.array_equal(gemm(r), gemm(None))
    counts = Counter(name for name, _ in r.log)
    assert not counts["uninitialised"] and not counts["register_touch"] and not counts["diverged"]
    kinds = Counter(args[1] for args in r.of("issue"))
    assert kinds == {"tma_load": 4, "wgmma": 2 * 2 * 4, "tma_store": 8}
    assert counts["complete"] == counts["issue"] and counts["mbarrier_complete_tx"] == 4
    assert counts["warp_exit"] == 12 and counts["set_registers"] == 12 and counts["source_read"] == 8
    assert sum(args[6] * len(args[5]) for args in r.of("access") if args[3] == "shared") == 128 * 256 * 2
    written = sum(args[5] * len(args[4]) for args in r.of("async_access") if args[1:3] == ("write", "shared"))
    assert written == (128 + 256) * 128 * 2


def test_an_operation_is_issued_used_and_completed_in_order() -> None:
    r = Recorder()
    gemm(r)
    first = next(args[0] for args in r.of("issue") if args[1] == "tma_load")
    mine = [name for name, args in r.log if name in ("issue", "async_access", "complete", "mbarrier_complete_tx")
            and args[0] == first]
    assert mine == ["issue", "async_access", "async_access", "complete", "mbarrier_complete_tx"]


def test_registers_read_early() -> None:
    """Reading a register that nothing has written; reading an accumulator that is in flight."""
    out = np.zeros(128, np.uint32)
    wgmma = ("mov.u32 %r2, smem; shr.u32 %r2, %r2, 4; cvt.u64.u32 %rd2, %r2; or.b64 %rd2, %rd2, 0x4000004000010000;"
             "wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %rd2, %rd2, 0, "
             "1, 1, 0, 0; wgmma.commit_group.sync.aligned;")
    wait = "wgmma.wait_group.sync.aligned 0;"
    store = "ld.param.u64 %rd1, [y]; st.global.f32 [%rd1], %f0;"
    for body, event in ((f"add.u32 %r3, %r9, 1; {wgmma} {wait} {store}", "uninitialised"),
                        (f"{wgmma} {store} {wait}", "register_touch"), (f"{wgmma} {wait} {store}", "")):
        r = Recorder()
        text = kernel(body, [".param .u64 y"], ".extern .shared .align 1024 .b8 smem[];", ".maxntid 128, 1, 1")
        Program(text).launch((1,), 128, [pointer(out)], shared_bytes=8192, memory=[out], listener=r).check()
        heard = {name for name, _ in r.log} & {"uninitialised", "register_touch"}
        assert heard == ({event} if event else set())


def test_several_listeners_hear_the_same() -> None:
    class Finder(Recorder):
        findings = ()

        def __init__(self, name: str) -> None:
            super().__init__()
            self.findings = (name,)  # type: ignore[assignment]

    first, second = Finder("a"), Finder("b")
    out = np.zeros(1, np.uint32)
    report = Program(kernel("ld.param.u64 %rd1, [y]; st.global.u32 [%rd1], 3; bar.sync 0;", [".param .u64 y"])).launch(
        (1,), 32, [pointer(out)], memory=[out], listener=[first, second])
    assert report.findings == ["a", "b"]
    assert first.program is second.program is not None
    assert [name for name, _ in first.log] == [name for name, _ in second.log] and len(first.of("access")) == 1
