"""`tilejit.Config`: one configuration of a kernel that is tuned."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilejit.runtime.signature import ArgumentError


@dataclass(frozen=True, eq=False)
class Config:
    """One way to launch a kernel: `kwargs` (compile-time arguments, or any launch option by name) and launch options.

    None leaves an option to the compiler. `pre_hook(arguments)` is called with all arguments by name before each
    launch; it may set a descriptor's `block_shape`.
    """

    kwargs: Mapping[str, Any]
    num_warps: int | None = 4
    num_stages: int | None = None
    num_ctas: int | None = 1
    maxnreg: int | None = None
    pre_hook: Callable[[dict[str, Any]], Any] | None = None
    ir_override: None = None
    #: everything that a launch is given by name; not to be changed
    given: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.ir_override is not None:
            raise ArgumentError("Config: ir_override is not supported; TILEJIT_OVERRIDE replaces stages by files")
        twice = self.kwargs.keys() & {"num_warps", "num_stages", "num_ctas", "maxnreg"}
        if twice:
            raise ArgumentError(f"Config: {', '.join(sorted(twice))} in kwargs; give it as an argument of Config")
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages, "num_ctas": self.num_ctas,
                   "maxnreg": self.maxnreg}
        object.__setattr__(self, "given", {**self.kwargs, **{k: v for k, v in options.items() if v is not None}})

    def all_kwargs(self) -> dict[str, Any]:
        return dict(self.given)

    def __str__(self) -> str:
        return ", ".join(f"{k}: {v}" for k, v in self.given.items())

    def __hash__(self) -> int:
        return hash((*sorted(self.given.items(), key=lambda kv: kv[0]), self.pre_hook))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.given == other.given and self.pre_hook == other.pre_hook
