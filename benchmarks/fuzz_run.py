"""Runs programs of `fuzz_programs.py`: in the evaluator, in the emulator with the sanitizer, on a GPU through tilejit and
through Triton; and makes a program small that differs somewhere."""
from __future__ import annotations

import dataclasses
import linecache
import sys
from collections.abc import Callable
from itertools import count
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
from fuzz_programs import ELEMENTS, EXACT, INPUTS, PROGRAMS, Case, program

import tilejit
import tilejit.language as tl
from tilejit.errors import CompilationError, TileJitError
from tilejit.passes import chunks

_numbers = count()
_DTYPES = {"bfloat16": ml_dtypes.bfloat16}
Arrays = dict[str, np.ndarray]


def load(case: Case, jit: Callable[..., Any], language: Any) -> Any:
    """The kernel of a case; its source can be read back."""
    name = f"<fuzz {case.seed}.{next(_numbers)}>"
    linecache.cache[name] = (len(case.text), None, case.text.splitlines(True), name)
    scope: dict[str, Any] = {"jit": jit, "tl": language, "__name__": "fuzz"}
    exec(compile(case.text, name, "exec"), scope)
    return scope["main"]


def values(case: Case) -> Arrays:
    """What the arrays hold before a launch."""
    rng = np.random.default_rng(case.seed)
    made: Arrays = {}
    for n, dtype in INPUTS.items():
        kind = np.dtype(_DTYPES.get(dtype, dtype))
        if dtype in EXACT:
            made[n] = rng.integers(-8, 9, ELEMENTS).astype(kind)
        else:
            info = np.iinfo(kind)
            made[n] = rng.integers(info.min, info.max, ELEMENTS, kind, endpoint=True) >> rng.integers(
                0, info.bits - 1, ELEMENTS).astype(kind)
    for o in case.outputs:
        made[o.name] = np.zeros(PROGRAMS * o.numel, _DTYPES.get(o.dtype, o.dtype))
    return made


def placed(x: np.ndarray, offset: int) -> np.ndarray:
    """A copy in memory that ends with it, `offset` elements after a multiple of 256 bytes."""
    raw = np.zeros(x.nbytes + 512, np.uint8)
    start = -raw.ctypes.data % 256 + offset * x.itemsize
    out = raw[start:start + x.nbytes].view(x.dtype)
    out[:] = x
    return out


def on_cpu(case: Case, target: str, options: dict[str, Any]) -> Arrays:
    """Outputs from the evaluator or the emulator."""
    arrays = {n: placed(x, case.offsets[n]) for n, x in values(case).items()}
    kernel = load(case, tilejit.kernel, tl)
    given = {"num_warps": case.warps, **options}
    if target == "sanitized":
        with tilejit.knobs(target="emulator", cache=False):
            tilejit.check(kernel, (PROGRAMS,), *arrays.values(), *case.scalars.values(), seeds=[case.seed],
                          policies=["random"], **given).check()
    else:
        with tilejit.knobs(target=target, cache=False):
            kernel[(PROGRAMS,)](*arrays.values(), *case.scalars.values(), **given)
    return {o.name: arrays[o.name] for o in case.outputs}


def in_chunks(case: Case) -> Arrays:
    """Outputs from the emulator, of tiles that go through loops of chunks as if a thread had no registers for them."""
    with mock.patch.multiple(chunks, MOST=0, ELEMENTS=2, REGISTERS=1, SHARED=32, MOST_SUMS=0, SUMS=2):
        return on_cpu(case, "emulator", {})


def on_gpu(case: Case, jit: Callable[..., Any], language: Any, options: dict[str, Any]) -> Arrays:
    """Outputs from a GPU, by tilejit or Triton; each array ends where its memory ends."""
    import torch

    made = {}
    for n, x in values(case).items():
        offset = case.offsets[n] * x.itemsize
        raw = torch.zeros(offset + x.nbytes, dtype=torch.uint8, device="cuda")
        raw[offset:] = torch.from_numpy(x.view(np.uint8)).cuda()
        dtype = {"uint32": torch.uint32, "bfloat16": torch.bfloat16}.get(str(x.dtype)) or getattr(torch, str(x.dtype))
        made[n] = raw[offset:].view(dtype)
    load(case, jit, language)[(PROGRAMS,)](*made.values(), *case.scalars.values(), num_warps=case.warps, **options)
    torch.cuda.synchronize()
    kinds = {o.name: np.dtype(_DTYPES.get(o.dtype, o.dtype)) for o in case.outputs}
    return {n: made[n].view(torch.uint8).cpu().numpy().view(k) for n, k in kinds.items()}


def runners(gpu: bool) -> dict[str, Callable[[Case], Arrays]]:
    """Every way of running a program; the first one says what it means."""
    ways: dict[str, Callable[[Case], Arrays]] = {"evaluator": lambda c: on_cpu(c, "evaluator", {})}
    if not gpu:
        ways["emulator"] = lambda c: on_cpu(c, "sanitized", {})
        ways["emulator, other options"] = lambda c: on_cpu(c, "emulator", c.more)
        ways["emulator, in chunks"] = in_chunks
        return ways
    ways["gpu"] = lambda c: on_gpu(c, tilejit.kernel, tl, {})
    ways["gpu, other options"] = lambda c: on_gpu(dataclasses.replace(c, warps=c.more.get("num_warps", c.warps)),
                                                  tilejit.kernel, tl,
                                                  {k: v for k, v in c.more.items() if k != "num_warps"})
    try:
        import torch
        import triton
        import triton.language as language
    except ImportError:
        return ways
    triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
    ways["triton"] = lambda c: on_gpu(c, triton.jit, language, {})
    return ways


def difference(case: Case, expected: Arrays, found: Arrays) -> str | None:
    """The first output that differs, bit for bit where it is exact."""
    for o in case.outputs:
        a, c = expected[o.name], found[o.name]
        if o.exact:
            bad = a.view(f"u{a.itemsize}") != c.view(f"u{c.itemsize}")
            if o.dtype in EXACT:
                bad &= a.astype(np.float64) != c.astype(np.float64)         # the sign of zero may differ
        else:
            x, y = a.astype(np.float64), c.astype(np.float64)
            bad = ~(np.isclose(x, y, rtol=2e-5, atol=2e-6) | np.isnan(x) & np.isnan(y))
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            return f"{o.name}[{i}] is {c[i]}, expected {a[i]} ({int(bad.sum())} of {bad.size} differ)"
    return None


def outcome(case: Case, ways: dict[str, Callable[[Case], Arrays]]) -> dict[str, str]:
    """What is wrong with each way of running a case; ways that agree with the first are left out."""
    wrong: dict[str, str] = {}
    expected: Arrays | None = None
    for name, run in ways.items():
        try:
            found = run(case)
        except CompilationError as error:
            wrong[name] = f"refused: {error.message}"
        except TileJitError as error:
            wrong[name] = f"{type(error).__name__}: {str(error)[:400]}"
        except Exception as error:                # another compiler's errors, and bugs of ours: all are findings
            wrong[name] = f"crashed: {type(error).__name__}: {str(error)[:400]}"
        else:
            if expected is None:
                expected = found
            elif (text := difference(case, expected, found)) is not None:
                wrong[name] = text
    return wrong


def kind_of(text: str) -> str:
    """What stays the same of a finding while its program shrinks."""
    return text.split(":")[0] + text.split(":")[1][:40] if text.startswith(("refused", "crashed")) else (
        text.split(":")[0] if "expected" not in text else "differs")


def shrink(case: Case, ways: dict[str, Callable[[Case], Arrays]], name: str, tries: int = 150) -> Case:
    """A case with fewer lines of which the same way of running is wrong in the same manner."""
    used = {n: ways[n] for n in ("evaluator", name)}
    kind = kind_of(outcome(case, ways)[name])

    def still(smaller: Case) -> bool:
        found = outcome(smaller, used)
        return name in found and kind_of(found[name]) == kind and (name == "evaluator" or "evaluator" not in found)

    again = True
    while again and tries > 0:
        again = False
        for i in reversed(range(1, len(case.body))):
            if case.body[i].endswith(" += 1"):  # without it a `while` has no end
                continue
            depth = len(case.body[i]) - len(case.body[i].lstrip())
            end = i + 1
            while end < len(case.body) and len(case.body[end]) - len(case.body[end].lstrip()) > depth:
                end += 1
            smaller = dataclasses.replace(case, body=[*case.body[:i], *case.body[end:]])
            tries -= 1
            if tries <= 0:
                break
            if still(smaller):
                case, again = smaller, True
                break
    return case


def show(case: Case, wrong: dict[str, str]) -> str:
    """A finding, for people."""
    return "\n".join([f"seed {case.seed}, warps {case.warps}, {case.scalars}, offsets "
                      f"{ {n: o for n, o in case.offsets.items() if o} }, other options {case.more}",
                      *(f"  {n}: {text}" for n, text in wrong.items()), case.text])


if __name__ == "__main__":                       # one seed: python benchmarks/fuzz_run.py SEED
    one = program(int(sys.argv[1]))
    print(show(one, outcome(one, runners("--gpu" in sys.argv))))
