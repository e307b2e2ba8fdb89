"""Descriptors put over other arrays."""
import numpy as np
import pytest

import tilejit


def test_over_is_a_new_descriptor_of_the_same_view():
    x, y = np.zeros((32, 64), np.float32), np.ones((32, 64), np.float32)
    d = tilejit.TensorDescriptor(x, (16, 64), (128, 1), (8, 32))
    e = d.over(y)
    meant = tilejit.TensorDescriptor(y, (16, 64), (128, 1), (8, 32))
    assert (e.map_key, e.signature, e.tma, e.device) == (meant.map_key, meant.signature, meant.tma, meant.device)
    assert e.base is y and d.base is x


def test_over_sees_another_alignment():
    raw = np.zeros(32 * 64 * 4 + 32, np.uint8)
    start = -raw.ctypes.data % 16
    aligned, odd = (raw[start + i:start + i + 8192].view(np.float32).reshape(32, 64) for i in (0, 4))
    d = tilejit.TensorDescriptor.from_tensor(aligned, (8, 32))
    assert d.tma and not d.over(odd).tma and d.over(odd).over(aligned).tma


def test_over_template_and_another_dtype():
    x = np.zeros((32, 64), np.float32)
    info = tilejit.array_info(x)
    d = tilejit.TensorDescriptor.template(info, (32, 64), (64, 1), (8, 32))
    assert d.base is None and d.over(x, info).map_key == tilejit.TensorDescriptor.from_tensor(x, (8, 32)).map_key
    with pytest.raises(tilejit.LaunchError, match="expected an array of fp32, found fp16"):
        d.over(np.zeros((32, 64), np.float16))
