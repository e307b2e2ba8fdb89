"""Dataclasses whose methods are shared: compiling them for each class was a quarter of a process' first compilation."""
from __future__ import annotations

from dataclasses import MISSING, FrozenInstanceError, field, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from dataclasses import dataclass as described

    def dataclass(cls=None, /, *, frozen=False, eq=True):
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, eq=eq)
        cls.__doc__ = cls.__doc__ or cls.__name__
        own, cls = {**cls.__dict__}, described(init=False, repr=False, eq=False, match_args=False)(cls)
        declared, put = fields(cls), object.__setattr__
        given = [f for f in declared if f.init]
        names, needed = [f.name for f in given], {f.name for f in given if f.default is f.default_factory}
        made = {f.name: f.default_factory for f in declared if f.default_factory is not MISSING}
        key = attrgetter("__class__", *[f.name for f in declared if f.compare])

        def __init__(self, /, *args, **by_name):
            values = dict(zip(names, args), **by_name)  # a default stays in the class
            if len(values) < len(args) + len(by_name) or not needed <= values.keys() <= {*names}:
                raise TypeError(f"{cls.__name__}({', '.join(names)}) got {args} {by_name}")
            for name, make in made.items():
                if name not in values:
                    values[name] = make()
            for name, value in values.items():
                put(self, name, value)
            if hasattr(self, "__post_init__"):
                self.__post_init__()

        def __repr__(self):
            shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in declared if f.repr)
            return f"{type(self).__qualname__}({shown})"

        def __eq__(self, other):
            return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

        def __hash__(self):
            return hash(key(self))

        def __setattr__(self, name, *value):
            raise FrozenInstanceError(f"cannot assign to or delete field {name!r}")

        methods = {"__init__": __init__, "__repr__": __repr__}
        if eq:
            methods |= {"__eq__": __eq__, "__hash__": __hash__ if frozen else None}
        if frozen:
            methods |= {"__setattr__": __setattr__, "__delattr__": __setattr__}
        for name, method in methods.items():
            if own.get(name) is None:
                setattr(cls, name, method)
        return cls

__all__ = ["dataclass", "field", "fields", "replace"]
