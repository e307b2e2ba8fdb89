"""What is known of integers without a dataflow analysis."""
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tilejit.ir.bounds import bounds
from tilejit.ir.evaluate import evaluate
from tilejit.ir.text import parse_function

STEPS = ["add", "mul", "minimum", "maximum", "and", "or", "shr", "idiv", "irem", "cast64", "cast16"]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6),
       st.lists(st.integers(-70000, 70000), min_size=4, max_size=4))
def test_bounds_hold(steps, constants):
    lines, types = ["%v0 = arange {start=5, end=21} : int32[16]", "%pid = program_id {axis=0} : int32",
                    "%v1 = splat %pid {shape=(16,)}"], ["int32", "int32"]
    for i, c in enumerate(constants):
        lines.append(f"%v{2 + i} = const {{value={c}}} : int32[16]")
        types.append("int32")
    for name, a, b in steps:
        a, b, new = a % len(types), b % len(types), len(types)
        if name.startswith("cast"):
            types.append("int" + name[4:])
            lines.append(f"%v{new} = cast %v{a} {{dtype=int{name[4:]}}}")
        else:
            same = [j for j, t in enumerate(types) if t == types[a]]
            lines.append(f"%v{new} = {name} %v{a}, %v{same[b % len(same)]}")
            types.append(types[a])
    outs = "\n".join(f"%p{i} = splat %o{i} {{shape=(16,)}}\n%q{i} = ptr_add %p{i}, %v0\nstore %q{i}, %v{i}"
                     for i, t in enumerate(types))
    args = ", ".join(f"%o{i}: ptr<{t}>" for i, t in enumerate(types))
    fn = parse_function(f"kernel @f({args}) {{\n" + "\n".join(lines) + f"\n{outs}\nreturn\n}}\n")
    arrays = [np.zeros(32, t) for t in types]
    evaluate(fn, 3, {f"o{i}": a for i, a in enumerate(arrays)})
    stored = [op.operands[1] for op in fn.body.ops if op.name == "store"]
    for v, array in zip(stored, arrays):
        lo, hi = bounds(v)
        assert lo <= array[5:21].min() and array[5:21].max() <= hi


def test_offsets_of_a_program_in_64_bits_have_a_sign():
    fn = parse_function("""
kernel @f(%n: int32) {
  %pid = program_id {axis=0} : int32
  %wide = cast %pid {dtype=int64}
  %many = const {value=8192} : int64
  %start = mul %wide, %many
  %at = arange {start=0, end=64} : int32[64]
  %in = cast %at {dtype=int64}
  %all = splat %start {shape=(64,)}
  %offs = add %all, %in
  %narrow = mul %pid, %n
  return
}
""")
    by_name = {op.result.name: op.result for op in fn.body.ops if op.results}
    assert bounds(by_name["offs"]) == (0, (2 ** 31 - 1) * 8192 + 63)
    assert bounds(by_name["narrow"]) == (-2 ** 31, 2 ** 31 - 1)
