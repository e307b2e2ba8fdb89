"""Floating arithmetic: every rounding, flushing and saturation of every type, on all pairs of special values."""
from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from programs import ANY_NAN, Near, Program, Variant, elementwise, random
from values import singles, tuples

ROUNDINGS = ("rn", "rz", "rm", "rp")
DIVISION = Near(2 * 2**-23, 0.0, "PTX ISA, div: .full and .approx have a maximum ulp error of 2")
RECIPROCAL = Near(2**-23, 2**-149, "PTX ISA, rcp: the maximum ulp error of .approx.f32 is 1, subnormal results included")
ROOT = Near(2**-23, 0.0, "PTX ISA, sqrt: .approx.f32 has a maximum relative error of 2^-23")


def options(*slots: tuple[str, ...]) -> Iterator[str]:
    """Every choice of modifiers, one of each slot ("" for none), as text."""
    for chosen in product(*slots):
        yield "".join(f".{c}" for c in chosen if c)


def variants(op: str, kind: str, operands: int, modifiers: Iterator[str], near: Near | None = None) -> list[Variant]:
    """`op<modifiers>.kind %d, %a0, ...;` for every choice of modifiers."""
    listed = ", ".join(("%d", "%a0", "%a1", "%a2")[:operands + 1])
    return [(f"{op}{m}.{kind} {listed};", kind, near) for m in modifiers]


def program(name: str, kind: str, operands: int, what: list[Variant], n: int = 256) -> Program:
    """A program on `operands` inputs of one kind."""
    rng = random(name)
    inputs = tuples((kind,) * operands, n, rng) if operands > 1 else [singles(kind, n, rng)]
    return elementwise(name, [(kind, x) for x in inputs], what)


def programs() -> Iterator[Program]:
    """Arithmetic, division, roots, minimum and maximum, signs."""
    ftz, sat, nan, swap = ("", "ftz"), ("", "sat"), ("", "NaN"), ("", "xorsign.abs")
    for op in ("add", "sub", "mul"):
        yield program(f"{op}.f32", "f32", 2, variants(op, "f32", 2, options(("", *ROUNDINGS), ftz, sat)), 512)
        yield program(f"{op}.f64", "f64", 2, variants(op, "f64", 2, options(("", *ROUNDINGS)), ANY_NAN), 512)
        for kind in ("f16", "f16x2"):
            yield program(f"{op}.{kind}", kind, 2, variants(op, kind, 2, options(("", "rn"), ftz, sat)), 512)
        for kind in ("bf16", "bf16x2"):
            yield program(f"{op}.{kind}", kind, 2, variants(op, kind, 2, options(("", "rn"))), 512)
    for op in ("fma", "mad"):
        yield program(f"{op}.f32", "f32", 3, variants(op, "f32", 3, options(ROUNDINGS, ftz, sat)), 512)
        yield program(f"{op}.f64", "f64", 3, variants(op, "f64", 3, options(ROUNDINGS), ANY_NAN), 512)
    for kind in ("f16", "f16x2"):
        forms = [*options(("rn",), ftz, sat), *options(("rn",), ftz, ("relu",))]
        yield program(f"fma.{kind}", kind, 3, variants("fma", kind, 3, iter(forms)), 512)
    for kind in ("bf16", "bf16x2"):
        yield program(f"fma.{kind}", kind, 3, variants("fma", kind, 3, options(("rn",), ("", "relu"))), 512)
    yield program("div.f32", "f32", 2, variants("div", "f32", 2, options(ROUNDINGS, ftz)), 512)
    yield program("div.f64", "f64", 2, variants("div", "f64", 2, options(ROUNDINGS), ANY_NAN), 512)
    yield program("div.full.f32", "f32", 2, variants("div", "f32", 2, options(("full", "approx"), ftz), DIVISION), 512)
    for op, near in (("rcp", RECIPROCAL), ("sqrt", ROOT)):
        yield program(f"{op}.f32", "f32", 1, variants(op, "f32", 1, options(ROUNDINGS, ftz)))
        yield program(f"{op}.f64", "f64", 1, variants(op, "f64", 1, options(ROUNDINGS), ANY_NAN))
        yield program(f"{op}.approx.f32", "f32", 1, variants(op, "f32", 1, options(("approx",), ftz), near))
    for op in ("min", "max"):
        yield program(f"{op}.f32", "f32", 2, variants(op, "f32", 2, options(ftz, nan, swap)), 512)
        yield program(f"{op}.f64", "f64", 2, variants(op, "f64", 2, iter(("",)), ANY_NAN), 512)
        for kind in ("f16", "f16x2"):
            yield program(f"{op}.{kind}", kind, 2, variants(op, kind, 2, options(ftz, nan, swap)), 512)
        for kind in ("bf16", "bf16x2"):
            yield program(f"{op}.{kind}", kind, 2, variants(op, kind, 2, options(nan, swap)), 512)
    for op in ("abs", "neg"):
        for kind, modes in (("f32", ftz), ("f64", ("",)), ("f16", ftz), ("f16x2", ftz), ("bf16", ("",)), ("bf16x2", ("",))):
            yield program(f"{op}.{kind}", kind, 1, variants(op, kind, 1, options(modes)), 128)
    for kind in ("f32", "f64"):
        yield program(f"copysign.{kind}", kind, 2, variants("copysign", kind, 2, iter(("",))), 512)
        tests = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
        yield program(f"testp.{kind}", kind, 1, [
            (f"testp.{t}.{kind} %p1, %a0; selp.u32 %d, 1, 0, %p1;", "u32", None) for t in tests], 128)
