"""`edges`: what enters a loop or branch, is carried by it, handed on and leaves it, by the names of values."""
import pytest

from tilejit.ir import Function, Op, Value, controls, edge_at, edge_of, edges, keep_edges, replace, uses, walk
from tilejit.ir.text import parse_function, print_function
from tilejit.ir.verify import verify

FLOW = """\
kernel @flow(%n: int32, %m: int32) {num_warps=4} {
  %zero = const {value=0} : int32
  %s, %t = for %zero, %n, %m, %n, %zero : int32, int32 {(%i: int32, %sa: int32, %ta: int32)
    %se = add %sa, %i : int32
    %te = add %ta, %m : int32
    yield %se, %te
  }
  %x, %y = while %s, %t : int32, int32 {(%xa: int32, %ya: int32)
    %go = cmp %xa, %n {pred="gt"} : int1
    %xc = sub %xa, %m : int32
    condition %go, %xc, %ya
  } {(%xb: int32, %yb: int32)
    %xe = sub %xb, %m : int32
    %ye = add %yb, %xb : int32
    yield %xe, %ye
  }
  %c = cmp %x, %y {pred="lt"} : int1
  %p, %q = if %c : int32, int32 {
    yield %x, %n
  } {
    yield %y, %m
  }
  device_print %p, %q {prefix="", conversions=("%d", "%d")}
  return
}
"""


@pytest.fixture
def fn() -> Function:
    found = parse_function(FLOW)
    verify(found)
    return found


def op_named(fn: Function, name: str) -> Op:
    return next(op for op in walk(fn.body) if op.name == name)


def names(values: tuple[Value | None, ...] | list[Value]) -> str:
    return " ".join(v.name if v is not None else "-" for v in values)


@pytest.mark.parametrize(("op", "init", "args", "ends", "results"), [
    ("for", ["n", "zero"], ["sa", "ta"], ["se", "te"], "s t"),
    ("while", ["s", "t"], ["xa xb", "ya yb"], ["xc xe", "ya ye"], "x y"),
    ("if", ["-", "-"], ["", ""], ["x y", "n m"], "p q"),
])
def test_the_edges_of_an_op(fn, op, init, args, ends, results):
    found = edges(op_named(fn, op))
    assert [names([e.init]) for e in found] == init
    assert [names(e.args) for e in found] == args
    assert [names(e.ends) for e in found] == ends
    assert names([e.result for e in found]) == results


def test_other_ops_have_none(fn):
    assert edges(op_named(fn, "add")) == [] == controls(op_named(fn, "add"))
    assert edge_of(op_named(fn, "add").result) is None
    assert all(edge_of(v) is None for v in fn.body.args)


def test_every_value_of_an_edge_leads_to_it(fn):
    table = uses(fn.body)
    for op in walk(fn.body):
        for e in edges(op):
            assert all(edge_of(v) == (op, e) for v in (*e.args, e.result))
            into = [at for v in e.sources for use in table[v] if (at := edge_at(*use)) is not None]
            assert (op, e) in into
    loop = op_named(fn, "for")
    assert edge_of(loop.regions[0].args[0]) is None, "the induction variable is not carried"
    assert edge_at(loop, 2) is None and edge_at(op_named(fn, "condition"), 0) is None, "bounds and conditions neither"


def test_what_decides_control(fn):
    assert [names(controls(op_named(fn, op))) for op in ("for", "while", "if")] == ["zero n m", "go", "c"]


def test_a_branch_that_returns_hands_on_nothing():
    fn = parse_function("""\
kernel @f(%c: int1, %n: int32) {num_warps=4} {
  %p = if %c : int32 {
    return
  } {
    yield %n
  }
  device_print %p {prefix="", conversions=("%d",)}
  return
}
""")
    (edge,) = edges(op_named(fn, "if"))
    assert names(edge.ends) == "n"


@pytest.mark.parametrize("op", ["for", "while", "if"])
def test_edges_are_removed(fn, op):
    where = op_named(fn, op)
    one, other = edges(where)
    used = one.result
    replace(fn.body, dict(zip((*other.args, other.result), (*one.args, used))))
    keep_edges(where, [0])
    verify(fn)
    (edge,) = edges(where)
    assert edge.result is used and [v.index for v in where.results] == [0]
    again = parse_function(print_function(fn))
    assert [len(edges(x)) for x in walk(again.body)] == [len(edges(x)) for x in walk(fn.body)]
