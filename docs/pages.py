"""Writes the pages that are made from the package's own tables: ops.md, kernels.md, instructions.md, findings.md.

    PYTHONPATH=. python docs/pages.py

Tests fail when one of them is out of date.
"""
from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from tilejit import kernels
from tilejit.emulator import handlers_memory, program  # noqa: F401  (program registers the executors)
from tilejit.emulator.decode import HANDLERS
from tilejit.emulator.execute import EXECUTE
from tilejit.emulator.sanitizer.kinds import KINDS, MACHINE
from tilejit.ir import OPS, OpDef
from tilejit.ir.table import EFFECTS, LAYOUTS, REGIONS, TRAITS
from tilejit.ptx import isa
from tilejit.ptx.emit import emitters

FAMILIES = {
    "arith": "Elementwise", "shape": "Shapes", "tensor": "Products, reductions, scans", "memory": "Global memory",
    "block": "Blocks without TMA", "control": "Control flow", "scheduled": "Made by scheduling",
}
#: Where those are.
ROWS = "tilejit.kernels.rows."
VM = "virtual machine"
UNIT = "unit"
ORDER = "ordering"
HINT = "hint"
MISSING = "not supported"
MEANING = {
    VM: "executed for all lanes of a warp by the compiled virtual machine",
    UNIT: "carried out by the model of an asynchronous or synchronising unit (TMA, tensor core, barriers, registers)",
    ORDER: "orders memory: changes no data here, where memory is coherent; the sanitizer hears of it",
    HINT: "accepted; a program cannot observe its effect",
    MISSING: "refused with the line and the instruction",
}
#: What is refused within a form that is otherwise supported.
LIMITS = {"ld": "no `.b128`", "st": "no `.b128`", "mov": "no `.b128`; no address of a label",
          "atom": "no `.b128`", "atom.cas": "no `.b128`", "mma.sync.aligned": "C and D of one type",
          "call.uni": "`vprintf` only", "call": "`__assertfail` only"}


def ops() -> str:
    """Every op of tile IR, what it declares, and how it reaches PTX."""
    lines = ["# Ops of tile IR", "",
             "Written by `python docs/pages.py` from the op table and the emitters; a test fails when this",
             "page is out of date. Every op has a meaning in the evaluator; *emitted* ops become PTX, which the",
             "emulator and the GPU run, *rewritten* ones become other ops before. `x?` may be left out, of `xs*` there",
             "may be any number."]
    heads = ("op", "operands", "attributes", "effects", "layout", "status", "meaning")
    families = [*FAMILIES, *sorted({d.family for d in OPS.values()} - FAMILIES.keys())]
    for family in families:
        lines += ["", f"## {FAMILIES.get(family, family)}", "", _row(heads), "|---" * len(heads) + "|"]
        lines += [_row((f"`{d.name}`", " ".join(d.operands), " ".join(d.attrs), " ".join(sorted(d.effects)),
                        d.layout + ", scratch" * (d.scratch is not None), _reached(d), _first(d.doc)))
                  for d in sorted(OPS.values(), key=lambda d: d.name) if d.family == family]
    lines += ["", "## Words", ""]
    for title, words in (("Effects (an op without any is pure)", EFFECTS), ("Layouts", LAYOUTS), ("Regions", REGIONS),
                         ("Traits", TRAITS)):
        lines += [f"{title}:", "", *(f"* `{word}`: {meaning}" for word, meaning in words.items() if word), ""]
    return "\n".join(lines).rstrip()


def _reached(define: OpDef) -> str:
    """How an op reaches PTX: `emitted`, or `rewritten` by passes and scheduling before."""
    return "emitted" if define.name in emitters() else "rewritten"


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _first(doc: str) -> str:
    """The first sentence, on one line of a table."""
    text = " ".join(doc.split())
    end = text.find(". ")
    return (text if end < 0 else text[:end + 1]).replace("|", "\\|")


def rows() -> str:
    """Every row kernel and product, how it is called and what it computes."""
    lines = ["# Row kernels and products", "",
             "Written by `python docs/pages.py` from the functions' declarations; a test fails when this page is",
             "out of date. All take torch tensors, numpy arrays (without a GPU), and what `tilejit.to_device` makes;",
             "results may be given by name. Under torch those marked *operator* are custom operators too (of products",
             "without what torch has no types for: results that are given, tiles, functions), of which those marked",
             "*gradient* have one."]
    for name in kernels.__all__:
        f = getattr(kernels, name)
        operator = hasattr(f, "overload_of")
        if not (operator or f.__module__.startswith(ROWS)):
            continue
        marks = [word for word, there in (("operator", operator), ("gradient", getattr(f, "backward", None))) if there]
        lines += ["", f"## {name}", "", f"    {name}{_signature(f)}", "", *inspect.cleandoc(f.__doc__).splitlines()]
        lines += ["", f"*{', '.join(marks)}*"] if marks else []
    return "\n".join(lines)


def _signature(f: Any) -> str:
    """Names and defaults, without annotations."""
    text = str(inspect.signature(getattr(f, "fn", f)))
    return re.sub(r": (?:'[^']*'|[\w.\[\]| ]+)", "", re.sub(r" -> .*", "", text)).replace(" = ", "=")


def findings() -> str:
    """Every kind of finding of the emulator, and who finds it."""
    lines = ["# What the emulator finds", "",
             "Written by `python docs/pages.py`; a test fails when this page is out of date. The machine",
             "itself finds the kinds marked *always*, in every launch; the others need the sanitizer, which",
             "`tilejit.check` switches on. A finding names the PTX line, the kernel's source line, the warps with",
             "their roles, and the seed that shows it again.", "",
             "| kind | found | meaning |", "|---|---|---|"]
    lines += [f"| `{kind}` | {'always' if kind in MACHINE else 'sanitizer'} | {meaning} |"
              for kind, meaning in KINDS.items()]
    return "\n".join(lines)


def instructions() -> str:
    """Every instruction form and its status in the emulator."""
    counts = {s: sum(status(f) == s for f in isa.FORMS) for s in MEANING}
    lines = ["# PTX instructions in the emulator", "",
             "Written by `python docs/pages.py` from the instruction table and the emulator's registries; a test fails",
             "when this page is out of date. Anything that is not here is refused, with the line and the instruction.",
             "", "| status | forms | meaning |", "|---|---|---|"]
    lines += [f"| {s} | {counts[s]} | {MEANING[s]} |" for s in MEANING if counts[s]]
    lines += ["", "Forms marked *aligned* must be executed by the whole warp, *async* complete later, *may wait* block "
              "the warp.", "", "| instruction | modifiers | status | notes |", "|---|---|---|---|"]
    for f in isa.FORMS:
        text, choices = spelled(f)
        notes = [n for n, on in (("aligned", f.aligned), ("async", f.asynchronous), ("may wait", f.blocking)) if on]
        notes += [LIMITS[f.name]] if f.name in LIMITS else []
        lines.append(f"| `{text}` | {choices} | {status(f)} | {'; '.join(notes)} |")
    return "\n".join(lines)


def status(form: isa.Form) -> str:
    """VM, UNIT, ORDER, HINT or MISSING."""
    handler = HANDLERS.get(form.name)
    if handler is None:
        return MISSING
    if handler in (handlers_memory._nothing, handlers_memory._policy):
        return HINT
    if handler is handlers_memory._traced:
        return ORDER
    return UNIT if form.name in EXECUTE else VM


def spelled(form: isa.Form) -> tuple[str, str]:
    """The form as the manual writes it, and what its modifiers may be: (`add[.sat].type`, `type: u16 u32`)."""
    choices = []

    def slot(m: re.Match[str]) -> str:
        name, values = (m[1], m[2]) if m[1] else (m[3], m[4])
        if "|" not in values:
            return f".{values}" if m[1] else f"[.{values}]"
        choices.append(f"{name}: {values.replace('|', ' ')}")
        return f".{name}" if m[1] else f"[.{name}]"

    return re.sub(r"<(\w+):([^>]*)>|\[(\w+):([^\]]*)\]", slot, form.syntax), "; ".join(choices)


PAGES = {"ops.md": ops, "kernels.md": rows, "findings.md": findings, "instructions.md": instructions}

if __name__ == "__main__":
    for name, page in PAGES.items():
        Path(__file__).with_name(name).write_text(page() + "\n")
