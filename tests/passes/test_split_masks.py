"""Loops without masks for the iterations in which masks hide nothing: in the text, in the evaluator, in the emulator."""
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilejit
import tilejit.language as tl
from tilejit.errors import CompilationError
from tilejit.ir import walk
from tilejit.ir.evaluate import evaluate
from tilejit.ir.text import parse_function
from tilejit.ir.verify import verify
from tilejit.passes.split_masks import split_masks

BF16 = ml_dtypes.bfloat16
HEAD = ("kernel @k(%out: ptr<int32>, %n: int32, %m: int32, %lo: int32, %hi: int32, %wide: int64) {num_warps=1} {\n"
        "  %cols = arange {start=0, end=16} : int32[16]\n  %zero = const {value=0, type=int32[16]} : int32[16]\n")
END = "  %at = splat %out {shape=(16,)} : ptr<int32>[16]\n  %p = ptr_add %at, %cols : ptr<int32>[16]\n" \
      "  store %p, %sum\n  return\n}\n"


def program(*mask: str, step: int = 8, choose: str = "%seen, %i.s, %zero", attrs: str = "split_masks=true",
            before: str = "") -> str:
    """Adds up the induction variable, as often as every element of `%seen` allows. The mask may use `%i.s`, the
    variable in every element."""
    lines = ["%i.s = splat %i {shape=(16,)}", *mask, f"%x = select {choose}", "%next = add %total, %x", "yield %next"]
    return (f"{HEAD}{before}  %step = const {{value={step}}} : int32\n  %sum = for %lo, %hi, %step, %zero {{{attrs}}} : int32[16] "
            "{(%i: int32, %total: int32[16])\n    " + "\n    ".join(lines) + f"\n  }}\n{END}")


KEY = "%key = add %i.s, %cols"
UP_TO_N = (KEY, "%n.s = splat %n {shape=(16,)}", '%seen = cmp %key, %n.s {pred="lt"}')


def split(text: str):
    fn = split_masks(parse_function(text))
    verify(fn)
    return fn


def loops(fn) -> list[bool]:
    """For every loop whether it has masks."""
    return [any(x.name == "select" for x in walk(op.regions[0])) for op in walk(fn.body) if op.name == "for"]


def result(fn, **numbers: int) -> list[int]:
    out = np.full(16, -1, np.int32)
    evaluate(fn, (1,), {"out": out, **{"n": 0, "m": 0, "lo": 0, "hi": 0, "wide": 0, **numbers}})
    return out.tolist()


def test_a_bound_leaves_a_masked_end():
    fn = split(program(*UP_TO_N))
    assert loops(fn) == [False, True]
    assert "the first iterations, in which masks" in str(fn.attrs["report"][0]) and fn.attrs["report"][0].kind == "split_masks"


@pytest.mark.parametrize("mask, choose, parts", [
    ((KEY, "%n.s = splat %n {shape=(16,)}", '%seen = cmp %key, %n.s {pred="ge"}'), "%seen, %i.s, %zero", [True, False]),
    ((KEY, "%n.s = splat %n {shape=(16,)}", '%seen = cmp %key, %n.s {pred="ge"}'), "%seen, %zero, %i.s", [False, True]),
    ((*UP_TO_N, "%not = not %seen"), "%not, %zero, %i.s", [False, True]),
    ((*UP_TO_N, "%m.s = splat %m {shape=(16,)}", '%from = cmp %key, %m.s {pred="gt"}', "%both = and %seen, %from"),
     "%both, %i.s, %zero", [True, False, True]),
    (("%twice = add %i.s, %i.s", "%k = add %twice, %cols", "%n.s = splat %n {shape=(16,)}",
      '%seen = cmp %k, %n.s {pred="le"}'), "%seen, %i.s, %zero", [False, True]),
    (("%n.s = splat %n {shape=(16,)}", '%seen = cmp %cols, %n.s {pred="lt"}'), "%seen, %i.s, %zero", [True]),
    (("%sq = mul %i.s, %i.s", "%n.s = splat %n {shape=(16,)}", '%seen = cmp %sq, %n.s {pred="lt"}'),
     "%seen, %i.s, %zero", [True]),
    (("%v = cast %i.s {dtype=uint32}", "%n.u = cast %n {dtype=uint32}", "%n.s = splat %n.u {shape=(16,)}",
      '%seen = cmp %v, %n.s {pred="lt"}'), "%seen, %i.s, %zero", [True]),
    (("%hi.s = splat %hi {shape=(16,)}", '%seen = cmp %i.s, %hi.s {pred="lt"}'), "%seen, %i.s, %zero", [False]),
    (("%lo.s = splat %lo {shape=(16,)}", '%seen = cmp %i.s, %lo.s {pred="lt"}'), "%seen, %i.s, %zero", [True])],
    ids=["from", "hidden where true", "not", "both", "twice", "invariant", "square", "unsigned", "always", "never"])
def test_what_is_split(mask, choose, parts):
    assert loops(split(program(*mask, choose=choose))) == parts


def test_who_decides():
    """Loops without products stay, but where the author asks; so does what is to stay."""
    assert loops(split(program(*UP_TO_N, attrs="flatten=true"))) == [True]
    assert loops(split(program(*UP_TO_N, attrs="split_masks=false"))) == [True]
    off = program(*UP_TO_N, attrs="flatten=true").replace("{num_warps=1}", "{num_warps=1, split_masks=false}")
    assert loops(split(off)) == [True]


def test_a_narrow_band_stays():
    """Between %n - 40 and %n no 12 iterations are clear."""
    mask = (*UP_TO_N, "%w = const {value=40, type=int32[16]}", "%from = sub %n.s, %w",
            '%least = cmp %key, %from {pred="ge"}', "%both = and %seen, %least")
    assert loops(split(program(*mask, choose="%both, %i.s, %zero"))) == [True]
    assert loops(split(program(*mask, choose="%both, %i.s, %zero").replace("value=40", "value=400"))) == [True, False, True]


@given(st.lists(st.tuples(st.sampled_from(["lt", "le", "gt", "ge"]), st.sampled_from([-3, -1, 1, 2]), st.sampled_from([-1, 0, 1, 2]),
                          st.sampled_from(["n", "m", "wide"]), st.booleans()), min_size=1, max_size=3),
       st.integers(1, 9), *[st.integers(-30, 60) for _ in range(5)])
def test_the_same_numbers(masks, step, n, m, wide, lo, hi):
    """Comparisons of i * a + cols * b with arguments, all needed at once."""
    lines, whole = [], ""
    for j, (pred, a, b, name, swap) in enumerate(masks):
        t, i, cols = ("int64", "%i.w", "%cols.w") if name == "wide" else ("int32", "%i.s", "%cols")
        sides = f"%s{j}, %b{j}" if swap else f"%b{j}, %s{j}"
        lines += [f"%a{j} = const {{value={a}, type={t}[16]}}", f"%c{j} = const {{value={b}, type={t}[16]}}",
                  f"%x{j} = mul {i}, %a{j}", f"%y{j} = mul {cols}, %c{j}", f"%s{j} = add %x{j}, %y{j}",
                  f"%b{j} = splat %{name} {{shape=(16,)}}", f'%t{j} = cmp {sides} {{pred="{pred}"}}']
        if whole:
            lines.append(f"%u{j} = and {whole}, %t{j}")
        whole = f"%u{j}" if whole else f"%t{j}"
    wide_i = ["%i.w = cast %i.s {dtype=int64}", "%cols.w = cast %cols {dtype=int64}"]
    text = program(*wide_i, *lines, step=step, choose=f"{whole}, %i.s, %zero")
    numbers = dict(n=n, m=m, wide=wide, lo=lo, hi=hi)
    assert result(split(text), **numbers) == result(parse_function(text), **numbers)


@tilejit.kernel
def attend(q_desc, k_desc, v_desc, o_desc, length, left, scale, BLOCK: tl.constexpr, CAUSAL: tl.constexpr,
           WINDOW: tl.constexpr):
    """Attention in one loop, every block masked."""
    first = tl.program_id(0) * BLOCK
    q = q_desc.load([first, 0])
    most = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    acc = tl.zeros([BLOCK, 64], tl.float32)
    rows = first + tl.arange(0, BLOCK)
    begin = tl.maximum(first - left, 0) // BLOCK * BLOCK if WINDOW else 0
    for n in tl.range(begin, tl.minimum(first + BLOCK, length) if CAUSAL else length, BLOCK):
        key = n + tl.arange(0, BLOCK)
        seen = (key < length)[None, :]
        if CAUSAL:
            seen = seen & (rows[:, None] >= key[None, :])
        if WINDOW:
            seen = seen & (rows[:, None] - key[None, :] <= left)
        k = k_desc.load([n, 0])
        scores = tl.where(seen, tl.dot(q, k.T) * scale, float("-inf"))
        new = tl.maximum(most, tl.max(scores, 1))
        p = tl.exp2(scores - new[:, None])
        alpha = tl.exp2(most - new)
        total = total * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(k.dtype), v_desc.load([n, 0]), acc * alpha[:, None])
        most = new
    o_desc.store([first, 0], (acc / total[:, None]).to(o_desc.dtype))


@pytest.mark.parametrize("causal, window, parts", [(False, False, "first"), (True, True, "middle")])
def test_attention_in_one_loop(causal, window, parts):
    """The same bits, and no finding."""
    length, found = 136, []
    for split_it in (True, False):
        rng = np.random.default_rng(0)
        q, k, v = (rng.standard_normal((length, 64), np.float32).astype(BF16) for _ in range(3))
        out = np.zeros_like(q)
        descs = [tilejit.TensorDescriptor(x, x.shape, (64, 1), (64, 64)) for x in (q, k, v, out)]
        args, kw = (*descs, length, 70, 0.1), dict(BLOCK=64, CAUSAL=causal, WINDOW=window, split_masks=split_it)
        lines = attend.compile(*args, **kw).report_lines
        assert any(f"the {parts} iterations, in which masks" in x for x in lines) is split_it
        with tilejit.knobs(target="emulator"):
            attend[(3,)](*args, **kw)
        if split_it:
            tilejit.check(attend, (3,), *args, policies=("random",), seeds=(0, 1), **kw)
        found.append(out)
    np.testing.assert_array_equal(found[0].view(np.uint16), found[1].view(np.uint16))


@tilejit.jit
def diagonal(q_desc, k_desc, o_desc, length, SPAN: tl.constexpr):
    """The blocks of keys from a block of queries on, SPAN of them at most."""
    first = tl.program_id(0) * 64
    q = q_desc.load([first, 0])
    rows = first + tl.arange(0, 64)
    acc = tl.zeros([64, 64], tl.float32)
    for n in range(first, tl.minimum(first + SPAN, length), 64):
        keys = n + tl.arange(0, 64)
        acc += tl.where(rows[:, None] <= keys[None, :], tl.dot(q, k_desc.load([n, 0]).T), 0.0)
    o_desc.store([first, 0], acc)


@pytest.mark.parametrize("span, is_split", [(512, False), (2048, True)])
def test_a_loop_of_few_iterations_stays(span, is_split):
    half, single = "desc<bf16[64x64]>", "desc<fp32[64x64]>"
    lines = diagonal.compile(half, half, single, "int32", SPAN=span).report_lines
    assert any("in which masks" in line for line in lines) == is_split


def test_options_are_checked():
    with pytest.raises(CompilationError, match="split_masks=3 is not legal"):
        attend.compile("desc<bf16[64x64]>", "desc<bf16[64x64]>", "desc<bf16[64x64]>", "desc<bf16[64x64]>", "int32", "int32",
                       "fp32", BLOCK=64, CAUSAL=True, WINDOW=False, split_masks=3)
