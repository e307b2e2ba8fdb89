"""Value classes, functions on constants, recursion, indexing, and what constants have: evaluator and emulator."""
from __future__ import annotations

import math

import numpy as np
import pytest

import tilejit
import tilejit.language as tl

N = 32


@pytest.fixture(params=["evaluator", "emulator"])
def target(request):
    with tilejit.knobs(target=request.param):
        yield


@tilejit.aggregate
class Sum:
    """A running sum of rows."""

    total: tl.tensor
    count: tl.tensor
    SCALE: tl.constexpr = 2

    @tilejit.kernel
    def add(self, row):
        return Sum(self.total + row * self.SCALE, self.count + 1)

    @tilejit.constexpr_function
    def squared(self):
        return self.SCALE * self.SCALE

    @staticmethod
    @tilejit.kernel
    def start(SIZE: tl.constexpr):
        return Sum(tl.zeros((SIZE,), tl.int32), 0)

    def __getitem__(self, index):
        return self.total if index == 0 else self.count


@tilejit.aggregate
class Weighted(Sum):
    weight: tl.tensor

    @tilejit.kernel
    def result(self):
        return self.total * self.weight + self.squared()


@tilejit.kernel
def sums(x, out, n, limit, N: tl.constexpr):
    at = tl.arange(0, N)
    s = Sum.start(N)
    for i in range(n):
        if i < limit:
            s = s.add(tl.load(x + i * N + at))
    w = Weighted(s[0], s[1], 2, weight=s.count)
    if n > 100:
        w = tl.aggregate_replace(w, weight=n)
    tl.store(out + at, w.result())


def test_an_aggregate_is_carried_and_chosen(target):
    x, out = np.random.default_rng(0).integers(0, 9, (6, N)).astype(np.int32), np.zeros(N, np.int32)
    sums[(1,)](x, out, 6, 4, N)
    np.testing.assert_array_equal(out, x[:4].sum(0) * 2 * 4 + 4)


def test_on_the_host():
    s = Sum(1, 2)
    assert (s.SCALE.value, Sum(1, 2, 5).SCALE.value) == (2, 5)
    with pytest.raises(AttributeError, match="cannot assign to field 'total' on immutable aggregate"):
        s.total = 3
    with pytest.raises(TypeError, match="has no field 'z'"):
        tl.aggregate_replace(s, z=1)
    with pytest.raises(TypeError, match="expects an aggregate instance"):
        tl.aggregate_replace(42, z=1)
    with pytest.raises(TypeError, match="missing required argument: 'count'"):
        Sum(1)
    assert tl.aggregate_replace(s, SCALE=7).squared().value == 49
    with pytest.raises(TypeError, match="Aggregates can only inherit from other aggregates"):
        tilejit.aggregate(type("Bad", (dict,), {}))


@tilejit.kernel
def uses_missing_method(x):
    s = Sum.start(4)
    tl.store(x, s.ad(1))


@tilejit.kernel
def sets_field(x):
    s = Sum.start(4)
    s.total = x


@pytest.mark.parametrize("kernel, words", [(uses_missing_method, "did you mean 'add'"), (sets_field, "only variables")])
def test_errors(kernel, words):
    with pytest.raises(tilejit.CompilationError, match=words):
        kernel.compile("*int32")


def test_methods_are_part_of_a_kernels_identity():
    """A method that changes is another kernel for the cache."""
    def program(body):
        @tilejit.kernel
        def method(self):
            return self.v + body

        made = tilejit.aggregate(type("Box", (), {"__annotations__": {"v": tl.tensor}, "get": method}))

        @tilejit.kernel
        def uses(x):
            tl.store(x, made(1).get())

        return uses.source.fingerprint()

    assert program(tl.constexpr(1)) != program(tl.constexpr(2))


@tilejit.constexpr_function
def tile_of(n, most):
    return min(most, 1 << (n - 1).bit_length())


@tilejit.kernel
def halves(x):
    if x.shape[0] == 1:
        return tl.sum(x)
    a, c = tl.split(tl.reshape(x, (x.shape[0] // 2, 2)))
    return halves(a) + halves(c)


@tilejit.kernel
def hinted(v, W: tl.constexpr):
    return v * W


@tilejit.kernel
def many(*values, scale=1, **more):
    total = more["extra"]
    for v in tl.static_range(len(values)):
        total += values[v]
    return total * scale


@tilejit.kernel
def constants(x, out, n, K: tl.constexpr):
    SIZE: tl.constexpr = tile_of(K, 64)
    at = tl.arange(0, SIZE)
    tl.store(out, halves(tl.load(x + at)))
    tl.store(out + 1, hinted(3, n))                                # a run-time value for a hint of tl.constexpr
    tl.store(out + 2, tilejit.cdiv(n, 4) + tilejit.cdiv(K, 4) + tilejit.next_power_of_2(K))
    tl.store(out + 3, math.floor(math.sqrt(K)))
    tl.store(out + 4, tl.float32(n) / 2 * tl.float32(2).to(tl.float32))
    tl.store(out + 5, many(1, n, scale=2, extra=10))
    if K.dtype == tl.int32 and (1.5).dtype == tl.float32:
        tl.store(out + 6, K.to(tl.int64))
    tl.store(out + 7, [i * i for i in (1, 2, 3, 4) if i % 2 == 0][1])


def test_constants(target):
    x, out = np.arange(N, dtype=np.int32), np.zeros(8, np.int32)
    constants[(1,)](x, out, 10, 20)
    assert out.tolist() == [x.sum(), 30, 3 + 5 + 32, 4, 10, 2 * 21, 20, 16]


@tilejit.kernel
def indexed(x, out, A: tl.constexpr, B: tl.constexpr):
    v = tl.load(x + tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None])
    tl.static_assert(v[None].shape == (1, A, B) and v[:, None, :].shape == (A, 1, B) and v[..., None].shape == (A, B, 1))
    tl.static_assert(v[None, ...].shape == (1, A, B) and v[:, ..., None].shape == (A, B, 1) and v[...].shape == (A, B))
    s = tl.sum(x.to(tl.int64) * 0)[None] if False else tl.sum(tl.sum(v, 0), 0)[None, None]
    tl.store(out + tl.arange(0, A)[:, None] * B + tl.arange(0, B), (v[None, :, ...] + s[None]).reshape([A, B]))


def test_indexing(target):
    x, out = np.arange(32, dtype=np.int32).reshape(4, 8), np.zeros((4, 8), np.int32)
    indexed[(1,)](x, out, 4, 8)
    np.testing.assert_array_equal(out, x + x.sum())


@tilejit.must_use_result("It is long to compute.")
@tilejit.kernel
def cube(x):
    return x * x * x


@tilejit.kernel
def drops(x):
    cube(tl.load(x))


@tilejit.kernel
def slices(x):
    tl.store(x, tl.arange(0, 4)[1:])


@tilejit.kernel
def unpacks(x):
    a, b, c = (1, 2)
    tl.store(x, a + b + c)


TABLE = [1, 2]


@tilejit.kernel
def reads_a_list(x):
    tl.store(x, TABLE[0])


@tilejit.kernel
def constant_of_tensor(x):
    tl.store(x, tile_of(tl.load(x), 3))


@pytest.mark.parametrize("kernel, words", [
    (drops, "The result of cube is not being used. It is long to compute."), (slices, "unsupported tensor index"),
    (unpacks, r"not enough values to unpack \(expected 3, got 2\)"),
    (reads_a_list, "Cannot access global variable TABLE"), (constant_of_tensor, "its arguments must be constants")])
def test_errors_say_what_tritons_do(kernel, words):
    with pytest.raises(tilejit.CompilationError, match=words):
        kernel.compile("*int32")


@tilejit.kernel
def types_of_constants(x, K: tl.constexpr):
    pair = tl.tuple([v + 1 for v in (1, K)])
    tl.static_assert(K.type == tl.constexpr_type(3) and K.type == tl.int32 and not K.type == tl.constexpr_type(4))
    tl.static_assert(isinstance(K.type, tl.constexpr_type) and not isinstance(tl.load(x).type, tl.constexpr_type))
    tl.static_assert(pair + (7,) == (2, 4, 7))


def test_types_of_constants():
    types_of_constants.compile("*int32", 3)


@tilejit.aggregate
class Scaled:
    x: tl.tensor
    factor: tl.constexpr = tl.constexpr(3)
    shift = tl.constexpr(10)

    @tilejit.kernel
    def value(self):
        return self.x * self.factor + self.shift


@tilejit.kernel
def scaled(out):
    tl.store(out, Scaled(tl.load(out)).value() + Scaled(1, 5).value())


def test_constants_of_classes_are_no_methods():
    out = np.array([2], np.int32)
    with tilejit.knobs(target="evaluator"):
        scaled[(1,)](out)
    assert out[0] == 2 * 3 + 10 + 5 + 10
