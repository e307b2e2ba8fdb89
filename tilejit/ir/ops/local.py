"""Memory that each thread has for itself: more of a tile than its registers hold, a part at a time."""
from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tilejit.errors import CompilationError
from tilejit.ir.core import Op
from tilejit.ir.numeric import np_dtype
from tilejit.ir.table import op
from tilejit.ir.types import Tile, Type, elem_of, shape_of


@op("stack", attrs="slots type", effects="control", traits="optional", layout="same")
def stack(o: Op) -> list[Type]:
    """Memory for so many tiles of a type. The result stands for it: it says the layout that all of them have."""
    return [o.attrs["type"]]


@stack.meaning
def _stack(m: Any, o: Op) -> np.ndarray:
    t = o.result.tile
    return np.zeros((o.attrs["slots"], *t.shape), np_dtype(elem_of(t)))


@op("keep", "stack at x", effects="control", layout="follows")
def keep(o: Op) -> None:
    """x becomes tile `at` of the stack."""
    if o.operands[0].type != o.operands[2].type:
        raise CompilationError(f"keep: {o.operands[2].type} in a stack of {o.operands[0].type}", o.loc)


@keep.meaning
def _keep(m: Any, o: Op, stack: np.ndarray, at: np.ndarray, x: np.ndarray) -> None:
    stack[int(at)] = x


@op("kept", "stack at", effects="control", layout="same")
def kept(o: Op) -> list[Type]:
    """Tile `at` of the stack."""
    return [o.operands[0].type]


@kept.meaning
def _kept(m: Any, o: Op, stack: np.ndarray, at: np.ndarray) -> np.ndarray:
    return stack[int(at)].copy()


@op("stacked", "stack", "slots", layout="free")
def stacked(o: Op) -> list[Type]:
    """All tiles of the stack one after another, once they are there. Chunks of it are `kept` (`passes/chunks.py`)."""
    first, *rest = shape_of(o.operands[0].type)
    return [Tile((o.attrs["slots"] * first, *rest), elem_of(o.operands[0].type))]


@stacked.meaning
def _stacked(m: Any, o: Op, stack: np.ndarray) -> np.ndarray:
    return stack.reshape(prod(stack.shape[:2]), *stack.shape[2:]).copy()
