"""`triton.compiler.errors`."""
from __future__ import annotations

from tilejit import errors
from tilejit.errors import CompilationError

#: a static_assert that failed
CompileTimeAssertionFailure = getattr(errors, "StaticAssertionError", CompilationError)
UnsupportedLanguageConstruct = CompilationError

__all__ = ["CompilationError", "CompileTimeAssertionFailure", "UnsupportedLanguageConstruct"]
