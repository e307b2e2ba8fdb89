"""Loads the virtual machine from numba's cache, in a folder named by a digest of its sources: numba only notices
changes of one file."""
from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any


def directory() -> Path:
    own = os.environ.get("TILEJIT_CACHE_DIR")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tilejit"


def load_machine() -> None:
    if "tilejit.emulator.vm.run" in sys.modules:
        return
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.joinpath("vm").glob("*.py")):
        digest.update(path.read_bytes())
    with kept_in(directory() / f"emulator-{digest.hexdigest()[:16]}"):
        import tilejit.emulator.vm.run  # noqa: F401


@contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """What numba compiles meanwhile it keeps there, or nowhere: beside its source it would be stale when another file
    has changed."""
    import numba
    from numba.core.caching import Cache

    previous, save = numba.config.CACHE_DIR, Cache.save_overload

    def saved(cache: Any, *args: Any) -> None:
        try:
            save(cache, *args)
        except OSError as error:
            _complain(folder, error.strerror)

    with ExitStack() as spare:
        try:
            os.makedirs(folder, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            _complain(folder, error.strerror)
            folder = Path(spare.enter_context(tempfile.TemporaryDirectory()))
        numba.config.CACHE_DIR, Cache.save_overload = str(folder), saved
        try:
            yield
        finally:
            numba.config.CACHE_DIR, Cache.save_overload = previous, save


@lru_cache(maxsize=8)
def _complain(folder: Path, why: str) -> None:
    print(f"tilejit: could not write {folder} ({why}); each process compiles the emulator anew", file=sys.stderr)
