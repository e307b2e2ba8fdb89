"""What the matmul benchmark runs: sets of cases, their work and their goals. Pure data, no GPU.

Shapes are written MxNxK, operand orders as two letters for A and B: N is row-major, T column-major, so that NT (A
row-major, B column-major) has K contiguous in both operands.
"""
from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

Shape = tuple[int, int, int]

BIG: tuple[Shape, ...] = (
    (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (16384, 16384, 1024), (4096, 14336, 4096),
    (8192, 28672, 8192), (8192, 8192, 28672), (4096, 4096, 32768))
#: No multiple of a tile; TMA can read all but the last, whose rows are not a multiple of 16 bytes apart.
ODD: tuple[Shape, ...] = (
    (4100, 4104, 4104), (5000, 5000, 5000), (3000, 7000, 2000), (8191, 8200, 4096), (4097, 4096, 4096),
    (2049, 6152, 4104), (7777, 3336, 5128), (4095, 4095, 4095))
#: cuBLASLt's fp8 takes multiples of 16 only.
ODD_FP8: tuple[Shape, ...] = (
    (4112, 4112, 4112), (5008, 5008, 5008), (3008, 7008, 2000), (8176, 8208, 4096), (4080, 4096, 4096),
    (2064, 6160, 4112), (7776, 3344, 5136), (2000, 2000, 2000))
DECODE_ROWS = (1, 8, 16, 32, 64, 128)
DECODE_WEIGHTS = ((8192, 8192), (7168, 18432), (8192, 28672), (28672, 8192))
#: More rows than decoding has, fewer than fill the chip with tiles.
FEW_ROWS = (96, 160, 200, 300, 512)
FEW_WEIGHTS = ((4096, 4096), (7168, 8192), (4096, 14336), (14336, 4096), (1280, 8192))
#: Few rows with more than a product: (variant, dtype, rows, N and K of weights), N of both matrices for swiglu.
FEW = (("swiglu", "bf16", (1, 16, 64, 128, 256, 512), (28672, 4096)),
       ("residual", "bf16", (1, 16, 64, 128, 256, 512), (4096, 14336)),
       ("block", "fp8", (1, 16, 32, 64, 128, 256), (7168, 16384)),
       ("int8", "bf16", (1, 16, 64, 128, 256, 2048), (28672, 8192)),
       ("int4", "bf16", (1, 16, 64, 128, 256, 2048), (28672, 8192)))
#: Bytes of an element of weights that have fewer bits than the other operand.
WEIGHT_BYTES = {"int8": 1.0, "int4": 0.5}
#: Sets whose weights come from memory, not from L2: copies of them take turns.
FROM_MEMORY = ("decode", "rows")
SPLIT: tuple[Shape, ...] = ((512, 512, 65536), (256, 256, 131072), (1024, 1024, 32768))
CUBES: tuple[Shape, ...] = ((4096, 4096, 4096), (8192, 8192, 8192))
FUSED: Shape = (4096, 14336, 4096)
ORDERS = ("NN", "NT", "TN", "TT")
#: Rows and columns of all operands start at odd multiples of 16 bytes.
ORDERED: tuple[Shape, ...] = ((5000, 5000, 5000), (2056, 6152, 4104))
#: (experts, rows in all, N, K): the rows are shared out unevenly, see `uneven`.
EXPERTS = ((8, 8192, 4096, 4096), (8, 4096, 14336, 4096), (16, 8192, 4096, 2048), (32, 8192, 2048, 4096),
           (64, 8192, 1536, 4096), (64, 1024, 2048, 7168))
BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "fp32": 4}


@dataclass(frozen=True)
class Case:
    """One comparison. `rows` is the rows of each expert (grouped), `variant` what is computed beside the product."""

    set: str
    m: int
    n: int
    k: int
    dtype: str = "bf16"
    order: str = "NT"
    batch: int = 1
    rows: tuple[int, ...] = ()
    variant: str = ""

    @property
    def label(self) -> str:
        """Shape and order as in tables, for example `4096x4096x4096 NT gelu`; the dtype where a set has several."""
        size = f"{self.m}x{self.n}x{self.k}"
        if self.rows:
            size = f"{len(self.rows)} experts {size}"
        elif self.batch > 1:
            size = f"{self.batch} x {size}"
        return " ".join(x for x in (size, self.order, self.variant, self.dtype if self.set == "tuning" else "") if x)

    @property
    def flops(self) -> float:
        """Floating-point operations of the product."""
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def bytes(self) -> float:
        """Global memory traffic if every operand is read once and the result (two bytes an element) written once."""
        each = BYTES[self.dtype]
        weights = WEIGHT_BYTES.get(self.variant, each) * max(len(self.rows), self.batch) * self.n * self.k
        width = self.n // 2 if self.variant == "swiglu" else self.n * (2 if self.variant == "residual" else 1)
        return each * self.batch * self.m * self.k + weights + 2 * self.batch * self.m * width


def uneven(experts: int, rows: int) -> tuple[int, ...]:
    """`rows` shared out unevenly and the same every time: shares fall as 1/(i+1), in shuffled order, the last gets none."""
    weights = [1 / (i + 1) for i in range(experts - 1)]
    found = [int(rows * w / sum(weights)) for w in weights] + [0]
    found[0] += rows - sum(found)
    step = next(s for s in range(experts // 2 + 1, 2 * experts) if math.gcd(s, experts) == 1)
    return tuple(found[i * step % experts] for i in range(experts))


@dataclass(frozen=True)
class Goal:
    """What a set has to show: `ratio` against `peer` ("best" is the fastest peer of each case)."""

    peer: str
    ratio: float
    floor: float = 0.0
    whole: bool = True                                                       # of the geometric mean; else of each case


GOALS: dict[str, tuple[Goal, ...]] = {
    "bf16": (Goal("best", 1.02, floor=0.99),),
    "fp8": (Goal("cublaslt", 1.05),),
    "fp8-block": (Goal("tilejit tensor-wise", 0.95),),
    "decode": (Goal("best", 1.15), Goal("copy", 0.90, whole=False)),
    "rows": (),
    "few": (),
    "splitk": (Goal("best", 1.05),),
    "batched": (Goal("best", 1.10),),
    "grouped": (Goal("best", 1.10),),
    "majors": (Goal("best", 0.97, whole=False),),
    "orders": (),
    "fused": (Goal("best", 1.15), Goal("tilejit plain", 0.96)),
    "ablation": (),
    "tuning": (Goal("best", 0.97, whole=False),),
}
SETS = tuple(GOALS)


def cases_of(name: str) -> tuple[Case, ...]:
    """The cases of a set. Raises KeyError for a name that is no set."""
    if name == "bf16":
        return tuple(Case(name, *s) for s in BIG + ODD)
    if name in ("fp8", "fp8-block"):
        return tuple(Case(name, *s, dtype="fp8", variant="block" if name == "fp8-block" else "") for s in BIG + ODD_FP8)
    if name == "decode":
        return tuple(Case(name, m, n, k) for m in DECODE_ROWS for n, k in DECODE_WEIGHTS)
    if name == "rows":
        return tuple(Case(name, m, n, k) for m in FEW_ROWS for n, k in FEW_WEIGHTS)
    if name == "few":
        return tuple(Case(name, m, *weights, dtype=dtype, variant=v) for v, dtype, rows, weights in FEW for m in rows)
    if name == "splitk":
        return tuple(Case(name, *s) for s in SPLIT)
    if name == "batched":
        return (Case(name, 512, 512, 512, batch=64),)
    if name == "grouped":
        return tuple(Case(name, m, n, k, rows=uneven(e, m)) for e, m, n, k in EXPERTS)
    if name == "majors":
        return tuple(Case(name, *CUBES[0], order=o) for o in ORDERS)
    if name == "orders":
        return tuple(Case(name, *s, order=o) for s in ORDERED for o in ORDERS)
    if name == "fused":
        return tuple(Case(name, *FUSED, variant=v) for v in ("gelu", "swiglu"))
    if name == "tuning":
        fp8 = tuple(Case(name, *s, dtype="fp8") for s in BIG + ODD_FP8)
        return tuple(Case(name, *s) for s in BIG + ODD[:-1]) + fp8
    if name == "ablation":
        return tuple(Case(name, *s) for s in CUBES)
    raise KeyError(f"no set {name!r}: sets are {', '.join(SETS)}")


def quick(cases: Sequence[Case]) -> tuple[Case, ...]:
    """About a third of a set: every third case, the first among them."""
    return tuple(cases[::3]) if len(cases) > 3 else tuple(cases)


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Shapes from `4096x14336x4096,2048^3`. Raises ValueError for anything else."""
    found = []
    for word in filter(None, re.split(r"[,\s]+", text)):
        cube, size = re.fullmatch(r"(\d+)\^3", word), re.fullmatch(r"(\d+)x(\d+)x(\d+)", word)
        if cube:
            found.append((int(cube[1]),) * 3)
        elif size:
            found.append((int(size[1]), int(size[2]), int(size[3])))
        else:
            raise ValueError(f"{word!r} is no shape: write MxNxK or S^3")
    return tuple(found)


def with_shapes(name: str, shapes: Iterable[Shape]) -> tuple[Case, ...]:
    """The set's kinds of cases at other shapes, each kind once per shape."""
    kinds = {(c.order, c.variant, c.dtype): c for c in cases_of(name)}
    return tuple(replace(c, m=m, n=n, k=k, rows=uneven(len(c.rows), m) if c.rows else ())
                 for m, n, k in shapes for c in kinds.values())


def geomean(values: Sequence[float]) -> float:
    """The geometric mean; not a number for no values."""
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else math.nan
