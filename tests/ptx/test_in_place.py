"""Carried registers are written where their next contents are made, if nothing reads the present ones any more."""
import numpy as np
from hand_built import Kernel, same

import tilejit
import tilejit.language as tl
from tilejit.ir import types as T

N = 64


def looped(body, carried, rounds=3):
    """A kernel whose loop carries tiles, `body(k, *tiles) -> next ones`; it stores them."""
    x = np.arange(N, dtype=np.float32)
    k = Kernel(scalars={"n": (rounds, T.int32)}, x=(x, T.fp32),
               **{f"out{i}": (np.zeros(N, np.float32), T.fp32) for i in range(carried)})
    u = k.load("x", k.layout((N,), 2))

    def region(i, *tiles):
        k.op("yield", *body(k, *tiles))

    loop = k.op("for", k.int(0), k.args["n"], k.int(1), *[u] * carried,
                regions=[k.region([T.int32, *[u.type] * carried], region)])
    for i, v in enumerate(loop.results):
        k.store(f"out{i}", v)
    return k


def copies(k):
    """Of floats in the text of the first loop."""
    text = k.ptx()[0]
    return text[text.index("$loop_"):text.index("bra $loop_", text.index("$loop_"))].count("mov.f32 %f")


def test_nothing_is_copied():
    k = looped(lambda k, u: [k("mul", k("add", u, u), u)], 1)
    same(*k.run())
    assert copies(k) == 0


def test_what_is_read_behind_is_copied():
    """The first tile is read when its next contents have been made, the second is not read."""
    k = looped(lambda k, u, v: [new := k("add", u, u), k("mul", new, u)], 2)
    same(*k.run())
    assert copies(k) == N // 32


def test_one_value_for_two_is_copied_once_or_twice():
    k = looped(lambda k, u, v: [k("add", u, v)] * 2, 2)
    same(*k.run())
    assert copies(k) == 2 * N // 32


@tilejit.kernel
def asked_again(x, n):
    """A loop in an author's instructions that reads what goes in, in each of three rounds, once they have written what
    comes out."""
    at = tl.arange(0, 64)
    now = tl.load(x + at)
    for _ in range(n):
        now = tl.inline_asm_elementwise(
            "{ .reg .pred p; .reg .b32 i; mov.b32 i, 0; again: add.s32 $0, $1, i; add.s32 i, i, 1;"
            " setp.lt.s32 p, i, 3; @p bra again; }", "=r,r", [now], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(x + at, now)


def test_a_loop_in_an_instructions_text_reads_again():
    x = np.arange(64, dtype=np.int32)
    asked_again[(1,)](x, 4)
    assert np.array_equal(x, np.arange(64) + 8)
