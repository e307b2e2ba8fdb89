"""The `@kernel` decorator and the launch path."""
from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cached_property, partial
from operator import itemgetter
from types import MethodType
from typing import Any

import numpy as np

from tilejit.errors import CompilationError, LaunchError, close_matches
from tilejit.frontend import Const, KernelSource
from tilejit.frontend.source import Enclosing
from tilejit.ir.types import DType
from tilejit.language.tensor import constexpr
from tilejit.records import dataclass
from tilejit.runtime import arrays, driver, index, knobs, launcher, traced
from tilejit.runtime.arrays import HOST, StandIn
from tilejit.runtime.compile import Arg, CompiledKernel, annotated, compile_kernel
from tilejit.runtime.hooks import HOOKS, Launch, nvtx_range
from tilejit.runtime.launch import DeviceEntry, EmulatorEntry, Entry, EvaluatorEntry, Grid
from tilejit.runtime.launcher import MISSING
from tilejit.runtime.signature import (
    ArgumentError,
    ArgumentKeys,
    ConstantKeys,
    Keys,
    UnknownOption,
    WrongDevice,
    common_device,
    describe_argument,
    device_of,
)
from tilejit.runtime.target import default_target
from tilejit.runtime.tuples import Spread, SpreadEntry, leaves

_overrides = knobs.overrides
_NONE: Any = object()  # no grid
#: Launch options and their defaults (docs/scheduling.md, "What the author may decide"). None: the scheduler decides.
OPTIONS: dict[str, Any] = {"num_warps": 4, "num_stages": None, "num_ctas": 1, "cluster_split": None,
                           "num_consumer_groups": None, "warp_specialize": None, "store_stages": None,
                           "store_role": None, "products_ahead": None, "ping_pong": None, "schedule": None,
                           "programs_per_cta": None, "odd_rows": None, "check_signs": True, "split_masks": True,
                           "pointer_tma": True, "maxnreg": None, "launch_pdl": "auto", "launch_cooperative_grid": None,
                           "enable_fp_fusion": True, "enable_reflect_ftz": True, "debug": False,
                           "sanitize_overflow": None, "target": None}
#: Options that constants of the same names are too, as in Triton.
_SHARED = frozenset({"num_warps", "num_stages", "num_ctas", "maxnreg"})
_DECORATOR_IGNORED = frozenset({"version", "repr", "noinline"})


class StaleGlobalError(LaunchError, RuntimeError):
    """A captured constant was changed after the kernel was compiled."""


@dataclass(frozen=True)
class Plan:
    """How calls of one shape are bound: `pick` makes the flat tuple (parameters, then options by name)."""

    pick: Callable[[tuple], tuple]
    rest: tuple
    keyers: tuple[Keys, ...]
    at: dict[str, int]
    options: dict[str, int]
    #: equal for calls that differ only in what is given by keyword
    shape: tuple[str, ...]


class Partial:
    """A kernel some of whose arguments are given: `p[grid](*args, **more)` launches it.

    `fast`: launchers of known signatures, newest first, then `_slowly`.
    """

    _MOST = 16

    def __init__(self, kernel: Kernel, given: dict[str, Any]):
        self.kernel, self.given = kernel, given
        self.plans: dict[tuple, Plan] = {}
        self.take(self._slowly)
        self.once: set[tuple] = set()  # signatures that were launched once
        self.seen: set[tuple] = set()  # those that have a launcher, or cannot have one

    def take(self, launch: Callable[..., CompiledKernel | None]) -> None:
        self.fast = launch
        self.last: tuple[Any, Any] = (_NONE, None)  # a grid, and `fast` as its method

    def unlearn(self) -> None:
        """Drop the launchers: the next launch of each signature looks for its kernel."""
        self.take(self._slowly)
        self.once.clear()
        self.seen.clear()

    def _of_traced(self, grid: Any) -> Callable[..., CompiledKernel | None]:
        return partial(self._launch, grid)

    @arrays.traced_as(_of_traced)
    def __getitem__(self, grid: Any) -> Callable[..., CompiledKernel | None]:
        last, launch = self.last
        plain = type(grid) is tuple and all([type(n) is int for n in grid])  # a traced number must not be compared
        if last is grid or plain and last == grid:
            return launch  # type: ignore[no-any-return]
        fast = self.fast
        if not plain:
            # A method is made, and called, in half the time of a partial; it cannot be one of None.
            return MethodType(fast, grid) if grid is not None else partial(fast, grid)
        launch = MethodType(fast, grid)
        self.last = grid, launch
        if self.fast is not fast:  # another thread took a launcher
            self.last = _NONE, None
        return launch

    def partial(self, **given: Any) -> Partial:
        return Partial(self.kernel, {**self.given, **given})

    def _plan(self, args: tuple, kwargs: dict[str, Any]) -> Plan:
        shape = (len(args), *kwargs)
        plan = self.plans.get(shape)
        return plan or self.plans.setdefault(shape, self.kernel.plan(len(args), tuple(kwargs), self.given))

    def _bound(self, args: tuple, kwargs: dict[str, Any]) -> tuple[Plan, tuple]:
        plan = self._plan(args, kwargs)
        return plan, plan.pick((*args, *kwargs.values(), *plan.rest))

    def _launch(self, grid: Any, /, *args: Any, **kwargs: Any) -> CompiledKernel | None:
        if arrays.tracing():
            self.kernel.traced(grid, args, {**self.given, **kwargs})
            return None
        return self.fast(grid, *args, **kwargs)

    def _slowly(self, grid: Any, /, *args: Any, **kwargs: Any) -> CompiledKernel | None:
        """A launch of any signature; launchers hand it all parameters by position."""
        kernel = self.kernel
        if type(MISSING) in map(type, args):
            more = args[len(kernel.names):]
            named: dict[str, Any] = {n: x for n, x in zip(kernel.names, args) if x is not MISSING}
            args, kwargs = (), {**named, **kwargs}
            if more:
                kernel.plan(len(kernel.names) + len(more), (), {})  # raises
        stream = kwargs.pop("stream", None) if "stream" in kwargs and "stream" not in kernel.keys else None
        plan, flat = self._bound(args, kwargs)
        try:
            key = (_overrides(), plan.shape, *[k[type(x)](x) for k, x in zip(plan.keyers, flat)])
            entry = kernel.entries.get(key)
        except StandIn:
            kernel.traced(grid, args, {**self.given, **kwargs})
            return None
        except TypeError:
            key, entry = None, None  # an argument that cannot be a constant: _entry says which
        dims = kernel.grid(grid, plan, flat)
        if 0 in dims:
            return None
        if entry is None:
            entry = kernel._entry(plan, flat, stream)
        chosen = entry.for_grid(dims, flat, stream)
        for table, name, value in kernel.captured:
            if table.get(name) is not value:
                _check_captured(kernel.__name__, table, name, value)
        if HOOKS.active or entry.nvtx:
            self._observed(entry.compiled, chosen, dims, plan, flat, stream)
        else:
            chosen.launch(dims, flat, stream)
            if isinstance(chosen, DeviceEntry) and len(self.seen) < self._MOST:
                self._quicken(key, entry.compiled, chosen, plan, flat,
                              {k: v for k, v in kwargs.items() if k not in kernel.keys})
        return entry.compiled

    def _quicken(self, key: tuple | None, compiled: CompiledKernel, entry: DeviceEntry, plan: Plan, flat: tuple,
                 options: dict[str, Any]) -> None:
        """Make a launcher for calls like this one, the second time it comes."""
        kernel = self.kernel
        signature = (key, entry.compiled is compiled, tuple(options.items()), *map(type, flat))
        with kernel.lock:
            if signature in self.seen:
                return
            if signature not in self.once:
                if len(self.once) >= 16 * self._MOST:
                    self.once.clear()
                self.once.add(signature)
                return
            self.seen.add(signature)
            made = launcher.make(
                kernel.__name__, dict(zip(kernel.names, flat)), kernel.constexprs, kernel.keys,
                kernel.parameter_defaults, self.given.keys(), options, compiled, entry,
                partial(_dims, kernel, {k: v for k, v in self.given.items() if k not in kernel.keys}),
                kernel.captured, self.fast)
            if made is not None:
                self.take(made)

    def _observed(self, compiled: CompiledKernel, entry: Entry, dims: Grid, plan: Plan, flat: tuple,
                  stream: Any) -> None:
        kernel = self.kernel
        if HOOKS.recorders and (recorder := HOOKS.recorder()) is not None:
            entry.launch(dims, flat, stream)
            recorder.launched(entry, dims, flat, stream)
            return
        told = Launch(kernel.__name__, dims, kernel.shown(compiled), {n: flat[i] for n, i in plan.at.items()},
                      stream, kernel.launch_metadata)
        for hook in [*HOOKS.entering]:
            hook(told)
        with nvtx_range(kernel.__name__) if entry.nvtx else nullcontext():
            entry.launch(dims, flat, stream)
        for hook in [*HOOKS.leaving]:
            hook(told)


def _dims(kernel: Kernel, given: dict[str, Any], grid: Any, named: dict[str, Any], options: dict[str, Any]) -> Grid:
    return kernel.sizes(grid, lambda: {**kernel.defaults, **given, **options, **named})


class Kernel(Partial):
    """A kernel function: `k[grid](*args, **options)` launches, `k.compile(*args)` only compiles."""

    def __init__(self, fn: Callable[..., Any], debug: bool = False, do_not_specialize: tuple = (),
                 do_not_specialize_on_alignment: tuple = (), launch_metadata: Callable[..., Any] | None = None):
        super().__init__(self, {})
        self.source = KernelSource(fn)
        self.fn, self.__name__, self.__doc__, self.__module__ = fn, fn.__name__, fn.__doc__, fn.__module__
        self.names = self.arg_names = tuple(self.source.signature.parameters)
        self.constexprs = self.source.constexprs
        self.annotated = {n: _dtype(p.annotation) for n, p in self.source.signature.parameters.items()}
        self.defaults = {**OPTIONS, "debug": debug}
        plain, unaligned = self._names(do_not_specialize), self._names(do_not_specialize_on_alignment)
        self.plain = plain
        self.unaligned = unaligned
        self.forms: dict[tuple, Plan] = {}
        self.entries: dict[tuple, Entry] = {}
        self.prepared: dict[tuple, CompiledKernel] = {}
        self.captured: list[tuple[Mapping[str, Any], str, Any]] = []
        self.lock = threading.Lock()
        self.parameter_defaults = {n: p.default for n, p in self.source.signature.parameters.items()
                                   if p.default is not p.empty}
        self.number = traced.number_of(self)
        self.launch_metadata = launch_metadata

    @cached_property
    def keys(self) -> dict[str, ArgumentKeys]:
        kinds = {k: ArgumentKeys(*k) for k in ((True, True, False), (False, True, False), (False, False, False),
                                               (True, True, True))}
        walked = self.source.walked - self.plain - self.unaligned - self.constexprs
        return {n: kinds[n not in self.plain and n not in self.unaligned, n not in self.plain, n in walked]
                for n in self.names}

    def _names(self, given: tuple) -> set[str]:
        out = {self.names[i] if isinstance(i, int) else i for i in given}
        for n in out - set(self.names):
            raise ArgumentError(f"{self.__name__} has no parameter {n!r} to leave unspecialised")
        return out

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise LaunchError(f"{self.__name__} is a kernel: launch it with {self.__name__}[grid](...), or call it "
                          "from another kernel")

    def __repr__(self) -> str:
        return f"<tilejit kernel {self.__name__}{self.source.signature}>"

    # -- binding --
    def plan(self, count: int, keywords: tuple[str, ...], given: Mapping[str, Any]) -> Plan:
        """The plan of a call with `count` positional arguments and these keywords, beside what is given.

        Raises ArgumentError as Python would for a call.
        """
        form = self.forms.get((count, keywords, *given))
        if form is None:
            form = self.forms.setdefault((count, keywords, *given), self._form(count, keywords, tuple(given)))
        return Plan(form.pick, (*given.values(), *form.rest), form.keyers, form.at, form.options, form.shape)

    def _form(self, count: int, keywords: tuple[str, ...], given: tuple[str, ...]) -> Plan:
        name = self.__name__
        if count > len(self.names):
            raise ArgumentError(f"{name}() takes {len(self.names)} arguments but {count} were given; its signature is "
                                f"{name}{self.source.signature}")
        at = {n: i for i, n in enumerate(self.names[:count])}
        options: dict[str, int] = {}
        for i, k in enumerate((*keywords, *given), count):
            if k in at or k in options:
                raise ArgumentError(f"{name}() got multiple values for argument {k!r}")
            if k in self.keys:
                at[k] = i
            elif k in self.defaults:
                options[k] = i
            else:
                near = close_matches(k, [*self.names, *self.defaults], 1)
                raise UnknownOption(f"{name}() got an unknown option {k!r} (keyword argument {k} was specified but "
                                    "unrecognised)" + (f"; did you mean {near[0]!r}?" if near else
                                                       f"; its signature is {name}{self.source.signature}"))
        options.update({k: at[k] for k in _SHARED & self.constexprs if k in at})
        rest: list[Any] = []
        missing: list[str] = []
        for n, p in self.source.signature.parameters.items():
            if n not in at:
                at[n] = count + len(keywords) + len(given) + len(rest)
                rest.append(p.default)
                missing += [n] if p.default is p.empty else []
        if missing:
            raise ArgumentError(f"{name}() misses argument{'s' * (len(missing) > 1)} {', '.join(map(repr, missing))}; "
                                f"its signature is {name}{self.source.signature}")
        order = [*(at[n] for n in self.names), *(options[k] for k in sorted(options))]
        keyers = [ConstantKeys() if n in self.constexprs else self.keys[n] for n in self.names]
        return Plan(_picker(order), tuple(rest), (*keyers, *[ConstantKeys()] * len(options)),
                    {n: i for i, n in enumerate(self.names)},
                    {k: i for i, k in enumerate(sorted(options), len(self.names))}, tuple(sorted(options)))

    def options(self, plan: Plan, flat: tuple) -> dict[str, Any]:
        given = {**self.defaults, **{k: flat[i] for k, i in plan.options.items()}}
        given["target"] = given["target"] or knobs.current().arch or None
        given["pointer_tma"] = given["pointer_tma"] and knobs.current().pointer_tma
        return {k: v for k, v in given.items() if v is not None}

    def describe(self, plan: Plan, flat: tuple, typed: bool = False) -> dict[str, Arg]:
        """What the compiler is told of each argument. Raises CompilationError for an unspecialised constant."""
        for n in self.constexprs & self.plain:
            raise CompilationError(f"{n} marked as constexpr and listed in do_not_specialize. {n} cannot be both")
        return {n: Const(flat[plan.at[n]]) if n in self.constexprs else
                describe_argument(n, flat[plan.at[n]], self.keys[n], self.annotated[n], typed) for n in self.names}

    # -- compiling --
    def compile(self, *args: Any, **kwargs: Any) -> CompiledKernel:
        """Compile without launching; needs no GPU. Text may give types of arrays and numbers: `"*bf16"`, `"int32"`,
        `"int32:16"` (divisible by 16), `"desc<bf16[128x64]>"`.
        """
        plan, flat = self._bound(args, kwargs)
        return self._compiled(self.describe(plan, flat, typed=True), self.options(plan, flat))

    def schedule(self, *args: Any, **kwargs: Any) -> str:
        """The tile IR with the scheduler's stages, cycles and rings of loops. A file of this text, edited, is the
        launch option `schedule`.
        """
        plan, flat = self._bound(args, kwargs)
        return annotated(self.source, self.describe(plan, flat, typed=True), self.options(plan, flat))

    def warmup(self, *args: Any, grid: Any = None, **kwargs: Any) -> CompiledKernel:
        """Compile, and with GPU arrays load, so that a launch in a CUDA graph capture does neither."""
        plan, flat = self._bound(args, kwargs)
        if any(isinstance(d := device_of(flat[i]), int) and d != HOST for i in plan.at.values()):
            entry = self._entry(plan, flat, None)
            if grid is not None:
                entry.for_grid(self.grid(grid, plan, flat), flat, None)
            return entry.compiled
        return self.compile(*args, **kwargs)

    def prepare(self, *args: Any, **kwargs: Any) -> Callable[[], CompiledKernel]:
        """A function that compiles for these arguments in any thread; the first launch with them takes the result."""
        plan, flat = self._bound(args, kwargs)
        key, described, options = self._key(plan, flat), self.describe(plan, flat), self.options(plan, flat)

        def compiled() -> CompiledKernel:
            self.prepared[key] = made = self._compiled(described, options)
            return made

        return compiled

    def _compiled(self, described: dict[str, Arg], options: dict[str, Any],
                  meanwhile: Callable[[], Any] = lambda: None) -> CompiledKernel:
        made = compile_kernel(self.source, described, options, meanwhile)
        made.launched_by = self
        return made

    def report(self) -> str:
        others = [getattr(made, "entry", None) for e in self.entries.values()
                  for made in (*(getattr(e, which, None) for which in ("exact", "merged")),
                               *getattr(e, "lengths", {}).values())]
        return "\n\n".join(e.compiled.report() for e in (*self.entries.values(), *others) if e is not None)

    def _entry(self, plan: Plan, flat: tuple, stream: Any) -> Entry:
        key = self._key(plan, flat)
        with self.lock:
            entry = self.entries.get(key)
            if entry is None:
                for table, name, value in self.captured:  # every signature is compiled under the same values
                    _check_captured(self.__name__, table, name, value)
                entry = self._load(plan, flat, stream, self.prepared.pop(key, None))
                self.captured = self.captured or captured_globals(self.source)
                self.entries[key] = entry
            return entry

    def _key(self, plan: Plan, flat: tuple) -> tuple:
        key = (_overrides(), plan.shape, *[k[type(x)](x) for k, x in zip(plan.keyers, flat)])
        try:
            hash(key)
        except TypeError:
            for n, x in leaves({n: flat[i] for n, i in plan.at.items()}).items():
                if getattr(type(x), "__hash__", None) is None and (n.split("[")[0] in self.constexprs
                                                                   or isinstance(x, (list, dict, set))):
                    raise ArgumentError(f"argument {n!r}: a {type(x).__name__} cannot be a constant of a kernel; "
                                        "use numbers, strings, dtypes and tuples of them") from None
            raise ArgumentError(f"{self.__name__}: an argument is neither an array, a number nor a constant") from None
        return key

    def _load(self, plan: Plan, flat: tuple, stream: Any, compiled: CompiledKernel | None) -> Entry:
        arguments = leaves({n: flat[i] for n, i in plan.at.items() if n not in self.constexprs})
        place, target = common_device(arguments), default_target()
        if target == "cuda" and place == HOST or target != "cuda" and place not in (HOST, None):
            name = next(n for n, x in arguments.items() if device_of(x) == place)
            if target == "cuda":
                raise WrongDevice(f"argument {name!r} is on the cpu; move it with tilejit.to_device(array) or "
                                  "tensor.cuda(), or set TILEJIT_TARGET=emulator")
            raise WrongDevice(f"argument {name!r} is on the gpu; TILEJIT_TARGET={target} needs host arrays")
        described = self.describe(plan, flat)
        meanwhile = partial(driver.warm, place) if target == "cuda" else lambda: None
        compiled = compiled or self._compiled(described, self.options(plan, flat), meanwhile)
        spread = Spread(described, plan.at, flat)
        at, flat = spread.at, spread(flat)
        entry: Entry
        if target == "emulator":
            entry = EmulatorEntry(compiled, at, flat)
        elif target == "evaluator":
            entry = EvaluatorEntry(compiled, at)
        else:
            settings = knobs.current()
            entry = DeviceEntry(compiled, at, flat, place, stream, settings.launch_blocking, settings.nvtx)
        return SpreadEntry(entry, spread) if spread.places else entry

    # -- torch's compiler: what it follows (see traced.py), and what its operators call --
    def traced(self, grid: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        traced.launch(self, traced.flat_grid(grid, self.meta(args, kwargs)), args, kwargs)

    def meta(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**self.defaults, **self.parameter_defaults, **dict(zip(self.names, args)), **kwargs}

    def launch_traced(self, grids: list[int], args: list[Any], kwargs: dict[str, Any]) -> None:
        self._launch(tuple(grids), *args, **kwargs)

    def sample(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        return {}, ()

    # -- launching --
    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> CompiledKernel | None:
        """`k[grid](...)`, or with `warmup` `k.warmup(...)`."""
        return self.warmup(*args, **kwargs) if warmup else self._launch(grid, *args, **kwargs)

    def launch_as(self, compiled: CompiledKernel, grid: Any, /, *args: Any, **kwargs: Any) -> CompiledKernel | None:
        """`compiled[grid](...)`. As before Triton 3.3, all arguments but constants will do."""
        run_time = [n for n in self.names if n not in self.constexprs]
        if len(args) == len(run_time) and not kwargs.keys() & self.keys:
            args, kwargs = (), {**dict(zip(run_time, args)), **kwargs}
        constants = {n: a.value for n, a in compiled.args.items() if n in self.constexprs and isinstance(a, Const)}
        fixed = {n: v for n, v in {**constants, **compiled.options}.items()
                 if n not in self.names[:len(args)] and n not in kwargs and (n in self.keys or n in self.defaults)}
        given = {**fixed, **kwargs}
        plan, flat = self._bound(args, {k: v for k, v in given.items() if k != "stream" or k in self.keys})
        for n, a in self.describe(plan, flat).items():
            was, now = getattr(compiled.args[n], "type", None), getattr(a, "type", None)
            if was is not None and now is not None and str(was) != str(now):
                raise ArgumentError(f"argument {n!r}: {now}; {self.__name__} was compiled for {was}: launch the kernel "
                                    "itself for other types")
        return self._launch(grid, *args, **given)

    def shown(self, compiled: CompiledKernel) -> Any:
        return compiled

    def bind(self, grid: Any, /, *args: Any, **kwargs: Any) -> Callable[[], None]:
        """A function that repeats this launch (on the stream that is current then, unless `stream` was given), for
        benchmarks and CUDA graphs. It keeps its arguments alive.
        """
        stream = kwargs.pop("stream", None) if "stream" not in self.keys else None
        plan, flat = self._bound(args, kwargs)
        dims = self.grid(grid, plan, flat)
        if 0 in dims:
            return lambda: None
        entry = self._entry(plan, flat, stream).for_grid(dims, flat, stream)
        if not isinstance(entry, DeviceEntry):
            return partial(entry.launch, dims, flat, stream)
        return entry.repeated(dims, flat, stream, keep=flat)

    def grid(self, grid: Any, plan: Plan, flat: tuple) -> Grid:
        """Three integers; raises LaunchError for no grid."""
        return self.sizes(grid, lambda: {**self.defaults, **{k: flat[i] for k, i in plan.options.items()},
                                         **{n: flat[i] for n, i in plan.at.items()}})

    def sizes(self, grid: Any, meta: Callable[[], dict[str, Any]]) -> Grid:
        if callable(grid):
            grid = grid(meta())
        if type(grid) is tuple and len(grid) == 1 and type(grid[0]) is int and 0 <= grid[0] < 2 ** 31:
            return grid[0], 1, 1
        if type(grid) is int or isinstance(grid, np.integer):
            grid = (grid,)
        if not isinstance(grid, (tuple, list)) or not 1 <= len(grid) <= 3 or \
                not all(type(d) is int or isinstance(d, np.integer) for d in grid):
            raise LaunchError(f"{self.__name__}: a grid is 1 to 3 integers, or a function of the arguments by name "
                              f"that returns them; found {grid!r}")
        x, y, z = (*map(int, grid), 1, 1)[:3]
        if min(x, y, z) < 0 or x > 2 ** 31 - 1 or y > 65535 or z > 65535:
            raise LaunchError(f"{self.__name__}: grid {(x, y, z)} is out of range: 0..2^31-1, 0..65535, 0..65535")
        return x, y, z


def _picker(order: list[int]) -> Callable[[tuple], tuple]:
    if len(order) > 1:
        return itemgetter(*order)
    return lambda values: tuple([values[i] for i in order])


def _dtype(annotation: Any) -> DType | None:
    from tilejit import language

    if isinstance(annotation, str):
        word = annotation.rsplit(".", 1)[-1]
        annotation = getattr(language, "int1" if word == "uint1" else word, None)
    return annotation if isinstance(annotation, DType) else None


def captured_globals(source: KernelSource) -> list[tuple[Mapping[str, Any], str, Any]]:
    noted = index.constants.get(source)
    if noted is not None:
        return noted
    from tilejit.frontend.captures import reached

    return [(c.table, c.key, c.value) for _, found in reached(source) for c in found if not c.sources
            and c.table is not None and not c.table.get("__name__", "").startswith("tilejit.language")]


def _check_captured(kernel: str, table: Mapping[str, Any], name: str, value: Any) -> None:
    now = table.get(name)
    was, now = (v.value if isinstance(v, constexpr) else v for v in (value, now))
    if type(was) is not type(now) or was != now:
        kind = "variable of an enclosing function" if isinstance(table, Enclosing) else "global variable"
        raise StaleGlobalError(f"{kernel}: {kind} {name} has changed since we compiled this kernel, from "
                               f"{was!r} to {now!r}: pass it as a tl.constexpr argument")


def kernel(fn: Callable[..., Any] | None = None, *, debug: bool = False, do_not_specialize: tuple = (),
           do_not_specialize_on_alignment: tuple = (), launch_metadata: Callable[..., Any] | None = None,
           **ignored: Any) -> Any:
    """Make a GPU kernel of a Python function written in the tile language.

    Usable bare or with arguments: `do_not_specialize` lists parameters (names or indices) whose values and alignment do
    not matter to the code, `do_not_specialize_on_alignment` those only told apart when 1; `debug` keeps
    `tl.device_assert`; `launch_metadata(grid, kernel, arguments)` returns what hooks are told (`Launch.metadata`).
    Raises ArgumentError for an argument that neither tilejit nor Triton knows.
    """
    for k in ignored.keys() - _DECORATOR_IGNORED:
        raise ArgumentError(f"@kernel got an unknown argument {k!r}")
    if fn is None:
        return partial(kernel, debug=debug, do_not_specialize=do_not_specialize,
                       do_not_specialize_on_alignment=do_not_specialize_on_alignment,
                       launch_metadata=launch_metadata)
    return Kernel(fn, debug, tuple(do_not_specialize), tuple(do_not_specialize_on_alignment), launch_metadata)
