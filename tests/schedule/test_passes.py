"""The scheduler's passes one by one: the text of each is given back, and what each leaves where."""
import pytest
from test_schedule import inline_matmul, matmul, names_in, roles_of, scheduled

from tilejit import schedule
from tilejit.ir import walk
from tilejit.ir.text import parse_function
from tilejit.ir.verify import verify
from tilejit.schedule.launch import await_launch
from tilejit.schedule.prefetch import prefetch

CASES = {"specialised": (matmul, {}), "ping-pong": (matmul, {"bm": 64, "warps": 4}), "inline": (inline_matmul, {}),
         "store role": (matmul, {"store_role": True})}


def stages(monkeypatch, kernel, again=False, **options):
    """What each pass made of a kernel, as text; with `again` each goes on with what is parsed from that."""
    seen, run = {}, schedule.run

    def see(name, fn):
        verify(fn)
        seen[name] = str(fn)
        return parse_function(seen[name]) if again else fn

    monkeypatch.setattr(schedule, "run", lambda fn: run(fn, see))
    fn = scheduled(kernel, **options)
    monkeypatch.undo()
    fn.attrs["report"] = []
    return {**seen, "scheduled": str(fn)}


@pytest.mark.parametrize("case", CASES)
def test_the_text_of_every_pass_can_be_given_back(monkeypatch, case):
    kernel, options = CASES[case]
    one, two = (stages(monkeypatch, kernel, again, **options) for again in (False, True))
    assert one["scheduled"] == two["scheduled"] and list(one) == list(two)


def test_what_each_pass_leaves(monkeypatch):
    """Loads become fills and awaits beside them, still in one role; then copies are the producer's, waits the
    consumers'."""
    seen = {name: parse_function(text) for name, text in stages(monkeypatch, matmul).items()}
    assert "desc_store" in names_in(seen["asyncify"].body)
    ops = names_in(seen["stores"].body)
    assert not {"dot", "desc_store", "roles", "mbar_wait", "tma_load"} & set(ops)
    assert [x for x in ops if x in ("fill", "await", "dot_async", "dot_fence", "dot_wait", "tma_store")] == \
        ["fill", "await", "dot_async", "dot_fence", "dot_wait", "tma_store"]
    roles = {name: names_in(region) for name, region in roles_of(seen["split"]).items()}
    assert "tma_load" in roles["producer"] and not {"dot_async", "tma_store"} & set(roles["producer"])
    assert "dot_async" in roles["consumer"] and not {"tma_load", "fill", "await"} & set(roles["consumer"])


TEXT = """
kernel @k(%d: desc<bf16[64x64]>, %n: int32, %out: ptr<fp32>) {num_warps=4} {
  %a = alloc {name="a"} : buffer<3xbf16[64x64], swizzle=128, order=1x0>
  %0 = const {value=0} : int32
  %1 = const {value=1} : int32
  %r = for %0, %n, %1, %0 : int32 {(%i: int32, %at: int32)
    fill %a {ring="a", ahead=AHEAD} {
      %t = desc_load %d, %at, %0 : bf16[64x64]
      yield %t
    }
    %v = await %a {ring="a"} : buffer<view bf16[64x64], swizzle=128, order=1x0>
    %next = add %at, %n
    yield %next
  }
  return
}
"""


@pytest.mark.parametrize("ahead", [1, 2])
def test_fills_move_ahead(ahead):
    """So many before the loop and one at its end, each if there is such an iteration, with addresses of their own."""
    fn = prefetch(parse_function(TEXT.replace("AHEAD", str(ahead))))
    fn.attrs["uncounted"] = True
    verify(fn)
    loop = next(op for op in fn.body.ops if op.name == "for")
    before = fn.body.ops[:fn.body.ops.index(loop)]
    assert [op.name for op in before].count("if") == ahead
    assert [op.name for op in loop.regions[0].ops] == ["await", "add", "const", "mul", "add", "cmp", "if", "add", "yield"]
    assert len(loop.operands) == 3 + 2                       # the address, and the one that runs ahead
    assert not any("ahead" in op.attrs for op in walk(fn.body))


def test_prompt_fills_stand_behind_what_reads_the_slot():
    """The slot of the trip is filled again there, not at the loop's end."""
    text = TEXT.replace("AHEAD", "3, prompt=true").replace("    %next", """    %t = view_trans %v {order=(1, 0)} : buffer<view bf16[64x64], swizzle=128, order=0x1>
    %x = local_load %t : bf16[64x64, #l]
    %next""")
    layout = "#l = <64x64 register=[[0,1],[0,2],[0,4],[16,0],[32,0]] lane=[[0,8],[0,16],[0,32],[1,0],[2,0]] warp=[[4,0],[8,0]]>"
    fn = prefetch(parse_function(layout + text))
    (loop,) = [op for op in fn.body.ops if op.name == "for"]
    assert [op.name for op in loop.regions[0].ops] == [
        "await", "view_trans", "local_load", "const", "mul", "add", "cmp", "if", "add", "add", "yield"]
    assert not any(set(op.attrs) & {"ahead", "prompt"} for op in walk(fn.body))


def test_each_role_waits_for_the_kernel_ahead_before_it_touches_memory():
    roles = roles_of(scheduled(matmul))
    for region in roles.values():
        ops = [op for op in walk(region) if "roles" != op.name]
        at = [op.name for op in ops].index("launch_wait")
        assert not any(op.define.effects & {"read", "write"} for op in ops[:at])


def test_a_kernel_without_products_does_not_begin_early():
    fn = parse_function("kernel @k(%p: ptr<fp32>) {report=[]} {\n  %x = load %p : fp32\n  store %p, %x\n  return\n}\n")
    for asked, waits in ((True, 1), ("auto", 0)):
        fn.attrs["launch_pdl"] = asked
        assert names_in(await_launch(fn).body).count("launch_wait") == waits == int(fn.attrs["dependent_launch"])
        fn.body.ops = [op for op in fn.body.ops if op.name != "launch_wait"]
