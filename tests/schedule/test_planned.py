"""The plan as text: what is decided stands on ops, and each pass behind it carries out what an edited text says."""
import pytest
from test_schedule import names_in, roles_of

from tilejit.ir import walk
from tilejit.ir.text import parse_function
from tilejit.ir.verify import verify
from tilejit.schedule.allocate import allocate
from tilejit.schedule.asyncify import OF_LOADS, asyncify
from tilejit.schedule.decide import decide
from tilejit.schedule.early import issue_early
from tilejit.schedule.fit import PASSES
from tilejit.schedule.split import split
from tilejit.schedule.stores import stage_stores

LAYOUT = "#l = <64x64 register=[[0,1],[8,0],[0,8],[0,16],[0,32]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] " \
    "warp=[[16,0],[32,0]]>\n"
BUFFER = "buffer=buffer<2xbf16[64x64], swizzle=128, order=1x0>"
A = ' {channel="ab", index=0, ' + BUFFER + ', arrivals=1, role="producer"}'
B = ' {channel="ab", index=1, ' + BUFFER + "}"
LOOP, STORE = "", ' {channel="y", role="store"}'
ROLES = ", groups=1, producers=4, registers=(168, 40, 232)"
TEXT = LAYOUT + """
kernel @one(%a: desc<bf16[64x64]>, %b: desc<bf16[64x64]>, %c: desc<bf16[64x64]>, %n: int32) {num_warps=4, report=[]ROLES} {
  %z = const {value=0, type=fp32[64x64]} : fp32[64x64, #l]
  %0 = const {value=0} : int32
  %1 = const {value=1} : int32
  %sum = for %0, %n, %1, %zLOOP : fp32[64x64, #l] {(%k: int32, %acc: fp32[64x64, #l])
    %x = desc_load %a, %0, %kIN_A : bf16[64x64]
    %y = desc_load %b, %0, %kIN_B : bf16[64x64]
    %t = trans %y {order=(1, 0)} : bf16[64x64]
    %s = dot %x, %t, %acc : fp32[64x64, #l]
    yield %s
  }
  %r = cast %sum {dtype=bf16} : bf16[64x64, #l]
  desc_store %c, %r, %0, %0STORE
  return
}
"""


def planned(a=A, b=B, loop=LOOP, store=STORE, roles=ROLES):
    """The text with what is planned of each op, and of the function."""
    text = TEXT.replace("IN_A", a).replace("IN_B", b).replace("LOOP", loop).replace("STORE", store)
    return parse_function(text.replace("ROLES", roles))


def carried_out(fn):
    """What all passes make of it, verified after each."""
    for name, step in PASSES.items():
        fn = step(fn) if name != "planned" else fn
        verify(fn)
    return allocate(fn)


def test_what_is_decided_stands_in_the_text():
    """As `planned` says above, but that the channels have the loads' names and there are two slots."""
    fn = planned(a="", b="", store="", roles="")
    fn.attrs["store_role"] = True
    loads = [op for op in walk(decide(fn).body) if op.name == "desc_load"]
    wanted = [op for op in walk(planned().body) if op.name == "desc_load"]
    wanted[0].attrs["open"] = True
    assert [{**op.attrs, "channel": "ab"} for op in loads] == [op.attrs for op in wanted]
    (store,) = [op for op in walk(fn.body) if op.name == "desc_store"]
    assert store.attrs["role"] == "store" and fn.attrs["groups"] == 1 and len(fn.attrs["registers"]) == 3


def test_asyncify_and_stores_take_the_text_alone():
    fn = asyncify(planned())
    loop = next(op for op in fn.body.ops if op.name == "for")
    assert [op.name for op in loop.regions[0].ops] == ["fill", "await", "pend", "view_trans", "dot_async", "dot_wait", "yield"]
    assert [op.attrs["role"] for op in walk(fn.body) if "role" in op.attrs] == ["producer", "store"]
    assert not any(set(op.attrs) & {*OF_LOADS} for op in walk(fn.body) if op.name == "desc_load")
    assert [op.name for op in stage_stores(fn).body.ops[-3:]] == ["tma_store", "store_wait", "return"]
    made = {op.attrs["name"]: op.result.type for op in fn.body.ops if op.name == "barriers"}
    assert {name: (t.slots, t.count) for name, t in made.items()} == \
        {"ab.full": (2, 1), "ab.empty": (2, 1), "y.full": (1, 4), "y.empty": (1, 1)}


def test_a_round_stays_in_flight():
    fn = asyncify(planned(loop=" {in_flight=true}"))
    loop = next(op for op in fn.body.ops if op.name == "for")
    assert "dot_fence" in names_in(loop.regions[0]) and "dot_wait" not in names_in(loop.regions[0])
    assert fn.body.ops[fn.body.ops.index(loop) + 1].name == "dot_wait"


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_slots_are_what_the_text_says(slots):
    fn = carried_out(planned(A.replace("2x", f"{slots}x"), B.replace("2x", f"{slots}x")))
    assert {op.attrs["slots"] for op in walk(fn.body) if op.name == "ticket_next"} == {slots}


def test_roles_are_what_the_text_says():
    roles = roles_of(carried_out(planned()))
    assert {name: [x for x in names_in(region) if x in ("tma_load", "dot_async", "tma_put", "stage")]
            for name, region in roles.items()} == \
        {"consumer": ["dot_async", "stage"], "producer": ["tma_load", "tma_load"], "store": ["tma_put"]}
    assert set(roles_of(carried_out(planned(store="")))) == {"consumer", "producer"}
    op = next(op for op in split(stage_stores(asyncify(planned()))).body.ops if op.name == "roles")
    assert op.attrs["warps"] == (4, 1, 1) and op.attrs["registers"] == (232, 40, 40)


def test_one_role_fills_ahead():
    fn = carried_out(planned(A.replace('role="producer"', "ahead=1"), B, store="", roles=""))
    assert not roles_of(fn) and names_in(fn.body).count("tma_load") == 4              # before the loop, and in it


def test_two_channels():
    """Loads of one index each have barriers and tickets of their own."""
    fn = carried_out(planned(b=A.replace('"ab"', '"other"')))
    assert {op.attrs["name"] for op in walk(fn.body) if op.name == "barriers"} == \
        {f"{name}.{end}" for name in ("ab", "other", "y") for end in ("full", "empty")}


def test_loads_pass_the_wait_for_products():
    """What does not need the sums; not what does, nor what stands behind an effect."""
    text = LAYOUT + """
kernel @k(%a: ptr<fp32>, %b: ptr<int32>) {num_warps=4, num_threads=128, report=[]} {
  %z = const {value=0, type=fp32[64x64]} : fp32[64x64, #l]
  %p = pend %z : pending<fp32[64x64, #l]>
  %s = dot_wait %p {pending=0} : fp32[64x64, #l]
  %early = load %a : fp32
  %wide = cast %early {dtype=fp64} : fp64
  %u = exp2 %s
  store %a, %early
  %late = load %a : fp32
  return
}
"""
    fn = issue_early(parse_function(text))
    verify(fn)
    assert [op.name for op in fn.body.ops] == ["const", "pend", "load", "cast", "dot_wait", "exp2", "store", "load", "return"]
    assert [x.kind for x in fn.attrs["report"]] == ["early"]


def test_iterations_are_dealt_to_groups():
    """Of a loop over tiles a group does its own iterations, in order behind the group before; others' tickets pass it by.
    The producer does all, and each group has its own store warp, which comes to the group's iterations only."""
    text = str(planned(roles=ROLES.replace("groups=1", "groups=2")))
    head, loop, rest = text.partition("  %sum = for")
    inner, store, end = rest.partition("  return")
    fn = parse_function(head + "  for %0, %n, %1 {dealt=2} {(%tile: int32)\n  " + (loop + inner).replace("\n", "\n  ")
                        + "  yield\n  }\n" + store + end)
    for step in (asyncify, stage_stores, split):
        fn = step(fn)
        verify(fn)
    op = next(op for op in fn.body.ops if op.name == "roles")
    assert (op.attrs["warps"], op.attrs["groups"]) == ((8, 1, 2), (2, 1, 2))
    roles = {name: names_in(region) for name, region in roles_of(fn).items()}
    assert [x for x in roles["consumer"] if x in ("for", "if", "mbar_wait", "mbar_arrive", "dot_async", "stage", "ticket_skip")] == [
        "for", "if", "mbar_wait", "for", "mbar_wait", "dot_async", "mbar_arrive", "stage", "ticket_skip"]
    assert not {"if", "ticket_skip"} & {*roles["producer"], *roles["store"]}
