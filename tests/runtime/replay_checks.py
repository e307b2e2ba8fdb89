"""Checks of bound launches and of repeated calls over the stub driver; `test_driver.py` runs each in a process of its own."""
from __future__ import annotations

import ctypes
import sys

from stub_driver import (
    FLOAT,
    HALF,
    STREAM,
    Tensor,
    expect,
    fail,
    fake_torch,
    parameter,
    raises,
    setting,
    state,
    stub,
    tensors,
)


def bound():
    """A bound launch repeats itself on the current stream: as a graph, but while a stream is being captured."""
    fake_torch()
    from tilejit.errors import CudaError
    from tilejit.kernels.add import add_kernel

    graphs = ctypes.c_int.in_dll(stub, "stub_graphs")
    x, y, o = tensors(3)
    expect([8, 8, 8, 4])
    repeat = add_kernel.bind((7,), x, y, o, 1000, BLOCK=512)
    assert state.launches == 0 and state.loads == 1
    repeat()
    add_kernel[(1,)](o, o, o, 1000, BLOCK=512)
    repeat()
    assert state.launches == 3 and list(state.grid) == [7, 1, 1] and state.stream == STREAM and graphs.value == 1
    assert [int.from_bytes(parameter(i, 8), "little") for i in range(3)] == [t.address for t in (x, y, o)]
    fail("cuGraphLaunch", 719)
    setting("stub_capturing", 1)
    repeat()
    assert state.launches == 4 and list(state.grid) == [7, 1, 1], "a launch of the kernel: graphs cannot be captured"
    setting("stub_capturing", 0)
    repeat()
    assert state.launches == 5, "what goes wrong with a graph is said by a launch"
    fail("cuLaunchKernelEx", 700)
    raises(CudaError, "add_kernel", repeat)
    fail("", 0)
    del repeat
    assert graphs.value == 0


def bound_options():
    """Streams, empty grids, clusters and dependent launches of bound launches."""
    fake_torch()
    import tilejit
    from tilejit import language as tl
    from tilejit.kernels.add import add_kernel

    x, y, o = tensors(3)
    graphs = ctypes.c_int.in_dll(stub, "stub_graphs")
    add_kernel.bind((7,), x, y, o, 1000, BLOCK=512, stream=3)()
    assert state.stream == 3
    assert add_kernel.bind((0,), x, y, o, 1000, BLOCK=512)() is None and state.launches == 1

    @tilejit.kernel
    def copy(x, y, B: tl.constexpr):
        at = tl.arange(0, B)
        tl.store(y + at, tl.load(x + at))

    repeat = copy.bind((2,), x, y, 1024, num_ctas=2, launch_pdl=False)
    repeat()
    assert list(state.grid) == [4, 1, 1] and list(state.cluster) == [2, 1, 1] and graphs.value == 1
    dependent = copy.bind((2,), x, y, 1024, num_ctas=2, launch_pdl=True)
    dependent()
    assert state.pdl == 1 and graphs.value == 1, "its start overlaps with the end of the launch ahead"


def bound_calls():
    """Calls of host functions: their launches again, in the same arrays; what was zeros is zeros again."""
    fake_torch()
    import tilejit
    from tilejit import kernels
    from tilejit.errors import LaunchError
    from tilejit.kernels.add import add_kernel

    Tensor.zero_ = lambda self: cleared.append(self)
    cleared, runs = [], []

    @tilejit.replayed
    def twice(x, factor=1):
        runs.append(factor)
        part, out = tilejit.zeros_like(x), tilejit.empty_like(x)
        add_kernel[(1,)](x, x, part, 1024, BLOCK=1024)
        add_kernel[(2,)](part, x, out, 1024, BLOCK=1024)
        return out

    (x,) = tensors(1)
    expect([8, 8, 8])
    repeat = twice.bind(x, factor=3)
    assert runs == [3] and state.launches == 2
    out = repeat()
    assert runs == [3] and state.launches == 4 and len(cleared) == 1 and list(state.grid) == [2, 1, 1]
    assert [int.from_bytes(parameter(i, 8), "little") for i in (1, 2)] == [x.address, out.address]
    assert repeat() is out and len(cleared) == 2

    a, b, c = tensors(3, (256, 256), HALF)
    expect([])
    repeat = kernels.matmul.bind(a, b, out=c)
    before = state.launches
    assert repeat() is c and state.launches == before + 1

    ours = tilejit.to_device(__import__("numpy").zeros(1024, "float32"))
    raises(LaunchError, "twice: this call cannot be bound: it allocates zeros that are no tensor", lambda: twice.bind(ours))


def calls():
    """A library call that comes a second time is repeated from then on, with the same parameters; arrays that lie
    elsewhere only change their addresses; none is kept alive. The device's state and the knobs are looked at as always."""
    fake_torch()
    import weakref

    import tilejit
    from tilejit import kernels
    from tilejit.kernels.product.kernel import product_kernel
    from tilejit.ptx.metadata import TensorMapParam

    a, b, c, d = tensors(4, (256, 256), HALF)
    kernels.matmul(a, b, out=c)
    (entry,) = product_kernel.entries.values()
    sizes = [128 if isinstance(p, TensorMapParam) else 4 for p in entry.compiled.metadata.params]
    expect(sizes)

    def seen(*args, out, **options):
        before = state.launches
        assert kernels.matmul(*args, out=out, **options) is out and state.launches == before + 1
        return [parameter(i, size) for i, size in enumerate(sizes)]

    usual, looked = seen(a, b, out=c), tilejit.TensorDescriptor.over
    tilejit.TensorDescriptor.over = None                      # who looks at arguments once more puts descriptors over them
    assert seen(a, b, out=c) == usual and state.stream == STREAM
    other = [seen(a, b, out=d) for _ in range(3)]
    assert other[0] == other[1] == other[2] != usual
    assert seen(a, b, out=c) == usual
    for t in (a, b, c):
        t.address += 0x100000
    moved = seen(a, b, out=c)
    changed = {i for i, (x, y) in enumerate(zip(usual, moved)) if x != y}
    assert changed == {i for i, size in enumerate(sizes) if size == 128}, changed
    assert [int.from_bytes(moved[i][:8], "little") - int.from_bytes(usual[i][:8], "little") for i in changed] == [0x100000] * 3
    told = []
    tilejit.TensorDescriptor.over = looked
    hook = tilejit.hooks.enter(lambda launch: told.append(launch.grid))
    assert seen(a, b, out=c) == moved and len(told) == 1
    tilejit.hooks.remove(hook)
    twice = [seen(a, a, out=c) for _ in range(3)]
    assert twice[0] == twice[1] == twice[2] != moved, "which arrays are one is a fact"
    entry.loaded.device.lost = "gone"
    fail("cuLaunchKernelEx", 700)
    raises(tilejit.CudaError, "gone", lambda: kernels.matmul(a, b, out=c))
    entry.loaded.device.lost = ""
    fail("", 0)
    with tilejit.knobs(launch_blocking=True):
        waits = state.waits
        for _ in range(3):
            kernels.matmul(a, b, out=c)
        assert state.waits == waits + 3
    before, nothing = state.launches, Tensor((0, 256), HALF, 0x90000)
    for _ in range(3):
        kernels.matmul(nothing, b, out=nothing)
    assert state.launches == before, "an empty result"
    gone = weakref.ref(d)
    del d
    assert gone() is None


def replays():
    """A function of the host is repeated with new outputs and temporary arrays, for each set of facts; what it cannot
    repeat runs as it stands."""
    fake_torch()
    import tilejit
    from tilejit.kernels.add import add_kernel

    runs = []

    @tilejit.replayed
    def twice(x, scale=1.0, out=None, *, more=(), flag=None):
        runs.append(x)
        between = tilejit.zeros_like(x) if flag == "zeros" else tilejit.empty_like(x)
        out = tilejit.empty_like(x) if out is None else out
        n = x.shape[0]
        add_kernel[(n // 16,)](x, more[0] if more else x, between, n, BLOCK=512)
        add_kernel[(n // 16,)](between, x, out, n, BLOCK=512)
        return (out, None, x) if flag == "tuple" else between if flag == "between" else out if flag != "other" else 7

    def told(call, count=2):
        before = state.launches
        expect([8, 8, 8])
        result = call()
        assert state.launches == before + count
        expect([])
        return result, [int.from_bytes(parameter(i, 8), "little") for i in range(3)]

    x, y, o = tensors(3)
    k = add_kernel[(1,)](x, y, o, 1024, BLOCK=512)
    where = {getattr(p, "arg", None) or p.expr[1]: i for i, p in enumerate(k.metadata.params)}
    results = [told(lambda: twice(x)) for _ in range(4)]
    assert len(runs) == 2 and len({r.address for r, _ in results}) == 4
    for out, seen in results:
        assert seen[where["out"]] == out.address and seen[where["y"]] == x.address and list(state.grid) == [64, 1, 1]
        assert seen[where["x"]] not in (out.address, x.address) and out.shape == (1024,)
    moved = Tensor((1024,), FLOAT, 0x7000)
    out, seen = told(lambda: twice(moved))
    assert len(runs) == 2 and seen[where["y"]] == moved.address
    for facts in (Tensor((2048,), FLOAT, 0x7000), Tensor((1024,), HALF, 0x7000), Tensor((1024,), FLOAT, 0x7004)):
        before = len(runs)
        for _ in range(4):
            out, seen = told(lambda: twice(facts))
            assert out.dtype is facts.dtype and out.shape == facts.shape and list(state.grid)[0] == facts.shape[0] // 16
        assert len(runs) == before + 2
    for call, same in ((lambda: twice(x, out=o), lambda r: r is o), (lambda: twice(x, 0.0), None), (lambda: twice(x, -0.0), None),
                       (lambda: twice(x, 2), None), (lambda: twice(x, more=(y,)), None), (lambda: twice(x, more=(x,)), None),
                       (lambda: twice(x, flag="tuple"), lambda r: type(r) is tuple and r[1] is None and r[2] is x),
                       (lambda: twice(x, flag="zeros"), None), (lambda: twice(x, flag="between"), lambda r: r is not x)):
        before = len(runs)
        for _ in range(4):
            out, _ = told(call)
            assert same is None or same(out)
        assert len(runs) == before + 2
    before = len(runs)
    for _ in range(4):
        assert told(lambda: twice(x, flag="other"))[0] == 7
    assert len(runs) == before + 4 and list(twice.calls.refused) == [
        "it returns what is neither an argument nor an array that it allocated"]

    @tilejit.replayed
    def elsewhere(x):
        runs.append(x)
        add_kernel[(1,)](x, y, x, 1024, BLOCK=512)

    @tilejit.replayed
    def outer(x):
        runs.append(x)
        return twice(twice(x))

    for fn, count in ((elsewhere, 1), (outer, 4)):
        before = len(runs)
        for _ in range(4):
            told(lambda: fn(x), count)
        assert runs[before:].count(x) == (4 if fn is elsewhere else 3), [r is x for r in runs[before:]]
    x.requires_grad = True
    before = len(runs)
    for _ in range(2):
        told(lambda: outer(x), 4)
        told(lambda: twice(x, more=(x,)))
    assert len(runs) >= before + 4, "a gradient is asked for: as it stands"
    x.requires_grad = False
    hook = tilejit.hooks.enter(lambda launch: told_of.append(launch.name))
    told_of: list = []
    told(lambda: outer(x), 4)
    assert told_of == ["add_kernel"] * 4
    tilejit.hooks.remove(hook)
    raises(tilejit.LaunchError, "expected an array", lambda: twice([1.0]))
    hooked = []
    tuned = tilejit.autotune([tilejit.Config({"BLOCK": 512}, pre_hook=lambda named: hooked.append(named["n"]))], key=[])(add_kernel)

    @tilejit.replayed
    def with_hook(x):
        tuned[(1,)](x, x, x, 1024)

    for _ in range(4):
        with_hook(x)
    assert hooked == [1024] * 4 and list(with_hook.calls.refused) == ["a configuration has a hook of its own"]


if __name__ == "__main__":
    globals()[sys.argv[1]]()
