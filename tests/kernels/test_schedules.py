"""Every ready kernel on the emulated SM under 3 policies and 5 seeds, with the sanitizer, against the IR evaluator.

Every launch of a host function is replaced: the tile IR runs in the evaluator, then the PTX runs under each schedule
from the same memory. There may be no findings, all schedules must give the same bits, and these must be those of the
evaluator: equal for integers (and what no program wrote), within BOUNDS for floating results, because the orders of
sums and the exponentials of the two differ.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from row_launches import ROWS

import tilejit
from tilejit import kernels
from tilejit.emulator import Exploration, Sanitizer, explore
from tilejit.emulator.policy import POLICIES
from tilejit.kernels.planning import PROMOTED
from tilejit.runtime.launch import EmulatorEntry, EvaluatorEntry, host_arrays, host_memory
from tilejit.testing import rel_error

BF16, F16, F32, E4M3 = ml_dtypes.bfloat16, np.float16, np.float32, ml_dtypes.float8_e4m3fn
#: ||emulator - evaluator|| / ||evaluator|| at most: half a unit in the last place of each element, or for fp32 the
#: rounding of a few hundred additions.
BOUNDS = {"float32": 2e-6, "float16": 5e-4, "bfloat16": 4e-3}


def matching(name: str, got: np.ndarray, want: np.ndarray) -> None:
    """Equal bits, or floats within their bound with NaN in the same places."""
    bits = np.dtype(f"uint{8 * got.dtype.itemsize}")
    if np.array_equal(got.view(bits), want.view(bits)):
        return
    assert got.dtype.name in BOUNDS, f"{name}: {got.dtype} results differ from the evaluator's"
    g, w = (x.astype(np.float64) for x in (got, want))
    assert np.array_equal(np.isnan(g), np.isnan(w)), f"{name}: NaN in other places"
    error = rel_error(np.nan_to_num(g), np.nan_to_num(w))
    assert error <= BOUNDS[got.dtype.name], f"{name}: relative error {error:.2g} against the evaluator"


@dataclass
class Launches:
    """What the launches of a test found; schedules may differ by `tolerance` where floats are added atomically."""

    found: list[Exploration] = field(default_factory=list)
    tolerance: float = 0.0


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launches]:
    """Launches of this test run under all schedules."""
    done = Launches()

    def launch(entry: EmulatorEntry, grid: tuple[int, int, int], flat: tuple, stream: Any) -> None:
        memory, arrays = host_memory(flat), host_arrays({n: flat[i] for n, i in entry.at.items()})
        before = [m.copy() for m in memory]
        EvaluatorEntry(entry.compiled, entry.at).launch(grid, flat, stream)
        want = {n: a.copy() for n, a in arrays.items()}
        for m, b in zip(memory, before):
            m[...] = b
        found = explore(entry.compiled.name, lambda policy, seed, listener: entry.run(
            grid, flat, policy=policy, seed=seed, listener=listener), memory, arrays, POLICIES, range(5), Sanitizer,
            done.tolerance)
        assert len(found.check().runs) == 11
        for n, a in arrays.items():
            matching(f"{entry.compiled.name}: {n}", a, want[n])
        done.found.append(found)

    monkeypatch.setattr(EmulatorEntry, "launch", launch)
    monkeypatch.setattr(tilejit, "multiprocessors", lambda *_: 2)
    with tilejit.knobs(target="emulator"):
        yield done


def random(*shape: int, dtype: Any = BF16, seed: int = 0) -> np.ndarray:
    """Normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def poison(*shape: int, dtype: Any = BF16) -> np.ndarray:
    """An output in which unwritten elements show."""
    return np.full(shape, np.nan, F32).astype(dtype)


def groups() -> Any:
    return kernels.grouped_matmul(random(100, 80), random(3, 72, 80, seed=1).transpose(0, 2, 1),
                                  np.array([3, 3, 40, 90], np.int32), poison(100, 72, dtype=F32))


def masked() -> Any:
    return kernels.masked_grouped_matmul(random(3, 40, 64), random(3, 72, 64, seed=1).transpose(0, 2, 1),
                                         np.array([0, 40, 7], np.int32), poison(3, 40, 72))


def fused() -> Any:
    return kernels.fused_matmul(random(72, 80), random(88, 80, seed=1).T, scale_a=random(72, 1, dtype=F32), bias=random(88),
                                activation="silu", residual=random(72, 88), z=poison(72, 88), reduction="squares",
                                reduced=np.ones(72, F32))


def integers() -> Any:
    rng = np.random.default_rng(5)
    return kernels.fused_matmul(rng.integers(-128, 128, (72, 144)).astype(np.int8),
                                rng.integers(-128, 128, (80, 144)).astype(np.int8).T, out_dtype=tilejit.language.int32)


def block_scaled(config: Any) -> Any:
    return kernels.matmul_blockscaled(random(72, 272, dtype=E4M3), random(136, 272, dtype=E4M3, seed=1).T,
                                      np.asfortranarray(np.abs(random(72, 3, dtype=F32))),
                                      np.abs(random(2, 3, dtype=F32)), poison(72, 136), config=config)


def weights(bits: int) -> Any:
    rng = np.random.default_rng(0)
    q = rng.integers(-128, 128, (72, 256)).astype(np.int8) if bits == 8 else rng.integers(0, 256, (72, 128)).astype(np.uint8)
    return kernels.weight_only_matmul(random(8, 256), q, rng.random((72, 2)).astype(F32), split=2)


def tiles(**options: int) -> Any:
    """The persistent kernel with options that the host function does not choose."""
    a, b, out = random(128, 192), random(192, 128, seed=1), poison(128, 128)
    descs = [tilejit.TensorDescriptor(x, x.shape, (x.shape[1], 1), box)
             for x, box in ((a, (128, 64)), (b, (64, 64)), (out, (128, 64)))]
    return kernels.matmul_kernel[(2,)](*descs, None, 128, 128, 192, BM=128, BN=64, BK=64, GROUP=8, A_ROWS=True, B_ROWS=True,
                                       ACTIVATION=None, num_warps=4, num_stages=3, **options)


#: name -> what launches it: rows whole and in blocks, aligned and ragged products, every option of the epilogues.
LAUNCHES: dict[str, Callable[[], Any]] = {
    "add": lambda: kernels.add(random(3, 500, dtype=F32), random(3, 500, dtype=F32, seed=1)),
    "add integers": lambda: kernels.add(np.arange(700, dtype=np.int32).reshape(7, 100), np.full((7, 100), 5, np.int32)),
    "attention": lambda: kernels.attention(random(1, 70, 2, 64), random(1, 100, 1, 64, seed=1), random(1, 100, 1, 64, seed=2),
                                           causal=True, lse=poison(1, 2, 70, dtype=F32)),
    "attention's blocks": lambda: kernels.attention_blocks(poison(1), 1, 2, 200, 300, window=(64, 0)),
    "attention to latent vectors": lambda: kernels.latent_attention(random(1, 1, 16, 576), random(1, 130, 576, seed=1), parts=2),
    "softmax": lambda: kernels.softmax(random(3, 700, dtype=F32)),
    "long softmax": lambda: kernels.softmax(random(1, 20000, dtype=F16)),
    "layernorm": lambda: kernels.layernorm(random(3, 700), random(700), random(700, seed=1)),
    "long layernorm": lambda: kernels.layernorm(random(1, 20000, dtype=F32)),
    "rmsnorm": lambda: kernels.rmsnorm(random(3, 700, dtype=F32), random(700, dtype=F32)),
    "long rmsnorm": lambda: kernels.rmsnorm(random(1, 20000), random(20000)),
    "matmul": lambda: kernels.matmul(random(128, 192), random(192, 128, seed=1), out=poison(128, 128)),
    "matmul of transposes": lambda: kernels.matmul(random(80, 72, dtype=F16).T, random(136, 80, dtype=F16).T),
    "ragged matmul": lambda: kernels.matmul(random(70, 48), random(48, 90, seed=1), out=poison(70, 90)),
    "matmul of lines that TMA cannot read": lambda: kernels.matmul(random(70, 45), random(45, 91, seed=1)),
    "matmul with an epilogue": lambda: kernels.matmul(random(64, 64), random(64, 72), bias=random(72), activation="gelu"),
    "fp8 matmul": lambda: kernels.matmul(random(64, 160, dtype=E4M3), random(72, 160, dtype=E4M3).T),
    "matmul by clusters": lambda: tiles(num_ctas=2),
    "stream-k by clusters": lambda: kernels.matmul_streamk(random(24, 320), random(320, 72, seed=1), random(72), "silu", ctas=2),
    "matmul by two consumer groups": lambda: tiles(num_consumer_groups=2),
    "batched matmul": lambda: kernels.batched_matmul(random(2, 72, 80), random(2, 80, 72, seed=1), random(72), "relu"),
    "grouped matmul": groups,
    "masked grouped matmul": masked,
    "fused matmul": fused,
    "integer matmul": integers,
    "swiglu": lambda: kernels.swiglu(random(72, 80), random(144, 80, seed=1).T, residual=np.ones((72, 72), BF16)),
    "gated matmul": lambda: kernels.gated_matmul(random(72, 80), random(2, 72, 80, seed=1).transpose(0, 2, 1)),
    "block-scaled matmul": lambda: block_scaled(PROMOTED[-1]),
    "block-scaled matmul of few rows": lambda: block_scaled(PROMOTED[2]),
    "int8 weights": lambda: weights(8),
    "int4 weights": lambda: weights(4),
    "stream-k": lambda: kernels.matmul_streamk(random(64, 512), random(72, 512, seed=1).T, split=2),
    **ROWS,
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_every_kernel_under_every_schedule(launches: Launches, name: str) -> None:
    LAUNCHES[name]()
    assert launches.found


def test_no_kernel_is_left_out() -> None:
    source = Path(__file__).read_text() + Path(__file__).with_name("row_launches.py").read_text()
    launching = set(kernels.__all__) - {"plan"}                              # it launches nothing
    assert [name for name in launching if f"kernels.{name}(" not in source and f"kernels.{name}[" not in source] == []


def test_the_comparison_can_fail() -> None:
    """Integers to the bit, floats by norm, NaN by place."""
    matching("x", np.float32([1, np.nan]), np.float32([1 + 1e-7, np.nan]))
    for got, want in ((np.int32([1, 2]), np.int32([1, 3])), (np.float32([1, 2]), np.float32([1, 2.1])),
                      (np.float32([1, np.nan]), np.float32([1, 2]))):
        with pytest.raises(AssertionError, match="x: "):
            matching("x", got, want)
