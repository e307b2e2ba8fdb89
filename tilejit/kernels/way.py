"""A way to compute a product: a tile of it, what runs that, and how tiles or parts of K are shared between programs."""
from __future__ import annotations

from functools import cached_property
from typing import Any

from tilejit import cdiv
from tilejit.records import dataclass, replace

#: Bytes of shared memory for blocks and staging; the rest is barriers, scratch and alignment.
SHARED = 222 * 1024
#: Sums of a thread up to which the compiler deals tiles of four warps to two groups of consumers by itself.
DEALT = 128
_REGISTERS = 65536
#: Blocks of K of a program at least: fewer cost more to hand over than to compute.
LEAST_BLOCKS = 4
_DEEPEST = 8
#: Bytes of an operand that stay in L2 while the other one passes.
_WALKED = 17 * 2 ** 20


@dataclass(frozen=True)
class Way:
    """Tiles of m x n results, each by a program of `ctas` CTAs of `warps` warps (docs/modules.md)."""

    m: int
    n: int
    warps: int
    ctas: int = 1
    split: str = "M"
    swap: bool = False
    k_bytes: int = 128
    programs: int = 0
    stream: int = 0
    single: bool = False
    together: int = 1

    def __str__(self) -> str:
        marks = [f"{self.m}x{self.n}w{self.warps}", f"c{self.ctas}{self.split}" * (self.ctas > 1), "swap" * self.swap,
                 f"k{self.k_bytes}" * (self.k_bytes != 128), "single" * self.single,
                 f"parts{self.parts}" if self.parts else f"stream{self.stream}/{self.programs}" * (self.stream > 0)]
        return "-".join(filter(None, marks))

    def computed(self, rows: Any, columns: Any) -> tuple[Any, Any]:
        """As tiles see them."""
        return (columns, rows) if self.swap else (rows, columns)

    def tiles(self, m: int, n: int) -> int:
        rows, columns = self.computed(m, n)
        return cdiv(rows, self.m) * cdiv(columns, self.n)

    def step(self, size: int) -> int:
        """Elements of K, of `size` bytes, in a block of a program."""
        return self.k_bytes * self.k_ctas // size

    def room(self, multiprocessors: int) -> int:
        """Programs that run at once. Multiprocessors of a cluster are neighbours: of four some are left alone."""
        if self.beside and self.ctas > 2:
            return max(1, (multiprocessors // 8 - 1) * 8 // self.ctas)
        return max(1, multiprocessors * self.together // self.ctas)

    def launched(self, m: int, n: int, multiprocessors: int, batches: int = 1) -> int:
        return self.programs or min(self.room(multiprocessors), batches * self.tiles(m, n))

    def group(self, rows: int, columns: int, blocks: int) -> int:
        """Rows of tiles that are walked together, so that operands stay in L2: twice as many where K is short or
        4096 rows are all. Programs side by side should read the same of the larger operand."""
        pitch = blocks * self.k_bytes
        if rows >= columns and columns * pitch <= _WALKED // 2 and not self.columns:
            return 1
        return cdiv(4096 if pitch <= 2048 or rows * pitch <= _WALKED else 2048, max(self.m, 128))

    def divided(self, m: int, n: int, parts: int) -> Way:
        """`parts` programs for each tile of an m x n result."""
        count = self.tiles(m, n)
        return replace(self, programs=count * parts, stream=count)

    @cached_property
    def parts(self) -> int:
        """Programs that have a part of each tile, if all tiles are divided so; else 0."""
        return self.programs // self.stream if self.stream and self.programs % self.stream == 0 else 0

    @property
    def beside(self) -> bool:
        """Whether the CTAs of a program have parts of its tile, with all of K."""
        return self.ctas > 1 and self.split != "K"

    @property
    def k_ctas(self) -> int:
        return 1 if self.beside else self.ctas

    @property
    def columns(self) -> bool:
        return self.ctas > 1 and self.split == "N"

    @property
    def across(self) -> int:
        """CTAs side by side."""
        return 1 if self.split in "MK" else self.ctas if self.columns else 2

    @property
    def strip(self) -> int:
        """Columns side by side that a CTA has (`layout.clusters`), at most a line of 16 bits: what TMA reads and
        stores at a time."""
        return min(64, (self.n & -self.n) // self.across)

    @property
    def sums(self) -> int:
        return self.m * self.n // self.ctas // (32 * self.warps)

    def roomy(self, result_bytes: int, scaled: bool = False) -> bool:
        """Whether a bias and an activation find registers beside a thread's sums."""
        registers = 160 if self.warps == 12 else 232
        taken = self.sums + self.n // self.across // 4
        return taken <= registers - (12 if result_bytes < 4 else 36 if scaled else 32)

    @property
    def alone(self) -> bool:
        """Whether one group of consumers has all of a program's tiles."""
        return self.single or self.k_ctas > 1 or self.together > 1 or self.parts > 0

    @property
    def in_turn(self) -> bool:
        """Whether two groups of consumers take tiles in turn, so that one's products hide the other's stores."""
        return self.warps == 4 and not self.alone

    @property
    def scales_come(self) -> bool:
        """Whether scales of rows come with their blocks by TMA: loaded a block ahead they are waited for, but by
        three warpgroups."""
        return self.ctas == 1 and self.warps < 12

    def options(self, straight: bool = False) -> dict[str, Any]:
        """straight: threads read both operands themselves."""
        found: dict[str, Any] = dict(num_warps=self.warps)
        if self.ctas > 1:
            found.update(num_ctas=self.ctas, cluster_split=self.split)
        if self.alone or self.in_turn and self.sums > DEALT:
            found.update(num_consumer_groups=1 if self.alone else 2)
        if self.together > 1:
            # Those of one warpgroup may have a warp more, which loads.
            threads = self.together * (32 * self.warps + 32 * (self.warps == 4 and not straight))
            found.update(maxnreg=_REGISTERS // threads // 8 * 8)
        return found

    def depth(self, out_bytes: int, block: int = 0, copied: int = 0) -> int | None:
        """Blocks in shared memory, where each of several programs has a share of that, or threads copy both operands,
        `copied` blocks of K; None: as many as the compiler finds room for. block: bytes of one, if not both
        operands'."""
        if self.together == 1 and copied < 2:
            return None
        whole, part = self.m * self.n * out_bytes, staged_part(self.m, self.n)
        staged = max(whole, part) if not block else part if self.parts else whole
        if copied and self.parts:
            staged = self.m * self.n * 4
        return min(_DEEPEST, (SHARED // self.together - staged) // (block or (self.m + self.n) * self.k_bytes))


def staged_part(rows: int, columns: int) -> int:
    """Through which a tile of fp32 sums is stored: one or two pieces of 32 columns."""
    return rows * min(columns, 32) * 4 * (1 + (columns > 32))
