"""Sums of a product's rows that loops only carry: apart by threads in the loop, summed behind it."""
from __future__ import annotations

import re

import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.ir.text import parse_function
from tilejit.ir.verify import verify
from tilejit.passes.late_sums import late_sums

TEXT = """kernel @k(%n: int32, %a: fp16[64x32], %b: fp16[32x64], %i: fp32[64], %out: ptr<fp32>[64]) {{
  %zero = const {{value=0}} : int32
  %one = const {{value=1}} : int32
  %c = const {{value=0, type=fp32[64x64]}} : fp32[64x64]
  %t = for %zero, %n, %one, %i : fp32[64] {{(%j: int32, %s: fp32[64])
    %d = dot %a, %b, %c : fp32[64x64]
    %p = exp2 %d
    %r = reduce %p {{axis={axis}}} : fp32[64] {{(%x: fp32, %y: fp32)
      %z = {fold} %x, %y
      yield %z
    }}
    {add}
    yield %u
  }}
  store %out, %t
  return
}}
"""


def late(axis: int = 1, fold: str = "add", add: str = "%u = add %s, %r") -> str:
    fn = late_sums(parse_function(TEXT.format(axis=axis, fold=fold, add=add)))
    verify(fn)
    return str(fn)


@pytest.mark.parametrize("add", ["%u = add %s, %r", "%u = add %r, %s", "%u = fma %s, %i, %r", "%u = fma %i, %s, %r"])
def test_a_sum_of_rows_is_carried_apart(add):
    """The loop folds within threads only, once along pairs of columns and once along eights."""
    text = late(add=add)
    inside, behind = text[text.index("for "):].split("yield %u")
    assert re.findall(r"reduce \S+ \{axis=(\d)\} : (\S+)", inside) == [("3", "fp32[64x8x4]"), ("1", "fp32[64x4]")]
    assert re.findall(r"reduce \S+ \{axis=(\d)\} : (\S+)", behind) == [("1", "fp32[64]")]


@pytest.mark.parametrize("changes", [
    dict(axis=0), dict(fold="maximum"), dict(add="%v = add %s, %r\n    %u = mul %v, %v"),
    dict(add="%v = mul %s, %s\n    %u = add %v, %r"), dict(add="%u = fma %r, %i, %s"), dict(add="%u = sub %s, %r")])
def test_other_folds_and_uses_stay(changes):
    """What needs the sum in every iteration, or is no sum along rows."""
    fn = parse_function(TEXT.format(**{"axis": 1, "fold": "add", "add": "%u = add %s, %r"} | changes))
    assert late(**changes) == str(fn)


@tilejit.kernel
def softmax_sums(x, w, out, n, K: tl.constexpr):
    """The greatest score and the sum of weights of 64 rows, in two loops."""
    rows, columns, inner = tl.arange(0, 64), tl.arange(0, 64), tl.arange(0, K)
    a = tl.load(x + rows[:, None] * K + inner[None, :])
    most, total = tl.zeros([64], tl.float32), tl.full([64], 0.5, tl.float32)
    for part in tl.static_range(2):
        for i in range(part * n // 2, (part + 1) * n // 2):
            b = tl.load(w + (i * 64 + columns[None, :]) * K + inner[:, None])
            s = tl.dot(a, b)
            new = tl.maximum(most, tl.max(s, 1))
            total = total * tl.exp(most - new) + tl.sum(tl.exp(s - new[:, None]), 1)
            most = new
    tl.store(out + rows, most)
    tl.store(out + 64 + rows, total)


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("n, warps", [(2, 4), (5, 8)])
def test_two_loops_after_one_another(target, n, warps):
    """The second loop goes on with the first one's parts, and the sum's beginning is counted once."""
    rng = np.random.default_rng(n)
    x, w = rng.standard_normal((64, 32)).astype(np.float16), rng.standard_normal((64 * n, 32)).astype(np.float16)
    out = np.full((2, 64), np.nan, np.float32)
    with tilejit.knobs(target=target):
        softmax_sums[(1,)](x, w, out, n, K=32, num_warps=warps)
    scores = x.astype(np.float64) @ w.astype(np.float64).T
    most = np.maximum(scores.max(1), 0)
    np.testing.assert_allclose(out, [most, 0.5 * np.exp(-most) + np.exp(scores - most[:, None]).sum(1)], rtol=2e-5)
    build = softmax_sums.compile(x, w, out, n, K=32, num_warps=warps)
    text = build.ir
    assert build.report().count("and meet behind the loop") == 2
    lanes = warps  # four for each of the warpgroups, which divide the columns
    assert len(re.findall(rf"(?:reduce|reshape) .*fp32\[64x{lanes},", text)) == 2
