"""Attention to latent vectors against float64: in the evaluator, in the emulator, on a GPU in graphs and again and again."""
from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilejit
from tilejit.errors import LaunchError
from tilejit.kernels import latent_attention
from tilejit.kernels.attention import decode, latent
from tilejit.kernels.attention.latent import latent_kernel
from tilejit.testing import rel_error

BF16, F32 = ml_dtypes.bfloat16, np.float32


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, F32).astype(BF16)


def reference(q: np.ndarray, cache: np.ndarray, causal: bool, used: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Results and logarithms of sums, in float64."""
    q, cache = q.astype(np.float64), cache.astype(np.float64)
    batch, queries, keys = q.shape[0], q.shape[1], cache.shape[1]
    count = np.full(batch, keys) if used is None else used
    x = np.einsum("bqhd,bnd->bhqn", q, cache) * q.shape[3] ** -0.5
    last = count[:, None] + (np.arange(queries) - queries + 1 if causal else np.zeros(queries, int))
    x = np.where(np.arange(keys) < last[:, None, :, None], x, -np.inf)
    p = np.exp(x - x.max(-1, keepdims=True))
    total = p.sum(-1, keepdims=True)
    return np.einsum("bhqn,bnd->bqhd", p / total, cache[..., :512]), (np.log(total) + x.max(-1, keepdims=True))[..., 0]


@pytest.mark.parametrize("heads, parts, early", [(4, 68, True), (80, 33, True), (80, 34, None)])
def test_few_parts_are_weighed_by_an_early_launch(monkeypatch: pytest.MonkeyPatch, heads: int, parts: int, early: Any) -> None:
    """Where programs of few rows leave shared memory, or all parts half of the multiprocessors (132 without a GPU)."""
    said, launched = [], decode.combine_kernel

    class Recorded:
        def __getitem__(self, grid: Any) -> Any:
            def call(*args: Any, **options: Any) -> None:
                said.append(options["launch_pdl"])
                launched[grid](*args, **options)
            return call

    monkeypatch.setattr(decode, "combine_kernel", Recorded())
    with tilejit.knobs(target="evaluator"):
        latent_attention(random(1, 1, heads, 576), random(1, 80 + parts, 576), parts=parts)
    assert said == [early]


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("queries, heads, keys, parts, causal", [(2, 8, 150, 2, True), (1, 80, 70, 1, False)])
def test_against_float64(target: str, queries: int, heads: int, keys: int, parts: int, causal: bool) -> None:
    q, cache = random(2, queries, heads, 576), random(2, keys, 576)
    lse = np.zeros((2, heads, queries), F32)
    with tilejit.knobs(target=target):
        out = latent_attention(q, cache, causal=causal, parts=parts, lse=lse)
    want, logs = reference(q, cache, causal)
    assert rel_error(out.astype(np.float64), want) <= 5e-3 and np.allclose(lse, logs, atol=1e-4)


@pytest.mark.parametrize("page", [64, 48, 5])
def test_pages(page: int) -> None:
    used, each = np.array([90, 33], np.int32), -(-100 // page)
    table = np.random.default_rng(0).permutation(2 * each).reshape(2, each).astype(np.int32)
    q, cache = random(2, 1, 16, 576), random(2 * each, page, 576)
    with tilejit.knobs(target="emulator" if page == 5 else "evaluator"):
        out = latent_attention(q, cache, pages=table, used_keys=used, parts=2)
    want, _ = reference(q, cache[table].reshape(2, each * page, 576), False, used)
    assert rel_error(out.astype(np.float64), want) <= 5e-3


@pytest.mark.parametrize("ahead", [False, None])
def compiled(keys: int, piece: int, ahead: str | None = None, **options: Any) -> Any:
    blocks = [f"desc<bf16[1x{n}x{w}]>" for n in (64, keys) for w in (piece, 64)]
    return latent_kernel.compile(*blocks, "*fp32:16", "*fp32", None, None, "int32", "int32:16", "fp32",
                                 "int32:16", "int32", ahead, "int32:16", "int32:16", CAUSAL=False, PARTED=True, BM=64,
                                 BN=keys, DV=512, PIECE=piece, REST=64, num_warps=8, pointer_tma=False, **options)


def test_parts_are_stored_from_registers() -> None:
    """By vectors, without shared memory that all threads would have to wait for."""
    k = compiled(64, 256, products_ahead=False)
    assert "stage" not in k.report() and k.ptx.count("st.global.v4.b32") == 32


@pytest.mark.parametrize("ahead", [False, None])
def test_two_blocks_of_keys_are_under_way(ahead: bool | None) -> None:
    """Weights pass through shared memory once for both halves of the values, in the loop and behind it, and one lane
    of those that hold a row takes part when warps fold: so there is room, even for products that overlap."""
    k = compiled(64, 256, products_ahead=ahead)
    assert "ring k: 2 slots" in k.report()
    assert k.report().count("goes through registers into") == (1 if ahead is False else 2)
    assert ("of the next iteration is in flight with " in k.report()) == (ahead is None)


def test_blocks_of_128_keys_have_shared_memory_for_themselves() -> None:
    """Weights lie where the rest of the keys was, which is loaded again when they have been multiplied; a quarter of the
    keys is loaded again while the next one multiplies."""
    k = compiled(128, 128, "*bf16:16", products_ahead=False)
    assert re.search(r"separation: an mbarrier between .*_a, .* and k_last, in every iteration", k.report())
    assert k.report().count("1 slots x 32768 bytes") == 4 and "cp.async.bulk.prefetch.L2" in k.ptx
    loop = k.scheduled[k.scheduled.index("= for "):k.scheduled.index("= log ")]
    assert loop.count("{pending=1}") == 3 and loop.count("fence_async") == 1


@pytest.mark.parametrize("causal, apart", [(False, False), (True, False), (False, True)])
def test_long_sequences_of_many_heads(causal: bool, apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys may be far apart: then L2 fetches none ahead, since it would fetch what lies between."""
    monkeypatch.setattr(latent, "LONG", 64)
    said = []

    class Recorded:
        def __getitem__(self, grid: Any) -> Any:
            def call(*args: Any, **options: Any) -> None:
                said.append(args[13] is not None)
                latent_kernel[grid](*args, **options)
            return call

    monkeypatch.setattr(latent, "latent_kernel", Recorded())
    used = np.array([390, 1], np.int32)
    q, cache = random(2, 1, 100, 576), random(2, 400, 2 * 576)[..., :576] if apart else random(2, 400, 576)
    for target in ("evaluator", "emulator"):
        with tilejit.knobs(target=target):
            out = latent_attention(q, cache, causal=causal, used_keys=used, parts=2)
        assert rel_error(out.astype(np.float64), reference(q, cache, causal, used)[0]) <= 5e-3
    assert said == [not apart] * 2


@pytest.mark.parametrize("q, cache, options, message", [
    ((1, 1, 16, 576), (2, 64, 576), {}, "without pages the cache has a batch of 1"),
    ((1, 1, 16, 640), (1, 64, 640), {}, "values of 512 elements in keys of 640; expected 512 in at most 576"),
    ((1, 1, 16, 576), (1, 64, 512), {}, r"expected q \[batch, queries, heads, d\] and a cache")])
def test_what_does_not_fit(q: tuple, cache: tuple, options: dict, message: str) -> None:
    with tilejit.knobs(target="evaluator"), pytest.raises(LaunchError, match=message):
        latent_attention(random(*q), random(*cache), **options)
