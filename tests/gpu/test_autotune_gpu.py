"""Autotuning on a GPU: real times decide, results are right, arrays are reset; and bursts from CUDA graphs."""
from __future__ import annotations

from pathlib import Path

import pytest

import tilejit
import tilejit.language as tl

CONFIGS = [tilejit.Config({"BLOCK": b}, num_warps=w) for b, w in ((32, 1), (1024, 4), (2048, 8))]


@tilejit.kernel
def accumulate(x, out, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out + offs, tl.load(out + offs, mask) + tl.load(x + offs, mask), mask)


def grid(meta):
    return (tilejit.cdiv(meta["n"], meta["BLOCK"]),)


@pytest.mark.gpu
@pytest.mark.parametrize("option", ["reset_to_zero", "restore_value"])
def test_times_decide(option, monkeypatch, tmp_path):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))
    n = 1 << 22
    x, out = torch.randn(n, device="cuda"), torch.zeros(n, device="cuda")
    bad = tilejit.Config({"BLOCK": 100})

    def tuner():
        return tilejit.autotune([bad, *CONFIGS], ["n"], cache_results=True, **{option: ["out"]})(accumulate)

    k = tuner()
    k[grid](x, out, n, programs_per_cta=1)                                   # or many small programs would be as fast
    assert torch.equal(out, x)
    (times,) = k.timings.values()
    assert set(times) == set(CONFIGS) and all(0 < t < 10 for t in times.values())
    assert k.best_config is not CONFIGS[0]                                   # one element a thread in 131,072 programs
    again = tuner()
    out.zero_()
    again[grid](x, out, n, programs_per_cta=1)
    assert torch.equal(out, x) and list(again.timings.values()) == [times]


@pytest.mark.gpu
def test_a_tuned_kernel_in_a_graph(monkeypatch):
    """Captured once it is tuned; a burst of replays takes about as long as the calls."""
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    from bursts import gpu_burst, graph_burst

    n = 1 << 24
    x, out = torch.randn(n, device="cuda"), torch.zeros(n, device="cuda")
    k = tilejit.autotune(CONFIGS, ["n"])(accumulate)
    k[grid](x, out, n)
    replay, call = graph_burst(lambda: k[grid](x, out, n)), gpu_burst(lambda: k[grid](x, out, n))
    pairs = [(replay(60), call(30)) for _ in range(5)]                       # other tests may be on the same GPU
    replayed, called = map(min, zip(*pairs, strict=True))
    assert 0.5 < replayed / called < 1.5
