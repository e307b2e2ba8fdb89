"""tilejit.timeline: files that open, rows that do not overlap, results as of a plain launch."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import ml_dtypes
import numpy as np
import pytest

import tilejit
from tilejit import kernels

M, N, K = 256, 256, 320
OPTIONS = {"BM": 128, "BN": 256, "BK": 64, "GROUP": 8, "A_ROWS": True, "B_ROWS": True, "ACTIVATION": None,
           "num_warps": 8, "num_stages": 4}


def arguments() -> tuple[list[Any], np.ndarray, np.ndarray]:
    """matmul_kernel's arguments, the output, the product it should hold."""
    rng = np.random.default_rng()
    a, b = (rng.integers(-4, 5, s).astype(ml_dtypes.bfloat16) for s in ((M, K), (K, N)))
    out = np.full((M, N), np.nan, ml_dtypes.bfloat16)
    descriptors = [tilejit.TensorDescriptor.from_tensor(x, s)
                   for x, s in ((a, (128, 64)), (b, (64, 256)), (out, (128, 256)))]
    return [*descriptors, None, M, N, K], out, (a.astype(np.float32) @ b.astype(np.float32)).astype(ml_dtypes.bfloat16)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Any], np.ndarray, np.ndarray]:
    args, out, expected = arguments()
    path = tmp_path_factory.mktemp("timeline") / "matmul.png"
    line = tilejit.timeline(kernels.matmul_kernel, (2,), *args, out=path, **OPTIONS)
    return line, json.loads(path.with_suffix(".json").read_text()), out, expected


def test_the_run_is_a_plain_launch(drawn: Any) -> None:
    line, _, out, expected = drawn
    assert np.array_equal(out, expected) and line.report.ctas == 2 and not line.report.findings


def test_the_trace_is_chromes(drawn: Any) -> None:
    line, trace, _, _ = drawn
    events = trace["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {n for (pid, _), n in names.items() if pid == 1} >= {
        *(f"consumer, warp {w}" for w in range(8)), "producer, warp 8", "tensor cores",
        *(f"loads in flight, stage {s}" for s in range(4)), "stores in flight"}
    rows: dict[Any, list[tuple[float, float]]] = {}
    for e in events:
        if e["ph"] == "X":
            assert e["dur"] > 0 and (e["pid"], e["tid"]) in names
            rows.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    for spans in rows.values():
        spans.sort()
        assert all(later[0] >= earlier[1] - 1e-9 for earlier, later in zip(spans, spans[1:]))
    assert {e["pid"] for e in events} == {0, 1}
    waits = {e["name"] for e in events if e.get("cat") == "wait"}
    assert waits >= {"a_b.full[0]", "a_b.empty[0]", "wgmma"}
    assert any(e.get("args", {}).get("source", "").startswith("plain.py:") for e in events)


def test_units_do_the_work_that_there_is(drawn: Any) -> None:
    line = drawn[0]
    products = [s for s in line.spans if s.cta == 0 and s.lane == "tensor core"]
    assert sum(s.end - s.start for s in products) == 128 * 256 * K // 2048
    assert 0.1 < line.busy(0, "tensor core") < 1 and line.busy(0, 8) < 0.5
    full = {(s.stage, s.name): s for s in line.spans if s.cta == 0 and s.lane == "load"}
    assert len(full) == K // 64 and all(name.endswith(" 49152 bytes") for _, name in full)


def test_the_picture_is_one(drawn: Any) -> None:
    path = drawn[0].files[1]
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 20_000


def test_an_svg_by_default_and_no_roles(tmp_path: Path) -> None:
    """softmax: one warpgroup, no pipeline."""
    from tilejit.kernels.rows.softmax import softmax_kernel

    x = np.random.default_rng().standard_normal((3, 256)).astype(np.float32)
    out = np.empty_like(x)
    line = tilejit.timeline(softmax_kernel, (3,), x, out, 256, 256, 256, out=tmp_path / "soft.json", picture=1, BLOCK=256)
    assert [p.name for p in line.files] == ["soft.json", "soft.svg"]
    whole = line.files[1].read_text()
    tilejit.timeline(softmax_kernel, (3,), x, out, 256, 256, 256, out=tmp_path / "part.svg", window=(0, line.clocks // 9),
                     BLOCK=256)
    assert (tmp_path / "part.svg").read_text().count("<path") < whole.count("<path")
    text = "".join(ElementTree.parse(line.files[1]).getroot().itertext())
    assert "softmax_kernel, grid (3, 1, 1): CTA 1" in text
    assert {s.lane for s in line.spans} == set(range(4)) and line.clocks > 0
    np.testing.assert_allclose(out.sum(1), 1, atol=1e-5)


def test_a_picture_of_a_cta_that_is_not_there(tmp_path: Path) -> None:
    args, _, _ = arguments()
    with pytest.raises(tilejit.LaunchError, match="no CTA 2"):
        tilejit.timeline(kernels.matmul_kernel, (2,), *args, out=tmp_path / "x.svg", picture=2, **OPTIONS)
    with pytest.raises(tilejit.LaunchError, match="no clocks"):
        tilejit.timeline(kernels.matmul_kernel, (2,), *args, out=tmp_path / "x.svg", window=(5, 5), **OPTIONS)
    with pytest.raises(tilejit.LaunchError, match="needs a kernel"):
        tilejit.timeline(print, (2,), out=tmp_path / "x.svg")
