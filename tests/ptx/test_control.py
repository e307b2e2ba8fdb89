"""Control flow: loops of every counter type and direction, swaps of carried values, branches, checks."""
import numpy as np
import pytest
from hand_built import Kernel, same

import tilejit
import tilejit.language as tl
from tilejit.emulator import Program
from tilejit.errors import TileJitError
from tilejit.ir import numeric
from tilejit.ir import types as T
from tilejit.ir.core import Block
from tilejit.ir.evaluate import EvaluationError

N = 64
COUNTERS = [T.int32, T.uint32, T.int64, T.uint64]


def scalars(t=T.int32, **values):
    """Scalar arguments of one type."""
    return {n: (v, t) for n, v in values.items()}


def outputs(t, *names, n=1):
    """Arrays of zeros to store results to."""
    return {name: (np.zeros(n, numeric.np_dtype(t)), t) for name in names}


def ranged(k, lo, hi, step, inits, body):
    """A `for` whose body is `body(i, *carried) -> next values`; its results."""
    def build(*args):
        k.op("yield", *body(*args))

    return k.op("for", lo, hi, step, *inits, regions=[k.region([lo.type, *(v.type for v in inits)], build)]).results


def branched(k, cond, then, other):
    """An `if` with two branches `() -> values`; its results."""
    regions = [k.region([], lambda f=f: k.op("yield", *f())) for f in (then, other)]
    return k.op("if", cond, regions=regions).results


@pytest.mark.parametrize("t,lo,hi,step", [
    (t, *bounds) for t in COUNTERS for bounds in [(0, 5, 1), (3, 3, 1), (5, 2, 1), (1, 12, 4), (7, 0, -2), (3, 9, -1)]
    if t.is_signed or bounds[2] > 0], ids=str)
def test_counted(t, lo, hi, step):
    """How often and with which counters a loop runs: 10 * sum + i, and the number of rounds."""
    k = Kernel(scalars=scalars(t, lo=lo, hi=hi), **outputs(t, "sum", "rounds"))
    total, rounds = ranged(k, k.args["lo"], k.args["hi"], k.int(step, t), [k.int(0, t), k.int(0, t)],
                           lambda i, s, r: (k("add", k("mul", s, k.int(10, t)), i), k("add", r, k.int(1, t))))
    k.store("sum", total)
    k.store("rounds", rounds)
    meant, made = k.run()
    same(meant, made)
    assert made["rounds"][0] == len(range(lo, hi, step))


def test_counter_beyond_32_bits():
    """A 64-bit loop compares and steps in 64 bits."""
    k = Kernel(scalars=scalars(T.int64, lo=2 ** 33, hi=2 ** 33 + 6), **outputs(T.int64, "last"))
    [last] = ranged(k, k.args["lo"], k.args["hi"], k.int(3, T.int64), [k.int(0, T.int64)], lambda i, _: (i,))
    k.store("last", last)
    meant, made = k.run()
    same(meant, made)
    assert made["last"][0] == 2 ** 33 + 3


@pytest.mark.parametrize("rounds", [0, 1, 2, 5])
def test_rotated_values(rounds):
    """Carried values that move into each other's places: all at once, never one after the other."""
    k = Kernel(scalars=scalars(n=rounds), **outputs(T.int32, "a", "b", "c", "i"))
    found = ranged(k, k.int(0), k.args["n"], k.int(1), [k.int(v) for v in (1, 2, 3, 9)],
                   lambda i, a, b, c, _: (b, c, a, i))
    for name, v in zip("abci", found):
        k.store(name, v)
    meant, made = k.run()
    same(meant, made)
    turned = [1, 2, 3][rounds % 3:] + [1, 2, 3][:rounds % 3]
    assert [made[n][0] for n in "abc"] == turned and made["i"][0] == (rounds - 1 if rounds else 9)


def test_one_value_carried_twice():
    """Two carried values with one start are two values."""
    k = Kernel(scalars=scalars(n=3), **outputs(T.int32, "a", "b"))
    one = k.args["n"]
    a, b = ranged(k, k.int(0), one, k.int(1), [one, one], lambda i, a, b: (k("add", a, i), b))
    k.store("a", a)
    k.store("b", b)
    meant, made = k.run()
    same(meant, made)
    assert (made["a"][0], made["b"][0]) == (6, 3)


@pytest.mark.parametrize("t", [T.fp16, T.fp32, T.fp64, T.int8, T.int64], ids=str)
def test_carried_tiles(t):
    """Tiles of every register class, swapped each round."""
    x = (np.arange(N) % 11).astype(numeric.np_dtype(t))
    k = Kernel(2, scalars=scalars(n=3), x=(x, t), y=((x + 1).astype(x.dtype), t), **outputs(t, "u", "v", n=N))
    layout = k.layout((N,), 2)
    u, v = ranged(k, k.int(0), k.args["n"], k.int(1), [k.load("x", layout), k.load("y", layout)],
                  lambda i, u, v: (v, k("add", u, v)))
    k.store("u", u)
    k.store("v", v)
    same(*k.run())


def test_carried_predicates_and_pointers():
    """Booleans and pointers have register classes of their own."""
    k = Kernel(scalars=scalars(n=3), x=(np.arange(8, dtype=np.int32), T.int32), **outputs(T.int32, "at", "flag"))
    flag, at = ranged(k, k.int(0), k.args["n"], k.int(1), [k.int(False, T.int1), k.args["x"]],
                      lambda i, f, p: (k("not", f), k("ptr_add", p, k.int(2))))
    k.store("at", k("load", at))
    k.store("flag", k("cast", flag, dtype=T.int32))
    meant, made = k.run()
    same(meant, made)
    assert (made["at"][0], made["flag"][0]) == (6, 1)


def test_nested_loops():
    """An inner loop that runs 0, 1, 2, ... times and carries the outer loop's values on."""
    k = Kernel(scalars=scalars(n=5), **outputs(T.int32, "sum", "inner"))

    def outer(i, total, inner):
        return ranged(k, k.int(0), i, k.int(1), [total, inner],
                      lambda j, s, r: (k("add", s, k("mul", i, j)), k("add", r, k.int(1))))

    total, inner = ranged(k, k.int(0), k.args["n"], k.int(1), [k.int(0), k.int(0)], outer)
    k.store("sum", total)
    k.store("inner", inner)
    meant, made = k.run()
    same(meant, made)
    assert made["inner"][0] == 10


@pytest.mark.parametrize("n", [0, 1, 6])
def test_while(n):
    """What the condition computes is what the body and the results get; here it also swaps."""
    k = Kernel(scalars=scalars(n=n), **outputs(T.int32, "a", "b"))
    before, body = Block([T.int32, T.int32]), Block([T.int32, T.int32])
    outside = k.inside(before)
    a, b = before.args
    stepped = k("add", a, k.int(1))
    k.op("condition", k("cmp", stepped, k.args["n"], pred="lt"), b, stepped)
    k.inside(body)
    k.op("yield", body.args[1], k("add", body.args[0], k.int(10)))
    k.inside(outside)
    results = k.op("while", k.int(0), k.int(5), regions=[before, body]).results
    k.store("a", results[0])
    k.store("b", results[1])
    meant, made = k.run()
    same(meant, made)
    assert (made["b"][0], made["a"][0]) == (max(n, 1), 5 + 10 * max(n - 1, 0))


@pytest.mark.parametrize("n", [0, 1])
def test_if(n):
    """Scalars and tiles out of both branches, one of them a value from outside."""
    x = np.arange(N, dtype=np.float32)
    k = Kernel(2, scalars=scalars(n=n), x=(x, T.fp32), **outputs(T.fp32, "y", n=N), **outputs(T.int32, "s"))
    tile = k.load("x", k.layout((N,), 2))
    cond = k("cmp", k.args["n"], k.int(0), pred="gt")
    y, s = branched(k, cond, lambda: (k("neg", tile), k.int(7)), lambda: (tile, k.args["n"]))
    k.store("y", y)
    k.store("s", s)
    meant, made = k.run()
    same(meant, made)
    assert made["y"][5] == (-5 if n else 5) and made["s"][0] == (7 if n else 0)


def test_branch_in_a_loop():
    """Collatz: an `if` per round that yields back into the loop, with a `while` around."""
    k = Kernel(scalars=scalars(n=27), **outputs(T.int32, "steps", "last"))
    before, body = Block([T.int32, T.int32]), Block([T.int32, T.int32])
    outside = k.inside(before)
    k.op("condition", k("cmp", before.args[0], k.int(1), pred="ne"), *before.args)
    k.inside(body)
    x, steps = body.args
    odd = k("cmp", k("and", x, k.int(1)), k.int(0), pred="ne")
    [following] = branched(k, odd, lambda: (k("add", k("mul", x, k.int(3)), k.int(1)),),
                           lambda: (k("shr", x, k.int(1)),))
    k.op("yield", following, k("add", steps, k.int(1)))
    k.inside(outside)
    last, steps = k.op("while", k.args["n"], k.int(0), regions=[before, body]).results
    k.store("last", last)
    k.store("steps", steps)
    meant, made = k.run()
    same(meant, made)
    assert (made["steps"][0], made["last"][0]) == (111, 1)


@pytest.mark.parametrize("limit,traps", [(N, False), (N - 1, True)])
def test_device_assert(limit, traps):
    """One false element ends the launch, with the text; masked ones do not count."""
    k = Kernel(2, **outputs(T.int32, "out"))
    layout = k.layout((N,), 2)
    index = k.index(layout)

    def splat(v):
        return k.tile("splat", k.int(v), layout=layout, shape=(N,))

    k.op("device_assert", k("cmp", index, splat(limit), pred="lt"), message="in range")
    k.op("device_assert", k("cmp", index, splat(8), pred="lt"), k("cmp", index, splat(8), pred="lt"), message="masked")
    k.store("out", k.int(1))
    if not traps:
        same(*k.run())
        return
    with pytest.raises(EvaluationError, match="in range"):
        k.run()
    text, meta = k.ptx()
    out = k.arrays["out"]
    with pytest.raises(TileJitError, match="assertion: .*Assertion `in range` failed"):
        Program(text).launch((1,), meta.num_threads, [out.ctypes.data.to_bytes(8, "little")], meta.shared_bytes,
                             memory=[out]).check()


@tilejit.kernel
def through_memory(x, tmp, out):
    r, c = tl.arange(0, 64)[:, None], tl.arange(0, 64)[None, :]
    tl.store(tmp + r * 64 + c, tl.load(x + r * 64 + c))
    tl.debug_barrier()
    tl.store(out + r * 64 + c, tl.load(tmp + c * 64 + r))


def test_debug_barrier_orders_global_memory():
    """Every store before it comes before it, every load after it after: threads may swap elements through memory."""
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    tmp, out = np.zeros_like(x), np.zeros_like(x)
    with tilejit.knobs(target="emulator"):
        text = through_memory[(1,)](x, tmp, out).ptx
    assert (out == x.T).all()
    before, after = text.split("bar.sync", 1)
    assert before.count("st.global") == before.count("ld.global") > 0
    assert after.index("ld.global") < after.index("st.global")


@pytest.mark.parametrize("seed", range(3))
def test_debug_barrier(seed):
    """What one warp writes to global memory another reads after the barrier, whichever warp runs first."""
    x = np.arange(N, dtype=np.int32)
    k = Kernel(2, x=(x, T.int32), **outputs(T.int32, "y", n=N), **outputs(T.int32, "tmp", n=N))
    layout = k.layout((N,))
    k.store("tmp", k.load("x", layout))
    k.op("debug_barrier")
    back = k("sub", k.tile("splat", k.int(N - 1), layout=layout, shape=(N,)), k.index(layout))
    base = k.tile("splat", k.args["tmp"], layout=layout, shape=(N,))
    k.store("y", k("load", k("ptr_add", base, back)))
    meant, made = k.run(policy="random", seed=seed)
    same(meant, made)
    assert (made["y"] == x[::-1]).all()


@tilejit.kernel
def exchanged(x, y, n, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(x + N + at)
    for _ in range(n):
        a, b = b, a
        if n > 3:
            a, b = b, (a.to(tl.float32) * 2).to(x.dtype.element_ty)
    tl.store(y + at, a)
    tl.store(y + N + at, b)


@pytest.mark.parametrize("n", [0, 3, 5])
def test_8_bits_travel_in_words(n):
    """Tiles that change places in a loop and behind a branch, four elements to a register."""
    x = np.random.default_rng(0).standard_normal(1024).astype(np.float32).astype(numeric.np_dtype(T.fp8e4nv))
    found = {}
    for target in ("evaluator", "emulator"):
        found[target] = np.zeros_like(x)
        with tilejit.knobs(target=target):
            exchanged[(1,)](x, found[target], n, 512, num_warps=4)
    assert np.array_equal(found["evaluator"].view(np.uint8), found["emulator"].view(np.uint8))


@tilejit.jit
def behind(x, out, n, B: tl.constexpr):
    """Sums of a recurrence whose loads are issued trips ahead."""
    at = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for i in range(n):
        total = total * 0.5 + tl.load(x + i * B + at).to(tl.float32)
    tl.store(out + at, total)


def test_16_bits_that_are_loaded_ahead_travel_in_words():
    x = np.random.default_rng(0).standard_normal((9, 64)).astype(np.float16)
    out, expected = np.zeros(64, np.float32), np.zeros(64, np.float32)
    for row in x:
        expected = expected * np.float32(0.5) + row.astype(np.float32)
    with tilejit.knobs(target="emulator"):
        behind[(1,)](x, out, 9, 64, num_warps=1)
    assert np.array_equal(out, expected)
    ptx = behind.compile("*fp16:16", "*fp32:16", "i32", B=64, num_warps=1).ptx
    copied = ptx[ptx.index("fma.rn.f32"):].split(" bra ")[0]                 # at the trip's end
    assert "mov.b16" not in copied and "mov.b32" in copied


@tilejit.kernel
def lower_triangle(x, y, out, n, W: tl.constexpr):
    """Products of blocks below the diagonal; the other programs have nothing to do."""
    i, j = tl.program_id(0), tl.program_id(1)
    if i <= j:
        return
    if i * W >= n:
        return
    at = tl.arange(0, W)
    total = tl.zeros((W, W), tl.float32)
    for k in range(0, n, W):
        total += tl.dot(tl.load(x + (i * W + at)[:, None] * n + (k + at)), tl.load(y + (k + at)[:, None] * n + j * W + at))
    tl.store(out + (i * W + at)[:, None] * n + j * W + at, total)


def test_programs_with_nothing_to_do_end_first():
    made = lower_triangle.compile("*fp16:16", "*fp16:16", "*fp32:16", "int32:16", W=16, num_warps=1)
    assert made.ptx.count("mbarrier.init") and made.ptx.rindex("bra $else") < made.ptx.index("mbarrier.init")
    x, y = (np.random.default_rng(i).standard_normal((48, 48)).astype(np.float16) for i in range(2))
    out = np.zeros((48, 48), np.float32)
    with tilejit.knobs(target="emulator"):
        lower_triangle[(4, 3)](x, y, out, 48, W=16, num_warps=1)
    want = np.kron(np.tri(3, k=-1), np.ones((16, 16))) * (x.astype(np.float32) @ y.astype(np.float32))
    np.testing.assert_allclose(out, want, atol=0.1)
