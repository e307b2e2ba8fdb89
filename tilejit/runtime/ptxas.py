"""Assembling PTX with ptxas, and what its log says: registers, spills, stack and the C75xx messages.

ptxas is looked for in TILEJIT_PTXAS, in the wheel nvidia-cuda-nvcc, and on PATH. Without one the driver
assembles the PTX text at load time. Never a linker route: cuLink and nvJitLink drop setmaxnreg.
"""
from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tilejit.errors import AssemblyError, Loc


@dataclass(frozen=True)
class Message:
    """One C75xx/C76xx remark of ptxas, with the user's source line where it can be told."""

    code: str
    text: str
    ptx_line: int
    loc: Loc | None


@dataclass(frozen=True)
class Resources:
    """What one kernel needs, per thread: registers at launch, bytes of spills and stack."""

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    messages: tuple[Message, ...] = ()


@lru_cache(maxsize=1)
def find_ptxas() -> str | None:
    """Path of a ptxas, or None."""
    given = os.environ.get("TILEJIT_PTXAS")
    if given:
        return given
    for root in {*site.getsitepackages(), *(p for p in sys.path if p.endswith("site-packages"))}:
        for found in sorted(Path(root).glob("nvidia/*/bin/ptxas")):
            return str(found)
    return shutil.which("ptxas")


@lru_cache(maxsize=1)
def version() -> str:
    """The assembler and its version, for cache keys: `ptxas V13.0.88`, or `driver`."""
    path = find_ptxas()
    if path is None:
        return "driver"
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"V[\d.]+", text)
    return f"ptxas {found.group(0) if found else text.strip()}"


def source_line(ptx: list[str], line: int) -> Loc | None:
    """The `.loc` that governs a PTX line."""
    files = {m.group(1): m.group(2) for m in (re.match(r'\.file (\d+) "(.*)"', t) for t in ptx) if m}
    for text in reversed(ptx[:line]):
        found = re.match(r"\s*\.loc (\d+) (\d+)", text)
        if found:
            return Loc(files.get(found.group(1), "?"), int(found.group(2)))
    return None


def assemble(ptx: str, target: str = "sm_90a") -> tuple[bytes, Resources]:
    """The cubin of a PTX module and its resources. Raises AssemblyError at the user's line."""
    path = find_ptxas()
    assert path is not None, "call find_ptxas first"
    with tempfile.TemporaryDirectory(prefix="tilejit-") as folder:
        source, out = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        done = subprocess.run([path, f"-arch={target}", "-v", "-lineinfo", str(source), "-o", str(out)],
                              capture_output=True, text=True)
        log = done.stdout + done.stderr
        lines = ptx.splitlines()
        if done.returncode:
            raise _error(log, lines)
        return out.read_bytes(), parse_log(log, lines)


def _error(log: str, lines: list[str]) -> AssemblyError:
    found = re.search(r"line (\d+)[;)]?\s*(?:;\s*)?(?:error|fatal)\s*:\s*(.*)", log)
    if not found:
        return AssemblyError(f"ptxas refused the kernel:\n{log.strip()}")
    line = int(found.group(1))
    return AssemblyError(f"ptxas: {found.group(2)}", source_line(lines, line),
                         (f"PTX line {line}: {lines[line - 1].strip()}",))


def parse_log(log: str, ptx: list[str]) -> Resources:
    """Read a `ptxas -v` log; messages are matched by code, not by wording."""
    def number(pattern: str) -> int:
        found = re.search(pattern, log)
        return int(found.group(1)) if found else 0

    messages = []
    for text in log.splitlines():
        code = re.search(r"\bC7[56]\d\d\b", text)
        if code:
            where = re.search(r"line (\d+)", text)
            line = int(where.group(1)) if where else 0
            messages.append(Message(code.group(0), text.strip(), line, source_line(ptx, line) if line else None))
    return Resources(number(r"Used (\d+) registers"), number(r"(\d+) bytes spill stores"),
                     number(r"(\d+) bytes spill loads"), number(r"(\d+) bytes stack frame"), tuple(messages))
