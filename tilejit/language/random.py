"""Random numbers: counters through Philox; equal seeds and offsets give equal bits."""
from __future__ import annotations

from typing import Any

from tilejit.errors import CompilationError
from tilejit.ir.types import DType, fp32, int32, int64, uint32, uint64
from tilejit.language import math
from tilejit.language import semantics as sem
from tilejit.language.semantics import to_tensor
from tilejit.language.tensor import KernelBuilder, builtin, tensor
from tilejit.language.terms import Term

ROUNDS = 10
#: Type of the counters -> increments of the two keys, multipliers of the counters.
_CONSTANTS = {uint32: (0x9E3779B9, 0xBB67AE85, 0xD2511F53, 0xCD9E8D57),
              uint64: (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B, 0xD2E7470EE14C6C93, 0xCA5A826395121157)}


def _integer(b: KernelBuilder, x: Any, what: str) -> Term:
    t = Term(b, x)
    if not (isinstance(t.elem, DType) and t.elem.is_int()):
        raise CompilationError(f"{what} must be an integer, found {t.elem}")
    return t


def _product(x: Term, by: int) -> tuple[Term, Term]:
    """Its upper half and its lower; of 32 bits by one instruction."""
    if x.elem != uint32:
        return x.op("mulhi", by), x.op("mul", by)
    whole = x.cast(uint64).op("mul", by)
    return (whole >> 32).cast(uint32), whole.cast(uint32)


@builtin
def philox_impl(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any, n_rounds: int = ROUNDS, *,
                _b: KernelBuilder) -> tuple:
    """`n_rounds` rounds of Philox on four counters and two keys."""
    a0, a1, a2, a3, key0, key1 = (Term(_b, t) for t in sem.broadcast(
        _b, *(to_tensor(_b, x) for x in (c0, c1, c2, c3, k0, k1))))
    if a0.elem not in _CONSTANTS or any(t.elem != a0.elem for t in (a1, a2, a3, key0, key1)):
        raise CompilationError(f"philox_impl: counters and keys are all uint32 or all uint64, found "
                               f"{', '.join(str(t.elem) for t in (a0, a1, a2, a3, key0, key1))}")
    step0, step1, by0, by1 = _CONSTANTS[a0.elem]
    for _ in range(sem.constant(n_rounds, "the number of rounds")):
        (high1, low1), (high0, low0) = _product(a2, by1), _product(a0, by0)
        a0, a1, a2, a3 = high1 ^ a1 ^ key0, low1, high0 ^ a3 ^ key1, low0
        key0, key1 = key0.op("add", step0), key1.op("add", step1)
    return tuple(t.tensor for t in (a0, a1, a2, a3))


@builtin
def philox(seed: Any, c0: Any, c1: Any, c2: Any, c3: Any, n_rounds: int = ROUNDS, *, _b: KernelBuilder) -> tuple:
    """Four tiles of random uint32 (uint64 for counters of 64 bits) for a 64-bit seed and four counters."""
    counters = [_integer(_b, c, "philox: a counter") for c in (c0, c1, c2, c3)]
    key = _integer(_b, seed, "philox: the seed").cast(uint64)
    bits = counters[0].elem.bits
    if bits not in (32, 64):
        raise CompilationError(f"philox: counters have 32 or 64 bits, found {counters[0].elem}")
    t = uint32 if bits == 32 else uint64
    keys = (key.cast(uint32), (key >> 32).cast(uint32)) if bits == 32 else (key, key.const(0))
    wide = [c.bits(t) if c.elem.bits == bits else c.cast(t) for c in counters]
    return philox_impl(*(c.tensor for c in (*wide, *keys)), n_rounds, _b=_b)


@builtin
def randint4x(seed: Any, offset: Any, n_rounds: int = ROUNDS, *, _b: KernelBuilder) -> tuple:
    """Four tiles of random uint32 in the shape of `offset`."""
    at = _integer(_b, offset, "randint4x: the offset")
    low = at.cast(uint32)
    zero = low.const(0)
    high = (at >> 32).cast(uint32) if at.elem.bits > 32 else zero
    return philox(seed, low.tensor, high.tensor, zero.tensor, zero.tensor, n_rounds, _b=_b)


@builtin
def randint(seed: Any, offset: Any, n_rounds: int = ROUNDS, *, _b: KernelBuilder) -> tensor:
    """A tile of random uint32 in the shape of `offset`."""
    return randint4x(seed, offset, n_rounds, _b=_b)[0]


@builtin
def uint_to_uniform_float(x: Any, *, _b: KernelBuilder) -> tensor:
    """Random integers as fp32 uniform in [0, 1)."""
    t = _integer(_b, x, "uint_to_uniform_float: the argument")
    if t.elem.bits not in (32, 64):
        raise CompilationError(f"uint_to_uniform_float: expected 32 or 64 bits, found {t.elem}")
    signed = t.bits(int32 if t.elem.bits == 32 else int64)
    # the largest fp32 whose product with the largest integer stays below 1
    scale = 4.6566127342e-10 if t.elem.bits == 32 else 1.0842020432385337e-19
    return ((signed < 0).where(~signed, signed).cast(fp32) * scale).tensor


@builtin
def rand4x(seed: Any, offsets: Any, n_rounds: int = ROUNDS, *, _b: KernelBuilder) -> tuple:
    """Four tiles of fp32 uniform in [0, 1)."""
    return tuple(uint_to_uniform_float(x, _b=_b) for x in randint4x(seed, offsets, n_rounds, _b=_b))


@builtin
def rand(seed: Any, offset: Any, n_rounds: int = ROUNDS, *, _b: KernelBuilder) -> tensor:
    """fp32 uniform in [0, 1), in the shape of `offset`."""
    return uint_to_uniform_float(randint(seed, offset, n_rounds, _b=_b), _b=_b)


@builtin
def pair_uniform_to_normal(u1: Any, u2: Any, *, _b: KernelBuilder) -> tuple:
    """Box and Muller, 1958."""
    first, angle = Term(_b, u1), Term(_b, u2) * 6.283185307179586
    radius = (Term(_b, math.log(first.op("maximum", 1.0e-7).tensor, _b=_b)) * -2.0).op("sqrt")
    return tuple((radius * Term(_b, fn(angle.tensor, _b=_b))).tensor for fn in (math.cos, math.sin))


@builtin
def randn4x(seed: Any, offset: Any, n_rounds: int = ROUNDS, *, _b: KernelBuilder) -> tuple:
    """Four tiles of standard normal fp32."""
    u = rand4x(seed, offset, n_rounds, _b=_b)
    return (*pair_uniform_to_normal(u[0], u[1], _b=_b), *pair_uniform_to_normal(u[2], u[3], _b=_b))


@builtin
def randn(seed: Any, offset: Any, n_rounds: int = ROUNDS, *, _b: KernelBuilder) -> tensor:
    """Standard normal fp32, in the shape of `offset`."""
    u = randint4x(seed, offset, n_rounds, _b=_b)
    return pair_uniform_to_normal(*(uint_to_uniform_float(x, _b=_b) for x in u[:2]), _b=_b)[0]


__all__ = ["pair_uniform_to_normal", "philox", "philox_impl", "rand", "rand4x", "randint", "randint4x", "randn",
           "randn4x", "uint_to_uniform_float"]
