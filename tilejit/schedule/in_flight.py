"""How much a kernel that is bound by memory has under way at once: bytes in flight on a multiprocessor."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilejit.ir import Function, listed, loop_around
from tilejit.ir.report import Record
from tilejit.ir.target import target_named, target_of
from tilejit.ir.types import Tile, elem_of

#: Bytes on a multiprocessor below which memory idles; programs and threads that it has at most.
ENOUGH, PROGRAMS, THREADS = 40 * 1024, 32, 2048
#: What a CTA takes of shared memory beside its part of the rows that it keeps, in bytes.
BESIDE = 2048
#: CTAs of a multiprocessor, so that some load while others compute and store: a row is left whole where there are three
#: without a cluster, else divided by as few CTAs as leave six (65536 columns of bf16 on an H200, layernorm with two
#: weights, rmsnorm with one, softmax: 0.82, 0.90, 0.94 of a copy with three and clusters of two, 0.84, 0.91, 0.94 with
#: six and clusters of four; 50257: 0.58, 0.71, 0.78 with two, 0.62, 0.73, 0.80 with four).
RESIDENT, DIVIDED, CTAS = 3, 6, 16
#: Bytes of rows that may begin anywhere, up to which WARP_BYTES of them have a warp: the fewer warps wait for one
#: another the better, as far as programs fill the multiprocessor (4097 columns of bf16 on an H200, softmax, rmsnorm,
#: layernorm: 0.94, 0.81, 0.81 of a copy with one warp, 0.98, 0.89, 0.87 with two, 0.94, 0.85, 0.73 with four).
ALONE = 16384
#: Bytes of rows a warp, and elements, so that they are worked on in strips.
WARP_BYTES, WARP_ELEMENTS = 8192, 1024


def cluster_of(size: int, block: int, most_warps: int = 16) -> tuple[int, int]:
    """(CTAs that divide rows of `size` bytes in shared memory, `block` elements in one; warps of each)."""
    ctas, shared = 1, target_named(None).shared_bytes
    while ctas < CTAS and shared // (size // ctas + BESIDE) < (RESIDENT if ctas == 1 else DIVIDED):
        ctas *= 2
    warps = 1 << (max(1, size // ctas // WARP_BYTES) - 1).bit_length()
    return ctas, max(min(4, most_warps), min(most_warps, warps, block // ctas // WARP_ELEMENTS))


def warps_anywhere(size: int, block: int, most: int) -> int:
    return max(1, size // WARP_BYTES) if size <= ALONE else cluster_of(size, block, most)[1]


def divided(fn: Function, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Options for a cluster, or for fewer warps; None where the author's are as well (docs/modules.md)."""
    if options.get("num_ctas", 1) != 1 or options.get("cluster_split") or options.get("launch_cooperative_grid") or \
            not target_of(fn).hopper:
        return None
    warps = most = options.get("num_warps", 4)
    loads = [op for op in fn.body.ops if op.name == "row_load"]
    rows, said = [op.result.tile for op in loads], [x for x in fn.attrs.get("report", ()) if isinstance(x, Record)]
    spare, few = ([x for x in said if x.kind == kind] for kind in ("in_registers", "few_elements"))
    size = sum(t.numel * elem_of(t).bits // 8 for t in rows) + sum(int(x.numbers["bytes"]) for x in spare)
    block = min([t.numel for t in rows] + [int(x.numbers["size"]) for x in spare], default=0)
    ctas, each = cluster_of(size, block, warps) if size else (1, 0)
    if ctas > 1:
        return {**options, "num_ctas": ctas, "num_warps": each}
    if options.get("maxnreg") or most not in (2, 4, 8, 16):
        return None
    if few and not rows:
        most = max(min(4, most), most // 2)
        if any(x.numbers["anywhere"] for x in few):
            size, block = sum(int(x.numbers["bytes"]) for x in few), min(int(x.numbers["size"]) for x in few)
            most = warps_anywhere(size, block, warps // 2)
    elif any(op.attrs.get("unaligned") for op in loads):
        most = warps_anywhere(size, block, most)
    return {**options, "num_warps": most} if most < warps else None


def in_flight(fn: Function) -> Record | None:
    """The record of a kernel without products: what it loads outside of loops before it needs any of it."""
    ops = listed(fn.body)
    tiles = [op.result.type for op in fn.body.ops if op.name in ("load", "row_read")]
    rows = [op.operands[0].buffer for op in ops if op.name == "row_copy" and loop_around(op) is None]
    size = sum(t.numel * max(8, elem_of(t).bits) // 8 for t in tiles if isinstance(t, Tile))
    size = size // fn.attrs.get("num_ctas", 1) + sum(row.slot_bytes for row in rows)
    if not size or any("dot" in op.name for op in ops):
        return None
    threads, shared = fn.attrs["num_threads"], fn.attrs.get("shared_bytes", 0)
    programs = min(PROGRAMS, THREADS // threads, target_of(fn).shared_bytes // (shared + 2048) if shared else PROGRAMS)
    total = programs * size
    text = f"in flight: {size} bytes a CTA, {programs} of them a multiprocessor: {total / 1024:.1f} KB"
    if total < ENOUGH:
        text += (f"; memory idles below about {ENOUGH // 1024} KB: more elements a thread, fewer threads a program, or "
                 "num_ctas for less of a row in each")
    return Record("in_flight", text, bytes=size, programs=programs, total=total, enough=total >= ENOUGH)
