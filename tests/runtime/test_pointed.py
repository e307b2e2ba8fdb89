"""Kernels that read pointers from an array, on the CPU."""
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.errors import TileJitError


@tilejit.kernel
def gather_rows(tables, out, n, BLOCK: tl.constexpr):
    row = tl.load(tables + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    i = tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0) * n + i, tl.load(row + i, mask=i < n, other=0.0), mask=i < n)


def test_addresses_in_an_array_may_be_followed():
    rows = [np.random.default_rng(i).random(50, np.float32) for i in range(3)]
    tables, out = np.array([r.ctypes.data for r in rows], np.uint64), np.zeros((3, 50), np.float32)
    gather_rows[(3,)](tables, out, 50, BLOCK=64)
    assert (out == np.stack(rows)).all()


def test_a_number_that_is_no_address_is_still_an_error():
    tables, out = np.array([1 << 20], np.int64), np.zeros((1, 50), np.float32)
    with pytest.raises(TileJitError, match="lies in no registered array"):
        gather_rows[(1,)](tables, out, 50, BLOCK=64)
