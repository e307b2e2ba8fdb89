from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from tilejit.errors import EmulatorError

MAGIC = 0x544A4D41
#: Element names -> (bytes, numpy or ml_dtypes type of reductions).
ELEMENTS = {"uint8": (1, "uint8"), "uint16": (2, "uint16"), "uint32": (4, "uint32"), "int32": (4, "int32"),
            "uint64": (8, "uint64"), "int64": (8, "int64"), "fp16": (2, "float16"), "fp32": (4, "float32"),
            "fp64": (8, "float64"), "bf16": (2, "bfloat16"), "tf32": (4, "float32"), "int8": (1, "uint8"),
            "int16": (2, "uint16"), "fp8e4b15": (1, "uint8"), "fp8e4nv": (1, "uint8"), "fp8e5": (1, "uint8"),
            "int1": (1, "uint8")}
_NAMES = tuple(ELEMENTS)
_FORMAT = "<IBBBBBBBxQ5Q4Q5H5B"


@dataclass(frozen=True)
class TensorMap:
    """`dims`, `box`, `elem_strides` are innermost first, `strides` in bytes of dims 1.."""

    address: int
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    elem_strides: tuple[int, ...]
    swizzle: int
    fill: str
    interleave: int = 0

    @property
    def elem_bytes(self) -> int:
        return ELEMENTS[self.dtype][0]

    @property
    def copied(self) -> tuple[int, ...]:
        return tuple(-(-b // s) for b, s in zip(self.box, self.elem_strides))

    @property
    def inner_bytes(self) -> int:
        return self.copied[0] * self.elem_bytes

    @property
    def shared_bytes(self) -> int:
        """That the tile spans: rows are as wide as the swizzle."""
        return self.box_bytes // self.inner_bytes * max(self.inner_bytes, self.swizzle)

    @property
    def box_bytes(self) -> int:
        """That one copy moves and counts on its mbarrier."""
        n = self.elem_bytes
        for c in self.copied:
            n *= c
        return n

    def pack(self) -> bytes:
        rank = len(self.dims)
        dims = (*self.dims, *(0,) * (5 - rank))
        strides = (*self.strides, *(0,) * (5 - len(self.strides) - 1))
        box = (*self.box, *(0,) * (5 - rank))
        steps = (*self.elem_strides, *(1,) * (5 - rank))
        head = (MAGIC, rank, _NAMES.index(self.dtype), self.swizzle, self.fill == "nan", self.interleave, 0, 0)
        return struct.pack(_FORMAT, *head, self.address, *dims, *strides, *box, *steps).ljust(128, b"\0")


def blank() -> TensorMap:
    return TensorMap(0, _DEVICE_TYPES[0], (1,), (), (1,), (1,), 0, "zero")


def unpack(data: bytes) -> TensorMap:
    """Raises EmulatorError if the bytes are no map. The innermost element stride is ignored (CUDA driver API,
    elementStrides)."""
    fields = struct.unpack_from(_FORMAT, data)
    if fields[0] != MAGIC:
        raise EmulatorError("the bytes are not a tensor map of encode_tensor_map")
    rank = fields[1]
    rest = fields[9:]
    return TensorMap(fields[8], _NAMES[fields[2]], rest[:rank], rest[5:5 + rank - 1], rest[9:9 + rank],
                     (1, *rest[15:14 + rank]), fields[3], "nan" if fields[4] else "zero", fields[5])


def check(m: TensorMap) -> TensorMap:
    rank, size = len(m.dims), m.elem_bytes

    def need(condition: bool, message: str) -> None:
        if not condition:
            raise EmulatorError(f"tensor map: {message}")

    need(1 <= rank <= 5, f"rank {rank} is not 1 to 5")
    need(len(m.box) == rank and len(m.strides) == rank - 1 and len(m.elem_strides) == rank,
         "shape, strides, box and element strides differ in rank")
    need(m.address % 16 == 0, f"the address {m.address:#x} is not a multiple of 16")
    need(all(1 <= d <= 1 << 32 for d in m.dims), f"dimensions {m.dims} are not 1 to 2^32")
    need(all(s % 16 == 0 and 0 <= s < 1 << 40 for s in m.strides),
         f"byte strides {m.strides} are not multiples of 16 below 2^40")
    need(all(1 <= b <= 256 for b in m.box), f"box {m.box} is not 1 to 256 in every dimension")
    need(all(1 <= s <= 8 for s in m.elem_strides), f"element strides {m.elem_strides} are not 1 to 8")
    need(m.box[0] * size % 16 == 0, f"the inner box of {m.box[0] * size} bytes is not a multiple of 16")
    need(m.swizzle in (0, 32, 64, 128), f"swizzle {m.swizzle} is not 0, 32, 64 or 128")
    need(not m.swizzle or m.box[0] * size <= m.swizzle,
         f"the inner box of {m.box[0] * size} bytes exceeds the {m.swizzle}-byte swizzle")
    need(m.interleave == 0, "interleaved layouts are not supported")
    need(m.fill == "zero" or m.dtype in ("fp16", "bf16", "fp32", "fp64", "tf32"), "NaN fill is for floats")
    return m


def encode_tensor_map(address: int, dtype_name: str, shape: tuple[int, ...], strides_elems: tuple[int, ...],
                      box: tuple[int, ...], swizzle: int, fill: str = "zero",
                      elem_strides: tuple[int, ...] | None = None, interleave: int = 0) -> bytes:
    """The 128 bytes of a tensor map, from arguments outermost first (as `ptx.metadata.TensorMapParam`)."""
    if dtype_name not in ELEMENTS:
        raise EmulatorError(f"tensor map: no element type {dtype_name!r}; there are {sorted(ELEMENTS)}")
    if strides_elems and strides_elems[-1] != 1:
        raise EmulatorError(f"tensor map: the last stride is {strides_elems[-1]}, it must be 1")
    size = ELEMENTS[dtype_name][0]
    steps = tuple(elem_strides or (1,) * len(shape))
    m = TensorMap(int(address), dtype_name, tuple(int(s) for s in reversed(shape)),
                  tuple(int(s) * size for s in reversed(strides_elems[:-1])),
                  tuple(int(b) for b in reversed(box)), tuple(reversed(steps)), swizzle, fill, interleave)
    return check(m).pack()


_DEVICE_TYPES = ("uint8", "uint16", "uint32", "int32", "uint64", "int64", "fp16", "fp32", "fp32", "fp64", "bf16",
                 "tf32", "tf32")


def replaced(m: TensorMap, what: str, value: int, ordinal: int) -> TensorMap:
    """The map after `tensormap.replace` of one field (PTX ISA, tensormap.replace, values by table)."""
    if what == "global_address":
        return replace(m, address=value)
    if what == "rank":
        rank = value + 1
        def pad(t: tuple[int, ...], n: int) -> tuple[int, ...]:
            return (*t, *(1,) * n)[:n]
        return replace(m, dims=pad(m.dims, rank), strides=pad(m.strides, rank - 1), box=pad(m.box, rank),
                       elem_strides=pad(m.elem_strides, rank))
    if what == "elemtype":
        return replace(m, dtype=_DEVICE_TYPES[value])
    if what == "swizzle_mode":
        return replace(m, swizzle=(0, 32, 64, 128)[value])
    if what == "fill_mode":
        return replace(m, fill="nan" if value else "zero")
    if what == "interleave_layout":
        return replace(m, interleave=value)
    name = {"box_dim": "box", "global_dim": "dims", "global_stride": "strides", "element_stride": "elem_strides"}[what]
    old = getattr(m, name)
    return replace(m, **{name: (*old[:ordinal], value, *old[ordinal + 1:])})
