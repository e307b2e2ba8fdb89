"""Row kernels under the environment's settings alone, as most callers have them (no `with tilejit.knobs(...)`)."""
from __future__ import annotations

import numpy as np

import tilejit
from tilejit import kernels


def test_without_settings_of_this_thread(monkeypatch):
    monkeypatch.setenv("TILEJIT_TARGET", "evaluator")
    assert tilejit.active_knobs() is None
    x = np.arange(66, dtype=np.float32).reshape(2, 33)
    found = kernels.rmsnorm(x, np.ones(33, np.float32))
    assert np.allclose(found, x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6), rtol=1e-5)
