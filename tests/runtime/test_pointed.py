"""Kernels that read pointers from an array, on the CPU."""
import mmap
import sys
import threading

import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.errors import TileJitError
from tilejit.runtime import pointed


@tilejit.kernel
def gather_rows(tables, out, n, BLOCK: tl.constexpr):
    row = tl.load(tables + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    i = tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0) * n + i, tl.load(row + i, mask=i < n, other=0.0), mask=i < n)


@tilejit.kernel
def gather_pointers(tables, out, n, BLOCK: tl.constexpr):
    row = tl.load(tables.to(tl.pointer_type(tl.pointer_type(tl.float32))) + tl.program_id(0))
    i = tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0) * n + i, tl.load(row + i, mask=i < n, other=0.0), mask=i < n)


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("kernel", [gather_rows, gather_pointers])
def test_addresses_in_an_array_may_be_followed(kernel, target):
    rows = [np.random.default_rng(i).random(50, np.float32) for i in range(3)]
    tables, out = np.array([r.ctypes.data for r in rows], np.uint64), np.zeros((3, 50), np.float32)
    with tilejit.knobs(target=target):
        kernel[(3,)](tables, out, 50, BLOCK=64)
    assert (out == np.stack(rows)).all()


@tilejit.kernel
def row_at(address, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(address.to(tl.pointer_type(tl.float32)) + i, mask=i < n, other=0.0), mask=i < n)


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
def test_a_number_may_be_an_address(target):
    row, out = np.random.default_rng(0).random(50, np.float32), np.zeros(50, np.float32)
    with tilejit.knobs(target=target):
        row_at[(1,)](row.ctypes.data, out, 50, BLOCK=64)
    assert (out == row).all()


def test_an_array_may_lie_across_mappings():
    """madvise splits a mapping in two."""
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    pages.madvise(mmap.MADV_DONTFORK, mmap.PAGESIZE, mmap.PAGESIZE)
    row = np.frombuffer(pages, np.float32)[mmap.PAGESIZE // 4 - 25:][:50]
    row[:], out = np.arange(50), np.zeros(50, np.float32)
    with tilejit.knobs(target="emulator"):
        row_at[(1,)](row.ctypes.data, out, 50, BLOCK=64)
    assert (out == row).all()


def test_a_number_that_is_no_address_is_still_an_error():
    tables, out = np.array([1 << 20], np.int64), np.zeros((1, 50), np.float32)
    with pytest.raises(TileJitError, match="lies in no registered array"):
        gather_rows[(1,)](tables, out, 50, BLOCK=64)


def test_other_threads_may_build_tuples_while_tensors_are_looked_for():
    torch = pytest.importorskip("torch")
    kept, stop, errors = torch.zeros(3), threading.Event(), []

    def build():
        while not stop.is_set():
            try:
                tuple(x for x in range(64))
            except SystemError as e:
                errors.append(e)

    threads, interval = [threading.Thread(target=build) for _ in range(4)], sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for t in threads:
            t.start()
        for _ in range(20):
            assert any(low == kept.data_ptr() for low, _ in pointed._storages())
    finally:
        stop.set()
        for t in threads:
            t.join()
        sys.setswitchinterval(interval)
    assert not errors
