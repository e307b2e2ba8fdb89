"""Errors of compilation as programs written for Triton look at them."""
import numpy as np
import pytest

import tilejit.language as tl


def failing(triton, body, **signature):
    """The error of compiling a kernel for types of arguments."""
    with pytest.raises(triton.CompilationError) as e:
        triton.compile(triton.compiler.ASTSource(fn=triton.jit(body), signature=signature, constexprs={}))
    return e.value


def missing_name():
    return nowhere  # noqa: F821


def test_errors_of_called_functions_are_causes(triton):
    inner = triton.jit(missing_name)

    def kernel(x):
        y = tl.load(x)
        inner()
        tl.store(x, y)

    error = failing(triton, kernel, x="*i32")
    assert "at 3:4:" in str(error) and "called from" in str(error)
    assert "at 2:11:" in str(error.__cause__) and "'nowhere' is not defined" in str(error.__cause__)
    assert error.__cause__.__cause__ is None


def test_what_the_language_refuses_is_the_last_cause(triton):
    @triton.jit
    def inner(x):
        tl.store(x, tl.arange(0, 3))

    def kernel(x):
        inner(x)

    cause = failing(triton, kernel, x="*i32").__cause__.__cause__
    assert type(cause) is ValueError and str(cause) == "arange's range must be a power of 2"


@pytest.mark.parametrize("k,message", [(0, "topk: k must be greater than 0"), (6, "topk: k must be a power of two")])
def test_assertions_of_the_language_carry_their_text(triton, k, message):
    count = tl.constexpr(k)

    def kernel():
        tl.topk(tl.arange(0, 8), count)

    error = failing(triton, kernel)
    while error.__cause__ is not None:
        error = error.__cause__
    assert isinstance(error, triton.compiler.errors.CompileTimeAssertionFailure) and error.error_message == message


#: read by kernels
PLAIN, MARKED, KIND = 3, tl.constexpr(3), tl.float16


def test_globals_are_constexprs(triton):
    """Or types, named tuples and what a knob allows; an annotation alone is not enough."""
    def kernel(x):
        tl.store(x, PLAIN)

    assert "Cannot access global variable PLAIN" in str(failing(triton, kernel, x="*i32"))

    def marked(x):
        tl.store(x, tl.full((), MARKED, KIND).to(tl.int32))

    triton.compile(triton.compiler.ASTSource(fn=triton.jit(marked), signature={"x": "*i32"}, constexprs={}))
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.allow_non_constexpr_globals = True

        def allowed(x):                        # another kernel: what was compiled once is found on disk, and not asked
            tl.store(x, PLAIN)

        triton.compile(triton.compiler.ASTSource(fn=triton.jit(allowed), signature={"x": "*i32"}, constexprs={}))


def test_numbers_of_warps(triton):
    @triton.jit
    def kernel(x):
        tl.store(x, 1)

    with pytest.raises(AssertionError, match="must be a power of 2"):
        kernel.warmup(np.zeros(1, np.int32), num_warps=6, grid=(1,))
    with pytest.raises(ValueError, match=r"num_ctas > 1 requires NVIDIA SM90\+"):
        kernel.warmup(np.zeros(1, np.int32), num_ctas=2, arch="sm80", grid=(1,))


def test_preloaded_tuples(triton):
    """What a hook is told of a compilation builds the same kernel: constants inside of tuples are constants again."""
    @triton.jit
    def kernel(x, sizes):
        tl.static_assert(sizes[1][0] == 5 and sizes[0] == 1)
        tl.store(x + tl.arange(0, 8), sizes[1][1])

    told = []
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.jit_cache_hook = lambda **k: told.append(k["compile"]["specialization_data"])
        first = kernel.warmup(np.zeros(8, np.int32), (1, (tl.constexpr(5), 7)), grid=(1,))
        again = kernel.preload(told[0])
    assert first is again


def test_pointers_that_are_constant(triton):
    """Nothing is stored through a parameter marked `tl.const`, whatever way it goes; loads are as ever."""
    @triton.jit
    def copied(x: tl.const, out, n):
        i, p = tl.arange(0, 32), x
        for _ in range(n):
            p += 32
        tl.store(out + i, tl.load(p + i))

    out = np.zeros(32, np.int32)
    copied[(1,)](np.arange(128, dtype=np.int32), out, 2)
    assert (out == np.arange(64, 96)).all()

    def stored(x: tl.const, out, n):
        tl.store(x + 3, 1)

    def added(x: "tl.const", out, n):  # noqa: UP037
        tl.atomic_add(x, 1)

    def chosen(x: tl.const, out, n):
        if n > 2:
            place = x
        else:
            place = out
        tl.store(place, 1)

    def either(x: tl.const, out, n):
        tl.store(x if n > 2 else out, 1)

    for body, words in ((stored, "Cannot store to a constant pointer"), (added, "Cannot store to a constant pointer"),
                        (chosen, "Mismatched type for place"), (either, "Ternary expression with dynamic condition")):
        assert words in failing(triton, body, x="*i32", out="*i32", n="i32").error_message
