"""The host function of forward attention."""
from __future__ import annotations

from functools import lru_cache
from typing import Any

import tilejit
from tilejit import ArrayInfo, active_knobs
from tilejit.kernels._calls import Launch, facts_of, infos_of
from tilejit.kernels.attention.kernel import attention_kernel

_WHAT = "attention"
#: log2(e): weights are powers of two of scores times this.
_LOG2E = 1.4426950408889634
#: Widths of heads that kernels are made for: what is between is padded by TMA, which reads zeros.
_WIDTHS = (64, 128, 192, 256)


@tilejit.torch_op("tilejit::attention",
                  "(Tensor q, Tensor k, Tensor v, bool causal=False, float? scale=None) -> Tensor",
                  fake=lambda q, k, v, causal=False, scale=None: tilejit.empty_like(q, (*q.shape[:3], v.shape[3])),
                  replay=True)
def attention(q: Any, k: Any, v: Any, causal: bool = False, scale: float | None = None, out: Any = None,
              lse: Any = None, tiles: tuple[int, int] | None = None, persistent: bool = False) -> Any:
    """softmax(scale * q @ k^T) @ v for every batch and head, with fp32 sums.

    q [batch, queries, heads, d], k [batch, keys, kv heads, d], v [batch, keys, kv heads, dv], fp16 or bf16; any strides
    that are multiples of 16 bytes, the last dimension contiguous (so [batch, heads, sequence, d] after a transpose of
    the middle ones, too); d and dv up to 256, heads a multiple of kv heads (grouped queries). scale: 1/sqrt(d) if None.
    causal: query i sees keys up to i + keys - queries; one that sees none gives zeros. out [batch, queries, heads, dv]:
    where the result goes. lse [batch, heads, queries], fp32, contiguous: where the logarithms of the sums of
    exponentials go, if given. tiles: queries (64, 128 or, for three warpgroups, 192) and keys (a multiple of 16) of a
    block, instead of a choice. persistent: a program for each multiprocessor. Raises LaunchError for what does not
    fit."""
    iq, ik, iv = infos_of(q, k, v)
    if out is None:
        shape = _checked(*facts_of(iq, ik, iv))
        out = tilejit.empty_like(q, shape, iq.dtype)
    (io, il) = infos_of(out, lse)
    launch = _launch(*facts_of(iq, ik, iv, io, il), bool(causal), tiles, persistent and
                     tilejit.multiprocessors(iq.device), active_knobs())
    if launch is not None:
        scaled = (iq.shape[-1] ** -0.5 if scale is None else float(scale)) * _LOG2E
        sizes = iq.shape[1], ik.shape[1], scaled, iq.shape[2], iq.shape[0]
        launch((q, k, v, out), (iq, ik, iv, io), lse, *sizes)
    return out


@lru_cache(maxsize=1024)
def _checked(q: ArrayInfo, k: ArrayInfo, v: ArrayInfo) -> tuple[int, int, int, int]:
    """The shape of the result. Raises LaunchError for arrays that do not go together."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if len(x.shape) != 4:
            raise tilejit.LaunchError(f"{_WHAT}: {name} must be [batch, sequence, heads, d], found shape "
                                      f"{list(x.shape)}")
        if x.dtype not in (tilejit.language.float16, tilejit.language.bfloat16) or x.dtype != q.dtype:
            raise tilejit.LaunchError(f"{_WHAT}: q, k and v must all be fp16 or all bf16, found {name} of {x.dtype}"
                                      f"{'' if name == 'q' else f' and q of {q.dtype}'}")
        _readable(name, x)
    batch, queries, heads, d = q.shape
    if k.shape[:3] != v.shape[:3] or k.shape[0] != batch or k.shape[3] != d:
        raise tilejit.LaunchError(f"{_WHAT}: q {list(q.shape)}, k {list(k.shape)} and v {list(v.shape)} do not go "
                                  "together: expected q [batch, queries, heads, d], k [batch, keys, kv heads, d] "
                                  "and v [batch, keys, kv heads, dv]")
    if not k.shape[2] or heads % k.shape[2]:
        raise tilejit.LaunchError(f"{_WHAT}: {heads} query heads cannot share {k.shape[2]} heads of keys: expected a "
                                  "divisor")
    if not k.shape[1] and queries:
        raise tilejit.LaunchError(f"{_WHAT}: there are no keys: expected one at least")
    if not 0 < max(d, v.shape[3]) <= _WIDTHS[-1]:
        raise tilejit.LaunchError(f"{_WHAT}: heads of {d} and {v.shape[3]} elements; at most {_WIDTHS[-1]} are "
                                  "possible")
    return batch, queries, heads, v.shape[3]


def _readable(name: str, x: ArrayInfo) -> None:
    """Raise LaunchError for what TMA cannot read."""
    if 0 in x.shape:
        return
    lines = [s * x.dtype.bytes for s, n in zip(x.strides[:3], x.shape[:3]) if n > 1]
    if x.strides[3] != 1 and x.shape[3] > 1 or any(s % 16 for s in lines) or x.address % 16:
        raise tilejit.LaunchError(f"{_WHAT}: {name} needs a contiguous last dimension, an address and strides that "
                                  f"are multiples of 16 bytes; found strides {list(x.strides)} of {x.dtype}: copy it")


def _width(d: int) -> int:
    """The width of the kernel for heads of d elements."""
    return next(width for width in _WIDTHS if d <= width)


def _tiles(queries: int, wide: int, wide_v: int) -> tuple[int, int]:
    """Queries and keys of a block: as many keys as leave registers for the sums and shared memory for two blocks of
    each operand. Where heads are narrow the softmax takes as long as the products, and three warpgroups hide more of it
    than two.

    Measured on an H200 (TFLOP/s, 16 heads, 16k tokens in all, full): d64 at 4096 keys 493 for 192x112, 472 for 192x96,
    437 for 128x128; d128 704 for 128x128, 686 for 128x112; d256 788 for 128x80, 772 for 128x64."""
    if wide > 64 or wide_v > 64 or queries < 1024:
        return 64 if queries <= 64 else 128, 128 if wide_v <= 128 and wide <= 192 else 80 if wide_v > 192 else 64
    return 192, 112


@lru_cache(maxsize=1024)
def _launch(q: ArrayInfo, k: ArrayInfo, v: ArrayInfo, out: ArrayInfo, lse: ArrayInfo | None, causal: bool,
            tiles: tuple[int, int] | None, programs: int, knobs: Any) -> Launch | None:
    """The launch; None where the result is empty."""
    shape = _checked(q, k, v)
    batch, queries, heads, dv = shape
    keys, kv_heads, d = k.shape[1:]
    if out.shape != shape or out.dtype != q.dtype:
        raise tilejit.LaunchError(f"{_WHAT}: out must be {list(shape)} of {q.dtype}, found {list(out.shape)} of "
                                  f"{out.dtype}")
    _readable("out", out)
    if lse is not None and (lse.shape != (batch, heads, queries) or lse.dtype != tilejit.language.float32
                            or lse.strides != (heads * queries, queries, 1)):
        raise tilejit.LaunchError(f"{_WHAT}: lse must be a contiguous fp32 array {[batch, heads, queries]}, found "
                                  f"{list(lse.shape)} of {lse.dtype}")
    if 0 in shape:
        return None
    wide, wide_v = _width(d), _width(dv)
    bm, bn = tiles or _tiles(queries, wide, wide_v)
    descriptors = tuple(
        tilejit.TensorDescriptor.template(x, x.shape, tuple(_pitches(x)), (1, rows, 1, columns))
        for x, rows, columns in ((q, bm, wide), (k, bn, wide), (v, bn, wide_v), (out, bm, wide_v)))
    kernel = attention_kernel.partial(
        GROUP=heads // kv_heads, CAUSAL=causal, TAIL=causal or keys % bn > 0, LSE=lse is not None,
        PERSISTENT=programs > 0, BM=bm, BN=bn, D=wide, DV=wide_v, num_warps=bm // 16)
    blocks = tilejit.cdiv(queries, bm)
    grid = (min(programs, blocks * heads * batch),) if programs else (blocks, heads, batch)
    return Launch(kernel, grid, descriptors)  # type: ignore[arg-type]


def _pitches(x: ArrayInfo) -> list[int]:
    """Strides as TMA takes them: those of single elements do not matter, and may not be odd."""
    whole = max([s for s, n in zip(x.strides, x.shape) if n > 1] or [8])
    return [s if n > 1 else max(16 // x.dtype.bytes, whole) for s, n in zip(x.strides[:3], x.shape[:3])] + [1]
