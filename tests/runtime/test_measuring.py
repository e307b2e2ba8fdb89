"""The error measure that every numeric test leans on."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilejit.testing import assert_close, rel_error


@pytest.mark.parametrize("out,ref,error", [
    ([3.0, 4.0], [3.0, 4.0], 0.0), ([3.0, 4.5], [3.0, 4.0], 0.1), ([0.0, 0.0], [3.0, 4.0], 1.0),
    ([0.0, 0.5], [0.0, 0.0], 0.5), ([np.nan, 4.0], [3.0, 4.0], np.inf), ([np.inf, 4.0], [3.0, 4.0], np.inf)])
def test_rel_error(out, ref, error):
    """Norm of the difference over the norm of the reference; NaN and infinity never pass."""
    assert rel_error(np.array(out), np.array(ref)) == pytest.approx(error)


def test_low_precision_is_measured_in_double():
    """bf16 results are widened before they are subtracted."""
    ref = np.full(1 << 16, 1.0)
    out = np.full(1 << 16, 1.0078125).astype(ml_dtypes.bfloat16)
    assert rel_error(out, ref) == pytest.approx(0.0078125)


def test_assert_close():
    """The message has what was compared, the error and the bound; a NaN in either side fails."""
    assert_close(np.ones(3), np.ones(3), 0.0)
    with pytest.raises(AssertionError, match="row sums: relative error 1.000e-01 is above 1.0e-03"):
        assert_close(np.array([1.1]), np.array([1.0]), 1e-3, "row sums")
    for out, ref in ((np.nan, 1.0), (1.0, np.nan)):
        with pytest.raises(AssertionError):
            assert_close(np.array([out]), np.array([ref]), 1.0)
