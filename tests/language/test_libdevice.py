"""CUDA's functions by name: fp64 within the stated bounds of a longer format, fp32 rounded from fp64, bits exactly."""
import math

import numpy as np
import pytest
from run import TARGETS, equal

import tilejit
import tilejit.language as tl
from tilejit.language.extra import cuda, libdevice


@tilejit.kernel
def one(y, x, F: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y + at, F(tl.load(x + at)))


@tilejit.kernel
def two(y, x, w, F: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y + at, F(tl.load(x + at), tl.load(w + at)))


def long(fn):
    """A numpy function in the longest format there is, or one of `math` element by element."""
    return lambda *a: np.array([fn(*map(float, v)) for v in zip(*a)]) if fn in vars(math).values() else \
        fn(*(x.astype(np.longdouble) for x in a))


ALL = [-1e300, -700.0, -30.5, -2.0, -1.0, -0.75, -0.3, -1e-9, -0.0, 0.0, 1e-300, 1e-9, 0.3, 0.5, 0.70711, 1.0, 1.5, 2.0, 9.5,
       30.5, 700.0, 1e5, 1e300, math.inf, -math.inf, math.nan]
SMALL = [x for x in ALL if not 1e6 < abs(x) < math.inf]
FUNCTIONS = {"exp": (np.exp, ALL), "exp2": (np.exp2, ALL), "exp10": (lambda x: np.longdouble(10) ** x, SMALL),
             "expm1": (np.expm1, ALL), "log": (np.log, ALL), "log2": (np.log2, ALL), "log10": (np.log10, ALL),
             "log1p": (np.log1p, ALL), "sin": (np.sin, SMALL), "cos": (np.cos, SMALL), "tan": (np.tan, SMALL),
             "asin": (np.arcsin, ALL), "acos": (np.arccos, ALL), "atan": (np.arctan, ALL), "sinh": (np.sinh, ALL),
             "cosh": (np.cosh, ALL), "tanh": (np.tanh, ALL), "asinh": (np.arcsinh, ALL), "acosh": (np.arccosh, ALL),
             "atanh": (np.arctanh, ALL), "erf": (math.erf, ALL), "erfc": (math.erfc, ALL), "cbrt": (np.cbrt, ALL)}


def near(got, want, ulps):
    """Within so many units in the last place (of the smallest normal number at least)."""
    want, got = np.asarray(want, np.longdouble), np.asarray(got, np.longdouble)
    with np.errstate(all="ignore"):
        top = np.where(np.isfinite(want.astype(np.float64)), want, np.sign(want) * np.inf)
        unit = np.maximum(np.abs(np.spacing(want.astype(np.float64))), 2.0 ** -1074)
        same = (np.isnan(want) & np.isnan(got)) | (got == top)
        return same | (np.abs(got - want) <= ulps * unit)


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_doubles(name):
    fn, points = FUNCTIONS[name]
    rng = np.random.default_rng(len(name))
    x = np.concatenate([points, rng.standard_normal(64), rng.uniform(-20, 20, 128 - len(points)),
                        rng.standard_normal(64) * 1e-3])
    with np.errstate(all="ignore"):
        want = long(fn)(x)
    bound = 16 if name in ("erfc", "tan", "asinh", "acosh", "atanh", "sinh", "exp10") else 4
    (y,) = run_one("evaluator", getattr(libdevice, name), x)
    good = near(y, want, bound)
    assert good.all(), [(float(a), float(b), float(c)) for a, b, c in zip(x[~good], y[~good], want[~good])][:8]


def run_one(target, fn, *xs, out=None):
    y = np.zeros(len(xs[0]), out or xs[0].dtype)
    with tilejit.knobs(target=target):
        (one if len(xs) == 1 else two)[(1,)](y, *xs, F=fn, N=len(y))
    return [y]


def test_the_emulator_agrees():
    """Another rounding of fused multiply-adds in the evaluator is all that there may be."""
    x = np.random.default_rng(1).uniform(-5, 5, 64)
    for name in ("exp", "log1p", "sin", "atan", "erfc", "cbrt", "tgamma"):
        (a,), (b,) = (run_one(t, getattr(libdevice, name), x) for t in TARGETS)
        assert near(a, b, 8).all(), name


@pytest.mark.parametrize("name,fn", [("atan2", np.arctan2), ("hypot", np.hypot), ("pow", np.power), ("fmod", np.fmod),
                                     ("remainder", lambda x, y: np.array(list(map(math.remainder, x, y)))),
                                     ("copysign", np.copysign), ("nextafter", np.nextafter)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_two_arguments(name, fn, dtype):
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((2, 128)).astype(dtype) * 3
    x[:4], w[:4] = [0.0, -0.0, 2.0, -8.0], [-1.0, -0.0, 0.5, 3.0]
    w[w == 0] = 1 if name in ("fmod", "remainder") else 0
    wide = (x, w) if name == "nextafter" else (x.astype(np.float64), w.astype(np.float64))
    with np.errstate(all="ignore"):
        want = fn(*wide)
    for target in TARGETS:
        (y,) = run_one(target, getattr(libdevice, name), x, w)
        np.testing.assert_allclose(y, want, 2e-7 if dtype == np.float32 else 1e-14, 0 if name != "fmod" else 1e-6)


def test_single_precision_by_way_of_double():
    x = np.random.default_rng(3).uniform(0.01, 0.99, 128).astype(np.float32)
    for name, fn in (("log1p", np.log1p), ("expm1", np.expm1), ("erfc", np.vectorize(math.erfc)), ("lgamma",
                     np.vectorize(math.lgamma)), ("cbrt", np.cbrt), ("rint", np.rint), ("round", lambda v: np.floor(v + 0.5))):
        (y,) = run_one("evaluator", getattr(libdevice, name), x)
        np.testing.assert_allclose(y, fn(x.astype(np.float64)), 1.3e-7, err_msg=name)


def test_inverses():
    p = np.concatenate([np.random.default_rng(4).uniform(-1, 1, 120), [0.0, 1e-12, -1e-5, 0.5, 0.999999, -0.9999, 1, -1]])
    (y,) = run_one("evaluator", libdevice.erfinv, p)
    np.testing.assert_allclose([math.erf(v) for v in y], p, 1e-13)
    q = np.abs(np.concatenate([p[:124], [1e-20, 1e-100, 1e-300, 1.5]]))
    (z,) = run_one("evaluator", libdevice.erfcinv, q)
    np.testing.assert_allclose([math.erfc(v) for v in z], q, 1e-10)


@pytest.mark.parametrize("name,dtype,fn", [
    ("popc", np.int32, lambda v: [bin(x & 0xFFFFFFFF).count("1") for x in v.tolist()]),
    ("clz", np.int32, lambda v: [32 - (x & 0xFFFFFFFF).bit_length() for x in v.tolist()]),
    ("ffs", np.int32, lambda v: [(x & -x).bit_length() for x in v.tolist()]),
    ("brev", np.int32, lambda v: [int(f"{x & 0xFFFFFFFF:032b}"[::-1], 2) for x in v.tolist()]),
    ("int_as_float", np.int32, lambda v: v.view(np.float32)), ("ll2double_rn", np.int64, lambda v: v.astype(np.float64)),
    ("ilogb", np.float32, lambda v: np.frexp(v)[1] - 1), ("isnan", np.float64, np.isnan), ("signbit", np.float32, np.signbit),
    ("double2hiint", np.float64, lambda v: (v.view(np.int64) >> 32))])
def test_bits_and_integers(name, dtype, fn):
    rng = np.random.default_rng(5)
    x = rng.integers(-2 ** 31, 2 ** 31, 64).astype(dtype) if np.dtype(dtype).kind == "i" else \
        rng.standard_normal(64).astype(dtype)
    if np.dtype(dtype).kind == "i":
        x[0] = 0
    want = np.asarray(fn(x))
    want = want.astype(np.float32) if name == "int_as_float" else want
    out = want.dtype if want.dtype.kind == "f" else np.int32
    equal(one, [want.astype(np.int64).astype(out) if out is np.int32 else want], x, F=getattr(libdevice, name), N=64)


@pytest.mark.parametrize("mode,toward", [("rz", "zero"), ("rd", "down"), ("ru", "up"), ("rn", "near")])
def test_roundings(mode, toward):
    x, w = np.random.default_rng(6).standard_normal((2, 64)).astype(np.float32)
    exact = x.astype(np.float64) + w
    near_ = exact.astype(np.float32)
    low = np.where(near_ > exact, np.nextafter(near_, np.float32(-np.inf)), near_)
    high = np.where(near_ < exact, np.nextafter(near_, np.float32(np.inf)), near_)
    want = {"zero": np.where(exact < 0, high, low), "down": low, "up": high, "near": near_}[toward]
    for target in TARGETS:
        (y,) = run_one(target, getattr(libdevice, f"add_{mode}"), x, w)
        np.testing.assert_array_equal(y, want)


@tilejit.kernel
def special(y, x, N: tl.constexpr):
    at = tl.arange(0, N)
    cuda.gdc_wait()
    tl.store(y + at, at * cuda.num_warps() + cuda.num_threads() + (cuda.smid() < 0) + (cuda.globaltimer() < 0))
    cuda.gdc_launch_dependents()


def test_what_only_these_gpus_have():
    equal(special, [np.arange(32, dtype=np.int32) * 2 + 64], np.zeros(1), N=32, num_warps=2)


@pytest.mark.parametrize("name", ["pow", "fmod", "div_rn"])
@pytest.mark.parametrize("first,second", [("f4", "f2"), ("f2", "f4"), ("f4", "f8"), ("f4", "i4"), ("i8", "f4")])
def test_arguments_of_two_types_are_promoted(name, first, second):
    x, w = np.array([1.5, 2, 3, 4], first), np.array([2, 0.5, 3, -2.5], second)
    kind = np.float64 if "f8" in (first, second) else np.float32
    y, want = np.zeros(4, kind), np.zeros(4, kind)
    with tilejit.knobs(target="evaluator"):
        two[(1,)](y, x, w, F=getattr(libdevice, name), N=4)
        two[(1,)](want, x.astype(kind), w.astype(kind), F=getattr(libdevice, name), N=4)
    np.testing.assert_array_equal(y, want)
