"""Every stage of a compilation as a numbered text file, to read or replace."""
from __future__ import annotations

import sys
from pathlib import Path

from tilejit.ir.core import Function
from tilejit.runtime.knobs import Knobs


class Stages:
    def __init__(self, kernel: str, knobs: Knobs):
        self.kernel, self.count = kernel, 0
        self.dump, self.override = knobs.dump, Path(knobs.override, kernel) if knobs.override else None

    @property
    def active(self) -> bool:
        """Whether stages are seen or replaced: a cached result must not stand in."""
        return bool(self.dump or self.override)

    def __call__(self, name: str, fn: Function) -> Function:
        """Show a stage in tile IR; returns it, or what replaces it."""
        from tilejit.ir.text import parse_function
        from tilejit.ir.verify import verify

        path = self._file(f"{name}.tile")
        if path is not None:
            fn = parse_function(path.read_text())
            verify(fn)
        if self.dump:
            self._show(f"{name}.tile", str(fn))
        return fn

    def text(self, name: str, text: str) -> str:
        path = self._file(name)
        if path is not None:
            text = path.read_text()
        if self.dump:
            self._show(name, text)
        return text

    def _file(self, name: str) -> Path | None:
        if self.override is None:
            return None
        return next((p for pattern in (name, f"[0-9]*-{name}") for p in sorted(self.override.glob(pattern))), None)

    def _show(self, name: str, text: str) -> None:
        if self.dump == "all":
            print(f"// ---- {self.kernel}: {name}\n{text}", file=sys.stderr)
        else:
            folder = Path(self.dump, self.kernel)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{self.count:02d}-{name}").write_text(text)
        self.count += 1
