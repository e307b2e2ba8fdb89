"""device_print: each element once, the same lines from the evaluator and from the PTX in the emulator."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.emulator.printing import formatted

pytestmark = [pytest.mark.remarks("stack", "C7510", reason="vprintf takes its values in local memory; it is a call"),
              pytest.mark.one_schedule]         # what is printed is counted


def printed(capfd, kernel, *args, **options):
    """The lines that a launch of two programs prints in the evaluator; those of the emulator are the same."""
    lines = {}
    for target in ("evaluator", "emulator"):
        with tilejit.knobs(target=target):
            kernel[(1, 2)](*args, **options)
        lines[target] = sorted(capfd.readouterr().out.splitlines())
    assert lines["evaluator"] == lines["emulator"]
    return lines["evaluator"]


@tilejit.kernel
def tiles(x, N: tl.constexpr):
    rows, columns = tl.arange(0, 2), tl.arange(0, N)
    tl.device_print("x", tl.load(x + rows[:, None] * N + columns[None, :]))


@pytest.mark.parametrize("num_warps", [1, 4])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float64, np.int8, np.uint16, np.uint32, np.int64])
def test_every_element_once(capfd, dtype, num_warps):
    """Whatever the threads hold: 32 elements, a line each, in all programs."""
    x = np.arange(32).astype(dtype)
    found = printed(capfd, tiles, x, N=16, num_warps=num_warps)
    form = "{:.6f}" if np.dtype(dtype).kind in "fV" else "{}"
    assert found == sorted(f"pid (0, {p}, 0) idx ({r}, {c:2}) x: " + form.format(int(x[16 * r + c]))
                           for p in range(2) for r in range(2) for c in range(16))


@tilejit.kernel
def scalars(n, f):
    if tl.program_id(1) == 1:
        print("100% of", n, f, n > 3)
        tl.device_print("alone")
        print("", n)
        tl.device_print("bits", f, n - 8, f.to(tl.float16), (n - 8).to(tl.int8), (n - 8).to(tl.int64), hex=True)


def test_scalars(capfd):
    """Several values, a text alone, bits; only where the program comes by."""
    assert printed(capfd, scalars, 7, 1.5) == sorted([
        "pid (0, 1, 0) idx () 100% of: (operand 0) 7", "pid (0, 1, 0) idx () 100% of: (operand 1) 1.500000",
        "pid (0, 1, 0) idx () 100% of: (operand 2) 1", "pid (0, 1, 0) alone",
        "pid (0, 1, 0) idx (): 7",
        "pid (0, 1, 0) idx () bits: (operand 0) 0x1.8p+0", "pid (0, 1, 0) idx () bits: (operand 1) 0xffffffff",
        "pid (0, 1, 0) idx () bits: (operand 2) 0x1.8p+0", "pid (0, 1, 0) idx () bits: (operand 3) 0xff",
        "pid (0, 1, 0) idx () bits: (operand 4) 0xffffffffffffffff"])


@tilejit.kernel
def product(a, b, out, K):
    acc = tl.zeros((64, 64), tl.float32)
    for k in range(0, K, 64):
        acc = tl.dot(a.load([0, k]), b.load([k, 0]), acc)
        tl.device_print("k", k)
    out.store([0, 0], acc)


def test_with_roles_and_wgmma(capfd):
    """A kernel with a producer prints once, from its consumers, and computes what it did."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((64, 192), (192, 64)))
    out = np.zeros((64, 64), np.float32)
    desc = tilejit.TensorDescriptor.from_tensor
    with tilejit.knobs(target="emulator"):
        k = product[(1,)](desc(a, [64, 64]), desc(b, [64, 64]), desc(out, [64, 64]), 192)
    assert "role producer" in k.ptx
    assert capfd.readouterr().out.splitlines() == [f"pid (0, 0, 0) idx () k: {i}" for i in (0, 64, 128)]
    assert (out == a.astype(np.float32) @ b.astype(np.float32)).all()


def test_formats_as_c():
    """Values lie as in a C struct; `%%` takes none."""
    data = np.array([7], np.int32).tobytes() + bytes(4) + np.array([2.5]).tobytes() + np.array([-1], np.int32).tobytes()
    assert formatted("%3u%% %f %d\n", data) == "  7% 2.500000 -1\n"
    assert formatted("%llu %lld %016llx", np.array([2 ** 64 - 1, 5, 255], np.uint64).tobytes()) == \
        "18446744073709551615 5 00000000000000ff"


@tilejit.kernel
def no_text(n):
    tl.device_print(n)


@tilejit.kernel
def a_tuple(n):
    tl.device_print("n", (n, 1))


@pytest.mark.parametrize("kernel,hint", [(no_text, "the first argument is a constant text"), (a_tuple, "found tuple")])
def test_refused(kernel, hint):
    with pytest.raises(tilejit.CompilationError, match=hint):
        kernel.compile("int32")
