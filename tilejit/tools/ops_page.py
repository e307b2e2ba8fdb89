"""The page docs/ops.md: every op of tile IR, what it declares, and how it reaches PTX."""
from __future__ import annotations

from tilejit.ir import OPS, OpDef
from tilejit.ir.table import EFFECTS, LAYOUTS, REGIONS, TRAITS
from tilejit.ptx.emit import emitters

FAMILIES = {
    "arith": "Elementwise", "shape": "Shapes", "tensor": "Products, reductions, scans", "memory": "Global memory",
    "block": "Blocks without TMA", "control": "Control flow", "scheduled": "Made by scheduling",
}


def status(define: OpDef) -> str:
    """How an op reaches PTX: `emitted`, or `rewritten` by passes and scheduling before."""
    return "emitted" if define.name in emitters() else "rewritten"


def ops_page() -> str:
    """The page as Markdown."""
    lines = ["# Ops of tile IR", "",
             "Written by `python -m tilejit ops --page` from the op table and the emitters; a test fails when this",
             "page is out of date. Every op has a meaning in the evaluator; *emitted* ops become PTX, which the",
             "emulator and the GPU run, *rewritten* ones become other ops before. `x?` may be left out, of `xs*` there",
             "may be any number."]
    heads = ("op", "operands", "attributes", "effects", "layout", "status", "meaning")
    families = [*FAMILIES, *sorted({d.family for d in OPS.values()} - FAMILIES.keys())]
    for family in families:
        lines += ["", f"## {FAMILIES.get(family, family)}", "", _row(heads), "|---" * len(heads) + "|"]
        lines += [_row((f"`{d.name}`", " ".join(d.operands), " ".join(d.attrs), " ".join(sorted(d.effects)),
                        d.layout + ", scratch" * (d.scratch is not None), status(d), _first(d.doc)))
                  for d in sorted(OPS.values(), key=lambda d: d.name) if d.family == family]
    lines += ["", "## Words", ""]
    for title, words in (("Effects (an op without any is pure)", EFFECTS), ("Layouts", LAYOUTS), ("Regions", REGIONS),
                         ("Traits", TRAITS)):
        lines += [f"{title}:", "", *(f"* `{word}`: {meaning}" for word, meaning in words.items() if word), ""]
    return "\n".join(lines).rstrip()


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _first(doc: str) -> str:
    """The first sentence, on one line of a table."""
    text = " ".join(doc.split())
    end = text.find(". ")
    return (text if end < 0 else text[:end + 1]).replace("|", "\\|")
