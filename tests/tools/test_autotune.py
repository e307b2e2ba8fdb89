"""Autotuning and heuristics with a timer of the test's own: what is tried, chosen, remembered, refused."""
from __future__ import annotations

import threading

import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.runtime.signature import ArgumentError

CONFIGS = [tilejit.Config({"BLOCK": b}, num_warps=w) for b, w in ((64, 1), (128, 2), (256, 4))]


def body(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr = False):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out + offs, tl.load(out + offs, mask, other=0.0) + 2 * tl.load(x + offs, mask, other=0.0), mask)


def grid(meta):
    return (tilejit.cdiv(meta["n"], meta["BLOCK"]),)


@pytest.fixture(autouse=True)
def evaluator(monkeypatch, tmp_path):
    """Launches in numpy: quick, and tuning does not depend on what runs them; no result of another test is found."""
    monkeypatch.setenv("TILEJIT_TARGET", "evaluator")
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path / "tuned"))


class Timer:
    """A do_bench that knows the time of each block size, and keeps what it was asked."""

    def __init__(self, times, calls=1):
        self.times, self.calls, self.asked = times, calls, []

    def tuner(self, configs=CONFIGS, key=("n",), cache_results=False, **options):
        seen = self.asked

        def note(kwargs, reset_only=False):
            if not reset_only:
                seen.append(kwargs["BLOCK"])

        options.setdefault("pre_hook", note)
        return tilejit.autotune(configs, list(key), do_bench=self, cache_results=cache_results, **options)(
            tilejit.kernel(body))

    def __call__(self, call, quantiles):
        assert quantiles == (0.5, 0.2, 0.8)
        for _ in range(self.calls):
            call()
        t = self.times[self.asked[-1]]
        return [t, t, t]


def data(n=300):
    return np.arange(n, dtype=np.float32), np.zeros(n, np.float32)


def test_the_fastest_is_used_and_each_key_is_tuned_once():
    timer = Timer({64: 3.0, 128: 1.0, 256: 2.0})
    k = timer.tuner()
    x, out = data()
    made = k[grid](x, out, 300)
    assert k.best_config is CONFIGS[1] and made.metadata.num_threads == 64
    assert timer.asked == [64, 128, 256]
    k[grid](x, out, n=300)
    assert timer.asked == [64, 128, 256]
    k[grid](x, out, 200)
    assert timer.asked == [64, 128, 256] * 2 and len(k.cache) == 2
    k[grid](x.astype(np.float16), out, 300)                                  # another dtype
    assert len(k.cache) == 3
    (times, *_) = k.timings.values()
    assert times == dict(zip(CONFIGS, (3.0, 1.0, 2.0)))
    assert "BLOCK: 128, num_warps: 2, num_ctas: 1  (best)" in k.report()


def test_arrays_that_a_kernel_adds_to():
    """Without help they get what every trial adds; with `reset_to_zero` one launch's, with `restore_value` on top of
    what they held."""
    times = {64: 3.0, 128: 1.0, 256: 2.0}

    def bench(call, quantiles):
        call(), call()
        return 1.0

    x, out = data()
    k = tilejit.autotune(CONFIGS, ["n"], do_bench=bench, cache_results=False)(tilejit.kernel(body))
    k[grid](x, out, 300)
    assert np.array_equal(out, 2 * x * 7)
    out[:] = 5
    k = tilejit.autotune(CONFIGS, ["n"], do_bench=bench, cache_results=False, reset_to_zero=["out"])(tilejit.kernel(body))
    k[grid](x, out, 300)
    assert np.array_equal(out, 2 * x)
    out[:] = 5
    k = tilejit.autotune(CONFIGS, ["n"], do_bench=bench, cache_results=False, restore_value=["out"])(tilejit.kernel(body))
    k[grid](x, out, 300)
    assert np.array_equal(out, 2 * x + 5)
    assert times


def test_our_own_arrays_are_reset_and_restored():
    for option in ("reset_to_zero", "restore_value"):
        x, out = tilejit.to_device(data()[0]), tilejit.zeros(300, "float32")
        k = tilejit.autotune(CONFIGS, ["n"], **{option: ["out"]})(tilejit.kernel(body))
        k[grid](x, out, 300)
        assert np.array_equal(out.numpy(), 2 * x.numpy())


def test_hooks():
    seen = []
    x, out = data()
    configs = [tilejit.Config({"BLOCK": 64}, pre_hook=lambda a: seen.append(("config", a["n"], a["BLOCK"]))),
               tilejit.Config({"BLOCK": 128})]
    k = tilejit.autotune(
        configs, ["n"], do_bench=lambda call, quantiles: call() or len(seen),
        pre_hook=lambda a, reset_only=False: seen.append(("pre", a["BLOCK"], reset_only)),
        post_hook=lambda a, exception: seen.append(("post", a["BLOCK"], exception)))(tilejit.kernel(body))
    k[grid](x, out, 300)
    timed = [s for s in seen if s[0] != "config"]
    assert timed == [("pre", 64, False), ("post", 64, None), ("pre", 128, False), ("post", 128, None), ("pre", 64, True)]
    assert k.best_config is configs[0] and seen[-1] == ("config", 300, 64)


def test_a_hook_may_set_the_blocks_of_a_descriptor():
    @tilejit.kernel
    def double(x_desc, out_desc, M: tl.constexpr, N: tl.constexpr):
        i = tl.program_id(0) * M
        out_desc.store([i, 0], x_desc.load([i, 0]) * 2)

    def blocks(arguments):
        for name in ("x_desc", "out_desc"):
            arguments[name].block_shape = [arguments["M"], arguments["N"]]

    x, out = np.arange(64 * 32, dtype=np.float32).reshape(64, 32), np.zeros((64, 32), np.float32)
    configs = [tilejit.Config({"M": m, "N": 32}, pre_hook=blocks) for m in (8, 16, 32)]
    k = tilejit.autotune(configs, [], do_bench=lambda call, quantiles: call() or 1.0)(double)
    d = tilejit.TensorDescriptor.from_tensor
    made = k[lambda meta: (64 // meta["M"],)](d(x, [1, 32]), d(out, [1, 32]))
    assert np.array_equal(out, 2 * x) and made is not None and "8, 32" in made.ir.replace("x", ", ")


def test_configurations_that_do_not_work_are_left_out():
    bad = [tilejit.Config({"BLOCK": 100}), tilejit.Config({"BLOCK": 128}, num_warps=3)]
    timer = Timer({64: 3.0, 128: 1.0, 256: 2.0})
    k = timer.tuner([*bad, *CONFIGS])
    x, out = data()
    k[grid](x, out, 300)
    (failed,) = k.failures.values()
    assert list(failed) == bad and k.best_config == CONFIGS[1]
    assert "-  BLOCK: 100, num_warps: 4, num_ctas: 1: " in k.report()


def test_nothing_works():
    x, out = data()
    k = tilejit.autotune([tilejit.Config({"BLOCK": b}) for b in (100, 101)], ["n"])(tilejit.kernel(body))
    with pytest.raises(tilejit.AutotuneError, match=r"body: none of the 2 configurations works:\n  BLOCK: 100") as error:
        k[grid](x, out, 300)
    assert "BLOCK: 101" in str(error.value) and "power" in str(error.value)
    with pytest.raises(tilejit.AutotuneError, match="all fail alike: .*misses argument 'n'"):
        k[(1,)](x, out)
    with pytest.raises(tilejit.AutotuneError, match="none of the 2"):
        k.warmup(x, out, 300)


def test_errors_of_the_timer_are_not_swallowed():
    def broken(call, quantiles):
        raise ZeroDivisionError

    x, out = data()
    with pytest.raises(ZeroDivisionError):
        tilejit.autotune(CONFIGS, ["n"], do_bench=broken)(tilejit.kernel(body))[grid](x, out, 300)


def test_pruning():
    x, out = data()
    timer = Timer({64: 3.0, 128: 1.0, 256: 2.0})

    def early(configs, named, **kwargs):
        assert named["n"] == 300 and kwargs == {"EVEN": True}
        return [c for c in configs if c.kwargs["BLOCK"] != 128]

    timer.tuner(prune_configs_by={"early_config_prune": early})[grid](x, out, 300, EVEN=True)
    assert timer.asked == [64, 256]
    for top, wanted in ((1, []), (2, [256, 128]), (0.7, [256, 128]), (1.0, [64, 128, 256])):
        timer.asked.clear()                                                  # a single one needs no timing
        timer.tuner(prune_configs_by={"perf_model": lambda n, BLOCK, **_: -BLOCK, "top_k": top})[grid](x, out, 300)
        assert timer.asked == wanted
    with pytest.raises(tilejit.AutotuneError, match="left no configuration"):
        timer.tuner(prune_configs_by={"early_config_prune": lambda c, n, **k: []})[grid](x, out, 300)
    with pytest.raises(ArgumentError, match="top_k"):
        timer.tuner(prune_configs_by={"perf_model": lambda **k: 1, "top_k": 2.5})[grid](x, out, 300)


def test_one_configuration_is_never_timed():
    timer = Timer({})
    x, out = data()
    k = timer.tuner(CONFIGS[:1])
    k[grid](x, out, 300)
    assert timer.asked == [] and np.array_equal(out, 2 * x)
    assert timer.tuner([]).configs == [tilejit.Config({})]


def test_results_are_kept_on_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path / "cache"))
    times = {64: 3.0, 128: 1.0, 256: 2.0}
    x, out = data()
    first, second, third = Timer(times), Timer(times), Timer(times)
    first.tuner(cache_results=True)[grid](x, out, 300)
    k = second.tuner(cache_results=True)
    k[grid](x, out, 300)
    assert first.asked == [64, 128, 256] and second.asked == [] and k.best_config == CONFIGS[1]
    k[grid](x, out, 200)                                                     # another key
    assert second.asked == [64, 128, 256]
    third.tuner(CONFIGS[:2], cache_results=True)[grid](x, out, 300)          # another choice
    assert third.asked == [64, 128]
    fourth = Timer(times)
    fourth.tuner()[grid](x, out, 300)                                        # not asked for
    assert fourth.asked == [64, 128, 256]
    fifth = Timer(times)
    tilejit.autotune(CONFIGS, ["n"], do_bench=fifth)(tilejit.kernel(body))[grid](x, out, 300)
    assert fifth.asked == [], "by default it is"
    from tilejit.runtime import cache
    for path in cache.folder().glob("*" + cache.TUNED):
        path.write_text("{")
    third.asked.clear()
    third.tuner(cache_results=True)[grid](x, out, 300)                       # what cannot be read is measured again
    assert third.asked == [64, 128, 256]
    cache.clear()
    assert not list(cache.folder().iterdir())


def test_heuristics_see_the_configuration_and_earlier_heuristics():
    seen = []

    def even(arguments):
        seen.append((arguments["BLOCK"], arguments["n"]))
        return arguments["n"] % arguments["BLOCK"] == 0

    x, out = data(512)
    k = tilejit.autotune(CONFIGS, ["n"])(tilejit.heuristics({"EVEN": even})(tilejit.kernel(body)))
    k[grid](x, out, 512)
    assert {b for b, _ in seen} == {64, 128, 256} and all(n == 512 for _, n in seen)
    k = tilejit.heuristics({"BLOCK": lambda a: tilejit.next_power_of_2(a["n"]), "EVEN": even})(tilejit.kernel(body))
    out[:] = 0
    k[grid](x, out, 300)
    assert seen[-1] == (512, 300) and np.array_equal(out[:300], 2 * x[:300]) and not out[300:].any()
    k.run(x, out, 300, grid=grid)
    assert np.array_equal(out[:300], 4 * x[:300])


def test_bind_run_and_warmup():
    times = {64: 3.0, 128: 1.0, 256: 2.0}
    timer = Timer(times)
    k = timer.tuner(reset_to_zero=["out"], pre_hook=None)
    k.bench = lambda call, quantiles: call() or 1.0
    x, out = data()
    made = k.warmup(x, out, 300, grid=grid)
    assert [m.metadata.num_threads for m in made] == [32, 64, 128] and not out.any()
    again = k.bind(grid, x, out, 300)
    again(), again()
    assert np.array_equal(out, 4 * x)
    k.run(x, out, 300, grid=grid)
    assert np.array_equal(out, 6 * x)


def test_threads_tune_once():
    x, out = data()
    asked = []

    def bench(call, quantiles):
        asked.append(call())
        return 1.0

    k = tilejit.autotune(CONFIGS, ["n"], do_bench=bench, cache_results=False)(tilejit.kernel(body))
    threads = [threading.Thread(target=lambda: k[grid](x, out, 300)) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(asked) == 3


@pytest.mark.parametrize("make, wanted", [
    (lambda: tilejit.autotune([tilejit.Config({"BLOK": 1})], ["n"])(tilejit.kernel(body)), "configurations: 'BLOK'"),
    (lambda: tilejit.autotune(CONFIGS, ["m"])(tilejit.kernel(body)), "key: 'm'"),
    (lambda: tilejit.autotune(CONFIGS, ["n"], reset_to_zero=["y"])(tilejit.kernel(body)), "'y' is none of"),
    (lambda: tilejit.autotune(CONFIGS, ["n"], prune_configs_by={"top": 1})(tilejit.kernel(body)), "'top' is none of"),
    (lambda: tilejit.autotune(CONFIGS, ["n"], use_cuda_graph=True), "use_cuda_graph"),
    (lambda: tilejit.autotune(CONFIGS, ["n"])(body), "goes above @tilejit.kernel"),
    (lambda: tilejit.heuristics({"BLOK": lambda a: 1})(tilejit.kernel(body)), "heuristics: 'BLOK'"),
    (lambda: tilejit.Config({}, ir_override="x"), "ir_override"),
    (lambda: tilejit.Config({"num_warps": 4}), "num_warps in kwargs"),
    (lambda: tilejit.autotune(CONFIGS, ["n"])(tilejit.kernel(body))[(1,)](*data(), 300, BLOCK=1), "BLOCK: set by")])
def test_misuse_is_named(make, wanted):
    with pytest.raises(tilejit.LaunchError, match=wanted):
        make()


def test_a_key_that_cannot_be_hashed_is_named():
    k = tilejit.autotune(CONFIGS, ["n"])(tilejit.kernel(body))
    with pytest.raises(ArgumentError, match=r"the key n of autotune is \(\[300\], float32"):
        k[(1,)](*data(), [300])


def test_a_call_without_a_grid_is_refused():
    with pytest.raises(tilejit.LaunchError, match=r"launch it with body\[grid\]"):
        tilejit.autotune(CONFIGS, ["n"])(tilejit.kernel(body))(1)


def test_configs_are_values():
    a, b = (tilejit.Config({"A": 1, "B": 2}, num_warps=8) for _ in range(2))
    assert a == b and hash(a) == hash(b) and a != tilejit.Config({"A": 1, "B": 2})
    assert a.all_kwargs() == {"A": 1, "B": 2, "num_warps": 8, "num_ctas": 1} and str(a).startswith("A: 1, B: 2, num_warps: 8")


def test_what_was_chosen_can_be_printed(capsys):
    x, out = data()
    with tilejit.knobs(print_autotune=True):
        Timer({64: 3.0, 128: 1.0, 256: 2.0}).tuner()[grid](x, out, 300)
    assert "tilejit: body for (300, float32, float32): BLOCK: 128" in capsys.readouterr().out


def test_in_the_emulator_clocks_decide(monkeypatch):
    """Nothing can be timed there: a model's clocks stand for time. Arrays hold one launch's results."""
    monkeypatch.setenv("TILEJIT_TARGET", "emulator")
    x, out = data(1024)
    k = tilejit.autotune([tilejit.Config({"BLOCK": b}, num_warps=1) for b in (1024, 32)], ["n"])(tilejit.kernel(body))
    k[grid](x, out, 1024)
    assert np.array_equal(out, 2 * x)
    (times,) = k.timings.values()
    assert k.best_config.kwargs["BLOCK"] == 32 and times[k.configs[0]] > 3 * times[k.configs[1]] > 0


def test_in_the_emulator_more_waves_cost_more(monkeypatch):
    monkeypatch.setenv("TILEJIT_TARGET", "emulator")
    from tilejit.tools.costs import clocks

    x, out = data(32 * 133)
    one, two = (clocks(tilejit.kernel(body), (g,), (x, out, 32 * 133), {"BLOCK": 32, "num_warps": 1}) for g in (132, 133))
    assert two == 2 * one > 0 and not out.any()


def test_check_and_timeline_take_tuned_kernels(monkeypatch):
    x, out = data(64)
    k = tilejit.autotune(CONFIGS, ["n"])(tilejit.kernel(body))
    assert tilejit.check(k, grid, x, out, 64).ok
