"""Kernels as people write them, for `ordinary.py`: none is written for tilejit, all run under Triton as they are."""
from __future__ import annotations

from rows_plain import plain_layernorm as layernorm
from rows_plain import plain_softmax as softmax

import tilejit
import tilejit.language as tl

__all__ = ["layernorm", "softmax"]


@tilejit.kernel
def gelu_add(x, y, out, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    v = tl.load(x + o, m).to(tl.float32) + tl.load(y + o, m).to(tl.float32)
    v = 0.5 * v * (1 + tl.erf(v * 0.70710678))
    tl.store(out + o, v, m)


@tilejit.kernel
def matmul(a_ptr, b_ptr, c_ptr, M, N, K, sam, sak, sbk, sbn, scm, scn, BM: tl.constexpr, BN: tl.constexpr,
           BK: tl.constexpr, G: tl.constexpr):
    pid = tl.program_id(0)
    num_m = tl.cdiv(M, BM)
    num_n = tl.cdiv(N, BN)
    in_group = G * num_n
    group = pid // in_group
    first = group * G
    size = min(num_m - first, G)
    pm = first + ((pid % in_group) % size)
    pn = (pid % in_group) // size
    om = (pm * BM + tl.arange(0, BM)) % M
    on = (pn * BN + tl.arange(0, BN)) % N
    ok = tl.arange(0, BK)
    a = a_ptr + (om[:, None] * sam + ok[None, :] * sak)
    b = b_ptr + (ok[:, None] * sbk + on[None, :] * sbn)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        x = tl.load(a, mask=ok[None, :] < K - k * BK, other=0.0)
        y = tl.load(b, mask=ok[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(x, y, acc)
        a += BK * sak
        b += BK * sbk
    cm = pm * BM + tl.arange(0, BM)
    cn = pn * BN + tl.arange(0, BN)
    tl.store(c_ptr + scm * cm[:, None] + scn * cn[None, :], acc.to(tl.bfloat16),
             mask=(cm[:, None] < M) & (cn[None, :] < N))


@tilejit.kernel
def colsum(x, out, M, N, R: tl.constexpr, C: tl.constexpr):
    c = tl.program_id(0) * C + tl.arange(0, C)
    acc = tl.zeros((R, C), tl.float32)
    for r in range(tl.program_id(1) * R, M, R * tl.num_programs(1)):
        rr = r + tl.arange(0, R)
        mask = (rr[:, None] < M) & (c[None, :] < N)
        acc += tl.load(x + rr[:, None] * N + c[None, :], mask=mask, other=0).to(tl.float32)
    tl.atomic_add(out + c, tl.sum(acc, axis=0), mask=c < N)


@tilejit.kernel
def transpose(x, out, M, N, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.program_id(1) * C + tl.arange(0, C)
    v = tl.load(x + r[:, None] * N + c[None, :], mask=(r[:, None] < M) & (c[None, :] < N))
    tl.store(out + c[:, None] * M + r[None, :], tl.trans(v), mask=(c[:, None] < N) & (r[None, :] < M))


@tilejit.kernel
def embed(idx, w, out, D, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    row = tl.load(idx + i)
    for o in range(0, D, BLOCK):
        c = o + tl.arange(0, BLOCK)
        tl.store(out + i * D + c, tl.load(w + row * D + c, mask=c < D), mask=c < D)


@tilejit.kernel
def conv(x, w, out, T, D, C: tl.constexpr, R: tl.constexpr):
    t = tl.program_id(0) * R + tl.arange(0, R)
    d = tl.program_id(1) * C + tl.arange(0, C)
    acc = tl.zeros((R, C), tl.float32)
    for j in tl.static_range(4):
        u = t - 3 + j
        wj = tl.load(w + d * 4 + j, mask=d < D, other=0).to(tl.float32)
        mask = (u[:, None] >= 0) & (u[:, None] < T) & (d[None, :] < D)
        acc += wj[None, :] * tl.load(x + u[:, None] * D + d[None, :], mask=mask, other=0).to(tl.float32)
    acc = acc * tl.sigmoid(acc)
    tl.store(out + t[:, None] * D + d[None, :], acc, mask=(t[:, None] < T) & (d[None, :] < D))


@tilejit.kernel
def gemv(a, x, y, M, K, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    acc = tl.zeros((R, C), tl.float32)
    for k in range(0, K, C):
        c = k + tl.arange(0, C)
        mask = (r[:, None] < M) & (c[None, :] < K)
        v = tl.load(a + r[:, None] * K + c[None, :], mask=mask, other=0).to(tl.float32)
        acc += v * tl.load(x + c, mask=c < K, other=0).to(tl.float32)[None, :]
    tl.store(y + r, tl.sum(acc, axis=1), mask=r < M)


@tilejit.kernel
def quant(x, q, s, N, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + i * BLOCK + c).to(tl.float32)
    m = tl.maximum(tl.max(tl.abs(v), axis=0), 1e-10) / 448.0
    tl.store(s + i, m)
    tl.store(q + i * BLOCK + c, (v / m).to(tl.float8e4nv))


@tilejit.kernel
def swiglu(x, out, stride, D, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(x + row * stride + c, mask=c < D).to(tl.float32)
    u = tl.load(x + row * stride + D + c, mask=c < D).to(tl.float32)
    tl.store(out + row * D + c, g * tl.sigmoid(g) * u, mask=c < D)


@tilejit.kernel
def cumsum(x, out, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + row * N + c, mask=c < N, other=0).to(tl.float32)
    tl.store(out + row * N + c, tl.cumsum(v, 0), mask=c < N)


@tilejit.kernel
def dequant(w, s, out, K, N, G: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.program_id(1) * C + tl.arange(0, C)
    m = (r[:, None] < K) & (c[None, :] < N)
    v = tl.load(w + r[:, None] * (N // 2) + c[None, :] // 2, mask=m, other=0)
    v = ((v >> ((c[None, :] % 2) * 4)) & 15).to(tl.float32) - 8
    z = tl.load(s + (r[:, None] // G) * N + c[None, :], mask=m, other=0).to(tl.float32)
    tl.store(out + r[:, None] * N + c[None, :], (v * z).to(tl.bfloat16), mask=m)


@tilejit.kernel
def rope(q, cos, sin, out, H, D: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, D // 2)
    c = tl.load(cos + t * (D // 2) + h)
    s = tl.load(sin + t * (D // 2) + h)
    for i in range(0, H):
        p = q + (t * H + i) * D
        a = tl.load(p + h).to(tl.float32)
        b = tl.load(p + D // 2 + h).to(tl.float32)
        o = out + (t * H + i) * D
        tl.store(o + h, a * c - b * s)
        tl.store(o + D // 2 + h, b * c + a * s)


@tilejit.kernel
def argmax(x, out, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + row * N + c, mask=c < N, other=-float("inf"))
    tl.store(out + row, tl.argmax(v, axis=0))


@tilejit.kernel
def count(idx, out, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    tl.atomic_add(out + tl.load(idx + o, mask=m, other=0), 1, mask=m)
