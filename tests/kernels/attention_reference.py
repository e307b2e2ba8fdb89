"""Attention and its gradients in float64, with every option: what the tests of attention compare with; launches noted."""
from __future__ import annotations

from typing import Any

import numpy as np


def reference(q: Any, k: Any, v: Any, causal: bool = False, scale: float | None = None, window: Any = None,
              chunk: int | None = None, prefix: Any = None, softcap: float | None = None, alibi: Any = None,
              sinks: Any = None, score: Any = None, mask: Any = None, keys: Any = None, grad: Any = None,
              lse_grad: Any = None, keep: Any = None, kept: Any = None) -> Any:
    """out and logarithms of sums [batch, heads, queries]; with grad also the gradients of q, k, v and sinks.

    score(x, batch, head, query, key) gives scores and their slopes; mask(...) what is seen; keys [batch]: how many
    there are; keep [batch, heads, queries, keys]: what weights are multiplied by (dropout); kept: the result as it was
    rounded, if gradients are of that."""
    q, k, v = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k, v))
    batch, heads, n, d = q.shape
    group = heads // k.shape[1]
    wide_k, wide_v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scale = d ** -0.5 if scale is None else scale
    count = np.full(batch, k.shape[2]) if keys is None else np.asarray(keys)
    b, h = np.arange(batch)[:, None, None, None], np.arange(heads)[:, None, None]
    i, j = np.arange(n)[:, None], np.arange(k.shape[2])[None, :]
    t = i + count[:, None, None, None] - n
    x = q @ wide_k.transpose(0, 1, 3, 2) * scale
    slope = np.ones_like(x)
    if softcap:
        slope = 1 - np.tanh(x / softcap) ** 2
        x = np.tanh(x / softcap) * softcap
    if alibi is not None:
        x = x + np.asarray(alibi, np.float64)[h] * (j - t)
    if score:
        x, more = score(x, b, h, i, j)
        slope = slope * more
    seen = np.broadcast_to(j < count[:, None, None, None], x.shape)
    left, right = window or (None, None)
    right = 0 if causal else right
    in_time = np.ones_like(seen) if right is None else j <= t + right
    if prefix is not None:
        in_time = in_time | (j < np.asarray(prefix)[:, None, None, None])
    seen = seen & in_time
    if left is not None:
        seen = seen & (j >= t - left)
    if chunk:
        seen = seen & (j >= np.maximum(t, 0) // chunk * chunk)
    if mask:
        seen = seen & mask(b, h, i, j)
    x = np.where(seen, x, -np.inf)
    most = x.max(-1, keepdims=True)
    extra = -np.inf if sinks is None else np.asarray(sinks, np.float64)[:, None, None]
    most = np.maximum(most, extra)
    most = np.where(np.isinf(most), 0, most)
    p = np.exp(x - most)
    total = p.sum(-1, keepdims=True) + np.exp(extra - most)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + most)[..., 0]
    p = p / np.where(total == 0, 1, total)
    dropped = p if keep is None else p * keep
    out = dropped @ wide_v
    if grad is None:
        return out.transpose(0, 2, 1, 3), lse
    g = grad.astype(np.float64).transpose(0, 2, 1, 3)
    dp = g @ wide_v.transpose(0, 1, 3, 2) * (1 if keep is None else keep)
    delta = (g * (out if kept is None else kept.transpose(0, 2, 1, 3))).sum(-1, keepdims=True)
    other = delta - (0 if lse_grad is None else lse_grad[..., None])
    ds = np.where(seen, p * (dp - other) * slope, 0)
    dq = ds @ wide_k * scale
    dk = (ds.transpose(0, 1, 3, 2) @ q * scale).reshape(batch, -1, group, *k.shape[2:]).sum(2)
    dv = (dropped.transpose(0, 1, 3, 2) @ g).reshape(batch, -1, group, *v.shape[2:]).sum(2)
    back = [a.transpose(0, 2, 1, 3) for a in (out, dq, dk, dv)]
    of_sinks = None
    if sinks is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            of_sinks = -(np.exp(extra - lse[..., None]) * other).sum((0, 2, 3))
    return back[0], lse, *back[1:], of_sinks


class Recorded:
    """A kernel that notes the grids of its launches."""

    def __init__(self, kernel: Any, grids: list) -> None:
        self.kernel, self.grids = kernel, grids

    def partial(self, **given: Any) -> Recorded:
        return Recorded(self.kernel.partial(**given), self.grids)

    def __getitem__(self, grid: Any) -> Any:
        self.grids.append(grid)
        return self.kernel[grid]
