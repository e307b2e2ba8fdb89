"""The line: Python function -> tile IR -> scheduled tile IR -> PTX -> cubin, one call per stage."""
from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from enum import Enum
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

from tilejit.errors import ClusterError, CompilationError, LaunchError
from tilejit.frontend import Arg, Const, Group, KernelSource, Param, build
from tilejit.ir.core import Function, walk
from tilejit.ir.report import Record
from tilejit.ir.target import DEFAULT, target_named
from tilejit.ir.types import Barrier, Buffer, Desc, DType, Pending, Ptr, Tile
from tilejit.language.tensor import constexpr
from tilejit.ptx.metadata import KernelMetadata
from tilejit.records import dataclass, field, fields, replace
from tilejit.runtime import cache, index, knobs, ptxas
from tilejit.runtime.asm import Asm
from tilejit.runtime.ptxas import Resources
from tilejit.runtime.stages import Stages

#: Kinds of report lines that tell of something slow.
_SLOWER = ("pointers", "ragged_rows")


@dataclass
class CompiledKernel:
    """One specialisation of a kernel and every stage as text; without ptxas `cubin` is None, and the driver
    assembles `ptx`."""

    kernel: KernelSource
    args: Mapping[str, Arg]
    options: Mapping[str, Any]
    ptx: str
    metadata: KernelMetadata
    cubin: bytes | None
    resources: Resources | None
    report_lines: tuple[Record, ...] = ()
    from_cache: bool = False
    #: the `Kernel` that it was compiled for, which `compiled[grid]` launches
    launched_by: Any = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def source(self) -> str:
        """Without decorators, docstring and comments."""
        return self.kernel.normalised()

    @cached_property
    def ir(self) -> str:
        return str(tile_ir(self.kernel, self.args, self.options))

    @cached_property
    def scheduled(self) -> str:
        return str(schedule(tile_ir(self.kernel, self.args, self.options)))

    @cached_property
    def asm(self) -> Asm:
        return Asm(self)

    @property
    def n_regs(self) -> int:
        """Registers a thread; 0 where nothing was assembled."""
        return self.resources.registers if self.resources else 0

    @property
    def n_spills(self) -> int:
        """Words of local memory a thread, as Triton counts spills; 0 where nothing was assembled."""
        return (self.resources.stack + 3) // 4 if self.resources else 0

    @property
    def n_max_threads(self) -> int:
        return self.metadata.num_threads

    def __getitem__(self, grid: Any) -> Callable[..., CompiledKernel | None]:
        """`compiled[grid](*args)` launches with the constants and options of this compilation.

        Arguments of other types raise ArgumentError; for other values and alignments it compiles, as every launch.
        """
        if self.launched_by is None:
            raise LaunchError(f"{self.name} was compiled without its function")
        launch: Callable[..., CompiledKernel | None] = partial(self.launched_by.launch_as, self, grid)
        return launch

    def warnings(self) -> list[str]:
        """What makes this kernel slow: lost TMA, spills, serialised wgmma."""
        lines = [str(line) for line in self.report_lines if line.kind in _SLOWER]
        r = self.resources
        if r is not None:
            if r.spill_stores or r.spill_loads or r.stack:
                lines.append(f"{r.spill_stores} bytes of spill stores, {r.spill_loads} of spill loads and "
                             f"{r.stack} of stack a thread: use more warps or smaller tiles")
            lines += [str(m) for m in r.messages]
        return lines

    def report(self) -> str:
        """What the compiler decided, and why."""
        m, r = self.metadata, self.resources
        lines = [f"{self.name}: {m.num_threads} threads, {m.shared_bytes} bytes of shared memory, "
                 f"{len(m.params)} parameters, {m.target}", *self.report_lines]
        if r is not None:
            lines.append(f"assembled: {r.registers} registers, {r.spill_stores + r.spill_loads} bytes of spills, "
                         f"{r.stack} bytes of stack")
            lines += [str(message) for message in r.messages]
        return "\n".join(lines)

    def sass(self) -> str:
        """The disassembly. Raises FileNotFoundError without nvdisasm or cuobjdump, or without a cubin."""
        if self.cubin is None:
            raise FileNotFoundError("no cubin: ptxas was not found, the driver assembled the PTX")
        return ptxas.disassembled(self.cubin)


def compile_kernel(source: KernelSource, args: Mapping[str, Arg], options: Mapping[str, Any],
                   meanwhile: Callable[[], Any] = lambda: None) -> CompiledKernel:
    """Compile one specialisation, or find it on disk."""
    settings = knobs.current()
    stages = Stages(source.name, settings)
    if stages.active or settings.always_compile:
        return _compiled(source, args, options, stages, cache_key(source, args, options), settings, meanwhile)
    roots = [source]

    def another(inner: KernelSource) -> str:
        roots.append(inner)
        return ""

    facts = key_facts(args, options, another)
    noted = index.find(roots, facts)
    found = None if noted is None else cache.read_text(noted)
    if found is not None:
        return _from_disk(source, args, options, found, settings)
    key = cache_key(source, args, options)

    def beside() -> None:
        index.take(roots, facts, cache.key_text(key))
        meanwhile()

    with contextlib.ExitStack() as turn:
        found = cache.read(key)
        if found is None:
            turn.enter_context(cache.turn(key))  # other processes may be about to compile the same
            found = cache.read(key)
        if found is None:
            return _compiled(source, args, options, stages, key, settings, beside)
    index.take(roots, facts, cache.key_text(key))
    return _from_disk(source, args, options, found, settings)


def _from_disk(source: KernelSource, args: Mapping[str, Arg], options: Mapping[str, Any], found: cache.Cached,
               settings: knobs.Knobs) -> CompiledKernel:
    ctas, warps = options.get("num_ctas", 1), options.get("num_warps", 4)
    if (found.metadata.num_ctas, found.metadata.num_warps) != (ctas, warps):
        options = {**options, "num_ctas": found.metadata.num_ctas, "num_warps": found.metadata.num_warps}
    made = CompiledKernel(source, args, options, found.ptx, found.metadata, found.cubin, found.resources, found.report,
                          from_cache=True)
    warn(made, settings)
    return made


def _compiled(source: KernelSource, args: Mapping[str, Arg], options: Mapping[str, Any], stages: Stages,
              key: dict[str, Any], settings: knobs.Knobs, meanwhile: Callable[[], Any]) -> CompiledKernel:
    with contextlib.ExitStack() as compiling:
        compiling.enter_context(collector_paused())

        def beside() -> None:
            compiling.close()  # garbage is collected while ptxas works
            meanwhile()

        options, fn, (ptx, metadata) = _emitted(source, args, options, stages)
        ptx = stages.text("kernel.ptx", ptx)
        lines = list(fn.attrs.get("report", ()))
        ptx, cubin, resources, record = assemble(ptx, metadata, beside)
    if record is not None:
        ptx = stages.text("kernel.ptx", ptx)
        lines.append(record)
    report = tuple(line if isinstance(line, Record) else Record.of(line) for line in lines)
    made = CompiledKernel(source, args, options, ptx, metadata, cubin, resources, report)
    if not stages.override:
        cache.write(key, cache.Cached(ptx, cubin, metadata, resources, made.report_lines))
    warn(made, settings)
    return made


def _emitted(source: KernelSource, args: Mapping[str, Arg], options: Mapping[str, Any],
             stages: Stages) -> tuple[Mapping[str, Any], Function, tuple[str, KernelMetadata]]:
    """Options, scheduled function and PTX."""
    from tilejit.schedule.in_flight import divided

    def emitted(options: Mapping[str, Any], fn: Function | None = None,
                ) -> tuple[Mapping[str, Any], Function, tuple[str, KernelMetadata]]:
        fn = fn or tile_ir(source, args, options, stages)
        fn.attrs |= spans
        fn = stages("scheduled", schedule(fn, stages))
        return options, fn, emit(fn)

    spans: dict[str, Any] = {}  # rows of some lengths have another form, whatever all others have

    try:
        fn = tile_ir(source, args, options, stages)
        spans = {k: fn.attrs[k] for k in ("spanned",) if k in fn.attrs}
        wider = None if stages.override else divided(fn, options)
        if wider is not None:
            try:
                found = emitted(wider)
                if found[1].attrs.get("num_ctas", 1) == 1:
                    warps = wider["num_warps"]
                    line = f"{warps} warps, so that rows are copied as a whole"
                    found[1].attrs.setdefault("report", []).insert(0, Record("fewer_warps", line, warps=warps))
                return found
            except ClusterError as why:
                line = f"rows are not divided by {wider['num_ctas']} CTAs, as {why.message}"
                if any(getattr(x, "kind", "") == "whole_row" for x in fn.attrs.get("report", ())):  # too wide for one
                    fn = tile_ir(source, unbounded(args), options, stages)
                fn.attrs.setdefault("report", []).insert(0, Record("not_divided", line, ctas=wider["num_ctas"]))
        return emitted(options, fn)
    except ClusterError as why:
        if "row_span" in options:  # what a cluster cannot do is done with rows in shared memory
            return emitted({k: x for k, x in options.items() if k != "row_span"})
        problem: CompilationError = why
        for other in alone(options) if options.get("cluster_split") is None else []:
            try:
                found, ctas, warps = emitted(other), options["num_ctas"], other["num_warps"]
            except CompilationError as error:
                problem = error
                continue
            line = f"num_ctas={ctas}: programs of one CTA of {warps} warps, as {why.message}"
            found[1].attrs.setdefault("report", []).insert(0, Record("one_cta", line, ctas=ctas, warps=warps))
            return found
        raise problem from None


def unbounded(args: Mapping[str, Arg]) -> dict[str, Arg]:
    return {n: replace(a, most=0) if isinstance(a, Param) else a for n, a in args.items()}


def alone(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Options for one CTA in place of several: with as many warps, or as one CTA has."""
    warps, ctas = options.get("num_warps", 4), options.get("num_ctas", 1)
    if type(warps) is not int or ctas not in (2, 4, 8) or not target_named(options.get("target")).hopper:
        return []
    return [{**options, "num_ctas": 1, "num_warps": n} for n in dict.fromkeys((warps * ctas, warps)) if n <= 16]


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection meanwhile."""
    enabled = gc.isenabled()
    if enabled:
        gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def warn(k: CompiledKernel, settings: knobs.Knobs) -> None:
    for line in k.warnings() if settings.warn == "perf" else ():
        print(f"tilejit: {k.name}: {line}", file=sys.stderr)


def tile_ir(source: KernelSource, args: Mapping[str, Arg], options: Mapping[str, Any],
            stages: Stages | None = None) -> Function:
    from tilejit import passes

    stages = stages or Stages(source.name, knobs.Knobs())
    fn = build(source, dict(args), dict(options))
    fn = stages("frontend", fn)
    return passes.run(fn, stages if stages.active else None)


def changed_by(source: KernelSource, args: Mapping[str, Arg], options: Mapping[str, Any]) -> set[str] | None:
    """Names of arrays that a launch may write; None where it follows addresses in memory."""
    from tilejit.ir.written import follows_memory, written

    fn = build(source, dict(args), dict(options))
    return None if follows_memory(fn) else written(fn)


def schedule(fn: Function, stages: Stages | None = None) -> Function:
    from tilejit import schedule as room
    from tilejit.ir.verify import verify

    see: Callable[[str, Function], Function] | None = stages if stages and stages.active else None
    if fn.attrs.get("schedule"):
        see = _given(Path(fn.attrs["schedule"]), see)
    fn = room.run(fn, see)
    verify(fn)
    return fn


def annotated(source: KernelSource, args: Mapping[str, Arg], options: Mapping[str, Any]) -> str:
    """The tile IR with the scheduler's decisions, as text to edit and give back."""
    from tilejit.schedule.annotate import annotate

    return str(annotate(tile_ir(source, args, options)))


def _given(path: Path, see: Callable[[str, Function], Function] | None) -> Callable[[str, Function], Function]:
    """Puts the text of a file in the place of what the compiler annotated."""
    from tilejit.ir.text import parse_function
    from tilejit.ir.verify import verify

    def given(name: str, fn: Function) -> Function:
        if name == "annotated":
            found = parse_function(path.read_text())
            verify(found)
            types = [[a.type for a in f.body.args] for f in (fn, found)]
            if (found.name, types[1]) != (fn.name, types[0]):
                raise CompilationError(f"schedule={str(path)!r}: expected {fn.name}({', '.join(map(str, types[0]))}), "
                                       f"found {found.name}({', '.join(map(str, types[1]))})", fn.loc)
            found.loc, found.arg_attrs = fn.loc, fn.arg_attrs
            files = {op.loc.short().partition(":")[0]: op.loc.file for op in walk(fn.body) if op.loc}
            for op in walk(found.body):
                if op.loc is not None:
                    op.loc = op.loc._replace(file=files.get(op.loc.file, op.loc.file))
            found.attrs = {**fn.attrs, "report": [*fn.attrs.get("report", ()), Record(
                "given", f"schedule: as {path.name} says", path.name)]}
            fn = found
        return see(name, fn) if see is not None else fn

    return given


def emit(fn: Function) -> tuple[str, KernelMetadata]:
    from tilejit.ptx.emit import emit as emit_ptx

    return emit_ptx(fn)


def assemble(ptx: str, metadata: KernelMetadata, meanwhile: Callable[[], Any],
             ) -> tuple[str, bytes | None, Resources | None, Record | None]:
    """The text, its cubin and resources, and a record where ptxas was told registers; None for all else where the
    driver assembles."""
    from tilejit.runtime.spills import assembled

    if ptxas.find_ptxas():
        return assembled(ptx, metadata, meanwhile)
    meanwhile()
    return ptx, None, None, None


def cache_key(source: KernelSource, args: Mapping[str, Arg], options: Mapping[str, Any]) -> dict[str, Any]:
    """All that decides the code, as JSON: source, arguments, options, compiler and assembler."""
    return {"kernel": source.name, "source": source.fingerprint(),
            **key_facts(args, options, KernelSource.fingerprint)}


def _schedule_key(options: Mapping[str, Any]) -> dict[str, str]:
    """Raises LaunchError for a missing file."""
    path = options.get("schedule")
    if path is None:
        return {}
    try:
        return {"schedule": hashlib.sha256(Path(path).read_bytes()).hexdigest()}
    except OSError as e:
        raise LaunchError(f"schedule={path!r}: {e.strerror}; expected a file with what kernel.schedule(...) gave") \
            from None


def key_facts(args: Mapping[str, Arg], options: Mapping[str, Any],
              kernel: Callable[[KernelSource], str]) -> dict[str, Any]:
    return {"compiler": compiler_hash(), "assembler": ptxas.version(), "target": options.get("target", DEFAULT),
            "args": {n: _argument(n, a, kernel) for n, a in args.items()},
            "options": {n: plain(v, n, kernel) for n, v in options.items()}, **_schedule_key(options)}


def _argument(name: str, a: Arg, kernel: Callable[[KernelSource], str]) -> dict[str, Any]:
    if isinstance(a, Const):
        return {"const": plain(a.value, name, kernel)}
    if isinstance(a, Group):
        return {"tuple": f"{a.kind.__module__}.{a.kind.__qualname__} {getattr(a.kind, '_fields', '')}",
                "items": [_argument(name, item, kernel) for item in a.items]}
    return {**{f.name: getattr(a, f.name) for f in fields(a)}, "type": str(a.type)}


def plain(x: Any, name: str, kernel: Callable[[KernelSource], str] = KernelSource.fingerprint) -> Any:
    """A constant as JSON with its type (1, 1.0 and True differ). Raises LaunchError for no constant."""
    if isinstance(x, constexpr):
        return plain(x.value, name, kernel)
    if isinstance(x, Enum):
        return ["enum", str(x)]
    if x is None or isinstance(x, (bool, int, float, str)):
        return [type(x).__name__, repr(x)]
    if isinstance(x, (DType, Ptr, Tile, Desc, Buffer, Barrier, Pending)):
        return ["type", str(x)]
    if isinstance(x, (tuple, list)):
        return [type(x).__name__, [plain(e, name, kernel) for e in x]]
    if isinstance(getattr(x, "source", None), KernelSource):
        return ["kernel", kernel(x.source)]
    if getattr(x, "is_builtin", False):
        return ["builtin", f"{x.__module__}.{x.__qualname__}"]
    shows = type(x).__repr__ is not object.__repr__  # (which would only say where it lies)
    if shows and isinstance(x, Hashable) and not callable(x):
        return ["object", f"{type(x).__module__}.{type(x).__qualname__}", repr(x)]
    raise LaunchError(f"argument {name!r}: a {type(x).__name__} cannot be a constant of a kernel")


#: Parts of the package that no kernel's code depends on.
_NOT_COMPILER = ("compat", "emulator", "frameworks", "kernels", "tools", "testing.py", "__main__.py")


@lru_cache(maxsize=1)
def compiler_hash() -> str:
    """A hash of tilejit's own sources, kept in the cache folder for their sizes and times."""
    root = Path(__file__).resolve().parent.parent
    files = sorted(_sources(str(root), ""))
    stamp = hashlib.sha256(repr((str(root), files)).encode()).hexdigest()
    found = cache.note("compiler", stamp)
    if found is None:
        digest = hashlib.sha256()
        for name, _, _ in files:
            with open(f"{root}/{name}", "rb") as file:
                text = file.read()
            digest.update(f"{name}:{len(text)}:".encode() + text)
        found = digest.hexdigest()[:16]
        cache.take_note("compiler", stamp, found)
    return found


def _sources(folder: str, prefix: str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            name = prefix + entry.name
            if name in _NOT_COMPILER or name == "__pycache__":
                continue
            if entry.name.endswith(".py"):
                s = entry.stat()
                yield name, s.st_size, s.st_mtime_ns
            elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
                yield from _sources(entry.path, name + "/")
