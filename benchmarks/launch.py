"""Host time of a call, in microseconds: launches and ready kernels beside Triton, torch and the bare driver.

    PYTHONPATH=. python benchmarks/gpu_smoke.py --only launch

All contenders of all cases run in rounds, one after the other, 50 calls at a time (they fit the launch queue), behind
as many that are not timed (arrays and code are in the caches); figures are medians over rounds, so what slows the host
for a while slows no case alone. A round is timed on one core, where the driver's call was shortest just before: on a
shared host some cores are, for a while, a third slower than the rest. Absolute goals are of a machine on which
cuLaunchKernel took 4.6 us (`DRIVER`): beside each stands what it is of that call, and what our call is of it here, so
that a slow CPU is seen as such. `other addresses`: each call gets other arrays of the same facts, of 64 sets. `fresh`:
the function allocates its result. `bound`: repeated as it was (`bind`). `new shape`: the first call with sizes that
were not seen, of a kernel that is loaded.
"""
from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

CALLS, ROUNDS, SETS = 50, 61, 64
#: Microseconds of cuLaunchKernel where the goals were set.
DRIVER = 4.6
#: case -> microseconds that it should take at most; a text is a peer, than which it should take at most 2 more
GOALS: dict[str, float | str] = {
    "2 arrays": 6, "3 arrays": 6, "3 arrays, other addresses": 6, "3 descriptors": 6, "3 descriptors, made at each call": 9,
    "bound": 3.5, "softmax, fresh": "torch", "add, fresh": "torch", "rmsnorm, fresh": "torch", "layernorm, fresh": "torch",
    "matmul, fresh": "torch", "matmul, fresh, other addresses": "torch", "matmul, out": "torch", "matmul, bound": 6,
    "attention, fresh": "torch"}

#: A call, or several to be made in turn.
Call = Callable[[], Any] | list[Callable[[], Any]]


def once(fn: Call, calls: int = CALLS) -> float:
    """Microseconds of a call."""
    import torch

    fns = fn if isinstance(fn, list) else [fn]
    fns = (fns * calls)[:calls]
    for f in fns:
        f()
    torch.cuda.synchronize()
    t = time.perf_counter()
    for f in fns:
        f()
    return (time.perf_counter() - t) / calls * 1e6


def cycling(fn: Callable[..., Any], sets: list[tuple]) -> Call:
    """Calls with one of the argument sets each."""
    return [lambda args=args: fn(*args) for args in sets]


def bare(entry: Any, flat: tuple) -> Call:
    """The driver's call alone, with everything ready."""
    frame, loaded = entry.packer.frame(flat), entry.loaded
    config, call, function = loaded.configure((1, 1, 1), 0), loaded.call, loaded.function
    address = frame.address
    return lambda kept=frame: call(config, function, address, 0)


def bare_plain(entry: Any, flat: tuple) -> Call:
    """The same by cuLaunchKernel."""
    from cuda.bindings import driver

    frame, loaded = entry.packer.frame(flat), entry.loaded
    call, function, address, stream = driver.cuLaunchKernel, loaded.function, frame.address, driver.CUstream(0)
    threads, shared = loaded.threads, loaded.shared
    return lambda kept=frame: call(function, 1, 1, 1, threads, 1, 1, shared, stream, address, 0)


def settle(fn: Call, cores: Iterable[int]) -> tuple[float, float]:
    """Keep this thread on that one of the cores where fn is shortest. Microseconds of a call there, and on the slowest core."""
    times: dict[int, float] = {}
    for core in cores:
        os.sched_setaffinity(0, {core})
        times[core] = statistics.median(once(fn) for _ in range(5))
    best = min(times, key=lambda core: times[core])
    os.sched_setaffinity(0, {best})
    return times[best], max(times.values())


def cases() -> Iterator[tuple[str, dict[str, Call]]]:
    """Case -> contenders; the first is ours."""
    import torch
    from peers import triton_twin

    from tilejit import TensorDescriptor, kernel, kernels
    from tilejit import language as tl
    from tilejit.kernels.add import add_kernel

    @kernel
    def copy_one(x, y, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at, at < n), at < n)

    def new(*shape: int, dtype: Any = torch.bfloat16) -> Any:
        return torch.randn(*shape, device="cuda").to(dtype)

    def sets(count: int, *shape: int) -> list[tuple]:
        return [tuple(new(*shape) for _ in range(count)) for _ in range(SETS)]

    x, y, o = (new(1024, dtype=torch.float32) for _ in range(3))
    trios = [tuple(torch.empty_like(x) for _ in range(3)) for _ in range(SETS)]
    a, b, c = (new(64, 64) for _ in range(3))
    twin, twin_matmul = triton_twin(add_kernel), triton_twin(kernels.matmul_kernel, ("M", "N", "K"))
    bound = add_kernel.bind((1,), x, y, o, 1024, BLOCK=1024)
    compiled = add_kernel[(1,)](x, y, o, 1024, BLOCK=1024)
    entry = next(e for e in add_kernel.entries.values() if e.compiled is compiled)
    flat = (x, y, o, 1024, 1024)
    plain: dict[str, Call] = {"cuLaunchKernel": bare_plain(entry, flat)}
    theirs: dict[str, Call] = {"torch": lambda: torch.add(x, y, out=o), "driver": bare(entry, flat), **plain}
    if twin:
        theirs["triton"] = lambda: twin[(1,)](x, y, o, 1024, BLOCK=1024)
    yield "2 arrays", {"ours": lambda: copy_one[(1,)](x, y, 1024, BLOCK=1024), "torch": lambda: y.copy_(x), **plain}
    yield "3 arrays", {"ours": lambda: add_kernel[(1,)](x, y, o, 1024, BLOCK=1024), **theirs}
    yield "3 arrays, other addresses", {
        "ours": [lambda x=x, y=y, o=o: add_kernel[(1,)](x, y, o, 1024, BLOCK=1024) for x, y, o in trios], **plain,
        **({"triton": [lambda x=x, y=y, o=o: twin[(1,)](x, y, o, 1024, BLOCK=1024) for x, y, o in trios]} if twin
           else {})}
    yield "bound", {"ours": bound, **theirs}
    sizes = dict(BM=64, BN=64, BK=64, GROUP=8, A_ROWS=True, B_ROWS=False, ACTIVATION=None, num_warps=4, num_stages=3)
    ours = TensorDescriptor.from_tensor
    descs = [ours(t, (64, 64)) for t in (a, b, c)]
    made: dict[str, Call] = {"ours": lambda: kernels.matmul_kernel[(1,)](
        ours(a, (64, 64)), ours(b, (64, 64)), ours(c, (64, 64)), None, 64, 64, 64, **sizes), **plain}
    ready: dict[str, Call] = {"ours": lambda: kernels.matmul_kernel[(1,)](*descs, None, 64, 64, 64, **sizes), **plain}
    if twin_matmul:
        from triton.tools.tensor_descriptor import TensorDescriptor as Theirs

        them = [Theirs(t, [64, 64], [64, 1], [64, 64]) for t in (a, b, c)]
        ready["triton"] = lambda: twin_matmul[(1,)](*them, None, 64, 64, 64, **sizes)
        made["triton"] = lambda: twin_matmul[(1,)](*[Theirs.from_tensor(t, [64, 64]) for t in (a, b, c)], None, 64, 64,
                                                   64, **sizes)
    yield "3 descriptors", ready
    yield "3 descriptors, made at each call", made

    m, w = new(64, 64), new(64)
    pairs, big = sets(2, 256, 256), (new(256, 256), new(256, 256), new(256, 256))
    functional = torch.nn.functional
    yield "allocation", {"ours": lambda: torch._C._dynamo.guards._empty_strided_cuda((64, 64), (64, 1), torch.bfloat16),
                         "empty": lambda: torch.empty((64, 64), dtype=torch.bfloat16, device="cuda"),
                         "empty_like": lambda: torch.empty_like(m)}
    yield "softmax, fresh", {"ours": lambda: kernels.softmax(m), "torch": lambda: torch.softmax(m, 1)}
    yield "add, fresh", {"ours": lambda: kernels.add(m, m), "torch": lambda: torch.add(m, m)}
    yield "rmsnorm, fresh", {"ours": lambda: kernels.rmsnorm(m, w), "torch": lambda: functional.rms_norm(m, (64,), w)}
    yield "layernorm, fresh", {"ours": lambda: kernels.layernorm(m, w, w),
                               "torch": lambda: functional.layer_norm(m, (64,), w, w)}
    p, q, r = big
    yield "matmul, out", {"ours": lambda: kernels.matmul(p, q, out=r), "torch": lambda: torch.matmul(p, q, out=r)}
    yield "matmul, bound", {"ours": kernels.matmul.bind(p, q, out=r), "torch": lambda: torch.matmul(p, q, out=r),
                            **plain}
    yield "matmul, fresh", {"ours": lambda: kernels.matmul(p, q), "torch": lambda: torch.matmul(p, q)}
    yield "matmul, fresh, other addresses", {"ours": cycling(kernels.matmul, pairs),
                                             "torch": cycling(torch.matmul, pairs)}
    h = new(1, 128, 4, 64)
    t = h.transpose(1, 2)
    yield "attention, fresh", {"ours": lambda: kernels.attention(h, h, h),
                               "torch": lambda: functional.scaled_dot_product_attention(t, t, t)}
    g = new(64, 64).requires_grad_()
    yield "softmax, gradient wanted", {"ours": lambda: kernels.softmax(g), "torch": lambda: torch.softmax(g, 1)}
    u = new(256, 256).requires_grad_()
    yield "matmul, gradient wanted", {"ours": lambda: kernels.matmul(u, q), "torch": lambda: torch.matmul(u, q)}
    ones = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)

    def both(fn: Callable[..., Any]) -> Call:
        return lambda: fn().backward(ones)

    yield "softmax, with backward", {"ours": both(lambda: kernels.softmax(g)), "torch": both(lambda: torch.softmax(g, 1))}


def new_shapes() -> tuple[float, float, float]:
    """Microseconds of choosing a plan for sizes that were not seen, of the first call with them (which chooses, too), and
    of the second one; the kernels that they lead to are loaded."""
    import torch

    from tilejit import kernels
    from tilejit.kernels.chip import current
    from tilejit.kernels.planning import choose
    from tilejit.kernels.problem import Problem

    times: tuple[list[float], ...] = ([], [], [])
    b = torch.randn(512, 1024, device="cuda").bfloat16().T
    for rows in range(2048, 2048 + 16 * 40, 16):
        x = torch.randn(rows, 512, device="cuda").bfloat16()
        problem = Problem(rows, 1024, 512, 2, True, False, (1024, 1024, 2048))
        for kept, call in zip(times, (lambda p=problem: choose.__wrapped__(p, current(0)),
                                      *[lambda x=x: kernels.matmul(x, b.T)] * 2)):
            torch.cuda.synchronize()
            t = time.perf_counter()
            call()
            kept.append((time.perf_counter() - t) * 1e6)
    choosing, first, second = map(statistics.median, times)
    return choosing, first, second


def launch(out: str) -> list[str]:
    """Print and record all; what missed its goal."""
    from peers import runs
    from records import record, row

    table, missed = [], []
    found = {case: {n: fn for n, fn in each.items() if runs(n, fn if callable(fn) else fn[0])} for case, each in cases()}
    taken, calls, cores = [], [], os.sched_getaffinity(0)
    for _ in range(3 + ROUNDS):
        calls.append(settle(found["3 arrays"]["driver"], cores))  # threads that torch has started by now keep all cores
        taken.append({case: [once(fn) for fn in each.values()] for case, each in found.items()})
    del taken[:3]
    fast, slow = (statistics.median(each) for each in zip(*calls))
    print(f"  the driver's call: {fast:.2f} us on the core that a round is timed on, {slow:.2f} on the slowest")
    for case, contenders in found.items():
        names, rounds = [*contenders], [r[case] for r in taken]
        times = {n: statistics.median(r[i] for r in rounds) for i, n in enumerate(names)}
        goal = GOALS.get(case)
        limit = times.get(goal, 0.0) + 2 if isinstance(goal, str) else goal
        late = limit is not None and times["ours"] > limit
        missed += [f"{case}: {times['ours']:.1f} us, the goal is {limit:.1f}"] if late else []
        aim = f"   goal {limit:.1f}{' MISSED' if late else ''}" if limit else ""
        if limit and "cuLaunchKernel" in times:
            aim += f", {limit / DRIVER:.2f} of the driver's call; here {times['ours'] / times['cuLaunchKernel']:.2f}"
        print(f"  {case:34s}" + "".join(f" {n} {t:6.2f}" for n, t in times.items()) + aim, flush=True)
        for i, n in enumerate(names[1:], 1):
            low, middle, high = statistics.quantiles((r[i] / r[0] for r in rounds), n=4)
            table.append(row("launch", case, "", times["ours"], n, times[n], "us", middle, (low, high)))
    choosing, first, second = new_shapes()
    print(f"  matmul of a new shape: choosing {choosing:.0f} us (goal 300), the first call {first:.0f}, the second {second:.0f}")
    missed += [f"choosing for a new shape: {choosing:.0f} us"] if choosing > 300 else []
    table.append(row("launch", "matmul, new shape", "", first, "second call", second, "us", second / first, (0, 0)))
    table.append(row("launch", "choosing for a new shape", "", choosing, "goal", 300, "us", 300 / choosing, (0, 0)))
    record("launch", table, out)
    return missed
