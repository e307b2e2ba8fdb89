"""Bad kernels and bad calls: each gives its error at the user's line, says what was found and how to fix it."""
from __future__ import annotations

import linecache

import numpy as np
import pytest

import tilejit
import tilejit.language as tl

TABLE = [1, 2, 3]
X = np.zeros(64, np.float32)
ARGS = ("*fp32", "int32")


@tilejit.kernel
def uses_try(x, n):
    try:
        tl.store(x, 1.0)
    except ValueError:
        pass


@tilejit.kernel
def uses_with(x, n):
    with x:
        pass


@tilejit.kernel
def uses_lambda(x, n):
    f = lambda v: v  # noqa: E731
    tl.store(x, f(1.0))


@tilejit.kernel
def undefined_name(x, n):
    acc = 1.0
    tl.store(x, acc2)  # noqa: F821
    acc += 1


@tilejit.kernel
def one_branch(x, n):
    if n > 3:
        y = 1.0
    tl.store(x, y)


@tilejit.kernel
def carried_type(x, n):
    acc = 0
    for _ in range(n):
        acc += 1.5
    tl.store(x, acc)


@tilejit.kernel
def reads_list(x, n):
    tl.store(x, TABLE[0])


@tilejit.kernel
def recursive(x, n):
    recursive(x, n)


@tilejit.kernel
def if_on_tile(x, n):
    offs = tl.arange(0, 64)
    if offs < n:
        tl.store(x, 1.0)


@tilejit.kernel
def static_range_dynamic(x, n):
    for i in tl.static_range(n):
        tl.store(x + i, 1.0)


@tilejit.kernel
def not_power_of_two(x, n):
    offs = tl.arange(0, 100)
    tl.store(x + offs, 1.0)


@tilejit.kernel
def shape_not_constant(x, n):
    z = tl.zeros((n,), tl.float32)
    tl.store(x + tl.arange(0, 64), z)


@tilejit.kernel
def dot_inner_dims(x, n):
    a = tl.zeros((128, 64), tl.float16)
    b = tl.zeros((32, 256), tl.float16)
    tl.dot(a, b)


@tilejit.kernel
def dot_dtypes(x, n):
    a = tl.zeros((64, 64), tl.int1)
    b = tl.zeros((64, 64), tl.bfloat16)
    tl.dot(a, b)


@tilejit.kernel
def dot_ranks(x, n):
    a = tl.zeros((2, 64, 64), tl.float16)
    b = tl.zeros((64, 64), tl.float16)
    tl.dot(a, b)


@tilejit.kernel
def dot_precision(x, n):
    a = tl.zeros((64, 64), tl.float32)
    tl.dot(a, a, input_precision="tf64")


@tilejit.kernel
def broadcast_shapes(x, n):
    a = tl.arange(0, 64) + tl.arange(0, 32)
    tl.store(x + a, 1.0)


@tilejit.kernel
def literal_range(x, n):
    v = tl.zeros((64,), tl.int8) + 1000
    tl.store(x + tl.arange(0, 64), v)


@tilejit.kernel
def item_assignment(x, n):
    v = tl.zeros((64,), tl.float32)
    v[0] = 1.0


@tilejit.kernel
def tile_index(x, n):
    v = tl.arange(0, 64)
    tl.store(x, v[3])


@tilejit.kernel
def calls_numpy(x, n):
    tl.store(x, np.sqrt(tl.load(x)))


@tilejit.kernel
def mask_not_bool(x, n):
    offs = tl.arange(0, 64)
    tl.load(x + offs, offs)


@tilejit.kernel
def static_assert_fails(x, n):
    tl.static_assert(1 + 1 == 3, "arithmetic")


@tilejit.kernel
def exp_of_half(x, n):
    tl.exp(tl.zeros((64,), tl.float16))


@tilejit.kernel
def wrong_attribute(x, n):
    tl.arange(0, 64).sums()


@tilejit.kernel
def wrong_function(x, n):
    tl.arrange(0, 64)


@tilejit.kernel
def float_floor_division(x, n):
    tl.store(x, tl.load(x) // 2.0)


BAD_KERNELS = [
    (uses_try, "try:", "'try' is not part of the tile language"),
    (uses_with, "with x:", "'with' is not part of the tile language"),
    (uses_lambda, "lambda", "'lambda' is not part of the tile language"),
    (undefined_name, "acc2", "did you mean 'acc'"),
    (one_branch, "tl.store(x, y)", "then branch only"),
    (carried_type, "acc += 1.5", "'acc' is int32 before the loop at line"),
    (reads_list, "TABLE[0]", "only constants may be captured"),
    (recursive, "recursive(x, n)", "recursive -> recursive"),
    (if_on_tile, "if offs < n", "tl.where(cond, a, b)"),
    (static_range_dynamic, "tl.static_range(n)", "tl.constexpr"),
    (not_power_of_two, "tl.arange(0, 100)", "use 64 or 128"),
    (shape_not_constant, "tl.zeros((n,)", "tl.constexpr"),
    (dot_inner_dims, "tl.dot(a, b)", "64 != 32"),
    (dot_dtypes, "tl.dot(a, b)", "Unsupported lhs dtype int1"),
    (dot_ranks, "tl.dot(a, b)", "equal ranks"),
    (dot_precision, "tl.dot(a, a", "must be one of tf32, ieee, tf32x3, bf16x3, bf16x6"),
    (broadcast_shapes, "tl.arange(0, 64) + tl.arange(0, 32)", "[64] with [32]"),
    (literal_range, "+ 1000", "out of range for int8"),
    (item_assignment, "v[0] = 1.0", "no item"),
    (tile_index, "v[3]", "indexed by None and ':'"),
    (calls_numpy, "np.sqrt", "neither a tl function"),
    (mask_not_bool, "tl.load(x + offs, offs)", "write mask != 0"),
    (static_assert_fails, "tl.static_assert", "arithmetic"),
    (exp_of_half, "tl.exp", "x.to(tl.float32)"),
    (wrong_attribute, ".sums", "did you mean 'sum'"),
    (wrong_function, "tl.arrange", "did you mean 'arange'"),
    (float_floor_division, "// 2.0", "tl.floor"),
]


@pytest.mark.parametrize("kernel,line,hint", BAD_KERNELS, ids=[k.__name__ for k, _, _ in BAD_KERNELS])
def test_bad_kernel(kernel, line, hint):
    """The message names this file, shows the line with a caret, and has the hint."""
    with pytest.raises(tilejit.CompilationError) as caught:
        kernel.compile(*ARGS)
    text = str(caught.value)
    assert "test_bad_inputs.py:" in text and "^" in text, text
    assert line in text and hint in text, text


@tilejit.kernel
def copy(x, out, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out + offs, tl.load(x + offs, offs < n), offs < n)


@tilejit.kernel
def deep(a_desc, out, K, BK: tl.constexpr):
    acc = tl.zeros((128, 128), tl.float32)
    for k in range(K):
        a = a_desc.load([0, k * BK])
        acc = tl.dot(a, a.T, acc)
    offs = tl.arange(0, 128)
    tl.store(out + offs[:, None] * 128 + offs[None, :], acc)


def _no_stage_fits():
    d = tilejit.TensorDescriptor.from_tensor(np.zeros((128, 1024), np.float32), (128, 1024))
    deep.compile(d, "*fp32", 4, BK=1024, num_warps=8, num_stages=32)


BAD_CALLS = [
    (lambda: copy.compile(X, X, 64, BLOCK=64, num_stage=3), TypeError, "did you mean 'num_stages'"),
    (lambda: copy.compile(X, X, 64), TypeError, "'BLOCK'"),
    (lambda: copy.compile(X, X, 64, 64, 64), TypeError, "takes 4 arguments"),
    (lambda: copy.compile(X, X, 64, 64, BLOCK=64), TypeError, "multiple values for argument 'BLOCK'"),
    (lambda: copy.compile(X, X, 64, BLOCK=64, num_warps=3), tilejit.CompilationError, "num_warps=3"),
    (lambda: copy.compile(X, X, 64, BLOCK=64, num_stages=-1), tilejit.CompilationError, "num_stages=-1"),
    (lambda: copy.compile(object(), X, 64, BLOCK=64), tilejit.LaunchError, "'x'"),
    (lambda: copy.compile(X, X, 1 << 70, BLOCK=64), tilejit.LaunchError, "64 bits"),
    (lambda: copy[(1, 2, 3, 4)](X, X, 64, BLOCK=64), tilejit.LaunchError, "1 to 3 integers"),
    (lambda: copy[(1, 70000)](X, X, 64, BLOCK=64), tilejit.LaunchError, "65535"),
    (lambda: copy(X, X, 64), tilejit.LaunchError, "copy[grid]"),
    (lambda: tilejit.TensorDescriptor(X, (8, 8), (1, 8), (8, 8)), tilejit.LaunchError, "last stride"),
    (lambda: tilejit.TensorDescriptor(X, (8, 8), (8, 1), (8,)), tilejit.LaunchError, "rank"),
    (_no_stage_fits, tilejit.CompilationError, "num_stages"),
]


@pytest.mark.parametrize("call,kind,hint", BAD_CALLS, ids=[str(i) for i in range(len(BAD_CALLS))])
def test_bad_call(call, kind, hint):
    """A wrong call or option is named, with the way out."""
    with pytest.raises(kind) as caught:
        call()
    assert hint in str(caught.value), str(caught.value)


def test_kernel_without_source():
    """A kernel made by exec has no source to compile."""
    scope = {"tilejit": tilejit}
    exec("@tilejit.kernel\ndef k(x):\n    pass\n", scope)
    with pytest.raises(tilejit.CompilationError, match="needs the source"):
        scope["k"].compile("*fp32")


@pytest.mark.parametrize("text", ["import os\nimport sys", "def other(x):\n    pass", "x = (1,", ""])
def test_kernel_whose_source_is_something_else(monkeypatch, text):
    """Python 3.13 keeps the text of `python -c` under the name that exec gives to all it runs."""
    monkeypatch.setitem(linecache.cache, "<string>", (len(text), None, text.splitlines(True), "<string>"))
    test_kernel_without_source()
