"""Pointers raised to TMA, on random forms of the same product: with and without descriptors the results are equal."""
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import tilejit
import tilejit.language as tl

BM, BN, BK = (tl.constexpr(n) for n in (32, 16, 16))


@tilejit.kernel
def product(a, b, c, M, N, K, sam, sak, sbk, sbn, saz, LOOP: tl.constexpr, WRAP: tl.constexpr, MASK: tl.constexpr,
            SHIFT: tl.constexpr, BATCH: tl.constexpr, STORE: tl.constexpr):
    """LOOP: how addresses move; WRAP: how indices stay inside; MASK: on which sides; STORE: the mask of the result."""
    tiles_n = tl.cdiv(N, BN)
    pid = tl.program_id(0)
    z = tl.program_id(1)
    pm, pn = pid // tiles_n, pid % tiles_n
    if BATCH == 1:
        a += z * saz
        c += z * M * N
    m = pm * BM + tl.arange(0, BM) - SHIFT
    n = pn * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    rows, columns = m, n
    if WRAP == 1:
        rows, columns = m % M, n % N
    elif WRAP == 2:
        rows, columns = tl.where(m < M, m, 0), tl.where(n < N, n, 0)
    pa = a + rows[:, None] * sam + k[None, :] * sak
    if BATCH == 2:
        pa += z * saz
    pb = b + (k[:, None] * sbk + columns[None, :] * sbn)
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(0, K if LOOP == 1 else tl.cdiv(K, BK), BK if LOOP == 1 else 1):
        first = i if LOOP == 1 else i * BK
        ma, mb = k[None, :] < K - first, k[:, None] <= K - 1 - first
        if MASK == 1:
            ma, mb = ma & (m[:, None] < M), (n[None, :] < N) & mb
        elif MASK == 2:
            ma, mb = (m[:, None] >= 0) & (ma & (M > m)[:, None]), mb & (n < N)[None, :]
        if LOOP == 2:
            x = tl.load(pa + first * sak, ma, 0.0)
            y = tl.load(pb + first * sbk, mb, 0.0)
        else:
            x = tl.load(pa, ma, other=0.0)
            y = tl.load(pb, mb, other=0.0)
            pa += BK * sak
            pb += BK * sbk
        acc = tl.dot(x, y, acc)
    inside = (m[:, None] < M) & (n[None, :] < N) & (m[:, None] >= 0)
    if STORE == 1:
        inside = (m[:, None] < M) & (n[None, :] < N)
    tl.store(c + m[:, None] * N + n[None, :] + (z * M * N if BATCH == 2 else 0), acc, inside)


FORMS = {"LOOP": st.integers(0, 2), "WRAP": st.integers(0, 2), "MASK": st.integers(0, 2), "SHIFT": st.sampled_from([0, 0, 8]),
         "BATCH": st.integers(0, 2), "STORE": st.integers(0, 1)}


@settings(max_examples=40, deadline=None)
@given(st.fixed_dictionaries(FORMS), st.integers(1, 70), st.sampled_from([8, 16, 40, 48]), st.sampled_from([8, 24, 32]),
       st.booleans(), st.integers(0, 2 ** 16))
def test_equal_with_and_without(form, m, n, k, turned, seed):
    rng, depth = np.random.default_rng(seed), 2 if form["BATCH"] else 1
    if form["MASK"] == 0 and form["WRAP"] == 0:
        form["MASK"] = 2                         # else it reads beyond the arrays
    if form["SHIFT"] and form["MASK"] < 2:
        form["MASK"] = 2
    if form["SHIFT"]:
        form["WRAP"], form["STORE"] = 0, 0
    a = rng.integers(-3, 4, (depth, m, k)).astype(np.float16)
    b = rng.integers(-3, 4, (k, n)).astype(np.float16)
    held = np.ascontiguousarray(b.T) if turned else b
    sb = (1, k) if turned else (n, 1)
    grid = (-(-(m + form["SHIFT"]) // BM.value) * -(-n // BN.value), depth)
    found = {}
    for tma in (True, False):
        c = np.full((depth, m, n), 9, np.float32)
        with tilejit.knobs(target="evaluator", ptxas="driver"):
            made = product[grid](a, held, c, m, n, k, k, 1, *sb, m * k, **form, pointer_tma=tma)
        found[tma] = c
        assert tma or "by TMA" not in made.report()
    assert (found[True] == found[False]).all()
    assert (found[True] == a.astype(np.float32) @ b.astype(np.float32)).all()


def test_usual_forms_are_raised():
    """Both operands and the result, whatever moves the addresses and keeps indices inside."""
    for form in ({"LOOP": 0, "WRAP": 1, "MASK": 0}, {"LOOP": 1, "WRAP": 2, "MASK": 0}, {"LOOP": 2, "WRAP": 0, "MASK": 1},
                 {"LOOP": 1, "WRAP": 0, "MASK": 2}):
        for batch in (0, 1, 2):
            made = product.compile("*fp16", "*fp16", "*fp32", 64, 64, 64, 64, 1, 64, 1, 4096, **form, SHIFT=0, BATCH=batch,
                                   STORE=1)
            assert made.report().count("by TMA") >= 2, (form, batch, made.report())
            assert made.report().count("by TMA") == 3 or batch, (form, batch, made.report())


def test_wrapped_rows_that_a_store_writes_stay():
    """Rows beyond M that reach memory must be the repeated ones, not zeros."""
    @tilejit.kernel
    def wrapped(a, b, c, M, K):
        m, n, k = tl.arange(0, 32), tl.arange(0, 16), tl.arange(0, 16)
        acc = tl.zeros((32, 16), tl.float32)
        for i in range(0, K, 16):
            acc += tl.dot(tl.load(a + (m % M)[:, None] * K + i + k[None, :]), tl.load(b + (i + k)[:, None] * 16 + n[None, :]))
        tl.store(c + m[:, None] * 16 + n[None, :], acc)

    a, b, c = np.ones((24, 32), np.float16), np.ones((32, 16), np.float16), np.zeros((32, 16), np.float32)
    with tilejit.knobs(target="evaluator", ptxas="driver"):
        made = wrapped[(1,)](a, b, c, 24, 32)
    assert (c == 32).all() and "no store's mask" in made.report()


def test_tiles_that_a_persistent_kernel_counts_twice():
    """What is stored is what was loaded, so the store's mask leaves the repeated rows out."""
    @tilejit.kernel
    def persistent(a, b, c, M, K, PROGRAMS: tl.constexpr):
        n, k, stored = tl.arange(0, 16), tl.arange(0, 16), tl.program_id(0) - PROGRAMS
        for tile in range(tl.program_id(0), tl.cdiv(M, 64), PROGRAMS):
            m = tile * 64 + tl.arange(0, 64)
            m, acc = tl.where(m < M, m, 0), tl.zeros((64, 16), tl.float32)
            for i in range(0, K, 16):
                acc += tl.dot(tl.load(a + m[:, None] * K + i + k[None, :]), tl.load(b + (i + k)[:, None] * 16 + n[None, :]))
            stored += PROGRAMS
            rows = stored * 64 + tl.arange(0, 64)
            tl.store(c + rows[:, None] * 16 + n[None, :], acc, rows[:, None] < M)

    a = np.random.default_rng(1).integers(-3, 4, (200, 32)).astype(np.float16)
    b, c = np.eye(32, 16, dtype=np.float16), np.full((256, 16), 9, np.float32)
    with tilejit.knobs(target="evaluator", ptxas="driver"):
        made = persistent[(3,)](a, b, c, 200, 32, PROGRAMS=3)
    assert (c[:200] == a[:, :16]).all() and (c[200:] == 9).all()
    assert "no store's mask" not in made.report() and "ping-pong)" in made.report()


def test_other_programs_writes_are_seen():
    """A load behind a wait for another program's flag stays one of the program's own threads."""
    @tilejit.kernel
    def waits(a, b, c, flag, K):
        m, n, k = tl.arange(0, 32), tl.arange(0, 16), tl.arange(0, 16)
        while tl.atomic_add(flag, 0) == 0:
            pass
        acc = tl.zeros((32, 16), tl.float32)
        for i in range(0, K, 16):
            acc += tl.dot(tl.load(a + m[:, None] * K + i + k[None, :]), tl.load(b + (i + k)[:, None] * 16 + n[None, :]))
        tl.store(c + m[:, None] * 16 + n[None, :], acc)

    report = waits.compile("*fp16", "*fp16", "*fp32", "*int32", 64).report()
    assert "may wait for other programs' writes" in report and "by TMA" not in report


def test_an_atomic_whose_result_nobody_reads_orders_nothing():
    @tilejit.kernel
    def counts(a, b, c, total, K):
        m, n, k = tl.arange(0, 32), tl.arange(0, 16), tl.arange(0, 16)
        acc = tl.zeros((32, 16), tl.float32)
        for i in range(0, K, 16):
            acc += tl.dot(tl.load(a + m[:, None] * K + i + k[None, :]), tl.load(b + (i + k)[:, None] * 16 + n[None, :]))
        tl.atomic_add(c + m[:, None] * 16 + n[None, :], acc)
        tl.atomic_add(total, 1)

    assert counts.compile("*fp16", "*fp16", "*fp32", "*int32", 64).report().count("by TMA") == 2
