"""Checks of launches over the stub driver; `test_driver.py` runs each in a process of its own."""
from __future__ import annotations

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
    fake_torch,
    parameter,
    raises,
    setting,
    state,
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


def clusters():
    """A cluster launch passes its shape; the grid counts programs, a cluster of blocks each."""
    import tilejit  # noqa: F401
    from tilejit.runtime import driver

    loaded = driver.LoadedKernel(driver.device(0), b"// ptx", "k", 128, 1000, (2, 1, 1))
    loaded.launch((8, 3, 1), 11, 0)
    assert list(state.cluster) == [2, 1, 1] and list(state.grid) == [16, 3, 1] and list(state.block) == [128, 1, 1]
    assert (state.shared, state.stream, state.pdl) == (1000, 11, 0)


def room():
    """The driver knows how many clusters run at once; it is asked once a size."""
    import tilejit

    assert tilejit.clusters(1) == 132 and tilejit.clusters(8, -1) == 16
    assert tilejit.clusters(8) == tilejit.clusters(8, 0) == 60 and state.loads == 1


def dependent_launch():
    """Kernels may start before the one ahead of them has ended where that is asked for; grids do not mix."""
    fake_torch()
    from tilejit.kernels.add import add_kernel
    from tilejit.runtime import driver

    x, y, o = tensors(3)
    for grid in (3, 4, 3):
        add_kernel[(grid,)](x, y, o, 1000, BLOCK=512, launch_pdl=True)
        assert (state.grid[0], state.pdl) == (grid, 1)
    for options, on in (({"BLOCK": 512}, 1), ({"BLOCK": 512, "launch_pdl": False}, 0), ({"BLOCK": 64}, 0)):
        add_kernel[(1,)](x, y, o, 1000, **options)             # left open: programs of some KB, but no smaller ones
        assert state.pdl == on
    loaded = driver.LoadedKernel(driver.device(0), b"// ptx", "k", 128, 1000, pdl="even")      # of 132 multiprocessors
    for grid, on in ((66, 1), (67, 0), (132, 0), (4000, 0), (1, 1)):
        loaded.launch((grid, 1, 1), 11, 0)
        assert (state.grid[0], state.pdl) == (grid, on)
    loaded.room = 132
    loaded.launch((4000, 1, 1), 11, 0)
    assert state.pdl == 1
    loaded = driver.LoadedKernel(driver.device(0), b"// ptx", "k", 128, 1000, pdl="few", programs=2)
    most = 2 * driver.FEW
    for grid, on in ((most, 1), (most + 2, 0), (1, 1)):
        loaded.launch((grid, 1, 1), 11, 0)
        assert state.pdl == on


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
