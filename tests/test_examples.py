"""The programs of docs/examples run, each to its end: in the emulator where there is no GPU."""
from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "docs" / "examples").glob("*.py"))


def needs(path: Path) -> list[str]:
    """What the program's text says it needs."""
    (line,) = [x for x in path.read_text().splitlines() if x.startswith("Needs: ")]
    return line.removeprefix("Needs: ").split(", ")


def cases():
    for path in EXAMPLES:
        yield pytest.param(path, id=path.stem, marks=[pytest.mark.gpu] if "a GPU" in needs(path) else [])
        if "a GPU" not in needs(path):
            yield pytest.param(path, id=f"{path.stem}-gpu", marks=[pytest.mark.gpu])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.one_schedule
@pytest.mark.parametrize("path", [*cases()])
def test_example(path, request, monkeypatch, capsys):
    for package in needs(path):
        if package != "a GPU":
            pytest.importorskip(package)
    if not request.node.get_closest_marker("gpu"):
        monkeypatch.setenv("TILEJIT_TARGET", "emulator")
    before = set(sys.modules)
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        if "torch" in before:
            sys.modules["torch"]._dynamo.reset()
    assert capsys.readouterr().out.strip(), "it says what it found"


@pytest.mark.one_schedule
@pytest.mark.parametrize("steps", [pytest.param(2, marks=pytest.mark.slow), pytest.param(60, marks=pytest.mark.gpu)])
def test_a_small_gpt_trains_as_with_torch(steps, monkeypatch):
    """Losses of tilejit's kernels are nearer to those of torch's than those of another seed are."""
    torch = pytest.importorskip("torch")
    if steps == 2:
        monkeypatch.setenv("TILEJIT_TARGET", "evaluator")
    elif not torch.cuda.is_available():
        pytest.skip("this torch is built without CUDA")
    train = runpy.run_path(str(EXAMPLES[0].parent / "gpt" / "train.py"))
    curves = train["main"](["--tiny", "--steps", str(steps)])
    near, seeds = (train["distance"](curves["torch"], curves[x]) for x in ("tilejit", "torch, another seed"))
    assert near < 0.1 * seeds and curves["tilejit"][-1] < curves["tilejit"][0]


def test_the_page_names_them():
    page = (EXAMPLES[0].parent / "README.md").read_text()
    assert [p.name for p in EXAMPLES if f"({p.name})" not in page] == []
