"""What the matmul benchmark shows: tables, verdicts against the goals, plots. Pure functions of records."""
from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from matmul_cases import GOALS, geomean

Row = dict[str, Any]
#: Ceilings of an H200: TFLOP/s by dtype as specified, and in practice (every good bf16 kernel meets this in bursts).
PEAK = {"bf16": 989.0, "fp8": 1979.0}
MEMORY_TBS = 4.8


def measured(rows: Iterable[Row]) -> list[Row]:
    """The records that hold numbers of a peer."""
    return [r for r in rows if "absent" not in r]


def by_case(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Records grouped by case, in their order."""
    found: dict[str, list[Row]] = {}
    for r in rows:
        found.setdefault(r["case"], []).append(r)
    return found


def number(x: float) -> str:
    """Three digits, or all before the point."""
    return f"{x:.0f}" if x >= 100 else f"{x:.3g}"


def gains(rows: Sequence[Row]) -> list[str]:
    """What each line of the ablation adds to the one above it of the same tile, the first word of its name; a line a case
    and tile. The last line is the library's own choice."""
    lines = []
    for case, found in by_case(measured(rows)).items():
        for tile, steps in groupby((r for r in found if r["peer"].startswith("tilejit ")), lambda r: r["peer"].split()[1]):
            texts, before = [], 0.0
            for r in steps:
                change = f" ({r['peer_value'] / before - 1:+.1%})" if before else ""
                texts.append(r["peer"].removeprefix(f"tilejit {tile} ") + f" {number(r['peer_value'])}{change}")
                before = r["peer_value"]
            lines.append(f"{case}, {tile}: " + ", ".join(texts))
        if found[0]["ours"] is not None:
            lines.append(f"{case}, the library's choice: {number(found[0]['ours'])}")
    return lines


def choices(rows: Sequence[Row]) -> list[str]:
    """The library's choice against the best of many ways, a line a case: time over time, and which they are."""
    return [f"{r['case']}: heuristic time / best time {1 / r['ratio']:.3f}; {r['ours_note']} against {r['note']}"
            for r in measured(rows) if r["ratio"]]


def latest(rows: Iterable[Row]) -> list[Row]:
    """The records of each case's last measurement: earlier ones, which may hold other versions' numbers, go."""
    groups: dict[str, list[Row]] = {}
    for r in rows:
        group = groups.setdefault(r["case"], [])
        last = group[-1] if group else r
        if last["peer"] == "all" or any(x["peer"] == r["peer"] for x in group) or \
                any(last.get(x) != r.get(x) for x in ("date", "commit")):
            group.clear()
        group.append(r)
    return [r for group in groups.values() for r in group]


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Heads and lines: a case a line, a peer a column (its rate and our ratio, or the number of the reason why it has
    none), then the best peer's burst and load."""
    peers = list(dict.fromkeys(r["peer"] for r in sorted(rows, key=lambda r: "absent" in r) if r["peer"] not in NOBODY))
    why = {(r["case"], r["peer"]): f"[{i}]" for i, found in enumerate(by_reason(rows), 1) for r in found}
    lines = []
    for case, found in by_case(rows).items():
        got = {r["peer"]: r for r in measured(found)}
        best = next((r for r in got.values() if r["best"]), None)
        ours = next((r["ours"] for r in got.values() if r["unit"] == "TFLOP/s" and r["ours"] is not None), None)
        nothing = why.get((case, "all"), "-")
        line = [case, why.get((case, "tilejit"), nothing) if ours is None else number(ours)]
        for p in peers:
            r = got.get(p)
            line.append(why.get((case, p), nothing) if r is None else number(r["peer_value"]) + (
                f" ({r['ratio']:.3f})" if r["ratio"] is not None else ""))
        line.append(best["peer"] if best else "-")
        line.append(f"{best['ratio']:.3f} [{best['spread'][0]:.3f}, {best['spread'][1]:.3f}]"
                    if best and best["ratio"] is not None else "-")
        load = best.get("sustained") if best else None
        line.append(f"{load['ratio']:.3f} ({number(load['ours'])} / {number(load['peer'])})"
                    + " by host" * (load.get("launched by") == "host") if load else "-")
        line.append(f"{best['ours_error']:.1e}" if best and "ours_error" in best else "-")
        lines.append(line)
    return ["case", "tilejit", *peers, "best peer", "burst ratio [quartiles]", "sustained ratio (ours / theirs)",
            "error"], lines


#: Names in records of what is missing that are no peers with a column of their own.
NOBODY = ("tilejit", "all", "all peers")


def by_reason(rows: Sequence[Row]) -> list[list[Row]]:
    """Records of who did not take part, one list a peer and reason; numbers in reasons do not make them differ."""
    found: dict[tuple[str, str], list[Row]] = {}
    for r in rows:
        if "absent" in r:
            found.setdefault((r["peer"], re.sub(r"\d+", "#", r["absent"])), []).append(r)
    return list(found.values())


def reasons(rows: Sequence[Row]) -> list[str]:
    """Who did not take part and why, one line a reason with the cases that it holds for, numbered as in the table."""
    lines = []
    for i, found in enumerate(by_reason(rows), 1):
        cases = [r["case"] for r in found]
        more = f" and {len(cases) - 3} more" if len(cases) > 3 else ""
        lines.append(f"[{i}] {found[0]['peer']}: {found[0]['absent']} ({', '.join(cases[:3])}{more})")
    return lines


def goal_rows(rows: Sequence[Row], peer: str) -> list[Row]:
    """The records that a goal looks at: the best peer of each case, or the one named; with a number of ours.

    Copy bandwidth is asked for at 64 rows and fewer only."""
    wanted = [r for r in measured(rows) if r["ratio"] is not None and (r["best"] if peer == "best" else r["peer"] == peer)]
    return [r for r in wanted if peer != "copy" or int(r["case"].split("x")[0]) <= 64]


def verdicts(name: str, rows: Sequence[Row]) -> list[str]:
    """One line a goal of the set: what was reached, and which cases fall short."""
    lines = []
    without = sorted({r["case"] for r in rows if r["peer"] in ("tilejit", "all") and "absent" in r})
    for goal in GOALS[name]:
        found = goal_rows(rows, goal.peer)
        if not found:
            lines.append(f"{name}: nothing to compare with {goal.peer}")
            continue
        mean = geomean([r["ratio"] for r in found])
        worst = min(found, key=lambda r: r["ratio"])
        least = goal.floor if goal.whole else goal.ratio
        low = [r["case"] for r in found if r["ratio"] < least]
        good = (mean >= goal.ratio if goal.whole else True) and not low and not without
        lines.append(f"{name}: {'reached' if good else 'MISSED'}: geometric mean {mean:.3f} of {goal.peer} over "
                     f"{len(found)} cases (goal {goal.ratio:.2f}{'' if goal.whole else ' for each'}), least "
                     f"{worst['ratio']:.3f} at {worst['case']}" + (f"; under {least:.2f}: {', '.join(low)}" if low else "") +
                     (f"; no number of ours at {', '.join(without)}" if without else ""))
    return lines


def show(name: str, rows: Sequence[Row], stream: Any = None) -> None:
    """Print a set: with rich on a terminal, in plain columns elsewhere."""
    stream = stream or sys.stdout
    heads, lines = table(rows)
    title = f"{name}: TFLOP/s, (ratio: above 1 tilejit is faster), [why there is no number]"
    if stream.isatty():
        try:
            from rich.console import Console
            from rich.markup import escape
            from rich.table import Table

            drawn = Table(*heads, title=title)
            for line in lines:
                drawn.add_row(*(f"[green]{escape(c)}" if c.startswith("1.") else escape(c) for c in line))
            Console(file=stream).print(drawn)
        except ImportError:
            print(plain(title, heads, lines), file=stream)
    else:
        print(plain(title, heads, lines), file=stream)
    for text in [*(gains(rows) if name == "ablation" else ()), *(choices(rows) if name == "tuning" else ()),
                 *verdicts(name, rows), *reasons(rows)]:
        print(f"  {text}", file=stream)
    stream.flush()


def plain(title: str, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """The table in columns of spaces."""
    widths = [max(len(x[i]) for x in [heads, *lines]) for i in range(len(heads))]
    return "\n".join([title, *("  ".join(c.ljust(w) for c, w in zip(x, widths)).rstrip() for x in [heads, *lines])])


def plot_ratios(rows: Sequence[Row], path: Path) -> bool:
    """The ratio by shape, a bar for each peer with its quartiles, a diamond where one was measured under sustained
    load; False where there is nothing to draw."""
    found = [r for r in measured(rows) if r["ratio"] is not None]
    if not found:
        return False
    plt = pyplot()
    cases, peers = list(by_case(found)), list(dict.fromkeys(r["peer"] for r in found))
    height = 0.8 / len(peers)
    fig, ax = plt.subplots(figsize=(9, 0.22 * len(cases) * (len(peers) + 1) + 1.6))
    loads: list[tuple[float, float]] = []
    for j, peer in enumerate(peers):
        mine = [r for r in found if r["peer"] == peer]
        at = [cases.index(r["case"]) + (j - (len(peers) - 1) / 2) * height for r in mine]
        ratios = [r["ratio"] for r in mine]
        errors = [[max(0.0, r["ratio"] - r["spread"][0]) for r in mine],
                  [max(0.0, r["spread"][1] - r["ratio"]) for r in mine]]
        ax.barh(at, ratios, height, xerr=errors, label=peer, error_kw={"linewidth": 0.7})
        loads += [(r["sustained"]["ratio"], y) for r, y in zip(mine, at) if r.get("sustained")]
    if loads:
        ax.scatter(*zip(*loads), marker="D", s=14, color="black", zorder=3, label="under sustained load")
    ax.set_yticks(range(len(cases)), cases, fontsize=8)
    ax.invert_yaxis()
    ax.axvline(1.0, color="black", linewidth=1)
    shown = [r["ratio"] for r in found] + [x for x, _ in loads]
    ax.set_xlim(left=min(0.8, 0.95 * min(shown)), right=1.05 * max(shown))
    ax.set_xlabel("tilejit / peer, interleaved bursts (above 1: tilejit is faster), quartiles of pairs")
    ax.legend(fontsize=8)
    fig.tight_layout()
    fig.savefig(path, dpi=120)
    plt.close(fig)
    return True


def plot_roofline(rows: Sequence[Row], path: Path) -> bool:
    """Every contender's rate over its arithmetic intensity, below the roofs of the chip; False if nothing to draw."""
    found = [r for r in measured(rows) if r["unit"] == "TFLOP/s"]
    if not found:
        return False
    plt = pyplot()
    fig, ax = plt.subplots(figsize=(9, 5.5))
    spots: dict[str, set[tuple[float, float]]] = {}
    for r in found:
        x = r["flops"] / r["bytes"]
        spots.setdefault(r["peer"], set()).add((x, r["peer_value"]))
        if r["ours"] is not None:
            spots.setdefault(f"tilejit {r['dtype']}", set()).add((x, r["ours"]))
    for name in sorted(spots, key=lambda n: n.startswith("tilejit ")):       # ours on top
        ours = name.startswith("tilejit ")
        ax.scatter(*zip(*sorted(spots[name])), s=26 if ours else 14, label=name, marker="o" if ours else "x",
                   alpha=0.9 if ours else 0.6)
    reach = [r["flops"] / r["bytes"] for r in found]
    xs = [min(reach) / 2 * (2 * max(reach) / (min(reach) / 2)) ** (i / 200) for i in range(201)]
    for dtype in dict.fromkeys(r["dtype"] for r in found):
        ax.plot(xs, [min(PEAK.get(dtype, PEAK["bf16"]), MEMORY_TBS * x) for x in xs], linewidth=1,
                label=f"{dtype}: {PEAK.get(dtype, PEAK['bf16']):.0f} TFLOP/s, {MEMORY_TBS} TB/s (specified)")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("operations per byte that must move (operands once, result once)")
    ax.set_ylabel("TFLOP/s in bursts")
    ax.legend(fontsize=7)
    fig.tight_layout()
    fig.savefig(path, dpi=120)
    plt.close(fig)
    return True


def pyplot() -> Any:
    """matplotlib without a display."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
