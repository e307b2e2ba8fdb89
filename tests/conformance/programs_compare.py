"""setp and set: every comparison of every type, with and without a combining predicate."""
from __future__ import annotations

from collections.abc import Iterator

from programs import Program, Variant, elementwise, random
from values import tuples

FLOAT = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
INTEGER = ("eq", "ne", "lt", "le", "gt", "ge")
UNSIGNED = (*INTEGER, "lo", "ls", "hi", "hs")


def comparisons(kind: str) -> tuple[str, ...]:
    """The comparisons that a type has."""
    if kind[0] == "b" and kind != "bf16":
        return ("eq", "ne")
    return FLOAT if "f" in kind else UNSIGNED if kind[0] == "u" else INTEGER


def both(text: str) -> str:
    """A setp's two predicates as one word."""
    return text + " selp.u32 %r10, 2, 0, %p2; selp.u32 %d, 1, 0, %p1; or.b32 %d, %d, %r10;"


def programs() -> Iterator[Program]:
    """One program a type for setp, and for set."""
    for kind in ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f16", "bf16", "f32", "f64"):
        what: list[Variant] = []
        n = 512
        for cmp in comparisons(kind):
            for ftz in ("", ".ftz") if kind in ("f16", "f32") else ("",):
                text = f"setp.{cmp}{ftz}.{kind} %p1, %a0, %a1; selp.u8 %d, 1, 0, %p1;".replace("selp.u8", "selp.u16")
                what.append((text, "u8", None))
        odd = "mov.u32 %r11, %tid.x; and.b32 %r11, %r11, 1; setp.ne.u32 %p3, %r11, 0; "
        for bool_ in ("and", "or", "xor"):
            what.append((odd + f"setp.ne.{bool_}.{kind} %p1, %a0, %a1, %p3; selp.u16 %d, 1, 0, %p1;", "u8", None))
            if "f16" not in kind:
                what.append((odd + both(f"setp.eq.{bool_}.{kind} %p1|%p2, %a0, %a1, !%p3;"), "u32", None))
        rng = random(f"setp.{kind}")
        yield elementwise(f"setp.{kind}", list(zip((kind, kind), tuples((kind, kind), n, rng))), what)
        if "f16" in kind:
            continue
        what = []
        for bool_ in ("and", "or"):
            what.append((odd + f"set.ne.{bool_}.u32.{kind} %d, %a0, %a1, !%p3;", "u32", None))
        if kind == "f32":
            what += [(f"set.{cmp}.ftz.u32.f32 %d, %a0, %a1;", "u32", None) for cmp in FLOAT]
        for result in ("u32", "s32", "f32"):
            for cmp in comparisons(kind):
                what.append((f"set.{cmp}.{result}.{kind} %d, %a0, %a1;", result, None))
            what.append((odd + f"set.eq.xor.{result}.{kind} %d, %a0, %a1, %p3;", result, None))
        rng = random(f"set.{kind}")
        yield elementwise(f"set.{kind}", list(zip((kind, kind), tuples((kind, kind), 256, rng))), what)
    for kind in ("f16x2", "bf16x2"):
        what = [(both(f"setp.{cmp}{ftz}.{kind} %p1|%p2, %a0, %a1;"), "u32", None)
                for cmp in FLOAT for ftz in (("", ".ftz") if kind == "f16x2" else ("",))]
        rng = random(f"setp.{kind}")
        yield elementwise(f"setp.{kind}", list(zip((kind, kind), tuples((kind, kind), 256, rng))), what)
