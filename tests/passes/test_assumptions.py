"""Signs that wide accesses hang on: proved, promised, known of arguments, or checked by the program."""
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.errors import TileJitError
from tilejit.ir import walk
from tilejit.runtime.compile import tile_ir


@tilejit.kernel
def grouped(x, y, tiles, n, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    """Copies block `t` of x, the blocks numbered within groups whose last one is smaller."""
    pid = tl.program_id(0)
    first = pid // GROUP * GROUP
    size = min(tiles - first, GROUP)
    t = (pid % (GROUP * 4)) // size
    i = (t * BLOCK + tl.arange(0, BLOCK)) % n
    tl.store(y + pid * BLOCK + tl.arange(0, BLOCK), tl.load(x + i))


@tilejit.kernel
def shifted(x, y, n, PAD: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of pairs from PAD before the block on: negative indices are masked."""
    i = tl.program_id(0) * BLOCK - PAD + tl.arange(0, BLOCK)
    tl.store(y + i + PAD, tl.load(x + i // 2, mask=i >= 0, other=0.0))


@tilejit.kernel
def promised(x, y, starts, n, BLOCK: tl.constexpr):
    s = tl.load(starts + tl.program_id(0))
    tl.assume(s >= 0)
    tl.assume(s % 64 == 0)
    i = (s + tl.arange(0, BLOCK)) % n
    tl.store(y + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.load(x + i))


def widths(kernel, *args, **options):
    """Elements an access of the loads of tiles, and the checks, of a kernel."""
    plan, flat = kernel._bound(args, options)
    fn = tile_ir(kernel.source, kernel.describe(plan, flat), kernel.options(plan, flat))
    ops = list(walk(fn.body))
    return [op.attrs["vec"] for op in ops if op.name == "load" and "vec" in op.attrs], \
        sum(op.name == "checked" for op in ops), fn.attrs.get("report", [])


X, Y = np.arange(1024, dtype=np.float16), np.zeros(4096, np.float16)


def test_the_sign_of_a_divisor_is_checked():
    found, checks, report = widths(grouped, X, Y, 4, 512, GROUP=4, BLOCK=1024)
    assert found == [8] and checks == 1 and any("check_signs=False" in line for line in report)
    found, checks, report = widths(grouped, X, Y, 4, 512, GROUP=4, BLOCK=1024, check_signs=False)
    assert found == [1] and checks == 0 and not any("check_signs" in line for line in report)


@pytest.mark.parametrize("target", ["emulator", "evaluator"])
def test_a_program_stops_where_the_sign_is_wrong(target):
    with tilejit.knobs(target=target):
        y = np.full(4096, -1, np.float16)
        grouped[(4,)](X, y, 4, 512, GROUP=4, BLOCK=256)
        want = np.concatenate([X[(p % 16 // 4 * 256 + np.arange(256)) % 512] for p in range(4)])
        assert (y[:1024] == want).all()
        with pytest.raises(TileJitError):
            grouped[(6,)](X, y, 3, 512, GROUP=4, BLOCK=256)     # the last two: 4 // -1
        y[:] = 0
        with pytest.raises(TileJitError):
            grouped[(6,)](X, y, 3, 512, GROUP=4, BLOCK=256)


def test_indices_that_a_mask_leaves_out_are_not_checked():
    found, checks, _ = widths(shifted, X, Y, 512, PAD=16, BLOCK=256)
    assert checks == 0 and found == [1]


@pytest.mark.parametrize("target", ["emulator", "evaluator"])
def test_masked_negative_quotients(target):
    with tilejit.knobs(target=target):
        y = np.full(256, -1, np.float16)
        shifted[(1,)](X, y, 512, PAD=16, BLOCK=256)
        i = np.arange(256) - 16
        assert (y == np.where(i >= 0, X[np.maximum(i, 0) // 2], 0)).all()


def test_a_promise_needs_no_check():
    found, checks, _ = widths(promised, X, Y, np.zeros(4, np.int32), 512, BLOCK=1024)
    assert found == [8] and checks == 0


@pytest.mark.parametrize("n,width", [(512, 8), (-512, 1)])
def test_signs_of_arguments_are_specialised(n, width):
    """x * n // 512 of a tile: runs are known where n is known not to be negative."""
    @tilejit.kernel
    def k(x, y, n, BLOCK: tl.constexpr):
        i = (tl.program_id(0) * n + tl.arange(0, BLOCK)) % 1024
        tl.store(y + tl.arange(0, BLOCK), tl.load(x + i))

    found, checks, _ = widths(k, X, Y, n, BLOCK=1024)
    assert found == [width] and checks == 0
