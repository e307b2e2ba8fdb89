from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tilejit.compat.triton import knobs
from tilejit.runtime.compile import compiler_hash


def triton_key() -> str:
    return compiler_hash()


def default_cache_dir() -> str:
    return str(knobs.cache.dir)


def default_dump_dir() -> str:
    return str(knobs.cache.dump_dir)


def default_override_dir() -> str:
    return str(knobs.cache.override_dir)


class CacheManager:
    def __init__(self, key: str):
        self.key = key


class FileCacheManager(CacheManager):
    def __init__(self, key: str, override: bool = False, dump: bool = False):
        super().__init__(key)
        base = knobs.cache.dump_dir if dump else knobs.cache.override_dir if override else knobs.cache.dir
        self.cache_dir = str(Path(base, key))

    def has_file(self, filename: str) -> bool:
        return Path(self.cache_dir, filename).exists()

    def get_file(self, filename: str) -> str | None:
        return str(Path(self.cache_dir, filename)) if self.has_file(filename) else None

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        path = Path(self.cache_dir, filename)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_bytes(data if isinstance(data, bytes) else str(data).encode())
        os.replace(part, path)
        return str(path)

    def put_group(self, filename: str, group: dict[str, str]) -> str:
        return self.put(json.dumps({"child_paths": sorted(group)}), _group_name(filename))

    def get_group(self, filename: str) -> dict[str, str] | None:
        index = self.get_file(_group_name(filename))
        if index is None:
            return None
        found = {name: self.get_file(name) for name in json.loads(Path(index).read_text())["child_paths"]}
        return None if None in found.values() else {k: v for k, v in found.items() if v is not None}


def _group_name(filename: str) -> str:
    return f"__grp__{filename}" + ("" if filename.endswith(".json") else ".json")


class RemoteCacheBackend:
    def __init__(self, key: str):
        self.key = key


class RemoteCacheManager(FileCacheManager):
    def __init__(self, key: str, override: bool = False, dump: bool = False):
        super().__init__(key, override, dump)
        self.backend = knobs.cache.remote_manager_class(key)

    def get_file(self, filename: str) -> str | None:
        data = self.backend.get([filename]).get(filename)
        return None if data is None else super().put(data, filename)

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        self.backend.put(filename, data if isinstance(data, bytes) else str(data).encode())
        return super().put(data, filename, binary)


def get_cache_manager(key: str) -> CacheManager:
    return (knobs.cache.manager_class or FileCacheManager)(key)


def get_dump_manager(key: str) -> CacheManager:
    return (knobs.cache.manager_class or FileCacheManager)(key, dump=True)


def get_override_manager(key: str) -> CacheManager:
    return (knobs.cache.manager_class or FileCacheManager)(key, override=True)
