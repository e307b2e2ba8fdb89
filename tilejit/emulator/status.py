"""What the emulator runs and what it finds: the pages docs/instructions.md and docs/findings.md, from its tables."""
from __future__ import annotations

import re

from tilejit.ptx import isa

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


def status(form: isa.Form) -> str:
    """VM, UNIT, ORDER, HINT or MISSING."""
    from tilejit.emulator import handlers_memory, program  # noqa: F401  (program registers the executors)
    from tilejit.emulator.decode import HANDLERS
    from tilejit.emulator.execute import EXECUTE

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


def findings_page() -> str:
    """docs/findings.md: every kind of finding, and who finds it."""
    from tilejit.emulator.sanitizer.kinds import KINDS, MACHINE

    lines = ["# What the emulator finds", "",
             "Written by `python -m tilejit ops --findings`; a test fails when this page is out of date. The machine",
             "itself finds the kinds marked *always*, in every launch; the others need the sanitizer, which",
             "`tilejit.check` switches on. A finding names the PTX line, the kernel's source line, the warps with",
             "their roles, and the seed that shows it again.", "",
             "| kind | found | meaning |", "|---|---|---|"]
    lines += [f"| `{kind}` | {'always' if kind in MACHINE else 'sanitizer'} | {meaning} |"
              for kind, meaning in KINDS.items()]
    return "\n".join(lines)


def instructions_page() -> str:
    """docs/instructions.md: every instruction form and its status."""
    counts = {s: sum(status(f) == s for f in isa.FORMS) for s in MEANING}
    lines = ["# PTX instructions in the emulator", "",
             "Written by `python -m tilejit ops --ptx` from the instruction table and the emulator's registries; "
             "a test fails when this",
             "page is out of date. Anything that is not here is refused, with the line and the instruction.", "",
             "| status | forms | meaning |", "|---|---|---|"]
    lines += [f"| {s} | {counts[s]} | {MEANING[s]} |" for s in MEANING if counts[s]]
    lines += ["", "Forms marked *aligned* must be executed by the whole warp, *async* complete later, *may wait* block "
              "the warp.", "", "| instruction | modifiers | status | notes |", "|---|---|---|---|"]
    for f in isa.FORMS:
        text, choices = spelled(f)
        notes = [n for n, on in (("aligned", f.aligned), ("async", f.asynchronous), ("may wait", f.blocking)) if on]
        notes += [LIMITS[f.name]] if f.name in LIMITS else []
        lines.append(f"| `{text}` | {choices} | {status(f)} | {'; '.join(notes)} |")
    return "\n".join(lines)
