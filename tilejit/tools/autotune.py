"""`tilejit.autotune`: launch arguments that are found by measuring."""
from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilejit.errors import AutotuneError, CompilationError, EmulatorError, LaunchError
from tilejit.runtime import knobs, traced
from tilejit.runtime.arrays import StandIn, stands_in
from tilejit.runtime.compile import CompiledKernel
from tilejit.runtime.hooks import HOOKS
from tilejit.runtime.jit import OPTIONS
from tilejit.runtime.signature import ArgumentError
from tilejit.runtime.target import default_target
from tilejit.tools import tuned
from tilejit.tools.agreement import Agreement
from tilejit.tools.config import Config
from tilejit.tools.costs import (
    Run,
    Saved,
    cost,
    host_copies,
    launch,
    out_of_resources,
    unit,
    written_arrays,
    zero,
)
from tilejit.tools.trials import Launched, NotApart, compiling, measure
from tilejit.tools.wrapper import Call, Choices, Wrapper, call_of, check_names

#: do_bench(call, quantiles=(0.5, 0.2, 0.8)) -> milliseconds, one number or a list whose first counts
Bench = Callable[..., Any]


class Autotuner(Choices, Wrapper):
    """See `autotune`. `best_config` is that of the last launch, `cache` that of every key so far, `timings` what was
    measured for each key (milliseconds; clocks in the emulator), `failures` why configurations were left out."""

    def __init__(self, fn: Any, configs: Sequence[Config], key: Sequence[str], prune: Mapping[str, Any],
                 zeroed: Sequence[str], restored: Sequence[str], pre_hook: Callable[..., Any] | None,
                 post_hook: Callable[..., Any] | None, bench: Bench | None, cache_results: bool,
                 spend: tuple[float, float] = (25.0, 100.0), check: bool | float = False, isolate: bool | None = None,
                 timeout: float = 20.0):
        super().__init__(fn)
        self.spend, self.check, self.isolate, self.timeout = spend, check, isolate, timeout
        self.configs, self.keys = list(configs) or [Config({})], tuple(key)
        self.prune, self.zeroed, self.restored = dict(prune), tuple(zeroed), tuple(restored)
        self.pre_hook, self.post_hook, self.bench, self.cache_results = pre_hook, post_hook, bench, cache_results
        self.cache: dict[tuple, Config] = {}
        self.timings: dict[tuple, dict[Config, float]] = {}
        self.failures: dict[tuple, dict[Config, Exception]] = {}
        self.notes: dict[tuple, list[str]] = {}
        self.best_config: Config | None = None
        self.lock = threading.RLock()
        self.number = traced.number_of(self)
        known = {*self.names, *OPTIONS}
        for c in self.configs:
            check_names("autotune: configurations", c.kwargs, known)
        check_names("autotune: key", self.keys, known)
        check_names("autotune: reset_to_zero and restore_value", (*self.zeroed, *self.restored), set(self.names))
        check_names("autotune: prune_configs_by", self.prune, {"early_config_prune", "perf_model", "top_k"})

    def choose(self, grid: Any, args: tuple, kwargs: dict[str, Any]) -> Call:
        """The call in the best configuration, which is looked for if need be. Raises AutotuneError if none works."""
        config = self.configs[0]
        if stands_in(*args, *kwargs.values()):
            raise StandIn
        if len(self.configs) > 1:
            key = self.key_of(args, kwargs)
            try:
                found = self.cache.get(key)
            except TypeError:
                raise ArgumentError(f"{self.__name__}: the key {', '.join(self.keys)} of autotune is {_shown(key)}, "
                                    "which cannot be hashed") from None
            if found is None:
                HOOKS.refuse("configurations are measured")
                with self.lock:
                    found = self.cache.get(key) or self.tune(key, grid, args, kwargs)
            config = found
        self.best_config = config
        return self._with(config, grid, args, kwargs)

    def _with(self, config: Config, grid: Any, args: tuple, kwargs: dict[str, Any]) -> Call:
        given = config.given
        twice = [n for n in given if n in kwargs or n in self.names[:len(args)]]
        if twice:
            raise ArgumentError(f"{self.__name__}: {', '.join(twice)}: set by the configurations of autotune and by "
                                "the call")
        if config.pre_hook is not None:
            HOOKS.refuse("a configuration has a hook of its own")
            config.pre_hook({**self.named(args, kwargs), **given})
        return call_of(self.fn, grid, args, {**kwargs, **given})

    def key_of(self, args: tuple, kwargs: dict[str, Any]) -> tuple:
        """The settings, the key arguments' values, the dtypes of arrays."""
        named = self.named(args, kwargs)
        return (knobs.overrides(), *[named[k] for k in self.keys if k in named],
                *[x.dtype for x in named.values() if hasattr(x, "dtype")])

    # -- torch's compiler (see `Choices`) --
    def given_by(self, config: Config) -> dict[str, Any]:
        return config.given

    def launch_for(self, grid: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        self._launch(grid, *args, **kwargs)

    def sample(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        return dict(self.configs[0].given), (*self.zeroed, *self.restored)

    # -- tuning --
    def tune(self, key: tuple, grid: Any, args: tuple, kwargs: dict[str, Any]) -> Config:
        """Measure what is worth measuring (or read it from disk) and remember the best for `key`."""
        configs, began = self.pruned(args, kwargs), time.perf_counter()
        where = self._disk_key(key, configs) if self.cache_results else None
        known = tuned.read(where) if where else None
        failures: dict[Config, Exception] = {}
        if known is not None:
            times = {configs[int(i)]: t for i, t in known.items()}
        elif len(configs) == 1:
            times = {configs[0]: 0.0}
        else:
            times, failures = self._measure(key, configs, grid, args, kwargs)
            if where:
                tuned.write(where, {str(i): times[c] for i, c in enumerate(configs) if c in times})
        best = min(times, key=lambda c: times[c])
        self.cache[key], self.timings[key], self.failures[key] = best, times, failures
        if knobs.current().print_autotune:
            print(f"tilejit: {self.__name__} for {_shown(key)}: {best} is the best of {len(times)} in "
                  f"{time.perf_counter() - began:.2f} s; {len(failures)} left out", flush=True)
        return best

    def _measure(self, key: tuple, configs: Sequence[Config], grid: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[
            dict[Config, float], dict[Config, Exception]]:
        agreement = None if self.check is False else Agreement(None if self.check is True else self.check)
        why = self._stays()
        if not why:
            try:
                times, failures = self._apart(configs, grid, args, kwargs, agreement)
            except NotApart as error:
                why = str(error)
        if why:
            times, failures = self._inside(configs, grid, args, kwargs, agreement)
        if not times:
            raise AutotuneError(_nothing_works(self.__name__, failures))
        notes = [f"measured in this process: {why}"] if why else []
        self.notes[key] = notes + ([agreement.note()] if agreement and agreement.note() else [])
        full = {**self.named(args, kwargs), **min(times, key=lambda c: times[c]).all_kwargs()}
        self._before(full, reset_only=True)
        return times, failures

    def _stays(self) -> str:
        if default_target() != "cuda":
            return "there is no GPU"
        if self.bench is not None:
            return "do_bench is the caller's"
        if not (knobs.current().isolate if self.isolate is None else self.isolate):
            return "isolate is False"
        return ""

    def _apart(self, configs: Sequence[Config], grid: Any, args: tuple, kwargs: dict[str, Any],
               agreement: Agreement | None) -> tuple[dict[Config, float], dict[Config, Exception]]:
        """In a process of their own, each as soon as it is compiled. Raises NotApart where that cannot be."""
        jobs, failures = self._jobs(configs, grid, args, kwargs)

        def bind(config: Config) -> Launched:
            kernel, inner, options = self._with(config, grid, args, kwargs)
            self._before({**self.named(args, kwargs), **config.all_kwargs()})
            return kernel, grid, inner, options

        def told(config: Config, error: Exception | None) -> None:
            if self.post_hook is not None:
                self.post_hook({**self.named(args, kwargs), **config.all_kwargs()}, exception=error)

        hooked = bool(self.pre_hook or self.post_hook or any(c.pre_hook for c in configs))
        times, others = measure(jobs, bind, hooked, (*self.zeroed, *self.restored), self.timeout, self.spend, agreement,
                                told)
        return times, {**failures, **others}

    def _inside(self, configs: Sequence[Config], grid: Any, args: tuple, kwargs: dict[str, Any],
                agreement: Agreement | None) -> tuple[dict[Config, float], dict[Config, Exception]]:
        failures = self.compile_all(configs, grid, args, kwargs)
        times: dict[Config, float] = {}
        start = Saved()
        for config in configs:
            if config in failures:
                continue
            try:
                if agreement:
                    problem = agreement.problem(self._outputs(config, grid, args, kwargs, start))
                    if problem:
                        raise AutotuneError(problem)
                times[config] = self._time(config, grid, args, kwargs)
            except (CompilationError, LaunchError, EmulatorError) as error:
                failures[config] = error
            except Exception as error:
                if not out_of_resources(error):
                    raise
                failures[config] = error
        start.restore()
        return times, failures

    def _outputs(self, config: Config, grid: Any, args: tuple, kwargs: dict[str, Any],
                 start: Saved) -> dict[str, Any]:
        full = {**self.named(args, kwargs), **config.all_kwargs()}
        kernel, inner, options = self._with(config, grid, args, kwargs)
        arrays = written_arrays(kernel, inner, options)
        if start.kept:
            start.restore(forget=False)
        else:
            start.keep(arrays)
        self._before(full)
        try:
            launch(kernel, grid, inner, options)
            found = host_copies(arrays)
        except Exception as error:
            if self.post_hook is not None:
                self.post_hook(full, exception=error)
            raise
        if self.post_hook is not None:
            self.post_hook(full, exception=None)
        return found

    def _time(self, config: Config, grid: Any, args: tuple, kwargs: dict[str, Any]) -> float:
        full = {**self.named(args, kwargs), **config.all_kwargs()}
        saved = Saved()

        def call(run: Run = launch) -> Any:
            kernel, inner, options = self._with(config, grid, args, kwargs)
            self._before(full, saved=saved)
            try:
                result = run(kernel, grid, inner, options)
            except Exception as error:
                self._after(full, error, saved)
                raise
            self._after(full, None, saved)
            return result

        return cost(call, self.spend) if self.bench is None else _first(self.bench(call, quantiles=(0.5, 0.2, 0.8)))

    def _before(self, full: dict[str, Any], reset_only: bool = False, saved: Saved | None = None) -> None:
        if self.pre_hook is not None:
            self.pre_hook(full, reset_only=reset_only)
            return
        for name in self.zeroed:
            zero(full[name])
        if saved is not None:
            saved.keep({name: full[name] for name in self.restored})

    def _after(self, full: dict[str, Any], error: Exception | None, saved: Saved) -> None:
        if self.post_hook is not None:
            self.post_hook(full, exception=error)
        else:
            saved.restore()

    def _jobs(self, configs: Sequence[Config], grid: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[
            dict[Config, Callable[[], CompiledKernel]], dict[Config, Exception]]:
        failures: dict[Config, Exception] = {}
        jobs: dict[Config, Callable[[], CompiledKernel]] = {}
        for config in configs:
            try:
                kernel, inner, options = self._with(config, grid, args, kwargs)
                jobs[config] = kernel.prepare(*inner, **options)
            except (CompilationError, LaunchError) as error:
                failures[config] = error
        return jobs, failures

    def compile_all(self, configs: Sequence[Config], grid: Any, args: tuple, kwargs: dict[str, Any]) -> dict[
            Config, Exception]:
        jobs, failures = self._jobs(configs, grid, args, kwargs)
        with compiling(jobs) as made:
            for config, future in made.items():
                try:
                    future.result()
                except (CompilationError, LaunchError) as error:
                    failures[config] = error
        return failures

    def warmup(self, *args: Any, grid: Any = None, **kwargs: Any) -> list[Any]:
        """Compile every configuration (loading it too with GPU arrays); see `Kernel.warmup`."""
        configs = self.pruned(args, kwargs)
        failures = self.compile_all(configs, grid, args, kwargs)
        if len(failures) == len(configs):
            raise AutotuneError(_nothing_works(self.__name__, failures))
        out = []
        for config in configs:
            if config not in failures:
                kernel, inner, options = self._with(config, grid, args, kwargs)
                out.append(kernel.warmup(*inner, grid=grid, **options))
        return out

    def pruned(self, args: tuple, kwargs: dict[str, Any]) -> list[Config]:
        configs, named = list(self.configs), dict(zip(self.names, args))
        early, model, top = (self.prune.get(k) for k in ("early_config_prune", "perf_model", "top_k"))
        if early is not None:
            configs = list(early(configs, named, **kwargs))
            if not configs:
                raise AutotuneError(f"{self.__name__}: early_config_prune left no configuration")
        if model is not None:
            top = 1.0 if top is None else top
            if isinstance(top, bool) or not isinstance(top, int) and not (isinstance(top, float) and 0 < top <= 1):
                raise ArgumentError(f"{self.__name__}: top_k is an integer, or a part of 1 as a float, found {top}")
            count = max(1, int(len(self.configs) * top) if isinstance(top, float) else top)
            if len(configs) > count:
                configs = sorted(configs, key=lambda c: model(**named, **kwargs, **c.all_kwargs()))[:count]
        return configs

    def _disk_key(self, key: tuple, configs: Sequence[Config]) -> dict[str, Any]:
        checked = {} if self.check is False else {"check": self.check}
        return {**tuned.key(self.kernel, _shown(key), [str(c) for c in configs]), **checked}

    def report(self) -> str:
        lines = []
        for key, times in self.timings.items():
            lines.append(f"{self.__name__} for {_shown(key)} ({unit() if self.bench is None else 'milliseconds'}):")
            lines += [f"  {t:.4g}  {c}{'  (best)' if c == self.cache[key] else ''}"
                      for c, t in sorted(times.items(), key=lambda ct: ct[1])]
            lines += [f"  -  {c}: {_line(e)}" for c, e in self.failures[key].items()]
            lines += [f"  {note}" for note in self.notes.get(key, ())]
        return "\n".join(lines)


def _shown(key: tuple) -> str:
    return f"({', '.join(map(str, key[1:]))})"


def _first(found: Any) -> float:
    return float(found[0] if isinstance(found, (list, tuple)) else found)


def _line(error: Exception) -> str:
    return str(error).split("\n")[0]


def _nothing_works(name: str, failures: Mapping[Config, Exception]) -> str:
    texts = list(dict.fromkeys(map(str, failures.values())))
    head = f"{name}: none of the {len(failures)} configurations works"
    if len(texts) == 1:
        return f"{head}; all fail alike: {texts[0]}"
    return "\n".join([f"{head}:", *(f"  {c}: {_line(e)}" for c, e in failures.items())])


def autotune(configs: Sequence[Config], key: Sequence[str], prune_configs_by: Mapping[str, Any] | None = None,
             reset_to_zero: Sequence[str] | None = None, restore_value: Sequence[str] | None = None,
             pre_hook: Callable[..., Any] | None = None, post_hook: Callable[..., Any] | None = None,
             warmup: float | None = None, rep: float | None = None, use_cuda_graph: bool = False,
             do_bench: Bench | None = None, cache_results: bool = True, check: bool | float = False,
             isolate: bool | None = None, timeout: float = 20.0) -> Callable[[Any], Autotuner]:
    """Launch a kernel in the fastest of `configs`, measured anew for every value of the arguments named in `key`.

        @tilejit.autotune([tilejit.Config({"BLOCK": b}, num_warps=w) for b in (512, 1024) for w in (4, 8)], key=["n"])
        @tilejit.kernel
        def scale(x, out, n, BLOCK: tl.constexpr): ...

    Names and meaning are Triton's. prune_configs_by: `early_config_prune(configs, arguments, **keywords)` returns those
    to consider, `perf_model(**everything)` estimates times, of which the `top_k` (a number, or a part as a float) least
    are measured. Before each measured call arrays in `reset_to_zero` are zeroed; those in `restore_value` are put back
    after it. `pre_hook(arguments, reset_only=False)` and `post_hook(arguments, exception=None)` replace that.
    On a GPU configurations run in a process of their own, on copies of the arrays, for about `warmup` and `rep`
    milliseconds. One that does not compile or launch, takes longer than `timeout` seconds or destroys the CUDA context,
    is left out, and `report()` names it; so is, with `check`, one whose outputs differ from the first one's: integers
    at all, floats by more than `check` if that is a number, else by dtype (`tools/agreement.py`). `isolate=False` (or
    the knob), `do_bench(call, quantiles=...)`, which returns milliseconds (or a list whose first number counts), and
    kernels that follow addresses in arrays are measured in this process.
    Measurements are kept on disk, for the same kind of GPU and driver, unless `cache_results` is False. In the emulator
    the clocks of `tilejit.timeline`'s model, times the waves of CTAs, decide; in the evaluator the first that works is
    used.

    Raises ArgumentError for names that the kernel does not have; AutotuneError at a launch where nothing works.
    """
    if use_cuda_graph:
        raise ArgumentError("autotune: use_cuda_graph is not supported; give a do_bench that times as you like")
    spend = 25.0 if warmup is None else warmup, 100.0 if rep is None else rep
    return lambda fn: Autotuner(fn, configs, key, prune_configs_by or {}, reset_to_zero or (), restore_value or (),
                                pre_hook, post_hook, do_bench, cache_results, spend, check, isolate, timeout)
