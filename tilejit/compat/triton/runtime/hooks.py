from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilejit.compat.triton.runtime.driver import driver
from tilejit.frontend import Const, KernelSource
from tilejit.frontend.arguments import Group
from tilejit.ir.types import DTYPES, Desc, DType, Ptr
from tilejit.language.tensor import constexpr

if TYPE_CHECKING:
    from tilejit.compat.triton.runtime.jit import JITFunction

#: kernels that were constants of others, by name, for what is preloaded later
_FUNCTIONS: dict[str, Any] = {}


@dataclass
class JitFunctionInfo:
    module: str
    name: str
    jit_function: JITFunction


def type_name(t: Any) -> str:
    if isinstance(t, Ptr):
        return "*" + type_name(t.elem)
    if isinstance(t, Desc):
        return f"tensordesc<{type_name(t.held)}{list(t.block_shape)}>"
    if isinstance(t, DType) and t.is_int():
        return f"{'u' if t.family in ('uint', 'bool') else 'i'}{t.bits}"
    return str(t)


def _described(arg: Any) -> Any:
    if isinstance(arg, Group):
        return tuple(map(_described, arg.items))
    return "constexpr" if isinstance(arg, Const) else type_name(arg.type)


def _leaves(place: tuple[int, ...], args: Iterable[Any]) -> Iterator[tuple[tuple[int, ...], Any]]:
    for i, arg in enumerate(args):
        if isinstance(arg, Group):
            yield from _leaves((*place, i), arg.items)
        else:
            yield (*place, i), arg


def compile_info(fn: JITFunction, described: Mapping[str, Any], options: Mapping[str, Any],
                 warmup: bool) -> dict[str, Any]:
    signature = {n: _described(a) for n, a in described.items()}
    leaves = dict(_leaves((), described.values()))
    constants = {place: a.value for place, a in leaves.items() if isinstance(a, Const)}
    divisible = {place: [["tt.divisibility", 16]] for place, a in leaves.items()
                 if not isinstance(a, Const) and getattr(a, "divisible", 1) % 16 == 0}
    shown = {"num_warps": options.get("num_warps", 4), "num_ctas": options.get("num_ctas", 1),
             "num_stages": options.get("num_stages", 3), "enable_fp_fusion": options.get("enable_fp_fusion", True),
             "launch_cooperative_grid": options.get("launch_cooperative_grid", False)}
    parts = [(*place, type_name(a.type), "D" if place in divisible else "") if place not in constants else
             (*place, _plain(a.value)) for place, a in leaves.items()]
    kinds = [a.kind for a in described.values() if isinstance(a, Group)]
    key = f"{parts}{kinds or ''}{ {**options, **shown} }{fn.cache_key}"
    arguments = ", ".join(f"{n}: {t}" for n, t in signature.items())
    settings = ", ".join(f"{k}={v}" for k, v in shown.items())
    name = f"{fn.fn.__module__}.{fn.fn.__qualname__}"
    data = {"name": name, "signature": signature, "constant_keys": [list(k) for k in constants],
            "constant_vals": [_plain(v) for v in constants.values()], "attrs_keys": [list(k) for k in divisible],
            "attrs_vals": list(divisible.values()), "options": {k: _plain(v) for k, v in options.items()}, "key": key,
            "target": vars(driver.active.get_current_target())}
    return {"key": key, "repr": f"{fn.fn.__qualname__}[{settings}]({arguments})", "signature": signature,
            "device": driver.active.get_current_device(), "constants": constants,
            "extern_libs": options.get("extern_libs", ()), "configs": [divisible],
            "specialization_data": json.dumps(data), "is_warmup": warmup, **shown}


def _plain(value: Any) -> Any:
    if isinstance(value, constexpr):
        return _plain(value.value)
    if isinstance(getattr(value, "source", None), KernelSource):
        _FUNCTIONS[f"{value.fn.__module__}:{value.fn.__qualname__}"] = value
        return {"jit_function": f"{value.fn.__module__}:{value.fn.__qualname__}", "key": value.cache_key}
    if isinstance(value, DType):
        return {"dtype": value.name}
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)


def _made(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_made, value))
    if not isinstance(value, dict):
        return value
    if "dtype" in value:
        return DTYPES[value["dtype"]]
    if value["jit_function"] not in _FUNCTIONS:
        raise RuntimeError(f"Unable to resolve JITFunction {value['jit_function']} for preload")
    return _FUNCTIONS[value["jit_function"]]


def preloaded(fn: JITFunction, text: str) -> dict[str, Any]:
    data, name = json.loads(text), f"{fn.fn.__module__}.{fn.fn.__qualname__}"
    if data["name"] != name:
        raise RuntimeError(f"Specialization data is for {data['name']} but trying to preload for {name}")
    target = vars(driver.active.get_current_target())
    if data["target"] != target:
        raise RuntimeError(f"Specialization data is for {data['target']} but trying to preload for {target}")
    constants = {tuple(k): _made(v) for k, v in zip(data["constant_keys"], data["constant_vals"])}
    divisible = {tuple(k) for k in data["attrs_keys"]}

    def argument(place: tuple[int, ...], kind: Any) -> Any:
        if isinstance(kind, list):
            return tuple(argument((*place, i), k) for i, k in enumerate(kind))
        if place in constants:
            return constants[place] if len(place) == 1 else constexpr(constants[place])
        return f"{kind}:{16 if place in divisible else 1}" if "<" not in kind else kind

    given = {parameter: argument((i,), kind) for i, (parameter, kind) in enumerate(data["signature"].items())}
    return {**given, **{k: v for k, v in data["options"].items() if k in fn.defaults and k not in given}}
