"""The chips that PTX is written for."""
from __future__ import annotations

from tilejit.errors import CompilationError
from tilejit.ir.core import Function
from tilejit.records import dataclass


@dataclass(frozen=True)
class Target:
    """`sm` is the compute capability times ten, `shared_bytes` what a block may use of shared memory."""

    name: str
    sm: int
    shared_bytes: int

    @property
    def hopper(self) -> bool:
        """Whether it has wgmma, TMA, clusters and roles of unequal register counts."""
        return self.sm == 90

    def programs(self, threads: int, registers: int, shared: int) -> int:
        """Blocks of so many threads, registers a thread and bytes of shared memory that a multiprocessor has room for
        at once."""
        warps = -(-threads // 32)
        return min(2048 // (32 * warps), 32, (self.shared_bytes + 1024) // (shared + 1024),
                   65536 // (warps * (-(-max(1, registers) * 32 // 256) * 256)))


DEFAULT = "sm_90a"
TARGETS = {t.name: t for t in (Target("sm_90a", 90, 232448), Target("sm_80", 80, 166912))}


def target_named(name: object) -> Target:
    """The target of that name (None: the default). Raises CompilationError for an unknown one."""
    found = TARGETS.get(DEFAULT if name is None else str(name))
    if found is None:
        raise CompilationError(f"target={name!r} is not one of {', '.join(map(repr, TARGETS))}")
    return found


def target_of(fn: Function) -> Target:
    return target_named(fn.attrs.get("target"))


def product_unit(target: Target, warps: int, m: int, n: int, k: int, elem_bytes: int) -> str:
    """What computes an m x n x k product over `warps` warps: "wgmma" if it can, else "mma" (mma.sync)."""
    if not target.hopper or warps % 4 or m % 64 or k * elem_bytes % 32 or elem_bytes > 4:
        return "mma"
    split_n = max(1, warps // 4 // (m // 64))
    return "wgmma" if n // split_n >= 8 else "mma"
