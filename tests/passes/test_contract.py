"""Products that only a sum needs become one `fma`: in the text, in the evaluator, in the emulator."""
import re

import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.errors import CompilationError
from tilejit.ir import walk
from tilejit.ir.text import parse_function
from tilejit.ir.verify import verify
from tilejit.passes.contract import contract


def contracted(*lines: str, options: str = "") -> list[str]:
    """Names of the ops of a function of these lines, without stores."""
    text = f"kernel @k(%x: fp32, %y: fp32, %z: fp32, %out: ptr<fp32>) {options} {{\n" + "\n".join(lines) + "\n  return\n}\n"
    fn = contract(parse_function(text))
    verify(fn)
    return [op.name for op in walk(fn.body) if op.name not in ("store", "return")]


@pytest.mark.parametrize("lines, names", [
    (["%p = mul %x, %y", "%r = add %p, %z", "store %out, %r"], ["fma"]),
    (["%p = mul %x, %y", "%r = add %z, %p", "store %out, %r"], ["fma"]),
    (["%p = mul %x, %y", "%r = sub %p, %z", "store %out, %r"], ["neg", "fma"]),
    (["%p = mul %x, %y", "%r = sub %z, %p", "store %out, %r"], ["neg", "fma"]),
    (["%p = mul %x, %y", "%q = mul %y, %z", "%r = add %p, %q", "store %out, %r"], ["mul", "fma"]),
    (["%p = mul %x, %y", "%r = add %p, %z", "%s = add %p, %r", "store %out, %s"], ["mul", "add", "add"]),
    (["%p = mul %x, %y", "%r = add %p, %p", "store %out, %r"], ["mul", "add"]),
    (["%c = const {value=2.0} : fp32", "%p = mul %x, %y", "%r = sub %p, %c", "store %out, %r"], ["const", "fma"])])
def test_what_is_contracted(lines, names):
    assert contracted(*lines) == names


def test_the_option_leaves_them_alone():
    lines = ["%p = mul %x, %y", "%r = add %p, %z", "store %out, %r"]
    assert contracted(*lines, options="{enable_fp_fusion=false}") == ["mul", "add"]


def test_integers_and_other_blocks_stay():
    text = """kernel @k(%i: int32, %n: int32, %x: fp32, %out: ptr<fp32>) {
  %m = mul %i, %i
  %a = add %m, %n
  %p = mul %x, %x
  %r = for %i, %a, %n, %x : fp32 {(%j: int32, %c: fp32)
    %s = add %p, %c
    yield %s
  }
  store %out, %r
  return
}
"""
    assert "fma" not in str(contract(parse_function(text)))


@tilejit.kernel
def rescaled(x, y, out, BLOCK: tl.constexpr):
    rows, columns = tl.arange(0, BLOCK), tl.arange(0, 32)
    tile = tl.load(x + rows[:, None] * 32 + columns[None, :])
    row = tl.load(y + rows)
    tl.store(out + rows[:, None] * 32 + columns[None, :], tile * 1.7 - row[:, None])


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("fusion", [True, False])
def test_numbers(target, fusion):
    """Rounded once or twice, to the bit."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((64, 32), np.float32), rng.standard_normal(64, np.float32)
    out = np.zeros_like(x)
    with tilejit.knobs(target=target):
        rescaled[(1,)](x, y, out, BLOCK=64, enable_fp_fusion=fusion)
    twice = x * np.float32(1.7) - y[:, None]
    once = (x.astype(np.float64) * np.float64(np.float32(1.7)) - y[:, None]).astype(np.float32)
    assert (twice != once).any() and (out == (once if fusion else twice)).all()


def test_signs_are_changed_where_there_are_fewer_elements():
    ir = rescaled.compile("*fp32", "*fp32", "*fp32", BLOCK=64).ir
    (neg,) = [line for line in ir.split("\n") if " = neg " in line]
    assert "fp32[64, " in neg and " = fma " in ir


def test_the_option_is_a_truth_value():
    with pytest.raises(CompilationError, match="enable_fp_fusion=3 is not legal"):
        rescaled.compile("*fp32", "*fp32", "*fp32", BLOCK=64, enable_fp_fusion=3)


@tilejit.kernel
def summed(a, b, c, n, K: tl.constexpr, KIND: tl.constexpr):
    i, k = tl.arange(0, 64), tl.arange(0, K)
    acc = tl.zeros((64, 64), tl.float32)
    for at in range(0, n, K):
        x, y = tl.load(a + i[:, None] * n + (at + k)[None, :]), tl.load(b + i[:, None] * n + (at + k)[None, :])
        if KIND == "added":
            acc += tl.dot(x, y.T)
        elif KIND == "scaled":
            acc = acc + 0.5 * tl.dot(x, y.T)
        else:
            acc = tl.dot(x, y.T, acc)
    tl.store(c + i[:, None] * 64 + i[None, :], acc)


@pytest.mark.parametrize("kind, options, same", [("added", {}, True), ("added", {"enable_fp_fusion": False}, False),
                                                 ("scaled", {}, False)])
def test_products_that_are_added_are_summed_in_place(kind, options, same):
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(64, 128)).astype(np.float16) for _ in range(2))
    out = [np.zeros((64, 64), np.float32) for _ in range(2)]
    with tilejit.knobs(target="emulator"):
        one = summed[(1,)](a, b, out[0], 128, 32, kind, **options)
        two = summed[(1,)](a, b, out[1], 128, 32, "accumulated")
    want = (a.astype(np.float64) @ b.astype(np.float64).T) * (0.5 if kind == "scaled" else 1)
    np.testing.assert_allclose(out[0], want, atol=1e-2)
    sums = [len(re.findall(r"(add|fma)(\.rn)?\.f32", made.ptx)) for made in (one, two)]
    assert sums[1] == 0 and (sums[0] == 0) == same
    assert not same or np.array_equal(*out)
