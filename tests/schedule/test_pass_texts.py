"""Passes whose tests elsewhere begin with kernels: text in, text out, and the same numbers where that can be evaluated."""
import ml_dtypes
import numpy as np
import pytest
from test_sink_waits import function

from tilejit.ir import walk
from tilejit.ir.evaluate import evaluate
from tilejit.ir.text import parse_function
from tilejit.ir.verify import verify
from tilejit.schedule.annotate import annotate
from tilejit.schedule.cluster_barrier import meet
from tilejit.schedule.depth import bind
from tilejit.schedule.sink_runs import sink_runs
from tilejit.schedule.strips import strip_rows

TILE = "#l = <64x64 register=[[0,1],[8,0],[0,8],[0,16],[0,32]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[[16,0],[32,0]]>\n"
DEPENDENT = TILE + """
kernel @k(%q: desc<bf16[64x64]>, %kd: desc<bf16[64x64]>, %vd: desc<bf16[64x64]>, %out: ptr<fp32>, %n: int32) {num_warps=4, report=[]OPTIONS} {
  %z = const {value=0, type=fp32[64x64]} : fp32[64x64, #l]
  %0 = const {value=0} : int32
  %1 = const {value=1} : int32
  %x = desc_load %q, %0, %0 : bf16[64x64]
  %r = for %0, %n, %1, %z : fp32[64x64, #l] {(%i: int32, %acc: fp32[64x64, #l])
    %k = desc_load %kd, %i, %0 : bf16[64x64]
    %t = trans %k {order=(1, 0)} : bf16[64x64]
    %s = dot %x, %t, %z : fp32[64x64, #l]
    %e = exp2 %s : fp32[64x64, #l]
    %p = cast %e {dtype=bf16} : bf16[64x64, #l]
    %v = desc_load %vd, %i, %0 : bf16[64x64]
    %o = dot %p, %v, %acc : fp32[64x64, #l]
    yield %o
  }
  return
}
"""


def test_annotate_gives_dependent_products_two_stages():
    """The first product of the next trip is issued with the second one of this trip; between them what they need."""
    fn = annotate(parse_function(DEPENDENT.replace("OPTIONS", "")))
    verify(fn)
    loop = next(op for op in fn.body.ops if op.name == "for")
    assert {op.result.name: (op.attrs["stage"], op.attrs["cycle"]) for op in loop.regions[0].ops[:-1]} == {
        "k": (0, 0), "t": (0, 0), "s": (0, 0), "e": (0, 2), "p": (0, 5), "v": (1, 1), "o": (1, 1)}
    assert {op.attrs["ring"] for op in loop.regions[0].ops if op.name == "desc_load"} == {"k", "v"}
    assert [x.kind for x in fn.attrs["report"]] == ["overlap"] and "stage=1, cycle=1" in str(fn)


@pytest.mark.parametrize("options", [", products_ahead=false", ", maxnreg=64", ", warp_specialize=false"])
def test_annotate_leaves_a_loop_in_order(options):
    """Where the author says so, registers do not suffice, or no role of its own loads: the text is what it was."""
    fn = parse_function(DEPENDENT.replace("OPTIONS", options))
    before = str(fn).partition("{\n")[2]
    assert str(annotate(fn)).partition("{\n")[2].replace(" {joined=true}", "") == before


def test_depth_is_bound_where_the_number_stands():
    """The ring's buffers, barriers and tickets, and nothing else."""
    fn = parse_function(function('%t, %u = ticket_next %0, %1 {slots=2, ring="a"} : int32, int32',
                                 '%v, %w = ticket_next %0, %1 {slots=2, ring="c"} : int32, int32'))
    fn.attrs["report"] = []
    lines = str(fn).splitlines()
    bind(fn, {"a"}, 5)
    changed = [(old, new) for old, new in zip(lines, str(fn).splitlines()) if old != new]
    assert all(new == old.replace("<2", "<5").replace("slots=2", "slots=5") for old, new in changed)
    assert len(changed) == 4 and all('"a' in new for _, new in changed)                  # two barriers, buffer, ticket


STORED = TILE + """
kernel @k(%d: desc<bf16[64x64]>, %n: int32) {num_warps=4, report=[]} {
  %y_stage = alloc {name="y_stage"} : buffer<1xbf16[64x64], swizzle=128, order=1x0>
  %0 = const {value=0} : int32
  %z = const {value=0, type=fp32[64x64]} : fp32[64x64, #l]
  %e = exp2 %z : fp32[64x64, #l]
  %y = cast %e {dtype=bf16} : bf16[64x64, #l]
  tma_store %d, %y, %y_stage, %0, %0 {size=64, axis=1, stripes=1}
  MORE
  return
}
"""


@pytest.mark.parametrize("more, sunk", [("", ["y"]), ("tma_store %d, %y, %y_stage, %n, %0 {size=64, axis=1, stripes=1}", [])])
def test_what_one_store_needs_is_computed_there(more, sunk):
    fn = parse_function(STORED.replace("MORE", more))
    assert [op.result.name for op in walk(sink_runs(fn).body) if "by_pieces" in op.attrs] == sunk
    assert str(parse_function(str(fn))) == str(fn)


def atomic(sem: str, ctas: int) -> list[str]:
    """The ops that `meet` leaves of an atomic of one number behind a TMA store, and what comes with them."""
    text = STORED.replace("MORE", f'%old = atomic_rmw %count, %n {{kind="add", sem="{sem}", scope="gpu"}} : int32')
    text = text.replace("%n: int32", "%n: int32, %count: ptr<int32>").replace("num_warps=4", f"num_warps=4, num_ctas={ctas}")
    fn = parse_function(text)
    verify(meet(fn))
    ops = fn.body.ops
    return [op.name for op in ops[next(i for i, op in enumerate(ops) if op.name == "tma_store") + 1:-1] if op.name != "const"]


@pytest.mark.parametrize("sem, ctas, want", [
    ("relaxed", 1, ["atomic_rmw"]), ("release", 1, ["store_wait", "atomic_rmw"]), ("acquire", 1, ["atomic_rmw", "fence_async"]),
    ("relaxed", 2, ["atomic_rmw"]), ("release", 2, ["store_wait", "cluster_barrier", "atomic_rmw"]),
    ("acq_rel", 2, ["store_wait", "cluster_barrier", "atomic_rmw", "cluster_broadcast", "fence_async"])])
def test_what_an_atomic_orders(sem, ctas, want):
    """Stores that it releases are written before it; who acquires fences; a cluster comes together, and is told."""
    assert atomic(sem, ctas) == want


ROW = """#r = <4096 register=[[1],[2],[4],[1024],[2048]] lane=[[8],[16],[32],[64],[128]] warp=[[256],[512]]>
kernel @k(%x: ptr<bf16>, %out: ptr<fp32>, %n: int32) {num_warps=4, report=[]} {
  %full = barriers {name="a.full"} : barrier<1, count=1>
  %a = alloc {name="a"} : buffer<1xbf16[4096], swizzle=0, order=0>
  %0 = const {value=0} : int32
  %size = const {value=8192} : int32
  elect {
    mbar_expect %full, %0, %size {bytes=0}
    row_copy %a, %0, %full, %x, %size
  }
  %v = view %a, %0 : buffer<view bf16[4096], swizzle=0, order=0>
  mbar_wait %full, %0, %0
  %row = local_load %v : bf16[4096, #r]
  %w = cast %row {dtype=fp32} : fp32[4096, #r]
  %i = arange {start=0, end=4096} : int32[4096, #r]
  %ends = splat %n {shape=(4096,)} : int32[4096, #r]
  %mask = cmp %i, %ends {pred="lt"} : int1[4096, #r]
  %ones = const {value=1.0, type=fp32[4096]} : fp32[4096, #r]
  %y = select %mask, %w, %ones : fp32[4096, #r]
  %sum = reduce %y {axis=0} : fp32 {(%l: fp32, %m: fp32)
    %t = add %l, %m : fp32
    yield %t
  }
  %s = splat %sum {shape=(4096,)} : fp32[4096, #r]
  %z = sub %y, %s : fp32[4096, #r]
  %o = splat %out {shape=(4096,)} : ptr<fp32>[4096, #r]
  %p = ptr_add %o, %i : ptr<fp32>[4096, #r]
  store %p, %z, %mask
  return
}
"""


@pytest.mark.parametrize("n", [0, 1, 1024, 3000, 4096])
def test_a_row_in_strips_computes_the_same(n):
    """Four strips of 1024, as far as the row goes, in two passes: sums of integers are exact in any order."""
    def result(fn):
        out = np.full(4096, -1, np.float32)
        evaluate(fn, 1, {"x": (np.arange(4096) % 7).astype(ml_dtypes.bfloat16), "out": out, "n": n})
        return out

    fn = parse_function(ROW)
    fn.attrs["uncounted"] = True
    want = result(fn)
    verify(strip_rows(fn))
    assert np.array_equal(result(fn), want) and want[n:].tolist() == [-1] * (4096 - n)
    assert {op.attrs["size"] for op in walk(fn.body) if op.name == "strip"} == {1024}
    assert [x.numbers for x in fn.attrs["report"]] == [{"count": 4, "size": 1024, "passes": 2}]
    assert not any(getattr(v.type, "shape", ()) == (4096,) and op.name != "view" and "alloc" not in op.name
                   for op in walk(fn.body) for v in op.results if op.name in ("local_load", "cast", "select", "sub"))
