"""`triton.runtime.cache`: the folder of compiled kernels, and the key of the compiler."""
from __future__ import annotations

import os
from pathlib import Path

from tilejit.compat.triton import knobs
from tilejit.runtime.compile import compiler_hash


def triton_key() -> str:
    """Identifies the compiler."""
    return compiler_hash()


class FileCacheManager:
    """Files of one key, in a folder of their own under `knobs.cache.dir`."""

    def __init__(self, key: str, override: bool = False, dump: bool = False):
        self.key = key
        base = knobs.cache.dump_dir if dump else knobs.cache.override_dir if override else knobs.cache.dir
        self.cache_dir = str(Path(base, key))

    def has_file(self, filename: str) -> bool:
        """Whether the file is there."""
        return Path(self.cache_dir, filename).exists()

    def get_file(self, filename: str) -> str | None:
        """Its path, or None."""
        return str(Path(self.cache_dir, filename)) if self.has_file(filename) else None

    def put(self, data: str | bytes, filename: str, binary: bool = True) -> str:
        """Write a file, whole or not at all; returns its path."""
        path = Path(self.cache_dir, filename)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_bytes(data if isinstance(data, bytes) else str(data).encode())
        os.replace(part, path)
        return str(path)


def get_cache_manager(key: str) -> FileCacheManager:
    """The manager of a key."""
    return FileCacheManager(key)


get_dump_manager = get_override_manager = get_cache_manager
