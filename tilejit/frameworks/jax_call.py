"""`tilejit.jax`: kernels in JAX programs (docs/examples/jax_jit.py)."""
from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tilejit.errors import LaunchError
from tilejit.frameworks import xla_ffi
from tilejit.ir.types import DTYPES, DType
from tilejit.runtime import knobs
from tilejit.runtime.arrays import HOST, DeviceArray, as_dtype
from tilejit.runtime.descriptor import TensorDescriptor

#: The handler's name.
TARGET = "tilejit_call"


@dataclass(frozen=True)
class InOut:
    """An array that the kernel changes: the call returns it as a result (of a copy, where XLA needs the first)."""

    array: Any


@dataclass(frozen=True)
class Block:
    array: Any
    block_shape: tuple[int, ...]
    padding: str


def descriptor(array: Any, block_shape: Any, padding: str = "zero") -> Block:
    """`TensorDescriptor.from_tensor` of an array that JAX traces or of a result."""
    return Block(array, tuple(block_shape), padding)


@dataclass(frozen=True)
class _Spec:
    kernel: Any
    grid: Any
    args: tuple[Any, ...]
    named: Mapping[str, Any]
    context: Context

    def run(self, call: xla_ffi.Call) -> None:
        device = HOST if call.device is None else call.device

        def made(how: Any) -> Any:
            if not isinstance(how, _Place):
                return how.value
            buffer = (call.results if how.result else call.args)[how.number]
            x = DeviceArray.borrow(buffer.address, buffer.shape, DTYPES[buffer.dtype], device)
            if how.block is None:
                return x
            return TensorDescriptor.from_tensor(x, how.block.block_shape, how.block.padding)

        given = {} if call.stream is None else {"stream": call.stream}
        self.kernel[self.grid](*map(made, self.args), **self.named, **given)


@dataclass(frozen=True)
class _Place:
    number: int
    result: bool
    block: Block | None


@dataclass(frozen=True)
class _Given:
    value: Any


_specs: dict[int, _Spec] = {}
_kept: list[Any] = []
_lock = threading.Lock()


def call(kernel: Any, *args: Any, grid: Any, vmap_method: str | None = None, **named: Any) -> Any:
    """Launch `kernel[grid](*args, **named)` as an operation of a JAX program; returns its results.

    args: arrays of JAX; `jax.ShapeDtypeStruct(shape, dtype)` for each result; `InOut(array)` for an array that the
    kernel changes, a result too; `descriptor(any of these, block_shape)`; numbers and constants, which have to be known
    when the program is traced. named: constants and launch options. grid: a function of the arguments by name is called
    when the program is traced. Results come as they stand among the arguments, one alone or several as a tuple,
    row-major.

    A kernel has no gradient: give one with `jax.custom_vjp`. `jax.vmap` is refused unless vmap_method="sequential",
    which launches once for each element of the batch. Raises LaunchError for a call without results, CompilationError
    for a kernel that cannot be compiled for these arguments.
    """
    import jax

    if vmap_method not in (None, "sequential"):
        raise LaunchError(f'vmap_method={vmap_method!r}: kernels can be mapped in one way only, "sequential"')
    operands: list[Any] = []
    results: list[Any] = []
    aliases: dict[int, int] = {}

    def placed(x: Any, block: Block | None = None) -> Any:
        if isinstance(x, Block):
            return placed(x.array, x)
        if isinstance(x, InOut):
            aliases[len(operands)] = len(results)
            operands.append(jax.numpy.asarray(x.array))
            results.append(jax.ShapeDtypeStruct(operands[-1].shape, operands[-1].dtype))
            return _Place(len(results) - 1, True, _bare(block))
        if isinstance(x, jax.ShapeDtypeStruct):
            results.append(x)
            return _Place(len(results) - 1, True, _bare(block))
        if isinstance(x, np.generic):
            return _Given(x.item())
        if hasattr(x, "shape") and hasattr(x, "dtype"):
            operands.append(jax.numpy.asarray(x))
            return _Place(len(operands) - 1, False, _bare(block))
        return _Given(x)

    hows = tuple(map(placed, args))
    if not results:
        raise LaunchError(f"{kernel.__name__}: no results among the arguments of tilejit.jax.call: give "
                          "jax.ShapeDtypeStruct(shape, dtype) in the place of each array that the kernel writes")
    types = [_typed(how, operands, results) for how in hows]
    if callable(grid):
        grid = grid({**kernel.meta(tuple(types), named)})
    if hasattr(kernel, "compile"):
        kernel.compile(*types, **named)  # what is wrong with it is said here, not when XLA runs it
    spec = _Spec(kernel, grid, hows, named, copy_context())
    number = _number(spec, types)
    with _lock:
        _specs.setdefault(number, spec)
    _register()
    made = jax.ffi.ffi_call(TARGET, results, input_output_aliases=aliases, vmap_method=vmap_method)(
        *operands, call=np.int64(number))
    return made[0] if len(results) == 1 else tuple(made)


def _bare(block: Block | None) -> Block | None:
    return block and Block(None, block.block_shape, block.padding)


def _typed(how: Any, operands: list[Any], results: list[Any]) -> Any:
    """As `Kernel.compile` takes an argument without an array."""
    if not isinstance(how, _Place):
        return how.value
    dtype: DType = as_dtype((results if how.result else operands)[how.number].dtype)
    return f"*{dtype}" if how.block is None else f"desc<{dtype}[{'x'.join(map(str, how.block.block_shape))}]>"


def _number(spec: _Spec, types: list[Any]) -> int:
    """It names a call in every process alike, since programs of XLA may be kept on disk."""
    told = (spec.kernel.kernel.source.fingerprint(), type(spec.kernel).__name__, str(spec.grid),
            [(h.number, h.result, h.block) if isinstance(h, _Place) else repr(h.value) for h in spec.args],
            list(map(str, types)), sorted((k, _plain(v)) for k, v in spec.named.items()), repr(knobs.overrides()))
    return int.from_bytes(hashlib.sha256(repr(told).encode()).digest()[:7], "little")


def _plain(value: Any) -> str:
    fingerprint = getattr(getattr(value, "source", None), "fingerprint", None)
    return repr(value) if fingerprint is None else str(fingerprint())


def _run(call: xla_ffi.Call) -> None:
    spec = _specs.get(call.number)
    if spec is None:
        raise LaunchError("a call that was not traced in this process")
    spec.context.copy().run(spec.run, call)


@lru_cache(maxsize=1)
def _register() -> None:
    import jax

    for platform, gpu in (("cpu", False), ("CUDA", True)):
        handler: Callable[..., Any] = xla_ffi.handler(_run, gpu)
        _kept.append(handler)
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(handler), platform=platform)


__all__ = ["Block", "InOut", "call", "descriptor"]
