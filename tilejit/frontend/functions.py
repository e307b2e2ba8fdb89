from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from tilejit.frontend.source import KernelSource
from tilejit.language.semantics import unwrap
from tilejit.language.tensor import constexpr


class ConstexprFunction:
    """A Python function that runs when a kernel is compiled, on constants; on the host it is the function."""

    def __init__(self, host: Callable[..., Any]):
        self.host = host
        self.source = KernelSource(host)
        update_wrapper(self, host)

    def __get__(self, obj: Any, owner: type | None = None) -> Any:
        return self if obj is None else BoundConstexpr(self, obj)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.host(*map(plain, args), **{k: plain(v) for k, v in kwargs.items()})


class BoundConstexpr:
    def __init__(self, function: ConstexprFunction, owner: Any):
        self.function, self.owner = function, owner
        self.must_use = getattr(function, "must_use", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found = self.function.host(Plain(self.owner), *map(plain, args), **{k: plain(v) for k, v in kwargs.items()})
        return constexpr(found)


class Plain:
    def __init__(self, value: Any):
        object.__setattr__(self, "value", value)

    def __getattr__(self, name: str) -> Any:
        return unwrap(getattr(self.value, name))

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.value, name, value)


def plain(x: Any) -> Any:
    x = unwrap(x)
    if isinstance(x, tuple):
        return type(x)(*map(plain, x)) if hasattr(type(x), "_fields") else tuple(map(plain, x))
    return [plain(v) for v in x] if isinstance(x, list) else x


def constexpr_function(fn: Callable[..., Any]) -> ConstexprFunction:
    return fn if isinstance(fn, ConstexprFunction) else ConstexprFunction(fn)


def must_use_result(fn: Any, is_active: bool = True) -> Any:
    """Mark a kernel or constexpr_function whose result must not be dropped; with a text, that is said beside."""
    if isinstance(fn, str):
        def mark(f: Any) -> Any:
            f.must_use = fn
            return f
        return mark
    fn.must_use = "" if is_active else None
    return fn


#: Modules whose functions run on constants: what they do does not change with a kernel's source.
_PURE = {"tilejit", "math", "numpy", "operator", "_operator", "builtins", "functools"}


def runs_on_constants(fn: Any) -> bool:
    module = getattr(fn, "__module__", None) or type(fn).__module__
    return callable(fn) and (module if module.startswith("tilejit") else module.split(".")[0]) in _PURE
