"""The way to a cached kernel without reading sources: notes say which sources led to which entry."""
from __future__ import annotations

import hashlib
import json
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from tilejit.runtime import cache

#: (namespace, name, value) of a constant that a kernel read
Read = tuple[Mapping[str, Any], str, Any]
#: kernel source -> the constants that its note lists
constants: weakref.WeakKeyDictionary[Any, list[Read]] = weakref.WeakKeyDictionary()


@lru_cache(maxsize=1024)
def _stamp(file: str) -> tuple[int, int] | None:
    try:
        s = os.stat(file)
    except OSError:
        return None
    return s.st_mtime_ns, s.st_size


def place(source: Any) -> list[Any]:
    return [source.file, source.line, source.fn.__qualname__]


def _version(source: Any) -> list[Any] | None:
    """`place`, with what changes when its text does, and bytecode for files changed within one tick; None for no
    file."""
    stamp = None if source.replaced is not None else _stamp(source.file)
    if stamp is None:
        return None
    code = source.fn.__code__
    plain = [x for x in code.co_consts if isinstance(x, (bool, int, float, str, type(None)))]
    text = repr((code.co_code, code.co_names, code.co_varnames, plain))
    return [*place(source), *stamp, hashlib.sha256(text.encode()).hexdigest()[:16]]


def _note(roots: Sequence[Any], facts: dict[str, Any]) -> str:
    text = json.dumps([sys.implementation.cache_tag, list(map(place, roots)), facts], sort_keys=True,
                      separators=(",", ":"))
    return "index-" + hashlib.sha256(text.encode()).hexdigest()[:40]


def find(roots: Sequence[Any], facts: dict[str, Any]) -> str | None:
    """The text of the cache's key for a kernel (the first root; others are its constants), if a note holds. facts: what
    else the key has.
    """
    text = cache.note(_note(roots, facts), "1")
    try:
        functions, key = json.loads(text) if text else (None, "")
        read = _holds(roots, functions) if functions else None
    except (ValueError, TypeError, KeyError, IndexError):
        return None
    if read is None:
        return None
    constants[roots[0]] = read
    return str(key)


def take(roots: Sequence[Any], facts: dict[str, Any], key: str) -> None:
    from tilejit.frontend.captures import follow, reached, read_names

    sources = list(roots)
    for root in roots:
        sources += [s for s, _ in reached(root) if place(s) not in map(place, sources)]
    number = {json.dumps(place(s)): i for i, s in enumerate(sources)}
    functions = []
    for s in sources:
        version = _version(s)
        if version is None:
            return
        reads: dict[str, Any] = {}
        for chain in read_names(s):
            found = follow(s, chain.split("."))
            if found is None:
                reads[chain.split(".")[0]] = _root(s, chain)
            elif found.sources:
                reads[found.name] = [number[json.dumps(place(x))] for x in found.sources]
            else:
                reads[found.name] = _text(found.value)
        functions.append([version, _defaults(s), list(reads.items())])
    cache.take_note(_note(roots, facts), "1", json.dumps([functions, key], separators=(",", ":")))


def _holds(roots: Sequence[Any], functions: list[Any]) -> list[Read] | None:
    from tilejit.frontend.captures import follow

    sources: list[Any] = [*roots, *[None] * (len(functions) - len(roots))]
    read: list[Read] = []
    for source, (version, defaults, reads) in zip(iter(sources), functions):
        if source is None or _version(source) != version or _defaults(source) != defaults:
            return None
        for chain, told in reads:
            found = follow(source, chain.split("."))
            if found is None:
                if told != _root(source, chain):
                    return None
            elif not found.sources:
                if told != _text(found.value):
                    return None
                if found.table is not None and not found.table.get("__name__", "").startswith("tilejit.language"):
                    read.append((found.table, found.key, found.value))
            else:
                if type(told) is not list or len(told) != len(found.sources):
                    return None
                for i, s in zip(told, found.sources):
                    if sources[i] is not None and place(sources[i]) != place(s):
                        return None
                    sources[i] = sources[i] or s
    return read


def _defaults(source: Any) -> list[list[str]]:
    from tilejit.frontend.source import is_constant

    return [[n, _text(p.default)] for n, p in source.signature.parameters.items() if is_constant(p.default)]


def _text(value: Any) -> str:
    from tilejit.frontend.source import constant_text

    return constant_text(value)


def _root(source: Any, chain: str) -> str:
    try:
        value = source.lookup(chain.split(".")[0])
    except KeyError:
        return "nothing"
    return f"{type(value).__name__} {getattr(value, '__module__', '')} {getattr(value, '__name__', '')}"
