"""Loads the virtual machine from numba's cache, in a folder named by a digest of its sources: numba only notices
changes of one file."""
from __future__ import annotations

import hashlib
import os
from pathlib import Path


def directory() -> Path:
    own = os.environ.get("TILEJIT_CACHE_DIR")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tilejit"


def load_machine() -> None:
    import sys

    if "tilejit.emulator.vm.run" in sys.modules:
        return
    import numba

    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.joinpath("vm").glob("*.py")):
        digest.update(path.read_bytes())
    previous = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(directory() / f"emulator-{digest.hexdigest()[:16]}")
    try:
        import tilejit.emulator.vm.run  # noqa: F401
    finally:
        numba.config.CACHE_DIR = previous
