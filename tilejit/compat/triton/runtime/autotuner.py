"""Triton's classes and their protocol, over the measuring of `tilejit.tools`; everything goes through `run`."""
from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tilejit.compat.triton import knobs
from tilejit.compat.triton.compiler.errors import CompileTimeAssertionFailure
from tilejit.compat.triton.runtime.errors import AutotunerError, OutOfResources, PTXASError
from tilejit.compat.triton.runtime.jit import JITFunction, KernelInterface, carried_out_by
from tilejit.errors import CompilationError, LaunchError
from tilejit.runtime import arrays, traced
from tilejit.runtime import knobs as our_knobs
from tilejit.runtime.target import default_target
from tilejit.tools import costs, trials, tuned
from tilejit.tools.wrapper import Choices

#: what one configuration may raise without ending the search
_LEFT_OUT = (OutOfResources, CompileTimeAssertionFailure, PTXASError, CompilationError, LaunchError)
_NONE_WORKS = [float("inf")] * 3


class Config:
    """`num_stages` reads 3 where it was not given; the compiler decides then."""

    def __init__(self, kwargs: Mapping[str, Any], num_warps: int = 4, num_stages: int | None = None, num_ctas: int = 1,
                 maxnreg: int | None = None, pre_hook: Callable[..., Any] | None = None,
                 ir_override: str | None = None):
        self.kwargs, self.num_warps, self.num_ctas, self.maxnreg = dict(kwargs), num_warps, num_ctas, maxnreg
        self.pre_hook, self.ir_override, self.stages = pre_hook, ir_override, num_stages

    @property
    def num_stages(self) -> int:
        return 3 if self.stages is None else self.stages

    @num_stages.setter
    def num_stages(self, stages: int | None) -> None:
        self.stages = stages

    def all_kwargs(self) -> dict[str, Any]:
        return {**self.launched_with(), "num_stages": self.num_stages}

    def launched_with(self) -> dict[str, Any]:
        options = {"num_warps": self.num_warps, "num_ctas": self.num_ctas, "num_stages": self.stages,
                   "maxnreg": self.maxnreg, "ir_override": self.ir_override}
        return {**self.kwargs, **{k: v for k, v in options.items() if v is not None}}

    def __str__(self) -> str:
        options = {"num_warps": self.num_warps, "num_ctas": self.num_ctas, "num_stages": self.num_stages,
                   "maxnreg": self.maxnreg, "ir_override": self.ir_override}
        return ", ".join(f"{k}: {v}" for k, v in {**self.kwargs, **options}.items())

    __repr__ = __str__

    def __hash__(self) -> int:
        return hash((*self.all_kwargs().items(), self.pre_hook))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.pre_hook == other.pre_hook and list(
            self.all_kwargs().items()) == list(other.all_kwargs().items())


class Autotuner(Choices, KernelInterface):
    def __init__(self, fn: Any, arg_names: Sequence[str], configs: Sequence[Config], key: Sequence[str],
                 reset_to_zero: Sequence[str] | None, restore_value: Sequence[str] | None,
                 pre_hook: Callable[..., Any] | None = None, post_hook: Callable[..., Any] | None = None,
                 prune_configs_by: Mapping[str, Any] | None = None, warmup: float | None = None,
                 rep: float | None = None, use_cuda_graph: bool = False, do_bench: Callable[..., Any] | None = None,
                 cache_results: bool = False):
        self.fn, self.arg_names, self.keys = fn, arg_names, key
        self.configs = list(configs) or [Config({})]
        self.cache: dict[tuple, Config] = {}
        self.configs_timings: dict[Config, Any] = {}
        self.best_config: Config | None = None
        self.nargs: dict[str, Any] | None = None
        self.bench_time = 0.0
        self.failures: dict[Config, Exception] = {}
        self.timeout = 20.0
        self.cache_results = cache_results or knobs.autotuning.cache
        self.reset_to_zero, self.restore_value = list(reset_to_zero or ()), list(restore_value or ())
        self.user_defined_pre_hook, self.user_defined_post_hook = pre_hook is not None, post_hook is not None
        self.pre_hook, self.post_hook = pre_hook or self._prepare, post_hook or self._restore
        self.saved = costs.Saved()
        self.number = traced.number_of(self)
        prune = dict(prune_configs_by or {})
        self.perf_model, self.configs_top_k = prune.get("perf_model"), prune.get("top_k", 1.0)
        self.early_config_prune = prune.get("early_config_prune")
        self.base_fn = fn
        while not inspect.isfunction(self.base_fn):
            self.base_fn = self.base_fn.fn
        self.__name__, self.__doc__ = self.base_fn.__name__, self.base_fn.__doc__
        self._do_bench = do_bench or _bench_for(warmup, rep, use_cuda_graph)

    # -- hooks --
    def _prepare(self, named: dict[str, Any], reset_only: bool = False) -> None:
        for name in self.reset_to_zero:
            if named[name] is not None:
                costs.zero(named[name])
        if not reset_only:
            self.saved.keep({name: named[name] for name in self.restore_value})

    def _restore(self, named: dict[str, Any], exception: Exception | None = None) -> None:
        self.saved.restore()

    # -- torch's compiler (see tilejit/runtime/traced.py) --
    @property
    def kernel(self) -> Any:
        fn = self.fn
        while not isinstance(fn, JITFunction):
            fn = fn.fn
        return fn

    def given_by(self, config: Config) -> dict[str, Any]:
        return config.launched_with()

    def launch_for(self, grid: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        self.run(*args, grid=grid, warmup=False, **kwargs)

    def sample(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        return dict(self.configs[0].launched_with()), (*self.reset_to_zero, *self.restore_value)

    # -- launching --
    def run(self, *args: Any, **kwargs: Any) -> Any:
        if arrays.tracing() or arrays.stands_in(*args, *kwargs.values()):
            return self.traced(kwargs["grid"], args, {k: v for k, v in kwargs.items() if k not in ("grid", "warmup")})
        self.nargs = dict(zip(self.arg_names, args))
        config, timed = self.configs[0], False
        if len(self.configs) > 1:
            key = self._key(kwargs)
            if key not in self.cache:
                timed = self._search(key, args, kwargs)
            config = self.cache[key]
            if timed and knobs.autotuning.print:
                print(f"Triton autotuning for function {self.__name__},\nwith key as {key},\nfinished after "
                      f"{self.bench_time:.2f}s,\nbest config selected: {config};")
        self.best_config = config
        if config.pre_hook is not None:
            config.pre_hook({**self.nargs, **kwargs, **config.all_kwargs()})
        result = self.fn.run(*args, **kwargs, **config.launched_with())
        self.nargs = None
        return result

    def warmup(self, *args: Any, **kwargs: Any) -> list[Any]:
        self.nargs = dict(zip(self.arg_names, args))
        made = [self.fn.warmup(*args, **kwargs, **c.launched_with()) for c in self.prune_configs(kwargs)]
        self.nargs = None
        return made

    # -- the search --
    def _key(self, kwargs: dict[str, Any]) -> tuple:
        named = {k: v for k, v in {**(self.nargs or {}), **kwargs}.items() if k in self.arg_names}
        return (*[named[k] for k in self.keys if k in named],
                *[str(x.dtype) for x in named.values() if hasattr(x, "dtype")])

    def _search(self, key: tuple, args: tuple, kwargs: dict[str, Any]) -> bool:
        configs = self.prune_configs(kwargs)
        if len(configs) == 1:
            self.cache[key] = configs[0]
            return False
        kernel = _innermost(self.fn)
        where = None
        if self.cache_results and kernel is not None and not any(c.pre_hook for c in configs):
            where = tuned.key(kernel, str(key), [str(c) for c in configs])
        known = tuned.read(where) if where else None
        if known is not None:
            self.configs_timings = {configs[int(i)]: t for i, t in known.items()}
        else:
            began = time.time()
            self.configs_timings = self._measure(configs, args, kwargs)
            self.bench_time = time.time() - began
            if where:
                tuned.write(where, {str(i): _first(self.configs_timings[c]) for i, c in enumerate(configs)})
        self.cache[key] = min(self.configs_timings, key=lambda c: _first(self.configs_timings[c]))
        if known is None:
            self.pre_hook({**(self.nargs or {}), **kwargs, **self.cache[key].all_kwargs()}, reset_only=True)
        if knobs.autotuning.listener is not None:
            knobs.autotuning.listener(fn=kernel, key=key, best_config=self.cache[key], cache_hit=known is not None,
                                      configs_timings=self.configs_timings,
                                      duration=self.bench_time if known is None else None)
        return known is None

    def _measure(self, configs: Sequence[Config], args: tuple, kwargs: dict[str, Any]) -> dict[Config, Any]:
        """In a process of their own where that can be (`tilejit/tools/trials.py`); else here, all compiled first."""
        self.failures = {}
        jobs: dict[Config, Callable[[], Any]] = {}
        if _innermost(self.fn) is not None and self._do_bench is None and type(self)._bench is Autotuner._bench:
            for c in configs:
                try:
                    kernel, _, inner, options = self._launched(c, args, kwargs)
                    jobs[c] = kernel.prepare(*inner, **options)
                except _LEFT_OUT as error:
                    self.failures[c] = error
        if jobs and default_target() == "cuda" and our_knobs.current().isolate:
            try:
                return self._apart(jobs, configs, args, kwargs)
            except trials.NotApart as error:
                if knobs.autotuning.print:
                    print(f"Autotuning {self.__name__} in this process: {error}")
        with trials.compiling(jobs) as made:
            for future in made.values():
                future.exception()
        return {c: self._bench(*args, config=c, **kwargs) for c in configs}

    def _apart(self, jobs: dict[Config, Callable[[], Any]], configs: Sequence[Config], args: tuple,
               kwargs: dict[str, Any]) -> dict[Config, Any]:
        def bind(config: Config) -> trials.Launched:
            return self._launched(config, args, kwargs, before=True)

        def told(config: Config, error: Exception | None) -> None:
            if knobs.autotuning.print:
                print(f"Autotuning kernel {self.__name__} with config {config}" + (f": {error}" if error else ""))
            self.post_hook({**(self.nargs or {}), **kwargs, **config.all_kwargs()}, exception=error)

        hooked = self.user_defined_pre_hook or self.user_defined_post_hook or any(c.pre_hook for c in configs)
        times, failures = trials.measure(jobs, bind, hooked, (*self.reset_to_zero, *self.restore_value), self.timeout,
                                         (25.0, 100.0), told=told)
        self.failures.update(failures)
        return {c: [times[c]] * 3 if c in times else list(_NONE_WORKS) for c in configs}

    def _launched(self, config: Config, args: tuple, kwargs: dict[str, Any], before: bool = False) -> trials.Launched:
        """The kernel's own launch that a configuration stands for; with `before` once the hooks were called."""
        self._check_names(config, kwargs)
        if config.pre_hook is not None:
            config.pre_hook({**(self.nargs or {}), **kwargs, **config.all_kwargs()})
        if before:
            self.pre_hook({**(self.nargs or {}), **kwargs, **config.all_kwargs()})
        found: list[trials.Launched] = []
        with carried_out_by(lambda *launch: found.append(launch)):
            self.fn.run(*args, **kwargs, **config.launched_with())
        return found[0]

    def _check_names(self, config: Config, meta: dict[str, Any]) -> None:
        twice = meta.keys() & config.kwargs.keys()
        if twice:
            raise ValueError(f"Conflicting meta-parameters: {', '.join(twice)}. Make sure that you don't re-define "
                             "auto-tuned symbols.")

    def _bench(self, *args: Any, config: Config, **meta: Any) -> Any:
        self._check_names(config, meta)
        if knobs.autotuning.print:
            print(f"Autotuning kernel {self.__name__} with config {config}")
        named = {**(self.nargs or {}), **meta, **config.all_kwargs()}

        def call(run: Callable[..., Any] | None = None) -> Any:
            """Launch once; or hand the launch to `run`, and return what that does."""
            found: list[Any] = []
            if config.pre_hook is not None:
                config.pre_hook(named)
            self.pre_hook(named)
            try:
                with carried_out_by(None if run is None else lambda *launch: found.append(run(*launch))):
                    self.fn.run(*args, **meta, **config.launched_with())
            except Exception as error:
                self.post_hook(named, exception=error)
                raise
            self.post_hook(named, exception=None)
            return found[0] if found else None

        try:
            return self.do_bench(call, quantiles=(0.5, 0.2, 0.8))
        except _LEFT_OUT as error:
            self.failures[config] = error
            if knobs.autotuning.print:
                print(f"Autotuning failed with {error}")
            return list(_NONE_WORKS)

    @property
    def do_bench(self) -> Callable[..., Any]:
        return self._do_bench or (lambda call, quantiles: [costs.cost(call)] * 3)

    def prune_configs(self, kwargs: dict[str, Any]) -> list[Config]:
        configs, named = self.configs, self.nargs or {}
        if self.early_config_prune:
            configs = self.early_config_prune(configs, named, **kwargs)
            if not configs:
                raise AutotunerError("No valid autotuner configs after pruning. `early_config_prune` should return at "
                                     "least one config.")
        if self.perf_model:
            top = self.configs_top_k
            if isinstance(top, float) and top <= 1.0:
                top = max(1, int(len(configs) * top))
            elif not isinstance(top, int):
                raise TypeError("Error while pruning configs, top_k must be either 1) a float <= 1.0 or 2) an int")
            if len(configs) > top:
                times = {c: self.perf_model(**named, **kwargs, **c.all_kwargs()) for c in configs}
                configs = sorted(times, key=lambda c: times[c])[:top]
        return list(configs)


def _innermost(fn: Any) -> JITFunction | None:
    while not isinstance(fn, JITFunction):
        if not hasattr(fn, "fn"):
            return None
        fn = fn.fn
    return fn


def _first(times: Any) -> float:
    return float(times[0] if isinstance(times, (list, tuple)) else times)


def _bench_for(warmup: float | None, rep: float | None, graph: bool) -> Callable[..., Any] | None:
    from tilejit.compat.triton import testing

    if graph:
        return partial(testing.do_bench_cudagraph, rep=rep or 100)
    if warmup is None and rep is None:
        return None
    return partial(testing.do_bench, warmup=warmup or 25, rep=rep or 100)


def autotune(configs: Sequence[Config], key: Sequence[str], prune_configs_by: Mapping[str, Any] | None = None,
             reset_to_zero: Sequence[str] | None = None, restore_value: Sequence[str] | None = None,
             pre_hook: Callable[..., Any] | None = None, post_hook: Callable[..., Any] | None = None,
             warmup: float | None = None, rep: float | None = None, use_cuda_graph: bool = False,
             do_bench: Callable[..., Any] | None = None, cache_results: bool = False) -> Callable[[Any], Autotuner]:
    return lambda fn: Autotuner(fn, fn.arg_names, configs, key, reset_to_zero, restore_value, pre_hook, post_hook,
                                prune_configs_by, warmup, rep, use_cuda_graph, do_bench, cache_results)


class Heuristics(KernelInterface):
    """See `tilejit.heuristics`."""

    def __init__(self, fn: Any, arg_names: Sequence[str], values: Mapping[str, Callable[[dict[str, Any]], Any]]):
        self.fn, self.arg_names, self.values = fn, arg_names, values
        self.__name__, self.__doc__ = getattr(fn, "__name__", ""), fn.__doc__

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn.run(*args, **self._with(args, kwargs))

    def warmup(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn.warmup(*args, **self._with(args, kwargs))

    def traced(self, grid: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        self.fn.traced(grid, args, self._with(args, dict(kwargs)))

    def meta(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self.fn.meta(args, self._with(args, dict(kwargs)))
        return found

    def _with(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
        for name, value in self.values.items():
            kwargs[name] = value({**dict(zip(self.arg_names, args)), **kwargs})
        return kwargs


def heuristics(values: Mapping[str, Callable[[dict[str, Any]], Any]]) -> Callable[[Any], Heuristics]:
    return lambda fn: Heuristics(fn, fn.arg_names, values)
