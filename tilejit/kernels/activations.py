from __future__ import annotations

import tilejit
import tilejit.language as tl

ACTIVATIONS = (None, "relu", "gelu", "silu")
#: log2 of the normal distribution's upper tail, erfc(a / sqrt(2)) / 2, as polynomials in a (highest power first) whose
#: error counts as it does in a times the tail: in proportion to that where it is above 0.01 (degree 6) or 0.001.
TAIL_6 = (3.408335032872856e-05, -0.000772812170907855, 0.008069413714110851, -0.053345683962106705,
          -0.45886874198913574, -1.1511509418487549, -1.0)
TAIL_4 = (0.0029923480469733477, -0.039644427597522736, -0.4742376506328583, -1.1456800699234009, -1.0)


@tilejit.kernel
def gelu(x, DTYPE: tl.constexpr):
    """x times the probability of the normal distribution below x: max(x, 0) - |x| times the tail, in fp32, within 3e-7
    max(1, |x|).

    For a DTYPE that keeps 8 bits or fewer within 4.3e-4 of the result, or 4.3e-7 where it is less than 0.001.
    """
    a = tl.minimum(tl.abs(x), 16.0)  # a finite factor of a tail that is 0
    if DTYPE == tl.bfloat16 or DTYPE == tl.float8e4nv or DTYPE == tl.float8e5:
        tail = tl.fma(a, TAIL_4[0], TAIL_4[1])
        for c in TAIL_4[2:]:
            tail = tl.fma(tail, a, c)
    else:
        tail = tl.fma(a, TAIL_6[0], TAIL_6[1])
        for c in TAIL_6[2:]:
            tail = tl.fma(tail, a, c)
    return tl.fma(-a, tl.exp2(tail), tl.maximum(x, 0.0, tl.PropagateNan.ALL))


@tilejit.kernel
def activate(x, ACTIVATION: tl.constexpr, DTYPE: tl.constexpr):
    """Of fp32 values, to be rounded to DTYPE: None, "relu", "gelu" (exact) or "silu"."""
    if ACTIVATION == "relu":
        x = tl.maximum(x, 0.0)
    elif ACTIVATION == "gelu":
        x = gelu(x, DTYPE)
    elif ACTIVATION == "silu":
        x = x * tl.sigmoid(x)
    return x


@tilejit.kernel
def numbers(source, at, limit):
    """What source points to at places `at` below a limit, in fp32; 0 elsewhere."""
    return tl.load(source + at, at < limit, other=0.0).to(tl.float32)


@tilejit.kernel
def ended(x, rows, columns, row_count, column_count, end, DTYPE: tl.constexpr):
    """act(scale_a * scale_b * x + bias) of sums, or END(x, rows, columns, row_count, column_count, args)."""
    bias, scale_a, scale_b, ACTIVATION, END, args = end
    scale = None if scale_a is None else tl.load(scale_a)
    if scale_b is not None:
        scale = tl.load(scale_b) if scale is None else scale * tl.load(scale_b)
    if scale is not None:
        x *= scale
    if bias is not None:
        x += numbers(bias, columns, column_count)
    if END is not None:
        x = END(x, rows, columns, row_count, column_count, args)
    return activate(x, ACTIVATION, DTYPE)
