from tilejit.compat.triton.compiler import compiler, errors
from tilejit.compat.triton.compiler.compiler import ASTSource, CompiledKernel, compile
from tilejit.compat.triton.compiler.errors import CompilationError, CompileTimeAssertionFailure

__all__ = ["ASTSource", "CompilationError", "CompileTimeAssertionFailure", "CompiledKernel", "compile", "compiler",
           "errors"]
