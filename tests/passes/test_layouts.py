"""Layout assignment: text in, text out; and every program it touches still means the same."""
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placement import check
from tile_programs import structured

from tilejit.errors import CompilationError
from tilejit.ir import walk
from tilejit.ir.evaluate import evaluate
from tilejit.ir.text import parse_function, print_function
from tilejit.ir.types import Tile
from tilejit.ir.verify import verify
from tilejit.layout.mma import mma_accumulator, mma_operand
from tilejit.layout.named import wgmma_accumulator
from tilejit.passes.layouts import assign_layouts

ARGS = ("%p: ptr<fp32> {divisible=16}, %q: ptr<fp32> {divisible=16}, %h: ptr<bf16> {divisible=16}, "
        "%n: int32 {divisible=16}, %a: desc<bf16[64x64]>, %b: desc<bf16[64x64]>, %c: desc<bf16[64x64]>, "
        "%i: int32")


def assigned(body: str, num_warps: int = 4, num_ctas: int = 1):
    fn = parse_function(f"kernel @f({ARGS}) {{num_warps={num_warps}, num_ctas={num_ctas}}} {{\n{body}\n  return\n}}\n")
    verify(fn)
    assign_layouts(fn)
    verify(fn)
    check(fn)
    assert print_function(parse_function(print_function(fn))) == print_function(fn)
    return fn


def named(fn, name):
    """The type of a value by its (or its user variable's) name."""
    return next(v.type for op in walk(fn.body) for v in op.results if v.name == name)


def ops(fn, name):
    return [op for op in walk(fn.body) if op.name == name]


def matrix(name, base, rows, cols, row_stride="%n", transposed=False, elem="fp32"):
    """Text for a tile of pointers %name to base[i * stride + j], or base[j * stride + i]."""
    slow, fast = ("c", "r") if transposed else ("r", "c")
    return f"""
  %{name}r0 = arange {{start=0, end={rows}}}
  %{name}c0 = arange {{start=0, end={cols}}}
  %{name}r1 = expand_dims %{name}r0 {{axis=1}}
  %{name}c1 = expand_dims %{name}c0 {{axis=0}}
  %{name}r = broadcast %{name}r1 {{shape=({rows}, {cols})}}
  %{name}c = broadcast %{name}c1 {{shape=({rows}, {cols})}}
  %{name}s = splat {row_stride} {{shape=({rows}, {cols})}}
  %{name}m = mul %{name}{slow}, %{name}s
  %{name}o = add %{name}m, %{name}{fast}
  %{name}b = splat {base} {{shape=({rows}, {cols})}}
  %{name} = ptr_add %{name}b, %{name}o"""


PRODUCT = """
  %x = desc_load %a, %i, %i
  %y0 = desc_load %b, %i, %i
  %y = trans %y0 {order=(1, 0)}
  %zero = const {value=0.0} : fp32[64x64]
  %d = dot %x, %y, %zero"""
ACCUMULATOR = wgmma_accumulator((64, 64), 4)


def test_a_copy_is_as_wide_as_it_can_be():
    fn = assigned("""
  %o = arange {start=0, end=1024}
  %pb = splat %p {shape=(1024,)}
  %pp = ptr_add %pb, %o
  %x = load %pp
  %y = cast %x {dtype=bf16}
  %hb = splat %h {shape=(1024,)}
  %hh = ptr_add %hb, %o
  store %hh, %y""")
    assert re.sub(r"\n", " ", print_function(fn)).count("#l") and not ops(fn, "convert")
    (layout,) = {v.type.layout for op in walk(fn.body) for v in op.results if isinstance(v.type, Tile)}
    assert str(layout) == ("<1024 register=[[1],[2],[4]] lane=[[8],[16],[32],[64],[128]] warp=[[256],[512]]>")
    assert ops(fn, "load")[0].attrs["vec"] == 4 and ops(fn, "store")[0].attrs["vec"] == 8
    assert len(ops(fn, "arange")) == 1, "equal copies are merged again"


def test_a_small_tile_uses_all_threads_before_vectors():
    fn = assigned("""
  %o = arange {start=0, end=128}
  %pb = splat %p {shape=(128,)}
  %pp = ptr_add %pb, %o
  %x = load %pp
  store %pp, %x""")
    assert named(fn, "x").layout.num_registers == 1 and ops(fn, "load")[0].attrs["vec"] == 1


def test_a_mask_narrows_the_vector():
    fn = assigned("""
  %o = arange {start=0, end=1024}
  %two = const {value=2} : int32[1024]
  %half = idiv %o, %two
  %lim = splat %i {shape=(1024,)}
  %m = cmp %half, %lim {pred="lt"}
  %pb = splat %p {shape=(1024,)}
  %pp = ptr_add %pb, %o
  %z = const {value=0.0} : fp32[1024]
  %x = load %pp, %m, %z
  store %pp, %x""")
    assert ops(fn, "load")[0].attrs["vec"] == 2 and ops(fn, "store")[0].attrs["vec"] == 4


def test_operands_of_a_product_stay_in_shared_memory():
    fn = assigned(PRODUCT + """
  %r = cast %d {dtype=bf16}
  desc_store %c, %r, %i, %i""")
    assert named(fn, "x").layout is None and named(fn, "y").layout is None and named(fn, "y0").layout is None
    assert named(fn, "d").layout == named(fn, "r").layout == named(fn, "zero").layout == ACCUMULATOR
    assert not ops(fn, "convert") and fn.attrs["report"] == []


def test_a_block_with_another_use_comes_to_registers():
    fn = assigned(PRODUCT + """
  %s = add %y0, %y0
  desc_store %c, %s, %i, %i""")
    assert named(fn, "x").layout is None and named(fn, "y0").layout is not None
    assert named(fn, "y0").layout.contiguous_registers() == 8, "TMA blocks are read 16 bytes at a time"


def test_a_bias_is_loaded_where_it_is_added():
    fn = assigned(PRODUCT + """
  %o = arange {start=0, end=64}
  %pb = splat %p {shape=(64,)}
  %pp = ptr_add %pb, %o
  %v = load %pp
  %e = expand_dims %v {axis=0}
  %w = broadcast %e {shape=(64, 64)}
  %s = add %d, %w
  %r = cast %s {dtype=bf16}
  desc_store %c, %r, %i, %i""")
    assert named(fn, "v").layout == ACCUMULATOR.reduce(0) and not ops(fn, "convert")
    assert ops(fn, "load")[0].attrs["vec"] == 2


def test_a_large_store_is_coalesced_inside_its_warps():
    fn = assigned(PRODUCT + matrix("t", "%h", 64, 64) + """
  %r = cast %d {dtype=bf16}
  store %t, %r""")
    (convert,) = ops(fn, "convert")
    src, dst = convert.operands[0].type, convert.result.type
    assert src.elem == dst.elem and src.elem.bits == 16, "narrow elements are converted"
    assert src.layout == ACCUMULATOR and dst.layout.contiguous_registers() == 8
    assert dst.layout.bases_of("warp") == ACCUMULATOR.bases_of("warp")
    assert ops(fn, "store")[0].attrs["vec"] == 8
    assert fn.attrs["report"] == ["convert at ?: bf16[64x64] for store, 8192 bytes through shared memory"]


def test_a_row_statistic_is_stored_from_where_it_is():
    fn = assigned(PRODUCT + """
  %s = reduce %d {axis=1} : fp32[64] {(%u: fp32, %v: fp32)
    %w = add %u, %v
    yield %w
  }
  %o = arange {start=0, end=64}
  %pb = splat %p {shape=(64,)}
  %pp = ptr_add %pb, %o
  store %pp, %s""")
    assert not ops(fn, "convert") and named(fn, "pp").layout == ACCUMULATOR.reduce(1)


def test_transposing_loads_and_stores_wide():
    fn = assigned(matrix("s", "%p", 64, 64) + matrix("t", "%q", 64, 64, transposed=True) + """
  %x = load %s
  store %t, %x""")
    assert [op.attrs["vec"] for op in (*ops(fn, "load"), *ops(fn, "store"))] == [4, 4]
    (convert,) = ops(fn, "convert")
    assert "16384 bytes through shared memory" in fn.attrs["report"][0]


def test_a_load_against_the_grain_is_coalesced_then_converted():
    fn = assigned(matrix("s", "%p", 64, 64) + matrix("t", "%q", 64, 64, transposed=True) + """
  %x = load %s
  %y = load %t
  %z = add %x, %y
  store %s, %z""")
    assert [op.attrs["vec"] for op in ops(fn, "load")] == [4, 4] and len(ops(fn, "convert")) == 1


def test_conversions_move_to_the_smaller_side():
    """The load is bf16 and against the grain; its fp32 value is used with the grain: bf16 is converted."""
    fn = assigned(matrix("s", "%p", 64, 64) + matrix("t", "%h", 64, 64, transposed=True) + """
  %x = load %s
  %y = load %t
  %y32 = cast %y {dtype=fp32}
  %z = add %x, %y32
  store %s, %z""")
    (convert,) = ops(fn, "convert")
    assert str(convert.result.type.elem) == "bf16"


def test_a_broadcast_is_converted_before_it_grows():
    fn = assigned(matrix("s", "%p", 64, 64) + """
  %o = arange {start=0, end=64}
  %qb = splat %q {shape=(64,)}
  %qq = ptr_add %qb, %o
  %v = load %qq
  %old = atomic_rmw %qq, %v {kind="add", sem="relaxed", scope="gpu"}
  %e = expand_dims %old {axis=1}
  %w = broadcast %e {shape=(64, 64)}
  %x = load %s
  %z = add %x, %w
  store %s, %z""")
    assert all(op.result.type.numel == 64 for op in ops(fn, "convert"))


def test_what_loops_carry_keeps_one_layout():
    fn = assigned(matrix("s", "%p", 64, 64) + matrix("t", "%q", 64, 64, transposed=True) + """
  %zero = const {value=0} : int32
  %one = const {value=1} : int32
  %step = const {value=64} : int32[64x64]
  %acc0 = const {value=0.0} : fp32[64x64]
  %acc, %pp = for %zero, %n, %one, %acc0, %s : fp32[64x64], ptr<fp32>[64x64] \
{(%k: int32, %ac: fp32[64x64], %pc: ptr<fp32>[64x64])
    %x = load %pc
    %an = add %ac, %x
    %pn = ptr_add %pc, %step
    yield %an, %pn
  }
  store %t, %acc""")
    assert named(fn, "acc").layout == named(fn, "x").layout == named(fn, "acc0").layout
    (convert,) = ops(fn, "convert")
    assert convert.parent is fn.body, "nothing is converted inside the loop"


def test_a_value_from_outside_is_converted_outside():
    fn = assigned(matrix("s", "%p", 64, 64) + matrix("t", "%q", 64, 64, transposed=True) + """
  %x = load %s
  %zero = const {value=0} : int32
  %one = const {value=1} : int32
  for %zero, %n, %one {(%k: int32)
    %y = load %t
    %f = splat %k {shape=(64, 64)}
    %g = cast %f {dtype=fp32}
    %u = mul %y, %g
    %z = add %u, %x
    store %t, %z
    yield
  }""")
    assert all(op.parent is fn.body for op in ops(fn, "convert")) and len(ops(fn, "convert")) == 1


def test_an_index_follows_the_values_of_its_fold():
    fn = assigned(matrix("s", "%p", 64, 64) + """
  %x = load %s
  %j0 = arange {start=0, end=64}
  %j1 = expand_dims %j0 {axis=0}
  %j = broadcast %j1 {shape=(64, 64)}
  %best, %at = reduce %x, %j {axis=1} : fp32[64], int32[64] {(%u: fp32, %ui: int32, %v: fp32, %vi: int32)
    %g = cmp %u, %v {pred="ge"}
    %w = select %g, %u, %v
    %wi = select %g, %ui, %vi
    yield %w, %wi
  }
  %o = arange {start=0, end=64}
  %qb = splat %q {shape=(64,)}
  %qq = ptr_add %qb, %o
  %f = cast %at {dtype=fp32}
  %r = add %best, %f
  store %qq, %r""")
    (fold,) = ops(fn, "reduce")
    assert fold.operands[1].type.layout == named(fn, "x").layout and not ops(fn, "convert")


def test_join_and_split_stay_in_the_thread():
    fn = assigned("""
  %o = arange {start=0, end=1024}
  %pb = splat %p {shape=(1024,)}
  %pp = ptr_add %pb, %o
  %x = load %pp
  %t = reshape %x {shape=(512, 2)}
  %l, %r = split %t
  %m = join %r, %l
  %y = reshape %m {shape=(1024,)}
  store %pp, %y""")
    assert not fn.attrs["report"]


def test_hashes_of_ranges_do_not_explode():
    """Each step uses the last value twice; copying all of it would take 2**40 ops."""
    steps = "\n".join(f"  %v{i + 1} = mul %v{i}, %w{i}\n  %w{i + 1} = xor %v{i + 1}, %w{i}" for i in range(40))
    fn = assigned(f"""
  %v0 = arange {{start=0, end=1024}}
  %w0 = arange {{start=1, end=1025}}
{steps}
  %o = arange {{start=0, end=1024}}
  %pb = splat %p {{shape=(1024,)}}
  %pp = ptr_add %pb, %o
  %f = cast %w40 {{dtype=fp32}}
  store %pp, %f""")
    assert len(list(walk(fn.body))) < 120


def test_a_product_that_wgmma_cannot_do_is_done_by_mma_sync():
    (dot,) = [op for op in walk(assigned(PRODUCT, num_warps=2).body) if op.name == "dot"]
    assert dot.attrs["unit"] == "mma"
    acc = dot.result.type.layout
    assert acc == mma_accumulator(dot.result.type.shape, 2)
    assert [v.type.layout for v in dot.operands[:2]] == [None, None], "ldmatrix reads the slots"


def test_operands_of_mma_sync_are_converted():
    """Tiles in registers come in the fragments' layout."""
    fn = assigned("""
  %x = const {value=1.0} : bf16[64x64]
  %y = exp %x
  %z = const {value=0.0} : fp32[64x64]
  %d = dot %y, %y, %z""", num_warps=2)
    (dot,) = [op for op in walk(fn.body) if op.name == "dot"]
    for index in (0, 1):
        assert dot.operands[index].type.layout == mma_operand(dot.result.type.layout, index, 64, 2)


def test_a_product_of_several_ctas_needs_wgmma():
    with pytest.raises(CompilationError, match="num_ctas=2 needs wgmma"):
        assigned(PRODUCT, num_warps=1, num_ctas=2)


PROGRAM = "kernel @g(%p: ptr<int32>, %n: int32, %m: int32) {{num_warps={warps}}} {{\n{body}\n  return\n}}\n"
STORE = """
  %oc = arange {{start=0, end=16}}
  %or = arange {{start=0, end=4}}
  %oe = expand_dims %oc {{axis=0}}
  %of = expand_dims %or {{axis=1}}
  %og = broadcast %oe {{shape=(4, 16)}}
  %oh = broadcast %of {{shape=(4, 16)}}
  %ok = const {{value={scale}}} : int32[4x16]
  %ol = mul %{slow}, %ok
  %om = add %ol, %{fast}
  %on = splat %p {{shape=(4, 16)}}
  %oo = ptr_add %on, %om
  %old = load %oo
  %new = add %old, %v{last}
  store %oo, %new"""


@settings(deadline=None, max_examples=40)
@given(structured(), st.sampled_from([1, 2, 4]), st.booleans())
def test_random_programs_keep_their_meaning(program, warps, transposed):
    body, last = program
    order = dict(scale=4, slow="og", fast="oh") if transposed else dict(scale=16, slow="oh", fast="og")
    text = PROGRAM.format(warps=warps, body=body + STORE.format(last=last, **order))
    results = []
    for assign in (False, True):
        fn = parse_function(text)
        if assign:
            assign_layouts(fn)
            verify(fn)
            check(fn)
        memory = np.arange(64, dtype=np.int32)
        evaluate(fn, 1, {"p": memory, "n": 3, "m": 5})
        results.append(memory)
    np.testing.assert_array_equal(*results)
