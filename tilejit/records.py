"""`dataclass` in a fifth of the time, which was a quarter of a process' first compilation: only `__init__` is compiled
for each class, and only mypy sees that nobody assigns to what is frozen."""
from __future__ import annotations

from dataclasses import field, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from dataclasses import dataclass as described

    def dataclass(cls=None, /, *, frozen=False, eq=True):
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, eq=eq)
        cls.__doc__ = cls.__doc__ or cls.__name__  # (else made from its signature)
        own, cls = {**cls.__dict__}, described(repr=False, eq=False, match_args=False)(cls)
        cls.__dataclass_params__.frozen = frozen
        declared = fields(cls)
        key = attrgetter("__class__", *[f.name for f in declared if f.compare])

        def __repr__(self):
            shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in declared if f.repr)
            return f"{type(self).__qualname__}({shown})"

        def __eq__(self, other):
            return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

        def __hash__(self):
            return hash(key(self))

        methods = {"__repr__": __repr__}
        if eq:
            methods |= {"__eq__": __eq__, "__hash__": __hash__ if frozen else None}
        for name, method in methods.items():
            if own.get(name) is None:
                setattr(cls, name, method)
        return cls

__all__ = ["dataclass", "field", "fields", "replace"]
