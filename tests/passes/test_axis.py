"""Axis facts of small programs, and a property: every fact holds of the values that the evaluator computes."""
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tile_programs import straight_lines

from tilejit.ir import evaluate as ev
from tilejit.ir import walk
from tilejit.ir.text import parse_function
from tilejit.ir.verify import verify
from tilejit.passes.axis import ANY, analyse, vector_width

HEAD = ("kernel @f(%p: ptr<fp16> {divisible=16}, %q: ptr<fp32>, %n: int32 {divisible=16}, %m: int32) {\n"
        "  %pid = program_id {axis=0}\n  %o = arange {start=0, end=128}\n")


def facts(body: str):
    fn = parse_function(HEAD + body + "\n  return\n}\n")
    verify(fn)
    found = analyse(fn)
    return {v.name: info for v, info in found.items() if v.name}


BLOCK = """\
  %b = const {value=128} : int32
  %s = mul %pid, %b
  %st = splat %s {shape=(128,)}
  %x = add %st, %o
  %pt = splat %p {shape=(128,)}
  %pp = ptr_add %pt, %x
  %nt = splat %n {shape=(128,)}
  %mask = cmp %x, %nt {pred="lt"}
"""


def test_block_of_offsets():
    f = facts(BLOCK)
    assert f["x"].contiguity == (128,) and f["x"].divisibility == (128,) and f["x"].nonnegative
    assert f["pp"].contiguity == (128,) and f["pp"].divisibility == (16,)
    assert f["mask"].constancy == (16,)
    assert vector_width(f["pp"], 2, f["mask"]) == 8 and vector_width(f["pp"], 2) == 8


def test_unknown_bound_forbids_vectors():
    f = facts(BLOCK.replace("splat %n", "splat %m"))
    assert f["mask"].constancy == (1,) and vector_width(f["pp"], 2, f["mask"]) == 1


def test_unaligned_pointer_and_shift_by_one():
    f = facts(BLOCK.replace("splat %p", "splat %q"))
    assert vector_width(f["pp"], 4) == 1
    f = facts("  %1 = const {value=1} : int32[128]\n  %x = add %o, %1\n  %pt = splat %p {shape=(128,)}\n"
              "  %pp = ptr_add %pt, %x")
    assert f["x"].contiguity == (128,) and f["x"].divisibility == (1,) and vector_width(f["pp"], 2) == 1


def test_a_row_of_a_matrix():
    f = facts("""\
  %r = arange {start=0, end=32}
  %row = expand_dims %r {axis=1}
  %col = expand_dims %o {axis=0}
  %ns = splat %n {shape=(32, 1)}
  %a = mul %row, %ns
  %ab = broadcast %a {shape=(32, 128)}
  %cb = broadcast %col {shape=(32, 128)}
  %x = add %ab, %cb
  %pt = splat %p {shape=(32, 128)}
  %pp = ptr_add %pt, %x""")
    assert f["x"].contiguity == (1, 128) and f["x"].divisibility == (1, 16)
    assert f["cb"].constancy == (32, 1) and f["ab"].constancy == (1, 128)
    assert vector_width(f["pp"], 2) == 8


def test_remainder_by_an_aligned_size_keeps_runs():
    f = facts(BLOCK + "  %y = irem %x, %nt\n  %z = idiv %x, %nt")
    assert f["y"].contiguity == (16,) and f["y"].divisibility == (16,) and f["z"].constancy == (16,)


def test_carried_values_reach_a_fixpoint():
    f = facts("""\
  %0 = const {value=0} : int32
  %k = const {value=32} : int32
  %a, %b, %c = for %0, %m, %k, %0, %n, %n : int32, int32, int32 {(%i: int32, %x: int32, %y: int32, %z: int32)
    %x2 = add %x, %k
    %y2 = add %y, %i
    %z2 = mul %z, %m
    yield %x2, %y2, %z2
  }""")
    assert f["i"].divisibility == (32,) and f["i"].nonnegative
    assert f["x"].divisibility == (32,) and f["x"].constant is None and f["a"].divisibility == (32,)
    assert f["b"].divisibility == (16,) and f["c"].divisibility == (16,)


def test_branches_meet():
    f = facts("""\
  %c = cmp %n, %m {pred="lt"}
  %16 = const {value=48} : int32
  %r = if %c : int32 {
    yield %n
  } {
    yield %16
  }""")
    assert f["r"].divisibility == (16,)


def test_hints_and_casts():
    f = facts("  %h = hint %m {divisible=[8]}\n  %w = cast %h {dtype=int64}\n  %v = cast %h {dtype=fp32}\n"
              "  %t = hint %o {contiguous=[16], constant=[1]}")
    assert f["h"].divisibility == (8,) and f["w"].divisibility == (8,) and f["v"].divisibility == (1,)
    assert f["t"].contiguity == (128,)


def test_zero_divides_by_anything():
    assert facts("  %zero = const {value=0} : int32[4]")["zero"].divisibility == (ANY,)


# -- the property --------------------------------------------------------------------------------------

def _check(name, x, info, unit=1):
    """Every fact of `info` holds of the values x (rank >= 1)."""
    for d in range(x.ndim):
        y = np.moveaxis(x, d, -1).astype(object)
        rows = y.reshape(-1, y.shape[-1])
        run, same = info.contiguity[d], info.constancy[d]
        for row in rows:
            for i in range(0, len(row), run):
                assert list(row[i:i + run] - row[i]) == [unit * j for j in range(len(row[i:i + run]))], (name, info)
                assert row[i] % info.divisibility[d] == 0, (name, info, row[i])
            for i in range(0, len(row), same):
                assert len(set(row[i:i + same])) == 1, (name, info)
    assert not info.nonnegative or (x >= 0).all(), (name, info)
    assert info.constant is None or set(x.ravel().tolist()) == {info.constant}, (name, info)


@settings(max_examples=300, deadline=None)
@given(straight_lines(), st.integers(-2, 5).map(lambda k: 16 * k), st.integers(-40, 40))
def test_facts_hold(body, n, m):
    text = ("kernel @f(%n: int32 {divisible=16}, %m: int32) {\n" + body + "\n  return\n}\n")
    fn = parse_function(text)
    verify(fn)
    found = analyse(fn)
    machine = ev.Machine(fn, (1, 1, 1))
    args = [np.array(n, np.int32), np.array(m, np.int32)]
    with np.errstate(all="ignore"), pytest.raises(ev._Return):
        machine.region(fn.body, args)
    wrapped = any(abs(int(v)) > 2**24 for op in walk(fn.body) for r in op.results
                  if machine.env[r].dtype != bool for v in machine.env[r].ravel())
    by_zero = any((machine.env[op.operands[1]] == 0).any() for op in walk(fn.body) if op.name == "idiv")
    if wrapped or by_zero:
        return                       # both are errors of the kernel
    for op in walk(fn.body):
        for r in op.results:
            _check(f"{op} in\n{text}", machine.env[r], found[r])
