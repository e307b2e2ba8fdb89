"""Rates of chips, as data: `chips/*.json`, written by `python -m tilejit calibrate` or taken from data sheets."""
from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import tilejit

FOLDER = Path(__file__).parent / "chips"


@dataclass(frozen=True, eq=False)
class Chip:
    """What an estimate knows of a chip. (Equal to itself only, as tables are.) Times are nanoseconds, rates are a
    nanosecond's of one multiprocessor.

    launch, second: a launch, and one more behind it; overlap: what of that passes while the launch ahead ends; cluster:
    the start of one. tensor: results times bytes of K that the tensor cores multiply. load, l2: bytes that TMA brings a
    multiprocessor, and that L2 gives each of all; memory: bytes that memory does, beyond the `resident` ones that L2
    keeps; line: a row across K for each program that wants it at once. latency: from a block's request to its
    arrival, which as many blocks share as are on their way; block: what each block takes beside. hiding: exponent of
    the sum of what happens at once. sector, ragged: by how much longer bytes of lines take that begin with sectors of
    L2 (32 bytes) but not with its lines (128), and elsewhere. idle: the same of memory, where many multiprocessors have
    nothing to do and launches overlap. store: results of 16 bits that are stored, ragged_result: by how much longer
    where lines of the result do not begin with those of L2; stored: the round trip of a tile's store; shown: the share
    of all that which is not hidden where tiles are taken in turn; activation: results that "gelu" is computed of. part:
    bytes of partial sums, written and read; meet, exchange: what CTAs that divide K take to meet, and the bytes that
    they exchange. copy: bytes copied within L2, each read and written; stream: bytes that copies bring from and to
    memory; scattered: units that copies store; lined, row: elements that eight warps store where TMA does not, in
    lines, and what a row of a tile takes them; pieces: those that threads copy into shared memory. promote: what a
    block takes whose sums are promoted, where its scales come with it, promoted: results of others; widened: weights
    that become 16-bit numbers, widens: those of a warpgroup. Not of all chips: outside: how much longer than others
    lines of tiles take L2 that lie beyond a matrix's end; pair: by how much longer products take whose CTAs share an
    operand; behind: exponent of the sum of memory and what happens beside it; within: by how much longer
    results take whose rows begin within sectors, of transposes."""

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
