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
    """Errors of compilation inside say their place in Triton's way too: `at 2:4:`, and the message."""
    try:
        yield
    except SharedMemoryError as error:
        raise OutOfResources(error.required, error.limit, "shared memory") from error
    except CompilationError as error:
        error.error_message = error.message  # type: ignore[attr-defined]
        if error.loc is None or any(n.startswith("at ") for n in error.notes):
            raise
        raise _chained(error) from error.__cause__


def _chained(error: CompilationError) -> CompilationError:
    assert error.loc is not None
    places = [error.loc]
    while (outer := places[-1].call_site) is not None:
        places.append(outer)
    called = re.match(r"[\w.]+\(", error.loc.source()[error.loc.col:])
    cause: Exception | None = None
    if called and not isinstance(error, CompileTimeAssertionFailure):
        cause = ValueError(error.message)
    for loc in places[:-1]:
        inner = CompilationError(error.message, loc._replace(call_site=None), (_place(loc, error.message),))
        inner.__cause__, cause = cause, inner
    error.notes, error.__cause__ = (*error.notes, _place(places[-1], error.message)), cause
    return error


def _place(loc: Loc, message: str) -> str:
    first = next((n for n in range(loc.line, max(0, loc.line - 2000), -1)
                  if linecache.getline(loc.file, n).lstrip().startswith(f"def {loc.function}")), loc.line)
    lines = [linecache.getline(loc.file, n).rstrip("\n") for n in range(first, loc.line + 1)]
    text = textwrap.dedent("\n".join(lines))
    column = max(0, loc.col - (len(lines[0]) - len(lines[0].lstrip())))
    return f"at {loc.line - first + 1}:{column}:\n{text}\n{' ' * column}^\n{message}"


__all__ = ["CompilationError", "CompileTimeAssertionFailure", "UnsupportedLanguageConstruct", "placed"]
