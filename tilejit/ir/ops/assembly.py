"""The author's own PTX, element by element."""
from __future__ import annotations

from typing import Any

import numpy as np

from tilejit.errors import CompilationError
from tilejit.ir.core import Op
from tilejit.ir.table import op
from tilejit.ir.types import Type, shape_of, with_elem

_ATTRS = "asm constraints pack dtypes shape?"


def _results(o: Op) -> list[Type]:
    if len({shape_of(v.type) for v in o.operands}) > 1:
        raise CompilationError(f"{o.name}: shapes differ: {', '.join(str(v.type) for v in o.operands)}", o.loc)
    like = o.operands[0].type if o.operands else o.attrs["dtypes"][0]
    return [with_elem(like, t) for t in o.attrs["dtypes"]]


@op("inline_asm", "args*", _ATTRS, traits="elementwise program packs")
def inline_asm(o: Op) -> list[Type]:
    """PTX of the author for every `pack` elements of the operands, one tile of each of `dtypes` out."""
    return _results(o)


@op("inline_asm_effect", "args*", _ATTRS, effects="read write control", traits="elementwise program packs")
def inline_asm_effect(o: Op) -> list[Type]:
    """As inline_asm, with effects: done as often and where it is written."""
    return _results(o)


def _run(m: Any, o: Op, *args: np.ndarray) -> Any:
    if m is None or m.assembly is None:
        raise CompilationError(f"{o.name}: the evaluator has nothing that runs PTX", o.loc)
    return m.assembly(o, args)


inline_asm.meaning(_run)
inline_asm_effect.meaning(_run)
