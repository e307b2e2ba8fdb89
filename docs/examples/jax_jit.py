"""Kernels in a JAX program: a block under jax.jit, with a gradient by a second kernel.

Needs: jax
"""
import jax
import jax.numpy as jnp
import numpy as np

import tilejit
import tilejit.language as tl


@tilejit.kernel
def silu_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, at < n).to(tl.float32)
    tl.store(out + at, v * tl.sigmoid(v), at < n)


@tilejit.kernel
def silu_gradient_kernel(x, grad, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v, g = tl.load(x + at, at < n).to(tl.float32), tl.load(grad + at, at < n)
    s = tl.sigmoid(v)
    tl.store(out + at, g * s * (1 + v * (1 - s)), at < n)


@tilejit.kernel
def product_kernel(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([row, k]), b.load([k, column]), acc)
    c.store([row, column], acc.to(c.dtype))


def elementwise(kernel, x, *more):
    """An operation of the program: a ShapeDtypeStruct among the arguments is a result."""
    return tilejit.jax.call(kernel, x, *more, jax.ShapeDtypeStruct(x.shape, x.dtype), x.size,
                            grid=lambda meta: (tilejit.cdiv(meta["n"], meta["BLOCK"]),), BLOCK=256)


@jax.custom_vjp
def silu(x):
    return elementwise(silu_kernel, x)


silu.defvjp(lambda x: (silu(x), x), lambda x, grad: (elementwise(silu_gradient_kernel, x, grad),))


def product(a, b):
    """A @ B through descriptors; sizes are multiples of 64."""
    d = tilejit.jax.descriptor
    c = jax.ShapeDtypeStruct((a.shape[0], b.shape[1]), a.dtype)
    return tilejit.jax.call(product_kernel, d(a, (64, 64)), d(b, (64, 64)), d(c, (64, 64)), a.shape[1],
                            grid=(c.shape[0] // 64, c.shape[1] // 64), BM=64, BN=64, BK=64)


@jax.jit
def block(x, up, down):
    return x + product(silu(product(x, up)), down)


def main():
    keys = jax.random.split(jax.random.key(0), 3)
    x, up, down = (jax.random.normal(k, s, jnp.bfloat16) / 8 for k, s in zip(keys, ((64, 64), (64, 128), (128, 64))))
    h = x.astype(jnp.float32) @ up.astype(jnp.float32)
    expected = x + (h * jax.nn.sigmoid(h)) @ down.astype(jnp.float32)
    np.testing.assert_allclose(np.asarray(block(x, up, down), np.float32), np.asarray(expected), rtol=0.05, atol=0.05)

    v = jnp.linspace(-3, 3, 1000)
    ours, theirs = (jax.jit(jax.grad(lambda v, f=f: f(v).sum()))(v) for f in (silu, jax.nn.silu))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    print(f"a block of three kernels under jax.jit on {jax.devices()[0].platform}, and a gradient: right")


if __name__ == "__main__":
    main()
