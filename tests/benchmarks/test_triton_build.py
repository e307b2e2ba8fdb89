"""Triton's configurations before they are timed: processes side by side, what their ends mean, what is remembered."""
import ast
import importlib
import importlib.util
import json
import sys
import time

import pytest


@pytest.fixture
def building():
    return importlib.import_module("peers_triton_build")


@pytest.fixture
def peer():
    return importlib.import_module("peers_triton")


def python(code):
    return [sys.executable, "-c", code]


def test_processes_run_side_by_side(building):
    """Each waits for the file that the other one writes: one after the other they would not end."""
    ended = building.side_by_side({"a": python("print('one')"), "b": python("raise SystemExit(3)"),
                                   "c": python("print('x', flush=True); import time; time.sleep(60)")}, 2, 3.0)
    assert (ended["a"].status, ended["a"].output) == (0, "one\n")
    assert ended["b"].status == 3
    assert ended["c"].status is None and ended["c"].output == "x\n" and ended["c"].seconds < 10


def test_no_more_processes_at_a_time_than_asked(building, tmp_path):
    code = (f"import os, pathlib, time; p = pathlib.Path({str(tmp_path)!r}); (p / str(os.getpid())).touch(); "
            "time.sleep(0.3); print(len(list(p.iterdir()))); (p / str(os.getpid())).unlink()")
    ended = building.side_by_side({str(i): python(code) for i in range(4)}, 2, 30.0)
    assert max(int(e.output) for e in ended.values()) <= 2 and len(ended) == 4


def test_a_stopped_process_takes_its_children_along(building, tmp_path):
    mark = tmp_path / "mark"
    child = f"import time, pathlib; time.sleep(2.5); pathlib.Path({str(mark)!r}).touch()"
    building.side_by_side({"a": python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])")}, 1, 1.0)
    time.sleep(2.5)
    assert not mark.exists()


@pytest.mark.parametrize("status, lines, wanted", [
    (0, [{"compiled": 1.0}, {"ran": 2.0}], ""),
    (0, [{"compiled": 1.0}], ""),
    (0, [{"failed": "OutOfResources: shared memory"}], "when compiled: OutOfResources: shared memory"),
    (0, [{"compiled": 1.0}, {"failed": "wrong result"}], "when run: wrong result"),
    (-11, [{"compiled": 1.0}], "when run: the process ended with status -11"),
    (-11, [], "when compiled: the process ended with status -11"),
    (-14, [{"compiled": 1.0}, {"launching": True}], "hangs when run (stopped after 40 s)"),
    (None, [{"compiled": 1.0}], "not ready to run after 120 s"),
    (-14, [], "not compiled after 120 s")])
def test_what_the_end_of_a_process_means(building, status, lines, wanted):
    text = "noise\n" + "".join(json.dumps(x) + "\n" for x in lines)
    assert building.verdict(building.Ended(status, text, 1.0)) == wanted


def test_each_configuration_is_compiled_once_for_all_shapes(building, peer):
    cases = importlib.import_module("matmul_cases")
    big = building.recipes([c for n in ("bf16", "fp8", "majors") for c in cases.cases_of(n)])
    assert len(big) == len({r.label for r in big}) == 2 * len(peer.BIG)
    few = building.recipes(cases.cases_of("decode"))
    assert {r.config for r in few} == set(peer.configs(16, 2)) and all(r.few for r in few)


def test_what_was_tried_is_not_tried_again(building, peer, tmp_path, monkeypatch):
    cases = importlib.import_module("matmul_cases")
    started = []

    def stand_in(commands, workers, limit):
        started.extend(commands)
        bad = next(iter(commands))
        return {n: building.Ended(-14 if n == bad else 0, '{"launching": true}', 1.0) for n in commands}

    monkeypatch.setattr(building, "side_by_side", stand_in)
    monkeypatch.setattr(peer, "triton", type("Triton", (), {"__version__": "0"}))
    said = building.ready(cases.cases_of("bf16"), folder=tmp_path)
    assert f"{len(peer.BIG) - 1} of {len(peer.BIG)} configurations " in said
    assert f"triton without {started[0]}: hangs when run" in said
    assert building.ready(cases.cases_of("bf16"), folder=tmp_path) == ""
    assert len(started) == len(peer.BIG)


def test_only_the_best_of_a_first_look_are_timed_again():
    import contender
    assert contender.finalists({"a": 1.0, "b": 1.3, "c": 0.9, "d": 1.01, "e": 0.95}) == ["c", "e", "a"]
    import contender
    assert contender.finalists({"a": 1.0, "b": 2.0}) == ["a"]


def test_notes_are_kept(peer, tmp_path):
    known = peer.notes(tmp_path)
    known.tried["x"] = "hangs"
    known.save()
    assert peer.notes(tmp_path).tried == {"x": "hangs"} and peer.notes(tmp_path).best == {}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_triton_compiles_without_a_gpu(building, peer, dtype):
    config = peer.configs(4096, 1 if dtype == "fp8" else 2)[0]
    made = building.compile_only(building.Recipe(config, dtype, False))
    assert "wgmma" in made.asm["ptx"]


def test_a_twin_has_all_that_its_kernel_calls():
    """Under Triton the source alone would miss its helpers and what those read."""
    peers = importlib.import_module("peers")
    plain = importlib.import_module("tilejit.kernels.product.plain")
    text = peers.twin_source(plain.matmul_kernel, ("M",))
    defined = {n.name for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)}
    assert {"matmul_kernel", "tile_at", "numbers", "activate"} <= defined
    assert text.count("@triton.jit(do_not_specialize=['M'])") == 1 and "TAIL_4 = tl.constexpr((" in text
