"""Assembling PTX with ptxas, and its log."""
from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from tilejit.errors import AssemblyError, Loc
from tilejit.records import dataclass, replace
from tilejit.runtime import knobs, miscompiles

#: What a code means for the author of a kernel. The wording of ptxas changes between releases, its codes do not.
CODES = {
    "C7504": "setmaxnreg ignored: separate compilation",
    "C7505": "setmaxnreg ignored: debug build",
    "C7508": "setmaxnreg ignored: the register count at entry is unknown",
    "C7509": "wgmma serialised: an external call in the kernel",
    "C7510": "wgmma serialised: a call in the kernel (printf and assert are calls)",
    "C7511": "wgmma serialised: not enough registers in its pipeline stage",
    "C7512": "wgmma serialised: not enough registers in the kernel",
    "C7513": "wgmma serialised: its A registers are written while it is in flight",
    "C7514": "wgmma serialised: its accumulator is read while it is in flight",
    "C7515": "wgmma serialised: its accumulator is written while it is in flight",
    "C7517": "a wgmma wait was added: an accumulator is touched while a product is in flight",
    "C7518": "wgmma serialised: the added wait is on a divergent path",
    "C7519": "a wgmma fence was added: an accumulator is touched between products",
    "C7520": "wgmma serialised: the added fence is on a divergent path",
    "C7602": "more registers needed than the thread count allows: use more warps or a smaller tile",
}


@dataclass(frozen=True)
class Message:
    """One C7xxx remark of ptxas, or a form that it miscompiles (`code` is that row's name), with the user's source line
    if known (`ptx_line` is 1-based, or 0).
    """

    code: str
    text: str
    ptx_line: int = 0
    loc: Loc | None = None

    def __str__(self) -> str:
        where = f" at {self.loc.short()}" if self.loc else f" at PTX line {self.ptx_line}" if self.ptx_line else ""
        return f"ptxas {self.code}{where}: {CODES.get(self.code, self.text)}"


@dataclass(frozen=True)
class Resources:
    """Registers a thread at launch; bytes a thread of spills and stack; barriers and bytes of static shared memory a
    CTA.
    """

    registers: int
    spill_stores: int = 0
    spill_loads: int = 0
    stack: int = 0
    messages: tuple[Message, ...] = ()
    barriers: int = 0
    static_shared: int = 0

    @property
    def clean(self) -> bool:
        return not (self.spill_stores or self.spill_loads or self.stack or self.messages)


@lru_cache(maxsize=16)
def _search(name: str, path: str) -> str | None:
    for root in map(Path, sys.path):
        for found in sorted(root.glob(f"nvidia/*/bin/{name}")) if root.name.endswith("-packages") else ():
            if os.access(found, os.X_OK):
                return str(found)
    from shutil import which

    return which(name, path=path)


def find_tool(name: str) -> str | None:
    return _search(name, os.environ.get("PATH", os.defpath))


def disassembled(cubin: bytes) -> str:
    """Machine code as text. Raises FileNotFoundError without nvdisasm or cuobjdump."""
    import subprocess
    import tempfile

    tool = find_tool("nvdisasm") or find_tool("cuobjdump")
    if tool is None:
        raise FileNotFoundError("neither nvdisasm nor cuobjdump was found (nvidia-cuda-nvdisasm has one)")
    with tempfile.TemporaryDirectory(prefix="tilejit-") as d:
        path = Path(d, "kernel.cubin")
        path.write_bytes(cubin)
        command = [tool, "-g" if tool.endswith("nvdisasm") else "--dump-sass", str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def find_ptxas() -> str | None:
    """None where the driver has to assemble. Raises AssemblyError if TILEJIT_PTXAS is no file."""
    given = knobs.current().ptxas
    if given == "driver":
        return None
    if given and not os.access(given, os.X_OK):
        raise AssemblyError(f"TILEJIT_PTXAS={given} cannot be run")
    return given or find_tool("ptxas")


@lru_cache(maxsize=4)
def _version(path: str) -> str:
    from tilejit.runtime import cache

    try:
        s = os.stat(path)
    except OSError:
        return _asked(path)
    name = "ptxas-" + hashlib.sha256(os.path.realpath(path).encode()).hexdigest()[:16]
    stamp = f"{s.st_mtime_ns} {s.st_size}"
    found = cache.note(name, stamp)
    if found is None:
        found = _asked(path)
        cache.take_note(name, stamp, found)
    return found


def _asked(path: str) -> str:
    with running([path, "--version"]) as done:
        pass
    text = done[0].decode()
    found = re.search(r"V[\d.]+", text)
    return f"ptxas {found.group(0) if found else text.strip()}"


def version() -> str:
    """For cache keys: `ptxas V13.0.88`, or `driver`."""
    path = find_ptxas()
    return _version(path) if path else "driver"


def release() -> tuple[int, int]:
    """(major, minor); (0, 0) for the driver's."""
    numbers = re.search(r"V(\d+)\.(\d+)", version())
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def source_line(ptx: list[str], line: int) -> Loc | None:
    """The `.loc` that governs a 1-based PTX line, or None before the first one."""
    for text in reversed(ptx[:line]):
        found = re.match(r"\s*\.loc\s+(\d+)\s+(\d+)", text)
        if found:
            files = (re.match(r'\s*\.file\s+(\d+)\s+"(.*)"', t) for t in ptx)
            names = {m.group(1): m.group(2) for m in files if m}
            return Loc(names.get(found.group(1), "?"), int(found.group(2)))
    return None


def assemble(ptx: str, target: str = "sm_90a",
             meanwhile: Callable[[], Any] = lambda: None) -> tuple[bytes, Resources]:
    """The cubin of a PTX module and its resources."""
    path = find_ptxas()
    if path is None:
        raise AssemblyError("no ptxas here: set TILEJIT_PTXAS or install the extra tilejit[ptxas]")
    command = [path, f"-arch={target}", "-v", "-lineinfo", "/dev/stdin", "-o", "/dev/stdout"]
    with running(command, ptx.encode()) as done:
        meanwhile()
        lines = ptx.splitlines()
        known = tuple(Message(row.name, f"{row.what}; write {row.instead}", line, source_line(lines, line))
                      for row, line in miscompiles.found(ptx, release()))
    cubin, log = done
    if not cubin:
        raise error_of(log.decode(errors="replace"), lines)
    resources = parse_log(log.decode(errors="replace"), lines)
    return cubin, replace(resources, messages=resources.messages + known)


@contextlib.contextmanager
def running(command: list[str], given: bytes = b"") -> Iterator[list[bytes]]:
    """Run a program, which may seek in its input; yields a list that gets its output, if it succeeds, and its errors.
    (`subprocess` and `tempfile` take 7 ms to import.)"""
    done: list[bytes] = []
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(os.memfd_create("tilejit"), "w+b")) for _ in range(3)]
        files[0].write(given)
        files[0].seek(0)
        pid = os.posix_spawn(command[0], command, os.environ, file_actions=[
            (os.POSIX_SPAWN_DUP2, f.fileno(), i) for i, f in enumerate(files)])
        status = 0
        try:
            yield done
        finally:
            with contextlib.suppress(ChildProcessError):  # where SIGCHLD is ignored
                status = os.waitpid(pid, 0)[1]
        for f in files[1:]:
            f.seek(0)
            done.append(f.read())
        if status:
            done[0] = b""


def error_of(log: str, ptx: list[str]) -> AssemblyError:
    for text in log.splitlines():
        found = re.search(r"\bline (\d+)", text)
        if found and re.search(r"error|fatal|C7[56]\d\d", text):
            line = int(found.group(1))
            what = re.sub(r"^.*?(?:error|fatal)\s*:\s*", "", text).strip()
            note = f"PTX line {line}: {ptx[line - 1].strip()}" if 0 < line <= len(ptx) else f"PTX line {line}"
            return AssemblyError(f"ptxas: {what}", source_line(ptx, line), (note,))
    return AssemblyError(f"ptxas refused the kernel:\n{log.strip()}")


def parse_log(log: str, ptx: list[str]) -> Resources:
    """Read a `ptxas -v` log; messages are matched by code, not by wording."""
    def number(pattern: str) -> int:
        return max((int(n) for n in re.findall(pattern, log)), default=0)

    messages = []
    for text in log.splitlines():
        code = re.search(r"\bC7[56]\d\d\b", text)
        if code:
            where = re.search(r"\bline (\d+)", text)
            line = int(where.group(1)) if where else 0
            messages.append(Message(code.group(0), text.strip(), line, source_line(ptx, line) if line else None))
    return Resources(number(r"Used (\d+) registers"), number(r"(\d+) bytes spill stores"),
                     number(r"(\d+) bytes spill loads"), number(r"(\d+) bytes stack frame"), tuple(messages),
                     number(r"used (\d+) barriers"), number(r"(\d+) bytes smem"))
