"""Every configuration of the products that a heuristic of `tilejit.kernels` can pick, as calls on small arrays.

A configuration is a tile of a heuristic's table, a format of the operands (dtypes and orders) and an epilogue. Operands
reach an epilogue through the accumulator alone, so formats and epilogues are not multiplied: each format occurs with
the plainest and the fullest epilogue, each epilogue with bf16 operands. Extras of an epilogue occur alone, all
together, and all together but one. Problems are two tiles high and wide, three blocks of K deep; one tile row is cut.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from types import ModuleType
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np

import tilejit
from tilejit.kernels import batched, fused, grouped, launches, matmul, mixed, planning, scaled, streamk
from tilejit.kernels.chip import current
from tilejit.kernels.problem import Problem
from tilejit.kernels.way import Way

BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32
E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
DTYPES = {"fp32": tilejit.language.float32, "int32": tilejit.language.int32}
ACTIVATIONS = (None, "relu", "gelu", "silu")
#: Tiles of whole products, and those whose blocks of K are shared out or divided.
TILES = (*planning.LARGE, *planning.SMALL, *planning.LONG)
BATCHED = batched.TILES[::5]
SHARED = (Way(128, 256, 8), Way(128, 128, 8), Way(64, 128, 4), Way(64, 64, 4), Way(64, 32, 4, swap=True, k_bytes=256))
#: Multiprocessors that the calls see: programs of four tiles take two each.
MULTIPROCESSORS = 2


@dataclass(frozen=True)
class Format:
    """Dtypes of both operands, and whether each is row-major."""

    a: Any
    b: Any
    a_rows: bool
    b_rows: bool

    def __str__(self) -> str:
        dtype = np.dtype(self.a).name if self.a is self.b else f"{np.dtype(self.a).name}*{np.dtype(self.b).name}"
        return f"{dtype} {'NT'[not self.a_rows]}{'NT'[not self.b_rows]}"


#: A row-major, B column-major: the order that every dtype has.
PLAIN = Format(BF16, BF16, True, False)
FORMATS = (*(Format(t, t, a, b) for t in (BF16, F16) for a in (True, False) for b in (False, True)),
           *(Format(a, b, True, False) for a in (E4M3, E5M2) for b in (E4M3, E5M2)), Format(F32, F32, True, False))
INTEGERS = tuple(Format(a, b, True, False) for a in (np.int8, np.uint8) for b in (np.int8, np.uint8))


@dataclass(frozen=True)
class Configuration:
    """A name, and a call that launches the kernel of this configuration once; `patches`: (module, name, value) that
    make the heuristic pick it."""

    family: str
    name: str
    patches: tuple[tuple[ModuleType, str, Any], ...]
    call: Callable[[], Any]

    def __str__(self) -> str:
        return f"{self.family} {self.name}"

    def run(self) -> Any:
        """Launch it (or do what launches are replaced by)."""
        with pinned(self.patches):
            return self.call()


@contextmanager
def pinned(patches: tuple[tuple[ModuleType, str, Any], ...]) -> Iterator[None]:
    """Heuristics see other tables; what host functions remember of a problem is forgotten before and after."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(tilejit, "multiprocessors", lambda *_: MULTIPROCESSORS))
        for module, name, value in patches:
            stack.enter_context(patch.object(module, name, value))
        forget()
        yield
    forget()


def forget() -> None:
    """Empty the caches of the host functions, and unload their kernels (10 MB each in the emulator)."""
    for module in (matmul_module(), launches, streamk, batched, fused, grouped, scaled, mixed):
        for x in vars(module).values():
            if hasattr(x, "cache_clear"):
                x.cache_clear()
            elif isinstance(x, tilejit.Kernel):
                x.entries.clear()


def matmul_module() -> ModuleType:
    """The module of `matmul`, whose name the function took."""
    import importlib

    return importlib.import_module("tilejit.kernels.matmul")


# -- arrays ---------------------------------------------------------------------------------------------------------
def matrix(*shape: int, dtype: Any = BF16, rows: bool = True) -> np.ndarray:
    """Small numbers, the last two dimensions row- or column-major."""
    rng = np.random.default_rng(sum(shape))
    if np.dtype(dtype).kind in "iu":
        x = rng.integers(0, 7, shape).astype(dtype)
    else:
        x = rng.standard_normal(shape, F32).astype(dtype)
    return x if rows else np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)


def unaligned(m: int, n: int) -> np.ndarray:
    """A matrix whose rows are read element by element."""
    return matrix(m, n + 1)[:, :n]


def operands(f: Format, m: int, n: int, k: int, batches: tuple[int, ...] = ()) -> tuple[np.ndarray, np.ndarray]:
    """Both operands in a format."""
    return (matrix(*batches, m, k, dtype=f.a, rows=f.a_rows), matrix(*batches, k, n, dtype=f.b, rows=f.b_rows))


def depth(f: Format) -> int:
    """Three blocks of 128 bytes."""
    return 3 * 128 // np.dtype(f.a).itemsize


def extents(m: int, n: int) -> tuple[int, int]:
    """Two tiles each way, the rows cut."""
    return 2 * m - 16, 2 * n


def epilogues() -> list[tuple[Format, dict[str, Any]]]:
    """(format, bias and activation and dtype of the result): formats with little and much, epilogues with bf16."""
    out = [(f, e) for f in FORMATS for e in ({}, {"bias": True, "activation": "gelu"})]
    out += [(PLAIN, {"bias": b, "activation": a, "out_dtype": t}) for b in (False, True) for a in ACTIVATIONS
            for t in (None, "fp32")]
    return [(f, {k: v for k, v in e.items() if v}) for f, e in out]


def scaled_epilogues() -> list[tuple[Format, dict[str, Any]]]:
    """Epilogues of fp8 operands that each have a scale."""
    f = Format(E4M3, E4M3, True, False)
    out = [(f, {"scaled": True, "bias": b, "activation": a, "out_dtype": t}) for b in (False, True) for a in ACTIVATIONS
           for t in (None, "fp32")]
    return [(f, {k: v for k, v in e.items() if v}) for f, e in out]


def with_arrays(e: dict[str, Any], n: int) -> dict[str, Any]:
    """An epilogue's arguments as a host function takes them."""
    e = dict(e)
    if e.pop("scaled", False):
        e.update(scale_a=np.full(1, 0.5, F32), scale_b=np.full(1, 3.0, F32))
    if "bias" in e:
        e["bias"] = matrix(n)
    if "out_dtype" in e:
        e["out_dtype"] = DTYPES[e["out_dtype"]]
    return e


def result_bytes(f: Format, e: dict[str, Any]) -> int:
    """Bytes of an element of a product's result."""
    return 4 if "out_dtype" in e else max(2, np.dtype(f.a).itemsize)


def label(e: dict[str, Any]) -> str:
    """An epilogue in a name."""
    return " ".join(k if v is True else f"{k}={v}" for k, v in e.items())


def distinct(found: Iterator[Configuration]) -> list[Configuration]:
    """Without repetitions of a name."""
    return list({str(c): c for c in found}.values())


# -- families -------------------------------------------------------------------------------------------------------
def matmuls() -> Iterator[Configuration]:
    """`matmul`; tiles may be of the result's transpose."""
    module = matmul_module()
    ends = (*epilogues(), *scaled_epilogues())
    plain_ends = (*((f, {}) for f in FORMATS), (PLAIN, {"bias": True, "activation": "gelu"}))
    for t, turned in product(TILES, (False, True)):
        rows, columns = extents(t.m, t.n)
        m, n = (columns, rows) if turned else (rows, columns)
        way, kind = replace(t, swap=turned), " turned" * turned
        for f, e in ends if t not in (*planning.SMALL, *planning.LONG) else plain_ends:
            scaled = "scaled" in e
            size = (4 if scaled else 2) if turned else result_bytes(f, e)
            if ("bias" in e or "activation" in e) and not t.roomy(size, scaled):
                continue
            def call(f: Format = f, e: dict[str, Any] = e, m: int = m, n: int = n) -> Any:
                return matmul(*operands(f, m, n, depth(f)), **with_arrays(e, n))
            patches = ((module, "choose", lambda *a, way=way: planning.Plan(way, 0.0)),)
            yield Configuration("matmul", f"{t}{kind} {f} {label(e)}".strip(), patches, call)
            if launches.tail(Problem(m, n, depth(f) + 16, np.dtype(f.a).itemsize), t, current(), e.get("activation")):
                def ragged(f: Format = f, e: dict[str, Any] = e, m: int = m, n: int = n) -> Any:
                    return matmul(*operands(f, m, n, depth(f) + 16), **with_arrays(e, n))
                yield Configuration("matmul", f"{t}{kind} ragged {f} {label(e)}".strip(), patches, ragged)


def reads(t: Way, f: Format) -> bool:
    """Whether a tile may be picked for operands of these orders."""
    return t.strip >= 32 or not (not f.a_rows if t.swap else f.b_rows)


def streamks() -> Iterator[Configuration]:
    """Products whose K is divided: in parts that a second launch sums, between the CTAs of a program, and shared out, with
    sums in order, or added to the result."""
    for t, swap in product((*planning.LARGE, *planning.SMALL, *planning.LONG), (False, True)):
        rows, columns = extents(t.m, t.n)
        m, n = (columns, rows) if swap else (rows, columns)
        for f, e in (*((f, {}) for f in FORMATS), (PLAIN, {"bias": True, "activation": "gelu"})):
            if reads(replace(t, swap=swap), f):
                def parted(f: Format = f, e: dict[str, Any] = e, t: Way = replace(t, swap=swap).divided(m, n, 2),
                           m: int = m, n: int = n) -> Any:
                    return streamk.matmul_streamk(*operands(f, m, n, depth(f)), **with_arrays(e, n), config=t)
                yield Configuration("streamk", f"{t}{' swap' * swap} parted {f} {label(e)}".strip(), (), parted)
    shared_out = (*epilogues(), *scaled_epilogues())
    added = [(f, {"accumulate": True}) for f in FORMATS]
    for t, swap in (*((t, t.swap) for t in SHARED), *product(planning.BY_K, (False, True))):
        shared = t.k_ctas == 1
        rows, columns = extents(t.m, t.n)
        m, n = (columns, rows) if swap else (rows, columns)
        way = replace(t, swap=swap, **(dict(programs=2, stream=3) if shared else {}))
        for f, e in (*(shared_out if shared else epilogues()), *added):
            if not reads(way, f):
                continue

            def call(f: Format = f, e: dict[str, Any] = e, m: int = m, n: int = n, way: Way = way) -> Any:
                out = {"out": np.zeros((m, n), F32)} if "accumulate" in e else {}
                return streamk.matmul_streamk(*operands(f, m, n, depth(f)), **with_arrays(e, n), **out, config=way)
            yield Configuration("streamk", f"{t}{' swap' * swap} {f} {label(e)}", (), call)


def batches() -> Iterator[Configuration]:
    """`batched_matmul`."""
    for t in BATCHED:
        m, n = extents(t.m, t.n)
        for f, e in epilogues():
            if not reads(t, f) or ("bias" in e or "activation" in e) and not t.roomy(result_bytes(f, e)):
                continue
            def call(f: Format = f, e: dict[str, Any] = e, m: int = m, n: int = n, t: Way = t) -> Any:
                return batched.batched_matmul(*operands(f, m, n // 2, depth(f), (2,)), **with_arrays(e, n // 2), tiles=t)
            yield Configuration("batched", f"{t} {f} {label(e)}".strip(), (), call)


#: Extras of the fused kernels: name -> values beside none.
EXTRAS: dict[str, tuple[Any, ...]] = {
    "scale_a": ("one", "rows"), "scale_b": ("one", "columns"), "bias": (True,), "activation": ("relu", "gelu", "silu"),
    "residual": (True, "unaligned"), "z": (True,), "reduction": ("sum", "squares", "max"), "out_dtype": ("fp32",)}
FULL = {"scale_a": "rows", "scale_b": "columns", "bias": True, "activation": "gelu", "residual": True, "z": True,
        "reduction": "max"}


def extras(full: dict[str, Any]) -> list[dict[str, Any]]:
    """Each value of each extra alone and in place of the full set's, and the full set without each."""
    out: list[dict[str, Any]] = [{}, full]
    for name, values in EXTRAS.items():
        out += [e for v in values for e in ({name: v}, {**full, name: v})]
        out.append({k: v for k, v in full.items() if k != name})
    return out


def fits(t: Way, gated: bool, e: dict[str, Any]) -> bool:
    """Whether the heuristic may pick a tile for an epilogue."""
    return t in fused.fitting(gated, "bias" in e or e.get("scale_b") == "columns", "residual" in e or "z" in e,
                              e.get("residual") == "unaligned" or {"residual", "odd"} <= e.keys(), "reduction" in e)


def plain(f: Format, e: dict[str, Any]) -> bool:
    """Whether `fused_matmul` leaves it to `matmul`."""
    more = {"residual", "z", "reduction"} & e.keys() or e.get("scale_a") == "rows" or e.get("scale_b") == "columns"
    return not more and f not in INTEGERS


def fuseds() -> Iterator[Configuration]:
    """`fused_matmul` and `gated_matmul`; `odd`: widths that 8 does not divide."""
    for gated, tiles in ((False, fused.TILES), (True, fused.GATED_TILES)):
        formats = [f for f in (*FORMATS, *INTEGERS) if not gated or not f.b_rows]
        for t in tiles:
            full = FULL
            for less in (("reduction",), ("residual", "z"), ("bias", "scale_b")):
                if not fits(t, gated, full):
                    full = {k: v for k, v in full.items() if k not in less}
            ways = [(f, e) for f in formats for e in ({}, full)] + [(PLAIN, e) for e in extras(full)]
            ways += [(f, {"out_dtype": "int32"}) for f in INTEGERS if not gated]
            ways += [(PLAIN, {"activation": a, "out_dtype": "fp32", **b}) for a in ACTIVATIONS[1:] for b in ({}, {"bias": True})]
            numbers = {k: v for k, v in full.items() if k not in ("residual", "z", "reduction")}
            more = {k: v for k, v in full.items() if k != "residual"}
            ways += [(PLAIN, {"odd": True, **e}) for e in ({}, more, {**numbers, "out_dtype": "fp32"}) if gated]
            columns = t.n // 2 if gated else t.n
            m, n = extents(t.m, columns)
            for f, e in ways:
                if not fits(t, gated, e) or not gated and plain(f, e):
                    continue

                def call(f: Format = f, e: dict[str, Any] = e, m: int = m, n: int = n, gated: bool = gated) -> Any:
                    return fused_call(f, e, m, n - ("odd" in e), gated)
                yield Configuration("gated" if gated else "fused", f"{t.m}x{columns} {f} {label(e)}".strip(),
                                    ((fused, "choose", lambda *a, t=t, **k: (t, 0.0)), (fused, "_apart", lambda *_: False)),
                                    call)
    yield from endeds()


def endeds() -> Iterator[Configuration]:
    """The same where a second launch finishes the sums: one row and several, few elements a program and many."""
    for gated, m, n in product((False, True), (1, 24), (200, 16384)):
        for e in extras(FULL) if n < 1000 else ({}, FULL):
            def call(e: dict[str, Any] = e, m: int = m, n: int = n, gated: bool = gated) -> Any:
                return fused_call(PLAIN, e, m, n, gated)
            if gated or not plain(PLAIN, e):
                yield Configuration("gated" if gated else "fused", f"{m}x{n} ended {label(e)}".strip(),
                                    ((fused, "_apart", lambda *_: True),), call)


def fused_call(f: Format, e: dict[str, Any], m: int, n: int, gated: bool) -> Any:
    """One fused product with these extras."""
    pair = (2,) if gated else ()
    a, b = matrix(m, depth(f), dtype=f.a, rows=f.a_rows), matrix(*pair, depth(f), n, dtype=f.b, rows=f.b_rows)
    made: dict[str, Any] = {"activation": e.get("activation")}
    pitch = tilejit.cdiv(n, 16) * 16
    scales = {"one": (1,), "rows": (m, 1), "columns": (*(pair or (1,)), n)}
    for name in ("scale_a", "scale_b"):
        if name in e:
            made[name] = matrix(*scales[e[name]], dtype=F32)
    if "bias" in e:
        made["bias"] = matrix(*pair, n)
    if "residual" in e:
        made["residual"] = unaligned(m, n) if e["residual"] == "unaligned" else matrix(m, pitch)[:, :n]
    if "z" in e:
        made["z"] = np.zeros((*pair, m, pitch), BF16)[..., :n]
    if "reduction" in e:
        made.update(reduction=e["reduction"], reduced=np.zeros(m, F32))
    if "out_dtype" in e:
        made["out_dtype"] = DTYPES[e["out_dtype"]]
    if "odd" in e:
        made["out"] = np.zeros((m, pitch), F32 if "out_dtype" in e else BF16)[:, :n]
    return (fused.gated_matmul if gated else fused.fused_matmul)(a, b, **made)


def groupeds() -> Iterator[Configuration]:
    """`grouped_matmul` and `masked_grouped_matmul`, with and without scales of blocks."""
    for t, blocks in ((t, step == "promote") for step, tiles in planning.GROUPED.items() for t in tiles):
        for f in FORMATS:
            if not f.a_rows or blocks and np.dtype(f.a).itemsize > 1:
                continue
            for masked in (False, True):
                def call(t: Any = t, f: Format = f, masked: bool = masked, blocks: bool = blocks) -> Any:
                    return grouped_call(t, f, masked, blocks)
                yield Configuration("grouped", f"{t.m}x{t.n}{' swap' * t.swap}{' scaled' * blocks} {f}"
                                    f"{' masked' * masked}", (), call)


def grouped_call(t: Any, f: Format, masked: bool, blocks: bool) -> Any:
    """Two groups of a tile's rows and a bit."""
    (rows, n), k = t.computed(t.m, t.n), depth(f)
    rows += 8
    a = matrix(*((2, rows) if masked else (2 * rows,)), k, dtype=f.a)
    b = matrix(2, k, n, dtype=f.b, rows=f.b_rows)
    steps = tilejit.cdiv(k, 128)
    scales = dict(scale_a=matrix(*a.shape[:-1], steps, dtype=F32),
                  scale_b=matrix(2, tilejit.cdiv(n, 128), steps, dtype=F32)) if blocks else {}
    if masked:
        return grouped.masked_grouped_matmul(a, b, np.array([rows, rows - 3], np.int32), **scales, config=t)
    return grouped.grouped_matmul(a, b, np.array([0, rows - 3, 2 * rows], np.int32), **scales, config=t)


def scaleds() -> Iterator[Configuration]:
    """`matmul_blockscaled`: scales that TMA reads and others, whole and divided K."""
    for t, parts, turned in product(planning.PROMOTED, (1, 2), (True, False)):
        rows, columns = t.computed(t.m, t.n)
        m, n = (rows, 2 * columns) if t.swap and parts > 1 else extents(rows, columns)
        used = t.divided(m, n, 2) if parts > 1 else t
        if not t.scales_come and (parts > 1 or not turned):
            continue
        for f, out in product((f for f in FORMATS if np.dtype(f.a).itemsize == 1), (None, "float16", "float32")):
            def call(f: Format = f, m: int = m, n: int = n, out: str | None = out, turned: bool = turned,
                     t: Way = used) -> Any:
                scale = matrix(8 * tilejit.cdiv(m, 8), 3, dtype=F32, rows=not turned)[:m]
                return scaled.matmul_blockscaled(*operands(f, m, n, 384), scale,
                                                 matrix(tilejit.cdiv(n, 128), 3, dtype=F32),
                                                 out_dtype=out and getattr(tilejit.language, out), config=t)
            way = f"{' parts' * (parts > 1)}{' columns' * turned}"
            yield Configuration("scaled", f"{t.m}x{t.n}{way} {f} {out or 'bfloat16'}", (), call)


def mixeds() -> Iterator[Configuration]:
    """`weight_only_matmul`."""
    for i, whole in enumerate(planning.WIDENED[128]):
        for bits in (8, 4):
            for dtype in (BF16, F16):
                for group in (None, 64, 128):
                    t = planning.WIDENED[64][i] if group == 64 else whole
                    for zeros in (False, True)[:1 + (bits == 4 and group is not None)]:
                        for e in ({}, {"bias": True, "activation": "gelu"}, {"split": 2}):
                            def call(t: Way = t, bits: int = bits, dtype: Any = dtype, group: int | None = group,
                                     zeros: bool = zeros, e: dict[str, Any] = e) -> Any:
                                return mixed_call(t, bits, dtype, group, zeros, e)
                            name = f"{t.m}x{t.n} int{bits} {np.dtype(dtype).name} group={group}{' zeros' * zeros}"
                            yield Configuration("mixed", f"{name} {label(e)}".strip(), (), call)


def mixed_call(t: Any, bits: int, dtype: Any, group: int | None, zeros: bool, e: dict[str, Any]) -> Any:
    """A weight of two tiles, and as many rows as a tile holds."""
    n, m, k = 2 * t.m, t.n, 1024
    weight = matrix(n, k * bits // 8, dtype=np.int8 if bits == 8 else np.uint8)
    shape, more = (n, k // group) if group else (n,), with_arrays(e, n)
    split = more.pop("split", 1)
    return mixed.weight_only_matmul(matrix(m, k, dtype=dtype), weight, matrix(*shape, dtype=dtype),
                                    matrix(*shape, dtype=dtype) if zeros else None, **more,
                                    config=t.divided(m, n, split) if split > 1 else t)


FAMILIES: dict[str, Callable[[], Iterator[Configuration]]] = {
    "matmul": matmuls, "streamk": streamks, "batched": batches, "fused": fuseds, "grouped": groupeds, "scaled": scaleds,
    "mixed": mixeds}


def configurations() -> list[Configuration]:
    """All of them."""
    return distinct(c for make in FAMILIES.values() for c in make())


@contextmanager
def launches_replaced(by: Callable[[Any, Any, tuple], None]) -> Iterator[None]:
    """Launches in the emulator call by(entry, grid, flat arguments) instead."""
    from tilejit.runtime.launch import EmulatorEntry

    with patch.object(EmulatorEntry, "launch", lambda self, grid, flat, stream: by(self, grid, flat)), \
            tilejit.knobs(target="emulator"):
        yield
