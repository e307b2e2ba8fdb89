"""Ops that rename registers: over random layouts, what each thread ends up with is what the op means."""
import numpy as np
import pytest
from hand_built import Kernel, same
from hypothesis import given, settings
from hypothesis import strategies as st

from tilejit.errors import CompilationError
from tilejit.ir import types as T
from tilejit.layout.linear import LinearLayout
from tilejit.layout.named import blocked, wgmma_accumulator


@st.composite
def layouts(draw, shape, warps=2):
    """A surjective layout of `shape`: coordinate bits dealt to registers, lanes and warps in any order."""
    bits = [tuple((1 << i) * (k == d) for k in range(len(shape)))
            for d, s in enumerate(shape) for i in range(s.bit_length() - 1)]
    zero = tuple([0] * len(shape))
    threads = 5 + warps.bit_length() - 1
    fill = [zero] * draw(st.integers(max(0, threads - len(bits)), threads))
    dealt = draw(st.permutations(bits))
    inside = draw(st.permutations(dealt[:threads - len(fill)] + fill))
    return LinearLayout.from_bases(
        {"register": dealt[threads - len(fill):], "lane": inside[:5], "warp": inside[5:]}, shape)


def kernel_of(shape, out, warps=2, outputs=("y",)):
    n = int(np.prod(shape))
    x = np.arange(n, dtype=np.int32) * 7 + 3
    return Kernel(warps, x=(x, T.int32), **{o: (np.full(int(np.prod(out)), -1, np.int32), T.int32) for o in outputs})


quick = settings(max_examples=25, deadline=None)


@quick
@given(layouts((8, 16)), st.sampled_from([0, 5, -3]))
def test_arange(layout, start):
    flat = layout.reshape((128,))
    k = kernel_of((1,), (128,))
    k.store("y", k.tile("arange", layout=flat, start=start, end=start + 128))
    same(*k.run(assemble=False))


@quick
@given(layouts((8, 16)))
def test_transpose(layout):
    k = kernel_of((8, 16), (16, 8))
    k.store("y", k.tile("trans", k.load("x", layout), layout=layout.transpose((1, 0)), order=(1, 0)))
    same(*k.run(assemble=False))


@quick
@given(layouts((8, 16)), st.sampled_from([(128,), (4, 32), (2, 4, 16), (16, 8)]))
def test_reshape(layout, shape):
    k = kernel_of((8, 16), shape)
    k.store("y", k.tile("reshape", k.load("x", layout), layout=layout.reshape(shape), shape=shape))
    same(*k.run(assemble=False))


@quick
@given(layouts((8, 16)), st.sampled_from([0, 1]))
def test_expand_and_broadcast(layout, axis):
    """A row or column in the layout that the full tile asks of it, spread over the tile."""
    line = layout.reduce(axis)
    k = kernel_of((layout.shape[1 - axis],), (8, 16))
    wide = line.expand_dims(axis)
    v = k.tile("expand_dims", k.load("x", line), layout=wide, axis=axis)
    k.store("y", k.tile("broadcast", v, layout=layout, shape=(8, 16)))
    same(*k.run(assemble=False))


@quick
@given(layouts((8, 16)))
def test_join_and_split(layout):
    k = Kernel(2, a=(np.arange(128, dtype=np.int32), T.int32), b=(-np.arange(128, dtype=np.int32), T.int32),
               **{n: (np.zeros(s, np.int32), T.int32) for n, s in (("y", 256), ("l", 128), ("r", 128))})
    joined = k.tile("join", k.load("a", layout), k.load("b", layout), layout=layout.join())
    k.store("y", joined)
    halves = k.op("split", joined)
    for name, half in zip("lr", halves.results):
        half.type = half.type.with_layout(layout.join().split())
        k.store(name, half)
    same(*k.run(assemble=False))


def test_splat_repeats_one_register():
    k = kernel_of((1,), (64,))
    value = k("load", k.args["x"])
    k.store("y", k.tile("splat", value, layout=k.layout((64,)), shape=(64,)))
    same(*k.run())


def test_a_move_between_threads_is_an_error():
    """The layout pass must put a `convert` there: nothing else can be right."""
    k = kernel_of((64, 64), (64, 64), 4)
    v = k.load("x", wgmma_accumulator((64, 64), 4))
    k.store("y", k.tile("trans", v, layout=blocked((64, 64), 4), order=(1, 0)))
    with pytest.raises(CompilationError, match="threads hold other elements"):
        k.ptx()
