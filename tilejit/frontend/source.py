from __future__ import annotations

import ast
import builtins
import dis
import hashlib
import inspect
import io
import linecache
import sys
import textwrap
import threading
import tokenize
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache
from types import CellType
from typing import Any

from tilejit.errors import CompilationError
from tilejit.ir.types import DType, Ptr
from tilejit.language.tensor import constexpr

# Some CPythons share the tree's depth between threads: "AST constructor recursion depth mismatch"
# (python/cpython#106905).
_PARSING = threading.Lock()


def parse(text: str) -> ast.Module:
    with _PARSING:
        return ast.parse(text)


@lru_cache(maxsize=1)
def unparser() -> Any:
    import astunparse

    class Unparser(astunparse.Unparser):
        """astunparse with its subscripts and attributes right for every Python since 3.9."""

        def _Subscript(self, t: ast.Subscript) -> None:
            self.dispatch(t.value)
            self.write("[")
            index = t.slice
            if isinstance(index, ast.Tuple) and index.elts:
                for i, element in enumerate(index.elts):
                    if i:
                        self.write(", ")
                    self.dispatch(element)
                if len(index.elts) == 1:
                    self.write(",")
            else:
                self.dispatch(index)
            self.write("]")

        def _Attribute(self, t: ast.Attribute) -> None:
            number = isinstance(t.value, ast.Constant) and isinstance(t.value.value, (int, float))
            if number:
                self.write("(")
            self.dispatch(t.value)
            self.write(")" if number else "")
            self.write("." + t.attr)

    return Unparser


def unparse(tree: ast.AST) -> str:
    """The same text on every Python version for the accepted grammar; newer syntax by the standard library."""
    out = io.StringIO()
    try:
        unparser()(tree, file=out)
    except AttributeError:
        return ast.unparse(tree)
    return out.getvalue()


def signature(fn: Callable[..., Any]) -> inspect.Signature:
    """Annotations that Python 3.14 defers, of names that are not there, are text."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        found = inspect.signature(fn, annotation_format=Format.FORWARDREF)
        return found.replace(parameters=[p.replace(annotation=getattr(p.annotation, "__forward_arg__", p.annotation))
                                         for p in found.parameters.values()])
    return inspect.signature(fn)


class Enclosing(Mapping[str, Any]):
    def __init__(self, cells: Mapping[str, CellType]):
        self.cells = cells

    def __getitem__(self, name: str) -> Any:
        try:
            return self.cells[name].cell_contents
        except ValueError:  # nothing was put into it yet
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.cells)

    def __len__(self) -> int:
        return len(self.cells)


class KernelSource:
    """Parsed on first use; with `replaced`, that text stands in place of its own."""

    def __init__(self, fn: Callable[..., Any], replaced: str | None = None):
        self.fn, self.name, self.replaced = fn, fn.__name__, replaced
        #: whether the body may read a constant of its surroundings by its name
        self.readable: Callable[[Any], bool] = lambda value: True
        self.signature = signature(fn)
        code = inspect.unwrap(fn).__code__
        self.file, self.line = code.co_filename, code.co_firstlineno
        linecache.checkcache(self.file)
        self.file_lines = linecache.getlines(self.file, fn.__globals__)  # now: the file may change

    @cached_property
    def lines(self) -> tuple[list[str], int]:
        if self.replaced is not None:
            return self.replaced.splitlines(keepends=True), self.line
        found = self.file_lines[self.line - 1:]
        return (inspect.getblock(found), self.line) if found else inspect.getsourcelines(self.fn)

    @property
    def text(self) -> str:
        lines = textwrap.dedent("".join(self.lines[0])).splitlines(keepends=True)
        return "".join(lines[next(i for i, line in enumerate(lines) if line.startswith("def ")):])

    @cached_property
    def tree(self) -> ast.FunctionDef:
        missing = CompilationError(f"@kernel needs the source of {self.name!r}: put it in a file (found none for "
                                   f"{self.file})")
        try:
            lines, first = self.lines
        except (OSError, TypeError, tokenize.TokenError) as error:
            raise missing from error
        text = "".join(lines)
        dedented = textwrap.dedent(text)
        indent = len(lines[0]) - len(lines[0].lstrip())
        elsewhere = self.file.startswith("<")  # Python may have other text under such a name: that of `python -c`
        try:
            function = parse(dedented).body[0]
        except SyntaxError:
            if elsewhere:
                raise missing from None
            raise
        if elsewhere and self.replaced is None and getattr(function, "name", "") != self.fn.__code__.co_name:
            raise missing
        if not isinstance(function, ast.FunctionDef):
            raise CompilationError(f"@kernel expects a plain 'def' function, found {type(function).__name__}")
        for node in ast.walk(function):
            if hasattr(node, "lineno"):
                node.lineno += first - 1
                node.end_lineno = (node.end_lineno or 0) + first - 1  # type: ignore[attr-defined]
                node.col_offset += indent  # type: ignore[attr-defined]
                node.end_col_offset = (node.end_col_offset or 0) + indent  # type: ignore[attr-defined]
        return function

    @cached_property
    def constexprs(self) -> set[str]:
        return self._annotated("constexpr")

    @cached_property
    def walked(self) -> set[str]:
        """Names that end several loops `range(0, NAME, STEP)` with the same step."""
        if "range" not in self.fn.__code__.co_names:
            return set()
        loads: list[object] = []  # what is loaded behind `range`, up to its call
        found: list[tuple[object, ...]] = []
        for op in dis.get_instructions(self.fn.__code__):
            if op.argval == "range":
                loads = []
            elif op.opname.startswith(("LOAD_FAST", "LOAD_CONST", "LOAD_SMALL_INT")):
                loads += op.argval if op.opname.count("LOAD_FAST") > 1 else [op.argval]
            elif op.opname.startswith(("PRECALL", "CALL")):
                found += [tuple(loads[1:])] if len(loads) == 3 and loads[0] == 0 else []
                loads = []
            elif op.opname not in ("CACHE", "PUSH_NULL"):
                loads = []
        return {str(end) for end, step in found if found.count((end, step)) > 1}

    @cached_property
    def consts(self) -> set[str]:
        return self._annotated("const")

    def _annotated(self, name: str) -> set[str]:
        given = {p.name: p.annotation for p in self.signature.parameters.values()}
        return {n for n, a in given.items() if isinstance(a, str) and a.split(".")[-1] == name or
                isinstance(a, type) and a.__name__ == name and a.__module__.startswith("tilejit.language")}

    @cached_property
    def locals(self) -> frozenset[str]:
        from tilejit.frontend.values import assigned

        return frozenset([*self.signature.parameters, *assigned([*self.tree.body])])

    @cached_property
    def enclosing(self) -> Enclosing:
        return Enclosing(dict(zip(self.fn.__code__.co_freevars, self.fn.__closure__ or ())))

    def lookup(self, name: str) -> Any:
        if name in self.enclosing.cells:
            return self.enclosing[name]
        if name in self.fn.__globals__:
            return self.fn.__globals__[name]
        return getattr(builtins, name) if hasattr(builtins, name) else self._missing(name)

    def is_global(self, name: str) -> bool:
        return name in self.fn.__globals__ and name not in self.enclosing.cells

    @staticmethod
    def _missing(name: str) -> Any:
        raise KeyError(name)

    def normalised(self) -> str:
        """Without decorators, docstring, comments and layout, the same on every Python."""
        tree = parse(ast.unparse(self.tree)).body[0]
        assert isinstance(tree, ast.FunctionDef)
        tree.decorator_list = []
        if tree.body and isinstance(tree.body[0], ast.Expr) and isinstance(tree.body[0].value, ast.Constant):
            tree.body = tree.body[1:] or [ast.Pass()]
        return unparse(tree)

    def fingerprint(self) -> str:
        """Its text, that of every kernel it reaches, their constants and defaults."""
        from tilejit.frontend.captures import reached

        digest = hashlib.sha256()

        def add(text: str) -> None:
            digest.update(f"{len(text)}:{text}".encode())

        for source, captures in reached(self):
            body = source.tree.body[ast.get_docstring(source.tree, False) is not None:]
            add(f"{source.file}:{source.line}:{source.name}({ast.unparse(source.tree.args)})")
            add("\n".join(map(ast.unparse, body)))
            for name, p in source.signature.parameters.items():
                if is_constant(p.default):
                    add(f"{name}={constant_text(p.default)}")
            for c in captures:
                add(f"{c.name}={'kernel' if c.sources else constant_text(c.value)}")
        return digest.hexdigest()


def constant_text(value: Any) -> str:
    """With its type: 1, 1.0 and True differ."""
    value = value.value if isinstance(value, constexpr) else value
    return f"{type(value).__name__}:{value!r}"


def is_constant(value: Any) -> bool:
    """What a kernel may read from its surroundings by value."""
    if isinstance(value, (bool, int, float, str, DType, Ptr, constexpr, type(None))):
        return True
    return isinstance(value, tuple) and all(map(is_constant, value))
