"""What a conformance program is, and how elementwise ones are built.

A program is PTX text with everything that a launch needs: buffers with fixed contents, tensor maps of them, and
views: the parts of buffers that are compared afterwards, each with its label and bound. `record.py` runs programs
on a GPU, `test_conformance.py` in the emulator; neither knows what a program does.
"""
from __future__ import annotations

import hashlib
import importlib
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import ml_dtypes
import numpy as np

HEADER = ".version 8.6\n.target sm_90a\n.address_size 64\n"
REGISTERS = (".reg .pred %p<32>; .reg .b16 %h<64>; .reg .b32 %r<400>; .reg .b64 %rd<96>; .reg .f32 %f<160>; "
             ".reg .f64 %fd<64>;\n")
#: The modules that define programs, each with a function `programs()`.
MODULES = ("programs_float", "programs_approx", "programs_integer", "programs_compare", "programs_cvt",
           "programs_memory", "programs_atomic", "programs_warp", "programs_barrier", "programs_copy",
           "programs_tensor", "programs_cluster", "programs_matrix", "programs_wgmma", "programs_fault")

#: kind -> (type of ld/st, register class, numpy dtype, values a register)
KINDS: dict[str, tuple[str, str, type, int]] = {
    "u8": ("u8", "b16", np.uint8, 1), "s8": ("s8", "b16", np.int8, 1), "b16": ("b16", "b16", np.uint16, 1),
    "u16": ("u16", "b16", np.uint16, 1), "s16": ("s16", "b16", np.int16, 1), "b32": ("b32", "b32", np.uint32, 1),
    "u32": ("u32", "b32", np.uint32, 1), "s32": ("s32", "b32", np.int32, 1), "b64": ("b64", "b64", np.uint64, 1),
    "u64": ("u64", "b64", np.uint64, 1), "s64": ("s64", "b64", np.int64, 1), "f16": ("b16", "b16", np.float16, 1),
    "bf16": ("b16", "b16", ml_dtypes.bfloat16, 1), "f16x2": ("b32", "b32", np.float16, 2),
    "bf16x2": ("b32", "b32", ml_dtypes.bfloat16, 2), "u16x2": ("b32", "b32", np.uint16, 2),
    "s16x2": ("b32", "b32", np.int16, 2), "f32": ("f32", "f32", np.float32, 1), "tf32": ("b32", "b32", np.uint32, 1),
    "f64": ("f64", "f64", np.float64, 1), "e4m3x2": ("b16", "b16", np.uint8, 2), "e5m2x2": ("b16", "b16", np.uint8, 2),
}


@dataclass(frozen=True)
class Near:
    """Bound of an approximate result: |got - recorded| <= absolute + relative * |recorded|. Infinities, NaNs and
    the sign of a zero must still agree. `source` says where the bound is documented; `any_nan` and `any_zero_sign`
    weaken the rule where the manual leaves the payload or the sign open."""

    relative: float
    absolute: float
    source: str
    any_zero_sign: bool = False


#: Equal bits, but any NaN equals any NaN: where the manual does not fix the payload.
ANY_NAN = Near(0.0, 0.0, "PTX ISA, Floating-Point Instructions: the payload of a NaN result is not specified")


@dataclass(frozen=True)
class Buffer:
    """Device memory: a kernel parameter with its address. `data` is what it holds before the launch."""

    name: str
    data: np.ndarray

    def __post_init__(self) -> None:
        self.data.flags.writeable = False                  # every test sees the same programs


@dataclass(frozen=True)
class Map:
    """A kernel parameter with a tensor map over a buffer. Shape, strides (elements), box and element strides are
    outermost first; `swizzle` in bytes (0, 32, 64, 128); `fill` "zero" or "nan"; `offset` in bytes."""

    buffer: str
    dtype: str
    shape: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    fill: str = "zero"
    steps: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    offset: int = 0

    @property
    def all_strides(self) -> tuple[int, ...]:
        """Strides in elements, those of a C-contiguous array unless given."""
        if self.strides:
            return self.strides
        out = [1]
        for n in reversed(self.shape[1:]):
            out.insert(0, out[0] * n)
        return tuple(out)


@dataclass(frozen=True)
class View:
    """Part of a buffer that is compared: `count` values of a dtype from a byte offset; bits unless `near`."""

    buffer: str
    label: str
    offset: int
    dtype: str
    count: int
    near: Near | None = None

    def of(self, data: np.ndarray) -> np.ndarray:
        """The values of this view in the bytes of its buffer."""
        kind = np.dtype(getattr(ml_dtypes, self.dtype, self.dtype))
        return data[self.offset:self.offset + self.count * kind.itemsize].view(kind)


@dataclass(frozen=True)
class Program:
    """One conformance program. `params` are Buffers and Maps in the order of the entry's parameters; a Map's
    buffer is a parameter too. One that `faults` breaks a rule of the hardware: the GPU stops with an error, which
    is what is recorded, and the emulator must stop too."""

    name: str
    text: str
    params: tuple[Buffer | Map, ...]
    views: tuple[View, ...]
    grid: int = 1
    block: int = 32
    cluster: int = 1
    shared: int = 0
    faults: bool = False

    @property
    def digest(self) -> str:
        """Identifies text, inputs and launch: a recording of another digest is stale."""
        h = hashlib.sha256(self.text.encode())
        for p in self.params:
            h.update(p.data.tobytes() if isinstance(p, Buffer) else repr(p).encode())
        h.update(repr((self.grid, self.block, self.cluster, self.shared)).encode())
        return h.hexdigest()[:16]

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the buffers that are compared."""
        return tuple(dict.fromkeys(v.buffer for v in self.views))


def random(name: str) -> np.random.Generator:
    """The generator of a program's inputs: fixed by its name."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def kernel(body: str, params: Sequence[Buffer | Map], header: str = "", directives: str = "") -> str:
    """A module with one entry `k`; a parameter is called as its buffer, a map `m0`, `m1`, ..."""
    declared, maps = [], 0
    for p in params:
        if isinstance(p, Map):
            declared.append(f".param .align 64 .b8 m{maps}[128]")
            maps += 1
        else:
            declared.append(f".param .u64 {p.name}")
    body = re.sub(r";[ \t]*(?=\S)", ";\n", body)         # an instruction a line: errors name the right one
    return (f"{HEADER}{header}\n.visible .entry k({', '.join(declared)})\n{directives}\n{{\n{REGISTERS}{body}\nret;\n}}\n")


def whole(buffer: Buffer, near: Near | None = None, label: str = "") -> View:
    """A view of all of a buffer."""
    data = buffer.data
    return View(buffer.name, label or buffer.name, 0, data.dtype.name, data.size, near)


#: One variant of an elementwise program: PTX with %a0.. as inputs and %d as result, the result's kind, the bound.
Variant = tuple[str, str, "Near | None"]


def elementwise(name: str, inputs: Sequence[tuple[str, np.ndarray]], variants: Sequence[Variant],
                header: str = "") -> Program:
    """A program whose thread i runs every variant on element i of the inputs, a multiple of 128 long.

    `inputs` are (kind, values of that kind); each variant gets a view labelled with its text.
    """
    buffers, lines, views = [], [], []
    n = 0
    lines.append("mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r1, %r1, %r2, %r3;")
    lines.append("ld.param.u64 %rd1, [y]; " + " ".join(
        f"mad.wide.u32 %rd{2 + i}, %r1, {size}, %rd1;" for i, size in enumerate((1, 2, 4, 8))))
    for i, (kind, values) in enumerate(inputs):
        load, cls, dtype, per = KINDS[kind]
        data = np.ascontiguousarray(values)
        assert data.dtype == dtype and data.size % (128 * per) == 0, (name, kind, data.dtype, data.size)
        n = data.size // per
        buffers.append(Buffer(f"x{i}", data))
        lines.append(f".reg .{cls} %a{i}; ld.param.u64 %rd6, [x{i}]; mad.wide.u32 %rd6, %r1, {data.itemsize * per}, %rd6; "
                     f"ld.global.{load} %a{i}, [%rd6];")
    offset = 0
    for i, (text, kind, near) in enumerate(variants):
        load, cls, dtype, per = KINDS[kind]
        size = np.dtype(dtype).itemsize * per
        result = re.sub(r"%d\b", f"%d{i}", text)
        base = 2 + (1, 2, 4, 8).index(size)
        lines.append(f".reg .{cls} %d{i}; {result} st.global.{load} [%rd{base}+{offset}], %d{i};")
        views.append(View("y", text, offset, np.dtype(dtype).name, n * per, near))
        offset += n * size
    y = Buffer("y", np.zeros(offset, np.uint8))
    params = (*buffers, y)
    return Program(name, kernel("\n".join(lines), params, header), params, tuple(views), n // 128, 128)


def per_thread(name: str, body: str, buffers: Sequence[Buffer], words: int, header: str = "", directives: str = "",
               maps: Sequence[Map] = (), near: Near | None = None, dtype: type = np.uint32, block: int = 32,
               grid: int = 1, cluster: int = 1, shared: int = 0, more: Sequence[View] = ()) -> Program:
    """A program that ends with every thread's `words` 32-bit results at %rd1 (its own part of `y`).

    In `body`: %r1 is the thread in its CTA, %r2 the thread in the grid, %rd1 where its results go, and `[x]`-like
    parameters are the buffers. What is not written stays 0xEEEEEEEE.
    """
    total = block * grid * words
    y = Buffer("y", np.full(total, 0xEEEEEEEE, np.uint32))
    start = ("mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mad.lo.u32 %r2, %r2, %r3, %r1; "
             f"ld.param.u64 %rd1, [y]; mad.wide.u32 %rd1, %r2, {4 * words}, %rd1;\n")
    params = (*maps, *buffers, y)
    view = View("y", "y", 0, np.dtype(dtype).name, total * 4 // np.dtype(dtype).itemsize, near)
    return Program(name, kernel(start + body, params, header, directives), params, (view, *more), grid, block, cluster, shared)


def store(registers: Sequence[str], kind: str = "u32") -> str:
    """Store registers as a thread's results, in order, behind %rd1."""
    size = np.dtype(KINDS[kind][2]).itemsize
    return " ".join(f"st.global.{KINDS[kind][0]} [%rd1+{i * size}], {r};" for i, r in enumerate(registers)) + "\n"


@lru_cache(maxsize=1)
def all_programs() -> dict[str, Program]:
    """Every program by name."""
    found: dict[str, Program] = {}
    for module in MODULES:
        for p in importlib.import_module(module).programs():
            assert p.name not in found, p.name
            found[p.name] = p
    return found
