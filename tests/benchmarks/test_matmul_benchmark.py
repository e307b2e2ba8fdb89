"""The matmul benchmark's parts that need no GPU: cases, verdicts, tables, the run itself on made-up times."""
import importlib
import json
import os
import shutil
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import tilejit


@pytest.fixture
def cases():
    return importlib.import_module("matmul_cases")


@pytest.fixture
def running():
    return importlib.import_module("matmul_run")


@pytest.fixture
def ours():
    return importlib.import_module("matmul_ours")


@pytest.fixture
def report():
    return importlib.import_module("matmul_report")


@pytest.fixture
def command():
    return importlib.import_module("matmul")


def test_every_set_has_cases_of_its_own(cases):
    for name in cases.SETS:
        found = cases.cases_of(name)
        assert found and all(c.set == name for c in found)
        assert len({c.label for c in found}) == len(found)
    assert len(cases.cases_of("bf16")) == 16 and len(cases.cases_of("decode")) == 24
    with pytest.raises(KeyError, match="no set 'x'"):
        cases.cases_of("x")


def test_odd_sizes_are_odd_and_fp8_sizes_suit_cublaslt(cases):
    for m, n, k in cases.ODD:
        assert any(x % 64 for x in (m, n, k))
    assert all(x % 16 == 0 for shape in cases.ODD_FP8 for x in shape)


@pytest.mark.parametrize("experts, rows", [(8, 8192), (16, 8192), (64, 1024), (3, 7), (2, 1)])
def test_rows_of_experts_are_uneven_and_all_there(cases, experts, rows):
    found = cases.uneven(experts, rows)
    assert len(found) == experts and sum(found) == rows and min(found) == 0
    assert found == cases.uneven(experts, rows)


def test_work_of_a_case(cases):
    case = cases.Case("bf16", 3, 5, 7)
    assert (case.flops, case.bytes) == (210, 2 * (21 + 35 + 15))
    assert cases.Case("batched", 3, 5, 7, batch=2).bytes == 2 * 2 * (21 + 35 + 15)
    assert cases.Case("fused", 4, 8, 2, variant="swiglu").bytes == 2 * (8 + 16 + 16)
    assert cases.Case("grouped", 4, 8, 2, rows=(3, 1)).bytes == 2 * (8 + 2 * 16 + 32)
    assert cases.Case("fp8", 3, 5, 7, dtype="fp8").bytes == 21 + 35 + 2 * 15
    assert cases.Case("few", 3, 6, 8, variant="int4").bytes == 2 * 24 + 48 / 2 + 2 * 18
    assert cases.Case("few", 3, 6, 8, variant="residual").bytes == 2 * (24 + 48) + 2 * 2 * 18


def test_shapes(cases):
    assert cases.parse_shapes("4096x14336x4096, 2048^3") == ((4096, 14336, 4096), (2048, 2048, 2048))
    with pytest.raises(ValueError, match="'12x3' is no shape"):
        cases.parse_shapes("12x3")
    assert [c.label for c in cases.with_shapes("majors", ((8, 16, 32),))] == [f"8x16x32 {o}" for o in cases.ORDERS]
    assert sum(cases.with_shapes("grouped", ((100, 16, 32),))[0].rows) == 100


def test_geomean(cases):
    assert cases.geomean([2.0, 8.0]) == pytest.approx(4.0)
    assert cases.geomean([]) != cases.geomean([])


def made(case, peer, ratio, best=False, **more):
    return {"bench": "matmul_bf16", "case": case, "dtype": "bf16", "ours": 100 * ratio, "peer": peer, "peer_value": 100.0,
            "unit": "TFLOP/s", "ratio": ratio, "spread": [ratio - 0.01, ratio + 0.01], "best": best, "flops": 2e9,
            "bytes": 1e6, "ours_error": 1e-3, **more}


def test_a_goal_looks_at_the_best_peer_of_each_case(report):
    rows = [made("a", "cublas NT", 1.03, True), made("a", "triton", 1.30), made("b", "triton", 1.05, True),
            made("b", "cublas NT", 1.06)]
    assert report.verdicts("bf16", rows)[0].startswith("bf16: reached: geometric mean 1.040 of best over 2 cases")
    rows[2] = made("b", "triton", 0.98, True)
    assert "MISSED" in report.verdicts("bf16", rows)[0] and "under 0.99: b" in report.verdicts("bf16", rows)[0]


def test_a_goal_is_missed_where_ours_is_missing(report):
    rows = [made("a", "cublas NT", 1.05, True), {"case": "b", "peer": "tilejit", "absent": "wrong result"}]
    assert "MISSED" in report.verdicts("bf16", rows)[0] and "no number of ours at b" in report.verdicts("bf16", rows)[0]


def test_goals_of_each_case(report):
    rows = [made("4096 NN", "cublas", 1.2, True), made("4096 TT", "cublas", 0.96, True)]
    assert "MISSED" in report.verdicts("majors", rows)[0] and "under 0.97: 4096 TT" in report.verdicts("majors", rows)[0]


def test_copy_bandwidth_is_asked_of_few_rows_only(report):
    rows = [made("64x8192x8192 NT", "copy", 0.95, unit="GB/s"), made("128x8192x8192 NT", "copy", 0.5, unit="GB/s")]
    assert [r["case"] for r in report.goal_rows(rows, "copy")] == ["64x8192x8192 NT"]


def test_the_table_has_a_line_a_case_and_says_who_is_missing(report):
    rows = [made("a", "cublas NT", 1.03, True, sustained={"ours": 99.0, "peer": 98.0, "ratio": 1.01}),
            {"case": "a", "peer": "pallas", "absent": "no jax"}, {"case": "b", "peer": "pallas", "absent": "no jax"},
            {**made("b", "cublas NT", 1.0, True), "ours": None, "ratio": None, "spread": None}]
    heads, lines = report.table(rows)
    assert [line[0] for line in lines] == ["a", "b"] and {len(x) for x in lines} == {len(heads)}
    assert lines[0][heads.index("burst ratio [quartiles]")] == "1.030 [1.020, 1.040]"
    assert lines[0][heads.index("sustained ratio (ours / theirs)")] == "1.010 (99 / 98)"
    assert lines[1][heads.index("tilejit")] == "-"
    assert [line[heads.index("pallas")] for line in lines] == ["[1]", "[1]"]
    assert report.reasons(rows) == ["[1] pallas: no jax (a, b)"]


def test_reasons_that_differ_in_numbers_are_one(report):
    rows = [{"case": "a", "peer": "pallas", "absent": "m=4100 is odd"}, {"case": "b", "peer": "pallas", "absent": "m=3 is odd"},
            {"case": "c", "peer": "all", "absent": "out of time"}, made("d", "pallas", 1.0, True)]
    heads, lines = report.table(rows)
    assert report.reasons(rows) == ["[1] pallas: m=4100 is odd (a, b)", "[2] all: out of time (c)"]
    assert [line[:3] for line in lines] == [["a", "-", "[1]"], ["b", "-", "[1]"], ["c", "[2]", "[2]"],
                                            ["d", "100", "100 (1.000)"]]


def test_only_the_last_measurement_of_a_case_counts(report):
    old, new = dict(date="1", commit="a"), dict(date="1", commit="b")
    rows = [made("a", "x", 1.0, **old), made("a", "y", 1.1, **old), made("b", "x", 1.2, **old), made("a", "x", 1.3, **new),
            made("a", "x", 1.4, **new), made("a", "z", 1.5, **new), {"case": "c", "peer": "all", "absent": "late", **new},
            made("c", "x", 1.6, **new)]
    assert [(r["case"], r["peer"], r["ratio"]) for r in report.latest(rows)] == [
        ("a", "x", 1.4), ("a", "z", 1.5), ("b", "x", 1.2), ("c", "x", 1.6)]


def test_a_wrong_result_is_not_measured(running, cases):
    from contender import Contender, Work

    case = cases.Case("bf16", 64, 64, 64)
    work = Work(lambda: Contender(lambda: "ours", burst=lambda n: 1.0),
                {"peer": lambda: Contender(lambda: "theirs", burst=lambda n: 2.0)},
                lambda result: 0.5 if result == "ours" else 1e-3, 1e-2)
    device = running.Device(lambda c: work, lambda x: None, lambda: None, lambda fn: (lambda n: 1.0), lambda: None)
    rows = running.run_case(case, device, running.Options(rest=0), 0, lambda e: None)
    assert rows[0]["peer"] == "tilejit" and "wrong result: error 5.00e-01" in rows[0]["absent"]
    assert rows[1]["ratio"] is None and rows[1]["peer_value"] == pytest.approx(case.flops / 2.0 / 1e9, abs=1e-4)


def test_a_result_that_goes_wrong_under_load_is_found(running, cases):
    from contender import Contender, Work

    seen = []
    work = Work(lambda: Contender(lambda: "first", out="kept", burst=lambda n: 1.0),
                {"peer": lambda: Contender(lambda: "first", burst=lambda n: 2.0)},
                lambda result: seen.append(result) or (1e-3 if result == "first" else 0.7), 1e-2)
    device = running.Device(lambda c: work, lambda x: None, lambda: None, lambda fn: (lambda n: 1.0), lambda: None)
    rows = running.run_case(cases.Case("bf16", 64, 64, 64), device, running.Options(rest=0), 0, lambda e: None)
    assert rows[0]["absent"] == "wrong result after the bursts: error 7.00e-01" and seen[-1] == "kept"
    assert rows[1]["ratio"] is None


def test_gains_of_an_ablation(report):
    rows = [{**made("a", f"tilejit {n}", 1.0), "peer_value": v, "ours": 121.0}
            for n, v in (("8x8 inline", 50.0), ("8x8 + ping-pong", 100.0), ("8x9 inline", 80.0), ("8x9 - role", 60.0))]
    assert report.gains([*rows, made("a", "cublas", 1.0)]) == [
        "a, 8x8: inline 50, + ping-pong 100 (+100.0%)", "a, 8x9: inline 80, - role 60 (-25.0%)",
        "a, the library's choice: 121"]


def test_every_line_of_the_ablation_computes_the_product(ours):
    """Each says something else to the compiler, and each is right in the emulator."""
    rng, (m, n, k) = np.random.default_rng(), (520, 264, 136)
    a, b = (rng.integers(-3, 4, s).astype(ml_dtypes.bfloat16) for s in ((m, k), (n, k)))
    exact = (a.astype(np.float32) @ b.astype(np.float32).T).astype(ml_dtypes.bfloat16)
    ways = [(v.options, v.constants) for v in ours.ABLATION]
    assert all(ways.count(w) == 1 for w in ways)
    for variant in ours.ABLATION:
        out = np.full((m, n), np.nan, ml_dtypes.bfloat16)
        with tilejit.knobs(target="emulator"):
            ours.launched(a, b.T, variant, out)()
        assert np.array_equal(out, exact), variant.name


@pytest.mark.parametrize("graphs", [True, False])
def test_load_comes_from_graphs_where_both_can_be_captured(running, cases, report, graphs):
    from contender import Contender, Work

    work = Work(lambda: Contender(lambda: "x"), {"cublas": lambda: Contender(lambda: "y")}, lambda result: 1e-3, 1e-2)
    steady = {"tilejit": lambda n: 1.0, "cublas": lambda n: 3.0}
    device = running.Device(lambda c: work, lambda x: None, lambda: None, lambda call: (lambda n: 2.0), lambda: None,
                            steady=lambda calls: {n: steady[n] for n in calls} if graphs else None)
    (found,) = running.run_case(cases.Case("bf16", 64, 64, 64), device, running.Options(rest=0), float("inf"), lambda e: None)
    assert found["ratio"] == pytest.approx(1.0)
    assert found["sustained"]["ratio"] == pytest.approx(3.0 if graphs else 1.0)
    heads, (line,) = report.table([found])
    assert line[heads.index("sustained ratio (ours / theirs)")].endswith(" by host") != graphs


def test_ratios_scale_with_the_work(running, cases):
    """A copy of twice the bytes in twice the time is the same bandwidth."""
    from contender import Contender, Work

    case = cases.Case("decode", 1, 64, 64)
    work = Work(lambda: Contender(lambda: 0, burst=lambda n: 1.0),
                {"copy": lambda: Contender(lambda: 0, burst=lambda n: 2.0, judged=False, unit="GB/s",
                                           amount=2 * case.bytes)}, lambda result: 0.0, 1e-2)
    device = running.Device(lambda c: work, lambda x: None, lambda: None, lambda fn: (lambda n: 1.0), lambda: None)
    (found,) = running.run_case(case, device, running.Options(rest=0), 0, lambda e: None)
    assert found["ratio"] == pytest.approx(1.0) and not found["best"]


def test_a_peer_that_ends_the_process_is_left_out_afterwards(command, cases, tmp_path, capsys):
    plan = {"splitk": cases.cases_of("splitk")}
    board = command.Board(plan, tmp_path, {})
    board({"start": "x"})
    board({"building": "pallas"})
    assert board.failed("it crashed") == {"pallas": "it crashed at 512x512x65536 NT"}
    assert len(board.left) == 3 and not board.rows["splitk"]
    board({"building": "tilejit"})
    assert board.failed(command.ending(-14)) == {} and len(board.left) == 2
    assert board.rows["splitk"][0]["absent"] == "the time limit ended the process here"
    assert board.failed(command.ending(-9)) == {} and len(board.left) == 1
    assert board.rows["splitk"][1]["absent"] == "the process ended with status -9 while measuring"


STAND_IN = """
import os, signal, sys, types

def device():
    import dataclasses
    from matmul_run import dry_device
    dry = dry_device()
    def prepare(case):
        work = dry.prepare(case)
        if case.m == 256 and not os.path.exists({mark!r}):
            def crash():
                open({mark!r}, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            work.peers["triton"] = crash
        return work
    return dataclasses.replace(dry, prepare=prepare)

sys.modules["matmul_work"] = types.ModuleType("matmul_work")
sys.modules["matmul_work"].device = device
"""


def test_a_crash_costs_one_peer(tmp_path, folder):
    """The whole command with its worker processes, on made-up times; a peer ends the worker in the second case."""
    pytest.importorskip("matplotlib")
    (tmp_path / "sitecustomize.py").write_text(STAND_IN.format(mark=str(tmp_path / "mark")))
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{folder.parent}"}
    done = subprocess.run([sys.executable, str(folder / "matmul.py"), "--set", "splitk,batched", "--quick", "--out",
                           str(tmp_path)], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "matmul_splitk.json").read_text())
    told = {(r["case"].split("x")[0], r["peer"]): r.get("absent") for r in rows}
    assert told["256", "triton"] == told["1024", "triton"] == "the process ended with status -9 at 256x256x131072 NT"
    assert told["256", "cublas NT"] is told["512", "triton"] is told["1024", "cublas NT"] is None
    assert all("date" in r for r in rows)
    assert "] triton: the process ended with status -9" in done.stdout and (tmp_path / "matmul_batched.json").exists()


@pytest.mark.parametrize("name", ["decode", "ablation"])
def test_a_dry_run_makes_table_records_and_plots(command, cases, tmp_path, capsys, name):
    pytest.importorskip("matplotlib")
    assert command.main(["--dry", "--quick", "--set", name, "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "DRY RUN" in text and f"{name}: TFLOP/s" in text and "pallas: this is a dry run" in text
    rows = json.loads((tmp_path / f"matmul_{name}.json").read_text())
    wanted = {c.label for c in cases.quick(cases.cases_of(name))}
    assert {r["case"] for r in rows} == wanted and all(r["dry"] for r in rows)
    assert (tmp_path / f"matmul_{name}.png").stat().st_size > 0 and (tmp_path / "matmul_roofline.png").exists()


def test_a_run_without_a_peer_says_so(command, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert command.main(["--dry", "--set", "splitk", "--without", "triton", "--out", str(tmp_path)]) == 0
    assert "triton: left out (--without) (512x512x65536 NT, " in capsys.readouterr().out
    assert command.main(["--dry", "--set", "splitk", "--peers", "cublas", "--out", str(tmp_path)]) == 0
    assert "triton: not asked for (--peers)" in capsys.readouterr().out


def test_a_run_is_resumed_where_it_stopped(command, cases, tmp_path, capsys, monkeypatch):
    """Cases with numbers of this day and commit are not measured again, but are in the table."""
    pytest.importorskip("matplotlib")
    assert command.main(["--dry", "--set", "splitk", "--shapes", "512x512x65536", "--out", str(tmp_path)]) == 0
    path = tmp_path / "matmul_splitk.json"
    mine = {"date": command.datetime.date.today().isoformat(), "commit": command.commit()}
    path.write_text(json.dumps([{**r, **mine} for r in json.loads(path.read_text())]))
    before = len(json.loads(path.read_text()))
    capsys.readouterr()
    assert command.main(["--dry", "--resume", "--set", "splitk", "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "  splitk 512x512x65536 NT: " not in text and "  splitk 256x256x131072 NT: " in text
    assert "over 3 cases" in text
    rows = json.loads(path.read_text())
    assert len([r for r in rows if r["case"] == "512x512x65536 NT"]) == before < len(rows)
    path.write_text(json.dumps([{**r, **mine} for r in rows]))
    assert command.main(["--dry", "--resume", "--set", "splitk", "--out", str(tmp_path)]) == 0
    assert "over 3 cases" in capsys.readouterr().out
    monkeypatch.setattr(command, "commit", lambda: "another")
    assert command.main(["--dry", "--resume", "--set", "splitk", "--out", str(tmp_path)]) == 0
    assert "  splitk 512x512x65536 NT: " in capsys.readouterr().out


def test_records_are_kept_case_by_case(command, cases, tmp_path):
    board = command.Board({"splitk": cases.cases_of("splitk")}, tmp_path, {})
    board({"rows": [made("512x512x65536 NT", "triton", 1.0, True)]})
    assert len(json.loads((tmp_path / "matmul_splitk.json").read_text())) == 1


def test_records_are_drawn_without_measuring(command, tmp_path, capsys, folder):
    """The records in the repository, and whatever else lies there."""
    pytest.importorskip("matplotlib")
    for name in ("bf16", "decode"):
        shutil.copy(folder / "results" / f"matmul_{name}.json", tmp_path)
    assert command.main(["--draw", "--set", "bf16,decode,majors", "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "bf16: TFLOP/s" in text and "8192x8192x8192 NT" in text and "majors" not in text
    assert {p.name for p in tmp_path.glob("*.png")} == {"matmul_bf16.png", "matmul_decode.png", "matmul_roofline.png"}
    assert command.main(["--draw", "--set", "majors", "--out", str(tmp_path)]) == 1


def test_seconds_of_sets(command, cases):
    plan = {n: cases.cases_of(n) for n in cases.SETS}
    assert all(s <= 60 for s in command.allowed(plan, None, 1.0, False).values())
    big = {n: plan[n] for n in ("bf16", "fp8")}
    assert sum(command.allowed(big, None, 1.0, True).values()) <= 150
    assert sum(command.allowed(plan, 100.0, 1.0, True).values()) == pytest.approx(100.0)


def test_an_unknown_set_is_refused(command, capsys):
    with pytest.raises(SystemExit):
        command.main(["--set", "bf17", "--dry"])
    assert "no set 'bf17'" in capsys.readouterr().err


def test_triton_configurations_fit_shared_memory():
    peers = importlib.import_module("peers_triton")
    for element in (1, 2):
        for m in (64, 4096):
            found = peers.configs(m, element)
            assert len(found) >= 6 and len({c.label for c in found}) == len(found)
            assert all(c.shared(element) <= peers.SHARED_LIMIT and not c.bn & (c.bn - 1) for c in found)


def test_contenders_take_turns():
    from contender import rotate

    seen = []
    call = rotate([lambda: seen.append(0), lambda: seen.append(1)])
    for _ in range(4):
        call()
    assert seen == [0, 1, 0, 1]


def test_pictures_of_four_forms(tmp_path, capsys, monkeypatch):
    """One after the other keeps the tensor cores busier."""
    monkeypatch.setenv("TILEJIT_TARGET", "emulator")
    forms = [*importlib.import_module("pipelines").FORMS]
    assert importlib.import_module("pipelines").main(["--out", str(tmp_path), *forms]) == 0
    busy = {line.split(":")[0]: int(line.split()[-1].rstrip("%")) for line in capsys.readouterr().out.splitlines()}
    assert busy["inline"] < busy["specialised"] <= busy["storerole"] < busy["pingpong"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"pipeline-{n}.png" for n in sorted(busy)]
