"""What README shows under its examples is what they print (without a GPU)."""
from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tilejit.runtime import driver

README = (Path(__file__).parents[1] / "README.md").read_text()
SHOWN = {line.strip() for line in README.splitlines() if line.startswith("    ")}
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)

pytestmark = pytest.mark.skipif(driver.available(), reason="README shows what there is without a GPU")


def run(folder: Path, *code: str) -> list[str]:
    """The lines that a program of these parts prints."""
    program = folder / "first.py"
    program.write_text("\n".join(code))
    done = subprocess.run([sys.executable, program], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def block(words: str) -> str:
    (found,) = [text for text in BLOCKS if words in text]
    return found


def test_the_demo():
    done = subprocess.run([sys.executable, "-m", "tilejit", "demo"], capture_output=True, text=True, timeout=300)
    first, *lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    assert done.returncode == 0 and first.split(":")[0] in README and first.split(", ")[1] in README
    assert len(lines) > 10 and set(lines) <= SHOWN


def test_the_first_kernel_and_its_stages(tmp_path):
    lines = run(tmp_path, block("def add(x, y, out, n"), block("add.compile("),
                "print(k.resources, [x for x in k.ir.splitlines() if '%offs =' in x][0].strip(), sep='\\n')")
    assert {lines[0], *lines[-2:]} <= SHOWN


def test_numbers_of_stages(tmp_path):
    run(tmp_path, "import os", f"os.environ['TILEJIT_DUMP'] = {str(tmp_path)!r}", block("def add(x, y, out, n"))
    made = {p.name for p in (tmp_path / "add").iterdir()}
    assert made >= set(re.findall(r"dir/add/(\S+)", README))


def test_a_search(tmp_path):
    lines = run(tmp_path, block("def add(x, y, out, n"), block("def scale("))
    assert len([line for line in lines if line in SHOWN]) >= 4


def test_a_check(tmp_path):
    lines = run(tmp_path, "import numpy as np, tilejit", "np.random.seed(0)", block("tilejit.check("))
    assert len(lines) == 2 and set(lines) <= SHOWN and (tmp_path / "pipeline.png").exists()
