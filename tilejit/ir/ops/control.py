"""Structured control flow and checks."""
from __future__ import annotations

from typing import Any

import numpy as np

from tilejit.errors import CompilationError
from tilejit.ir.core import Op
from tilejit.ir.table import op
from tilejit.ir.types import Type, elem_of, fp64, int32, int64, shape_of, uint32, uint64


@op("for", "lo hi step inits*",
    "num_stages? unroll? warp_specialize? flatten? split_masks? joined? pairs? ping_pong? pipelined? in_flight? dealt? "
    "turns? in_step?",
    effects="control", traits="structural carries loop optional takes_pending", regions="for")
def for_(o: Op) -> list[Type]:
    """A counted loop: region arguments are the induction variable, then the carried values; `yield` gives the next
    ones; results are the last ones. A constant negative step counts down; any other step must be positive. `in_step`:
    programs that are ahead wait (`passes/in_step.py`). Set by scheduling: `joined` with the loop before, in `pairs` of
    iterations, `pipelined`, a round of products stays `in_flight`, so many warpgroups in `ping_pong` within, or `dealt`
    to groups.
    """
    return [v.type for v in o.operands[o.define.fixed:]]


@for_.meaning
def _for(m: Any, o: Op, lo: np.ndarray, hi: np.ndarray, step: np.ndarray, *carried: Any) -> list[Any]:
    values = list(carried)
    known = isinstance(o.operands[2].op, Op) and o.operands[2].op.name == "const"
    if step == 0 or step < 0 and not known:
        raise m.error(o, f"the loop's step is {int(step)}: a step that is no constant must be positive")
    for i in range(int(lo), int(hi), int(step)):
        values = m.region(o.regions[0], [np.array(i, lo.dtype), *values])
    return values


@op("while", "inits*", effects="control", traits="structural carries loop takes_pending", regions="while")
def while_(o: Op) -> list[Type]:
    """Two regions over the carried values: the first ends in `condition`, the second in `yield`."""
    return [v.type for v in o.operands]


@while_.meaning
def _while(m: Any, o: Op, *carried: Any) -> list[Any]:
    values = list(carried)
    while True:
        go, *values = m.region(o.regions[0], values)
        if not go:
            return values
        values = m.region(o.regions[1], values)


@op("if", "cond", effects="control", traits="structural carries optional", regions="if")
def if_(o: Op) -> list[Type]:
    """Two regions (then, else) without arguments; both yield values of the same types."""
    yields = [r.terminator for r in o.regions]
    types = [[v.type for v in y.operands] for y in yields if y.name == "yield"]
    if len(types) == 2 and types[0] != types[1]:
        raise CompilationError(f"if: the branches give {types[0]} and {types[1]}", o.loc)
    return types[0] if types else []


@if_.meaning
def _if(m: Any, o: Op, cond: np.ndarray) -> list[Any]:
    return m.region(o.regions[0] if cond else o.regions[1], [])


@op("yield", "values*", effects="control", traits="terminator optional takes_pending")
def yield_(o: Op) -> None:
    """Ends a region, handing values to the op that owns it."""


@op("condition", "cond values*", effects="control", traits="terminator optional takes_pending")
def condition(o: Op) -> None:
    """Ends the first region of `while`: go on if cond, passing the values to the body or the results."""


@op("return", "", effects="control", traits="terminator")
def return_(o: Op) -> None:
    """Ends the kernel."""


@op("assume", "cond", effects="control", layout="none")
def assume(o: Op) -> None:
    """The author promises that the scalar int1 is true."""


@assume.meaning
def _assume(m: Any, o: Op, cond: np.ndarray) -> None:
    if not cond:
        raise m.error(o, "the promise is not kept")


@op("device_assert", "cond mask?", "message", effects="control", layout="follows")
def device_assert(o: Op) -> None:
    """Trap when cond is false somewhere (debug builds)."""


@device_assert.meaning
def _device_assert(m: Any, o: Op, cond: np.ndarray, mask: Any = True) -> None:
    if not np.all(cond | ~np.asarray(mask)):
        raise m.error(o, f"device assertion failed: {o.attrs['message']}")


#: What device_print takes: its C conversions read 32 and 64 bits.
_PRINTED = (int32, uint32, int64, uint64, fp64)


@op("device_print", "args*", "prefix conversions", effects="sync control", layout="free")
def device_print(o: Op) -> None:
    """One line for each element of each argument: program, index, prefix, value; see `print_format`."""
    for v in o.operands:
        if elem_of(v.type) not in _PRINTED:
            raise CompilationError(f"device_print: {v.type} is not one of {', '.join(map(str, _PRINTED))}", o.loc)
    if len(o.attrs["conversions"]) != len(o.operands):
        raise CompilationError("device_print: one conversion per argument is needed", o.loc)


def print_format(o: Op, which: int | None) -> str:
    """The C format of a line for argument `which` (None: the prefix alone), as Triton's: of the program's three ids,
    the element's index and its value.
    """
    prefix = o.attrs["prefix"].replace("%", "%%")
    if which is None:
        return f"pid (%u, %u, %u){prefix}\n"
    index = ", ".join(f"%{len(str(n - 1))}u" for n in shape_of(o.operands[which].type))
    operand = f"(operand {which}) " if len(o.operands) > 1 else ""
    return f"pid (%u, %u, %u) idx ({index}){prefix}{operand}{o.attrs['conversions'][which]}\n"


def hexadecimal(x: float) -> str:
    """A float as C prints it with `%a`."""
    digits, mark, exponent = float(x).hex().partition("p")
    return (digits.rstrip("0").rstrip(".") if "." in digits else digits) + mark + exponent


@device_print.meaning
def _device_print(m: Any, o: Op, *args: np.ndarray) -> None:
    if not args:
        print(print_format(o, None) % m.pid, end="")
    for which, x in enumerate(args):
        line = print_format(o, which).replace("ll", "").replace("%a", "%s")
        for index, value in np.ndenumerate(x):
            shown = hexadecimal(value) if o.attrs["conversions"][which] == "%a" else value
            print(line % (*m.pid, *index, shown), end="")


@op("debug_barrier", "", "copies?", effects="sync control", traits="barrier", layout="none")
def debug_barrier(o: Op) -> None:
    """A barrier of all threads of the program. `copies`: what descriptors stored before it has landed, and they load
    behind it what threads stored."""


@debug_barrier.meaning
def _debug_barrier(m: Any, o: Op) -> None:
    pass
