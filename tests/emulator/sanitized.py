"""Runs PTX programs under the sanitizer, for its tests."""
from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from ptx_programs import assembles, kernel, pointer, u32

from tilejit.emulator import Program, Report, Sanitizer, encode_tensor_map

DATA = Path(__file__).parent / "data"
BF16 = ml_dtypes.bfloat16
SMEM = ".extern .shared .align 1024 .b8 smem[];"
#: Thread in %r1, warp in %r3, shared base in %r2; %p1: not thread 0; %p4: not lane 0; %rd1: the array y.
START = ("mov.u32 %r1, %tid.x; mov.u32 %r2, smem; shr.u32 %r3, %r1, 5; setp.ne.u32 %p1, %r1, 0; and.b32 %r4, %r1, 31;"
         "setp.ne.u32 %p4, %r4, 0; ld.param.u64 %rd1, [y];\n")


def run(body: str, threads: int = 64, grid: int = 1, cluster: int = 1, shared_bytes: int = 16384,
        policy: str = "round_robin", seed: int = 0, options: dict[str, Any] | None = None, assemble: bool = True,
        directives: str = "", out: np.ndarray | None = None) -> Report:
    """Run a body after START with the array `y` (u32[4096]); at the end every thread waits for its copies."""
    text = kernel(f"{START}{body}\ncp.async.wait_all; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;", [".param .u64 y"], SMEM, directives)
    if assemble:
        assembles(text)
    out = np.arange(4096, dtype=np.uint32) if out is None else out
    return Program(text).launch((grid,), threads, [pointer(out)], shared_bytes, (cluster, 1, 1), [out], policy, seed,
                                Sanitizer(**(options or {})))


def wrong_report(wrong: str, right: str, policy: str, seed: int) -> Report:
    """What is found in a wrong body; in the right one, which differs by the bug only, nothing may be."""
    run(right, policy=policy, seed=seed, assemble=policy == "random").check()
    return run(wrong, policy=policy, seed=seed, assemble=policy == "random")


def kinds(report: Report) -> list[str]:
    """The kinds found, each once, in order."""
    return list(dict.fromkeys(f.kind for f in report.findings))


def init(*counts: int, fence: str = "fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;") -> str:
    """mbarriers from smem + 8192 on, initialised by thread 0, then bar.sync 0."""
    inits = "".join(f"mbarrier.init.shared.b64 [%r2+{8192 + 8 * i}], {n};" for i, n in enumerate(counts))
    return f"@%p1 bra I; {inits} {fence}\nI: bar.sync 0;\n"


def wait(parity: int, barrier: int = 0, label: str = "") -> str:
    """Wait for a phase of barrier number `barrier`."""
    label = label or f"W{barrier}_{parity}"
    return f"\n{label}: mbarrier.try_wait.parity.shared.b64 %p2, [%r2+{8192 + 8 * barrier}], {parity}; @!%p2 bra {label};\n"


def gemm(name: str, m: int, n: int, k: int, ctas: int, policy: str = "round_robin", seed: int = 0,
         edits: Sequence[tuple[str, str]] = (), options: dict[str, Any] | None = None) -> Report:
    """A generated matrix product of data/, its text edited by (regular expression, replacement) once each."""
    text = (DATA / f"gemm_{name}.ptx").read_text()
    for pattern, new in edits:
        text, n_edits = re.subn(pattern, new, text, count=1)
        assert n_edits == 1, pattern
    bm, bn, bk, cluster, smem = map(int, re.match(
        r"// tile (\d+)x(\d+)x(\d+), cluster (\d+), shared (\d+)", text).groups())  # type: ignore[union-attr]
    a, b, d = np.ones((m, k), BF16), np.ones((n, k), BF16), np.zeros((m, n), BF16)
    maps = [encode_tensor_map(x.ctypes.data, "bf16", x.shape, (x.shape[1], 1), box, 128)
            for x, box in ((a, (bm, bk)), (b, (bn // cluster, bk)), (d, (64, 64)))]
    return Program(text).launch((ctas,), 384, [*maps, u32(m), u32(n), u32(k)], smem, (cluster, 1, 1), [a, b, d], policy,
                                seed, Sanitizer(**(options or {})))
