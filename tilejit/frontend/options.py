"""Which values options of a launch may have (docs/scheduling.md)."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilejit.errors import CompilationError, Loc
from tilejit.ir.target import DEFAULT, Target, target_named

#: registers that instructions can name (PTX ISA, .maxnreg)
THREAD_REGISTERS = 255


#: (whether a value is legal, what an error says after "use")
Legal = tuple[Callable[[Any], bool], str]


def _among(*values: Any, use: str = "") -> Legal:
    listed = ", ".join(map(repr, values[:-1])) + f" or {values[-1]!r}"
    return lambda x: x in values, use or listed.replace("'", '"')


_LEGAL: dict[str, Legal] = {
    "num_warps": _among(1, 2, 4, 8, 12, 16, 32, use="1, 2, 4, 8, 12, 16 or 32 (it must be a power of 2, or 12)"),
    "num_stages": (lambda x: x is None or isinstance(x, int) and x >= 0, "a positive integer"),
    "num_ctas": _among(1, 2, 4, 8, 16),
    "store_stages": _among(1, 2, 4, 8),
    **dict.fromkeys(("warp_specialize", "store_role", "products_ahead", "enable_fp_fusion", "split_masks",
                     "enable_reflect_ftz", "check_signs", "odd_rows", "pointer_tma", "launch_cooperative_grid",
                     "sanitize_overflow"), (lambda x: isinstance(x, bool), "True or False")),
    "launch_pdl": _among(True, False, "auto"),
    "ping_pong": _among(True, False, "scores", "products"),
    "cluster_split": _among("M", "N", "MN", "K", use='"M" (the default) where the CTAs of a cluster divide rows of '
                            'products, "N" columns, "MN" both, "K" what they sum over'),
    "schedule": (lambda x: isinstance(x, str), "the name of a file with what kernel.schedule(...) gave"),
    "programs_per_cta": (lambda x: type(x) is int and 1 <= x <= 128 and not x & (x - 1), "a power of 2 up to 128"),
    "maxnreg": (lambda x: x is None or isinstance(x, int) and x >= 24, "a number of registers, 24 or more"),
}


def checked(attrs: dict[str, Any], loc: Loc) -> tuple[dict[str, Any], Target]:
    """(options as the compiler takes them, the chip). Raises CompilationError for others, and for
    what the chip cannot do."""
    for name, (legal, use) in _LEGAL.items():
        if name in attrs and not legal(attrs[name]):
            raise CompilationError(f"{name}={attrs[name]!r} is not legal: use {use}", loc)
    if attrs.get("num_stages") == 0:
        attrs = {**attrs, "num_stages": 1}  # nothing runs ahead
    return attrs, _target(attrs, loc)


def _target(attrs: dict[str, Any], loc: Loc) -> Target:
    try:
        target = target_named(attrs.get("target"))
    except CompilationError as e:
        raise CompilationError(e.message, loc) from None
    for option in () if target.hopper else ("num_ctas", "num_consumer_groups"):
        if (attrs.get(option) or 1) > 1:
            raise CompilationError(f"{option}={attrs[option]}: {option} > 1 requires NVIDIA SM90+ (Hopper), "
                                   f"{target.name} has no clusters and no roles of warps: leave it out, or use "
                                   f"target={DEFAULT!r}", loc)
    return target
