"""The oracle: runs a tile IR function in numpy, program by program, and so defines what a kernel means."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from tilejit.errors import CompilationError
from tilejit.ir import numeric as num
from tilejit.ir.core import Block, Function, Op, Value
from tilejit.ir.roles import Barriers, Role, Stuck
from tilejit.ir.text import print_op
from tilejit.ir.types import Desc, DType, Ptr, Scalar
from tilejit.records import dataclass, field

_WINDOW = 40  # bits of byte address that each buffer owns
_ORIGIN = 1 << (_WINDOW - 1)  # where in its window a buffer begins, so that small negative offsets show


class EvaluationError(CompilationError):
    """A kernel broke a rule in the evaluator (out of bounds, failed assertion)."""


class _Return(Exception):
    """A `return` inside a region ends the program."""


@dataclass
class Descriptor:
    base: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block_shape: tuple[int, ...]
    padding: str = "zero"


@dataclass
class Stats:
    programs: int = 0
    ops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


@dataclass
class Machine:
    """The state of a run: memory, the current program, values, who runs."""

    fn: Function
    grid: tuple[int, int, int]
    pid: tuple[int, int, int] = (0, 0, 0)
    buffers: list[np.ndarray] = field(default_factory=list)
    env: dict[Value, Any] = field(default_factory=dict)
    stats: Stats = field(default_factory=Stats)
    assembly: Callable[[Op, Sequence[np.ndarray]], list[np.ndarray]] | None = None  # runs inline assembly
    role: Role = field(default_factory=lambda: Role(4))
    memory: Callable[[], Sequence[np.ndarray]] = tuple  # what pointers in memory point to, as bytes

    # -- memory --
    def attach(self, array: np.ndarray) -> int:
        low, high = _byte_bounds(array)
        self.buffers.append(_flat_bytes(array, low, high))
        first = array.__array_interface__["data"][0]
        return (len(self.buffers) << _WINDOW) + _ORIGIN + (first - low)

    def descriptor(self, base: int, shape: tuple[int, ...], strides: tuple[int, ...],
                   block_shape: tuple[int, ...], padding: str | None) -> Descriptor:
        return Descriptor(base, shape, strides, block_shape, padding or "zero")

    def error(self, op: Op, message: str) -> EvaluationError:
        where = f"program {self.pid}" if any(g > 1 for g in self.grid) else "the program"
        return EvaluationError(f"{op.name} in {where}: {message}", op.loc,
                               notes=(print_op(self.fn, op),))

    def _slots(self, op: Op, address: np.ndarray,
               size: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        out = []
        owner = address >> _WINDOW
        for at in np.nonzero((owner < 1) | (owner > len(self.buffers)))[0]:  # of the host: it was loaded
            owner[at] = next((-i for i, data in enumerate(self.memory(), 1)
                              if 0 <= address[at] - data.ctypes.data < data.size), 0)
            if not owner[at]:
                raise self.error(op, f"address {int(address[at]):#x} is in no argument")
        for b in np.unique(owner):
            which = np.nonzero(owner == b)[0]
            data = self.buffers[b - 1] if b > 0 else self.memory()[-b - 1]
            offset = address[which] - ((int(b) << _WINDOW) + _ORIGIN if b > 0 else data.ctypes.data)
            bad = (offset < 0) | (offset + size > data.size)
            if bad.any():
                first, total = int(offset[bad][0]) // size, data.size // size
                raise self.error(op, f"out of bounds: element {first} of an argument with {total} "
                                     f"elements ({int(bad.sum())} such accesses)")
            if (offset % size).any():
                first = int(offset[offset % size != 0][0])
                raise self.error(op, f"byte offset {first} is not aligned to {size}")
            out.append((which, data[:data.size // size * size], offset // size))
        return out

    def load(self, op: Op, ptr: np.ndarray, elem: DType, mask: Any = None,
             other: Any = None) -> np.ndarray:
        dtype = num.np_dtype(elem)
        on = np.broadcast_to(True if mask is None else mask, ptr.shape).ravel()
        fill = np.zeros((), dtype) if other is None else other
        out = np.array(np.broadcast_to(fill, ptr.shape), dtype).ravel()
        live = np.nonzero(on)[0]
        for which, data, index in self._slots(op, ptr.ravel()[live], elem.bytes):
            if elem.is_bool():
                out[live[which]] = data[index] != 0
            else:
                out[live[which]] = data.view(dtype)[index]
        self.stats.bytes_read += live.size * elem.bytes
        return out.reshape(ptr.shape)

    def store(self, op: Op, ptr: np.ndarray, value: np.ndarray, mask: Any = None) -> None:
        on = np.broadcast_to(True if mask is None else mask, ptr.shape).ravel()
        live = np.nonzero(on)[0]
        values = np.broadcast_to(value, ptr.shape).ravel()[live]
        for which, data, index in self._slots(op, ptr.ravel()[live], value.dtype.itemsize):
            if not data.flags.writeable:
                raise self.error(op, "the argument is read-only")
            data.view(np.uint8 if value.dtype == bool else value.dtype)[index] = values[which]
        self.stats.bytes_written += live.size * value.dtype.itemsize

    def read_modify_write(self, op: Op, elem: DType, ptr: np.ndarray, mask: Any, combine: Callable[..., np.ndarray],
                          *values: np.ndarray) -> np.ndarray:
        on = np.broadcast_to(True if mask is None else mask, ptr.shape).ravel()
        live = np.nonzero(on)[0]
        address = ptr.ravel()[live]
        args = [np.broadcast_to(v, ptr.shape).ravel()[live] for v in values]
        old = np.zeros(ptr.size, num.np_dtype(elem))
        if len(np.unique(address)) == len(address):
            batches = [np.arange(len(address))]
        else:
            batches = [np.array([i]) for i in range(len(address))]
        for batch in batches:
            before = self.load(op, address[batch], elem)
            self.store(op, address[batch], combine(before, *(a[batch] for a in args)))
            old[live[batch]] = before
        return old.reshape(ptr.shape)

    # -- control --
    def region(self, block: Block, args: Sequence[Any]) -> list[Any]:
        env = self.env
        env.update(zip(block.args, args))
        for op in block.ops:
            values = [env[v] for v in op.operands]
            if "terminator" in op.define.traits:
                if op.name == "return":
                    raise _Return
                return values
            env.update(zip(op.results, self.step(op, values)))
        raise self.error(block.ops[-1], "the block has no terminator")

    def whole(self, block: Block) -> None:
        for op in block.ops:
            self.env.update(zip(op.results, self.step(op, [self.env[v] for v in op.operands])))

    def wait(self, op: Op, barriers: Barriers, slot: Any, parity: Any) -> None:
        try:
            self.role.wait(barriers, slot, parity)
        except Stuck as e:
            raise self.error(op, str(e)) from None

    def step(self, op: Op, values: Sequence[Any]) -> Sequence[Any]:
        self.stats.ops += 1
        meaning = op.define.evaluate
        if meaning is None:
            raise self.error(op, f"{op.name} has no numpy meaning")
        return _values(meaning(self, op, *values))


def evaluate(fn: Function, grid: int | Sequence[int], args: Mapping[str, Any],
             assembly: Callable[[Op, Sequence[np.ndarray]], list[np.ndarray]] | None = None,
             memory: Callable[[], Sequence[np.ndarray]] = tuple) -> Stats:
    """Run every program of the grid in order (axis 0 fastest); arrays in `args` are written in place."""
    sizes = (grid,) if isinstance(grid, int) else tuple(grid)
    machine = Machine(fn, (*sizes, 1, 1)[:3], assembly=assembly, memory=memory)  # type: ignore[arg-type]
    values = [_argument(machine, a, args) for a in fn.body.args]
    with np.errstate(all="ignore"):
        first = -(-machine.grid[0] // fn.attrs.get("programs", 1))  # groups of merged programs
        for z, y, x in product(*(range(g) for g in (*reversed(machine.grid[1:]), first))):
            machine.pid = (x, y, z)
            machine.stats.programs += 1
            machine.role = Role(fn.attrs.get("num_warps", 4))
            try:
                machine.region(fn.body, values)
            except _Return:
                pass
    return machine.stats


def fold(op: Op, values: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """The results of a pure op without regions on known values, or None if they depend on the program."""
    meaning = op.define.evaluate
    if meaning is None or not op.define.pure or op.regions or "program" in op.define.traits:
        return None
    with np.errstate(all="ignore"):
        return _values(meaning(None, op, *values))


def _values(out: Any) -> list[Any]:
    several = out if isinstance(out, (list, tuple)) else () if out is None else (out,)
    return [np.asarray(x) if isinstance(x, np.generic) else x for x in several]


def _argument(machine: Machine, param: Value, args: Mapping[str, Any]) -> Any:
    if param.name not in args:
        raise EvaluationError(f"no argument for parameter {param.name}: {param.type}", machine.fn.loc)
    given, t = args[param.name], param.type
    if isinstance(t, Desc):
        base = machine.attach(_checked(given.base, t.elem, param.name))
        return Descriptor(base, tuple(map(int, given.shape)), tuple(map(int, given.strides)),
                          tuple(given.block_shape), getattr(given, "padding", "zero"))
    if isinstance(t, Ptr):
        return np.array(machine.attach(_checked(given, t.elem, param.name)), np.int64)
    assert isinstance(t, DType), t
    return num.constant(given, t)


def _checked(array: Any, elem: Scalar, name: str) -> np.ndarray:
    if not isinstance(array, np.ndarray):
        raise EvaluationError(f"parameter {name}: expected a numpy array, found {type(array).__name__}")
    if array.dtype.itemsize != elem.bytes:
        raise EvaluationError(f"parameter {name}: {array.dtype} elements for a pointer to {elem}")
    return array


def _byte_bounds(array: np.ndarray) -> tuple[int, int]:
    low = high = array.__array_interface__["data"][0]
    if array.size == 0:
        return low, low
    for size, stride in zip(array.shape, array.strides):
        if stride < 0:
            low += (size - 1) * stride
        else:
            high += (size - 1) * stride
    return low, high + array.itemsize


def _flat_bytes(array: np.ndarray, low: int, high: int) -> np.ndarray:
    if array.size == 0:
        return np.zeros(0, np.uint8)
    array = array.reshape(array.shape or (1,))  # of a 0-d array an index gives a number
    lowest = np.flip(array, tuple(axis for axis, stride in enumerate(array.strides) if stride < 0))
    first = lowest[(slice(0, 1),) * array.ndim].reshape(1).view(np.uint8)
    return np.lib.stride_tricks.as_strided(first, (high - low,), (1,), writeable=array.flags.writeable)
