"""Forward attention's options against float64: functions of scores and masks, blocks that are skipped, sequences of
several lengths, pages, few queries, dropout, fp8. (Bands, softcap and sinks: test_attention_gradients.py.)"""
from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from attention_reference import Recorded, reference

import tilejit
import tilejit.language as tl
from tilejit.errors import LaunchError
from tilejit.kernels import attention, attention_blocks
from tilejit.kernels.attention import forward as host
from tilejit.kernels.attention import function
from tilejit.kernels.attention.cases import Case, Extras
from tilejit.kernels.attention.decode import decode, parts_of
from tilejit.kernels.attention.forward import _tiles, keys_of_tile
from tilejit.kernels.attention.forward_kernel import attention_kernel, share_kernel, turn_kernel
from tilejit.kernels.attention.scores import Band, Options, Rows, Sequences, Shares
from tilejit.testing import rel_error

BF16, F32 = ml_dtypes.bfloat16, np.float32


@pytest.fixture(autouse=True)
def target(request: Any) -> Any:
    with tilejit.knobs(target="evaluator"):
        yield


def random(*shape: int, dtype: Any = BF16) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(F32).astype(dtype)


def agree(out: np.ndarray, want: np.ndarray, bound: float = 5e-3) -> None:
    assert rel_error(out.astype(np.float64), want) <= bound


@tilejit.kernel
def same_document(batch, head, query, key, table):
    return tl.load(table + query) == tl.load(table + key)


@tilejit.kernel
def shrunk(score, batch, head, query, key, table):
    return score * 0.5 + tl.load(table + query).to(tl.float32) * 0.25 * head


@tilejit.kernel
def shrunk_gradient(grad, score, batch, head, query, key, table):
    return grad * 0.5


def test_a_function_of_scores() -> None:
    table = np.arange(90, dtype=np.int32) % 5
    q, k, v = random(1, 90, 2, 64), random(1, 90, 1, 64), random(1, 90, 1, 64)
    out = attention(q, k, v, score_mod=shrunk, aux=(table,), causal=True)
    agree(out, reference(q, k, v, True, score=lambda x, b, h, i, j: (x * 0.5 + table[i] * 0.25 * h, 0.5))[0])


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
def test_a_mask_and_the_blocks_that_it_leaves(target: str) -> None:
    table = np.repeat([0, 1, 2], [100, 70, 30]).astype(np.int32)
    q, k, v = random(1, 200, 1, 64), random(1, 200, 1, 64), random(1, 200, 1, 64)
    want = reference(q, k, v, True, mask=lambda b, h, i, j: table[i] == table[j])[0]
    with tilejit.knobs(target=target):
        blocks = attention_blocks(q, 1, 1, 200, 200, same_document, (table,), causal=True, block=(64, 64))
        if target == "evaluator":
            agree(attention(q, k, v, mask_mod=same_document, aux=(table,), causal=True), want)
        agree(attention(q, k, v, mask_mod=same_document, aux=(table,), causal=True, blocks=blocks), want)
    lists = [(row[2:2 + row[0]].tolist(), sorted(row[2 + row[0]:2 + row[0] + row[1]].tolist())) for row in blocks.table[0, 0]]
    assert lists == [([], [0]), ([], [0, 1]), ([], [1, 2]), ([], [2, 3])]


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("page, queries", [(32, 70), (48, 70), (1, 70), (7, 3), (48, 1)])
def test_pages(target: str, page: int, queries: int) -> None:
    """Of every size, for many queries and for few."""
    used, rng = np.array([150, 33], np.int32), np.random.default_rng(page)
    each = -(-160 // page)
    table = rng.permutation(2 * each + 2)[:2 * each].reshape(2, each).astype(np.int32)
    q, k, v = random(2, queries, 2, 64), *(random(2 * each + 2, page, 1, 64) for _ in range(2))
    with tilejit.knobs(target=target):
        out = attention(q, k, v, pages=table, used_keys=used, causal=True)
    whole = [x[table].reshape(2, each * page, 1, 64) for x in (k, v)]
    agree(out, reference(q, *whole, True, keys=used)[0])


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
def test_sequences_of_several_lengths(target: str) -> None:
    """Empty ones, queries without keys, keys without queries; nothing is written to a neighbour."""
    counts, key_counts = [70, 0, 1, 10], [90, 20, 130, 0]
    of_q, of_k = (np.cumsum([0, *x]).astype(np.int32) for x in (counts, key_counts))
    q, k, v = random(of_q[-1], 2, 64), random(of_k[-1], 1, 64), random(of_k[-1], 1, 64)
    with tilejit.knobs(target=target):
        out, lse = attention(q, k, v, causal=True, cu_queries=of_q, cu_keys=of_k, max_queries=70, max_keys=130,
                             return_lse=True)
    for i in (0, 2):
        a, b = slice(of_q[i], of_q[i + 1]), slice(of_k[i], of_k[i + 1])
        want, logs = reference(q[None, a], k[None, b], v[None, b], True)
        agree(out[a], want[0])
        assert np.allclose(lse[:, a], logs[0], atol=1e-5)
    assert (out[of_q[3]:] == 0).all() and np.isneginf(lse[:, of_q[3]:]).all()


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven multiprocessors, and shares that cost next to nothing."""
    monkeypatch.setattr(tilejit, "multiprocessors", lambda *_: 7)
    for name in ("SHARE", "JOIN"):
        monkeypatch.setattr(host, name, 1)
    host.forward_work.cache_clear()


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("way", [{}, {"causal": True}, {"causal": True, "window": (100, 0)}, {"chunk": 96}])
def test_sequences_in_shares(shared: None, target: str, way: dict[str, Any]) -> None:
    counts, key_counts = [70, 0, 1, 10], [900, 20, 1300, 0]
    of_q, of_k = (np.cumsum([0, *x]).astype(np.int32) for x in (counts, key_counts))
    q, k, v = random(of_q[-1], 2, 64), random(of_k[-1], 1, 64), random(of_k[-1], 1, 64)
    sinks = np.array([-1, 1.5], F32)
    with tilejit.knobs(target=target):
        out, lse = attention(q, k, v, cu_queries=of_q, cu_keys=of_k, max_queries=70, max_keys=1300, return_lse=True,
                             sinks=sinks, **way)
    for i in (0, 2):
        a, b = slice(of_q[i], of_q[i + 1]), slice(of_k[i], of_k[i + 1])
        want, logs = reference(q[None, a], k[None, b], v[None, b], sinks=sinks, **way)
        agree(out[a], want[0])
        assert np.allclose(lse[:, a], logs[0], atol=1e-5)
    assert (out[of_q[3]:] == 0).all()


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
def test_pages_in_shares(shared: None, target: str) -> None:
    used, table = np.array([1000, 0, 33], np.int32), np.random.default_rng(1).permutation(48).reshape(3, 16).astype(np.int32)
    q, k, v = random(3, 70, 2, 64), *(random(48, 64, 1, 64) for _ in range(2))
    with tilejit.knobs(target=target):
        out = attention(q, k, v, pages=table, used_keys=used, causal=True)
    agree(out, reference(q, *(x[table].reshape(3, 1024, 1, 64) for x in (k, v)), True, keys=used)[0])


@pytest.mark.parametrize("right", [None, 0])
@pytest.mark.parametrize("seed", range(6))
def test_a_list_of_shares(seed: int, right: int | None) -> None:
    """All keys of all blocks once, those of divided blocks first, no more of these than there is room for; then nothing."""
    rng = np.random.default_rng(seed)
    batch, heads, room = int(rng.integers(1, 40)), int(rng.integers(1, 9)), 60
    queries, keys = ((rng.integers(0, 700, batch) * (rng.random(batch) < p)).astype(np.int32) for p in (0.8, 0.9))
    of_q, of_k = (np.cumsum([0, *x]).astype(np.int32) for x in (queries, keys))
    stride = int((-(-queries // 64)).sum()) + room
    table = np.full((stride, 10), -7, np.int32)
    share_kernel[(batch,)](Shares(room, 0, stride, table=table), 700, 700, heads, batch, 132,
                           Options(Band(right=right), sequences=Sequences(of_q, of_k)), START=2, SHARE=5, JOIN=2,
                           PARTS=16, SIZE=64, BM=64, BN=16, num_warps=2)
    lists = table[:(table[:, 2] > 0).sum()].tolist()
    assert (table[len(lists):] == [0, 0, 0, 0, 0, 11, 0, 0, 0, 1]).all()
    shared = [x[9] > 1 for x in lists]
    assert shared == sorted(shared, reverse=True) and sum(shared) <= room
    at = 0
    for b in dict.fromkeys(x[0] for x in lists):
        blocks = range(-(-queries[b] // 64))
        for number in blocks if right is None else reversed(blocks):
            end = keys[b] - queries[b] + min(queries[b], number * 64 + 64) if right is not None else keys[b]
            walked, parts = 0, lists[at][9]
            for i in range(at, at + parts):
                assert lists[i] == [b, of_q[b], queries[b], of_k[b], keys[b], number, walked, lists[i][7], at, parts]
                walked = lists[i][7]
            assert walked >= min(keys[b], end)
            at += parts
    assert at == len(lists)


def test_narrow_heads_in_pages() -> None:
    """Three warpgroups need a producer, which reads no tables."""
    q, k, v = (np.zeros(x, BF16) for x in ((1, 512, 1, 64), (1, 64, 1, 64), (1, 64, 1, 64)))
    with tilejit.knobs(target="emulator"):
        out = attention(q, k, v, True, pages=np.zeros((1, 128), np.int32), used_keys=np.array([100], np.int32))
    assert not out.astype(F32).any()


@pytest.mark.remarks("spills", "stack", reason="with equal bits a masked loop of two heads keeps one register in memory")
@pytest.mark.parametrize("listed", [False, True])
def test_gradients_of_sequences_of_several_lengths(monkeypatch: pytest.MonkeyPatch, listed: bool) -> None:
    """Queries have a kernel of their own in the last case only. listed: programs of keys that are there only."""
    from tilejit.kernels.attention import backward
    from tilejit.kernels.attention.backward import gradients
    from tilejit.kernels.attention.forward import forward

    grids: list[tuple[int, ...]] = []
    if listed:
        monkeypatch.setattr(backward, "LAST", -1)
        monkeypatch.setattr(backward, "SAVED", -1)
        monkeypatch.setattr(backward, "share_kernel", Recorded(backward.share_kernel, grids))
    of_q, of_k = np.array([0, 70, 70, 75], np.int32), np.array([0, 90, 110, 250], np.int32)
    q, k, v, grad = random(75, 2, 64), random(250, 1, 64), random(250, 1, 64), random(75, 2, 64)
    monkeypatch.setattr(backward, "apart", lambda case, wide, queries: case.seed == 1)
    for deterministic, seed in ((False, 0), (True, 0), (False, 1)):
        case = Case(0.125, right=0, max_queries=70, max_keys=140, deterministic=deterministic, seed=seed)
        extras, lse = Extras(cu_queries=of_q, cu_keys=of_k), np.zeros((2, 75), F32)
        out = forward(q, k, v, case, extras, lse=lse)
        dq, dk, dv, _ = gradients(grad, q, k, v, out, lse, None, case, extras)
        for i in (0, 2):
            a, b = slice(of_q[i], of_q[i + 1]), slice(of_k[i], of_k[i + 1])
            want = reference(q[None, a], k[None, b], v[None, b], True, grad=grad[None, a])
            for x, y in zip((dq[a], dk[b], dv[b]), want[2:]):
                agree(x, y[0])
        assert (dk[90:110] == 0).all() and (dv[90:110] == 0).all()
    assert len(grids) == 3 * listed


def test_no_queries_and_odd_values() -> None:
    none, k = random(0, 1, 64), random(5, 1, 64)
    out = attention(none, k, k, True, cu_queries=np.zeros(2, np.int32), cu_keys=np.array([0, 5], np.int32))
    assert out.shape == (0, 1, 64)
    with pytest.raises(LaunchError, match="results of 60 elements need padded rows"):
        attention(random(1, 9, 1, 64), random(1, 9, 1, 64), random(1, 9, 1, 64)[..., :60])


def test_keys_that_are_not_used_get_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where sequences are one after another, too, and whatever memory has."""
    from tilejit.kernels.attention.backward import gradients

    made = tilejit.empty_like
    monkeypatch.setattr(tilejit, "empty_like", lambda *args: (lambda x: x.fill(1) or x)(made(*args)))
    of_q, of_k, used = np.array([0, 3, 4], np.int32), np.array([0, 70, 90], np.int32), np.array([9, 0], np.int32)
    q, k, v, grad = random(4, 1, 64), random(90, 1, 64), random(90, 1, 64), random(4, 1, 64)
    want = reference(q[None, :3], k[None, :9], v[None, :9], grad=grad[None, :3])
    _, dk, dv, _ = gradients(grad, q, k, v, want[0][0].astype(BF16), np.concatenate([want[1][0], [[-np.inf]]], 1).astype(F32), None,
                             Case(0.125, max_queries=3, max_keys=70), Extras(cu_queries=of_q, cu_keys=of_k, used=used))
    for got, right in ((dk, want[3]), (dv, want[4])):
        agree(got[:9], right[0], 1e-2)  # of results as they were rounded
        assert not got[9:].astype(F32).any()


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("sizes, causal, parts", [((2, 1, 400, 8, 1, 64, 64), False, 4), ((1, 3, 200, 4, 2, 128, 128), True, 2),
                                                  ((1, 1, 200, 6, 2, 192, 128), False, 3)])
def test_few_queries(target: str, sizes: tuple[int, ...], causal: bool, parts: int) -> None:
    """Heads that share keys in one tile (a group of three is not), keys in parts, one of which may be empty."""
    batch, n, m, heads, kv_heads, d, dv = sizes
    q, k, v = random(batch, n, heads, d), random(batch, m, kv_heads, d), random(batch, m, kv_heads, dv)
    out, lse = np.zeros((batch, n, heads, dv), BF16), np.zeros((batch, heads, n), F32)
    used, sinks = np.array([m, 7][:batch], np.int32), random(heads, dtype=F32)
    with tilejit.knobs(target=target):
        decode(q, k, v, Case(d ** -0.5, right=0 if causal else None), Extras(used=used, sinks=sinks), out, lse, parts)
    want, logs = reference(q, k, v, causal, keys=used, sinks=sinks)
    agree(out, want)
    assert np.allclose(lse, logs, atol=1e-5)


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("page, parts", [(0, 3), (16, 1), (24, 2)])
def test_few_queries_in_8_bits(target: str, page: int, parts: int) -> None:
    """Values become fp16, which has all of their numbers; nothing is turned in a pass of its own."""
    q, k, v = (random(2, n, h, 64, dtype=ml_dtypes.float8_e4m3fn) for n, h in ((2, 4), (192, 2), (192, 2)))
    of_q, of_k, of_v = (np.array([[a, b], [b, a]], F32) for a, b in ((0.5, 2), (1, 0.5), (3, 1)))
    out, used = np.zeros((2, 2, 4, 64), BF16), np.array([190, 70], np.int32)
    wide = [x.astype(F32) * y[:, None, :, None] for x, y in ((q, np.repeat(of_q, 2, 1)), (k, of_k), (v, of_v))]
    table = None
    if page:
        table = np.random.default_rng(0).permutation(2 * 192 // page).astype(np.int32).reshape(2, -1)
        k, v = (np.ascontiguousarray(x.reshape(-1, page, 2, 64)[np.argsort(table.reshape(-1))]) for x in (k, v))
    with tilejit.knobs(target=target):
        decode(q, k, v, Case(0.125, page=page, max_keys=192 if page else 0),
               Extras(used=used, table=table, descales=(np.repeat(of_q, 2, 1), of_k, of_v)), out, None, parts)
    agree(out, reference(*wide, scale=0.125, keys=used)[0])


@pytest.mark.parametrize("d", [128, 192, 256])
def test_heads_of_few_queries_in_8_bits(d: int) -> None:
    """Of 192 elements values are turned, since what passes through registers has a power of two of columns."""
    q, k, v = (random(1, n, h, d, dtype=ml_dtypes.float8_e4m3fn) for n, h in ((1, 2), (150, 1), (150, 1)))
    used = np.array([149], np.int32)
    with tilejit.knobs(target="emulator"):
        agree(attention(q, k, v, used_keys=used), reference(q, k, v, keys=used)[0], 5e-2 if d == 192 else 5e-3)


def test_parts_are_stored_from_registers() -> None:
    """By vectors, by the threads that have rows that are there; few rows are columns of products."""
    k = attention_kernel.compile("desc<bf16[1x1x1x8x128]>", *["desc<bf16[1x64x1x128]>"] * 2,
                                 Rows("*fp32:16", *["int32:16"] * 4), "*fp32", "int32", "int32:16", "fp32", "int32:16", "int32",
                                 Options(), GROUP=8, PACK=8, TAIL=False, SPLIT=1, PARTED=True, PERSISTENT=False,
                                 TURNED=False, BM=8, BN=64, D=128, DV=128, FEW=True, num_warps=4)
    assert "staged" not in k.report() and k.ptx.count("st.global.v4.b32") == 2 and k.ptx.count("m64n8k16") == 16


def test_parts_of_the_keys() -> None:
    """As many programs as the chip has room for, no more parts than blocks, none where the chip is full anyway; the
    fewest of those that leave a program as few blocks."""
    assert parts_of(1, 1000, 132) == 125 and parts_of(8, 3, 132) == 3 and parts_of(128, 50, 132) == 1
    assert parts_of(1, 256, 132) == 128 and parts_of(2, 256, 132) == 64 and parts_of(1, 16, 132) == 16


def test_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """bf16's functions are approximated unless that is refused, fp16's never."""
    asked: list[bool] = []
    monkeypatch.setattr(function, "forward", lambda q, k, v, case, *rest: asked.append(case.exact))
    for dtype in (BF16, np.float16):
        for exact in (False, True):
            attention(*(random(1, 17, 1, 64, dtype=dtype) for _ in range(3)), softcap=2.0, exact=exact, tiles=(64, 64))
    assert asked == [False, True, True, True]


def test_dropout() -> None:
    """The same weights are dropped whatever the tiles; the mean stays."""
    q, k = random(1, 128, 1, 64), random(1, 512, 1, 64)
    v = np.ones((1, 512, 1, 64), BF16)
    one, other = (attention(q, k, v, dropout=0.25, seed=7, tiles=t) for t in ((128, 64), (128, 32)))
    agree(one, other.astype(np.float64))
    assert abs(one.astype(F32).mean() - 1) < 0.02 and one.astype(F32).std() > 0.02
    assert (attention(q, k, v, dropout=0.25, seed=8) != one).any()


@pytest.mark.parametrize("d", [64, 192])
def test_fp8(d: int) -> None:
    q, k, v = (random(1, 70, 1, d, dtype=ml_dtypes.float8_e4m3fn) for _ in range(3))
    scales = (np.full((1, 1), 2.0, F32), np.full((1, 1), 0.5, F32), np.full((1, 1), 3.0, F32))
    out, lse = attention(q, k, v, descales=scales, return_lse=True)
    want, logs = reference(q, k, v)
    assert out.dtype == BF16 and np.allclose(lse, logs, atol=1e-5)
    agree(out, 3 * want, 5e-2)


def test_keys_of_a_block() -> None:
    """As many as there are registers for, if keys are not padded much; powers of two where a head's width is none."""
    def keys(n: int, d: int, size: int, causal: bool = False, most: int = 256, plain: bool = True) -> int:
        return keys_of_tile(size, n, n, d, d, causal, plain, most)

    assert [keys(4096, d, 1) for d in (64, 128, 192, 256)] == [256, 224, 128, 96]
    assert keys(4096, 128, 1, True) == 192 and keys(1024, 128, 1) == keys(1024, 128, 1, True) == 128
    assert keys(4096, 128, 1, plain=False) == 160 and keys(4096, 128, 1, most=112) == 96 and keys(4096, 192, 1, most=112) == 64
    assert [keys(4096, d, 2) for d in (64, 128, 192, 256)] == [128, 128, 64, 80] and keys(512, 256, 2) == 64


def test_queries_of_a_block() -> None:
    """Narrow heads: three warpgroups, or four where that pads less."""
    q = tilejit.array_info(random(1, 1, 1, 64))

    def tiles(n: int, causal: bool = False) -> tuple[int, int]:
        return _tiles(q, n, n, 64, 64, causal, True, True, 256)

    assert tiles(512) == tiles(1024) == (256, 64) and tiles(768) == tiles(4096) == tiles(8192, True) == (192, 128)
    assert tiles(512, True) == tiles(4096, True) == tiles(256) == (128, 128) and tiles(1000) == (192, 128)


def test_fp8_in_the_emulator() -> None:
    """Values lie along the keys, weights stay in registers; keys, and elements of a head, that fill no block."""
    q, k, v = (random(1, n, h, 112, dtype=ml_dtypes.float8_e4m3fn) for n, h in ((130, 2), (350, 1), (350, 1)))
    with tilejit.knobs(target="emulator"):
        agree(attention(q, k, v, causal=True), reference(q, k, v, True)[0], 5e-2)
        out = np.zeros((*q.shape[:3], 96), BF16)[..., :90]                               # of no whole words
        agree(attention(q, k, v[..., :90], out=out), reference(q, k, v[..., :90])[0], 5e-2)
    with pytest.raises(LaunchError, match="blocks of 48 keys; values in 8 bits need a multiple of 32"):
        attention(q, k, v, tiles=(128, 48))


def test_fp8_of_several_lengths() -> None:
    """Values pass through registers: fewer keys a block, so that nothing is spilled."""
    q, k, v = (random(350, 1, 128, dtype=ml_dtypes.float8_e4m3fn) for _ in range(3))
    cu = np.array([0, 130, 350], np.int32)
    with tilejit.knobs(target="emulator"):
        out = attention(q, k, v, cu_queries=cu, cu_keys=cu, max_queries=220, max_keys=220)
    for a, b in ((0, 130), (130, 350)):
        agree(out[None, a:b], reference(*(x[None, a:b] for x in (q, k, v)))[0], 5e-2)


@pytest.mark.parametrize("keys, d, block", [(200, 128, 128), (70, 40, 64), (130, 192, 64)])
def test_values_in_8_bits_are_turned(keys: int, d: int, block: int) -> None:
    """Words of 0, 1, 8 and 9 of 16 keys, zeros behind the last one, by vectors both ways."""
    v = random(2, keys, 3, d, dtype=ml_dtypes.float8_e4m3fn)
    padded = -(-keys // 32) * 32
    out = np.ones((2, 3, d, padded), v.dtype)
    with tilejit.knobs(target="emulator"):
        k = turn_kernel[(-(-padded // 128), 3 * -(-d // block), 2)](v, out, keys, padded, 3, keys * 3 * d, 3 * d, d, d, BLOCK=128, D=block,
                                                                 num_warps=4)
    want = np.zeros((2, padded, 3, d), np.uint8)
    want[:, :keys] = v.view(np.uint8)
    want = want.reshape(2, -1, 2, 2, 4, 2, 3, d).transpose(0, 1, 2, 4, 3, 5, 6, 7).reshape(2, padded, 3, d)
    assert (out.view(np.uint8) == want.transpose(0, 2, 3, 1)).all()
    if d % 16 == 0:
        assert "ld.global.v4.b32" in k.ptx and "st.global.v4.b32" in k.ptx and "st.shared.b8" not in k.ptx


@pytest.mark.parametrize("d, rows, keys", [(64, 128, 128), (64, 192, 128), (128, 128, 160), (256, 128, 96)])
def test_weights_in_8_bits_stay_in_registers(d: int, rows: int, keys: int) -> None:
    fp8 = [f"desc<fp8e4nv[{s}]>" for s in (f"1x{rows}x1x{d}", f"1x{keys}x1x{d}", f"1x1x{d}x{keys}")]
    k = attention_kernel.compile(*fp8, f"desc<bf16[1x{rows}x1x{d}]>", "*fp32", "int32:16", "int32:16", "fp32", "int32", "int32",
                                 Options(descales=("*fp32",) * 3), GROUP=1, PACK=1, TAIL=False, SPLIT=1, PARTED=False,
                                 PERSISTENT=d < 256, TURNED=True, BM=rows, BN=keys, D=d, DV=d, num_warps=rows // 16)
    assert "of the next iteration is in flight with acc of this one" in k.report()
    assert "goes through registers into" not in k.report()
    assert "0x0040" not in k.asm["ptx"]          # pairs of weights are put together, never single ones
