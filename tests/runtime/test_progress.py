"""The bar of long launches: on a terminal, after a while, gone at the end."""
from __future__ import annotations

import io
import sys

import pytest

from tilejit.runtime import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream,patience,shows", ((Terminal, 0.0, True), (Terminal, 60.0, False), (io.StringIO, 0.0, False)))
def test_when_a_bar_shows(monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO], patience: float, shows: bool) -> None:
    monkeypatch.setenv("TERM", "xterm")                # rich draws nothing on a dumb one
    monkeypatch.setattr(sys, "stderr", stream())
    monkeypatch.setattr(progress, "PATIENCE", patience)
    with progress.Progress("softmax") as bar:
        for done in range(1, 4):
            bar(done, 3)
        assert (bar.bar is not None) == shows
    assert ("softmax" in sys.stderr.getvalue()) == shows  # type: ignore[attr-defined]


def test_without_rich_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    with progress.Progress("softmax") as bar:
        bar(1, 3)
        assert bar.bar is None


@pytest.mark.one_schedule
def test_a_launch_counts_its_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    from tilejit import kernels

    seen: list[tuple[int, int]] = []
    monkeypatch.setenv("TILEJIT_TARGET", "emulator")
    monkeypatch.setattr(progress.Progress, "__call__", lambda self, done, total: seen.append((done, total)))
    kernels.softmax(np.zeros((3, 2048), np.float32))
    assert seen == [(1, 3), (2, 3), (3, 3)]
