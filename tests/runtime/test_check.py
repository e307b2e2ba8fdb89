"""`tilejit.check`: many schedules of one launch; arguments hold one launch's results afterwards."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.errors import EmulatorError, LaunchError


@tilejit.kernel
def double(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < n) * 2, at < n)


@tilejit.kernel
def accumulate(x, total, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total + at % 4, tl.load(x + at))


def test_a_right_kernel_has_no_findings_and_ran_once():
    x, y = np.arange(300, dtype=np.int32), np.full(300, -1, np.int32)
    found = tilejit.check(double, (3,), x, y, 300, BLOCK=128)
    assert found.ok and len(found.runs) == 11 and "no findings" in str(found)
    assert np.array_equal(y, 2 * x) and np.array_equal(x, np.arange(300))
    total = np.zeros(4, np.int32)
    tilejit.check(accumulate, lambda meta: (2,), x[:256], total, BLOCK=128).check()
    assert np.array_equal(total, x[:256].reshape(-1, 4).sum(0))


def test_float_sums_depend_on_the_schedule_within_a_bound():
    x = np.random.default_rng(0).standard_normal(512).astype(np.float32)
    total = np.zeros(4, np.float32)
    strict = tilejit.check(accumulate, 1, x, total, BLOCK=512, num_warps=8, policies=["random"], seeds=range(8))
    assert strict.kinds == {"nondeterministic"} and "argument total" in str(strict)
    total[:] = 0
    assert tilejit.check(accumulate, 1, x, total, BLOCK=512, num_warps=8, tolerance=1e-4).ok


def test_seeds_and_policies_are_chosen():
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    found = tilejit.check(double, 1, x, y, 64, BLOCK=64, seeds=[7, 9], policies=["adversarial"])
    assert [(r.policy, r.seed) for r in found.runs] == [("adversarial", 7), ("adversarial", 9)]


def test_out_of_bounds_is_a_finding_and_memory_stays():
    x, y = np.ones(128, np.float32), np.zeros(100, np.float32)
    found = tilejit.check(double, 1, x, y, 128, BLOCK=128, seeds=range(2))
    assert found.kinds == {"out-of-bounds"} and not y.any()
    (group,) = found.groups
    assert group.runs == 5 and group.finding.source_loc[0].endswith("test_check.py")


@tilejit.kernel
def overlap(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) + 1)


def test_the_sanitizer_names_the_line():
    """Two programs store the same values to the same places: no result shows it."""
    x, y = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    found = tilejit.check(overlap, (2,), x, y, BLOCK=64, seeds=range(2))
    assert found.kinds == {"global-race"} and np.array_equal(y, x + 1)
    line = overlap.fn.__code__.co_firstlineno + 3
    assert all(g.finding.source_loc[1] == line for g in found.groups) and f"test_check.py:{line}" in str(found)
    assert tilejit.check(overlap, (2,), x, y, BLOCK=64, seeds=range(2), sanitize=False).ok


def test_descriptors_and_bf16():
    a = np.random.default_rng(1).standard_normal((64, 64)).astype(ml_dtypes.bfloat16)
    out = np.zeros((64, 64), ml_dtypes.bfloat16)
    descs = [tilejit.TensorDescriptor(x, x.shape, (64, 1), (64, 64)) for x in (a, out)]

    @tilejit.kernel
    def copy(src, dst):
        dst.store([0, 0], src.load([0, 0]))

    tilejit.check(copy, 1, *descs, seeds=range(3)).check()
    assert np.array_equal(a.view(np.uint16), out.view(np.uint16))


def test_what_does_not_fit_is_said():
    with pytest.raises(LaunchError, match="check needs a kernel"):
        tilejit.check(print, 1)
    with pytest.raises(LaunchError, match="needs a seed and a policy"):
        tilejit.check(double, 1, np.ones(4, np.float32), np.ones(4, np.float32), 4, BLOCK=4, seeds=[])
    with pytest.raises(EmulatorError, match="no policy 'greedy'"):
        tilejit.check(double, 1, np.ones(4, np.float32), np.ones(4, np.float32), 4, BLOCK=4, policies=["greedy"])
    with pytest.raises(LaunchError, match="misses argument"):
        tilejit.check(double, 1, np.ones(4, np.float32), BLOCK=4)
