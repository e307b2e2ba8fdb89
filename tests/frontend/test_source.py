"""Kernel sources: constants are part of what identifies a kernel, and printing round-trips."""
from __future__ import annotations

import ast
import sys
import time
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.frontend.captures import captures
from tilejit.frontend.source import KernelSource, unparse
from tilejit.runtime import driver

SCALE = 2.0


@tilejit.kernel
def scaled(x, out, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out + offs, tl.load(x + offs) * SCALE)


@pytest.mark.skipif(driver.available(), reason="host arrays run in the evaluator only without a GPU")
def test_changed_global_is_seen(monkeypatch):
    """A captured constant that changes after compilation is an error, and another fingerprint."""
    x, out = np.ones(16, np.float32), np.zeros(16, np.float32)
    scaled[(1,)](x, out, BLOCK=16)
    before = scaled.source.fingerprint()
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    with pytest.raises(tilejit.LaunchError, match="SCALE has changed .* from 2.0"):
        scaled[(1,)](x, out, BLOCK=16)
    assert out[0] == 2.0 and scaled.source.fingerprint() != before


@pytest.mark.parametrize("text", ["a[i:i + 64, :]", "x[1:2, ::3]", "x[a, b:c, None]", "f(x)[0].T", "(1).real",
                                  "x if a < b <= c else -y ** 2", "acc + (a @ b)", "[i for i in (1, 2) if i]"])
def test_unparse_round_trip(text):
    """What astunparse prints parses back to the same tree."""
    tree = ast.parse(text)
    assert ast.dump(ast.parse(unparse(tree))) == ast.dump(tree)


def test_one_thread_parses_at_a_time(monkeypatch):
    """Several threads compile at once (autotuning does); two of them in ast.parse break it on some Pythons."""
    inside, most = [], []
    parse = ast.parse

    def counted(text):
        inside.append(text)
        most.append(len(inside))
        time.sleep(0.002)
        inside.pop()
        return parse(text)

    with monkeypatch.context() as patch, ThreadPoolExecutor(4) as pool:
        patch.setattr(ast, "parse", counted)
        texts = list(pool.map(lambda _: KernelSource(scaled.source.fn).normalised(), range(20)))
    assert len(most) == 40 and max(most) == 1 and len(set(texts)) == 1


settings = types.ModuleType("settings")
settings.SCALE = 2.0


@tilejit.kernel
def scaled_by_module(x, out, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out + offs, tl.load(x + offs) * settings.SCALE)


outer = types.ModuleType("outer")
outer.tiles = types.ModuleType("outer.tiles")
outer.tiles.M = 16


class Limits:
    """Constants in a class."""

    LOW = 1


def helper(default):
    """A kernel with a default that no name in it shows."""
    @tilejit.kernel
    def shifted(x, by=default):
        return x + by
    return shifted


add_one, add_two = helper(1), helper(2)


@tilejit.kernel
def reads_far(out):
    tl.store(out, outer.tiles.M + Limits.LOW)


SETTING = 3


@tilejit.kernel
def hides(SCALE, settings):
    tl.store(SCALE, settings + SETTING)


@pytest.mark.parametrize("owner,name", [(outer.tiles, "M"), (Limits, "LOW")])
def test_constants_behind_dots(monkeypatch, owner, name):
    """`package.module.X` and `Class.X` are in the fingerprint, and a change after compilation is an error."""
    out = np.zeros(1, np.int32)
    before = reads_far.source.fingerprint()
    with tilejit.knobs(target="evaluator"):
        reads_far[(1,)](out)
        assert out[0] == 17
        monkeypatch.setattr(owner, name, 5)
        assert reads_far.source.fingerprint() != before
        with pytest.raises(tilejit.LaunchError, match=f"{name} has changed"):
            reads_far[(1,)](out)


def test_local_names_are_not_captured():
    """A parameter hides a global of its name."""
    assert [c.name for c in captures(scaled.source)] == ["SCALE"]
    assert [c.name for c in captures(hides.source)] == ["SETTING"]


def test_defaults_are_in_the_fingerprint():
    assert add_one.source.fingerprint() != add_two.source.fingerprint()


def test_module_constant_is_in_the_fingerprint(monkeypatch):
    """The disk cache must not return code that was compiled for another value of `module.CONST`."""
    before = scaled_by_module.source.fingerprint()
    monkeypatch.setattr(settings, "SCALE", 9.0)
    assert scaled_by_module.source.fingerprint() != before


@pytest.mark.parametrize("later", ["", None], ids=["changed", "gone"])
def test_the_source_is_what_was_imported(tmp_path, monkeypatch, later):
    file = tmp_path / f"kernel_that_is_{later}.py"
    text = "import tilejit\nimport tilejit.language as tl\n@tilejit.kernel\ndef one(o):\n    tl.store(o, 1)\n"
    file.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    made = __import__(file.stem)
    file.unlink() if later is None else file.write_text(later + text.replace("1", "2"))
    o = np.zeros(1, np.int32)
    with tilejit.knobs(target="emulator"):
        made.one[(1,)](o)
    assert o[0] == 1


@pytest.mark.skipif(sys.version_info < (3, 14), reason="before Python 3.14 none is deferred")
def test_deferred_annotations(tmp_path):
    """Annotations of names that are not there (yet), and the fields of value classes, where Python defers them."""
    (tmp_path / "deferred_annotations.py").write_text("""
import tilejit
import tilejit.language as tl

@tilejit.kernel
def later(x: Nowhere, n: tl.constexpr):
    tl.store(x, n)

@tl.aggregate
class Pair:
    a: tl.tensor
    b: tl.constexpr
""")
    sys.path.insert(0, str(tmp_path))
    try:
        import deferred_annotations as found
    finally:
        sys.path.remove(str(tmp_path))
    assert found.later.constexprs == {"n"} and "Nowhere" in str(found.later.source.signature)
    assert [*found.Pair.fields] == ["a", "b"]
