"""What Triton's hooks are told of a compilation and of a launch."""
from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilejit.compat.triton.runtime.driver import driver
from tilejit.frontend import Const
from tilejit.ir.types import Desc, DType, Ptr

if TYPE_CHECKING:
    from tilejit.compat.triton.runtime.jit import JITFunction


@dataclass
class JitFunctionInfo:
    """The kernel that a hook is called for."""

    module: str
    name: str
    jit_function: JITFunction


def type_name(t: Any) -> str:
    """Triton's short name of a type: `i32`, `*fp32`, `tensordesc<fp16[64, 64]>`."""
    if isinstance(t, Ptr):
        return "*" + type_name(t.elem)
    if isinstance(t, Desc):
        return f"tensordesc<{type_name(t.elem)}{list(t.block_shape)}>"
    if isinstance(t, DType) and t.is_int:
        return f"{'u' if t.kind in ('uint', 'bool') else 'i'}{t.bits}"
    return str(t)


def compile_info(fn: JITFunction, described: Mapping[str, Any], options: Mapping[str, Any],
                 warmup: bool) -> dict[str, Any]:
    """A compilation as Triton's hooks are told of it."""
    signature = {n: "constexpr" if isinstance(a, Const) else type_name(a.type) for n, a in described.items()}
    constants = {(i,): a.value for i, (n, a) in enumerate(described.items()) if isinstance(a, Const)}
    divisible = {(i,): [["tt.divisibility", 16]] for i, a in enumerate(described.values())
                 if not isinstance(a, Const) and getattr(a, "divisible", 1) % 16 == 0}
    shown = {"num_warps": options.get("num_warps", 4), "num_ctas": options.get("num_ctas", 1),
             "num_stages": options.get("num_stages", 3), "enable_fp_fusion": options.get("enable_fp_fusion", True),
             "launch_cooperative_grid": options.get("launch_cooperative_grid", False)}
    special = ["D" if k in divisible else "" for k in ((i,) for i in range(len(described)))]
    key = str([(s, constants.get((i,), d)) for i, (s, d) in enumerate(zip(signature.values(), special))]) + str(
        {**options, **shown})
    arguments = ", ".join(f"{n}: {t}" for n, t in signature.items())
    settings = ", ".join(f"{k}={v}" for k, v in shown.items())
    name = f"{fn.fn.__module__}.{fn.fn.__qualname__}"
    data = {"name": name, "signature": signature, "constant_keys": [list(k) for k in constants],
            "constant_vals": [_plain(v) for v in constants.values()], "attrs_keys": [list(k) for k in divisible],
            "attrs_vals": list(divisible.values()), "options": {k: _plain(v) for k, v in options.items()}, "key": key}
    return {"key": key, "repr": f"{fn.fn.__qualname__}[{settings}]({arguments})", "signature": signature,
            "device": driver.active.get_current_device(), "constants": constants, "extern_libs": (),
            "configs": [divisible], "specialization_data": json.dumps(data), "is_warmup": warmup, **shown}


def _plain(value: Any) -> Any:
    """A constant as JSON can hold it."""
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)


class LazyDict:
    """What a launch hook gets: `get()` is a dictionary, whose expensive part is made when asked for."""

    def __init__(self, data: dict[str, Any]):
        self.data, self.extras = data, list[tuple[Callable[..., dict[str, Any]], tuple]]()

    def add(self, func: Callable[..., dict[str, Any]], args: tuple) -> None:
        """`func(*args)` has more."""
        self.extras.append((func, args))

    def get(self) -> dict[str, Any]:
        """All of it."""
        for func, args in self.extras:
            self.data = {**self.data, **func(*args)}
        self.extras.clear()
        return self.data


def launch_data(fn: JITFunction, grid: Any, args: tuple, kwargs: dict[str, Any]) -> LazyDict:
    """A launch as Triton's hooks are told of it: the kernel's name and stream, and its own `launch_metadata`."""
    plan, flat = fn._bound(args, kwargs)
    named = {n: flat[i] for n, i in plan.at.items()}
    data = LazyDict({"name": fn.__name__, "function": fn, "stream": driver.active.get_current_stream()})
    if fn.launch_metadata is not None:
        from tilejit.compat.triton.compiler.compiler import Metadata

        options = fn.options(plan, flat)
        shown = Metadata({"name": fn.__name__, "num_warps": options.get("num_warps", 4),
                          "num_ctas": options.get("num_ctas", 1), "num_stages": options.get("num_stages", 3)})
        sizes = fn.grid(grid, plan, flat)
        data.add(fn.launch_metadata, (sizes, shown, named))
    return data
