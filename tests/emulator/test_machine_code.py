"""Where the virtual machine's compiled code is kept, and what becomes of it where nothing can be."""
from __future__ import annotations

from pathlib import Path

import pytest
from numba import int64, njit
from numba.core.caching import Cache

from tilejit.emulator.cache import kept_in


def compiled() -> int:
    @njit(int64(int64), cache=True)
    def more(x):
        return x + 1

    return int(more(1))


@pytest.mark.parametrize("full", [False, True])
def test_a_folder_that_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                     full: bool) -> None:
    """Everything runs, it is said once, and nothing is left beside the source."""
    (tmp_path / "file").touch()
    folder = tmp_path / "full" if full else tmp_path / "file" / "below"
    if full:
        def save(*args: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Cache, "_save_overload", save)
    with kept_in(folder):
        assert compiled() + compiled() == 4
    assert capsys.readouterr().err.count("could not write") == 1
    assert not list(Path(__file__).parent.rglob("test_machine_code*.nb*"))
