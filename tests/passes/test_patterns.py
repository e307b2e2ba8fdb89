"""Address forms that kernels in the wild use: accesses through them are whole 16-byte vectors."""
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.ir import walk
from tilejit.runtime.compile import tile_ir

X = np.zeros(1 << 16, np.float16)
N = tl.constexpr(128)


@tilejit.kernel
def rows(x, y, stride, n):
    """A row a program, its pointer moved first; 64-bit row numbers."""
    x += tl.program_id(0).to(tl.int64) * stride
    i = tl.arange(0, 1024)
    tl.store(y + tl.program_id(0) * stride + i, tl.load(x + i, i < n), i < n)


@tilejit.kernel
def pieces(x, y, stride, n):
    """A row in pieces: by an offset, and by a pointer that the loop carries."""
    x += tl.program_id(0) * stride
    p = x + tl.arange(0, 1024)
    total = tl.zeros((1024,), tl.float32)
    for first in range(0, n, 1024):
        i = first + tl.arange(0, 1024)
        total += tl.load(x + i, mask=i < n, other=0.0) + tl.load(p)
        p += 1024
    tl.store(y + tl.arange(0, 1024), total.to(tl.float16))


@tilejit.kernel
def strided_grid(x, y, stride, n):
    """Rows in steps of the grid's size."""
    i = tl.arange(0, 1024)
    for row in range(tl.program_id(0), n, tl.num_programs(0)):
        tl.store(y + row * stride + i, tl.load(x + row * stride + i))


@tilejit.kernel
def halves(x, y, stride, n):
    """Rotation of halves: heads x half a head, masks on both."""
    h, d = tl.arange(0, 16)[:, None], tl.arange(0, 64)[None, :]
    at = tl.program_id(0) * stride + h * 128 + d
    mask = (h < n) & (d < 64)
    a, b = tl.load(x + at, mask, other=0), tl.load(x + at + 64, mask, other=0)
    tl.store(y + at, a - b, mask)
    tl.store(y + at + 64, a + b, mask)


@tilejit.kernel
def wrapped(x, y, stride, n):
    """Both operands of a product with wrapped rows and columns, pointers carried over K."""
    pid = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(n, N), tl.cdiv(n, N)
    width = 8 * tiles_n
    first = pid // width * 8
    size = min(tiles_m - first, 8)
    pid_m, pid_n = first + (pid % width) % size, (pid % width) // size
    m = (pid_m * N + tl.arange(0, N)) % n
    k = tl.arange(0, 64)
    j = (pid_n * N + tl.arange(0, N)) % n
    a, b = x + m[:, None] * stride + k[None, :], y + k[:, None] * stride + j[None, :]
    acc = tl.zeros((N, N), tl.float32)
    for i in range(0, tl.cdiv(n, 64)):
        acc = tl.dot(tl.load(a, mask=k[None, :] < n - i * 64, other=0.0),
                     tl.load(b, mask=k[:, None] < n - i * 64, other=0.0), acc)
        a += 64
        b += 64 * stride
    m, j = pid_m * N + tl.arange(0, N), pid_n * N + tl.arange(0, N)
    tl.store(x + m[:, None] * stride + j[None, :], acc.to(tl.float16), (m[:, None] < n) & (j[None, :] < n))


@tilejit.kernel
def heads(x, y, stride, n):
    """Batch and head from one program id, a tile of a head's rows."""
    hz = tl.program_id(1)
    base = (hz // n).to(tl.int64) * stride * n + (hz % n).to(tl.int64) * stride
    r = tl.program_id(0) * 64 + tl.arange(0, 64)
    at = base + r[:, None] * stride + tl.arange(0, 64)[None, :]
    tl.store(y + at, tl.load(x + at, mask=r[:, None] < n, other=0.0), mask=r[:, None] < n)


@tilejit.kernel
def gathered(x, y, stride, n):
    """Rows by loaded numbers, as of an embedding."""
    row = tl.load(y + tl.program_id(0)).to(tl.int32)
    i = tl.arange(0, 1024)
    tl.store(y + tl.program_id(0) * stride + i, tl.load(x + row * stride + i))


@tilejit.kernel
def repeated(x, y, stride, n):
    """Groups of 8 columns that share a scale, channels that repeat."""
    i = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    tl.store(y + i, tl.load(x + i) * tl.load(x + i // 8) * tl.load(x + i % 64))


@tilejit.kernel
def hinted(x, y, stride, n):
    """Hints where nothing is known: a clamp."""
    i = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    i = tl.max_contiguous(tl.multiple_of(tl.where(i < stride - 1, i, 0), 1024), 1024)
    tl.store(y + i, tl.load(x + i))


@tilejit.kernel
def chosen(x, y, stride, n):
    """A pointer and an offset that a condition chooses."""
    i = tl.arange(0, 1024)
    first = tl.program_id(0) * 16
    if n > 64:
        first = first + stride
    p = tl.where(tl.program_id(0) % 2 == 0, x, y)
    tl.store(p + first + i, tl.load(x + first + i))


@pytest.mark.parametrize("kernel", [rows, pieces, strided_grid, halves, wrapped, heads, gathered, repeated, hinted, chosen],
                         ids=lambda k: k.__name__)
def test_accesses_are_whole_vectors(kernel):
    plan, flat = kernel._bound((X, X.copy(), 1024, 128), {"num_warps": 4, "pointer_tma": False})
    fn = tile_ir(kernel.source, kernel.describe(plan, flat), kernel.options(plan, flat))
    found = {(op.name, op.loc.line, i): op.attrs["vec"] for i, op in enumerate(walk(fn.body)) if "vec" in op.attrs}
    assert found and set(found.values()) == ({8, 1} if kernel is repeated else {8}), found
    if kernel is repeated:       # one of eight numbers that are all the same is no vector
        assert sorted(found.values()) == [1, 8, 8, 8]
