"""One launch under many schedules: all findings, and whether results agree."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilejit.emulator.events import Listener
from tilejit.emulator.policy import POLICIES
from tilejit.emulator.report import Finding, Report
from tilejit.errors import EmulatorError

#: launch(policy, seed, listener): one run over the memory as it is.
Launch = Callable[[str, int, "Listener | None"], Report]


@dataclass(frozen=True)
class Run:
    policy: str
    seed: int
    report: Report


@dataclass(frozen=True)
class Group:
    finding: Finding
    policy: str
    seed: int
    runs: int
    count: int


@dataclass
class Exploration:
    """What all runs found. `str()` of it is for reading, `check()` for tests."""

    title: str
    runs: list[Run] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not any(run.report.findings for run in self.runs)

    @property
    def kinds(self) -> set[str]:
        return {f.kind for run in self.runs for f in run.report.findings}

    @property
    def groups(self) -> list[Group]:
        first: dict[tuple[str, int], tuple[Finding, Run]] = {}
        seen: dict[tuple[str, int], list[int]] = {}
        for number, run in enumerate(self.runs):
            for f in run.report.findings:
                key = (f.kind, f.ptx_line)
                first.setdefault(key, (f, run))
                seen.setdefault(key, []).append(number)
        return [Group(f, run.policy, run.seed, len(set(seen[key])), len(seen[key])) for key, (f, run) in first.items()]

    def check(self) -> Exploration:
        """Raise EmulatorError with the whole report if there is a finding."""
        if not self.ok:
            raise EmulatorError(str(self))
        return self

    def __str__(self) -> str:
        groups, n = self.groups, len(self.runs)
        policies = list(dict.fromkeys(run.policy for run in self.runs))
        seeds = len({run.seed for run in self.runs})
        total = [sum(getattr(run.report, name) for run in self.runs)
                 for name in ("ctas", "instructions", "barrier_waits")]
        lines = [f"{self.title}: {n} runs ({', '.join(policies)}; {seeds} seeds), "
                 + (f"{len(groups)} findings" if groups else "no findings")]
        for i, g in enumerate(groups, 1):
            f = g.finding
            where = f"PTX line {f.ptx_line}" if f.ptx_line else "the launch"
            where += f", {f.source_loc[0]}:{f.source_loc[1]}" if f.source_loc else ""
            lines.append(f"{i}. {f.kind} at {where}")
            lines += [f"     {line}" for line in f.message.splitlines()]
            if f.warps:
                lines.append(f"     by {', '.join(f.warps)}")
            times = f", {g.count} times" if g.count > g.runs else ""
            lines.append(f"     in {g.runs} of {n} runs{times}; again with policy={g.policy!r}, seed={g.seed}")
        lines.append("in all {} CTAs, {} warp instructions, {} barrier waits".format(*total))
        return "\n".join(lines)


def explore(title: str, launch: Launch, memory: Sequence[np.ndarray], arrays: Mapping[str, np.ndarray],
            policies: Iterable[str] = POLICIES, seeds: Iterable[int] = range(5),
            listener: Callable[[], Listener] | None = None, tolerance: float = 0.0) -> Exploration:
    """Launch once for every policy and seed, each time over the same `memory`, and compare the results."""
    out = Exploration(title)
    seeds = list(seeds)
    before = [m.copy() for m in memory]
    baseline: tuple[Run, list[np.ndarray], dict[str, np.ndarray]] | None = None
    try:
        for policy in policies:
            for seed in seeds[:1] if policy == "round_robin" else seeds:  # all of its runs are the same
                _restore(memory, before)
                report = launch(policy, seed, listener() if listener is not None else None)
                run = Run(policy, seed, report)
                out.runs.append(run)
                if not report.finished:
                    continue
                if baseline is None:
                    baseline = run, [m.copy() for m in memory], {n: a.copy() for n, a in arrays.items()}
                    continue
                first = baseline[0]
                for name, array in arrays.items():
                    told = difference(baseline[2][name], array, tolerance)
                    if told:
                        message = f"argument {name}: {told}; compared with policy {first.policy}, seed {first.seed}"
                        report.findings.append(Finding("nondeterministic", message, seed=seed))
    except BaseException:
        _restore(memory, before)
        raise
    _restore(memory, baseline[1] if baseline is not None else before)
    return out


def _restore(memory: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> None:
    for m, v in zip(memory, values):
        if m.flags.writeable:
            m[...] = v


def difference(a: np.ndarray, b: np.ndarray, tolerance: float) -> str:
    width = a.dtype.itemsize
    bits_a, bits_b = (np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(-1, width) for x in (a, b))
    wrong = (bits_a != bits_b).any(1)
    if not wrong.any():
        return ""
    note = ""
    if a.dtype.kind not in "iub":  # numpy's floats, and ml_dtypes' ("V")
        x, y = (v.reshape(-1).astype(np.float64) for v in (a, b))
        with np.errstate(invalid="ignore"):
            error = np.abs(x - y) / np.maximum(np.maximum(np.abs(x), np.abs(y)), np.finfo(np.float64).tiny)
        error[np.isnan(x) & np.isnan(y)] = 0
        error[np.isnan(error)] = np.inf
        if tolerance:
            wrong &= error > tolerance
        if not wrong.any():
            return ""
        note = f" (largest relative difference {error[wrong].max():.2g})"
    at = int(np.flatnonzero(wrong)[0])
    where = ", ".join(str(int(i)) for i in np.unravel_index(at, a.shape))
    return (f"{int(wrong.sum())} of {wrong.size} elements differ between schedules, first at [{where}]: "
            f"{a.reshape(-1)[at]} and {b.reshape(-1)[at]}{note}")
