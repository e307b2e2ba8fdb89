"""Loops in two stages: what is expanded, what is refused, when it is chosen, and that it computes the same."""
import random
import re

import numpy as np
import pytest
from attention_form import arguments, attend, attend_one, one_arguments, one_reference, reference

import tilejit
from tilejit.errors import VerificationError
from tilejit.ir import walk
from tilejit.ir.evaluate import evaluate
from tilejit.ir.text import parse_function
from tilejit.ir.verify import verify
from tilejit.runtime.compile import tile_ir
from tilejit.schedule.rotate import copy_function, rotate
from tilejit.schedule.stages import is_staged
from tilejit.testing import rel_error

LOOP = """
kernel @k(%n: int32, %out: ptr<int32>) {num_warps=4} {
  %0 = const {value=0} : int32
  %1 = const {value=1} : int32
  %r, %t = for %0, %n, %1, %1, %0 : int32, int32 {(%i: int32, %c: int32, %s: int32)
    BODY
    yield YIELD
  }
  %o = ptr_add %out, %0
  store %o, %r
  %p = ptr_add %out, %1
  store %p, %t
  return
}
"""


def numbers(fn, n: int) -> list[int]:
    out = np.zeros(2, np.int32)
    evaluate(fn, 1, {"n": n, "out": out})
    return out.tolist()


def test_prologue_steady_state_epilogue():
    text = LOOP.replace("BODY", "%a = add %i, %c {stage=0, cycle=0}\n    %b = mul %a, %s {stage=1, cycle=1}\n"
                        "    %d = add %b, %a {stage=1, cycle=1}").replace("YIELD", "%a, %d")
    fn = parse_function(text)
    want = [numbers(fn, n) for n in range(5)]
    verify(rotate(fn))
    assert [numbers(fn, n) for n in range(5)] == want
    ops = [op.name for op in walk(fn.body) if op.name in ("add", "mul", "for", "if", "cmp")]
    #       guard, prologue, second, steady, (stage 0, stage 1), epilogue
    assert ops == ["cmp", "if", "add", "add", "for", "add", "mul", "add", "mul", "add"]
    assert not any(key in op.attrs for op in walk(fn.body) for key in ("stage", "cycle"))


@pytest.mark.parametrize("stages, message", [
    ((1, 0, 0), "mul has stage 0 and cycle 1: too early for what add gives it"),
    ((0, 0, 2), "stage 2: loops have stages 0 and 1")])
def test_what_no_order_allows_is_refused(stages, message):
    body = ["%a = add %i, %c {{stage={}, cycle=0}}", "%b = mul %a, %s {{stage={}, cycle=1}}",
            "%d = add %b, %a {{stage={}, cycle=1}}"]
    text = LOOP.replace("BODY", "\n".join(x.format(s) for x, s in zip(body, stages))).replace("YIELD", "%a, %d")
    with pytest.raises(VerificationError, match=message):
        rotate(parse_function(text))


def test_random_loops_compute_the_same():
    """Any stages and cycles that pass the check: the same numbers for every number of iterations."""
    rng, rotated = random.Random(3), 0
    for _ in range(400):
        names, body = ["i", "c", "s"], []
        for x in range(rng.randint(2, 7)):
            a, b = rng.choice(names), rng.choice(names)
            body.append(f"%v{x} = {rng.choice(['add', 'sub', 'mul', 'xor'])} %{a}, %{b} "
                        f"{{stage={rng.randint(0, 1)}, cycle={rng.randint(0, 3)}}}")
            names.append(f"v{x}")
        ends = [rng.choice(names[3:]) for _ in range(2)]
        text = LOOP.replace("BODY", "\n".join(body)).replace("YIELD", ", ".join(f"%{e}" for e in ends))
        fn = parse_function(text)
        want = [numbers(fn, n) for n in range(5)]
        try:
            rotate(fn)
        except VerificationError:
            continue
        verify(fn)
        rotated += 1
        assert [numbers(fn, n) for n in range(5)] == want, text
    assert rotated > 40


def two_loops(first: list[str], second: list[str], ends: list[str]) -> str:
    """A loop over 0 .. n and one behind it over n .. m, which goes on with what the first one gives."""
    lines = ["kernel @k(%n: int32, %m: int32, %out: ptr<int32>) {num_warps=4} {", "%0 = const {value=0} : int32",
             "%1 = const {value=1} : int32"]
    for name, lo, hi, inits, body in (("r", "%0", "%n", "%1, %0", first), ("q", "%n", "%m", "%r0, %r1", second)):
        lines += [f"%{name}0, %{name}1 = for {lo}, {hi}, %1, {inits} {{joined=true}} : int32, int32 {{(%i{name}: int32, %c{name}: int32, "
                  f"%s{name}: int32)", *(re.sub(r"%(\w+)", lambda m: f"%{m[1]}{name}", x) for x in body),
                  "yield " + ", ".join(f"%{e}{name}" for e in ends), "}"]
    return "\n".join([*lines, "%o = ptr_add %out, %0", "store %o, %q0", "%p = ptr_add %out, %1", "store %p, %q1", "return", "}"])


def test_loops_one_after_another_are_one_pipeline():
    """The same at stage 1, anything at stage 0: one prologue, one epilogue, the same numbers however often each runs."""
    rng, joined = random.Random(5), 0
    for _ in range(300):
        early = [[(f"v{x}", rng.choice(["add", "sub", "mul", "xor"]), rng.choice("iccccs"), rng.choice("iccc")) for x in range(2)]
                 for _ in range(2)]
        names = ["i", "c", "s", "v0", "v1"]
        late = []
        for x in range(2, 4):
            late.append((f"v{x}", rng.choice(["add", "sub", "mul"]), rng.choice(names), rng.choice(names)))
            names.append(f"v{x}")
        ends = [rng.choice(names[3:]), "v3"]
        bodies = [[f"%{r} = {op} %{a}, %{b} {{stage={stage}, cycle={2 * stage + (k > 1)}}}" for stage, ops in ((0, e), (1, late))
                   for k, (r, op, a, b) in enumerate(ops)] for e in early]
        cases = [(n, m) for n in range(3) for m in range(n, n + 3)]

        def results(fn):
            out = []
            for n, m in cases:
                memory = np.zeros(2, np.int32)
                evaluate(fn, 1, {"n": n, "m": m, "out": memory})
                out.append(memory.tolist())
            return out

        fn = parse_function(two_loops(*bodies, ends))
        want = results(fn)
        try:
            rotate(fn)
        except VerificationError:
            continue
        verify(fn)
        assert results(fn) == want, two_loops(*bodies, ends)
        joined += any("goes on with" in line for line in fn.attrs.get("report", []))
    assert joined > 20


def test_a_loop_that_does_something_else_at_stage_1_has_a_prologue_of_its_own():
    body = ["%a = add %i, %c {stage=0, cycle=0}", "%b = mul %a, %s {stage=1, cycle=1}"]
    other = [body[0], body[1].replace("mul", "sub")]
    for second, joined in ((body, True), (other, False)):
        fn = rotate(parse_function(two_loops(body, second, ["a", "b"])))
        verify(fn)
        assert ("report" in fn.attrs) == joined


def test_three_warpgroups_drain_one_after_another():
    """Their loops are not joined: the others' products run meanwhile."""
    for bm, warps in ((128, 8), (192, 12)):
        _, args, constants = arguments(768, bm=bm, bn=64, num_warps=warps, causal=True)
        assert ("goes on with" in attend.compile(*args, **constants).report()) == (warps == 8)


def compiled(length=128, **options):
    """The attention kernel and its stages of tile IR by name."""
    grid, args, constants = arguments(length, **options)
    k = attend.compile(*args, **constants)
    seen = {}

    def note(name, fn):
        seen[name] = copy_function(fn)
        return fn

    plain = tile_ir(k.kernel, k.args, k.options)
    from tilejit import schedule as room

    seen["layouts"] = copy_function(plain)
    seen["scheduled"] = room.run(plain, note)
    return k, seen, grid, args, constants


def test_attention_is_rotated_from_the_form_that_users_write():
    """The product of the next block in front of the softmax, the second one behind it; the waits count groups."""
    k, seen, *_ = compiled(length=512, d=128, bm=128, bn=128, num_warps=8)
    assert "scores of the next iteration is in flight with acc of this one (2 stages" in k.report()
    assert any(is_staged(op) for op in walk(seen["annotated"].body)) and "pipelined=true" in str(seen["rotated"])
    (loop,) = [op for op in walk(seen["scheduled"].body) if op.name == "for" and any(
        x.name == "dot_async" for x in op.regions[0].ops)]
    shape = [op.name + str(op.attrs.get("pending", "")) for op in loop.regions[0].ops if op.name in (
        "dot_async", "dot_wait", "mbar_arrive", "reduce", "exp2", "cast", "mbar_wait")]
    assert shape == ["mbar_wait", "dot_async", "mbar_wait", "dot_async", "dot_wait1", "mbar_arrive", "reduce", "exp2", "exp2",
                     "reduce", "reduce", "dot_wait0", "mbar_arrive", "cast"]         # the sum of weights, within a thread
    if k.resources is not None:
        assert k.resources.registers == 168 and k.resources.clean


CASES = {
    "full": {"length": 192, "bn": 64}, "one block": {"length": 64}, "causal": {"length": 192, "causal": True, "heads": 2},
    "fp16": {"length": 128, "dtype": np.float16}, "128 wide": {"length": 256, "d": 128, "bm": 128, "bn": 128, "num_warps": 8},
    "causal, two blocks on the diagonal": {"length": 256, "bm": 128, "bn": 64, "causal": True, "num_warps": 8},
    "one warpgroup": {"length": 128, "bn": 32, "num_warps": 4},
    "four warpgroups": {"length": 256, "bm": 256, "bn": 64, "num_warps": 16, "products_ahead": True}}


@pytest.mark.parametrize("case", CASES)
def test_every_stage_computes_the_same_bits(case):
    options = {"num_warps": 4, **CASES[case]}
    _, seen, grid, args, _ = compiled(**options)
    names = ("q_desc", "k_desc", "v_desc", "o_desc", "length", "scale")
    found = {}
    for stage, fn in seen.items():
        verify(fn)
        if stage in ("split", "sink_waits", "ping_pong", "early", "strips"):       # no slot comes back yet; alike
            continue
        args[3].base[...] = np.nan
        evaluate(fn, grid, dict(zip(names, args)))
        found[stage] = args[3].base.copy()
    assert set(found) == {"layouts", "annotated", "rotated", "planned", "asyncify", "stores", "cluster", "prefetch", "release",
                          "scheduled"}
    assert ("goes on with" in str(seen["scheduled"].attrs["report"])) == bool(options.get("causal"))
    for stage, out in found.items():
        assert np.array_equal(out.view(np.uint16), found["layouts"].view(np.uint16)), stage
    want = reference(args, options.get("heads", 1), options.get("causal", False))
    assert rel_error(found["scheduled"].astype(np.float64), want) < 4e-3


@pytest.mark.parametrize("case", CASES)
def test_in_the_emulator(case):
    options = {"num_warps": 4, **CASES[case]}
    grid, args, constants = arguments(**options)
    with tilejit.knobs(target="emulator"):
        found = tilejit.check(attend, grid, *args, **constants)
    assert len(found.check().runs) == 11
    want = reference(args, options.get("heads", 1), options.get("causal", False))
    assert rel_error(args[3].base.astype(np.float64), want) < 4e-3


@pytest.mark.parametrize("options", [{"length": 192, "num_warps": 4}, {"length": 256, "bm": 128, "num_warps": 8}])
def test_a_slot_that_both_stages_read(options):
    """The load stands at stage 1 again; one ring, one load, and the same numbers from every pass and in the emulator."""
    heads, stages = 1, {}

    def note(name, fn):
        stages[name] = copy_function(fn)
        return fn

    from tilejit import schedule as room

    grid, args, constants = one_arguments(**options)
    k = attend_one.compile(*args, **constants)
    assert "is in flight with acc" in k.report() and re.findall(r"ring (\S+): ", k.report()) == ["q", "k"]
    stages["scheduled"] = room.run(tile_ir(k.kernel, k.args, k.options), note)
    assert str(stages["annotated"]).count("again=") == 1
    want = one_reference(args, heads)

    def agree():
        for found, wanted in zip(args[2:4], want):
            assert rel_error(found.base.astype(np.float64), wanted) < 4e-3
        args[3].base[...] = 0

    for stage in ("annotated", "rotated", "release", "scheduled"):
        verify(stages[stage])
        evaluate(stages[stage], grid, dict(zip(("q_desc", "k_desc", "o_desc", "sum_desc", "length", "scale"), args)))
        agree()
    with tilejit.knobs(target="emulator"):
        attend_one[grid](*args, **constants)
        agree()
        if options["num_warps"] == 4:
            tilejit.check(attend_one, grid, *args, **constants).check()


def test_stores_to_the_same_memory_stay_in_order():
    _, args, constants = one_arguments(192, num_warps=4)
    assert "is in flight with acc" in attend_one.compile(*args, **constants).report()
    k = attend_one.compile(*args, **constants, TWICE=True)
    assert "do not overlap: desc_atomic (attention_form.py:" in k.report()


def test_no_trip_at_all():
    """Rows whose loop has no iteration: sums of nothing, divided."""
    grid, args, constants = arguments(64, num_warps=4)
    with tilejit.knobs(target="emulator"):
        attend[grid](*args[:4], 0, args[5], **constants)
    assert np.isnan(args[3].base.astype(np.float32)).all()


@pytest.mark.parametrize("options, reason", [
    ({"bm": 128, "bn": 256, "num_warps": 8}, r"do not overlap: \d+ registers a thread for tiles at once"),
    ({"maxnreg": 112}, "88 registers a thread for tiles at once, 84 of 112 are there for them"),
    ({"products_ahead": False}, None), ({"warp_specialize": False}, "do not overlap: no role of its own loads")])
def test_when_it_is_not_chosen(options, reason):
    _, args, constants = arguments(512, **{"num_warps": 4, **options})
    k = attend.compile(*args, **constants)
    assert "pipelined" not in k.scheduled and "of the next iteration is in flight" not in k.report()
    assert reason is None or len([line for line in k.report().split("\n") if re.search(reason, line)]) == 1


def test_an_author_can_give_other_stages(tmp_path):
    """The annotated loop, edited and given back: what is possible is done, what is not is refused at the author's line."""
    _, args, constants = arguments(512, num_warps=4)
    with tilejit.knobs(dump=str(tmp_path / "dump")):
        first = attend.compile(*args, **constants)
    (path,) = (tmp_path / "dump" / "attend").glob("*-annotated.tile")
    text = path.read_text()
    assert "stage=1, cycle=1" in text and 'ring="k"' in text
    over = tmp_path / "over" / "attend" / "annotated.tile"
    over.parent.mkdir(parents=True)

    def given(edited):
        assert edited != text
        over.write_text(edited)
        with tilejit.knobs(override=str(tmp_path / "over")):
            return attend.compile(*args, **constants)

    drained = given(re.sub(r"stage=1, cycle=1", "stage=0, cycle=6", text))
    assert drained.ptx != first.ptx and "wgmma.wait_group.sync.aligned 1" not in drained.ptx
    assert "wgmma.wait_group.sync.aligned 1" in first.ptx
    dot = next(line for line in text.split("\n") if " = dot " in line and "stage=1" in line)
    with pytest.raises(VerificationError, match="dot has stage 0 and cycle 1: too early for what") as e:
        given(text.replace(dot, dot.replace("stage=1", "stage=0")))
    assert e.value.loc.short().startswith("attention_form.py:")


def code(k):
    """The PTX without source lines, of which texts of tile IR know files by their names only."""
    return [line for line in k.ptx.split("\n") if not line.strip().startswith((".loc", ".file"))]


def test_a_schedule_is_printed_and_given_back(tmp_path):
    """`kernel.schedule` is the annotated loop; a file of it is a launch option, and part of the cache key."""
    _, args, constants = arguments(512, num_warps=4)
    text, path = attend.schedule(*args, **constants), tmp_path / "loop.tile"
    assert "stage=1, cycle=1" in text
    path.write_text(text)
    plain, same = (attend.compile(*args, **constants, **more) for more in ({}, {"schedule": str(path)}))
    assert code(same) == code(plain) and same.ptx.count(".file") == plain.ptx.count(".file") and "schedule: as loop.tile says" in same.report()
    path.write_text(re.sub(r"stage=1, cycle=1", "stage=0, cycle=6", text))
    assert attend.compile(*args, **constants, schedule=str(path)).ptx != plain.ptx
    path.write_text(text.replace("@attend", "@other"))
    with pytest.raises(tilejit.CompilationError, match=r"expected attend\(.*, found other\("):
        attend.compile(*args, **constants, schedule=str(path))
    with pytest.raises(tilejit.LaunchError, match="expected a file with what kernel.schedule"):
        attend.compile(*args, **constants, schedule=str(tmp_path / "none"))
    path.write_text(text)
    with pytest.raises(tilejit.CompilationError, match="the stages that were given cannot be: no role of its own loads"):
        attend.compile(*args, **{**constants, "warp_specialize": False}, schedule=str(path))


def test_every_pass_can_be_replaced_by_what_it_printed(tmp_path):
    _, args, constants = arguments(512, num_warps=8, bm=128, ping_pong=True)
    with tilejit.knobs(dump=str(tmp_path / "dump")):
        first = attend.compile(*args, **constants)
    names = ["annotated", "rotated", "split", "release", "sink_waits", "ping_pong", "early", "strips", "scheduled"]
    found = [p for name in names for p in (tmp_path / "dump" / "attend").glob(f"*-{name}.tile")]
    assert [p.name.partition("-")[2] for p in sorted(found)] == [f"{n}.tile" for n in names]
    for path in found[2:]:
        over = tmp_path / path.stem / "attend" / path.name
        over.parent.mkdir(parents=True)
        over.write_text(path.read_text())
        with tilejit.knobs(override=str(tmp_path / path.stem)):
            assert code(attend.compile(*args, **constants)) == code(first), path.name
