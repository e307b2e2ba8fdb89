from __future__ import annotations

from typing import Any

from tilejit.errors import CompilationError
from tilejit.language.semantics import unwrap
from tilejit.language.tensor import tensor


class range:
    """A loop that runs on the device; a step that is no constant must be positive.

    `num_stages`: the depth of its rings; `warp_specialize=False` keeps loads in the computing warps; `split_masks`:
    whether iterations in which masks hide nothing are a loop of their own (None: where worth while);
    `loop_unroll_factor`: iterations of one trip, of a constant step; `in_step`: after so many iterations, a power of
    two, programs that are ahead of the others wait, for walks of as many as run at once. Other options are hints.
    """

    def __init__(self, arg1: Any, arg2: Any = None, step: Any = None, num_stages: int | None = None,
                 loop_unroll_factor: int | None = None, disallow_acc_multi_buffer: bool = False,
                 flatten: bool = False, warp_specialize: bool | None = None, disable_licm: bool = False,
                 split_masks: bool | None = None, in_step: int = 0):
        self.lo: Any
        self.hi: Any
        self.lo, self.hi = (0, arg1) if arg2 is None else (arg1, arg2)
        self.step = 1 if step is None else step
        self.attrs: dict[str, Any] = {}
        stages = unwrap(num_stages)
        if stages is not None:
            if not isinstance(stages, int) or stages < 0:
                raise CompilationError(f"num_stages must be a constant from 0 on, found {stages!r}")
            self.attrs["num_stages"] = max(1, stages)  # none is one: nothing runs ahead
        for name, v in (("warp_specialize", warp_specialize), ("split_masks", split_masks)):
            if unwrap(v) is not None:
                self.attrs[name] = bool(unwrap(v))
        if unwrap(flatten):
            self.attrs["flatten"] = True
        if every := unwrap(in_step):
            if not isinstance(every, int) or every < 1 or every & every - 1:
                raise CompilationError(f"in_step must be a constant power of two, found {every!r}")
            self.attrs["in_step"] = every
        if factor := unwrap(loop_unroll_factor):
            if not isinstance(factor, int) or factor < 1:
                raise CompilationError(f"loop_unroll_factor must be a constant from 1 on, found {factor!r}")
            self.attrs["unroll"] = factor


class static_range:
    """Unrolled at compile time; its bounds are constants."""

    def __init__(self, arg1: Any, arg2: Any = None, step: Any = None):
        lo, hi = (0, arg1) if arg2 is None else (arg1, arg2)
        values = [unwrap(v) for v in (lo, hi, 1 if step is None else step)]
        for name, v in zip(("start", "end", "step"), values):
            if isinstance(v, tensor) or not isinstance(v, int):
                raise CompilationError(f"static_range: {name} must be a constant, found {v!r}: mark the "
                                       "argument as tl.constexpr or use tl.range")
        self.lo, self.hi, self.step = values
