"""The package `triton`, as far as tilejit has it: every name leads to tilejit's own."""
from __future__ import annotations

from typing import Any

from tilejit.compat.triton import _names, backends, compiler, knobs, language, runtime, testing, tools
from tilejit.compat.triton._alias import install, installed, uninstall
from tilejit.compat.triton.compiler import compile
from tilejit.compat.triton.runtime import errors
from tilejit.compat.triton.runtime._allocation import set_allocator
from tilejit.compat.triton.runtime._async_compile import AsyncCompileMode, FutureKernel
from tilejit.compat.triton.runtime.autotuner import Config, autotune, heuristics
from tilejit.compat.triton.runtime.errors import InterpreterError, OutOfResources, TritonError
from tilejit.compat.triton.runtime.jit import (
    JITFunction,
    KernelInterface,
    MockTensor,
    TensorWrapper,
    jit,
    reinterpret,
)
from tilejit.errors import CompilationError

#: the release whose names and semantics these are
__version__ = "3.9.0"


def __getattr__(name: str) -> Any:
    return _names.find(__name__, name)


__all__ = ["AsyncCompileMode", "CompilationError", "Config", "FutureKernel", "InterpreterError", "JITFunction",
           "KernelInterface", "MockTensor", "OutOfResources", "TensorWrapper", "TritonError", "autotune", "backends",
           "compile", "compiler", "errors", "heuristics", "install", "installed", "jit", "knobs", "language",
           "reinterpret", "runtime", "set_allocator", "testing", "tools", "uninstall"]
