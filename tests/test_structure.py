"""The shape of the project: doors between rooms, file lengths, the map, and what `import tilejit` loads."""
import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tilejit"

#: room -> the rooms (or modules of a room) that it may import. docs/design.md, section 2, has the same table.
DOORS: dict[str, set[str]] = {
    "errors": set(),
    "records": set(),                                # open to all
    "layout": set(),
    "ir": {"errors", "layout"},                      # layout: lazily, for types and the parser
    "language": {"ir", "errors"},
    "frontend": {"language", "ir", "errors"},
    "passes": {"ir", "layout", "errors"},
    "ptx": {"ir", "layout", "errors"},
    "schedule": {"ir", "layout", "errors"},
    "emulator": {"ptx.isa", "ptx.text", "errors"},
    "runtime": {"frontend", "language", "passes", "schedule", "ptx", "ir", "layout", "errors", "emulator"},
    "testing": {"runtime", "errors", "ir", "tilejit"},
    "kernels": {"tilejit", "language", "runtime.traced"},
    "frameworks": {"runtime", "ir", "errors"},
    "compat": {"tilejit", "language", "frontend", "runtime", "tools", "testing", "ir", "errors"},
    "tools": {"tilejit", "language", "kernels", "runtime", "ir", "layout", "ptx", "errors", "emulator", "testing"},
    "tilejit": {"runtime", "errors", "ir", "tools", "language", "testing", "kernels", "emulator",
                "frameworks", "frontend"},
}
#: room -> rooms that it may import inside functions only.
LAZY = {"ir": {"layout"}}
#: the two modules of ptx/ that the emulator reads know errors, and no other module of the compiler.
READERS = {"ptx/isa.py", "ptx/text.py"}

FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(p for p in parts if p != "__init__")


def room_of(module: str) -> str:
    """The first part of a module's name; the package itself, `__init__` and `__main__` are `tilejit`."""
    first = module.split(".")[0]
    return "tilejit" if first in ("", "__main__") else first


def exists(module: str) -> bool:
    path = PACKAGE.joinpath(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def imports(path: Path) -> list[tuple[int, str, bool]]:
    """(line, module below tilejit, at the top level) of every import of tilejit in a file."""
    found: list[tuple[int, str, bool]] = []

    def add(line: int, name: str, top: bool) -> None:
        if name == "tilejit" or name.startswith("tilejit."):
            found.append((line, name[len("tilejit."):], top))

    def visit(node: ast.AST, top: bool) -> None:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            top = False
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            top = False
        if isinstance(node, ast.Import):
            for alias in node.names:
                add(node.lineno, alias.name, top)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports in full"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                below = inner[len("tilejit."):] if inner.startswith("tilejit.") else ""
                add(node.lineno, inner if below and exists(below) else node.module or "", top)
        for child in ast.iter_child_nodes(node):
            visit(child, top)

    visit(ast.parse(path.read_text()), True)
    return found


def wrong_doors(path: Path) -> list[str]:
    room = room_of(module_of(path))
    if room not in DOORS:
        return [f"{path.relative_to(ROOT)}: the room {room!r} is not in the table"]
    out = []
    for line, target, top in imports(path):
        other = room_of(target)
        if other in (room, "records"):
            continue
        allowed = any(target == door or target.startswith(door + ".") for door in DOORS[room] - {"tilejit"}) \
            or other == "tilejit" and "tilejit" in DOORS[room]
        if not allowed or top and other in LAZY.get(room, ()):
            out.append(f"{path.relative_to(ROOT)}:{line}: {room} may not import {target or 'tilejit'}"
                       f"{' at the top level' if allowed else ''}")
    return out


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_doors(path):
    assert wrong_doors(path) == []


def test_the_emulator_shares_nothing_but_the_table_and_the_reader():
    for name in READERS:
        assert {room_of(t) for _, t, _ in imports(PACKAGE / name)} <= {"ptx", "errors", "records"}, name
        assert {t for _, t, _ in imports(PACKAGE / name) if room_of(t) == "ptx"} <= {"ptx.isa", "ptx.text"}, name


def test_a_wrong_door_is_found(tmp_path):
    """The checker itself: a door that the table does not list is reported with its line."""
    path = PACKAGE / "layout" / "linear.py"
    assert [t for _, t, _ in imports(path) if room_of(t) != "layout"] == ["records"]
    bad = tmp_path / "bad.py"
    bad.write_text("import os\nfrom tilejit.ir import core\ndef f():\n    import tilejit.runtime.driver\n")
    assert imports(bad) == [(2, "ir.core", True), (4, "runtime.driver", False)]


def test_the_table_is_the_design_page():
    text = (ROOT / "docs" / "design.md").read_text().partition("\n## 3. ")[0]
    rows = {}
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 2:
            rows[cells[0].strip("`")] = {c.strip().strip("`") for c in cells[1].split(",")} - {"nobody"}
    assert rows == DOORS


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_files_are_short(path):
    lines = len(path.read_text().splitlines())
    assert lines <= 700, f"{lines} lines: split the file (soft limit 400, hard limit 700)"


def test_predicates_of_dtypes_are_called():
    """`t.is_int` without parentheses would be a method, and so always true."""
    from tilejit.ir.types import DType

    names = {n for n in dir(DType) if n.startswith("is_") and callable(getattr(DType, n))}
    assert "is_int" in names
    found = []
    for path in (*FILES, *ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/*.py")):
        tree = ast.parse(path.read_text())
        called = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
        found += [f"{path.relative_to(ROOT)}:{n.lineno}" for n in ast.walk(tree)
                  if isinstance(n, ast.Attribute) and n.attr in names and isinstance(n.ctx, ast.Load)
                  and id(n) not in called]
    assert not found


def test_the_map_names_everything():
    text = (ROOT / "docs" / "map.md").read_text()
    names = {p.relative_to(ROOT).as_posix() for p in FILES}
    names |= {p.parent.relative_to(ROOT).as_posix() + "/" for p in FILES}
    missing = sorted(n for n in names if f"`{n}`" not in text)
    assert missing == [], "docs/map.md does not name these"


def test_the_map_names_nothing_that_is_gone():
    words = (ROOT / "docs" / "map.md").read_text().split("`")[1::2]
    gone = [w for w in words if w.startswith("tilejit/") and not (ROOT / w).exists()]
    assert gone == []


def test_import_is_light():
    """`import tilejit` loads no GPU binding, no numba, no torch; bodies of kernels need only the language."""
    code = ("import sys, tilejit, tilejit.language\n"
            "print(*[m for m in ('numba', 'llvmlite', 'torch', 'cuda', 'matplotlib', 'rich') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


def test_import_loads_nothing_of_the_package():
    """Names are loaded when they are asked for; decorating loads no part of the compiler behind the frontend."""
    code = ("import sys, tilejit\n"
            "print(*sorted(m for m in sys.modules if m.startswith('tilejit.')))\n"
            "import tilejit.language as tl\n"
            "@tilejit.kernel\n"
            "def k(x, B: tl.constexpr): tl.store(x, 1.0)\n"
            "late = ('passes', 'schedule', 'ptx.emit', 'ptx.kernel', 'emulator', 'tools', 'kernels', 'frontend.walker')\n"
            "print(*[m for m in late if 'tilejit.' + m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["", ""]


def test_import_is_quick():
    """Below two seconds even on a busy machine (0.2 s on an idle one), numpy included."""
    code = "import time; t = time.perf_counter(); import tilejit; print(time.perf_counter() - t)"
    times = [float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                                  cwd=ROOT).stdout) for _ in range(3)]
    assert min(times) < 2.0


def test_test_files_have_names_of_their_own():
    """pytest imports them by name alone."""
    names = [p.name for p in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
