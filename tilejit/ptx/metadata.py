"""What the runtime must know to launch a PTX kernel: the contract between `ptx/` and `runtime/`."""
from __future__ import annotations

from typing import Union

from tilejit.records import dataclass

#: ("const", 3) | ("arg", "M") | ("shape", "desc", 0) | ("stride", "desc", 0) | (op, Expr, Expr)
#: with op in add sub mul div (truncates, as in C) cdiv min max. Strides are in elements.
Expr = tuple
#: Stands among the arguments for the number of programs along the grid's first axis, which merged ones ask for.
PROGRAMS = ("arg", "_programs")
#: CTAs of launches that may begin early where programs do one thing each: all of more would start more slowly.
FEW = 8192
#: Behind a directive that a kernel does without where the assembler would spill because of it.
WISH = "    // unless that spills"
#: The same of programs of which no more have room.
ALL = "    // all" + WISH


@dataclass(frozen=True)
class PointerParam:
    """A 64-bit device address: the base of array or descriptor argument `arg`."""

    arg: str


@dataclass(frozen=True)
class ScalarParam:
    """A scalar of tilejit dtype name `dtype` whose value is `expr`."""

    expr: Expr
    dtype: str


@dataclass(frozen=True)
class TensorMapParam:
    """A 128-byte CUtensorMap over the array (or descriptor) argument `base_arg`."""

    base_arg: str
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    box: tuple[int, ...]
    dtype: str
    swizzle: int
    fill: str = "zero"
    made: bool = False  # in the kernel: there is another one, for arguments that TMA does not take
    stored: bool = False  # something is written through it


Param = Union[PointerParam, ScalarParam, TensorMapParam]


@dataclass(frozen=True)
class KernelMetadata:
    """Launch facts of one kernel; JSON-able through `dataclasses.asdict`. Some properties have Triton's names."""

    name: str
    params: tuple[Param, ...]
    num_threads: int
    shared_bytes: int
    num_warps: int
    num_stages: int
    cluster: tuple[int, int, int] = (1, 1, 1)
    target: str = "sm_90a"
    #: may start before the kernel ahead has ended ("even", "few": see `LoadedKernel.early`)
    pdl: bool | str = False
    cooperative: bool = False  # all programs of a grid must run at once
    programs: int = 1  # of a CTA, along the grid's first axis
    mergeable: int = 1  # how many could be one CTA's, by the option `programs_per_cta`
    #: (argument, elements of a tile, of 16 bytes, warps at most) of a row whose length should be known
    #: (`passes/odd_rows.py`)
    spanned: tuple[str, int, int, int, tuple[int, ...]] | None = None
    #: CTAs walk over programs, a multiple of so many on from one to the next (0: they do not)
    walks: int = 0

    def blocks(self, grid: tuple[int, int, int]) -> tuple[int, int, int]:
        ctas = min(grid[0], self.walks) if self.walks else -(-grid[0] // self.programs)
        return ctas * self.cluster[0], grid[1], grid[2]

    @property
    def shared(self) -> int:
        return self.shared_bytes

    @property
    def num_ctas(self) -> int:
        return self.cluster[0]

    @property
    def cluster_dims(self) -> tuple[int, int, int]:
        return self.cluster

    @property
    def launch_pdl(self) -> bool:
        return bool(self.pdl)

    @property
    def launch_cooperative_grid(self) -> bool:
        return self.cooperative
