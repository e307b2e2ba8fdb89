"""Layout conversions between random and named layouts, for elements of every width."""
from unittest.mock import patch

import numpy as np
import pytest
from hand_built import Kernel, same
from hypothesis import given, settings
from hypothesis import strategies as st
from test_shape import layouts

from tilejit.ir import numeric
from tilejit.ir import types as T
from tilejit.layout import convert
from tilejit.layout.convert import Halves, Registers, Shuffles, ThroughShared, plan
from tilejit.layout.named import blocked, wgmma_accumulator


def converted(t, src, dst, warps, **launch):
    """The kernel that stores a tile of all different values after its conversion; checks and returns it."""
    n = int(np.prod(src.shape))
    x = (np.arange(n) * 37 + 11) % 251
    x = (x % 3 == 0) if t == T.int1 else x.astype(numeric.np_dtype(t))
    k = Kernel(warps, x=(x, t), y=(np.zeros(n, x.dtype), t), z=(np.zeros(n, x.dtype), t))
    v = k.load("x", src)
    k.store("y", k.convert(v, dst))
    k.store("z", k.convert(k("select", k("cmp", v, v, pred="eq"), v, v), dst))       # scratch is used twice
    same(*k.run(**launch))
    return k


TYPES = [T.int1, T.int8, T.uint8, T.fp8e4nv, T.fp16, T.bf16, T.int32, T.fp32, T.int64, T.fp64]
PAIRS = {"rows": (blocked((32, 64), 4, 8), blocked((32, 64), 4, 8, (0, 1))),
         "lanes": (blocked((32, 64), 4, 4), blocked((32, 64), 4, 2)),
         "accumulator": (wgmma_accumulator((64, 32), 4), blocked((64, 32), 4, 8)),
         "line": (blocked((64, 32), 4, 4).reduce(1), blocked((64,), 4)),
         "line to columns": (blocked((128,), 4), blocked((128, 16), 4, 4).reduce(1))}


@pytest.mark.parametrize("t", TYPES, ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_named(t, name):
    src, dst = PAIRS[name]
    converted(t, src, dst, 4)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([T.int1, T.int8, T.bf16, T.fp32, T.int64]))
def test_random(data, t):
    shape = data.draw(st.sampled_from([(64,), (16, 16), (4, 8, 8)]))
    src, dst = (data.draw(layouts(shape)) for _ in "sd")
    converted(t, src, dst, 2, assemble=False, policy="random", seed=data.draw(st.integers(0, 9)))


@settings(max_examples=20, deadline=None)
@given(st.data(), st.sampled_from([T.int1, T.bf16, T.fp32]))
def test_halves(data, t):
    """What is too large for shared memory goes by halves, and those by halves again, where registers choose among them
    in both layouts."""
    src, dst = (data.draw(layouts((16, 32))) for _ in "sd")
    with patch.object(convert, "_MOST_BYTES", 256):
        plan.cache_clear()
        try:
            converted(t, src, dst, 2, assemble=False)
        finally:
            plan.cache_clear()


def test_halves_of_halves():
    """A tile of 256 or 512 KB, from vectors to 64 elements side by side in a thread."""
    src = blocked((65536,), 32, 4)
    bits = [(1 << i,) for i in range(16)]
    dst = src.from_bases({"register": bits[:6], "lane": bits[6:11], "warp": bits[11:]}, src.shape)
    for size in (4, 8):
        found = plan(src, dst, size)
        assert isinstance(found, Halves) and found.bytes == 1 << 17


def test_pointers():
    """Addresses go through shared memory as 64-bit integers."""
    src, dst = PAIRS["rows"]
    x = np.arange(2048, dtype=np.int32)
    k = Kernel(4, x=(x, T.int32), y=(np.zeros_like(x), T.int32))
    k.store("y", k("load", k.convert(k.pointers("x", src), dst)))
    same(*k.run())


def test_each_plan_is_used():
    """Registers move nothing, shuffles use no memory, and the rest is one trip with wide accesses."""
    a = blocked((16, 64), 2, 4)
    regs, lanes, warps = ([*a.bases_of(n)] for n in ("register", "lane", "warp"))
    moved = a.from_bases({"register": regs[::-1], "lane": lanes, "warp": warps}, a.shape)
    turned = a.from_bases({"register": regs, "lane": lanes[::-1], "warp": warps}, a.shape)
    other = a.from_bases({"register": regs, "lane": [*lanes[:4], *warps], "warp": lanes[4:]}, a.shape)
    for dst, kind in ((moved, Registers), (turned, Shuffles), (other, ThroughShared)):
        assert isinstance(plan(a, dst, 4), kind)
        text, _ = converted(T.fp32, a, dst, 2).ptx()
        assert ("shfl.sync.idx" in text.rpartition("ld.global")[2]) == (kind is Shuffles)
        assert ("st.shared" in text) == (kind is ThroughShared)
    assert "st.shared.v4.b32" in text and "ld.shared.v4.b32" in text


def test_a_warp_of_its_own_waits_for_no_other():
    """A trip through shared memory inside warps: they meet before it (scratch may be in use), not within it."""
    src = blocked((64, 32), 4, 8)
    columns, rows = [(0, 1 << i) for i in range(5)], [(1, 0), (2, 0), (4, 0), (32, 0)]
    dst = src.from_bases({"register": rows, "lane": columns, "warp": src.bases_of("warp")}, src.shape)
    found = plan(src, dst, 2)
    assert isinstance(found, ThroughShared) and found.within_warp
    text, _ = converted(T.bf16, src, dst, 4, policy="random", seed=3).ptx()
    assert text.count("bar.sync") == 2 and text.count("bar.warp.sync") == 2      # two conversions
