"""Which arguments a kernel writes through, read off its tile IR."""
import pytest

import tilejit
import tilejit.language as tl
from tilejit.frontend import Const, Param, build
from tilejit.ir.types import Desc, Ptr, fp32, int32, int64
from tilejit.ir.written import written


@tilejit.kernel
def plain(x, y, out, n):
    at = tl.arange(0, 64)
    tl.store(out + n + at, tl.load(x + at) + tl.load(y + at))


@tilejit.kernel
def carried(x, a, b, n):
    """The address moves in a loop, and is one of two."""
    at = tl.arange(0, 64)
    target = a + at
    if n > 3:
        target = b + at
    for _ in range(n):
        tl.store(target, tl.load(x + at))
        target += 64


@tilejit.kernel
def atomic(x, total, n):
    tl.atomic_add(total, tl.sum(tl.load(x + tl.arange(0, 64)), 0))


@tilejit.kernel
def through_memory(table, x, n):
    """The address is in memory: anything may be written."""
    tl.store(tl.load(table).to(tl.pointer_type(tl.float32)), tl.load(x))


@tilejit.kernel
def blocks(src, dst, n):
    dst.store([0, 0], src.load([n, 0]))


@tilejit.kernel
def reads(x, n):
    tl.device_assert(tl.load(x) > n, "x")


F, D = Param(Ptr(fp32), 16), Param(Desc(fp32, (16, 16)))


@pytest.mark.parametrize("kernel, args, expected", [
    (plain, {"x": F, "y": F, "out": F}, {"out"}), (carried, {"x": F, "a": F, "b": F}, {"a", "b"}),
    (atomic, {"x": F, "total": F}, {"total"}), (through_memory, {"table": Param(Ptr(int64), 16), "x": F}, {"table", "x"}),
    (blocks, {"src": D, "dst": D}, {"dst"}), (reads, {"x": F}, set())])
def test_written(kernel, args, expected):
    fn = build(kernel.source, {**args, "n": Param(int32)}, {"num_warps": 4})
    assert written(fn) == expected


def test_what_is_not_taken_is_not_written():
    """A store under a constant condition that does not hold is not there."""
    fn = build(plain.source, {"x": F, "y": F, "out": F, "n": Const(1)}, {"num_warps": 4})
    assert written(fn) == {"out"}
