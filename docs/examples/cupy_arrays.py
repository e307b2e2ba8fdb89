"""Arrays and streams of cupy.

Needs: cupy, a GPU
"""
import cupy

import tilejit
import tilejit.language as tl


@tilejit.kernel
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)


def main():
    n = 100_000
    x, y = cupy.random.rand(2, n, dtype=cupy.float32)
    out = cupy.empty_like(x)
    grid = (tilejit.cdiv(n, 1024),)
    add_kernel[grid](x, y, out, n, BLOCK=1024)
    cupy.testing.assert_allclose(out, x + y)

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:                            # launches go to cupy's current stream
        out.fill(0)
        add_kernel[grid](x, y, out, n, BLOCK=1024)
        twice = out + out
    stream.synchronize()
    cupy.testing.assert_allclose(twice, 2 * (x + y))

    add_kernel[grid](x, x, out, n, BLOCK=1024, stream=stream)
    stream.synchronize()
    cupy.testing.assert_allclose(out, 2 * x)
    print("arrays of cupy, on the default stream and on one of its own: right")


if __name__ == "__main__":
    main()
