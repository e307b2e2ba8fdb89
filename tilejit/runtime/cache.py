"""The disk cache of compiled kernels: one file per entry, written atomically, checked on every read."""
from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from tilejit.errors import Loc
from tilejit.ir.report import Record
from tilejit.ptx.metadata import KernelMetadata, PointerParam, ScalarParam, TensorMapParam
from tilejit.records import dataclass
from tilejit.runtime import knobs
from tilejit.runtime.ptxas import Message, Resources

try:
    import fcntl
except ImportError:  # not on this system
    fcntl = None  # type: ignore[assignment]

_PARAMS = {c.__name__: c for c in (PointerParam, ScalarParam, TensorMapParam)}
_SUFFIX = ".kernel"
#: Suffix of what autotuning keeps in the same folder (tools/tuned.py).
TUNED = ".tuned"
#: Suffixes of the files that processes wait at, and of notes (`note`).
_LOCK, _NOTE = ".lock", ".note"
#: Files are opened without following links, and not for child processes.
_PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
#: A temporary file older than this many seconds was left by a process that died.
_STALE = 3600.0


@dataclass(frozen=True)
class Cached:
    """What the disk holds of one kernel; `cubin` is None where the driver assembles."""

    ptx: str
    cubin: bytes | None
    metadata: KernelMetadata
    resources: Resources | None
    report: tuple[Record, ...] = ()


def folder() -> Path | None:
    """The cache folder, or None if it is off or cannot be trusted (said once)."""
    k = knobs.current()
    if not k.cache:
        return None
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return _usable(k.cache_dir or os.path.join(base, "tilejit"), k.cache_trust)


@lru_cache(maxsize=8)
def _usable(path: str, trust: bool) -> Path | None:
    """Make the folder 0700; refuse one that others own or may write."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        info = os.stat(path)
    except OSError as error:
        print(f"tilejit: cache folder {path} is unusable ({error}); compiling without a cache", file=sys.stderr)
        return None
    if hasattr(os, "geteuid") and (info.st_uid != os.geteuid() or info.st_mode & 0o022) and not trust:
        print(f"tilejit: cache folder {path} belongs to another user or is writable by others; compiling "
              "without a cache (TILEJIT_CACHE_TRUST=1 accepts it)", file=sys.stderr)
        return None
    return Path(path)


def key_text(key: dict[str, Any]) -> str:
    """JSON keeps fields apart, whatever they contain."""
    return json.dumps(key, sort_keys=True, separators=(",", ":"))


def _file(base: Path, text: str) -> Path:
    return base / (hashlib.sha256(text.encode()).hexdigest() + _SUFFIX)


def _tuples(x: Any) -> Any:
    return tuple(map(_tuples, x)) if isinstance(x, list) else x


def _metadata(raw: dict[str, Any]) -> KernelMetadata:
    params = tuple(_PARAMS[p["kind"]](**{k: _tuples(v) for k, v in p.items() if k != "kind"}) for p in raw["params"])
    return KernelMetadata(**{**{k: _tuples(v) for k, v in raw.items()}, "params": params})


def _loc(raw: list[Any] | None) -> Loc | None:
    return None if raw is None else Loc._make([*raw[:-1], _loc(raw[-1])])


def _resources(raw: dict[str, Any] | None) -> Resources | None:
    if raw is None:
        return None
    messages = tuple(Message(**{**m, "loc": _loc(m["loc"])}) for m in raw["messages"])
    return Resources(**{**raw, "messages": messages})


def _open(path: Path) -> tuple[dict[str, Any], bytes]:
    """Header and payload. Raises OSError or ValueError for an unreadable or damaged file."""
    fd = os.open(path, os.O_RDONLY | _PLAIN)
    with open(fd, "rb") as f:
        line, _, payload = f.read().partition(b"\n")
    head = json.loads(line)
    digest = head.pop("sha256")
    if hashlib.sha256(json.dumps(head).encode() + b"\n" + payload).hexdigest() != digest:
        raise ValueError(f"{path}: checksum")
    return head, payload


def read(key: dict[str, Any]) -> Cached | None:
    return read_text(key_text(key))


def read_text(text: str) -> Cached | None:
    base = folder()
    if base is None:
        return None
    path = _file(base, text)
    try:
        head, payload = _open(path)
        if key_text(head["key"]) != text:
            raise ValueError("the key of another kernel")
        size = head["ptx_bytes"]
        found = Cached(payload[:size].decode(), payload[size:] or None, _metadata(head["metadata"]),
                       _resources(head["resources"]), tuple(map(Record.of, head["report"])))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        _remove(path)
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # the eviction order is by last use
    return found


def write(key: dict[str, Any], entry: Cached) -> None:
    base = folder()
    if base is None:
        return
    ptx = entry.ptx.encode()
    meta = asdict(entry.metadata)
    meta["params"] = [{"kind": type(p).__name__, **asdict(p)} for p in entry.metadata.params]
    report = [(r if isinstance(r, Record) else Record.of(r)).data() for r in entry.report]
    head = {"key": key, "ptx_bytes": len(ptx), "metadata": meta, "report": report,
            "resources": asdict(entry.resources) if entry.resources else None}
    body = ptx + (entry.cubin or b"")
    head = json.loads(json.dumps(head))  # what a reader will see, so that the checksum covers the header too
    head["sha256"] = hashlib.sha256(json.dumps(head).encode() + b"\n" + body).hexdigest()
    try:
        put(_file(base, key_text(key)), json.dumps(head).encode() + b"\n" + body)
    except OSError as error:
        _complain(str(base), error.strerror or str(error))
        return
    _written(base, len(body) + 4096)


#: Seconds after which processes may have missed one another's entries.
_TRUSTED = 3600.0
#: What part of the limit stays where it is exceeded: a full folder is not looked through again at the next entry.
_KEPT = 0.9


def _written(base: Path, size: int) -> None:
    """Keep the folder below its limit after an entry of that size. A note says how much is in it, and when somebody
    looked it through: that takes a second for 25,000 entries."""
    try:
        when, known = map(float, (note("size", "") or "").split())
    except ValueError:
        when, known = 0.0, 0.0
    known += size
    if abs(time.time() - when) > _TRUSTED or known > knobs.current().cache_size:
        when, known = time.time(), _evict(base)
    take_note("size", "", f"{when} {known}")


@lru_cache(maxsize=64)
def _complain(folder: str, why: str) -> None:
    print(f"tilejit: could not write the cache in {folder} ({why}); kernels are compiled anew in each process",
          file=sys.stderr)


@contextlib.contextmanager
def turn(key: dict[str, Any], patience: float = 60.0) -> Iterator[None]:
    """One process at a time for a key; after `patience` seconds, or where files cannot be locked, nobody waits."""
    base = folder()
    fd = None
    if base is not None and fcntl is not None:
        with contextlib.suppress(OSError):
            path = _file(base, key_text(key)).with_suffix(_LOCK)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | _PLAIN, 0o600)
            end = time.monotonic() + patience
            while not _locked(fd) and time.monotonic() < end:
                time.sleep(0.02)
    try:
        yield
    finally:
        if fd is not None:
            os.close(fd)


def _locked(fd: int) -> bool:
    """Take a lock; False while another has it. Raises OSError where there are none."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def note(name: str, stamp: str) -> str | None:
    base = folder()
    with contextlib.suppress(OSError, ValueError):
        if base is not None:
            was, _, text = (base / (name + _NOTE)).read_text().partition("\n")
            return text if was == stamp else None
    return None


def take_note(name: str, stamp: str, text: str) -> None:
    base = folder()
    if base is not None:
        with contextlib.suppress(OSError):
            put(base / (name + _NOTE), f"{stamp}\n{text}".encode())


def put(path: Path, data: bytes) -> None:
    """Readers find the whole file or none."""
    beside = path.with_name(os.urandom(8).hex() + ".tmp")
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PLAIN, 0o600), "wb") as f:
            f.write(data)
        os.replace(beside, path)
    except OSError:
        _remove(beside)
        raise


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _stats(base: Path, pattern: str) -> list[tuple[float, int, Path]]:
    out = []
    for p in base.glob(pattern):
        with contextlib.suppress(OSError):
            s = p.stat()
            out.append((s.st_mtime, s.st_size, p))
    return sorted(out)


def _evict(base: Path) -> int:
    """Remove the least recently used entries where the limit is exceeded, and what dead writers left; returns the bytes
    that stay."""
    rows = sorted(_stats(base, "*" + _SUFFIX) + _stats(base, "*" + _NOTE))
    limit = knobs.current().cache_size
    total = sum(size for _, size, _ in rows)
    most = limit if total <= limit else _KEPT * limit
    for _, size, path in rows:
        if total <= most:
            break
        _remove(path)
        total -= size
    for pattern in ("*.tmp", "*" + _LOCK):
        for modified, _, path in _stats(base, pattern):
            if time.time() - modified > _STALE:
                _remove(path)
    return total


@dataclass(frozen=True)
class Listed:
    key: dict[str, Any]
    used: float
    size: int
    path: Path


def entries() -> list[Listed]:
    base = folder()
    out = []
    for used, size, path in reversed(_stats(base, "*" + _SUFFIX) if base else []):
        with contextlib.suppress(OSError, ValueError, KeyError):
            out.append(Listed(_open(path)[0]["key"], used, size, path))
    return out


def clear() -> int:
    """Delete every entry, and what autotuning keeps; returns how many."""
    base = folder()
    rows = _stats(base, "*" + _SUFFIX) + _stats(base, "*" + TUNED) if base else []
    for _, _, path in [*rows, *(_stats(base, "*" + _LOCK) + _stats(base, "*" + _NOTE) if base else [])]:
        _remove(path)
    return len(rows)


def difference(a: Any, b: Any, where: str = "") -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        names = sorted({*a, *b})
        return [d for n in names for d in difference(a.get(n), b.get(n), f"{where}.{n}" if where else n)]
    return [] if a == b else [f"{where}: {a!r} -> {b!r}"]
