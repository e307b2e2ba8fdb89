"""The settings of tilejit: one frozen record, read from `TILEJIT_*` variables when needed."""
from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tilejit.errors import LaunchError, close_matches
from tilejit.ir import target
from tilejit.records import dataclass, fields, replace

TARGETS = ("cuda", "emulator", "evaluator")
CHIPS = tuple(target.TARGETS)


@dataclass(frozen=True)
class Knobs:
    """Field `name` is read from `TILEJIT_NAME`; its default holds where that is unset or empty."""

    #: where launches run: cuda, emulator (the PTX, on the CPU), evaluator (the tile IR, in numpy);
    #: empty: cuda where there is a GPU, else the CPU
    target: str = ""
    #: the chip that launches without a `target` of their own are compiled for: sm_90a or sm_80; empty: sm_90a
    arch: str = ""
    #: folder that gets every stage of every compilation, or `all` for stderr
    dump: str = ""
    #: folder whose files replace the stages of the same name (see dump)
    override: str = ""
    #: path of ptxas; empty: look for it. `driver` leaves assembling to the driver
    ptxas: str = ""
    #: let TMA do accesses through pointers that it can do (as the launch option of that name, which says it of one)
    pointer_tma: bool = True
    #: use the disk cache
    cache: bool = True
    #: its folder; empty: $XDG_CACHE_HOME/tilejit or ~/.cache/tilejit
    cache_dir: str = ""
    #: its limit in bytes, above which the least recently used entries go
    cache_size: int = 2 << 30
    #: accept a cache folder that other users own or can write
    cache_trust: bool = False
    #: compile even what the disk cache holds
    always_compile: bool = False
    #: wait for every launch and report its errors at once
    launch_blocking: bool = False
    #: put an NVTX range, as profilers show, around every launch
    nvtx: bool = False
    #: `perf`: print what makes a compiled kernel slow (spills, serialised wgmma, lost TMA) to stderr
    warn: str = ""
    #: measure the configurations of autotuning in a process of their own, which may hang or fault
    isolate: bool = True
    #: print what autotuning chose
    print_autotune: bool = False


_DEFAULTS = Knobs()
_ACTIVE: ContextVar[Knobs | None] = ContextVar("tilejit_knobs", default=None)
_OFF = ("0", "off", "no", "none", "false")


def from_environment(env: Mapping[str, str] | None = None) -> Knobs:
    """Raises LaunchError for a value that does not parse."""
    env = os.environ if env is None else env
    values = {f.name: env.get(f"TILEJIT_{f.name.upper()}", "") for f in fields(Knobs)}
    given = {k: _parse(k, v) for k, v in values.items() if v}
    return _checked(replace(_DEFAULTS, **given))


def _parse(name: str, text: str) -> Any:
    kind = type(getattr(_DEFAULTS, name))
    if kind is bool:
        return text.lower() not in _OFF
    if kind is int:
        try:
            return int(text)
        except ValueError:
            raise LaunchError(f"TILEJIT_{name.upper()}={text!r} is not an integer") from None
    return text


def chip() -> str:
    """What launches are compiled for by default, "sm_90a" or "sm_80": the knob `arch`."""
    inner = overrides()
    return (os.environ.get("TILEJIT_ARCH") if inner is None else inner.arch) or target.DEFAULT


def _checked(k: Knobs) -> Knobs:
    if k.target and k.target not in TARGETS:
        raise LaunchError(f"TILEJIT_TARGET={k.target!r} is not one of {', '.join(TARGETS)}")
    if k.arch and k.arch not in CHIPS:
        raise LaunchError(f"TILEJIT_ARCH={k.arch!r} is not one of {', '.join(CHIPS)}")
    if k.warn not in ("", "perf"):
        raise LaunchError(f"TILEJIT_WARN={k.warn!r} is not 'perf'")
    return k


#: overrides(): the knobs of the enclosing `with tilejit.knobs(...)`, or None outside one.
overrides: Callable[[], Knobs | None] = _ACTIVE.get


def current() -> Knobs:
    return _ACTIVE.get() or from_environment()


@contextmanager
def knobs(**values: Any) -> Iterator[Knobs]:
    """Set knobs for a `with` block (and what it calls in this thread or task); yields the result.

    Raises LaunchError for an unknown knob or a value of the wrong type.
    """
    for name, value in values.items():
        if name not in Knobs.__dataclass_fields__:
            near = close_matches(name, Knobs.__dataclass_fields__, 1)
            raise LaunchError(f"unknown knob {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        kind = type(getattr(_DEFAULTS, name))
        if type(value) is not kind:
            raise LaunchError(f"knob {name} takes {kind.__name__}, found {value!r}")
    token = _ACTIVE.set(_checked(replace(current(), **values)))
    try:
        yield current()
    finally:
        _ACTIVE.reset(token)
