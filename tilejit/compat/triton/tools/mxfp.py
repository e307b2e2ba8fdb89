"""OCP microscaling formats (Specification v1.0, 5.3.3 and 5.4.1), one element a byte: e2m1 numbers, e8m0 scales."""
from __future__ import annotations

from typing import Any

import torch

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class _Bytes:
    data: torch.Tensor

    def __init__(self, data: torch.Tensor | None = None, size: Any = None, device: Any = None):
        if data is None and size is None:
            raise ValueError("give numbers (data) or a size")
        self.device = device if data is None else data.device
        if data is not None:
            self.data = self._from_float(data)
        else:
            self.size = size if isinstance(size, tuple) else (size,)

    def _from_float(self, values: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class MXFP4Tensor(_Bytes):
    """Sign, two bits of exponent, one of mantissa."""

    def random(self) -> MXFP4Tensor:
        self.data = torch.randint(0, 16, self.size, dtype=torch.uint8, device=self.device)
        return self

    def to(self, dtype: torch.dtype) -> torch.Tensor:
        assert dtype == torch.float32, "e2m1 numbers are given as torch.float32 only"
        table = torch.tensor([*_E2M1, *(-x for x in _E2M1)], device=self.data.device)
        return table[self.data.long()]

    def _from_float(self, values: torch.Tensor) -> torch.Tensor:
        """The nearest code, of two as near the even one; above the largest, infinite or NaN: the largest."""
        size = torch.where(torch.isfinite(values), values.abs().double(), 6.0).clamp(max=6.0)
        middles = torch.tensor([(a + b) / 2 for a, b in zip(_E2M1, _E2M1[1:])], dtype=torch.float64, device=self.device)
        up, down = torch.bucketize(size, middles, right=True), torch.bucketize(size, middles)
        code = torch.where(up % 2 == 0, up, down)
        return (code + 8 * torch.signbit(values)).to(torch.uint8)

    def to_packed_tensor(self, dim: int) -> torch.Tensor:
        """Two neighbours along `dim` in a byte, the first in its low half; an odd end is filled with zero."""
        assert 0 <= dim < self.data.ndim, "there is no such dimension to pack along"
        data = self.data
        if data.shape[dim] % 2:
            shape = list(data.shape)
            shape[dim] = 1
            data = torch.cat((data, data.new_zeros(shape)), dim)
        low, high = data.unflatten(dim, (-1, 2)).unbind(dim + 1)
        return low | high << 4

    def unpack_packed_tensor(self, packed: torch.Tensor, dim: int, original_shape: Any) -> torch.Tensor:
        both = torch.stack((packed & 15, packed >> 4), dim + 1).flatten(dim, dim + 1)
        return both.narrow(dim, 0, original_shape[dim]).to(torch.uint8)


class MXScaleTensor(_Bytes):
    """Powers of two from 2^-127 to 2^127; 255 is NaN."""

    def random(self, low: float | None = None, high: float | None = None) -> MXScaleTensor:
        def exponent(x: float) -> int:
            return min(254, max(0, int(torch.log2(torch.tensor(x))) + 127))

        first, last = 0 if low is None else exponent(low), 254 if high is None else exponent(high)
        assert first <= last, "the least scale is above the greatest"
        self.data = torch.randint(first, last + 1, self.size, dtype=torch.uint8, device=self.device)
        return self

    def to(self, dtype: torch.dtype) -> torch.Tensor:
        assert dtype == torch.float32, "scales are given as torch.float32 only"
        return fp8e8m0_to_float32(self.data)

    def _from_float(self, values: torch.Tensor) -> torch.Tensor:
        """The largest power of two that is not above; NaN for what is not positive and finite."""
        fine = torch.isfinite(values) & (values > 0)
        exponent = torch.where(fine, values, 1.0).log2().floor() + 127
        return torch.where(fine, exponent.clamp(0, 254), 255.0).to(torch.uint8)


def fp8e8m0_to_float32(scale: torch.Tensor) -> torch.Tensor:
    code = scale.view(torch.uint8)
    return torch.where(code == 255, torch.nan, torch.exp2(code.double() - 127)).float()
