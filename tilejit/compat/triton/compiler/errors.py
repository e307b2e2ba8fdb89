"""`triton.compiler.errors`, and errors as Triton's users know them: with the place in the kernel's own lines."""
from __future__ import annotations

import linecache
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

from tilejit.compat.triton.runtime.errors import OutOfResources
from tilejit.errors import CompilationError, Loc, SharedMemoryError
from tilejit.errors import StaticAssertionError as CompileTimeAssertionFailure

UnsupportedLanguageConstruct = CompilationError


@contextmanager
def placed() -> Iterator[None]:
    """Errors of compilation inside say their place in Triton's way too: `at 2:4:`, lines of the function from its `def`
    on, and the message. What a function of the language refuses is their cause, a ValueError. A kernel that needs too
    much shared memory raises OutOfResources."""
    try:
        yield
    except SharedMemoryError as error:
        raise OutOfResources(error.required, error.limit, "shared memory") from error
    except CompilationError as error:
        if error.loc is None or any(n.startswith("at ") for n in error.notes):
            raise
        error.notes = (*error.notes, _place(error.loc, error.message))
        called = re.match(r"[\w.]+\(", error.loc.source()[error.loc.col:])
        if isinstance(error, CompileTimeAssertionFailure) or not called:
            raise
        raise error from ValueError(error.message)


def _place(loc: Loc, message: str) -> str:
    first = next((n for n in range(loc.line, max(0, loc.line - 2000), -1)
                  if linecache.getline(loc.file, n).lstrip().startswith(f"def {loc.function}")), loc.line)
    lines = [linecache.getline(loc.file, n).rstrip("\n") for n in range(first, loc.line + 1)]
    text = textwrap.dedent("\n".join(lines))
    column = max(0, loc.col - (len(lines[0]) - len(lines[0].lstrip())))
    return f"at {loc.line - first + 1}:{column}:\n{text}\n{' ' * column}^\n{message}"


__all__ = ["CompilationError", "CompileTimeAssertionFailure", "UnsupportedLanguageConstruct", "placed"]
