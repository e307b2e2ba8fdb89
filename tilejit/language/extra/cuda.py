from __future__ import annotations

from typing import Any

from tilejit.ir.types import fp8e4b15, fp16, int32, int64
from tilejit.language import semantics as sem
from tilejit.language.extra import libdevice
from tilejit.language.semantics import to_tensor
from tilejit.language.tensor import KernelBuilder, builtin, tensor


def _special(b: KernelBuilder, name: str, text: str, constraint: str, dtype: Any, volatile: bool) -> tensor:
    op = "inline_asm_effect" if volatile else "inline_asm"
    return tensor(b.op(op, asm=f"{text} $0, {name};", constraints=f"={constraint}", pack=1, dtypes=(dtype,)).result)


@builtin
def globaltimer(*, _b: KernelBuilder) -> tensor:
    """Nanoseconds (int64)."""
    return _special(_b, "%globaltimer", "mov.u64", "l", int64, True)


@builtin
def smid(*, _b: KernelBuilder) -> tensor:
    """The multiprocessor that runs this program (int32)."""
    return _special(_b, "%smid", "mov.u32", "r", int32, False)


@builtin
def num_threads(*, _b: KernelBuilder) -> int:
    """Threads that compute: 32 for each of num_warps."""
    return 32 * _b.num_warps  # type: ignore[attr-defined]


@builtin
def num_warps(*, _b: KernelBuilder) -> int:
    """The option num_warps."""
    return _b.num_warps  # type: ignore[attr-defined]


@builtin
def gdc_wait(*, _b: KernelBuilder) -> None:
    """Wait for the kernel ahead in the stream and its writes, where this one may begin before its end."""
    _grid_dependency(_b, "wait")


@builtin
def gdc_launch_dependents(*, _b: KernelBuilder) -> None:
    """Allow the next kernel in the stream to begin, where it is launched so."""
    _grid_dependency(_b, "launch_dependents")


@builtin
def convert_custom_float8(arg: Any, dst_ty: Any, fp_downcast_rounding: Any = None, has_minx2: Any = True, *,
                          _b: KernelBuilder) -> tensor:
    return sem.cast(_b, to_tensor(_b, arg), sem.as_dtype(dst_ty))


@builtin
def convert_fp8e4b15_to_float16(arg: Any, *, _b: KernelBuilder) -> tensor:
    return sem.cast(_b, to_tensor(_b, arg), fp16)


@builtin
def convert_float16_to_fp8e4b15(arg: Any, has_minx2: Any = True, *, _b: KernelBuilder) -> tensor:
    return sem.cast(_b, to_tensor(_b, arg), fp8e4b15)


convert_custom_float8_sm80 = convert_custom_float8_sm70 = convert_custom_float8


def _grid_dependency(b: KernelBuilder, action: str) -> None:
    b.op("inline_asm_effect", asm=f"griddepcontrol.{action}; mov.u32 $0, 0;", constraints="=r", pack=1, dtypes=(int32,))


__all__ = ["convert_custom_float8", "convert_custom_float8_sm70", "convert_custom_float8_sm80",
           "convert_float16_to_fp8e4b15", "convert_fp8e4b15_to_float16", "gdc_launch_dependents",
           "gdc_wait", "globaltimer", "libdevice", "num_threads", "num_warps", "smid"]
