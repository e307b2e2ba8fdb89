"""Forward attention against float64, in the evaluator and in the emulator: shapes that nobody chose, every option."""
from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from attention_reference import Recorded

import tilejit
from tilejit import kernels
from tilejit.errors import LaunchError
from tilejit.kernels.attention import forward
from tilejit.kernels.attention.forward_kernel import attention_kernel
from tilejit.kernels.attention.scores import Band, Options, Shares
from tilejit.testing import rel_error

BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32
BOUNDS = {F16: 1e-3, BF16: 5e-3}


def inputs(batch: int, queries: int, keys: int, heads: int, kv_heads: int, d: int, dv: int, dtype: Any = BF16) -> Any:
    rng = np.random.default_rng(queries + keys + d)
    return [rng.standard_normal(shape, F32).astype(dtype) for shape in (
        (batch, queries, heads, d), (batch, keys, kv_heads, d), (batch, keys, kv_heads, dv))]


def reference(q: Any, k: Any, v: Any, causal: bool, scale: float | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Result and logarithms of sums, in float64; rows that see nothing are 0 and -inf."""
    q, k, v = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(0, 1, 3, 2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    rows, columns = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])[None]
    keep = (columns <= rows + k.shape[2] - q.shape[2]) if causal else np.ones(scores.shape[2:], bool)
    most = np.where(keep, scores, -np.inf).max(-1, keepdims=True)
    most = np.where(np.isinf(most), 0, most)
    p = np.where(keep, np.exp(scores - most), 0)
    total = p.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + most)[..., 0]
    return (p / np.where(total == 0, 1, total) @ v).transpose(0, 2, 1, 3), lse


#: batch, queries, keys, heads, kv heads, d, dv, causal
SHAPES = [(1, 128, 256, 1, 1, 64, 64, False), (2, 70, 200, 2, 1, 64, 64, True), (1, 200, 90, 2, 2, 128, 128, True),
          (1, 1, 300, 4, 2, 40, 72, False), (1, 130, 1, 1, 1, 8, 8, False), (1, 140, 130, 1, 1, 192, 128, True),
          (1, 130, 140, 1, 1, 256, 256, False)]


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("shape", SHAPES)
def test_against_float64(target: str, shape: tuple) -> None:
    *sizes, causal = shape
    dtype = F16 if sizes[1] % 4 else BF16
    q, k, v = inputs(*sizes, dtype)
    lse = np.full((sizes[0], sizes[3], sizes[1]), np.nan, F32)
    out = np.full((*q.shape[:3], v.shape[3]), np.nan, F32).astype(dtype)
    with tilejit.knobs(target=target):
        assert kernels.attention(q, k, v, causal=causal, out=out, lse=lse) is out
    want, logs = reference(q, k, v, causal)
    assert rel_error(out.astype(np.float64), want) <= BOUNDS[dtype]
    some = np.isfinite(logs)
    assert np.array_equal(np.isneginf(lse), ~some) and np.abs(lse[some] - logs[some]).max() < 1e-5
    assert (out.astype(F32)[~some.transpose(0, 2, 1)] == 0).all()


@pytest.mark.remarks("spills", "stack", reason="four warpgroups keep a register in memory where keys end in a block")
@pytest.mark.parametrize("tiles, causal", [((192, 112), True), ((192, 96), False), ((128, 80), True), ((64, 16), False),
                                           ((256, 64), False), ((192, 128), False)])
def test_blocks_of_other_sizes(tiles: tuple[int, int], causal: bool) -> None:
    """Three warpgroups of 192 queries, four of 256, blocks of keys that are no power of two."""
    q, k, v = inputs(1, 200, 250, 1, 1, 64, 64)
    with tilejit.knobs(target="emulator"):
        out = kernels.attention(q, k, v, causal=causal, tiles=tiles)
    assert rel_error(out.astype(np.float64), reference(q, k, v, causal)[0]) <= 5e-3


@pytest.mark.parametrize("queries, causal, dealt", [(200, False, 1), (200, True, 1), (300, True, 1), (300, True, 2),
                                                    (600, True, 2), (200, True, 4)])
def test_programs_that_take_several_blocks(monkeypatch: pytest.MonkeyPatch, queries: int, causal: bool, dealt: int) -> None:
    """With a causal mask pairs of them, of which the last one may have a single block, or those of sections of heads."""
    monkeypatch.setattr(tilejit, "multiprocessors", lambda *_: 3)
    monkeypatch.setattr(forward, "_dealt", lambda *_: (dealt, 1.0))
    q, k, v = inputs(2, queries, 150, 2, 1, 64, 64)
    with tilejit.knobs(target="emulator"):
        out = kernels.attention(q, k, v, causal=causal, persistent=True)
    assert rel_error(out.astype(np.float64), reference(q, k, v, causal)[0]) <= 5e-3


@pytest.mark.parametrize("queries, heads, causal, several", [
    (200, 1, False, True), (100, 1, False, False), (200, 3, True, True), (100, 2, True, False), (300, 1, True, True)])
def test_blocks_share_programs(monkeypatch: pytest.MonkeyPatch, queries: int, heads: int, causal: bool,
                               several: bool) -> None:
    """On three multiprocessors: where shares are equal enough."""
    monkeypatch.setattr(tilejit, "multiprocessors", lambda *_: 3)
    q, k, v = inputs(2, queries, 150, heads, 1, 64, 64)
    grids: list[tuple[int, ...]] = []
    monkeypatch.setattr("tilejit.runtime.launch.EvaluatorEntry.launch", lambda self, grid, *_: grids.append(grid))
    with tilejit.knobs(target="evaluator"):
        kernels.attention(q, k, v, causal=causal)
    assert [tuple(grid[1:]) in ((), (1, 1)) for grid in grids] == [several]


@pytest.mark.parametrize("heads, size, blocks", [(16, 4 << 20, 86), (64, 2 << 20, 32), (16, 8 << 20, 128), (512, 1 << 18, 4)])
def test_shares_of_causal_blocks(heads: int, size: int, blocks: int) -> None:
    """As the kernel deals them; what the host says of the longest one."""
    together, unequal = forward._dealt(heads, size, blocks, 132)
    assert together * size <= 32 << 20 and heads % together == 0 and unequal < 1.04
    if together > 1:
        shares = np.zeros(132, int)
        for tile in range(heads * blocks):
            section, own = divmod(tile, together * blocks)
            turn, at = divmod(own, 132)
            shares[at if (turn + section) % 2 == 0 else 131 - at] += blocks - own // together
        assert shares.max() / shares.mean() == pytest.approx(unequal)


@pytest.mark.parametrize("sizes, tiles, persistent, causal", [
    ((1, 640, 300, 1, 1, 64, 64), (128, 16), True, False), ((1, 750, 300, 1, 1, 64, 64), (192, 16), True, False),
    ((1, 130, 300, 2, 1, 128, 128), (128, 32), True, False), ((1, 200, 300, 2, 1, 64, 64), (64, 16), False, False),
    ((2, 100, 90, 1, 1, 256, 256), (128, 16), False, False), ((1, 150, 300, 1, 1, 64, 64), (64, 16), False, True),
    ((1, 180, 60, 1, 1, 64, 64), (64, 16), False, True)])
def test_blocks_in_shares(monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], tiles: tuple[int, int],
                          persistent: bool, causal: bool) -> None:
    """On three multiprocessors, of blocks that are no multiple of those, or, with a causal mask, no more; with sinks,
    which count once."""
    monkeypatch.setattr(tilejit, "multiprocessors", lambda *_: 3)
    for name in ("SHARE", "TWO", "JOIN"):
        monkeypatch.setattr(forward, name, -9)
    joined: list[tuple[int, ...]] = []
    monkeypatch.setattr(forward, "join_kernel", Recorded(forward.join_kernel, joined))
    q, k, v = inputs(*sizes)
    sinks = np.linspace(-1, 2, sizes[3], dtype=F32)
    lse = np.full((sizes[0], sizes[3], sizes[1]), np.nan, F32)
    with tilejit.knobs(target="emulator"):
        out = kernels.attention(q, k, v, causal=causal, lse=lse, sinks=sinks, tiles=tiles, persistent=persistent)
    want, logs = reference(q, k, v, causal)
    with_sinks = np.logaddexp(logs, sinks[:, None])
    assert np.abs(lse - with_sinks).max() < 1e-5
    assert rel_error(out.astype(np.float64), want * np.exp(logs - with_sinks).transpose(0, 2, 1)[..., None]) <= 5e-3
    blocks = tilejit.cdiv(sizes[1], tiles[0]) * sizes[0] * sizes[3]
    assert joined == [(blocks if causal else blocks % 3, tiles[0] // 16)]


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("tiles, length, chip", [(1376, 128, 132), (2048, 205, 132), (64, 100, 132), (133, 40, 132),
                                                 (263, 41, 132), (5, 7, 3), (17, 300, 16)])
def test_shares_have_all_keys_once(tiles: int, length: int, chip: int, several: bool) -> None:
    """As `part_of` and `join_kernel` find them: no slot twice, and those of a block one after another."""
    over = tiles % chip
    shares = forward._shared(np.full(over, length), tiles - over, chip, several)
    if shares is None:
        return
    slots: dict[int, tuple[int, int, int]] = {}
    programs = tilejit.cdiv(over * shares.length, shares.quota)
    assert programs <= chip or not several
    for j in range(programs):
        for block in range(j * shares.quota // shares.length, tilejit.cdiv((j + 1) * shares.quota, shares.length)):
            if block < over:
                start = max(j * shares.quota - block * shares.length, 0)
                stop = min((j + 1) * shares.quota - block * shares.length, length)
                assert start < stop and j + block not in slots and j + block < programs + over
                slots[j + block] = block, start, stop
    for block in range(over):
        first, last = block * shares.length // shares.quota, ((block + 1) * shares.length - 1) // shares.quota
        parts = [slots[j + block] for j in range(first, last + 1)]
        assert [p[0] for p in parts] == [block] * len(parts) and (parts[0][1], parts[-1][2]) == (0, length)
        assert all(a[2] == b[1] for a, b in zip(parts, parts[1:]))


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("d, causal", [(64, True), (128, False), (256, False)])
def test_scores_that_grow(target: str, d: int, causal: bool) -> None:
    """By less than 2^8 from block to block, by more, and in some rows of a warp only: sums are scaled where they must."""
    q, k, v = inputs(1, 130, 500, 1, 1, d, d)
    k = (k.astype(F32) * (1 + np.arange(500) // 64 % 5 * 1.5)[None, :, None, None]).astype(BF16)
    q[:, ::3] = q[:, ::3] * BF16(0.05)
    with tilejit.knobs(target=target):
        out = kernels.attention(q, k, v, causal=causal)
    assert rel_error(out.astype(np.float64), reference(q, k, v, causal)[0]) <= 6e-3


@pytest.mark.parametrize("dtype", ["bf16", "fp8e4nv"])
def test_sums_are_scaled_under_the_next_product(dtype: str) -> None:
    """Where factors are mostly one, and not at all where all of a warp are."""
    blocks = [f"desc<{dtype}[1x128x1x128]>"] * 3 + ["desc<bf16[1x128x1x128]>"]
    given: dict[str, Any] = dict(GROUP=1, PACK=1, TAIL=False, SPLIT=1, PARTED=False, PERSISTENT=False, TURNED=dtype != "bf16",
                                 BM=128, BN=128, D=128, DV=128, num_warps=8)
    args = (*blocks, None, "int32", "int32", "fp32", "int32", "int32", Options())
    text = attention_kernel.schedule(*args, **given)
    assert len(re.findall(r"= mul %acc.*{stage=1, cycle=1, ones=true}", text)) == 1
    assert "vote.sync.any" in attention_kernel.compile(*args, **given).ptx


def test_heads_ahead_of_the_sequence_and_a_scale() -> None:
    """[batch, heads, sequence, d] in memory, seen through strides; large scores stay finite."""
    q, k, v = (np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in inputs(2, 96, 160, 2, 2, 64, 64))
    with tilejit.knobs(target="emulator"):
        out = kernels.attention(q, k, v, scale=3.0)
    assert rel_error(out.astype(np.float64), reference(q, k, v, False, 3.0)[0]) <= 1e-2


def test_nothing_to_do() -> None:
    q, k, v = inputs(1, 0, 16, 1, 1, 64, 64)
    with tilejit.knobs(target="emulator"):
        assert kernels.attention(q, k, v).shape == (1, 0, 1, 64)


@pytest.mark.parametrize("change, message", [
    (lambda q, k, v: (q[0], k, v), r"q must be \[batch, sequence, heads, d\], found shape \[16, 2, 64\]"),
    (lambda q, k, v: (q, k.astype(F16), v), "q, k and v must all be fp16 or all bf16, found k of fp16 and q of bf16"),
    (lambda q, k, v: (q, k[:, :8], v), "do not go together"),
    (lambda q, k, v: (q, np.repeat(k, 3, 2)[:, :, :3], np.repeat(v, 3, 2)[:, :, :3]), "2 query heads cannot share 3 heads"),
    (lambda q, k, v: (q[..., 1:], k[..., 1:], v), "q needs a contiguous last dimension, an address and strides"),
    (lambda q, k, v: (np.repeat(q, 5, 3), np.repeat(k, 5, 3), v), "heads of 320 and 64 elements; at most 256")])
def test_what_does_not_fit(change: Any, message: str) -> None:
    with tilejit.knobs(target="emulator"), pytest.raises(LaunchError, match=message):
        kernels.attention(*change(*inputs(1, 16, 16, 2, 2, 64, 64)))


def test_outputs_are_checked() -> None:
    q, k, v = inputs(1, 16, 16, 2, 2, 64, 64)
    with tilejit.knobs(target="emulator"):
        with pytest.raises(LaunchError, match=r"out must be \[1, 16, 2, 64\] of bf16, found \[1, 16, 2, 64\] of fp16"):
            kernels.attention(q, k, v, out=np.zeros(q.shape, F16))
        with pytest.raises(LaunchError, match=r"lse must be a contiguous fp32 array \[1, 2, 16\]"):
            kernels.attention(q, k, v, lse=np.zeros((1, 16, 2), F32))


def test_no_keys() -> None:
    q, k, v = inputs(1, 16, 0, 1, 1, 64, 64)
    with tilejit.knobs(target="emulator"), pytest.raises(LaunchError, match="there are no keys"):
        kernels.attention(q, k, v)


@pytest.mark.parametrize("width, rows, keys, persistent", [
    (64, 128, 128, True), (64, 192, 112, False), (64, 192, 112, True), (64, 192, 128, True), (128, 128, 128, False),
    (128, 128, 128, True), (192, 128, 64, False), (192, 128, 64, True), (256, 128, 80, False), (256, 128, 64, True)])
@pytest.mark.remarks("spills", "stack", reason="trips with masks of three warpgroups")
@pytest.mark.parametrize("causal", [False, True])
def test_softmax_and_products_overlap(width: int, rows: int, keys: int, persistent: bool, causal: bool) -> None:
    """Every loop is in two stages, and nothing is spilled for it: of 192 x 128 what only the results need, rows for
    the logarithms, is computed behind the loop once more."""
    blocks = [f"desc<bf16[1x{n}x1x{width}]>" for n in (rows, keys, keys, rows)]
    shares = Shares("int32", "int32", "int32", "*fp32:16", "*fp32:16")
    opts = Options(Band(right="int32" if causal else None), shares=None if causal or persistent and width > 192 else shares)
    k = attention_kernel.compile(*blocks, "*fp32", "int32:16", "int32:16", "fp32", "int32", "int32", opts, GROUP=1,
                                 PACK=1, TAIL=causal, SPLIT=1, PARTED=False, PERSISTENT=persistent, TURNED=False, BM=rows,
                                 BN=keys, D=width, DV=width, num_warps=rows // 16,
                                 products_ahead=keys * rows == 192 * 128 or None,
                                 ping_pong=width <= 64 and forward.TURNS[rows])
    masked = 16 if causal and rows * keys == 192 * 128 else 0  # registers in memory in trips with masks
    assert k.resources is not None and k.resources.spill_stores <= masked
    assert len(re.findall(r"is in flight with acc of this one \(2 stages", k.report())) == 1 + causal
    assert re.findall(r"ring (\S+): ", k.report()) == ["q", "k", "v"]
    assert len(re.findall(r"ring [kv]: [2-9] slots", k.report())) == 2
