"""The disk cache of compiled kernels: one file per entry, written atomically, checked on every read.

A file is one JSON header line (the full key text, sizes, a checksum, metadata, resources, report), then the
PTX, then the cubin. Nothing is unpickled. A file that does not check out is deleted and counts as a miss.
`TILEJIT_CACHE_DIR` moves the cache, `TILEJIT_CACHE=0` turns it off, TILEJIT_CACHE_SIZE limits it (bytes).
The cache holds code that the GPU will run, so its folder must belong to the user alone.
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from tilejit.errors import Loc
from tilejit.ptx.metadata import KernelMetadata, PointerParam, ScalarParam, TensorMapParam
from tilejit.runtime.ptxas import Message, Resources

_DEFAULT_SIZE = 2 << 30
_PARAMS = {c.__name__: c for c in (PointerParam, ScalarParam, TensorMapParam)}


def folder() -> Path | None:
    """The cache folder (made if missing), or None if the cache is off or cannot be trusted."""
    if os.environ.get("TILEJIT_CACHE", "1").lower() in ("0", "off", "none"):
        return None
    given = os.environ.get("TILEJIT_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return _usable(given or os.path.join(base, "tilejit"))


@lru_cache(maxsize=8)
def _usable(path: str) -> Path | None:
    """Make the folder 0700; refuse one that others own or may write (said once)."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        info = os.stat(path)
    except OSError as error:
        print(f"tilejit: cache folder {path} is unusable ({error}); compiling without a cache", file=sys.stderr)
        return None
    if hasattr(os, "geteuid") and (info.st_uid != os.geteuid() or info.st_mode & 0o022) \
            and os.environ.get("TILEJIT_CACHE_TRUST") != "1":
        print(f"tilejit: cache folder {path} belongs to another user or is writable by others; compiling "
              "without a cache (TILEJIT_CACHE_TRUST=1 accepts it)", file=sys.stderr)
        return None
    return Path(path)


def _file(key: str) -> Path | None:
    base = folder()
    digest = hashlib.sha256(key.encode()).hexdigest()
    return None if base is None else base / f"{digest}.kernel"


def _tuples(x: Any) -> Any:
    return tuple(map(_tuples, x)) if isinstance(x, list) else x


def _metadata(raw: dict[str, Any]) -> KernelMetadata:
    params = tuple(_PARAMS[p.pop("kind")](**{k: _tuples(v) for k, v in p.items()}) for p in raw["params"])
    return KernelMetadata(**{**{k: _tuples(v) for k, v in raw.items()}, "params": params})


def _resources(raw: dict[str, Any] | None) -> Resources | None:
    if raw is None:
        return None
    messages = tuple(Message(**{**m, "loc": Loc(**m["loc"]) if m["loc"] else None}) for m in raw["messages"])
    return Resources(**{**raw, "messages": messages})


def read(key: str) -> dict[str, Any] | None:
    """The entry for a key (ptx, cubin, metadata, resources, report), or None."""
    path = _file(key)
    if path is None:
        return None
    try:
        data = path.read_bytes()
        line, _, payload = data.partition(b"\n")
        head = json.loads(line)
        good = head["key"] == key and hashlib.sha256(payload).hexdigest() == head["sha256"]
        metadata = _metadata(head["metadata"])
        resources = _resources(head["resources"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        good = False
    if not good:
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    with contextlib.suppress(OSError):
        os.utime(path)                     # the eviction order is by last use
    size = head["ptx_bytes"]
    return {"ptx": payload[:size].decode(), "cubin": payload[size:] or None, "metadata": metadata,
            "resources": resources, "report": head["report"]}


def write(key: str, ptx: str, cubin: bytes | None, metadata: KernelMetadata, resources: Resources | None,
          report: list[str]) -> None:
    """Store an entry; a full or read-only disk only costs the caching."""
    path = _file(key)
    if path is None:
        return
    text = ptx.encode()
    payload = text + (cubin or b"")
    meta = asdict(metadata)
    meta["params"] = [{"kind": type(p).__name__, **asdict(p)} for p in metadata.params]
    head = {"key": key, "sha256": hashlib.sha256(payload).hexdigest(), "ptx_bytes": len(text), "metadata": meta,
            "resources": asdict(resources) if resources else None, "report": report}
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as f:
            f.write(json.dumps(head).encode() + b"\n" + payload)
            f.flush()
            os.fsync(f.fileno())
        os.replace(f.name, path)
    except OSError as error:
        print(f"tilejit: could not write the cache ({error})", file=sys.stderr)
        return
    _evict(path.parent)


def entries(base: Path) -> list[tuple[float, int, Path]]:
    """(last use, bytes, path) of every entry, oldest first."""
    out = []
    for p in base.glob("*.kernel"):
        with contextlib.suppress(OSError):
            s = p.stat()
            out.append((s.st_mtime, s.st_size, p))
    return sorted(out)


def _evict(base: Path) -> None:
    """Remove the least recently used entries above the size limit."""
    limit = int(os.environ.get("TILEJIT_CACHE_SIZE", _DEFAULT_SIZE))
    rows = entries(base)
    total = sum(size for _, size, _ in rows)
    for _, size, path in rows:
        if total <= limit:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size


def clear() -> int:
    """Delete every entry; returns how many there were."""
    base = folder()
    rows = entries(base) if base else []
    for _, _, path in rows:
        with contextlib.suppress(OSError):
            path.unlink()
    return len(rows)
