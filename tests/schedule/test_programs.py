"""How many programs share a multiprocessor decides whether a kernel has a producer warp; rings that one role fills ahead
are one."""
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.ir.target import target_named


@tilejit.kernel
def product(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        acc = tl.dot(a_desc.load([i, k * BK]), b_desc.load([k * BK, j]), acc)
    c_desc.store([i, j], acc.to(tl.float16))


@tilejit.kernel
def tiles(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    for i in range(tl.program_id(0), 9, 3):
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, tl.cdiv(K, BK)):
            acc = tl.dot(a_desc.load([i * BM, k * BK]), b_desc.load([k * BK, 0]), acc)
        c_desc.store([i * BM, 0], acc.to(tl.float16))


def report(kernel, bm, bn, bk, **options):
    arguments = [f"desc<fp16[{m}x{n}]>" for m, n in ((bm, bk), (bk, bn), (bm, bn))]
    return kernel.compile(*arguments, 256, bm, bn, bk, **options).report()


@pytest.mark.parametrize("kernel, tile, options, inline", [
    (product, (128, 192, 32), {"num_stages": 2}, "inline: 2 programs share a multiprocessor without a producer warp, 1 with it"),
    (product, (128, 192, 32), {"num_stages": 2, "warp_specialize": True}, ""),
    (product, (128, 192, 32), {}, ""),                            # deep rings take all shared memory
    (product, (128, 192, 64), {"num_stages": 4}, ""),             # one program either way
    (product, (128, 128, 64), {"num_stages": 2}, ""),             # three programs instead of two
    (product, (128, 192, 32), {"num_stages": 2, "num_warps": 8}, ""),        # registers move between roles
    (tiles, (128, 192, 32), {"num_stages": 2, "num_consumer_groups": 1}, "")])
def test_a_producer_warp_that_costs_a_program_is_left_out(kernel, tile, options, inline):
    made = report(kernel, *tile, **options)
    assert inline in made if inline else "specialised: producer warp" in made


@pytest.mark.parametrize("tile, options, drains", [
    ((128, 128, 64), {"num_stages": 2}, True), ((128, 128, 64), {"num_stages": 3}, True),
    ((128, 128, 64), {"num_stages": 4}, False),                                      # one copy more is little
    ((128, 128, 64), {}, False), ((128, 256, 128), {"num_stages": 2, "num_warps": 8}, False),   # products take longer than copies
    ((128, 128, 64), {"num_stages": 2, "warp_specialize": False}, False)])
def test_loops_that_wait_for_copies_give_slots_back_at_once(tile, options, drains):
    made = report(product, *tile, **options)
    assert ("waits for its products: with" in made) == drains and ("one round of wgmma" in made) != drains


@pytest.mark.parametrize("threads, registers, shared, programs", [
    (128, 154, 66591, 3), (160, 154, 66591, 2), (128, 255, 91455, 2), (128, 32, 0, 16), (32, 16, 0, 32), (1024, 64, 0, 1),
    (128, 32, 232448, 1)])
def test_programs_of_a_multiprocessor(threads, registers, shared, programs):
    assert target_named(None).programs(threads, registers, shared) == programs


@tilejit.kernel
def gradient(k_desc, q_desc, o_desc, scale, out, steps, N: tl.constexpr):
    """Two products of two loads, and two rows, as attention's gradient has them."""
    keys = k_desc.load([0, 0])
    acc = tl.zeros((128, 64), tl.float32)
    for i in tl.range(steps, warp_specialize=False, num_stages=3):
        q = q_desc.load([i * N, 0])
        s = tl.dot(keys, q.T) + tl.load(scale + i * N + tl.arange(0, N))[None, :]
        o = o_desc.load([i * N, 0])
        acc = tl.dot((s * tl.load(scale + (steps + i) * N + tl.arange(0, N))[None, :]).to(tl.float16), o, acc)
    tl.store(out + tl.arange(0, 128)[:, None] * 64 + tl.arange(0, 64)[None, :], acc)


def test_rings_that_one_role_fills_ahead_are_one():
    rng, n, steps = np.random.default_rng(3), 32, 4
    k, q, o = (rng.integers(-2, 3, (rows, 64)).astype(np.float16) for rows in (128, n * steps, n * steps))
    scale, out = rng.integers(-1, 2, 2 * n * steps).astype(np.float32), np.zeros((128, 64), np.float32)
    descs = [tilejit.TensorDescriptor.from_tensor(x, [rows, 64]) for x, rows in ((k, 128), (q, n), (o, n))]
    with tilejit.knobs(target="emulator"):
        made = gradient[(1,)](*descs, scale, out, steps, n)
    s = (k.astype(np.float32) @ q.T.astype(np.float32) + scale[:n * steps]) * scale[n * steps:]
    assert (out == s @ o.astype(np.float32)).all()
    rings = [line.split()[1] for line in made.report().splitlines() if line.startswith("ring")]
    assert sum("_" in name for name in rings) == 2, rings
