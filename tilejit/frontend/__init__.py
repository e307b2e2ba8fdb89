"""Python AST -> tile IR.

    source = KernelSource(python_function)
    fn = build(source, {"x": Param(Ptr(fp32), divisible=16), "BLOCK": Const(1024)}, {"num_warps": 4, ...})

Every parameter of the kernel is described by a `Param` (a value at run time, with the divisibility that is
known of it) or a `Const` (a constant of this specialisation).
"""
from tilejit.frontend.build import Arg, Const, Group, Param, build, run_time
from tilejit.frontend.functions import constexpr_function, must_use_result
from tilejit.frontend.source import KernelSource

__all__ = ["Arg", "Const", "Group", "KernelSource", "Param", "build", "constexpr_function", "must_use_result",
           "run_time"]
