"""Atomics: every kind and order, loads, stores and waiting; and pointers that lie in memory."""
import numpy as np
import pytest
from run import both, equal

import tilejit
import tilejit.language as tl


@tilejit.kernel
def adds(y, old, x, N: tl.constexpr, KIND: tl.constexpr, SEM: tl.constexpr, SCOPE: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at)
    if KIND == "add":
        before = tl.atomic_add(y + at, v, at % 2 == 0, sem=SEM, scope=SCOPE)
    elif KIND == "max":
        before = tl.atomic_max(y + at, v, at % 2 == 0, SEM, SCOPE)
    elif KIND == "xchg":
        before = (y + at).atomic_xchg(v, mask=at % 2 == 0, sem=SEM, scope=SCOPE)
    else:
        before = tl.atomic_cas(y + at, 0, v, sem=SEM, scope=SCOPE)
    tl.store(old + at, tl.where(at % 2 == 0, before, 0))


@pytest.mark.parametrize("kind,sem,scope,dtype", [
    ("add", None, None, np.float16), ("add", "relaxed", "cta", np.int64), ("max", "acquire", "sys", np.float32),
    ("max", "release", "gpu", np.uint32), ("xchg", "acq_rel", "gpu", np.float64), ("cas", "relaxed", "sys", np.int32)])
def test_kinds_orders_and_scopes(kind, sem, scope, dtype):
    rng = np.random.default_rng(1)
    y, x = (rng.integers(0, 3, (2, 64)) - (0 if dtype == np.uint32 else 1)).astype(dtype)
    even = np.arange(64) % 2 == 0
    new = {"add": y + x, "max": np.maximum(y, x), "xchg": x, "cas": np.where(y == 0, x, y)}[kind]
    for got, old in both(adds, [y, np.zeros_like(y)], x, N=64, KIND=kind, SEM=sem, SCOPE=scope):
        np.testing.assert_array_equal(got, new if kind == "cas" else np.where(even, new, y))
        np.testing.assert_array_equal(old, np.where(even, y, 0))
    given = {"N": 64, "KIND": kind, "SEM": sem, "SCOPE": scope}
    text = adds.compile(y, y, x, **given).ptx
    order = (scope or "gpu", sem or "acq_rel")
    assert "atom.global." + ".".join(reversed(order) if kind == "cas" else order) in text


@tilejit.kernel
def plain(y, x, N: tl.constexpr, SEM: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.atomic_load(x + at, at < N // 2, sem="acquire" if SEM else "relaxed", scope="sys")
    tl.atomic_store(y + at, tl.where(at < N // 2, v, 1), at > 0, sem="release" if SEM else "relaxed", scope="sys")


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32, np.int64, np.bool_])
@pytest.mark.parametrize("ordered", [True, False])
def test_loads_and_stores(dtype, ordered):
    x = np.random.default_rng(2).integers(0, 2, 32).astype(dtype)
    expected = np.where(np.arange(32) < 16, x, 1).astype(dtype)
    expected[0] = 0
    equal(plain, [expected], x, N=32, SEM=ordered)
    text = plain.compile(x, x, N=32, SEM=ordered).ptx
    assert f"ld.{'acquire' if ordered else 'relaxed'}.sys.global" in text
    assert f"st.{'release' if ordered else 'relaxed'}.sys.global" in text


@tilejit.kernel
def hand_over(y, flag, x, N: tl.constexpr):
    at = tl.arange(0, N)
    if tl.program_id(0) == 0:
        tl.store(y + N + at, tl.load(x + at))
        tl.atomic_store(flag, 1)
    else:
        tl.atomic_poll(flag, 1)
        tl.store(y + at, tl.load(y + N + at))


def test_one_program_waits_for_another():
    x = np.arange(64, dtype=np.int32)
    equal(hand_over, [np.concatenate([x, x]), np.ones(1, np.int32)], x, N=64, grid=2)


@tilejit.kernel
def gives_up(y, flag, LIMIT: tl.constexpr, SEM: tl.constexpr = None):
    at = tl.program_id(0)
    tl.store(y + at, tl.atomic_poll(flag + at, 7, timeout_ns=LIMIT, sem=SEM))


def test_waiting_ends_in_time():
    equal(gives_up, [np.array([True, False, True, False])], np.array([7, 0, 7, 1]), LIMIT=1000, grid=4)


@pytest.mark.parametrize("sem,fences", [("acquire", 1), ("relaxed", 0)])
def test_waiting_is_relaxed_and_ends_with_a_fence(sem, fences):
    made = gives_up.compile("*int8", "*int32", LIMIT=None, SEM=sem)
    assert made.ptx.count("ld.relaxed.gpu.global.b32") == 1 and made.ptx.count("fence.acquire.gpu") == fences
    assert "globaltimer" not in made.ptx and made.metadata.shared_bytes == 0


def test_waiting_is_for_one_address():
    @tilejit.kernel
    def many(flag):
        tl.atomic_poll(flag + tl.arange(0, 4), 7)

    with pytest.raises(tilejit.CompilationError, match="atomic_poll only supports a pointer to a scalar"):
        many.compile("*int32")


@tilejit.kernel
def through(y, table, pointees, N: tl.constexpr):
    at = tl.arange(0, N)
    place = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    tl.store(y + tl.program_id(0) * N + at, tl.load(place + at) * 2)


def test_pointers_in_memory():
    arrays = np.random.default_rng(3).standard_normal((3, 32)).astype(np.float32)
    y, table = np.zeros((3, 32), np.float32), np.array([a.ctypes.data for a in arrays])
    with tilejit.knobs(target="emulator"):               # the evaluator's addresses are not the host's
        through[(3,)](y, table, arrays, N=32)
    np.testing.assert_array_equal(y, arrays * 2)


@pytest.mark.parametrize("call,message", [
    (lambda: adds.compile(np.zeros(4, np.int16), np.zeros(4, np.int16), np.zeros(4, np.int16), N=4, KIND="add", SEM=None,
                          SCOPE=None), "atomic_add does not support int16"),
    (lambda: adds.compile(np.zeros(4, np.float16), np.zeros(4), np.zeros(4), N=4, KIND="max", SEM=None, SCOPE=None),
     "atomic_max does not support fp16"),
    (lambda: adds.compile(np.zeros(4), np.zeros(4), np.zeros(4), N=4, KIND="add", SEM="weak", SCOPE=None),
     "Memory semantic weak not supported")])
def test_what_cannot_be(call, message):
    with pytest.raises(tilejit.CompilationError, match=message):
        call()


@tilejit.kernel
def scatter_sums(table, rows, x, M: tl.constexpr, N: tl.constexpr, KIND: tl.constexpr):
    i, j = tl.arange(0, M), tl.arange(0, N)
    at = tl.load(rows + i)[:, None] * N + j[None, :]
    v = tl.load(x + i[:, None] * N + j[None, :])
    keep = (i < M - 1)[:, None]
    if KIND == "add":
        tl.atomic_add(table + at, v, mask=keep)
    else:
        tl.atomic_max(table + at, v, mask=keep)


@pytest.mark.parametrize("dtype,kind,wide", [(np.float32, "add", "red.relaxed.gpu.global.add.v4.f32"),
                                             (np.float16, "add", "red.relaxed.gpu.global.add.noftz.v8.f16"),
                                             (np.int32, "add", "red.relaxed.gpu.global.add.s32"),
                                             (np.uint32, "max", "red.relaxed.gpu.global.max.u32")])
def test_results_that_nobody_reads_are_not_asked_for(dtype, kind, wide):
    """Several of a thread are reductions, of floats by 16 bytes, and one fence releases what came before."""
    rng = np.random.default_rng(3)
    rows, x = rng.integers(0, 4, 16).astype(np.int32), rng.integers(0, 9, (16, 64)).astype(dtype)
    table, want = np.zeros((4, 64), dtype), np.zeros((4, 64), dtype)
    (np.add if kind == "add" else np.maximum).at(want, rows[:15], x[:15])
    given = {"M": 16, "N": 64, "KIND": kind, "num_warps": 2}
    tilejit.check(scatter_sums, (1,), table, rows, x, **given).check()
    table[:] = 0
    k = scatter_sums[(1,)](table, rows, x, **given)
    np.testing.assert_array_equal(table, want)
    assert wide in k.ptx and "atom." not in k.ptx and k.ptx.count("fence.acq_rel.gpu;") == 1
    with tilejit.knobs(arch="sm_80"):
        assert ".v4.f32" not in (old := scatter_sums.compile(table, rows, x, **given).ptx) and "red.relaxed" in old
