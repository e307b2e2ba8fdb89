from __future__ import annotations

from dataclasses import dataclass, field

from tilejit.errors import EmulatorError


@dataclass(frozen=True)
class Finding:
    """One broken rule; `subject` is the barrier, buffer or register that it is about."""

    kind: str
    message: str
    ptx_line: int = 0
    source_loc: tuple[str, int] | None = None
    warps: tuple[str, ...] = ()
    seed: int = 0
    subject: str = ""

    def __str__(self) -> str:
        where = f"PTX line {self.ptx_line}" if self.ptx_line else "launch"
        if self.source_loc:
            where += f" ({self.source_loc[0]}:{self.source_loc[1]})"
        who = f" [{', '.join(self.warps)}]" if self.warps else ""
        return f"{self.kind}: {self.message}\n  at {where}{who}, seed {self.seed}"


@dataclass
class Report:
    """Of one launch. `cycles` is the machine's logical clock, not time; `finished`: every CTA ran to its end."""

    ctas: int = 0
    instructions: int = 0
    barrier_waits: int = 0
    cycles: int = 0
    finished: bool = False
    findings: list[Finding] = field(default_factory=list)

    def check(self) -> Report:
        """Raise EmulatorError with every finding, if there is one."""
        if self.findings:
            raise EmulatorError("\n".join(str(f) for f in self.findings))
        return self

    def __str__(self) -> str:
        return (f"{self.ctas} CTAs, {self.instructions} warp instructions, {self.barrier_waits} barrier "
                f"waits, {len(self.findings)} findings")
