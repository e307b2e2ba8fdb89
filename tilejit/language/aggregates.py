"""Value classes of kernels: named fields and methods, as `@aggregate` gives them (docs/language.md)."""
from __future__ import annotations

import inspect
import sys
from typing import Any

from tilejit.language.semantics import to_tensor, unwrap
from tilejit.language.tensor import Compound, KernelBuilder, builtin, constexpr, tensor

_NONE = object()


class Aggregate(Compound):
    fields: dict[str, Any] = {}
    defaults: dict[str, Any] = {}

    def __init__(self, *args: Any, **kwargs: Any):
        given = dict(zip(self.fields, args))
        name = f"{type(self).__name__}.__init__()"
        if len(args) > len(self.fields):
            raise TypeError(f"{name} takes {len(self.fields) + 1} positional arguments but {len(args) + 1} were given")
        for k, v in kwargs.items():
            if k in given:
                raise TypeError(f"{name} got multiple values for argument {k!r}")
            if k not in self.fields:
                raise TypeError(f"{name} got an unexpected keyword argument {k!r}")
            given[k] = v
        for k in self.fields:
            if k not in given and k not in self.defaults:
                raise TypeError(f"{name} missing required argument: {k!r}")
            setattr(self, k, given.get(k, self.defaults.get(k)))

    def __setattr__(self, name: str, value: Any) -> None:
        cls = type(self).__name__
        if name not in self.fields:
            raise AttributeError(f"{cls} has no attribute {name!r}")
        if vars(self).get("_complete"):
            raise AttributeError(f"cannot assign to field {name!r} on immutable aggregate {cls}; use aggregate_replace")
        kind = self.fields[name]
        if kind is constexpr:
            if isinstance(unwrap(value), tensor):
                raise TypeError(f"{cls}.{name} is a tl.constexpr, found a run-time value")
            value = constexpr(value)
        elif kind is tuple:
            value = _with_constants(value)
        elif isinstance(kind, type) and issubclass(kind, (tensor, Compound)):
            number = kind is tensor and isinstance(unwrap(value), (bool, int, float))
            if not number and not isinstance(value, kind):
                raise TypeError(f"{cls}.{name}: expected {kind.__name__}, found {unwrap(value)!r}")
        object.__setattr__(self, name, value)

    @classmethod
    def make(cls, b: KernelBuilder | None, args: tuple, kwargs: dict[str, Any]) -> Aggregate:
        made = cls.__new__(cls)
        if b is not None and "_semantic" in inspect.signature(cls.__init__).parameters and \
                cls.__init__ is not Aggregate.__init__:
            kwargs = {**kwargs, "_semantic": b}
        init: Any = getattr(cls.__init__, "host", cls.__init__)
        init(made, *args, **kwargs)
        for k, kind in cls.fields.items():
            if k not in vars(made):
                raise AttributeError(f"constructor for {cls.__name__} did not initialize attribute {k!r}")
            if b is not None and kind is tensor:
                object.__setattr__(made, k, to_tensor(b, getattr(made, k)))
        object.__setattr__(made, "_complete", True)
        return made

    @property
    def values(self) -> dict[str, Any]:
        return {k: vars(self)[k] for k in self.fields}

    def alike(self, other: Compound) -> bool:
        return type(other) is type(self) and all(
            unwrap(v) == unwrap(getattr(other, k)) for k, v in self.values.items() if self.fields[k] is constexpr)

    def parts(self, b: KernelBuilder) -> list[Any]:
        return [v for k, v in self.values.items() if self.fields[k] is not constexpr]

    def remade(self, b: KernelBuilder, parts: list[Any]) -> Aggregate:
        rest = iter(parts)
        return self.changed({k: v if self.fields[k] is constexpr else next(rest) for k, v in self.values.items()})

    def changed(self, values: dict[str, Any]) -> Aggregate:
        made = type(self).__new__(type(self))
        for k, v in {**self.values, **values}.items():
            setattr(made, k, v)
        object.__setattr__(made, "_complete", True)
        return made

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={unwrap(v)!r}' for k, v in self.values.items())})"


def _with_constants(value: Any) -> Any:
    if isinstance(value, tuple):
        items = map(_with_constants, value)
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return constexpr(value) if isinstance(value, (bool, int, float, str)) else value


class _Maker(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.make(None, args, kwargs)  # type: ignore[attr-defined]


def aggregate(cls: type) -> type:
    """Raises TypeError for a base that is none."""
    for base in cls.__mro__[1:]:
        if base is not object and not issubclass(base, Compound):
            raise TypeError(f"Aggregates can only inherit from other aggregates, but got non-aggregate base: {base}")
    own = inspect.get_annotations(cls)
    fields = {n: v for base in reversed(cls.__mro__[1:]) for n, v in getattr(base, "fields", {}).items()}
    defaults = {n: v for base in reversed(cls.__mro__[1:]) for n, v in getattr(base, "defaults", {}).items()}
    for name, kind in own.items():
        fields[name] = _annotation(cls, kind)
        value = cls.__dict__.get(name, _NONE)
        if value is not _NONE and (isinstance(value, constexpr) or not callable(value)):
            defaults[name] = value
    bases = tuple(b for b in cls.__bases__ if b is not object) or (Aggregate,)
    members = {k: v for k, v in cls.__dict__.items()
               if k not in ("__dict__", "__weakref__", "__annotate_func__", "__annotations_cache__", *own)}
    return _Maker(cls.__name__, bases, {**members, "fields": fields, "defaults": defaults, "__annotations__": fields})


def _annotation(cls: type, kind: Any) -> Any:
    if not isinstance(kind, str):
        return kind
    scope: dict[str, Any] = dict(vars(sys.modules.get(cls.__module__, sys)))
    try:
        return eval(kind, scope)
    except (NameError, AttributeError):
        return constexpr if kind.rsplit(".", 1)[-1] == "constexpr" else object


def aggregate_replace(obj: Any, **fields: Any) -> Any:
    """A copy with other values in some fields. Raises TypeError for fields it has not."""
    if not isinstance(obj, Aggregate):
        raise TypeError(f"aggregate_replace expects an aggregate instance, found {obj!r}")
    for name in fields:
        if name not in obj.fields:
            raise TypeError(f"{type(obj).__name__} has no field {name!r}")
    return obj.changed(fields)


@builtin
def _replaced(obj: Any, *, _b: KernelBuilder, **fields: Any) -> Any:
    made = aggregate_replace(obj, **fields)
    return made.changed({k: to_tensor(_b, v) for k, v in made.values.items() if made.fields[k] is tensor})


aggregate_replace.in_kernel = _replaced  # type: ignore[attr-defined]

__all__ = ["aggregate", "aggregate_replace"]
