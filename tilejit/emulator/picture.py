"""Shows a timeline: as Chrome trace events, or as a picture of one CTA."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilejit.emulator.replay import Span

#: Colours of pipeline stages (also for colour-blind eyes), and of the rest.
STAGES = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#88aa88")
RUN, EPILOGUE, OTHER, WAIT, GATE = "#444444", "#9467bd", "#999999", "#e4e4e4", "#ffffff"
LIGHT = ("#ccbb44", "#66ccee", "#ee8866", OTHER)
_OWN = ("wgmma", "stores", "cp.async")
_UNITS = {"load": "loads in flight", "tensor core": "tensor cores", "store": "stores in flight"}


@dataclass(frozen=True)
class Track:
    title: str
    spans: tuple[Span, ...]
    height: float = 1.0


def tracks(spans: Sequence[Span], roles: dict[int, str], warps: Sequence[int]) -> list[Track]:
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
    busy: dict[int, int] = {}
    for s in spans:
        if isinstance(s.lane, int):
            busy[s.lane] = busy.get(s.lane, 0) + (s.end - s.start if s.kind != "wait" else 0)
    named = any(map(roles.get, busy))  # then the others are idle
    groups = sorted({(w // 4, roles.get(w, "")) for w in busy if roles.get(w) or not named})
    return [min((w for w in busy if (w // 4, roles.get(w, "")) == g), key=lambda w: (-busy[w], w)) for g in groups]


def chrome_trace(spans: Sequence[Span], roles: dict[int, str], title: str) -> dict[str, Any]:
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
    """Draw one CTA's spans, or the clocks of `window`, with matplotlib, to a .svg, .png or .pdf."""
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
    if s.kind == "product":
        return [f"stage {s.stage}", str(s.stage)] if s.stage >= 0 else []
    if s.kind == "copy":
        return [s.name, s.name.rsplit(": ", 1)[-1]]
    return [s.name] if s.kind == "wait" else []
