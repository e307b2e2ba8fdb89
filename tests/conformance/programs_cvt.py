"""cvt between every pair of types, with every rounding and saturation that the pair has."""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from programs import ANY_NAN, Near, Program, Variant, elementwise, random
from values import singles, tuples

INTEGERS = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64")
FLOATS = ("f16", "bf16", "f32", "f64")
WIDTH = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}
ROUND = ("rn", "rz", "rm", "rp")
INTEGRAL = ("rni", "rzi", "rmi", "rpi")
#: Rounded halves and the neighbours of the limits of integer types, as f64.
STEPS = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, 126.5, 127.5, 128.5, 254.5, 255.5, 256.5, 32767.5, 32768.5, 65535.5,
                  65536.5, 2.0**31, 2.0**31 - 0.5, -2.0**31, -2.0**31 - 1, 2.0**32, 2.0**32 - 0.5, 2.0**63, -2.0**63, 2.0**64,
                  1e20, -1e20, 300.25, 40000.75, 4294967040.0, 2147483520.0])


def values(kind: str, n: int = 256) -> np.ndarray:
    """Special values of a kind, halves and limits for floats, random ones."""
    rng = random(f"cvt.{kind}")
    x = singles(kind, n, rng)
    if kind in FLOATS:
        with np.errstate(all="ignore"):
            steps = STEPS.astype(np.float32).astype(x.dtype) if kind == "bf16" else STEPS.astype(x.dtype)
            x[32:32 + len(steps)] = steps
            big = rng.standard_normal(64) * np.exp2(rng.integers(-30, 66, 64))
            x[96:160] = big.astype(np.float32).astype(x.dtype)
    return x


def limits(kind: str) -> tuple[int, int]:
    """The least and the greatest value of an integer type."""
    bits = int(kind[1:])
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


def modifiers(dst: str, src: str) -> list[str]:
    """The modifiers of cvt.dst.src (PTX ISA, cvt), as text."""
    flush = ("", ".ftz") if src == "f32" else ("",)
    if {src, dst} in ({"u8", "bf16"}, {"s8", "bf16"}):
        return []
    if src in INTEGERS and dst in INTEGERS:
        low, high = limits(dst)
        fits = low <= limits(src)[0] and limits(src)[1] <= high
        return [""] if fits else ["", ".sat"]
    if src in INTEGERS:
        sat = ("", ".sat") if dst in ("f16", "f32", "f64") else ("",)
        return [f".{r}{s}" for r in ROUND for s in sat]
    if dst in INTEGERS:
        return [f".{r}{f}{s}" for r in INTEGRAL for f in flush for s in (("", ".sat") if src != "bf16" else ("",))]
    if "bf16" in (dst, src) and dst != src:
        if dst == "bf16":
            return [f".{r}" for r in ROUND] + [".rn.relu", ".rz.relu"] * (src == "f32")
        return [""] if dst != "f16" else [f".{r}" for r in ROUND]
    if dst == src:
        return [] if dst == "bf16" else [f".{r}{f}{s}" for r in INTEGRAL for f in flush for s in ("", ".sat")]
    sat = ("", ".sat")
    if dst == "f32":
        flush = ("", ".ftz")
    if WIDTH[dst] < WIDTH[src]:
        out = [f".{r}{f}{s}" for r in ROUND for f in (flush if dst == "f32" or src == "f32" else ("",)) for s in sat]
        return out + ([".rn.relu", ".rz.relu"] if (dst, src) == ("f16", "f32") else [])
    return [f"{f}{s}" for f in flush for s in sat]


def narrow(dst: str, src: str, near: Near | None) -> Iterator[Variant]:
    """Every cvt of a pair. An 8-bit destination's register is wider: all of it is stored."""
    for m in modifiers(dst, src):
        yield f"cvt{m}.{dst}.{src} %d, %a0;", dst.replace("8", "16") if dst in ("u8", "s8") else dst, near


def packed() -> Iterator[Program]:
    """Conversions of two f32 at once, to and from the 8-bit floats, tf32, cvt.pack."""
    rng = random("cvt.packed")
    a, b = tuples(("f32", "f32"), 512, rng)
    a[400:500] = np.linspace(-600, 600, 100)
    b[400:500] = np.linspace(-70000, 70000, 100)
    with np.errstate(all="ignore"):
        a[256:384] = rng.integers(0, 255, 128) * np.exp2(rng.integers(-22, 10, 128))
        b[256:384] = (2 * rng.integers(0, 255, 128) + 1) * np.exp2(rng.integers(-30, 4, 128))
    two = [("f32", a), ("f32", b)]
    for half in ("f16x2", "bf16x2"):
        yield elementwise(f"cvt.{half}.f32", two, [(f"cvt.{r}{m}.{half}.f32 %d, %a0, %a1;", half, None)
                                                   for r in ("rn", "rz") for m in ("", ".relu", ".satfinite", ".relu.satfinite")])
    for small in ("e4m3x2", "e5m2x2"):
        yield elementwise(f"cvt.{small}.f32", two, [(f"cvt.rn.satfinite{m}.{small}.f32 %d, %a0, %a1;", small, None)
                                                    for m in ("", ".relu")])
        with np.errstate(all="ignore"):
            h = np.concatenate([np.arange(0, 1 << 16, 86, dtype=np.uint16)[:512].view(np.float16), b.astype(np.float16)])
        yield elementwise(f"cvt.{small}.f16x2", [("f16x2", h)], [(f"cvt.rn.satfinite{m}.{small}.f16x2 %d, %a0;", small, None)
                                                                for m in ("", ".relu")])
        codes = np.arange(256, dtype=np.uint8)
        yield elementwise(f"cvt.f16x2.{small}", [(small, codes)], [(f"cvt.rn{m}.f16x2.{small} %d, %a0;", "f16x2", None)
                                                                   for m in ("", ".relu")])
    yield elementwise("cvt.tf32.f32", [("f32", a)], [(f"cvt.{r}.tf32.f32 %d, %a0;", "tf32", None)
                                                     for r in ("rna", "rn", "rz", "rn.relu", "rz.relu", "rna.satfinite")])
    yield elementwise("cvt.relu-satfinite.f32", [("f32", a)], [
        (f"cvt.{r}{m}.{t}.f32 %d, %a0;", t, None) for t in ("f16", "bf16") for r in ("rn", "rz")
        for m in (".relu", ".satfinite", ".relu.satfinite")])
    x, y = tuples(("s32", "s32"), 512, random("cvt.pack"))
    yield elementwise("cvt.pack", [("s32", x), ("s32", y)], [(f"cvt.pack.sat.{t}.s32 %d, %a0, %a1;", "b32", None) for t in ("u16", "s16")])


def programs() -> Iterator[Program]:
    """One program a source type and class of destinations."""
    for src in (*INTEGERS, *FLOATS):
        for group, kinds in (("int", INTEGERS), ("float", FLOATS)):
            what = [v for dst in kinds for v in narrow(dst, src, ANY_NAN if "f64" in (dst, src) and group == "float" else None)]
            yield elementwise(f"cvt.{group}.{src}", [(src, values(src))], what)
    yield from packed()
