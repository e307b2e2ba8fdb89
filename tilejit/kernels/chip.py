"""Rates of chips, as data: `chips/*.json`, written by `python -m tilejit calibrate` or taken from data sheets."""
from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import tilejit
from tilejit.records import dataclass, field, fields, replace

FOLDER = Path(__file__).parent / "chips"


@dataclass(frozen=True, eq=False)
class Chip:
    """What an estimate knows of a chip: nanoseconds, and rates a nanosecond of one multiprocessor (docs/modules.md).
    Equal to itself only, as tables are."""

    name: str
    multiprocessors: int
    launch: float
    second: float
    overlap: float
    cluster: float
    tensor: float
    load: float
    l2: float
    memory: float
    resident: float
    line: float
    latency: float
    block: float
    hiding: float
    sector: float
    ragged: float
    idle: float
    store: float
    ragged_result: float
    stored: float
    shown: float
    activation: float
    part: float
    meet: float
    exchange: float
    copy: float
    stream: float
    scattered: float
    lined: float
    row: float
    pieces: float
    promote: float
    promoted: float
    widened: float
    widens: float
    outside: float
    pair: float
    behind: float
    within: float
    neighbour: float
    start: float
    #: Whether tensor cores take operands from shared memory (`wgmma`).
    hopper: bool = True
    #: By how much faster than `tensor` some tiles multiply under load: they read less for each product.
    speeds: dict[str, float] = field(default_factory=dict)
    #: How the numbers came about, and how far off they were at shapes that they had not seen.
    origin: dict[str, Any] = field(default_factory=dict)


_NAMES = (("h200", "h200"), ("h20", "h20"), ("h100", "h100"))


@lru_cache(maxsize=64)
def chip(name: str, multiprocessors: int, hopper: bool = True) -> Chip:
    """An H200's rates, where the name is another one."""
    found = next((file for word, file in _NAMES if word in name.lower()), "h200")
    return replace(load(FOLDER / f"{found}.json"), multiprocessors=multiprocessors, hopper=hopper)


def load(path: Path) -> Chip:
    """Which may hold only what differs from those of another chip (`like`)."""
    given = json.loads(path.read_text())
    if "like" in given:
        given = {**json.loads((FOLDER / f"{given['like']}.json").read_text()), **given}
    known = {f.name for f in fields(Chip)}
    return Chip(**{k: v for k, v in given.items() if k in known})


def current(device: int | None = None, multiprocessors: int | None = None) -> Chip:
    """Of the chip that arrays of a device are on; of so many of its multiprocessors."""
    count = multiprocessors or tilejit.multiprocessors(device)
    return chip(tilejit.device_name(device), count, tilejit.chip() == "sm_90a")
