"""mma.sync of every shape and type: exact small integers, single products of special values, sums of real values."""
from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
from programs import Buffer, Program, per_thread, random
from values import BF16, F16, F32, F64

ELEMENT = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
           "s8": np.int8, "u8": np.uint8, "f64": np.float64, "f32": np.float32, "s32": np.int32}
#: shape, D and C, A, B
FORMS = [("m16n8k8", d, k, k) for d, k in (("f32", "f16"), ("f16", "f16"), ("f32", "bf16"), ("f32", "tf32"))] + [
    ("m16n8k16", d, k, k) for d, k in (("f32", "f16"), ("f16", "f16"), ("f32", "bf16"))] + [("m16n8k4", "f32", "tf32", "tf32")] + [
    (shape, "s32", a, b) for shape in ("m16n8k16", "m16n8k32") for a in ("s8", "u8") for b in ("s8", "u8")] + [
    ("m16n8k32", "f32", a, b) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")] + [
    (shape, "f64", "f64", "f64") for shape in ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16")]


def integers(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """Small integers of an element type, whose products and sums are exact."""
    return rng.integers(0 if kind == "u8" else -4, 5, n).astype(np.float32).astype(ELEMENT[kind])


def specials(kind: str) -> np.ndarray:
    """Special values of an element type."""
    if kind in ("e4m3", "e5m2"):
        return np.array([0, 0x80, 1, 0x83, 0x38, 0xBC, 0x7B, 0xFB, 0x7C, 0xFC, 0x7E, 0x7F, 0xFF, 0x41], np.uint8).view(ELEMENT[kind])
    if kind in ("s8", "u8"):
        return np.array([0, 1, 127, 128, 255, 129, 64], np.uint8).view(ELEMENT[kind])
    return {"f16": F16, "bf16": BF16, "tf32": F32, "f32": F32, "f64": F64}[kind]


def counts(shape: str, out: str, kind: str) -> tuple[int, int, int]:
    """Registers a lane of A, B and C."""
    m, rest = shape[1:].split("n")
    n, k = (int(v) for v in rest.split("k"))
    bits = 8 * np.dtype(ELEMENT[kind]).itemsize
    width = 64 if kind == "f64" else 32
    return int(m) * k * bits // width // 32, n * k * bits // width // 32, int(m) * n // 32 // (2 if out == "f16" else 1)


def product(name: str, form: tuple[str, str, str, str], a: np.ndarray, b: np.ndarray, c: np.ndarray, satfinite: str = "") -> Program:
    """One mma.sync on raw fragments: every lane loads its registers in order."""
    shape, out, ka, kb = form
    na, nb, nc = counts(shape, out, ka)
    size, load, letters = (8, "f64", "fd") if out == "f64" else (4, "b32", "r")
    body, groups, first = "", [], 20
    for buffer, count in (("a", na), ("b", nb), ("c", nc)):
        body += f"ld.param.u64 %rd5, [{buffer}]; mad.wide.u32 %rd5, %r1, {size * count}, %rd5;"
        regs = [f"%{letters}{first + i}" for i in range(count)]
        body += "".join(f"ld.global.{load} {r}, [%rd5+{size * i}];" for i, r in enumerate(regs))
        groups.append("{" + ", ".join(regs) + "}")
        first += count
    done = [f"%{letters}{first + i}" for i in range(nc)]
    body += f"mma.sync.aligned.{shape}.row.col{satfinite}.{out}.{ka}.{kb}.{out} {{{', '.join(done)}}}, {', '.join(groups)};"
    body += "".join(f"st.global.{load} [%rd1+{size * i}], {r};" for i, r in enumerate(done))
    return per_thread(name, body, [Buffer("a", a), Buffer("b", b), Buffer("c", c)], nc * size // 4, dtype=ELEMENT[out])


def programs() -> Iterator[Program]:
    """Three programs a form, and saturation."""
    for form in FORMS:
        shape, out, ka, kb = form
        label = f"mma.{shape}.{out}.{ka}.{kb}"
        na, nb, nc = counts(shape, out, ka)
        width = 8 if out == "f64" else 4
        sizes = [32 * n * width // np.dtype(ELEMENT[k]).itemsize for n, k in ((na, ka), (nb, kb), (nc, out))]
        rng = random(label)
        a, b, c = (integers(k, n, rng) for k, n in zip((ka, kb, out), sizes))
        yield product(label, form, a, b, c)
        zero = np.zeros(sizes[2], ELEMENT[out])
        lone_a, lone_b = (np.zeros(n, ELEMENT[k]) for k, n in ((ka, sizes[0]), (kb, sizes[1])))
        per, values = width // np.dtype(ELEMENT[ka]).itemsize, specials(ka)
        lone_a.reshape(32, -1)[::4, 0] = np.resize(values, 8)                # k = 0 of rows 0 to 7, then of rows 8 to 15
        if na > 1:
            lone_a.reshape(32, -1)[::4, per] = np.resize(np.roll(values, -8), 8)
        lone_b.reshape(32, -1)[::4, 0] = np.resize(np.roll(specials(kb), -5), 8)
        yield product(f"{label}.specials", form, lone_a, lone_b, zero)
        if out == "s32":
            big = np.where(rng.random(sizes[2]) < 0.5, 2**31 - 9, -2**31 + 9).astype(np.int32)
            yield product(f"{label}.satfinite", form, a, b, big, ".satfinite")
            yield product(f"{label}.wrap", form, a, b, big)
        else:
            real = [np.clip(rng.standard_normal(n), -4, 4).astype(np.float32).astype(ELEMENT[k]) for n, k in zip(sizes, (ka, kb, out))]
            yield product(f"{label}.real", form, *real)
