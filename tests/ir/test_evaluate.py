"""The evaluator: memory, control flow and every op's numpy meaning."""
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from tilejit.ir import OPS
from tilejit.ir.evaluate import EvaluationError, evaluate
from tilejit.ir.text import parse_function
from tilejit.ir.verify import verify


def run(text: str, grid=1, **args):
    fn = parse_function(text)
    verify(fn)
    return evaluate(fn, grid, args)


def test_every_op_has_a_meaning():
    assert [n for n, d in OPS.items() if d.evaluate is None and "terminator" not in d.traits] == []


ADD = """
kernel @add(%x: ptr<fp32>, %y: ptr<fp32>, %n: int32) {
  %pid = program_id {axis=0}
  %b = const {value=64} : int32
  %s = mul %pid, %b
  %r = arange {start=0, end=64}
  %s1 = splat %s {shape=(64,)}
  %o = add %s1, %r
  %n1 = splat %n {shape=(64,)}
  %m = cmp %o, %n1 {pred="lt"}
  %xp = splat %x {shape=(64,)}
  %xq = ptr_add %xp, %o
  %v = load %xq, %m
  %w = add %v, %v
  %yp = splat %y {shape=(64,)}
  %yq = ptr_add %yp, %o
  store %yq, %w, %m
  return
}
"""


def test_masked_load_and_store():
    x, y = np.arange(100, dtype=np.float32), np.full(100, -1, np.float32)
    stats = run(ADD, 2, x=x, y=y, n=90)
    assert (y[:90] == 2 * x[:90]).all() and (y[90:] == -1).all()
    assert stats.programs == 2 and stats.bytes_read == stats.bytes_written == 360


def test_out_of_bounds_names_the_op_and_the_element():
    x = np.zeros(100, np.float32)
    with pytest.raises(EvaluationError, match=r"load in program \(1, 0, 0\): out of bounds: element 100"):
        run(ADD, 2, x=x, y=np.zeros(128, np.float32), n=101)


def test_strided_views_are_bounded_by_their_own_span():
    x, y = np.arange(200, dtype=np.float32), np.zeros(128, np.float32)
    run(ADD, 1, x=x[50:114], y=y, n=64)
    assert (y[:64] == 2 * x[50:114]).all()
    with pytest.raises(EvaluationError, match="element 64 of an argument with 64"):
        run(ADD, 2, x=x[50:114], y=y, n=65)


def test_loop_if_while_and_early_return():
    text = """
kernel @f(%out: ptr<int32>, %n: int32) {
  %zero = const {value=0} : int32
  %one = const {value=1} : int32
  %neg = const {value=-1} : int32
  %stop = cmp %n, %zero {pred="lt"}
  if %stop {
    return
  } {
    yield
  }
  %sum = for %n, %zero, %neg, %zero : int32 {(%i: int32, %a: int32)
    %b = add %a, %i
    yield %b
  }
  %log, %left = while %zero, %n : int32, int32 {(%k: int32, %m: int32)
    %c = cmp %m, %one {pred="gt"}
    condition %c, %k, %m
  } {(%k: int32, %m: int32)
    %k1 = add %k, %one
    %m1 = shr %m, %one
    yield %k1, %m1
  }
  store %out, %sum
  %p = ptr_add %out, %one
  store %p, %log
  return
}
"""
    out = np.full(2, -7, np.int32)
    run(text, out=out, n=10)
    assert out.tolist() == [55, 3]
    run(text, out=(out := np.full(2, -7, np.int32)), n=-1)
    assert out.tolist() == [-7, -7]


def test_descriptor_fill_and_clip():
    text = """
kernel @f(%a: desc<bf16[4x8]>, %b: desc<bf16[4x8]>, %i: int32, %j: int32) {
  %t = desc_load %a, %i, %j
  %z = const {value=0} : int32
  desc_store %b, %t, %z, %z
  return
}
"""
    a = np.arange(30, dtype=np.float32).reshape(5, 6).astype(ml_dtypes.bfloat16)
    out = np.zeros((3, 8), ml_dtypes.bfloat16)
    make = lambda base, pad: SimpleNamespace(base=base, shape=base.shape, block_shape=[4, 8], padding=pad,
                                             strides=[base.strides[0] // 2, 1])
    run(text, a=make(a, "nan"), b=make(out, "zero"), i=3, j=-2)
    want = np.full((4, 8), np.nan, np.float32)
    want[:2, 2:] = a[3:5, :6]
    np.testing.assert_array_equal(out.astype(np.float32), want[:3])


def tile_op(body: str, *arrays: np.ndarray, out) -> np.ndarray:
    """Load each array (named a, b, c) as a 1-d tile, run `body`, store its value r."""
    names = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64", "bool": "int1",
             "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5"}
    spell = lambda d: names.get(np.dtype(d).name, np.dtype(d).name)
    n = len(arrays[0])
    r = np.zeros(n, out)
    params = [f"%p{k}: ptr<{spell(a.dtype)}>" for k, a in zip("abc", arrays)] + [f"%pr: ptr<{spell(out)}>"]
    lines = [f"  %o = arange {{start=0, end={n}}}"]
    for k in [*"abc"[:len(arrays)], "r"]:
        lines += [f"  %q{k} = splat %p{k} {{shape=({n},)}}", f"  %s{k} = ptr_add %q{k}, %o"]
    lines += [f"  %{k} = load %s{k}" for k in "abc"[:len(arrays)]]
    text = f"kernel @f({', '.join(params)}) {{\n" + "\n".join([*lines, f"  {body}", "  store %sr, %r", "  return"]) \
        + "\n}\n"
    run(text, **{f"p{k}": a for k, a in zip("abc", arrays)}, pr=r)
    return r


def test_integers_wrap_and_divide_like_c():
    a = np.array([7, -7, 7, -7, -2**31, 5, 2**31 - 1, 0], np.int32)
    b = np.array([2, 2, -2, -2, -1, 3, 2, 1], np.int32)
    assert tile_op("%r = idiv %a, %b", a, b, out=np.int32).tolist() == [3, -3, -3, 3, -2**31, 1, 2**30 - 1, 0]
    assert tile_op("%r = irem %a, %b", a, b, out=np.int32).tolist() == [1, -1, 1, -1, 0, 2, 1, 0]
    assert tile_op("%r = mul %a, %b", a, b, out=np.int32)[6] == -2
    assert tile_op("%r = mulhi %a, %b", a, b, out=np.int32).tolist() == [0, -1, -1, 0, 0, 0, 0, 0]
    u = np.array([2**63 + 5, 3], np.uint64)
    assert tile_op("%r = mulhi %a, %b", u, u, out=np.uint64).tolist() == [(2**63 + 5) ** 2 >> 64, 0]


def test_shifts_clamp():
    a, n = np.array([-8, -8, -8, 5], np.int32), np.array([1, 32, 99, 31], np.int32)
    assert tile_op("%r = shr %a, %b", a, n, out=np.int32).tolist() == [-4, -1, -1, 0]
    assert tile_op("%r = shl %a, %b", a, n, out=np.int32).tolist() == [-16, 0, 0, -2**31]
    assert tile_op("%r = shr %a, %b", a.view(np.uint32), n.view(np.uint32), out=np.uint32)[0] == 2**31 - 4


def test_int1_is_modulo_two():
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    for op, want in {"add": [0, 1, 1, 0], "sub": [0, 1, 1, 0], "mul": [0, 0, 0, 1]}.items():
        assert tile_op(f"%r = {op} %a, %b", a, b, out=bool).tolist() == [bool(w) for w in want]


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_extrema_and_nan(dtype):
    nan = float("nan")
    a, b = np.array([nan, 1, -0.0, nan], dtype), np.array([2, nan, 0.0, nan], dtype)
    r = tile_op("%r = maximum %a, %b", a, b, out=dtype).astype(float)
    np.testing.assert_array_equal(r, [2, 1, 0, nan])
    assert not np.signbit(r[2]) and np.signbit(tile_op("%r = minimum %b, %a", a, b, out=dtype)[2])
    r = tile_op("%r = minimum %a, %b {nan=true}", a, b, out=dtype).astype(float)
    np.testing.assert_array_equal(r, [nan, nan, 0, nan])


def test_casts_round_once():
    x = np.array([1 + 2**-8 + 2**-40, 1 + 2**-8, 1 + 3 * 2**-8, 1e39], np.float64)
    r = tile_op("%r = cast %a {dtype=bf16}", x, out=ml_dtypes.bfloat16).astype(float)
    assert r.tolist() == [1 + 2**-7, 1, 1 + 2**-6, float("inf")]
    r = tile_op('%r = cast %a {dtype=bf16, rounding="rtz"}', np.array([1.9999, -1.9999], np.float32),
                out=ml_dtypes.bfloat16).astype(float)
    assert r.tolist() == [1.9921875, -1.9921875]


def test_fp8_casts_saturate():
    x = np.array([1e9, -1e9, 460, float("inf"), 0.3, 2**-9, 2**-11, float("nan")], np.float32)
    r = tile_op("%r = cast %a {dtype=fp8e4nv}", x, out=ml_dtypes.float8_e4m3fn).astype(float)
    np.testing.assert_array_equal(r, [448, -448, 448, 448, 0.3125, 2**-9, 0, float("nan")])
    r = tile_op("%r = cast %a {dtype=fp8e5}", x, out=ml_dtypes.float8_e5m2).astype(float)
    assert r[:4].tolist() == [57344, -57344, 448, 57344]


def test_float_to_int_truncates_and_saturates():
    x = np.array([2.9, -2.9, 1e20, -1e20, float("nan"), 0.5, -0.0, 3e9], np.float32)
    assert tile_op("%r = cast %a {dtype=int32}", x, out=np.int32).tolist() == \
        [2, -2, 2**31 - 1, -2**31, 0, 0, 0, 2**31 - 1]
    assert tile_op("%r = cast %a {dtype=int1}", x, out=bool).tolist() == [True] * 6 + [False, True]
    assert tile_op("%r = cast %a {dtype=int8}", np.array([300, -129], np.int32), out=np.int8).tolist() == [44, 127]


def test_fma_rounds_once():
    a = np.array([1 + 2**-12, 2.0**-30], np.float32)
    c = np.array([-1, 1], np.float32)
    exact = [float((1 + 2**-12) ** 2 - 1), 1.0]
    assert tile_op("%r = fma %a, %a, %b", a, c, out=np.float32).tolist() == exact
    # the product's tail decides a tie of the sum
    a, b, c = (np.array([v], np.float32) for v in (1 + 2**-23, 2**-24, 1.0))
    assert tile_op("%r = fma %a, %b, %c", a, b, c, out=np.float32)[0] == np.float32(1 + 2**-23)


def test_bf16_arithmetic_rounds_after_every_op():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(512).astype(ml_dtypes.bfloat16) for _ in "ab")
    for op, fn in {"add": np.add, "mul": np.multiply, "div": np.divide}.items():
        want = fn(a.astype(np.float64), b.astype(np.float64)).astype(np.float32).astype(ml_dtypes.bfloat16)
        got = tile_op(f"%r = {op} %a, %b", a, b, out=ml_dtypes.bfloat16)
        np.testing.assert_array_equal(got.view(np.int16), want.view(np.int16))


def test_bitcast_and_compare():
    x = np.array([1.0, -0.0, float("nan"), 2.0], np.float32)
    assert tile_op("%r = bitcast %a {dtype=int32}", x, out=np.int32)[0] == 0x3F800000
    for pred, want in {"ne": [0, 0, 1, 0], "eq": [1, 1, 0, 1], "ge": [1, 1, 0, 1]}.items():
        assert tile_op(f'%r = cmp %a, %a {{pred="{pred}"}}', x, out=bool).tolist() == [bool(w) for w in want]


def test_reduce_with_index_and_scan():
    text = """
kernel @f(%x: ptr<fp32>, %i: ptr<int32>, %s: ptr<fp32>) {
  %o = arange {start=0, end=16}
  %p = splat %x {shape=(16,)}
  %q = ptr_add %p, %o
  %v = load %q
  %m = reshape %v {shape=(2, 8)}
  %c = reshape %o {shape=(2, 8)}
  %best, %at = reduce %m, %c {axis=1} : fp32[2], int32[2] {(%a: fp32, %ai: int32, %b: fp32, %bi: int32)
    %gt = cmp %a, %b {pred="ge"}
    %v = select %gt, %a, %b
    %w = select %gt, %ai, %bi
    yield %v, %w
  }
  %two = arange {start=0, end=2}
  %ip = splat %i {shape=(2,)}
  %iq = ptr_add %ip, %two
  store %iq, %at
  %sum = scan %v {axis=0, reverse=true} : fp32[16] {(%a: fp32, %b: fp32)
    %r = add %a, %b
    yield %r
  }
  %sp = splat %s {shape=(16,)}
  %sq = ptr_add %sp, %o
  store %sq, %sum
  return
}
"""
    x = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3], np.float32)
    i, s = np.zeros(2, np.int32), np.zeros(16, np.float32)
    run(text, x=x, i=i, s=s)
    assert i.tolist() == [5, 12] and (s == np.cumsum(x[::-1])[::-1]).all()


DOT = """
kernel @f(%a: ptr<T>, %b: ptr<T>, %c: ptr<A>) {
  %i = arange {start=0, end=16}
  %col = expand_dims %i {axis=1}
  %row = expand_dims %i {axis=0}
  %n = const {value=16} : int32[16x1]
  %coln = mul %col, %n
  %x = broadcast %coln {shape=(16, 16)}
  %y = broadcast %row {shape=(16, 16)}
  %o = add %x, %y
  %pa = splat %a {shape=(16, 16)}
  %pb = splat %b {shape=(16, 16)}
  %pc = splat %c {shape=(16, 16)}
  %qa = ptr_add %pa, %o
  %qb = ptr_add %pb, %o
  %qc = ptr_add %pc, %o
  %va = load %qa
  %vb = load %qb
  %z = const {value=0} : A[16x16]
  %r = dot %va, %vb, %z {precision=P}
  store %qc, %r
  return
}
"""


def test_dot_precision():
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((16, 16)).astype(np.float32) for _ in "ab")
    c, d = np.zeros((16, 16), np.float32), np.zeros((16, 16), np.float32)
    text = DOT.replace("T>", "fp32>").replace("A>", "fp32>").replace("A[", "fp32[")
    run(text.replace("=P", '="ieee"'), a=a, b=b, c=c)
    run(text.replace("=P", '="tf32"'), a=a, b=b, c=d)
    cut = lambda v: (v.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(float)
    np.testing.assert_array_equal(c, (a.astype(float) @ b).astype(np.float32))
    np.testing.assert_array_equal(d, (cut(a) @ cut(b)).astype(np.float32))
    i8 = rng.integers(-128, 127, (2, 16, 16)).astype(np.int8)
    e = np.zeros((16, 16), np.int32)
    run(DOT.replace("T>", "int8>").replace("A>", "int32>").replace("A[", "int32[").replace("=P", "=none"),
        a=i8[0], b=i8[1], c=e)
    np.testing.assert_array_equal(e, i8[0].astype(int) @ i8[1].astype(int))


def test_atomics_on_one_address_happen_one_after_another():
    text = """
kernel @f(%p: ptr<int32>, %old: ptr<int32>) {
  %i = arange {start=0, end=8}
  %q = splat %p {shape=(8,)}
  %r = atomic_rmw %q, %i {kind="add", sem="relaxed", scope="gpu"}
  %o = splat %old {shape=(8,)}
  %oo = ptr_add %o, %i
  store %oo, %r
  %one = const {value=1} : int32
  %n = ptr_add %p, %one
  %zero = const {value=0} : int32
  %x = atomic_cas %n, %zero, %one {sem="acq_rel", scope="gpu"}
  return
}
"""
    p, old = np.array([100, 0], np.int32), np.zeros(8, np.int32)
    run(text, p=p, old=old)
    assert p.tolist() == [128, 1] and old.tolist() == [100, 100, 101, 103, 106, 110, 115, 121]


def test_broken_promises_are_errors():
    head = "kernel @f(%n: int32, %p: ptr<fp32>) {\n  %z = const {value=0} : int32\n  %c = cmp %n, %z {pred=\"gt\"}\n"
    with pytest.raises(EvaluationError, match="promise is not kept"):
        run(head + "  assume %c\n  return\n}\n", n=0, p=np.zeros(1, np.float32))
    with pytest.raises(EvaluationError, match="assertion failed: positive"):
        run(head + '  device_assert %c {message="positive"}\n  return\n}\n', n=0, p=np.zeros(1, np.float32))
    with pytest.raises(EvaluationError, match="expected a numpy array"):
        run(head + "  return\n}\n", n=0, p=3)
    with pytest.raises(EvaluationError, match="no argument for parameter n"):
        run(head + "  return\n}\n", p=np.zeros(1, np.float32))
    with pytest.raises(EvaluationError, match="float64 elements for a pointer to fp32"):
        run(head + "  return\n}\n", n=0, p=np.zeros(1))


def test_arrays_without_dimensions_are_written():
    """A 0-d array is memory like any other."""
    fn = parse_function("kernel @k(%x: ptr<fp32>) {num_warps=4} {\n  %v = load %x : fp32\n  %w = add %v, %v : fp32\n  store %x, %w\n  return\n}")
    x = np.full((), 3, np.float32)
    evaluate(fn, (1, 1, 1), {"x": x})
    assert x == 6
