"""Numbers that variables hold: still constants, for sizes and ranges, but of a type of their own beside tensors
(docs/language.md)."""
from __future__ import annotations

from typing import Any

from tilejit.language.tensor import constexpr, scalar_type


class held_int(int):
    type = property(scalar_type)


class held_float(float):
    type = property(scalar_type)


def held(x: Any) -> Any:
    """What a variable has after `c = x`: numbers, alone and in tuples, become those above."""
    if isinstance(x, constexpr) and type(x.value) in (int, float):
        x = x.value
    if type(x) is tuple:
        return tuple(map(held, x))
    if type(x) is int:
        return held_int(x)
    return held_float(x) if type(x) is float else x


def is_held(x: Any) -> bool:
    return isinstance(x, (held_int, held_float))
