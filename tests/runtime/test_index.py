"""Notes of the cache: a kernel is found without reading its source, and never one that was compiled from another."""
import importlib
import linecache
import os
import sys

import pytest

import tilejit
from tilejit.frontend import KernelSource
from tilejit.runtime import index

HELPER = "import tilejit\nimport tilejit.language as tl\nSCALE = tl.constexpr(3)\n\n\n@tilejit.kernel\ndef scaled(x):\n    return x * SCALE\n"
KERNEL = """import tilejit
import tilejit.language as tl
import {helper} as helper
OFFSET = 2


@tilejit.kernel
def shift(x, out, n, BLOCK: tl.constexpr, f: tl.constexpr = None, more=5):
    at = tl.arange(0, BLOCK)
    v = helper.scaled(tl.load(x + at, at < n)) + OFFSET + more
    if f is not None:
        v = f(v)
    tl.store(out + at, v, at < n)
"""


class Modules:
    """Two modules in files, imported anew as another process would."""

    def __init__(self, folder, number):
        self.folder, self.names = folder, (f"index_helper{number}", f"index_kernel{number}")
        self.write(0, HELPER)
        self.write(1, KERNEL.format(helper=self.names[0]))

    def write(self, i, text):
        path = self.folder / f"{self.names[i]}.py"
        path.write_text(text)
        os.utime(path, ns=(Modules.time, Modules.time))

    time = 10 ** 18

    def load(self):
        for n in self.names:
            sys.modules.pop(n, None)
        importlib.invalidate_caches()
        linecache.clearcache()
        index._stamp.cache_clear()
        index.constants.clear()
        return [importlib.import_module(n) for n in self.names]


@pytest.fixture
def modules(tmp_path, monkeypatch, request):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    with tilejit.knobs(cache_dir=str(tmp_path / "cache")):
        yield Modules(tmp_path, abs(hash(request.node.name)))


def found(kernel, monkeypatch, *more, **constants):
    """The compiled kernel, and whether its text was looked at."""
    read = []
    real = KernelSource.fingerprint
    monkeypatch.setattr(KernelSource, "fingerprint", lambda self: read.append(self.name) or real(self))
    made = kernel.compile("*fp32", "*fp32", "int32", *more, BLOCK=64, **constants)
    monkeypatch.setattr(KernelSource, "fingerprint", real)
    return made, bool(read)


def test_another_process_finds_a_kernel_by_its_note(modules, monkeypatch):
    helper, main = modules.load()
    first, read = found(main.shift, monkeypatch)
    assert read and not first.from_cache
    _, again = modules.load()
    second, read = found(again.shift, monkeypatch)
    assert not read and second.from_cache and second.ptx == first.ptx and again.shift.source is not main.shift.source
    (table, name, value), (_, other, _) = sorted(index.constants[again.shift.source], key=lambda r: r[1])
    assert (name, value, other) == ("OFFSET", 2, "SCALE") and table is again.__dict__


@pytest.mark.parametrize("change", ["text", "helper", "constant", "helper's constant", "function", "default", "time"])
def test_what_changed_is_read_again(change, modules, monkeypatch):
    _, main = modules.load()
    first, _ = found(main.shift, monkeypatch)
    if change == "text":
        modules.write(1, KERNEL.format(helper=modules.names[0]).replace("+ OFFSET", "- OFFSET"))
    if change == "helper":
        modules.write(0, HELPER.replace("x * SCALE", "x - SCALE"))
    if change == "time":
        Modules.time += 1
        modules.write(0, HELPER)
    helper, main = modules.load()
    if change == "constant":
        main.OFFSET = 7
    if change == "helper's constant":
        helper.SCALE = tilejit.language.constexpr(9)
    if change == "function":
        main.helper = type(sys)("other")
        main.helper.scaled = main.shift
        with pytest.raises(tilejit.CompilationError):
            found(main.shift, monkeypatch)
        return
    if change == "default":
        source = modules.folder / f"{modules.names[1]}.py"
        text = source.read_text()
        stat = source.stat()
        source.write_text(text.replace("more=5", "more=6"))
        os.utime(source, ns=(stat.st_mtime_ns, stat.st_mtime_ns))         # a clock that stood still
        _, main = modules.load()
    second, read = found(main.shift, monkeypatch)
    assert read and (second.ptx != first.ptx or change in ("time", "default"))
    third, read = found(main.shift, monkeypatch)
    assert not read and third.ptx == second.ptx


def test_kernels_as_constants_are_looked_at_too(modules, monkeypatch):
    helper, main = modules.load()
    first, _ = found(main.shift, monkeypatch, f=helper.scaled)
    helper, main = modules.load()
    second, read = found(main.shift, monkeypatch, f=helper.scaled)
    assert not read and second.ptx == first.ptx
    modules.write(0, HELPER.replace("x * SCALE", "x * SCALE + 1"))
    helper, main = modules.load()
    third, read = found(main.shift, monkeypatch, f=helper.scaled)
    assert read and third.ptx != first.ptx


def test_a_damaged_note_is_no_note(modules, monkeypatch, tmp_path):
    _, main = modules.load()
    found(main.shift, monkeypatch)
    for note in (tmp_path / "cache").glob("index-*"):
        note.write_text("1\n[[[")
    _, main = modules.load()
    assert found(main.shift, monkeypatch)[1]
