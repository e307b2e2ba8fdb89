"""Checks of measuring in a process of its own, over the stub driver; `test_trials.py` runs each in its own process.

A launch of the stub adds a number to the first element of `out` (1, or what STUB_KERNELS says for its threads)."""
from __future__ import annotations

import os
import sys
import time

import numpy as np

import tilejit
import tilejit.language as tl


@tilejit.kernel
def body(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n), at < n)


@tilejit.kernel
def follows(addresses, out, BLOCK: tl.constexpr):
    at = tl.load(addresses).to(tl.pointer_type(tl.float32)) + tl.arange(0, BLOCK)
    tl.store(out + tl.arange(0, BLOCK), tl.load(at))


CONFIGS = [tilejit.Config({"BLOCK": 64}, num_warps=w) for w in (1, 2, 4, 8)]
BAD = [tilejit.Config({"BLOCK": 64}, num_warps=w) for w in (16, 32)]


def plant(**what):
    """What launches of so many warps do: w1="hang"."""
    os.environ["STUB_KERNELS"] = " ".join(f"{32 * int(w[1:])}={v}" for w, v in what.items())


def arrays():
    return tilejit.to_device(np.arange(64, dtype=np.float32)), tilejit.zeros(64, "float32")


def tuned(configs, *call, **options):
    k = tilejit.autotune(configs, ["n"], cache_results=False, **options)(body)
    k[(1,)](*(call or (*arrays(), 64)))
    (times,), (failures,), (notes,) = k.timings.values(), k.failures.values(), k.notes.values()
    return k, times, {c.num_warps: str(e) for c, e in failures.items()}, notes


def planted():
    """A configuration that hangs, one that breaks the context and one that computes something else are named; the
    others are measured, and this process goes on."""
    plant(w2="hang", w4="700", w8="2")
    began = time.perf_counter()
    x, out = arrays()
    no_tile = tilejit.Config({"BLOCK": 100})
    k, times, failures, notes = tuned([no_tile, *CONFIGS, *BAD[:1]], x, out, 64, check=True, timeout=1.0)
    assert time.perf_counter() - began < 20
    assert set(times) == {CONFIGS[0], BAD[0]} and k.best_config == CONFIGS[0] and times[BAD[0]] == 8.0, times
    assert "powers of two" in str(k.failures[next(iter(k.failures))][no_tile])
    assert failures[2] == "hung: no end within 1 s; its process was ended", failures
    assert failures[4].startswith("faulted: DriverError: the context of GPU 0 was lost (last launch: body)"), failures
    assert failures[8].startswith("wrong: out[0] is 2, the first configuration has 1 (1 of 64 differ"), failures
    assert notes == [] and "-  BLOCK: 64, num_warps: 2, num_ctas: 1: hung" in k.report()
    assert out.numpy()[0] == 1.0, "trials ran on copies; one launch ran on the arrays themselves"
    k[(1,)](x, out, 64)
    assert out.numpy()[0] == 2.0


def nothing_works():
    plant(w1="hang", w2="719")
    try:
        tuned(CONFIGS[:2], timeout=0.5)
    except tilejit.AutotuneError as error:
        assert "hung" in str(error) and "faulted" in str(error) and "none of the 2" in str(error)
    else:
        raise AssertionError


def the_first_stands_alone():
    plant(w1="3")
    _, times, failures, notes = tuned(CONFIGS, check=True)
    assert len(times) == 1 and len(failures) == 3 and "it may be the wrong one" in notes[0]


def hooks():
    """What hooks and `reset_to_zero` do to arrays, every launch of a trial finds."""
    plant()
    seen = []

    def five(arguments):
        seen.append(arguments["BLOCK"])
        arguments["out"].copy_from(np.full(64, 5, np.float32))

    configs = [tilejit.Config(c.kwargs, num_warps=c.num_warps, pre_hook=five) for c in CONFIGS]
    x, out = arrays()
    k, times, failures, _ = tuned(configs, x, out, 64, check=0.01)
    assert len(times) == 4 and not failures and out.numpy()[0] == 6 and len(seen) >= 9
    out.copy_from(np.full(64, 7, np.float32))
    k, times, failures, _ = tuned(CONFIGS, x, out, 64, reset_to_zero=["out"], check=True)
    assert len(times) == 4 and not failures and out.numpy()[0] == 1
    told = []
    tuned(CONFIGS[:2], post_hook=lambda a, exception: told.append((a["BLOCK"], exception)))
    assert told == [(64, None)] * 2


def inside():
    """What cannot go into another process is measured in this one, and the report says why."""
    import types

    from tilejit.tools import costs

    plant()
    costs.cost = lambda call, spend: call() or 1.0
    _, times, _, notes = tuned(CONFIGS, isolate=False, check=True)
    assert len(times) == 4 and notes == ["measured in this process: isolate is False"], (times, notes)
    with tilejit.knobs(isolate=False):
        assert tuned(CONFIGS)[3] == ["measured in this process: isolate is False"]
    assert tuned(CONFIGS, do_bench=lambda call, quantiles: call() or 1.0)[3] == [
        "measured in this process: do_bench is the caller's"]
    from tilejit.tools import autotune
    autotune.cost = costs.cost
    k = tilejit.autotune([tilejit.Config({"BLOCK": b}) for b in (32, 64)], [], cache_results=False)(follows)
    k[(1,)](tilejit.to_device(np.zeros(1, np.int64)), arrays()[1])
    assert list(k.notes.values()) == [["measured in this process: the kernel follows addresses that lie in arrays"]]
    assert types


def one_process_for_many():
    """The next search finds the process of the one before, and a new one where that has ended."""
    from tilejit.tools import trials

    plant()
    assert len(tuned(CONFIGS)[1]) == 4
    (child,) = trials._idle
    first = child.process.pid
    assert len(tuned(CONFIGS)[1]) == 4 and trials._idle[0].process.pid == first
    trials._idle[0].process.kill()
    assert len(tuned(CONFIGS)[1]) == 4 and trials._idle[0].process.pid != first


def tritons_tuner():
    """The same under Triton's names."""
    import tilejit.compat.triton as triton

    plant(w2="hang", w4="700")
    kernel = triton.jit(body.fn)
    configs = [triton.Config({"BLOCK": 64}, num_warps=w) for w in (1, 2, 4, 8)]
    k = triton.autotune(configs, key=["n"])(kernel)
    k.timeout = 1.0
    x, out = arrays()
    k[(1,)](x, out, 64)
    assert k.best_config is configs[0] and out.numpy()[0] == 1.0
    assert [k.configs_timings[c][0] for c in configs] == [0.5, float("inf"), float("inf"), 4.0]
    assert "hung" in str(k.failures[configs[1]]) and "faulted" in str(k.failures[configs[2]])


if __name__ == "__main__":
    globals()[sys.argv[1]]()
