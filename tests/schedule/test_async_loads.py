"""Loads through pointers as asynchronous copies: tile IR text in, what is made of it out."""
import re

import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit import passes, schedule
from tilejit.ir import walk
from tilejit.ir.text import parse_function, print_function
from tilejit.ir.verify import verify
from tilejit.ptx.emit import emit

#: acc += x @ y over the steps of a loop that carries the pointers of x; s is one number for each row.
KERNEL = """
kernel @f(%a: ptr<bf16> {divisible=16}, %b: ptr<bf16> {divisible=16}, %scale: ptr<fp32> {divisible=16},
          %table: ptr<int32> {divisible=16}, %c: ptr<fp32> {divisible=16}, %n: int32 {divisible=16}, %any: int32) {num_warps=4OPTIONS} {
  %zero = const {value=0} : int32
  %one = const {value=1} : int32
  %i64 = arange {start=0, end=64}
  %i32 = arange {start=0, end=32}
  %rows = expand_dims %i64 {axis=1}
  %ld = const {value=256, type=int32[64x1]}
  %row = mul %rows, %ld
  %rowb = broadcast %row {shape=(64, 32)}
  %cols = expand_dims %i32 {axis=0}
  %colb = broadcast %cols {shape=(64, 32)}
  %off = add %rowb, %colb
  %ap = splat %a {shape=(64, 32)}
  %first = ptr_add %ap, %off
  %bp = splat %b {shape=(64, 32)}
  %bs = ptr_add %bp, %off
  %acc0 = const {value=0.0, type=fp32[64x64]}
  %step = const {value=32, type=int32[64x32]}
  %big = const {value=64} : int32
  %sp = splat %scale {shape=(64,)}
  %nb = splat %n {shape=(64,)}
  %anyb = splat %any {shape=(64,)}
  %none = const {value=0.0, type=fp32[64]}
  %some = const {value=1.0, type=fp32[64]}
  %r, %end = for %zero, %n, %one, %acc0, %first {(%i: int32, %acc: fp32[64x64], %at: ptr<bf16>[64x32])
    %x = LOADX
    %move = mul %i, %big
    %moveb = splat %move {shape=(64, 32)}
    %bat = ptr_add %bs, %moveb
    %y = load %bat : bf16[64x32]
    %yt = trans %y {order=(1, 0)}
    %part = dot %x, %yt, %acc
    %mr = mul %i, %big
    %mrb = splat %mr {shape=(64,)}
    %place = add %mrb, %i64
    %spa = ptr_add %sp, %place
    SCALE
    %se = expand_dims %s {axis=0}
    %sb = broadcast %se {shape=(64, 64)}
    %next = add %part, %sb
    %on = ptr_add %at, %step
    EXTRA
    yield %next, %on
  }
  %cld = mul %rows, %ld
  %crow = broadcast %cld {shape=(64, 64)}
  %ccol0 = expand_dims %i64 {axis=0}
  %ccol = broadcast %ccol0 {shape=(64, 64)}
  %coff = add %crow, %ccol
  %cp = splat %c {shape=(64, 64)}
  %cs = ptr_add %cp, %coff
  store %cs, %r
  return
}
"""
DEFAULT = {"LOADX": "load %at : bf16[64x32]", "SCALE": "%s = load %spa : fp32[64]", "EXTRA": "", "OPTIONS": ""}


def scheduled(**parts):
    text = KERNEL
    for name, part in {**DEFAULT, **parts}.items():
        text = text.replace(name, part)
    fn = passes.run(parse_function(text))
    made = schedule.run(fn)
    verify(made)
    assert print_function(parse_function(print_function(made))) == print_function(made)
    return made, "\n".join(made.attrs["report"])


def counts(fn):
    names = [op.name for op in walk(fn.body)]
    return {name: names.count(name) for name in ("async_copy", "async_arrive", "row_copy", "mbar_expect", "load")}


def test_the_ring_of_operands_and_the_ring_of_rows():
    fn, report = scheduled()
    assert "ring x_y: 3 slots x 8192 bytes, cp.async, wgmma reads the slots" in report
    assert "ring s: 3 slots x 256 bytes, bulk copies of rows, read into registers" in report
    # two tickets before the loop and one in it: two operands and one arrival each; three before it of rows, which are
    # read into registers, so that their slots are filled again in the trip that reads them: a row and its bytes each
    assert counts(fn) == {"async_copy": 6, "async_arrive": 3, "row_copy": 4, "mbar_expect": 4, "load": 0}
    barriers = {op.attrs["name"]: op.attrs["type"].count for op in walk(fn.body) if op.name == "barriers"}
    assert barriers == {"x_y.full": 128, "x_y.empty": 1, "s.full": 1, "s.empty": 4}
    buffers = {op.attrs["name"]: op.attrs["type"] for op in walk(fn.body) if op.name == "alloc"}
    assert str(buffers["x"]) == "buffer<3xbf16[64x32], swizzle=64, order=1x0>"


def test_a_short_row_of_a_warp_alone_goes_with_the_tiles():
    fn, report = scheduled(**{"num_warps=4": "num_warps=1"})
    assert "bulk copies" not in report and re.search(r"ring \S*s\S*: \d slots x \d+ bytes, cp.async", report)
    assert counts(fn)["row_copy"] == counts(fn)["mbar_expect"] == 0


def test_what_runs_ahead():
    """The loop carries the pointers of the fill ticket only, two steps ahead of the counter; wgmma waits behind a
    fence for what threads have written."""
    fn, _ = scheduled()
    (loop,) = (op for op in walk(fn.body) if op.name == "for")
    body = loop.regions[0]
    assert sum("ptr<bf16>" in str(a.type) for a in body.args) == 1
    names = [op.name for op in body.ops]
    wait, fence, dot = (names.index(name) for name in ("mbar_wait", "fence_async", "dot_async"))
    assert wait < fence < dot < names.index("if")
    ahead = next(op for op in body.ops if op.name == "if")
    assert [op.name for op in ahead.regions[0].ops][-4:] == ["async_copy", "async_copy", "async_arrive", "yield"]
    assert ahead.regions[0].ops[-4].operands[2] in body.args, "the carried pointers are those of the copy"


@pytest.mark.parametrize("parts, why", [
    ({"LOADX": "load %at {volatile=true} : bf16[64x32]"}, "load x at ?: not pipelined, it is volatile"),
    ({"SCALE": "%m = cmp %place, %anyb {pred=\"lt\"}\n %s = load %spa, %m, %some : fp32[64]"},
     "load s at ?: not pipelined, masked elements are not zero"),
    ({"SCALE": "%q = load %table : int32\n %qb = splat %q {shape=(64,)}\n %sq = ptr_add %spa, %qb\n"
               " %s = load %sq : fp32[64]"},
     "load s at ?: not pipelined, its address is loaded in the same iteration (load)"),
    ({"EXTRA": "%w = const {value=1.0, type=bf16[64x32]}\n store %at, %w"},
     "load x at ?: not pipelined, store may write what it reads"),
    ({"EXTRA": "%o = const {value=1} : int32\n %old = atomic_rmw %table, %o {kind=\"add\", sem=\"acq_rel\", scope=\"gpu\"}"},
     "load x at ?: not pipelined, atomic_rmw orders it after other threads' work"),
    ({"SCALE": "%odd = cmp %i, %one {pred=\"gt\"}\n %s = if %odd : fp32[64] {\n %z = load %spa : fp32[64]\n yield %z\n"
               " } {\n yield %none\n }"}, "load z at ?: not pipelined, it is under a condition"),
])
def test_why_a_load_is_not_pipelined(parts, why):
    _, report = scheduled(**parts)
    assert why in report


def test_num_stages_one_copies_nothing():
    fn, report = scheduled(OPTIONS=", num_stages=1")
    assert "ring" not in report and counts(fn)["load"] == 3
    assert report.count("not pipelined, num_stages=1") == 3


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_depth_is_num_stages(stages):
    fn, report = scheduled(OPTIONS=f", num_stages={stages}")
    assert f"ring x_y: {stages} slots" in report and f"ring s: {stages} slots" in report
    assert counts(fn)["async_arrive"] == counts(fn)["row_copy"] - 1 == stages


@pytest.mark.parametrize("bound, bulk", [("%nb", True), ("%anyb", False)])
def test_a_mask_that_ends_a_row(bound, bulk):
    """A bound that is a multiple of 16 bytes shortens the copy, and threads read no further; another leaves cp.async."""
    fn, report = scheduled(SCALE=f"%m = cmp %place, {bound} {{pred=\"lt\"}}\n    %s = load %spa, %m, %none : fp32[64]")
    text = print_function(fn)
    if bulk:
        assert "ring s: 3 slots x 256 bytes, bulk copies of rows" in report
        assert re.search(r"mbar_expect %s_full, %\S+, %\S+ \{bytes=0\}", text)
        assert re.search(r"%s\S* = local_load %\S+, %\S+ ", text)
    else:
        assert "load s at ?: no bulk copy, its mask is not known to end at a multiple of 16 bytes" in report
        assert "ring s: 3 slots x 256 bytes, cp.async, read into registers" in report


def test_a_load_outside_of_loops_or_beside_no_product_is_as_it_was():
    text = """
kernel @g(%a: ptr<fp32> {divisible=16}, %c: ptr<fp32> {divisible=16}, %n: int32) {num_warps=4} {
  %i = arange {start=0, end=512}
  %ap = splat %a {shape=(512,)}
  %at = ptr_add %ap, %i
  %first = load %at : fp32[512]
  %zero = const {value=0} : int32
  %step = const {value=512} : int32
  %r = for %zero, %n, %step, %first {STAGES} {(%k: int32, %acc: fp32[512])
    %kb = splat %k {shape=(512,)}
    %ak = ptr_add %at, %kb
    %x = load %ak : fp32[512]
    %next = add %acc, %x
    yield %next
  }
  %cp = splat %c {shape=(512,)}
  %cs = ptr_add %cp, %i
  store %cs, %r
  return
}
"""
    plain = schedule.run(passes.run(parse_function(text.replace(" {STAGES}", ""))))
    assert counts(plain) == {"async_copy": 0, "async_arrive": 0, "row_copy": 0, "mbar_expect": 0,
                             "load": 2 + 4}          # the loop's is issued four iterations ahead, into registers
    asked = schedule.run(passes.run(parse_function(text.replace("{STAGES}", "{num_stages=4}"))))
    assert counts(asked)["row_copy"] == 5 and counts(asked)["load"] == 1


MMA = """
kernel @t(%x: ptr<bf16> {divisible=16}, %z: ptr<fp32> {divisible=16}, %n: int32) {num_warps=1, num_stages=STAGES} {
  %none = const {value=0.0, type=fp32[16x16]}
  %i = arange {start=0, end=16}
  %ic = expand_dims %i {axis=1}
  %j = arange {start=0, end=SIZE}
  %jr = expand_dims %j {axis=0}
  %w = const {value=SIZE, type=int32[16x1]}
  %iw = mul %ic, %w
  %ib = broadcast %iw {shape=(16, SIZE)}
  %jb = broadcast %jr {shape=(16, SIZE)}
  %at = add %ib, %jb
  %xb = splat %x {shape=(16, SIZE)}
  %zero = const {value=0} : int32
  %one = const {value=1} : int32
  %big = const {value=BYTES} : int32
  %sum = for %zero, %n, %one, %none {(%k: int32, %acc: fp32[16x16])
    %far = mul %k, %big
    %fb = splat %far {shape=(16, SIZE)}
    %to = add %at, %fb
    %xp = ptr_add %xb, %to
    %v = load %xp : bf16[16xSIZE]
    %vt = trans %v {order=(1, 0)}
    %next = dot %v, %vt, %acc
    yield %next
  }
  %m = arange {start=0, end=16}
  %mc = expand_dims %m {axis=1}
  %s = const {value=16, type=int32[16x1]}
  %mw = mul %mc, %s
  %mb = broadcast %mw {shape=(16, 16)}
  %mr = expand_dims %m {axis=0}
  %mj = broadcast %mr {shape=(16, 16)}
  %ma = add %mb, %mj
  %zb = splat %z {shape=(16, 16)}
  %zp = ptr_add %zb, %ma
  store %zp, %sum
  return
}
"""


@pytest.mark.parametrize("size, slots", [(128, 3), (1024, 2)])
def test_slots_that_mma_reads_are_filled_again_in_the_same_trip(size, slots):
    """Three iterations are under way, or two in a slot less where a program would take more than its share."""
    text = MMA.replace("SIZE", str(size)).replace("BYTES", str(16 * size)).replace("STAGES", "3")
    made = schedule.run(passes.run(parse_function(text)))
    verify(made)
    report = "\n".join(map(str, made.attrs["report"]))
    assert f"ring v: {slots} slots" in report and "mma.sync reads the slots" in report
    assert counts(made)["async_copy"] == slots + 1


@pytest.mark.parametrize("warps", [1, 2])
def test_a_warp_alone_fills_again_what_it_has_read(warps):
    """Its threads meet before they copy: nobody arrives at a barrier, or waits there, for an empty slot."""
    text = MMA.replace("SIZE", "128").replace("BYTES", "2048").replace("STAGES", "2")
    made = schedule.run(passes.run(parse_function(text.replace("num_warps=1", f"num_warps={warps}"))))
    verify(made)
    names = {op.attrs["name"] for op in walk(made.body) if op.name == "barriers"}
    assert names == {"v.full"} | ({"v.empty"} if warps > 1 else set())
    (loop,) = [op for op in made.body.ops if op.name == "for"]
    order = [op.name for op in loop.regions[0].ops]
    assert (order[order.index("if") - 1] == "role_sync") == (warps == 1)
    assert emit(made)[0].count("bar.sync") == 1         # where barriers have been initialised


def test_slots_that_products_read_are_waited_for_there():
    """What is between the load and the product runs while the slot is filled."""
    text = MMA.replace("SIZE", "16").replace("BYTES", "256").replace("STAGES", "2").replace(
        "%next = dot", "%far32 = ptr_add %zb, %to\n %y = load %far32 : fp32[16x16]\n %e = exp2 %y\n"
        "%more = add %acc, %e\n %next = dot").replace("%vt, %acc", "%vt, %more").replace(
        "%xb = splat", "%zb = splat %y0 {shape=(16, 16)}\n %xb = splat").replace(
        "%zb = splat %z {", "%zs = splat %z {").replace("ptr_add %zb, %ma", "ptr_add %zs, %ma").replace(
        "%n: int32", "%y0: ptr<fp32> {divisible=16}, %n: int32")
    made = schedule.run(passes.run(parse_function(text)))
    verify(made)
    (loop,) = [op for op in made.body.ops if op.name == "for"]
    order = [f"{op.name} {op.operands[0].name}" if op.name == "mbar_wait" else op.name for op in loop.regions[0].ops]
    assert order.index("exp2") < order.index("mbar_wait v_full") < order.index("dot_mma")


def wide(columns, stages=None):
    """acc += x @ y of blocks [64, columns] through pointers."""
    return f"""
kernel @w(%a: ptr<bf16> {{divisible=16}}, %b: ptr<bf16> {{divisible=16}}, %c: ptr<fp32> {{divisible=16}}, %n: int32)
          {{num_warps=4{f", num_stages={stages}" if stages else ""}}} {{
  %zero = const {{value=0}} : int32
  %one = const {{value=1}} : int32
  %i64 = arange {{start=0, end=64}}
  %ik = arange {{start=0, end={columns}}}
  %rows = expand_dims %i64 {{axis=1}}
  %ld = const {{value=4096, type=int32[64x1]}}
  %row = mul %rows, %ld
  %rowb = broadcast %row {{shape=(64, {columns})}}
  %cols = expand_dims %ik {{axis=0}}
  %colb = broadcast %cols {{shape=(64, {columns})}}
  %off = add %rowb, %colb
  %ap = splat %a {{shape=(64, {columns})}}
  %as = ptr_add %ap, %off
  %bp = splat %b {{shape=(64, {columns})}}
  %bs = ptr_add %bp, %off
  %acc0 = const {{value=0.0, type=fp32[64x64]}}
  %r = for %zero, %n, %one, %acc0 {{(%i: int32, %acc: fp32[64x64])
    %x = load %as : bf16[64x{columns}]
    %y = load %bs : bf16[64x{columns}]
    %yt = trans %y {{order=(1, 0)}}
    %part = dot %x, %yt, %acc
    yield %part
  }}
  %row64 = broadcast %rows {{shape=(64, 64)}}
  %cp = splat %c {{shape=(64, 64)}}
  %cs = ptr_add %cp, %row64
  store %cs, %r
  return
}}
"""


def test_copies_that_do_not_fit():
    """Three slots, two, or ordinary loads; of a depth that the author gives, what fits."""
    for columns, said in ((256, "ring x_y: 3 slots"), (384 + 128, "load x at ?: not pipelined, there is no shared memory")):
        report = schedule.run(passes.run(parse_function(wide(columns)))).attrs["report"]
        assert any(line.startswith(said) for line in report)
    assert not any(line.startswith("ring") for line in report)
    for columns, said in ((256, "num_stages=3: more do not fit"), (512, "num_stages=1: more do not fit")):
        report = schedule.run(passes.run(parse_function(wide(columns, 4)))).attrs["report"]
        assert any(line.startswith(said) for line in report)


@tilejit.kernel
def decayed(k, v, g, out, n, B: tl.constexpr):
    """Sums that decay by numbers of their rows, which k's columns are multiplied by."""
    at = tl.arange(0, B)
    total = tl.zeros((B, B), tl.float32)
    for i in range(0, n, B):
        rows = tl.load(g + i + at)
        a = tl.load(k + at[:, None] + (i + at)[None, :] * B)
        total = tl.dot((a * rows[:, None]).to(tl.float16), tl.load(v + (i + at)[:, None] * B + at),
                       total * tl.exp2(rows)[:, None])
    tl.store(out + at[:, None] * B + at, total)


@pytest.mark.parametrize("warps, size", [(1, 32), (4, 64)])
def test_slots_are_read_in_each_layout(warps, size):
    """A conversion of what is in shared memory is a read of its own, without barriers."""
    made = decayed.compile("*fp16:16", "*fp16:16", "*fp32:16", "*fp32:16", "int32:16", B=size, num_warps=warps,
                           pointer_tma=False)
    body = made.scheduled[made.scheduled.index(" = for "):]
    assert body.count("local_load") > 2 and not re.search(rf"convert .*: fp32\[{size},", body)
    n = 3 * size
    k, v = (np.random.default_rng(i).standard_normal((n, size)).astype(np.float16) for i in range(2))
    g, out = -np.random.default_rng(2).random(n, np.float32), np.zeros((size, size), np.float32)
    tilejit.check(decayed, (1,), k, v, g, out, n, B=size, num_warps=warps, pointer_tma=False, seeds=[0]).check()
    want = np.zeros_like(out)
    for i in range(0, n, size):
        much = g[i:i + size, None]
        want = want * np.exp2(much) + (k[i:i + size].T * much).astype(np.float16) @ v[i:i + size].astype(np.float32)
    with tilejit.knobs(target="emulator"):
        decayed[(1,)](k, v, g, out, n, B=size, num_warps=warps, num_stages=2, pointer_tma=False)
    np.testing.assert_allclose(out, want, rtol=1e-2, atol=1e-1)
