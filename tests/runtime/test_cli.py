"""`python -m tilejit`: what each subcommand prints."""
import sys

import pytest

import tilejit
import tilejit.language as tl
from tilejit import __main__ as cli


@tilejit.kernel
def fill(out, VALUE: tl.constexpr):
    tl.store(out + tl.arange(0, 32), tl.full((32,), VALUE, tl.float32))


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs a command line in an empty cache; returns (status, output)."""
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path / "cache"))

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["tilejit", *words])
        status = cli.main()
        return status, capsys.readouterr().out

    return call


def test_help_says_what_each_command_does(run, capsys):
    with pytest.raises(SystemExit):
        run("--help")
    text = capsys.readouterr().out
    assert all(" ".join(command.__doc__.split()) in " ".join(text.split())
               for command in (cli.demo, cli.ops, cli.cache, cli.stages, cli.info))


def test_ops(run):
    status, text = run("ops")
    assert status == 0 and {"dot", "desc_load", "reduce"} <= {line.split()[1] for line in text.splitlines()}


def test_info(run):
    status, text = run("info")
    assert status == 0 and tilejit.__version__ in text and "assembler:" in text and "GPU:" in text and "Knobs(" in text


def test_cache(run, monkeypatch):
    assert run("cache", "ls")[1].startswith("0 entries")
    fill.compile("*fp32", 1.5)
    fill.compile("*fp32:4", 1.5)
    status, text = run("cache", "ls")
    assert status == 0 and "fill(out: ptr<fp32>/16, VALUE=1.5) num_warps=4" in text and "2 entries" in text
    assert run("cache", "ls", "other")[1].startswith("0 entries")
    text = run("cache", "why", "fill")[1]
    assert "args.out.divisible: " in text and "VALUE.const" not in text
    assert "2 entries deleted" in run("cache", "clear")[1]
    assert "nothing to compare" in run("cache", "why", "fill")[1]
    monkeypatch.setenv("TILEJIT_CACHE", "0")
    assert run("cache", "ls") == (1, "the cache is off\n")


def test_unknown_subcommand(run):
    with pytest.raises(SystemExit):
        run("compile")


def test_demo_says_what_the_emulator_did(run, monkeypatch):
    monkeypatch.setenv("TILEJIT_TARGET", "emulator")
    monkeypatch.setattr("tilejit.runtime.driver.available", lambda: False)
    status, text = run("demo", "--size", "64")
    assert status == 0 and "64 x 64 x 64 bf16 matmul on the CPU" in text
    assert "emulated: " in text and " barrier waits, 0 findings" in text


@pytest.mark.parametrize("kernel, shown", [("matmul", "dot_fence"), ("attention", "pipelined=true")])
def test_stages(run, kernel, shown):
    status, text = run("stages", kernel)
    names = [line.split("-")[-1].removesuffix(".tile") for line in text.split("\n") if line.startswith("// ---- ")]
    assert status == 0 and shown in text and names[0] == "frontend" and names[-1] == "kernel.ptx"
    assert names[names.index("annotated"):][:3] in (["annotated", "planned", "asyncify"],
                                                     ["annotated", "rotated", "planned"])
    assert run("stages", kernel, "--only", "release")[1].count("// ----") == 1
