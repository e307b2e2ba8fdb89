"""Errors of tilejit, and source locations."""
from __future__ import annotations

import linecache
from collections.abc import Iterable
from typing import NamedTuple


def close_matches(word: str, known: Iterable[str], count: int = 1) -> list[str]:
    from difflib import get_close_matches

    return get_close_matches(word, list(known), count)


class Loc(NamedTuple):
    """A span of a user's source file: 1-based line, 0-based columns; `call_site` is the caller's span."""

    file: str
    line: int
    col: int = 0
    end_col: int = 0
    function: str = ""
    call_site: Loc | None = None

    def source(self) -> str:
        return linecache.getline(self.file, self.line).rstrip("\n")

    def short(self) -> str:
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}"

    def caret(self) -> str:
        """The `file:line:col` header, the source line and a `^^^` span."""
        where = f"{self.file}:{self.line}:{self.col + 1}"
        text = f"  {where}" + (f", in {self.function}" if self.function else "")
        src = self.source()
        if src:
            width = max(1, min(self.end_col, len(src)) - self.col)
            text += f"\n    {src}\n    {' ' * self.col}{'^' * width}"
        return text


class TileJitError(Exception):
    """Base of all errors that tilejit raises on purpose."""


class CompilationError(TileJitError):
    """A kernel that cannot be compiled; `loc` may be filled in by an outer frame (`with_loc`), `notes` are extra lines.
    """

    def __init__(self, message: str, loc: Loc | None = None, notes: tuple[str, ...] = ()):
        super().__init__(message)
        self.message, self.loc, self.notes = message, loc, tuple(notes)

    def with_loc(self, loc: Loc | None) -> CompilationError:
        """Fill in a missing location; returns self."""
        if self.loc is None:
            self.loc = loc
        return self

    def __str__(self) -> str:
        lines = [self.message]
        loc = self.loc
        while loc is not None:
            lines.append(loc.caret())
            loc = loc.call_site
            if loc is not None:
                lines.append("  called from")
        lines += [f"  note: {n}" for n in self.notes]
        return "\n".join(lines)


class ClusterError(CompilationError):
    """What programs of several CTAs cannot do: one CTA can."""


class StaticAssertionError(CompilationError):
    """A `static_assert` of a kernel does not hold."""


class SharedMemoryError(CompilationError):
    """A kernel needs more shared memory than the chip has: `required` and `limit` bytes."""

    def __init__(self, required: int, limit: int, loc: Loc | None = None, notes: tuple[str, ...] = ()):
        super().__init__(f"shared memory: {required} bytes needed, {limit} available", loc, notes)
        self.required, self.limit = required, limit


class VerificationError(CompilationError):
    """Tile IR broke one of its own rules: a bug in a pass, not in the kernel."""


class AssemblyError(CompilationError):
    """ptxas or the driver refused PTX that tilejit emitted."""


class LaunchError(TileJitError):
    """Arguments, grid or device do not fit the kernel at launch."""


class AutotuneError(LaunchError):
    """No configuration of an autotuned kernel works; the text says what each one failed on."""


class CudaError(TileJitError):
    """A CUDA driver call failed."""


class EmulatorError(TileJitError, RuntimeError):
    """PTX that the emulator does not model, or a program that breaks a rule of PTX or its own assertion."""
