"""Runs a program in the emulator, and compares what two machines made of it."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from programs import Buffer, Map, Near, Program, View

RECORDINGS = Path(__file__).with_name("recordings.npz")


def aligned(data: np.ndarray) -> np.ndarray:
    """A writable copy of the bytes in whole units of 16 (TMA writes no less) from a multiple of 256, as device memory is."""
    raw = np.zeros(data.nbytes + 512, np.uint8)
    start = -raw.ctypes.data % 256
    out = raw[start:start + data.nbytes + -data.nbytes % 16]
    out[:data.nbytes] = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return out


def emulate(program: Program, policy: str = "round_robin", seed: int = 0) -> dict[str, np.ndarray]:
    """The bytes of every compared buffer after a run in the emulator. Raises on any finding."""
    from tilejit.emulator import Program as Loaded
    from tilejit.emulator import encode_tensor_map

    memory = {p.name: aligned(p.data) for p in program.params if isinstance(p, Buffer)}

    def parameter(p: Buffer | Map) -> bytes:
        if isinstance(p, Map):
            return encode_tensor_map(memory[p.buffer].ctypes.data + p.offset, p.dtype, p.shape, p.all_strides, p.box,
                                     p.swizzle, p.fill, p.steps or None)
        return int(memory[p.name].ctypes.data).to_bytes(8, "little")

    report = Loaded(program.text).launch((program.grid,), program.block, [parameter(p) for p in program.params],
                                         shared_bytes=program.shared, cluster=(program.cluster,),
                                         memory=list(memory.values()), policy=policy, seed=seed)
    report.check()
    sizes = {p.name: p.data.nbytes for p in program.params if isinstance(p, Buffer)}
    return {name: memory[name][:sizes[name]] for name in program.outputs}


def recordings() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What was recorded: about the run (gpu, driver, date, digests of programs), and "program:buffer" -> bytes.
    Two empty dicts before the first recording."""
    if not RECORDINGS.exists():
        return {}, {}
    with np.load(RECORDINGS) as file:
        about = json.loads(str(file["about"]))
        return about, {key: file[key] for key in file.files if key != "about"}


def bits(x: np.ndarray) -> np.ndarray:
    """The values as unsigned integers."""
    return x.view(f"uint{8 * x.itemsize}")


def wrong(got: np.ndarray, want: np.ndarray, near: Near | None) -> np.ndarray:
    """Mask of the values that differ by more than the bound allows."""
    differ = bits(got) != bits(want)
    if near is None:
        return differ
    with np.errstate(all="ignore"):
        g, w = got.astype(np.float64), want.astype(np.float64)
        close = np.abs(g - w) <= near.absolute + near.relative * np.abs(w)
        zero = (w == 0) & (g == 0) & (not near.any_zero_sign)
        return differ & ~(np.isnan(g) & np.isnan(w)) & ~(close & ~zero)


def difference(view: View, got: np.ndarray, want: np.ndarray) -> str:
    """How a view of two runs differs, or an empty string. `got` and `want` are the buffer's bytes."""
    a, b = view.of(got), view.of(want)
    bad = np.flatnonzero(wrong(a, b, view.near))
    if not len(bad):
        return ""
    few = ", ".join(f"[{i}] {a[i]!s} ({bits(a)[i]:#x}) for {b[i]!s} ({bits(b)[i]:#x})" for i in bad[:4])
    return f"{view.label}: {len(bad)} of {len(a)} differ: {few}"


def operands(program: Program, view: View, index: int) -> str:
    """The inputs behind a value of an elementwise program."""
    inputs = [p.data for p in program.params if isinstance(p, Buffer) and p.name.startswith("x")]
    return ", ".join(f"{x[index]!s} ({bits(x)[index]:#x})" for x in inputs if index < len(x))
