"""The right kernels that are mutated: their PTX, and how a text is run and its results judged."""
from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import ml_dtypes
import numpy as np

import tilejit
from tilejit.emulator import Exploration, Listener, Program, Report, encode_tensor_map, explore

DATA = Path(__file__).parent.parent / "emulator" / "data"
BF16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Right:
    """A kernel that is right: `prepare()` gives fresh arguments for a run of its text or of a mutant's."""

    name: str
    text: str
    prepare: Callable[[], Setup]

    def explore(self, text: str, policies: tuple[str, ...], seeds: range | tuple[int, ...],
                listener: Callable[[], Listener] | None) -> tuple[Exploration, bool]:
        """Run a text under schedules: what they find, and whether the first result is right."""
        setup, program = self.prepare(), Program(text)

        def launch(policy: str, seed: int, heard: Listener | None) -> Report:
            return program.launch(setup.grid, setup.threads, setup.params, setup.shared, setup.cluster, setup.memory,
                                  policy, seed, heard)

        found = explore(self.name, launch, setup.memory, {"out": setup.out}, policies, seeds, listener)
        return found, np.array_equal(setup.out.view(np.uint8), setup.want.view(np.uint8))


@dataclass(frozen=True)
class Setup:
    """Arguments of a launch, the array that it fills and what must be in it; `owners` keep the memory alive."""

    grid: tuple[int, ...]
    threads: int
    params: list[bytes]
    shared: int
    cluster: tuple[int, ...]
    memory: list[np.ndarray]
    out: np.ndarray
    want: np.ndarray
    owners: object = None


def u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def pointer(a: np.ndarray) -> bytes:
    return int(a.ctypes.data).to_bytes(8, "little")


def product(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A [m, k], B [k, n], an empty D [m, n], and A @ B: small integers, so that all sums are exact."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(BF16) for shape in ((m, k), (k, n)))
    return a, b, np.zeros((m, n), BF16), (a.astype(np.float32) @ b.astype(np.float32)).astype(BF16)


def prototype(name: str, m: int, n: int, k: int, ctas: int) -> Right:
    """A generated persistent gemm with a producer and two consumer warpgroups."""
    text = (DATA / f"gemm_{name}.ptx").read_text()
    found = re.match(r"// tile (\d+)x(\d+)x(\d+), cluster (\d+), shared (\d+)", text)
    assert found
    bm, bn, bk, cluster, shared = map(int, found.groups())

    def prepare() -> Setup:
        a, b, d, want = product(m, n, k)
        b = np.ascontiguousarray(b.T)
        maps = [encode_tensor_map(x.ctypes.data, "bf16", x.shape, (x.shape[1], 1), box, 128)
                for x, box in ((a, (bm, bk)), (b, (bn // cluster, bk)), (d, (64, 64)))]
        return Setup((ctas,), 384, [*maps, u32(m), u32(n), u32(k)], shared, (cluster,), [a, b, d], d, want)

    return Right(name, text, prepare)


def matmul(name: str, bm: int, **options: int) -> Right:
    """tilejit's own: a producer warp and consumer warpgroups, three stages."""
    kernel = importlib.import_module("tilejit.kernels.product.plain").matmul_kernel
    m, n, k = 2 * bm, 192, 320

    def arguments() -> tuple[tuple, dict, np.ndarray, np.ndarray]:
        a, b, d, want = product(m, n, k)
        descs = [tilejit.TensorDescriptor(x, x.shape, (x.shape[1], 1), box)
                 for x, box in ((a, (bm, 64)), (b, (64, 64)), (d, (bm, 64)))]
        return (*descs, None, m, n, k), dict(BM=bm, BN=64, BK=64, GROUP=8, A_ROWS=True, B_ROWS=True, ACTIVATION=None,
                                             num_warps=4, num_stages=3, **options), d, want

    return compiled(name, kernel, arguments, (2,))


def softmax() -> Right:
    """tilejit's own: rows across four warps, which meet in shared memory."""
    kernel = importlib.import_module("tilejit.kernels.rows.softmax").softmax_kernel

    def arguments() -> tuple[tuple, dict, np.ndarray, np.ndarray]:
        x = np.random.default_rng(0).standard_normal((3, 90)).astype(np.float32)
        out, want = np.zeros_like(x), np.zeros_like(x)
        with tilejit.knobs(target="emulator"):
            kernel[(3,)](x, want, 90, 90, 90, BLOCK=512, num_warps=4)
        e = np.exp(x - x.max(1, keepdims=True))
        assert np.allclose(want, e / e.sum(1, keepdims=True), rtol=1e-5)
        return (x, out, 90, 90, 90), dict(BLOCK=512, num_warps=4), out, want

    return compiled("softmax", kernel, arguments, (3,))


def compiled(name: str, kernel: tilejit.Kernel, arguments: Callable[[], tuple[tuple, dict, np.ndarray, np.ndarray]],
             grid: tuple[int, ...]) -> Right:
    """A tilejit kernel as a text with its launch."""
    from tilejit.runtime.launch import EmulatorEntry, host_memory

    args, constants, _, _ = arguments()
    build = kernel.compile(*args, **constants)
    meta = build.metadata

    def prepare() -> Setup:
        args, constants, out, want = arguments()
        plan, flat = kernel._bound(args, constants)
        entry = EmulatorEntry(build, plan.at, flat)
        return Setup((grid[0] * meta.cluster[0],), meta.num_threads, entry.packer.as_bytes(flat), meta.shared_bytes, meta.cluster,
                     host_memory(flat), out, want, flat)

    return Right(name, build.ptx, prepare)


def written(name: str, grid: int, threads: int, cluster: int, want: Callable[[np.ndarray], np.ndarray]) -> Right:
    """A small kernel k(x, y) of this directory: uint32 arrays, `want` of the input is the output."""
    def prepare() -> Setup:
        x = np.random.default_rng(0).integers(0, 1 << 16, 4096).astype(np.uint32)
        right = want(x)
        y = np.zeros_like(right)
        return Setup((grid,), threads, [pointer(x), pointer(y)], 16384, (cluster,), [x, y], y, right)

    return Right(name, (Path(__file__).parent / f"{name}.ptx").read_text(), prepare)


def turned(x: np.ndarray) -> np.ndarray:
    """What `copies` computes: thread t adds the elements of its neighbour t ^ 64 over all eight blocks of 512."""
    return x.reshape(8, 128, 4)[:, np.arange(128) ^ 64].sum(0, dtype=np.uint32).reshape(-1)


def exchanged(x: np.ndarray) -> np.ndarray:
    """What `peers` computes: each CTA of a pair has the other's 512 elements, plus one."""
    return x[:2048].reshape(-1, 2, 512)[:, ::-1].reshape(-1) + np.uint32(1)


def reused(x: np.ndarray) -> np.ndarray:
    """What `phases` computes: in each block of 64 elements, an element and the one 32 further."""
    return (x[:256].reshape(-1, 64) + x[:256].reshape(-1, 64)[:, np.arange(64) ^ 32]).reshape(-1)


@lru_cache(maxsize=1)
def right_kernels() -> dict[str, Right]:
    """All of them, by name."""
    kernels = [prototype("cooperative", 128, 512, 320, 1), prototype("pingpong", 128, 512, 192, 1),
               prototype("cluster2", 256, 512, 320, 2), softmax(),
               matmul("matmul", 64), matmul("clusters", 128, num_ctas=2), matmul("groups", 128, num_consumer_groups=2),
               matmul("stores", 64, store_role=True),
               written("copies", 1, 128, 1, turned),
               written("peers", 4, 128, 2, exchanged), written("phases", 2, 64, 1, reused)]
    return {k.name: k for k in kernels}
