"""Records what a timeline is made of: what each warp did in order, and the asynchronous operations it started.

The emulator runs its warps one after another, so the order of events says what depends on what, and nothing of time.
`Recorder` keeps, warp by warp, the list of actions below; `replay.py` gives them times.

  Ran(instructions, pc)      instructions
  Start(op)                  an asynchronous operation starts
  Arrive(gate)               an arrival: one of the things that `gate` waits for
  Wait(gate, ...)            goes on when everything that `gate` waits for has happened
  Drain(ops, ...)            goes on when these operations are done (or have read their source)

A gate is one phase of an mbarrier, one round of a named barrier, or one phase of the cluster barrier.

Shows a timeline: as Chrome trace events (https://ui.perfetto.dev opens them), and as a picture of one CTA.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tilejit.emulator.events import Listener, WarpId

if TYPE_CHECKING:
    from tilejit.emulator.replay import Span


class Gate(NamedTuple):
    """kind "mbarrier", "barrier" or "cluster"; `place` its offset or number; `phase` counts from 0."""

    kind: str
    cta: int
    place: int
    phase: int


class Ran(NamedTuple):
    instructions: int
    pc: int


class Start(NamedTuple):
    op: int


class Arrive(NamedTuple):
    gate: Gate


class Wait(NamedTuple):
    gate: Gate
    pc: int


class Drain(NamedTuple):
    ops: tuple[int, ...]
    kind: str
    read_only: bool
    pc: int


Action = Ran | Start | Arrive | Wait | Drain


@dataclass
class Op:
    """An asynchronous operation. `bytes` moved; for wgmma `macs`, its multiply-adds, and `width`, an operand's bits.
    `gates` are the mbarrier phases that it completes transactions of; `slot` the barrier it is counted on, or for
    wgmma the one that its warpgroup waited for last."""

    kind: str
    cta: int
    warp: int
    pc: int
    bytes: int = 0
    macs: int = 0
    width: int = 16
    gates: list[Gate] = field(default_factory=list)
    slot: tuple[int, int] | None = None


#: Bits of an operand element of wgmma and of the tensor core's rate, by PTX type.
_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "b1": 1}


class Recorder(Listener):
    """Listens to the first `ctas` CTAs of a launch (whole clusters) and keeps what they do."""

    accesses = False

    def __init__(self, ctas: int = 8):
        super().__init__()
        self.limit = ctas
        self.warps: dict[WarpId, list[Action]] = {}
        self.ops: dict[int, Op] = {}
        self.needs: dict[Gate, int] = {}
        self.names: dict[tuple[int, int], str] = {}           # (cta, offset) of mbarriers
        self.filled: set[tuple[int, int]] = set()             # mbarriers that copies complete on
        self.blocked: dict[WarpId, Wait] = {}
        self.current = WarpId(-1, -1)
        self._rounds: dict[tuple[int, int], int] = {}         # rounds of named barriers that are over
        self._phases: dict[WarpId, int] = {}                  # arrivals at the cluster barrier
        self._slots: dict[WarpId, tuple[int, int]] = {}

    def _add(self, agent: WarpId, action: Action) -> bool:
        if agent not in self.warps:
            return False
        self.warps[agent].append(action)
        return True

    def _arrive(self, agent: WarpId, gate: Gate) -> None:
        if self._add(agent, Arrive(gate)):
            self.needs[gate] = self.needs.get(gate, 0) + 1

    # -- warps -------------------------------------------------------------------------------------------
    def cluster_begin(self, ctas: list[int], warps: int, shared_bytes: int, base: int) -> None:
        if len({w.cta for w in self.warps}) < self.limit:
            self.warps.update({WarpId(c, w): [] for c in ctas for w in range(warps)})

    def ran(self, agent: WarpId, pc: int, count: int) -> None:
        self.current = agent
        if count:
            self._add(agent, Ran(count, pc))

    # -- asynchronous operations -------------------------------------------------------------------------
    def issue(self, op: int, kind: str, agent: WarpId, pc: int, lane: int, proxy: str,
              barrier: tuple[int, int] | None, bytes: int) -> None:
        # A wgmma is told of its warpgroup's first warp when the last of the four issues it.
        if not self._add(self.current if kind == "wgmma" else agent, Start(op)):
            return
        new = self.ops[op] = Op(kind, agent.cta, agent.warp, pc, bytes, slot=barrier)
        if kind == "wgmma":
            new.macs, new.width = shape_of(self.program.text(pc))
            new.slot = self._slots.get(self.current)

    def async_access(self, op: int, kind: str, space: str, cta: int, starts: np.ndarray, size: int) -> None:
        known = self.ops.get(op)
        if known is not None and kind == "read" and space == "shared" and known.kind != "wgmma" and known.slot is None:
            known.bytes += len(starts) * size

    def group_wait(self, agent: WarpId, pc: int, kind: str, lane: int, done: list[int], read_only: bool) -> None:
        self._add(agent, Drain(tuple(o for o in done if o in self.ops), kind, read_only, pc))

    # -- mbarriers ---------------------------------------------------------------------------------------
    def mbarrier_init(self, agent: WarpId, pc: int, cta: int, offset: int, count: int, live: bool) -> None:
        self.names[cta, offset] = self.program.barrier_name(pc, offset)

    def mbarrier_arrive(self, agent: WarpId | int, pc: int, cta: int, offset: int, phase: int, count: int, lane: int,
                        scope: str, sem: str) -> None:
        gate = Gate("mbarrier", cta, offset, phase)
        if isinstance(agent, int):
            self.mbarrier_complete_tx(agent, cta, offset, phase, 0)
        else:
            self._arrive(agent, gate)

    def mbarrier_complete_tx(self, op: int, cta: int, offset: int, phase: int, bytes: int) -> None:
        gate = Gate("mbarrier", cta, offset, phase)
        if op in self.ops:
            self.filled.add((cta, offset))
            self.ops[op].gates.append(gate)
            self.needs[gate] = self.needs.get(gate, 0) + 1
        elif op < 0:
            self._arrive(self.current, gate)

    def mbarrier_blocked(self, agent: WarpId, pc: int, cta: int, offset: int, parity: int) -> None:
        self.blocked[agent] = Wait(Gate("mbarrier", cta, offset, -1), pc)

    def mbarrier_wait(self, agent: WarpId, pc: int, cta: int, offset: int, phase: int, lanes: int, scope: str,
                      sem: str) -> None:
        self.blocked.pop(agent, None)
        if (cta, offset) in self.filled:
            self._slots[agent] = cta, offset
        self._add(agent, Wait(Gate("mbarrier", cta, offset, phase), pc))

    # -- named and cluster barriers ----------------------------------------------------------------------
    def barrier_arrive(self, agent: WarpId, pc: int, barrier: int, threads: int, waits: bool) -> None:
        gate = Gate("barrier", agent.cta, barrier, self._rounds.get((agent.cta, barrier), 0))
        self._arrive(agent, gate)
        if waits:
            self.blocked[agent] = Wait(gate, pc)

    def barrier_complete(self, cta: int, barrier: int, agents: list[WarpId], waiters: list[WarpId]) -> None:
        self._rounds[cta, barrier] = self._rounds.get((cta, barrier), 0) + 1
        for agent in waiters:
            self._add(agent, self.blocked.pop(agent))

    def cluster_arrive(self, agent: WarpId, pc: int, relaxed: bool) -> None:
        phase = self._phases[agent] = self._phases.get(agent, -1) + 1
        self._arrive(agent, Gate("cluster", -1, -1, phase))

    def cluster_wait(self, agent: WarpId, pc: int) -> None:
        self._add(agent, Wait(Gate("cluster", -1, -1, self._phases.get(agent, -1)), pc))


def shape_of(instruction: str) -> tuple[int, int]:
    """(multiply-adds, bits of an operand) of a wgmma instruction."""
    m, n, k = map(int, re.findall(r"\.m(\d+)n(\d+)k(\d+)", instruction)[0])
    types = re.findall(r"\.(" + "|".join(_BITS) + r")\b", instruction)
    return m * n * k, _BITS[types[-1]] if types else 16


def stages(names: dict[tuple[int, int], str], used: Iterable[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Pipeline stages of mbarriers (cta, offset): the index in the name (`a_b.full[2]`), else, for those that copies
    complete on (`used`), the place among their CTA's."""
    at = set(used)
    out = {b: sorted(o for c, o in at if c == b[0]).index(b[1]) for b in at}
    for b, name in names.items():
        index = re.search(r"\[(\d+)\]$", name)
        if index:
            out[b] = int(index.group(1))
    return out


#: Colours of pipeline stages (told apart by colour-blind eyes too), and of the rest.
STAGES = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#88aa88")
RUN, EPILOGUE, OTHER, WAIT, GATE = "#444444", "#9467bd", "#999999", "#e4e4e4", "#ffffff"
LIGHT = ("#ccbb44", "#66ccee", "#ee8866", OTHER)
_OWN = ("wgmma", "stores", "cp.async")
_UNITS = {"load": "loads in flight", "tensor core": "tensor cores", "store": "stores in flight"}


@dataclass(frozen=True)
class Track:
    """A row: spans of one warp, or of one unit (one stage of it), that do not overlap."""

    title: str
    spans: tuple[Span, ...]
    height: float = 1.0


def tracks(spans: Sequence[Span], roles: dict[int, str], warps: Sequence[int]) -> list[Track]:
    """The rows of one CTA: who starts the copies, the copies by stage, who multiplies, the tensor cores, the stores."""
    by_lane: dict[tuple[int, str, int], list[Span]] = {}
    multiplies = {s.lane for s in spans if s.kind == "epilogue" or s.name == "wgmma"}
    for s in spans:
        if isinstance(s.lane, str):
            by_lane.setdefault((list(_UNITS).index(s.lane) * 2 + 1, s.lane, s.stage), []).append(s)
        elif s.lane in warps:
            name = f"{roles[s.lane]}, warp {s.lane}" if roles.get(s.lane) else f"warp {s.lane}"
            by_lane.setdefault((2 if s.lane in multiplies else 0, name, s.lane), []).append(s)
    # A unit that does one thing at a time is one row, whatever the stage.
    whole: dict[tuple[int, str, int], list[Span]] = {}
    for (rank, name, part), some in by_lane.items():
        whole.setdefault((rank, name, -1 if name == "tensor core" else part), []).extend(some)
    out = []
    for (rank, name, part), some in sorted(whole.items()):
        rows: list[list[Span]] = []
        for s in sorted(some, key=lambda s: s.start):
            free = next((r for r in rows if r[-1].end <= s.start), None)
            rows.append([s]) if free is None else free.append(s)
        title = _UNITS.get(name, name) + (f", stage {part}" if name in ("load", "store") and part >= 0 else "")
        out += [Track(title if not i else "", tuple(r), 0.5 if rank % 2 and name != "tensor core" else 1.0)
                for i, r in enumerate(rows)]
    return out


def representatives(spans: Sequence[Span], roles: dict[int, str]) -> list[int]:
    """One warp for each role of a warpgroup: the one that does the most."""
    busy: dict[int, int] = {}
    for s in spans:
        if isinstance(s.lane, int):
            busy[s.lane] = busy.get(s.lane, 0) + (s.end - s.start if s.kind != "wait" else 0)
    named = any(map(roles.get, busy))                 # then the others are idle
    groups = sorted({(w // 4, roles.get(w, "")) for w in busy if roles.get(w) or not named})
    return [min((w for w in busy if (w // 4, roles.get(w, "")) == g), key=lambda w: (-busy[w], w)) for g in groups]


def chrome_trace(spans: Sequence[Span], roles: dict[int, str], title: str) -> dict[str, Any]:
    """The trace event format: a process a CTA, a thread a row. One clock is shown as one nanosecond."""
    events: list[dict[str, Any]] = []
    for cta in sorted({s.cta for s in spans}):
        mine = [s for s in spans if s.cta == cta]
        events.append(_named("process_name", cta, 0, f"{title}: CTA {cta}"))
        for tid, row in enumerate(tracks(mine, roles, sorted({s.lane for s in mine if isinstance(s.lane, int)})), 1):
            events.append(_named("thread_name", cta, tid, row.title or " "))
            events.append({"ph": "M", "pid": cta, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}})
            events += [{"ph": "X", "pid": cta, "tid": tid, "ts": s.start / 1000, "dur": (s.end - s.start) / 1000,
                        "cat": s.kind, "name": s.name, "args": _details(s)} for s in row.spans]
    return {"traceEvents": events, "displayTimeUnit": "ns",
            "otherData": {"clock": "1 ns is one logical clock of an illustrative model, not a measurement"}}


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}


def _details(s: Span) -> dict[str, Any]:
    """What Perfetto shows of a span that is clicked on."""
    out: dict[str, Any] = {"clocks": s.end - s.start}
    if s.stage >= 0:
        out["stage"] = s.stage
    if s.line:
        out["PTX line"] = s.line
    if s.source:
        out["source"] = f"{Path(s.source[0]).name}:{s.source[1]}"
    return out


def draw(spans: Sequence[Span], roles: dict[int, str], title: str, path: Path,
         window: tuple[int, int] | None = None) -> None:
    """Draw one CTA's spans, or the part of them in the clocks of `window`, with matplotlib; the suffix of `path`
    (.svg, .png, .pdf) says how."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    first, last = window or (0, max((s.end for s in spans), default=1))
    warps = representatives(spans, roles)
    spans = [replace(s, start=max(s.start, first), end=min(s.end, last)) for s in spans
             if s.end > first and s.start < last]
    rows = tracks(spans, roles, warps)
    height = sum(r.height for r in rows)
    figure = Figure(figsize=(14, 1.6 + 0.42 * height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    at, ticks, labels = 0.0, [], []
    for row in rows:
        middle = at + row.height / 2
        if row.title:
            ticks.append(middle)
            labels.append(row.title)
        for s in row.spans:
            _bar(axes, s, at, row.height, last - first)
        at += row.height
    axes.set(xlim=(first, last), ylim=(at + 0.1, -0.1), yticks=ticks, yticklabels=labels, title=title,
             xlabel="logical clocks (an illustration of what waits for what, not a measurement)")
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    kinds, own = {s.kind for s in spans}, any(s.name in _OWN for s in spans)
    used = sorted({s.stage % len(STAGES) for s in spans if s.stage >= 0})
    legend = [Patch(color=STAGES[i], label=f"stage {i}") for i in used]
    legend += [Patch(color=RUN, label="instructions")]
    legend += [Patch(color=EPILOGUE, label="epilogue")] if "epilogue" in kinds else []
    legend += [Patch(facecolor=GATE, edgecolor="#888888", hatch="////", label="waits at a barrier")] \
        if "wait" in kinds else []
    legend += [Patch(facecolor=WAIT, label="waits for its own copies or products")] if own else []
    figure.legend(handles=legend, loc="outside lower center", ncols=len(legend), frameon=False, fontsize=8)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "tilejit"}):
        figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)


def _bar(axes: Any, s: Span, top: float, height: float, clocks: int) -> None:
    """One span: full height for work, hatched for waits at barriers; named where there is room (of all `clocks`)."""
    colour = STAGES[s.stage % len(STAGES)] if s.stage >= 0 else OTHER
    pad = 0.08 * height
    width = s.end - s.start
    if s.kind == "wait":
        own = s.name in _OWN
        face, edge = (WAIT, WAIT) if own else (GATE, colour)
        axes.broken_barh([(s.start, width)], (top + 2.5 * pad, height - 5 * pad), facecolors=face, edgecolors=edge,
                         hatch=None if own else "////", linewidth=0.6)
    else:
        face = {"run": RUN, "epilogue": EPILOGUE}.get(s.kind, colour)
        axes.broken_barh([(s.start, width)], (top + pad, height - 2 * pad), facecolors=face, edgecolors="white",
                         linewidth=0.3)
    dark = s.kind in ("copy", "product")
    for text in _texts(s):
        if width > clocks * 0.0058 * len(text):
            axes.text(s.start + width / 2, top + height / 2, text, ha="center", va="center", fontsize=6.5, clip_on=True,
                      color="black" if not dark or colour in LIGHT else "white",
                      bbox=None if dark else {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8})
            return


def _texts(s: Span) -> list[str]:
    """What may stand in a bar, the longest first."""
    if s.kind == "product":
        return [f"stage {s.stage}", str(s.stage)] if s.stage >= 0 else []
    if s.kind == "copy":
        return [s.name, s.name.rsplit(": ", 1)[-1]]
    return [s.name] if s.kind == "wait" else []
