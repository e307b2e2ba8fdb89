"""`tilejit.timeline`: how a kernel's roles, copies and products overlap in the emulator."""
from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilejit.errors import LaunchError
from tilejit.records import dataclass
from tilejit.runtime.emulated import emulated
from tilejit.runtime.jit import Kernel

if TYPE_CHECKING:
    from tilejit.emulator.replay import Rates, Span
    from tilejit.emulator.report import Report

_PICTURES = (".svg", ".png", ".pdf")


@dataclass(frozen=True)
class Timeline:
    """The spans of every recorded CTA (`Span`, clocks), the launch's report, the files."""

    spans: tuple[Span, ...]
    report: Report
    files: tuple[Path, ...]

    @property
    def clocks(self) -> int:
        return max((s.end for s in self.spans), default=0)

    def busy(self, cta: int, lane: int | str) -> float:
        """The part of the CTA's time in which a warp or unit ("load", "store", "tensor core") did something."""
        mine = [s for s in self.spans if s.cta == cta]
        end = max((s.end for s in mine), default=1)
        covered, last = 0, 0
        for s in sorted((s for s in mine if s.lane == lane and s.kind != "wait"), key=lambda s: s.start):
            covered += max(0, s.end - max(s.start, last))
            last = max(last, s.end)
        return covered / end


def timeline(kernel: Kernel, grid: Any, /, *args: Any, out: str | Path = "timeline.svg", ctas: int = 8,
             picture: int = 0, window: tuple[int, int] | None = None, rates: Rates | None = None,
             **constants: Any) -> Timeline:
    """Run `kernel[grid](*args, **constants)` in the emulator and show who did what when.

    Writes `out` with the suffix .json, a trace of the first `ctas` CTAs for https://ui.perfetto.dev and
    chrome://tracing (one clock shows as one nanosecond), and `out` itself (.svg, .png or .pdf; .svg without a suffix;
    needs matplotlib), a picture of CTA `picture` (linear index): a lane for each role, copies in flight and tensor
    cores by pipeline stage, waits hatched; all of its time, or the clocks of `window` (start, end).

    Parameters of the kernel that have the names of these options are given by position. Arrays are in host memory and
    hold the results afterwards. A run that breaks a rule is drawn as far as it came: see `.report.findings`.

    The clock is logical, not a measurement: instructions cost a fixed time, copies and products what `rates`
    (`tilejit.emulator.Rates`) says for their size, each unit does one thing at a time, every CTA has a multiprocessor
    of its own. See `tilejit/emulator/replay.py`.

    Raises LaunchError for arguments that do not fit, for a picture of a CTA that was not recorded or of no clocks,
    CompilationError as a launch does.
    """
    from tilejit.emulator.picture import chrome_trace, draw
    from tilejit.emulator.replay import Rates, Replay
    from tilejit.emulator.timeline import Recorder

    call = emulated("timeline", kernel, grid, args, constants)
    if not 0 <= picture < min(ctas, prod(call.grid) * prod(call.entry.compiled.metadata.cluster)):
        raise LaunchError(f"timeline: no CTA {picture} among the first {ctas} of the grid {call.grid}")
    if window is not None and window[0] >= window[1]:
        raise LaunchError(f"timeline: no clocks in the window {window}")
    path = Path(out)
    if path.suffix not in _PICTURES:
        path = path.with_suffix(".svg") if path.suffix == ".json" else Path(f"{path}.svg")
    recorder = Recorder(ctas)
    report = call.entry.run(call.grid, call.flat, listener=recorder)
    spans = Replay(recorder, rates or Rates()).run()
    roles = {w.warp: call.entry.program.role(w.warp) for w in recorder.warps}
    trace = path.with_suffix(".json")
    trace.write_text(json.dumps(chrome_trace(spans, roles, kernel.__name__)))
    chosen = [s for s in spans if s.cta == picture]
    draw(chosen, roles, f"{kernel.__name__}, grid {call.grid}: CTA {picture}", path, window)
    return Timeline(tuple(spans), report, (trace, path))
