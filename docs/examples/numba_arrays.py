"""Arrays of numba: device arrays of numba.cuda where there is a GPU, arrays of compiled host functions where not.

Needs: numba
"""
import numba
import numpy as np

import tilejit
import tilejit.language as tl


@tilejit.kernel
def polynomial_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, at < n)
    tl.store(out + at, (v * 3 + 2) * v + 1, at < n)


@numba.njit
def waves(n):
    x = np.empty(n, np.float32)
    for i in range(n):
        x[i] = np.sin(i / 10)
    return x


def main():
    host = waves(1000)
    if gpu():
        from numba import cuda

        x, out = cuda.to_device(host), cuda.device_array(1000, np.float32)
        polynomial_kernel[(8,)](x, out, 1000, BLOCK=128)
        result = out.copy_to_host()
    else:
        result = np.empty_like(host)
        polynomial_kernel[(8,)](host, result, 1000, BLOCK=128)
    np.testing.assert_allclose(result, (host * 3 + 2) * host + 1, rtol=1e-5)
    print("arrays of numba: right")


def gpu():
    try:
        from numba import cuda

        return cuda.is_available()
    except ImportError:
        return False


if __name__ == "__main__":
    main()
