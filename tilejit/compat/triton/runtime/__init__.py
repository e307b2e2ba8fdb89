from tilejit.compat.triton.runtime import autotuner, cache, driver, errors, interpreter, jit
from tilejit.compat.triton.runtime.autotuner import Autotuner, Config, Heuristics, autotune, heuristics
from tilejit.compat.triton.runtime.errors import InterpreterError, OutOfResources
from tilejit.compat.triton.runtime.jit import JITFunction, KernelInterface, MockTensor, TensorWrapper, reinterpret

__all__ = ["Autotuner", "Config", "Heuristics", "InterpreterError", "JITFunction", "KernelInterface", "MockTensor",
           "OutOfResources", "TensorWrapper", "autotune", "autotuner", "cache", "driver", "errors", "heuristics",
           "interpreter", "jit", "reinterpret"]
