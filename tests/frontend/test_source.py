"""Kernel sources: constants are part of what identifies a kernel, and printing round-trips."""
from __future__ import annotations

import ast
import types

import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.frontend.source import unparse
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
    with pytest.raises(tilejit.LaunchError, match="'SCALE' was 2.0"):
        scaled[(1,)](x, out, BLOCK=16)
    assert out[0] == 2.0 and scaled.source.fingerprint() != before


@pytest.mark.parametrize("text", ["a[i:i + 64, :]", "x[1:2, ::3]", "x[a, b:c, None]", "f(x)[0].T", "(1).real",
                                  "x if a < b <= c else -y ** 2", "acc + (a @ b)", "[i for i in (1, 2) if i]"])
def test_unparse_round_trip(text):
    """What astunparse prints parses back to the same tree."""
    tree = ast.parse(text)
    assert ast.dump(ast.parse(unparse(tree))) == ast.dump(tree)


settings = types.ModuleType("settings")
settings.SCALE = 2.0


@tilejit.kernel
def scaled_by_module(x, out, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out + offs, tl.load(x + offs) * settings.SCALE)


def test_module_constant_is_in_the_fingerprint(monkeypatch):
    """The disk cache must not return code that was compiled for another value of `module.CONST`."""
    before = scaled_by_module.source.fingerprint()
    monkeypatch.setattr(settings, "SCALE", 9.0)
    assert scaled_by_module.source.fingerprint() != before
