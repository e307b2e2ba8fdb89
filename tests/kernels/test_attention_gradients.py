"""Gradients of attention against float64, in the evaluator and in the emulator, with every option."""
from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from attention_reference import reference
from hypothesis import given, settings
from hypothesis import strategies as st

import tilejit
import tilejit.language as tl
from tilejit.errors import LaunchError
from tilejit.kernels.attention import backward
from tilejit.kernels.attention.backward import gradients
from tilejit.kernels.attention.backward_kernel import key_kernel, pieces, query_kernel
from tilejit.kernels.attention.cases import Case, Extras
from tilejit.kernels.attention.forward import forward
from tilejit.kernels.attention.scores import Band, Options, Rows
from tilejit.testing import rel_error

BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32
APART = 18
WAYS: dict[str, dict[str, Any]] = {"any order": {}, "equal bits": {"deterministic": True}, "queries apart": {"seed": APART}}


@tilejit.kernel
def in_pieces(x, out):
    i = tl.arange(0, 4)
    tl.store(out + i[:, None] * 16 + tl.arange(0, 16)[None, :], pieces(tl.load(x + i), tl.load(x + i)))


@pytest.fixture(autouse=True)
def both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries have a kernel of their own where that is asked for only, by a seed that nothing else uses."""
    monkeypatch.setattr(backward, "apart", lambda case, wide, queries: case.seed == APART)


def agree(sizes: tuple[int, ...], target: str = "evaluator", dtype: Any = BF16, of_lse: bool = False,
          extras: Extras = Extras(), **case: Any) -> None:
    """Result, logarithms and gradients of random inputs (batch, queries, keys, heads, kv heads, d, dv)."""
    batch, n, m, heads, kv_heads, d, dv = sizes
    rng = np.random.default_rng(n + m + d)
    q, k, v, grad = [rng.standard_normal(s, F32).astype(dtype) for s in (
        (batch, n, heads, d), (batch, m, kv_heads, d), (batch, m, kv_heads, dv), (batch, n, heads, dv))]
    lse, lse_grad = np.zeros((batch, heads, n), F32), rng.standard_normal((batch, heads, n), F32) if of_lse else None
    setting = Case(d ** -0.5, **case)
    with tilejit.knobs(target=target):
        out = forward(q, k, v, setting, extras, lse=lse)
        got = gradients(grad, q, k, v, out, lse, lse_grad, setting, extras)
    window = case.get("left"), case.get("right")
    want = reference(q, k, v, window=window, chunk=case.get("chunk"), softcap=case.get("softcap"), prefix=extras.prefix,
                     alibi=extras.slopes, sinks=extras.sinks, keys=extras.used, grad=grad, lse_grad=lse_grad)
    for a, b in zip((out, *got), (want[0], *want[2:])):
        assert (a is None) == (b is None)
        bound = 5e-3 if dtype == BF16 else 1e-3
        assert a is None or rel_error(a.astype(np.float64), b) <= (bound if a.ndim > 1 else 4 * bound)   # sums cancel


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sizes, case", [
    ((2, 100, 200, 4, 2, 64, 40), {"right": 0}), ((1, 130, 130, 1, 1, 128, 128), {}),
    ((1, 150, 170, 2, 2, 192, 128), {"of_lse": True}), ((1, 1, 1, 1, 1, 64, 64), {}),
    ((1, 140, 60, 1, 1, 64, 64), {"right": 0, "dtype": F16})])
def test_against_float64(monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], case: dict[str, Any],
                         way: str) -> None:
    """On one multiprocessor: in whole blocks, those of queries of 128."""
    monkeypatch.setattr(tilejit, "multiprocessors", lambda device=None: 1)
    agree(sizes, **WAYS[way], **case)


@pytest.mark.parametrize("d, way", [(64, "any order"), (64, "equal bits"), (64, "queries apart"), (128, "any order"),
                                    (128, "equal bits"), (192, "queries apart"), (256, "queries apart")])
def test_in_the_emulator(monkeypatch: pytest.MonkeyPatch, d: int, way: str) -> None:
    """Heads of 192, whose sums in memory would be of 256, in whole blocks."""
    monkeypatch.setattr(tilejit, "multiprocessors", lambda device=None: 1 if d == 192 else 132)
    agree((1, 70, 140, 128 // min(d, 128), 1, d, d), "emulator", right=0, of_lse=True, **WAYS[way])


def test_softcap_and_slopes_in_the_emulator() -> None:
    agree((1, 70, 130, 1, 1, 128, 128), "emulator", right=0, softcap=1.5, extras=Extras(slopes=np.array([0.25], F32)))


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
def test_tanh_in_one_instruction(target: str) -> None:
    agree((1, 70, 70, 1, 1, 64, 64), target, softcap=20.0, exact=False)


@pytest.mark.parametrize("way", ["any order", "equal bits"])
def test_sums_of_many_queries_have_a_kernel_of_their_own(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Elsewhere the last program of a head gives its gradients of queries."""
    launched, kernel = [], backward.sum_kernel

    class Recorded:
        def __getitem__(self, grid: Any) -> Any:
            launched.append(grid)
            return kernel[grid]

    monkeypatch.setattr(backward, "sum_kernel", Recorded())
    sizes = (1, 300, 200, 4, 2, 64, 40)
    agree(sizes, right=0, **WAYS[way])
    assert not launched
    monkeypatch.setattr(backward, "LAST", 2 * 300 * 64 * 4 - 1)
    agree(sizes, right=0, of_lse=True, **WAYS[way])
    assert launched == [(3, 4, 1)]


@pytest.mark.remarks("spills", "stack", reason="a few registers are in memory before a share is stored, behind the loop")
@pytest.mark.parametrize("sizes, chip, right, target, way", [
    ((1, 200, 384, 1, 1, 64, 64), 2, None, "evaluator", "any order"),
    ((1, 200, 100, 2, 1, 128, 64), 132, 0, "evaluator", "equal bits"),
    ((1, 130, 70, 1, 1, 160, 136), 132, None, "evaluator", "queries apart"),
    ((1, 70, 200, 4, 1, 72, 72), 132, 0, "evaluator", "any order"),
    ((1, 200, 128, 1, 1, 128, 128), 132, None, "emulator", "equal bits"),
    ((1, 270, 100, 1, 1, 64, 64), 132, None, "emulator", "any order")])
def test_shares_of_blocks(monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], chip: int, right: int | None,
                          target: str, way: str) -> None:
    """The last programs' queries, of which some have none, are divided; as many as multiprocessors have whole blocks."""
    launched, kernel = [], backward.key_kernel

    class Recorded:
        def __getitem__(self, grid: Any) -> Any:
            launched.append(grid)
            return kernel[grid]

    monkeypatch.setattr(backward, "LAST", 0)
    monkeypatch.setattr(backward, "JOINS", 0.1)
    monkeypatch.setattr(tilejit, "multiprocessors", lambda device=None: chip)
    monkeypatch.setattr(backward, "key_kernel", Recorded())
    agree(sizes, target, right=right, **WAYS[way])
    steps = [-(-sizes[2] // bn) * sizes[0] * sizes[4] for bn in (64, 128)]
    assert all(grid[0] not in steps and grid[1:] == (1, 1) for grid in launched) and launched


@settings(max_examples=100)
@given(programs=st.integers(1, 999), chip=st.integers(1, 132), blocks=st.integers(1, 300), group=st.integers(1, 16),
       part=st.sampled_from((0.5, 1.0)))
def test_shares_take_no_longer(programs: int, chip: int, blocks: int, group: int, part: float) -> None:
    whole, count, heads = backward.shares_of(programs, chip, blocks, group, part)
    assert whole == programs and count == 1 or whole % chip == 0 and programs - whole < chip
    assert group % heads == 0 and count % heads == 0 and count // heads <= blocks
    rounds = -(-(programs - whole) * count // chip) * -(-blocks // (count // heads)) * group // heads
    assert count == 1 or rounds * part < blocks * group * part
    assert backward.shares_of(programs=8, chip=132, blocks=75, group=1) == (0, 15, 1)
    assert backward.shares_of(programs=8, chip=132, blocks=2, group=128) == (0, 16, 8)


def test_several_blocks_in_the_emulator() -> None:
    """Loops in two stages, of which the masked one and the other are one pipeline."""
    agree((1, 330, 200, 1, 1, 64, 64), "emulator", right=0)


def shapes(d: int, queries: int, keys: int) -> list[str]:
    return [f"desc<bf16[1x{n}x1x{d}]>" for n in (queries, keys, keys, queries)]


def of_keys(d: int, causal: bool, bm: int, added: bool = False, sums: tuple = ("*fp32:16", None), group: int = 1) -> Any:
    stats = f"desc<bf16[1x{bm}x16]>" if added else f"desc<fp32[1x1x{bm}]>"
    to = None if sums[0] is None else Rows("*bf16:16", "int32:16", "int32:16", "int32:16", "int32:16")
    return key_kernel.compile(*shapes(d, bm, 128), stats, *sums, None, *[f"desc<bf16[1x128x1x{d}]>"] * 2, to,
                              to and "*int32:16", None, "int32:16", "int32:16", "fp32", "fp32", "int32:16", Options(Band(right=0 if causal else None)), GROUP=group,
                              TAIL=causal, SPLIT=1, BM=bm, BN=128, D=d, DV=d, ADDED=added, AT_ONCE=4 if sums[1] is None else 2, num_warps=8,
                              num_stages=2 if bm == 128 else None)


@pytest.mark.parametrize("causal", [False, True])
def test_products_of_keys_overlap(causal: bool) -> None:
    """Slots of q and grad are read in both stages, and a block is loaded once."""
    k = of_keys(64, causal, 64, sums=(None, None))
    assert k.report().count("scores, weight_grad of the next iteration is in flight with dv, dk of this one") == 1 + causal
    assert ("goes on with what" in k.report()) == causal
    assert sorted(re.findall(r"ring (\S+): ", k.report())) == ["delta", "grad", "k", "log", "q", "v"]
    assert "176 registers a thread for tiles at once" in k.report()


@pytest.mark.parametrize("sums", [("*fp32:16", None), ("*int32:16", "*fp32:16")])
@pytest.mark.parametrize("d, causal, group", [(64, False, 1), (64, True, 4), (128, False, 4), (128, True, 1)])
def test_products_of_queries_are_a_trip_behind(d: int, causal: bool, group: int, sums: tuple) -> None:
    """Scores' gradients lie in shared memory meanwhile, warpgroups do not meet in the loop, and nothing is spilled (the fixture sees
    to that), nor are sums copied."""
    k = of_keys(d, causal, 8192 // d, True, sums, group)
    assert "is handed to the next trip in 2 x" in k.report()
    body = k.asm["ptx"].split("$loop_")[-2 if group == 1 else -1]
    assert "bar.sync" not in k.asm["ptx"].partition("wgmma.mma_async")[2].rpartition("wgmma.mma_async")[0]
    assert body.count("mov.f32") < 64


def test_a_slot_that_is_read_again_needs_another_one() -> None:
    k = query_kernel.compile(*shapes(64, 128, 64), "desc<fp32[1x1x128]>", "desc<bf16[1x128x1x64]>", "int32:16",
                             "int32:16", "fp32", "fp32", "int32:16", Options(Band(right=0)), GROUP=1, TAIL=True, SPLIT=1, PAD=64,
                             BM=128, BN=64, D=64, DV=64, num_warps=8, num_stages=1)
    assert "products and what is between them do not overlap: there is no shared memory for it" in k.report()


@pytest.mark.parametrize("causal", [False, True])
def test_wide_heads_have_a_second_slot_for_what_is_read_again(causal: bool) -> None:
    """Keys, which scores and the gradient of queries read, have two; values, which scores' gradients read, have one."""
    k = query_kernel.compile(*shapes(256, 128, 64), "desc<fp32[1x1x128]>", "desc<bf16[1x128x1x256]>", "int32:16",
                             "int32:16", "fp32", "fp32", "int32:16", Options(Band(right=0 if causal else None)), GROUP=1,
                             TAIL=causal, SPLIT=1, PAD=64, BM=128, BN=64, D=256, DV=256, num_warps=8,
                             products_ahead=True)
    assert k.report().count("scores, weight_grad of the next iteration is in flight with dq of this one") == 1 + causal
    assert "ring k: 2 slots x 32768 bytes" in k.report() and "ring v: 1 slots x 32768 bytes" in k.report()


@pytest.mark.parametrize("causal, group", [(False, 1), (False, 4), (True, 1)])
@pytest.mark.parametrize("of_keys", [False, True])
def test_keys_and_values_of_wide_heads_apart(of_keys: bool, group: int, causal: bool) -> None:
    """All of a thread's registers but a few, and no spills (the fixture sees to that)."""
    to = ["desc<bf16[1x128x1x256]>", None]
    k = key_kernel.compile(*shapes(256, 64, 128), "desc<fp32[1x1x64]>", None, None, None, *(to if of_keys else to[::-1]), None, None, None, "int32:16",
                           "int32:16", "fp32", "fp32", "int32:16", Options(Band(right=0 if causal else None)), GROUP=group,
                           TAIL=causal, SPLIT=1, BM=64, BN=128, D=256, DV=256, num_warps=8, products_ahead=True)
    first, second = ("scores, weight_grad", "dk") if of_keys else ("scores", "dv")
    assert k.report().count(f"{first} of the next iteration is in flight with {second} of this one") == 1 + causal
    assert ("ring v: " in k.report()) == of_keys


@pytest.mark.parametrize("d", [64, 128])
def test_products_of_queries_overlap(d: int) -> None:
    k = query_kernel.compile(*shapes(d, 128, 64), "desc<fp32[1x1x128]>", f"desc<bf16[1x128x1x{d}]>", "int32:16",
                             "int32:16", "fp32", "fp32", "int32:16", Options(Band(right=0)), GROUP=1, TAIL=True, SPLIT=1, PAD=64,
                             BM=128, BN=64, D=d, DV=d, num_warps=8)
    assert "scores, weight_grad of the next iteration is in flight with dq of this one" in k.report()


OPTIONS = {
    "window": ({"left": 40, "right": 10}, {}), "chunk": ({"chunk": 48, "right": 0}, {}),
    "softcap": ({"softcap": 1.5}, {}), "prefix": ({"right": 0}, {"prefix": np.array([30, 0], np.int32)}),
    "sinks": ({"right": 0, "of_lse": True}, {"sinks": np.array([0.5, -1.0], F32)}),
    "alibi": ({"right": 0}, {"slopes": np.array([0.25, 0.01], F32)}),
    "used": ({"right": 0}, {"used": np.array([100, 1], np.int32)})}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str) -> None:
    case, extras = OPTIONS[name]
    agree((2, 70, 150, 2, 2, 64, 64), extras=Extras(**extras), deterministic=name in ("window", "sinks", "alibi", "used"), **case)


@pytest.mark.parametrize("wide, queries, case, apart", [
    (128, 1024, {}, False), (128, 512, {}, True), (64, 512, {"right": 0}, False), (256, 1024, {"left": 40}, True),
    (128, 1024, {"deterministic": True}, True), (128, 2048, {"deterministic": True}, False),
    (64, 512, {"deterministic": True}, True), (64, 1024, {"deterministic": True}, False),
    (64, 1024, {"deterministic": True, "score": abs}, True)])
def test_which_way_is_chosen(monkeypatch: pytest.MonkeyPatch, wide: int, queries: int, case: dict, apart: bool) -> None:
    monkeypatch.undo()
    assert backward.apart(Case(1.0, **case), wide, queries) == apart


def test_sums_of_whole_numbers_have_room() -> None:
    """All of a row's contributions at their bound, and of one sign; rows whose gradients are very small, or zero."""
    n, d = 256, 64
    sign = np.where(np.arange(n) % 2, 1, -1)[None, :, None, None]
    only = np.zeros((1, n, 1, d), BF16)
    only[..., 3] = 1.0
    q, k, v = np.zeros((1, n, 1, d), BF16), (only * sign).astype(BF16), (only * sign * 5).astype(BF16)
    size = np.array([1.0, 1e-6, 1e-30, 0.0, 1e6], F32)[np.arange(n) % 5][None, :, None, None]
    grad, lse = (only * size).astype(BF16), np.zeros((1, 1, n), F32)
    case = Case(1.0, deterministic=True)
    with tilejit.knobs(target="evaluator"):
        out = forward(q, k, v, case, Extras(), lse=lse)
        got = gradients(grad, q, k, v, out, lse, None, case, Extras())[0]
    assert np.allclose(got.astype(F32), grad.astype(F32) * 5, rtol=1e-2, atol=1e-33)


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite(value: float, at: int) -> None:
    """Gradients of queries that are not finite are not with equal bits either; all of the same head may be."""
    rng = np.random.default_rng(at)
    given = [rng.standard_normal((1, 150, 2, 64), F32).astype(BF16) for _ in range(4)]
    given[at][0, 77, 1, 5] = value
    q, k, v, grad = given
    lse, found = np.zeros((1, 2, 150), F32), []
    with tilejit.knobs(target="evaluator"), np.errstate(all="ignore"):
        out = forward(q, k, v, Case(0.125), Extras(), lse=lse)
        for deterministic in (False, True):
            dq = gradients(grad, q, k, v, out, lse, None, Case(0.125, deterministic=deterministic), Extras())[0]
            found.append(~np.isfinite(dq.astype(F32)))
    assert found[0][0, :, 1].any() and (found[0] <= found[1]).all() and not found[1][0, :, 0].any()


def test_gradients_of_scores_beyond_fp16() -> None:
    """Those of queries of the same head are not finite, as those of keys: a scale of losses that is too great shows."""
    rng = np.random.default_rng(0)
    q, k, v, grad = [rng.standard_normal((1, 100, 2, 64), F32).astype(F16) for _ in range(4)]
    q[:, 7, 1], grad[:, 7, 1], v[:, 9, 1] = 0.0, 4000.0, 60.0
    lse, case = np.zeros((1, 2, 100), F32), Case(0.125, deterministic=True)
    with tilejit.knobs(target="evaluator"), np.errstate(all="ignore"):
        out = forward(q, k, v, case, Extras(), lse=lse)
        dq, dk = gradients(grad, q, k, v, out, lse, None, case, Extras())[:2]
    assert not np.isfinite(dk[0, 9, 1]).any() and np.isnan(dq[0, :, 1]).all() and np.isfinite(dq[0, :, 0]).all()


def test_sums_begin_with_numbers_in_three_pieces() -> None:
    """Also with those of a row that sees nothing: nothing infinite is multiplied by zero. NaN stays."""
    got = np.full((4, 16), np.nan, np.float32).astype(BF16)
    x = np.array([np.pi * 1e3, -1e-20, -np.inf, np.nan], F32)

    with tilejit.knobs(target="evaluator"):
        in_pieces[(1,)](x, got)
    halves = got.astype(np.float64).reshape(4, 2, 8)
    assert np.allclose(halves.sum(2)[:2], x[:2, None], rtol=2e-7) and not halves[..., 3:].any()
    assert np.allclose(halves.sum(2)[2:], [[-np.inf, -3e38], [np.nan] * 2], equal_nan=True)


def test_a_wide_window_has_a_loop_without_masks() -> None:
    agree((1, 128, 1000, 1, 1, 64, 64), left=800, right=0)


def test_what_has_no_gradient() -> None:
    q, k, v = np.zeros((1, 64, 1, 64), BF16), np.zeros((4, 16, 1, 64), BF16), np.zeros((4, 16, 1, 64), BF16)
    table = np.arange(4, dtype=np.int32)[None]
    with tilejit.knobs(target="evaluator"), pytest.raises(LaunchError, match="pages has no gradient"):
        gradients(q, q, k, v, q, np.zeros((1, 1, 64), F32), None, Case(1.0, page=16, max_keys=64), Extras(table=table))
