"""A progress bar for launches in the emulator that take longer than a moment."""
from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from types import TracebackType
from typing import Any

#: Seconds before a bar appears.
PATIENCE = 1.0


class Progress:
    """progress(done, total)."""

    def __init__(self, title: str):
        self.title, self.start = title, time.monotonic()
        self.wanted = sys.stderr.isatty() and find_spec("rich") is not None
        self.bar: Any = None

    def __enter__(self) -> Progress:
        return self

    def __call__(self, done: int, total: int) -> None:
        if self.bar is None:
            if not self.wanted or time.monotonic() - self.start < PATIENCE:
                return
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self.bar = Bar(TextColumn(f"{self.title} (emulated)"), BarColumn(), MofNCompleteColumn(),
                           TimeRemainingColumn(), console=Console(stderr=True), transient=True)
            self.bar.start()
            self.task = self.bar.add_task("", total=total)
        self.bar.update(self.task, completed=done)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()
