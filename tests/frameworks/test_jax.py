"""Kernels as operations of JAX programs. Needs jax."""
from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import tilejit  # noqa: E402
import tilejit.language as tl  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@tilejit.kernel
def scale_kernel(x, out, factor, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) * factor, at < n)


@tilejit.kernel
def both_kernel(x, twice, sums, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, at < n, other=0)
    tl.store(twice + at, v * 2, at < n)
    tl.store(sums + tl.program_id(0), tl.sum(v))


@tilejit.kernel
def block_kernel(x, out, SIDE: tl.constexpr):
    row = tl.program_id(0) * SIDE
    out.store([row, 0], x.load([row, 0]) * 3)


@tilejit.kernel
def broken_kernel(x, out, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), tl.load(x + tl.arange(0, BLOCK)) + missing)  # noqa: F821


@tilejit.kernel
def outside_kernel(x, out, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK) + 10 ** 6, tl.load(x + tl.arange(0, BLOCK)))


@pytest.fixture(autouse=True)
def evaluator():
    with tilejit.knobs(target="evaluator"):
        yield


def like(x, shape=None):
    return jax.ShapeDtypeStruct(x.shape if shape is None else shape, x.dtype)


def scaled(x, factor=3.0, **options):
    return tilejit.jax.call(scale_kernel, x, like(x), factor, x.size, grid=lambda m: (tilejit.cdiv(m["n"], m["BLOCK"]),),
                            BLOCK=64, **options)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32"])
def test_in_a_compiled_program(dtype):
    x = jnp.arange(300).astype(dtype)
    program = jax.jit(lambda x: scaled(scaled(x, 2) + 1, 3))
    assert np.array_equal(np.asarray(program(x)), np.asarray((x * 2 + 1) * 3))
    assert np.array_equal(np.asarray(scaled(x, 2)), np.asarray(x * 2)), "and outside of one"


def test_results_and_sizes():
    program = jax.jit(lambda x: tilejit.jax.call(both_kernel, x, like(x), like(x, (tilejit.cdiv(x.size, 32),)), x.size,
                                                 grid=(tilejit.cdiv(x.size, 32),), BLOCK=32))
    for n in (100, 64):
        twice, sums = program(x := jnp.arange(n, dtype=jnp.float32))
        assert np.array_equal(twice, 2 * x) and float(sums.sum()) == float(x.sum()) and sums.shape == ((n + 31) // 32,)


def test_arrays_that_are_changed():
    def program(x):
        return tilejit.jax.call(scale_kernel, tilejit.jax.InOut(x), x, 1.0, 0, grid=(1,), BLOCK=16), x

    x = jnp.arange(100, dtype=jnp.float32)
    changed = jax.jit(lambda x: tilejit.jax.call(scale_kernel, x, tilejit.jax.InOut(jnp.ones_like(x)), 5.0, 50,
                                                 grid=(1,), BLOCK=64))(x)
    assert np.array_equal(changed[:50], 5 * x[:50]) and (changed[50:] == 1).all()
    same, first = jax.jit(program)(x)
    assert np.array_equal(same, x) and np.array_equal(first, x)


def test_descriptors():
    def program(x):
        d = tilejit.jax.descriptor
        return tilejit.jax.call(block_kernel, d(x, (16, 32)), d(like(x), (16, 32)), grid=(x.shape[0] // 16,), SIDE=16)

    x = jnp.arange(48 * 32, dtype=jnp.float32).reshape(48, 32)
    assert np.array_equal(jax.jit(program)(x), 3 * x)


def test_tuned_kernels_and_kernels_with_options():
    tuned = tilejit.autotune([tilejit.Config({"BLOCK": b}) for b in (32, 128)], key=["n"], cache_results=False)(scale_kernel)
    x = jnp.arange(100, dtype=jnp.float32)
    for kernel, named in ((tuned, {}), (scale_kernel.partial(BLOCK=32), {"num_warps": 2})):
        found = jax.jit(lambda x, k=kernel, named=named: tilejit.jax.call(
            k, x, like(x), 2.0, x.size, grid=(4,), **named))(x)
        assert np.array_equal(found, 2 * x)


def test_maps():
    """Refused unless asked for; then one launch for each."""
    x = jnp.arange(300, dtype=jnp.float32).reshape(3, 100)
    with pytest.raises(NotImplementedError, match="vmap"):
        jax.vmap(scaled)(x)
    mapped = jax.jit(jax.vmap(lambda x: scaled(x, vmap_method="sequential")))
    assert np.array_equal(mapped(x), 3 * x)
    with pytest.raises(tilejit.LaunchError, match='one way only, "sequential"'):
        scaled(x, vmap_method="broadcast_all")


def test_a_gradient_by_a_second_kernel():
    f = jax.custom_vjp(lambda x: scaled(x))
    f.defvjp(lambda x: (scaled(x), None), lambda _, g: (scaled(g),))
    x = jnp.arange(100, dtype=jnp.float32)
    assert np.array_equal(jax.jit(jax.grad(lambda x: f(x).sum()))(x), np.full(100, 3.0, np.float32))
    with pytest.raises(ValueError, match="differentiat"):
        jax.grad(lambda x: scaled(x).sum())(x)


def test_errors():
    x = jnp.arange(64, dtype=jnp.float32)
    with pytest.raises(tilejit.CompilationError, match="missing"):
        jax.jit(lambda x: tilejit.jax.call(broken_kernel, x, like(x), grid=(1,), BLOCK=64))(x)
    with pytest.raises(tilejit.LaunchError, match="no results among the arguments"):
        tilejit.jax.call(scale_kernel, x, x, 1.0, 3, grid=(1,), BLOCK=64)
    with pytest.raises(Exception, match="EvaluationError: .*out of bounds"):
        jax.jit(lambda x: tilejit.jax.call(outside_kernel, x, like(x), grid=(1,), BLOCK=64))(x).block_until_ready()


def test_eager_arrays_through_dlpack():
    x, out = jnp.arange(100, dtype=jnp.float32), jnp.zeros(100, jnp.float32)
    scale_kernel[(2,)](x, out, 3.0, 100, BLOCK=64)
    assert np.array_equal(out, 3 * x)


def test_calls_have_the_same_number_in_every_process():
    """Programs of XLA may be kept on disk."""
    import os
    import subprocess
    import sys

    code = ("import jax, jax.numpy as jnp, sys; sys.path.insert(0, 'tests/frameworks'); import test_jax as t, tilejit\n"
            "with tilejit.knobs(target='evaluator'):\n"
            "    t.scaled(jnp.arange(10.0))\n"
            "from tilejit.frameworks import jax_call; print(*jax_call._specs)")
    found = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={
        **os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(sys.path)}).stdout for seed in (1, 2)}
    assert len(found) == 1 and found.pop().strip().isdigit()
