"""Triton as a peer: a persistent matmul on TMA descriptors in Triton's language, tuned for every shape.

The kernel uses what Triton offers on Hopper: host-side descriptors, a persistent grid, the tile loop flattened into
the K loop or warp-specialised, and an epilogue in two halves that frees shared memory for one more stage. The
choice for a shape is kept in a small file in the temporary folder.
"""
from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from contender import Absent, Contender, race, rotate

try:
    import triton
    import triton.language as tl
except ImportError:                                            # its pure parts are used where Triton is missing
    triton = tl = None


@dataclass(frozen=True)
class Config:
    """One way to run the kernel; `halves` stores the tile in two halves, `ws` asks for warp specialisation."""

    bm: int
    bn: int
    bk: int
    warps: int
    stages: int
    group: int = 8
    halves: bool = False
    flatten: bool = True
    ws: bool = False

    @property
    def label(self) -> str:
        """Short text for tables."""
        marks = "".join(m for m, on in ((" halves", self.halves), (" flat", self.flatten), (" ws", self.ws)) if on)
        return f"{self.bm}x{self.bn}x{self.bk} w{self.warps} s{self.stages} g{self.group}{marks}"

    def shared(self, element: int) -> int:
        """Bytes of shared memory: the stages, and the staging of the result (two bytes an element)."""
        result = self.bm * self.bn * 2 // (2 if self.halves else 1)
        return self.stages * (self.bm + self.bn) * self.bk * element + result


#: For 16-bit operands; `bk` counts 16-bit elements and is doubled for 8-bit ones. Warp specialisation takes four
#: warps a consumer group there and splits a tile of 128 rows between two groups.
BIG = (Config(128, 256, 64, 8, 3), Config(128, 256, 64, 8, 4, halves=True), Config(128, 256, 64, 8, 3, group=16),
       Config(128, 256, 64, 8, 3, flatten=False), Config(128, 256, 64, 4, 3, flatten=False, ws=True),
       Config(256, 128, 64, 8, 3), Config(256, 128, 64, 8, 4, halves=True),
       Config(128, 128, 64, 4, 5), Config(128, 128, 64, 8, 5), Config(128, 128, 128, 8, 3),
       Config(128, 128, 64, 4, 6, flatten=False, ws=True))
SMALL_M = (Config(64, 64, 128, 4, 6), Config(64, 64, 256, 4, 3), Config(64, 128, 128, 4, 4), Config(64, 32, 256, 4, 4),
           Config(128, 64, 128, 4, 4), Config(128, 64, 64, 4, 6), Config(64, 64, 128, 4, 5, flatten=False, ws=True))
SHARED_LIMIT = 232_448


def configs(m: int, element: int) -> tuple[Config, ...]:
    """The configurations to try for an m-row result and operands of `element` bytes."""
    table = SMALL_M if m <= 128 else BIG
    scaled = tuple(replace(c, bk=c.bk * 2 // element) for c in table)
    return tuple(c for c in scaled if c.shared(element) <= SHARED_LIMIT)


def _matmul(a_desc, b_desc, c_desc, scale, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
            GROUP: tl.constexpr, B_ROWS: tl.constexpr, HALVES: tl.constexpr, SCALED: tl.constexpr,
            FLATTEN: tl.constexpr, WS: tl.constexpr):
    """C = scale * A @ B: A [M, K]; b_desc sees B as [K, N] (B_ROWS) or as [N, K]; tiles go round in groups of rows.

    With WS the first three are pointers to contiguous matrices: Triton 3.6 splits a tile between two groups of warps,
    but not the blocks of descriptors made on the host (each group waits for half of the bytes that arrive, forever), and
    it shifts the rows of a store through pointers twice."""
    if WS:
        a_desc = tl.make_tensor_descriptor(a_desc, [M, K], [K, 1], [BM, BK])
        if B_ROWS:
            b_desc = tl.make_tensor_descriptor(b_desc, [K, N], [N, 1], [BK, BN])
        else:
            b_desc = tl.make_tensor_descriptor(b_desc, [N, K], [K, 1], [BN, BK])
        c_desc = tl.make_tensor_descriptor(c_desc, [M, N], [N, 1], [BM, BN])
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    steps = tl.cdiv(K, BK)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=FLATTEN, warp_specialize=WS):
        first = tile // (GROUP * tiles_n) * GROUP
        height = min(tiles_m - first, GROUP)
        rest = tile % (GROUP * tiles_n)
        m = (first + rest % height) * BM
        n = rest // height * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(steps):
            a = a_desc.load([m, k * BK])
            if B_ROWS:
                b = b_desc.load([k * BK, n])
            else:
                b = b_desc.load([n, k * BK]).T
            acc = tl.dot(a, b, acc)
        if SCALED:
            acc = acc * tl.load(scale)
        if HALVES:
            left, right = acc.reshape(BM, 2, BN // 2).permute(0, 2, 1).split()
            c_desc.store([m, n], left.to(c_desc.dtype))
            c_desc.store([m, n + BN // 2], right.to(c_desc.dtype))
        else:
            c_desc.store([m, n], acc.to(c_desc.dtype))


KERNEL = triton.jit(do_not_specialize=["M", "N", "K"])(_matmul) if triton else None


def call_of(a: Any, b: Any, out: Any, scale: Any, config: Config) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments and options of the kernel, descriptors made. a [M, K] row-major, b [K, N] of either order, out [M, N]:
    torch tensors, or whatever has shape, dtype, stride, T and data_ptr."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    (m, k), n = a.shape, b.shape[1]
    b_rows = b.stride(1) == 1
    halves = config.bn // 2 if config.halves else config.bn
    view, block = (b, [config.bk, config.bn]) if b_rows else (b.T, [config.bn, config.bk])
    if config.ws and any(x.stride(0) != x.shape[1] or x.stride(0) * x.dtype.itemsize % 16 for x in (a, view, out)):
        raise Absent("warp specialisation is for contiguous matrices with rows of a multiple of 16 bytes")
    operands = (a, view, out) if config.ws else (
        TensorDescriptor.from_tensor(a, [config.bm, config.bk]), TensorDescriptor.from_tensor(view, block),
        TensorDescriptor.from_tensor(out, [config.bm, halves]))
    return (*operands, scale if scale is not None else out, m, n, k), dict(
        BM=config.bm, BN=config.bn, BK=config.bk, GROUP=config.group, B_ROWS=b_rows, HALVES=config.halves,
        SCALED=scale is not None, FLATTEN=config.flatten, WS=config.ws, num_warps=config.warps,
        num_stages=config.stages)


def launcher(a: Any, b: Any, out: Any, scale: Any, config: Config) -> Callable[[], Any]:
    """A call of the kernel on torch tensors, its descriptors made once; it returns `out`."""
    import torch

    sms = torch.cuda.get_device_properties(0).multi_processor_count
    grid = (min(sms, triton.cdiv(a.shape[0], config.bm) * triton.cdiv(b.shape[1], config.bn)),)
    args, options = call_of(a, b, out, scale, config)
    if config.ws:                                              # descriptors made on the device lie in memory of theirs
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=a.device))

    def call() -> Any:
        KERNEL[grid](*args, **options)
        return out

    return call


def present() -> None:
    """Raises Absent where Triton is missing."""
    if triton is None:
        raise Absent("triton is not installed")


@dataclass(frozen=True)
class Notes:
    """What is known of the configurations, kept in a file: why one is of no use (empty text: it works), by the
    name of its recipe, and the best one of each case."""

    path: Path
    tried: dict[str, str]
    best: dict[str, dict[str, Any]]

    def save(self) -> None:
        """Write the file anew."""
        self.path.write_text(json.dumps({"tried": self.tried, "best": self.best}))


def notes(folder: Path | None = None) -> Notes:
    """The notes of this Triton and these configurations; empty ones at first."""
    version = triton.__version__ if triton else "none"
    mark = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
    path = Path(folder or tempfile.gettempdir(), f"triton-matmul-{os.getuid()}-{version}-{mark}.json")
    known = json.loads(path.read_text()) if path.exists() else {}
    return Notes(path, known.get("tried", {}), known.get("best", {}))


def recipe(config: Config, dtype: str, scaled: bool) -> str:
    """The name of what is compiled: a configuration for a dtype, with a scale or without."""
    return f"{dtype}{' scaled' if scaled else ''} {config.label}"


def tuned(case: Any, a: Any, bs: list[Any], out: Any, scale: Any, folder: Path | None = None) -> Any:
    """The kernel in its fastest configuration for this case, as a contender; `bs` are equal copies of B, used in turn.

    Raises Absent where Triton is missing or no configuration works."""
    present()
    key = f"{case.dtype} {case.m}x{case.n}x{case.k} {'NN' if bs[0].stride(1) == 1 else 'NT'}"
    known = notes(folder)
    found = configs(case.m, a.element_size())
    failed = {c: why for c in found if (why := known.tried.get(recipe(c, case.dtype, scale is not None)))}
    if key not in known.best:
        best = fastest(a, bs, out, scale, [c for c in found if c not in failed],
                       "; ".join(f"{c.label}: {why}" for c, why in failed.items()))
        known.best[key] = asdict(best)
        known.save()
    config = Config(**known.best[key])
    return Contender(rotate([launcher(a, b, out, scale, config) for b in bs]), out,
                     note=f"{config.label}, best of {len(found) - len(failed)}")


def fastest(a: Any, bs: list[Any], out: Any, scale: Any, choice: list[Config], failed: str) -> Config:
    """The best of `choice` by a race. Raises Absent if none runs, with `failed` if that is not empty."""
    from bursts import gpu_burst

    def entrant(config: Config) -> Callable[[], Any]:
        def make() -> Any:
            call = rotate([launcher(a, b, out, scale, config) for b in bs])
            with quiet():
                call()
            return gpu_burst(call)

        return make

    found = race({c.label: entrant(c) for c in choice})
    if not found.order:
        why = failed or "; ".join(f"{name}: {text}" for name, text in found.failed.items())
        raise Absent(f"no configuration runs; {why[:140]}")
    return next(c for c in choice if c.label == found.order[0])


class quiet:
    """Nothing on stderr meanwhile: a configuration that Triton cannot compile prints its whole module."""

    def __enter__(self) -> None:
        self.kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        os.close(null)

    def __exit__(self, *_: Any) -> None:
        os.dup2(self.kept, 2)
        os.close(self.kept)


def _bias_gelu(x, bias, out, columns, BLOCK: tl.constexpr):
    """out = gelu(x + bias), rows of `columns` elements; one program a block of a row."""
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.program_id(1).to(tl.int64) * columns + j
    y = tl.load(x + at, j < columns, other=0.0).to(tl.float32) + tl.load(bias + j, j < columns, other=0.0).to(tl.float32)
    y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    tl.store(out + at, y.to(out.dtype.element_ty), j < columns)


def _swiglu(x, out, columns, BLOCK: tl.constexpr):
    """out = silu(x[:, :columns]) * x[:, columns:]; one program a block of a row of the result."""
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1).to(tl.int64)
    gate = tl.load(x + row * 2 * columns + j, j < columns, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * columns + columns + j, j < columns, other=0.0).to(tl.float32)
    tl.store(out + row * columns + j, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), j < columns)


def _add(x, y, out, elements, BLOCK: tl.constexpr):
    """out = x + y; one program a block."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + i, i < elements, other=0.0).to(tl.float32) + tl.load(y + i, i < elements, other=0.0).to(tl.float32)
    tl.store(out + i, total.to(out.dtype.element_ty), i < elements)


BIAS_GELU, SWIGLU, ADD = map(triton.jit, (_bias_gelu, _swiglu, _add)) if triton else (None, None, None)


def bias_gelu(x: Any, bias: Any, out: Any) -> Any:
    """gelu(x + bias) into `out`, a bandwidth-bound kernel: what a fuser would write."""
    present()
    m, n = x.shape
    BIAS_GELU[(triton.cdiv(n, 2048), m)](x, bias, out, n, BLOCK=2048, num_warps=8)
    return out


def swiglu(x: Any, out: Any) -> Any:
    """silu(gate) * up for x = [gate | up], into `out`."""
    present()
    m, n = out.shape
    SWIGLU[(triton.cdiv(n, 1024), m)](x, out, n, BLOCK=1024, num_warps=4)
    return out


def add(x: Any, y: Any, out: Any) -> Any:
    """x + y into `out`."""
    present()
    ADD[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024, num_warps=4)
    return out
