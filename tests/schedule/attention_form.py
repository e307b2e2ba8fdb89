"""Attention as its users write it: descriptors, one loop (two with a causal mask), nothing placed by hand."""
from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import tilejit
import tilejit.language as tl

BF16 = ml_dtypes.bfloat16


@tilejit.kernel
def attend(q_desc, k_desc, v_desc, o_desc, length, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
           CAUSAL: tl.constexpr):
    """One block of BM queries of one head; keys and values [heads * length, D]."""
    base = tl.program_id(1) * length
    first = tl.program_id(0) * BM
    q = q_desc.load([base + first, 0])
    most = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    end = first if CAUSAL else length
    for n in tl.range(0, end, BN):
        k = k_desc.load([base + n, 0])
        scores = tl.dot(q, k.T)
        new = tl.maximum(most, tl.max(scores, 1) * scale)
        p = tl.exp2(scores * scale - new[:, None])
        alpha = tl.exp2(most - new)
        total = total * alpha + tl.sum(p, 1)
        v = v_desc.load([base + n, 0])
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        most = new
    if CAUSAL:
        rows, columns = first + tl.arange(0, BM), tl.arange(0, BN)
        for n in tl.range(first, first + BM, BN):
            k = k_desc.load([base + n, 0])
            scores = tl.dot(q, k.T) * scale
            scores = tl.where(rows[:, None] >= n + columns[None, :], scores, float("-inf"))
            new = tl.maximum(most, tl.max(scores, 1))
            p = tl.exp2(scores - new[:, None])
            alpha = tl.exp2(most - new)
            total = total * alpha + tl.sum(p, 1)
            v = v_desc.load([base + n, 0])
            acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
            most = new
    o_desc.store([base + first, 0], (acc / total[:, None]).to(o_desc.dtype))


@tilejit.kernel
def attend_one(q_desc, k_desc, o_desc, sum_desc, length, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
               TWICE: tl.constexpr = False):
    """Keys that are the values too, so that products of both stages read a slot; the first product of the second one is
    staged through shared memory, and its sums are added to memory in every iteration (TWICE: the scores' too)."""
    base = tl.program_id(1) * length
    first = tl.program_id(0) * BM
    q = q_desc.load([base + first, 0])
    acc = tl.zeros([BM, D], tl.float32)
    for n in tl.range(0, length, BN):
        k = k_desc.load([base + n, 0])
        scores = tl.dot(q, k.T)
        if TWICE:
            sum_desc.atomic_add([base + n, 0], scores)
        p = tl.exp2(scores * scale).to(k.dtype)
        acc = tl.dot(p, k, acc)
        sum_desc.atomic_add([base + n, 0], tl.dot(p.T, q))
    o_desc.store([base + first, 0], acc.to(o_desc.dtype))


def one_arguments(length: int, heads: int = 1, d: int = 64, bm: int = 64, bn: int = 64,
                  **options: Any) -> tuple[tuple[int, int], tuple, dict[str, Any]]:
    """Grid, arguments (the third is the output, the fourth sums over queries) and constants of a launch."""
    rng = np.random.default_rng(length)
    q, k = (rng.standard_normal((heads * length, d), np.float32).astype(BF16) for _ in range(2))
    out, sums = np.full((heads * length, d), np.nan, np.float32).astype(BF16), np.zeros((heads * length, d), np.float32)
    descs = [tilejit.TensorDescriptor(x, x.shape, (d, 1), (rows, d)) for x, rows in ((q, bm), (k, bn), (out, bm), (sums, bn))]
    return (length // bm, heads), (*descs, length, d ** -0.5), {"BM": bm, "BN": bn, "D": d, **options}


def one_reference(args: tuple, heads: int) -> tuple[np.ndarray, np.ndarray]:
    """Output and sums, in float64 but for the weights' type."""
    q, k = (x.base.astype(np.float64).reshape(heads, -1, x.base.shape[-1]) for x in args[:2])
    p = np.exp2(q @ k.transpose(0, 2, 1) * args[5]).astype(BF16).astype(np.float64)
    return (p @ k).reshape(args[2].base.shape), (p.transpose(0, 2, 1) @ q).reshape(args[3].base.shape)


def arguments(length: int, heads: int = 1, d: int = 64, bm: int = 64, bn: int = 64, dtype: Any = BF16,
              causal: bool = False, **options: Any) -> tuple[tuple[int, int], tuple, dict[str, Any]]:
    """Grid, arguments (the last array is the output) and constants of a launch."""
    rng = np.random.default_rng(length + d)
    q, k, v = (rng.standard_normal((heads * length, d), np.float32).astype(dtype) for _ in range(3))
    out = np.full((heads * length, d), np.nan, np.float32).astype(dtype)
    descs = [tilejit.TensorDescriptor(x, x.shape, (d, 1), (rows, d)) for x, rows in ((q, bm), (k, bn), (v, bn), (out, bm))]
    constants = {"BM": bm, "BN": bn, "D": d, "CAUSAL": causal, **options}
    return (length // bm, heads), (*descs, length, 1.4426950408889634 * d ** -0.5), constants


def reference(args: tuple, heads: int, causal: bool) -> np.ndarray:
    """In float64."""
    q, k, v = (x.base.astype(np.float64).reshape(heads, -1, x.base.shape[-1]) for x in args[:3])
    scores = q @ k.transpose(0, 2, 1) * q.shape[-1] ** -0.5
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return ((p / p.sum(-1, keepdims=True)) @ v).reshape(args[3].base.shape)
