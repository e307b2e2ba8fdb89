"""Rates of a chip from times: what made the times is found again."""
import random
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from tilejit.__main__ import main
from tilejit.kernels import chip as chips
from tilejit.kernels.estimate import Table, estimate
from tilejit.tools import calibrate

CHIP = chips.load(chips.FOLDER / "h200.json")


@pytest.fixture(scope="module")
def times():
    """Made up: what another chip would take, give or take 2%."""
    other = replace(CHIP, launch=1.5 * CHIP.launch, tensor=0.5 * CHIP.tensor, load=0.6 * CHIP.load, stored=2 * CHIP.stored)
    rng, noise, found = random.Random(1), np.random.default_rng(1), []
    for problem, _ in islice(calibrate.problems(rng), 40):
        ways = calibrate.picked(problem, CHIP, rng)
        t = estimate(problem, Table(tuple(ways)), other) * np.exp(0.02 * noise.standard_normal(len(ways)))
        found.append((problem, list(zip(ways, t.tolist()))))
    return other, found


def test_fit(times):
    """The numbers that count, and a choice that is as good as that of the chip itself."""
    other, found = times
    fitted = calibrate.fit(found, CHIP, 8)
    before, after = calibrate.judged(found, CHIP), calibrate.judged(found, fitted)
    assert after["error"] < 0.05 < before["error"] and after["choice"] < min(1.02, before["choice"])
    assert fitted.tensor == pytest.approx(other.tensor, rel=0.1) and fitted.launch == pytest.approx(other.launch, rel=0.1)


def test_the_command_fits_a_file_of_times(times, tmp_path, monkeypatch, capsys):
    """Without measuring: what was measured is read, and the chip's file says how far off it is."""
    import json
    from dataclasses import asdict

    path, out = tmp_path / "times", tmp_path / "chip.json"
    path.write_text("".join(json.dumps({"problem": asdict(p), "times": [(asdict(w), t) for w, t in rows]}) + "\n"
                            for p, rows in times[1][:9]))
    monkeypatch.setattr("sys.argv", ["tilejit", "calibrate", "--seconds", "0", "--times", str(path), "--out", str(out)])
    assert main() == 0
    made = chips.load(out)
    assert made.origin["held out"]["products"] == 3 and made.origin["fitted"]["products"] == 6
    assert '"held out"' in capsys.readouterr().out and asdict(chips.load(out)) == asdict(made)
