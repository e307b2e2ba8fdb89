"""The line: Python function -> tile IR -> scheduled tile IR -> PTX -> cubin, one call per stage."""
from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from tilejit.frontend import Const, KernelSource, Param, build
from tilejit.ptx.metadata import KernelMetadata
from tilejit.runtime import cache, ptxas
from tilejit.runtime.ptxas import Resources

TARGET = "sm_90a"


@dataclass
class CompiledKernel:
    """One specialisation of a kernel and every stage it went through.

    `ir` and `scheduled` are texts; they are empty for a kernel that came from the disk cache (compile with
    TILEJIT_CACHE=0 to see them). `cubin` is None where no ptxas was found: the driver then assembles `ptx`."""

    name: str
    source: str
    ptx: str
    metadata: KernelMetadata
    cubin: bytes | None = None
    resources: Resources | None = None
    ir: str = ""
    scheduled: str = ""
    report_lines: list[str] = field(default_factory=list)
    from_cache: bool = False

    def report(self) -> str:
        """What the compiler decided, and why: rings, roles, conversions, shared memory, registers."""
        lines = [f"{self.name}: {self.metadata.num_threads} threads, {self.metadata.shared_bytes} bytes of "
                 f"shared memory", *self.report_lines]
        r = self.resources
        if r is not None:
            lines.append(f"ptxas: {r.registers} registers, {r.spill_stores + r.spill_loads} bytes of spills, "
                         f"{r.stack} bytes of stack")
            lines += [f"ptxas {m.code}{' at ' + m.loc.short() if m.loc else ''}: {m.text}" for m in r.messages]
        return "\n".join(lines)

    def sass(self) -> str:
        """The disassembly, by nvdisasm or cuobjdump; raises FileNotFoundError if neither is there."""
        if self.cubin is None:
            raise FileNotFoundError("no cubin: ptxas was not found, the driver assembled the PTX")
        tool = next((t for t in ("nvdisasm", "cuobjdump") if shutil.which(t)), None)
        if tool is None:
            raise FileNotFoundError("neither nvdisasm nor cuobjdump is on PATH")
        with tempfile.TemporaryDirectory(prefix="tilejit-") as d:
            path = Path(d, "kernel.cubin")
            path.write_bytes(self.cubin)
            args = [tool, str(path)] if tool == "nvdisasm" else [tool, "--dump-sass", str(path)]
            return subprocess.run(args, capture_output=True, text=True, check=True).stdout


def compile_kernel(source: KernelSource, args: dict[str, Param | Const], options: dict[str, Any]) -> CompiledKernel:
    """Compile one specialisation, or find it on disk. Works without a GPU."""
    key = cache_key(source, args, options)
    dump = Dump(source.name)
    found = None if dump.active else cache.read(key)
    if found is not None:
        return CompiledKernel(source.name, source.normalised(), found["ptx"], found["metadata"], found["cubin"],
                              found["resources"], report_lines=found["report"], from_cache=True)
    fn = tile_ir(source, args, options, dump)
    ir = str(fn)
    scheduled = dump("scheduled", schedule(fn))
    ptx, metadata = emit(scheduled)
    dump.text("kernel.ptx", ptx)
    cubin, resources = ptxas.assemble(ptx, metadata.target) if ptxas.find_ptxas() else (None, None)
    report = list(scheduled.attrs.get("report", []))
    cache.write(key, ptx, cubin, metadata, resources, report)
    return CompiledKernel(source.name, source.normalised(), ptx, metadata, cubin, resources, ir, str(scheduled),
                          report)


def tile_ir(source: KernelSource, args: dict[str, Param | Const], options: dict[str, Any], dump: Dump | None = None):
    """The kernel as tile IR with layouts (what the evaluator runs and the scheduler takes)."""
    from tilejit import passes

    fn = build(source, args, options)
    if dump is not None:
        dump("frontend", fn)
    return passes.run(fn, dump)


def schedule(fn):
    """Rings, barriers, roles and shared memory."""
    from tilejit import schedule as room

    return room.run(fn)


def emit(fn) -> tuple[str, KernelMetadata]:
    """PTX text and launch metadata."""
    from tilejit.ptx.emit import emit as emit_ptx

    return emit_ptx(fn)


class Dump:
    """Writes each stage to `TILEJIT_DUMP` (a folder, or `all` for stderr), numbered in order."""

    def __init__(self, kernel: str):
        self.where, self.kernel, self.count = os.environ.get("TILEJIT_DUMP", ""), kernel, 0

    @property
    def active(self) -> bool:
        return bool(self.where)

    def __call__(self, stage: str, fn):
        self.text(f"{stage}.tile", str(fn) if self.active else "")
        return fn

    def text(self, name: str, text: str) -> None:
        """One stage as text."""
        if not self.active:
            return
        if self.where == "all":
            print(f"// ---- {self.kernel}: {name}\n{text}", file=sys.stderr)
        else:
            path = Path(self.where, self.kernel)
            path.mkdir(parents=True, exist_ok=True)
            (path / f"{self.count:02d}-{name}").write_text(text)
        self.count += 1


def cache_key(source: KernelSource, args: dict[str, Param | Const], options: dict[str, Any]) -> str:
    """Everything that decides the code: source, arguments, options, compiler and assembler."""
    parts = [f"tilejit {compiler_hash()}", ptxas.version(), TARGET, source.fingerprint()]
    parts += [f"{n}={type(getattr(a, 'value', None)).__name__}:{a!r}" for n, a in sorted(args.items())]
    parts += [f"{k}={v!r}" for k, v in sorted(options.items())]
    return "\n".join(parts)


@lru_cache(maxsize=1)
def compiler_hash() -> str:
    """A hash of tilejit's own sources, so that another compiler never meets old code."""
    digest = hashlib.sha256()
    root = Path(__file__).resolve().parent.parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
