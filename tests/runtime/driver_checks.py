"""Checks of the launch path over the stub driver; `test_driver.py` runs each in a process of its own."""
from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
import time
import types

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


def launch():
    """Grid, threads, stream and parameters arrive; a second launch compiles, loads and encodes nothing."""
    fake_torch()
    import tilejit
    from tilejit.kernels.add import add_kernel

    x, y, o = tensors(3)
    expect([8, 8, 8, 4])
    assert tilejit.multiprocessors() == tilejit.multiprocessors(0) == tilejit.multiprocessors(-1) == 132
    k = add_kernel[lambda meta: (tilejit.cdiv(1000, meta["BLOCK"]), 2)](x, y, o, 1001, BLOCK=512)
    assert list(state.grid) == [2, 2, 1] and list(state.block) == [k.metadata.num_threads, 1, 1]
    assert state.stream == STREAM and state.launches == state.loads == 1
    named = dict(zip((getattr(p, "arg", None) or p.expr[1] for p in k.metadata.params), range(4)))
    for name, t in (("x", x), ("y", y), ("out", o)):
        assert struct.unpack("<Q", parameter(named[name], 8)) == (t.address,), name
    assert struct.unpack("<i", parameter(named["n"], 4)) == (1001,)
    add_kernel[(3,)](x, y, o, 1003, BLOCK=512, stream=5)
    assert state.loads == 1 and state.stream == 5 and list(state.grid) == [3, 1, 1]
    assert struct.unpack("<i", parameter(named["n"], 4)) == (1003,)
    add_kernel[(3,)](x, y, o, 1008, BLOCK=512)                  # a multiple of 16: another signature
    assert state.loads == 2
    add_kernel[(3,)](Tensor((1024,), FLOAT, 0x10004), y, o, 1003, BLOCK=512)
    assert state.loads == 3
    before = state.launches
    assert add_kernel[(0,)](x, y, o, 1003, BLOCK=512) is None and state.launches == before
    stream = types.SimpleNamespace(__cuda_stream__=lambda: (0, 99))
    add_kernel[(3,)](x, y, o, 1003, BLOCK=512, stream=stream)
    assert state.stream == 99


def merged():
    """Grids of many small programs have several programs a block, which are told how many there are: in launches of
    every kind, and by the launcher of either size of grid."""
    fake_torch()
    from tilejit.kernels.add import add_kernel

    x, y, o = tensors(3)

    def seen(n):
        call = expect([8, 8, 8, 4, 4] if n >= 4224 else [8, 8, 8, 4])
        made.append(add_kernel[(n,)](x, y, o, 1001, BLOCK=64))
        return state.grid[0], struct.unpack("<i", parameter(4, 4))[0] if n >= 4224 else call

    made = []
    for n in (4224, 4223, 4230, 4223, 4230, 4224, 9, 5000):
        assert seen(n) == ((n, None) if n < 4224 else (-(-n // 8), n)), n
    assert state.loads == 2 and len({id(m) for m in made}) == 1 and made[0].metadata.mergeable == 8
    before = state.launches
    repeat = add_kernel.bind((4231,), x, y, o, 1001, BLOCK=64)
    expect([8, 8, 8, 4, 4])
    repeat()
    assert (state.grid[0], struct.unpack("<i", parameter(4, 4)), state.launches) == (529, (4231,), before + 1)
    expect([8, 8, 8, 4])
    add_kernel[(9,)](x, y, o, 1001, BLOCK=32)
    setting("stub_capturing", 1)
    add_kernel[(4225,)](x, y, o, 1001, BLOCK=32)
    assert list(state.grid) == [4225, 1, 1], "nothing is loaded in a capture"
    setting("stub_capturing", 0)
    add_kernel.warmup(x, y, o, 1001, BLOCK=32, grid=(4224,))
    assert state.loads == 4
    setting("stub_capturing", 1)
    expect([8, 8, 8, 4, 4])
    add_kernel[(4225,)](x, y, o, 1001, BLOCK=32)
    assert list(state.grid) == [265, 1, 1]
    setting("stub_capturing", 0)


def lengths():
    """Rows that begin anywhere have a kernel for each span of lengths, by launchers too; one kernel is what is returned."""
    fake_torch()
    from tilejit.kernels.rows.softmax import softmax_kernel

    x, out = tensors(2)
    expect([8, 8, 4, 4, 4])

    def seen(n):
        made.append(softmax_kernel[(3,)](x, out, n, n, n, BLOCK=8192, num_warps=4))
        return state.block[0], struct.unpack("<i", parameter(2, 4))[0]

    made = []
    for n in (1001, 1003, 6001, 1005, 2001, 6003, 1001, 2003, 4001, 6001, 5117, 5119, 1001):
        warps = 1 if n < 1278 else 2 if n < 2558 else 4
        assert seen(n) == (32 * warps, n), (n, state.block[0])
    assert state.loads == 7 and len({id(m) for m in made}) == 1
    before = state.loads
    softmax_kernel.bind((3,), x, out, 1005, 1005, 1005, BLOCK=8192, num_warps=4)()
    assert state.block[0] == 32 and state.loads == before
    setting("stub_capturing", 1)
    assert seen(3001)[0] == 128 and state.loads == before, "nothing is loaded in a capture"
    setting("stub_capturing", 0)


def room():
    """The driver knows how many clusters run at once; it is asked once a size."""
    import tilejit

    assert tilejit.clusters(1) == 132 and tilejit.clusters(8, -1) == 16
    assert tilejit.clusters(8) == tilejit.clusters(8, 0) == 60 and state.loads == 1


def descriptors():
    """Tensor maps are encoded once an address, and reach the launch as 128 aligned bytes."""
    fake_torch()
    import tilejit
    from tilejit.kernels.product.plain import matmul_kernel
    from tilejit.ptx.metadata import TensorMapParam

    a, b, c, d = tensors(4, (128, 64), HALF)

    def run(first):
        ds = [tilejit.TensorDescriptor.from_tensor(t, (64, 64)) for t in (first, b, c)]
        return matmul_kernel[(1,)](*ds, None, 128, 128, 64, BM=64, BN=64, BK=64, GROUP=8, A_ROWS=True, B_ROWS=False,
                                   ACTIVATION=None, num_warps=4, num_stages=3)

    expect([4, 4, 4, 128, 128, 128])
    k = run(a)
    maps = [i for i, p in enumerate(k.metadata.params) if isinstance(p, TensorMapParam)]
    expect([128 if i in maps else 4 for i in range(len(k.metadata.params))])
    run(a)
    assert len(maps) == 3 and state.encodes == 6 and state.shared == k.metadata.shared_bytes
    where = {k.metadata.params[i].base_arg: struct.unpack("<16Q", parameter(i, 128)) for i in maps}
    assert where["a_desc"][0] == a.address and where["a_desc"][2] == 2 and where["a_desc"][5:7] == (64, 128)
    run(d)
    assert state.encodes == 6 and state.loads == 1, "another address is a word of the map"
    assert struct.unpack("<Q", parameter(next(i for i in maps if k.metadata.params[i].base_arg == "a_desc"), 8)) == (
        d.address,)


def rank_one():
    """A tensor of rank 1 has no strides, but the driver wants a pointer to some."""
    from tilejit.runtime import driver

    driver.device(0)
    words = struct.unpack("<16Q", driver.encode_tensor_map(0x1000, "fp16", (100,), (1,), (64,), 0, "zero"))
    assert words[0] == 0x1000 and words[2] == 1 and words[5] == 100 and words[10] == 64


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


def cupy_arrays():
    """Launches over cupy's arrays go to cupy's current stream, whatever torch's is; nothing is waited for."""
    fake_torch()
    import numpy as np

    class ndarray:
        dtype, shape, strides, itemsize = np.dtype("f4"), (1024,), (4,), 4

        def __init__(self, address):
            self.data, self.device = types.SimpleNamespace(ptr=address), types.SimpleNamespace(id=0)

    current = types.SimpleNamespace(ptr=0x55)
    sys.modules["cupy"] = types.SimpleNamespace(
        ndarray=ndarray, cuda=types.SimpleNamespace(get_current_stream=lambda: current))
    import tilejit
    from tilejit.kernels.add import add_kernel

    x, y, o = (ndarray(0x10000 * (i + 1)) for i in range(3))
    repeat = add_kernel.bind((1,), x, y, o, 1024, BLOCK=1024)
    for stream in (0x55, 0x56, 0x57):
        current.ptr = stream
        add_kernel[(1,)](x, y, o, 1024, BLOCK=1024)
        assert state.stream == stream and state.waits == 0
        repeat()
        assert state.stream == stream
        add_kernel[(1,)](*tensors(3), 1024, BLOCK=1024)
        assert state.stream == STREAM
        add_kernel[(1,)](x, y, o, 1024, BLOCK=1024, stream=9)
        assert state.stream == 9
    assert tilejit.TensorDescriptor.from_tensor(x, (64,)).address == 0x10000


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


def arrays():
    """Our own arrays: copies there and back, zeros, and freed memory."""
    import numpy as np

    import tilejit
    import tilejit.language as tl

    x = np.arange(12, dtype=np.float16).reshape(3, 4)
    a = tilejit.to_device(x)
    assert a.device == 0 and (a.numpy() == x).all() and "gpu 0" in repr(a)
    interface = a.__cuda_array_interface__
    assert interface["data"] == (a.address, False) and interface["typestr"] == "<f2" and interface["shape"] == (3, 4)
    assert (tilejit.zeros(5, tl.float32).numpy() == 0).all() and tilejit.empty((0,), tl.int8).numpy().size == 0

    class Foreign:
        def __init__(self, interface):
            self.__cuda_array_interface__ = interface

    info = tilejit.array_info(Foreign({**interface, "strides": (8, 2), "stream": 1}))
    assert (info.address, info.strides, info.device, state.waits) == (a.address, (4, 1), 0, 1)
    a_address = a.address
    assert state.allocated == 1
    del a
    assert state.allocated == 0 and a_address
    d = tilejit.TensorDescriptor.from_tensor(tilejit.to_device(x), (2, 4))
    assert d.device == 0 and not d.tma


def errors():
    """Errors of the driver name the call, the kernel and its launch; others leave the context alive."""
    fake_torch()
    import tilejit
    from tilejit.kernels.add import add_kernel
    from tilejit.runtime import driver
    from tilejit.runtime.driver import DriverError

    x, y, o = tensors(3)
    fail("cuModuleLoadDataEx", 222)
    raises(DriverError, "the stub refuses this image", lambda: add_kernel[(1,)](x, y, o, 1000, BLOCK=512))
    raises(DriverError, "driver 580", lambda: add_kernel[(1,)](x, y, o, 1000, BLOCK=512))
    fail("", 0)
    add_kernel[(1,)](x, y, o, 1000, BLOCK=512)
    fail("cuLaunchKernelEx", 701)
    error = raises(tilejit.CudaError, "launching add_kernel with grid (4, 1, 1)",
                   lambda: add_kernel[(4,)](x, y, o, 1000, BLOCK=512))
    assert error.code == 701 and error.name == "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
    fail("", 0)
    add_kernel[(4,)](x, y, o, 1000, BLOCK=512)
    assert state.launches == 2
    fail("cuMemAlloc", 2)
    raises(tilejit.CudaError, "allocating", lambda: tilejit.empty(10, tilejit.language.float32))
    host, other = Tensor((1024,), FLOAT, 0x90000, -1), Tensor((1024,), FLOAT, 0x90000, 1)
    raises(TypeError, "argument 'x' is on the cpu", lambda: add_kernel[(1,)](host, host, host, 1000, BLOCK=512))
    raises(TypeError, "'y' on gpu 1", lambda: add_kernel[(1,)](x, other, o, 1000, BLOCK=512))
    big = driver.device(0).max_shared + 1
    raises(tilejit.LaunchError, "shared memory", lambda: driver.LoadedKernel(driver.device(0), b"", "k", 32, big))
    setting("stub_capturing", 1)
    raises(tilejit.LaunchError, "before the capture", lambda: add_kernel[(1,)](x, y, o, 1000, BLOCK=256))
    add_kernel[(4,)](x, y, o, 1000, BLOCK=512)                  # loaded already: may be captured


def lost():
    """After an error that destroys the context every call raises at once and names the kernel."""
    fake_torch()
    import tilejit
    from tilejit.kernels.add import add_kernel
    from tilejit.runtime import driver

    x, y, o = tensors(3)
    add_kernel[(1,)](x, y, o, 1000, BLOCK=512)
    fail("cuCtxSynchronize", 700)
    error = raises(tilejit.CudaError, "last launch: add_kernel", driver.device(0).synchronize)
    assert error.code == 700
    fail("", 0)
    launches = state.launches
    raises(tilejit.CudaError, "was lost", lambda: add_kernel[(1,)](x, y, o, 1000, BLOCK=512))
    raises(tilejit.CudaError, "was lost", lambda: tilejit.empty(1, tilejit.language.float32))
    assert state.launches == launches


def blocking():
    """TILEJIT_LAUNCH_BLOCKING waits for each launch."""
    fake_torch()
    import tilejit
    from tilejit.kernels.add import add_kernel

    x, y, o = tensors(3)
    add_kernel[(1,)](x, y, o, 1000, BLOCK=512)
    assert state.waits == 0
    with tilejit.knobs(launch_blocking=True):
        add_kernel[(1,)](x, y, o, 1000, BLOCK=512)
    assert state.waits == 1 and state.loads == 2


def without_ptxas():
    """The driver gets the PTX text, and says what it used."""
    fake_torch()
    import tilejit
    from tilejit.kernels.add import add_kernel

    with tilejit.knobs(ptxas="driver"):
        k = add_kernel[(1,)](*tensors(3), 1000, BLOCK=512)
    assert k.cubin is None and k.resources.registers == 40 and "40 registers" in k.report()
    raises(FileNotFoundError, "no cubin", k.sass)


def other_chip():
    """A GPU that is no Hopper is refused by name."""
    fake_torch()
    setting("stub_major", 8)
    import tilejit
    from tilejit.kernels.add import add_kernel

    raises(tilejit.LaunchError, "Stub has compute capability 8.0; target=\"sm_80\" runs there", lambda: add_kernel[(1,)](*tensors(3), 1000, BLOCK=512))


def clusters():
    """A cluster launch passes its shape; the grid counts programs, a cluster of blocks each."""
    import tilejit  # noqa: F401
    from tilejit.runtime import driver

    loaded = driver.LoadedKernel(driver.device(0), b"// ptx", "k", 128, 1000, (2, 1, 1))
    loaded.launch((8, 3, 1), 11, 0)
    assert list(state.cluster) == [2, 1, 1] and list(state.grid) == [16, 3, 1] and list(state.block) == [128, 1, 1]
    assert (state.shared, state.stream, state.pdl) == (1000, 11, 0)


def dependent_launch():
    """Kernels may start before the one ahead of them has ended where that is asked for; grids do not mix."""
    fake_torch()
    from tilejit.kernels.add import add_kernel
    from tilejit.runtime import driver

    x, y, o = tensors(3)
    for grid in (3, 4, 3):
        add_kernel[(grid,)](x, y, o, 1000, BLOCK=512, launch_pdl=True)
        assert (state.grid[0], state.pdl) == (grid, 1)
    for options in ({}, {"launch_pdl": False}):              # left open: not without products
        add_kernel[(1,)](x, y, o, 1000, BLOCK=512, **options)
        assert state.pdl == 0
    loaded = driver.LoadedKernel(driver.device(0), b"// ptx", "k", 128, 1000, pdl="even")      # of 132 multiprocessors
    for grid, on in ((66, 1), (67, 0), (132, 0), (4000, 0), (1, 1)):
        loaded.launch((grid, 1, 1), 11, 0)
        assert (state.grid[0], state.pdl) == (grid, on)
    loaded.alone = True
    loaded.launch((4000, 1, 1), 11, 0)
    assert state.pdl == 1


def cooperative_launch():
    """A grid all of whose programs must run at once is refused where there is no room for it."""
    fake_torch()
    import tilejit
    from tilejit.kernels.add import add_kernel
    from tilejit.runtime import driver

    x, y, o = tensors(3)
    for grid in (3, 16 * 132, 4):
        add_kernel[(grid,)](x, y, o, 1000, BLOCK=512, launch_cooperative_grid=True)
        assert (state.grid[0], state.cooperative, state.pdl) == (grid, 1, 0)
    raises(tilejit.LaunchError, "2113 were asked for, there is room for 2112 (128 threads and 0 bytes",
           lambda: add_kernel[(2113,)](x, y, o, 1000, BLOCK=512, launch_cooperative_grid=True))
    assert state.grid[0] == 4
    add_kernel[(2113,)](x, y, o, 1000, BLOCK=512)
    assert state.cooperative == 0
    loaded = driver.LoadedKernel(driver.device(0), b"// ptx", "k", 128, 1000, (2, 1, 1), cooperative=True)
    loaded.launch((60, 1, 1), 11, 0)
    raises(tilejit.LaunchError, "room for 60 of 2 CTAs", lambda: loaded.launch((61, 1, 1), 11, 0))


def threads():
    """Eight threads, none of which has a context, launch with parameters of their own."""
    fake_torch()
    from tilejit.kernels.add import add_kernel

    expect([])
    wrong = []

    def work(i):
        x, y, o = (Tensor((1024,), FLOAT, 0x100000 * (i + 1) + 0x1000 * j) for j in range(3))
        try:
            for n in range(2, 402, 2):
                add_kernel[(1,)](x, y, o, 16 * n + 1, BLOCK=512)
        except Exception as error:                          # noqa: BLE001  (reported by the main thread)
            wrong.append(error)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in workers:
        t.start()
    for t in workers:
        t.join()
    (entry,) = add_kernel.entries.values()
    assert not wrong, wrong
    assert state.loads == 1 and 1 <= len(entry.packer.free) <= 8


def forked():
    """A forked child is told to spawn instead."""
    import tilejit
    from tilejit.runtime import driver

    driver.device(0).activate()
    child = os.fork()
    if child == 0:
        try:
            driver.device(0).activate()
        except tilejit.LaunchError as error:
            os._exit(0 if "spawn" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def launchers():
    """From the second launch on a signature goes its own way: the same parameters, grids, streams and errors; other
    signatures in between, other addresses, options and devices lead where they did."""
    fake_torch()
    import tilejit
    from tilejit.kernels.add import add_kernel

    expect([])
    x, y, o = tensors(3)
    slow = tilejit.runtime.jit.Partial._slowly
    seen = []
    tilejit.runtime.jit.Partial._slowly = lambda self, *args, **kwargs: seen.append(args) or slow(self, *args, **kwargs)
    k = tilejit.kernel(add_kernel.fn)
    params = [getattr(p, "arg", None) or p.expr[1] for p in k[(1,)](x, y, o, 1000, BLOCK=512).metadata.params]

    def launched(call, x, n, grid, stream=STREAM):
        expect([4 if name == "n" else 8 for name in params if name != "n" or n != 1])
        call()
        expect([])
        read = {name: int.from_bytes(parameter(i, 4 if name == "n" else 8), "little")
                for i, name in enumerate(p for p in params if p != "n" or n != 1)}
        assert read == {"x": x.address, "y": y.address, "out": o.address, **({"n": n} if n != 1 else {})}, read
        assert list(state.grid) == grid and state.stream == stream, (list(state.grid), state.stream)

    halves, odd = tensors(1, dtype=HALF)[0], Tensor((1024,), FLOAT, 0x70004)
    signatures = [(x, 1001), (x, 1008), (x, 1000), (x, 1), (halves, 1001), (odd, 1001), (x, 1003)]
    for t, n in signatures:
        k[(3,)](t, y, o, n, BLOCK=512)
        k[(2,)](t, y, o, n, 512)
    assert len(k.entries) == 6 == state.loads
    before = len(seen)
    for t, n in signatures * 2:
        for move in (0, 0x100):
            t.address += move
            launched(lambda: k[(3,)](t, y, o, n, BLOCK=512), t, n, [3, 1, 1])
            launched(lambda: k[lambda m: (m["n"] // m["BLOCK"] + 1, m["num_warps"])](t, out=o, y=y, n=n, BLOCK=512), t,
                     n, [n // 512 + 1, 4, 1])
            launched(lambda: k[[2, 2]](t, y, o, n, 512, stream=9), t, n, [2, 2, 1], 9)
    assert len(seen) == before, "all by launchers"
    for _ in range(3):
        k[(3,)](x, y, o, 1000, BLOCK=512, num_warps=8)
    k[(3,)](x, y, o, 1000, BLOCK=512, num_warps=8, stream=4)
    assert state.block[0] == 256 and state.stream == 4 and len(seen) == before + 2
    for wrong, hint in (((x, y, o), "misses argument"), ((x, y, o, 1000, 512, 3), "takes 5 arguments"),
                        ((x, y, Tensor((4,), FLOAT, 0x100, 1), 1000, 512), "on gpu 1")):
        raises(tilejit.LaunchError, hint, lambda: k[(1,)](*wrong))
    raises(tilejit.LaunchError, "unknown option 'warps'", lambda: k[(1,)](x, y, o, 1000, 512, warps=3))
    raises(tilejit.LaunchError, "a grid is", lambda: k["no"](x, y, o, 1000, BLOCK=512))
    launches = state.launches
    assert k[(0,)](x, y, o, 1000, BLOCK=512) is None and state.launches == launches
    told = []
    enter, leave = tilejit.hooks.enter(told.append), tilejit.hooks.exit(lambda launch: told.append(state.launches))
    k[(3,)](x, y, o, 1000, BLOCK=512)
    assert told[1] == launches + 1 and (told[0].name, told[0].grid, told[0].bytes) == ("add_kernel", (3, 1, 1), 3 * 4096)
    tilejit.hooks.remove(enter)
    tilejit.hooks.remove(leave)
    k[(3,)](x, y, o, 1000, BLOCK=512)
    assert len(told) == 2
    p = k.partial(BLOCK=512, num_warps=8)
    for n in (1000, 1000, 24, 1000):
        launched(lambda: p[(5,)](x, y, o, n), x, n, [5, 1, 1])
    assert state.block[0] == 256
    raises(tilejit.LaunchError, "multiple values", lambda: p[(5,)](x, y, o, 1000, 512))
    with tilejit.knobs(launch_blocking=True):
        waits = state.waits
        k[(3,)](x, y, o, 1000, BLOCK=512)
        assert state.waits == waits + 1


def quick():
    """A launch of three tensors and a number takes a few microseconds (the driver's own time aside)."""
    fake_torch()
    from tilejit.kernels.add import add_kernel

    x, y, o = tensors(3)
    best = float("inf")
    for _ in range(30):
        start = time.perf_counter()
        for _ in range(300):
            add_kernel[(1,)](x, y, o, 1000, BLOCK=512)
        best = min(best, (time.perf_counter() - start) / 300)
    print(f"{best * 1e6:.1f} us")
    assert best < 15e-6


if __name__ == "__main__":
    globals()[sys.argv[1]]()
