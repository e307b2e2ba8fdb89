"""Groups of consumers that take tiles in turn, also where the loop over tiles is in other loops."""
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.testing import rel_error

BF16 = ml_dtypes.bfloat16
desc = tilejit.TensorDescriptor.from_tensor
ROWS = (64, 0, 100, 300, 1, 128)


def in_turn(loop):
    """What the report says of a loop that begins so."""
    line = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.strip().startswith(loop))
    return f"which take the iterations of the loop at test_ping_pong.py:{line} by turns (ping-pong)"


@tilejit.kernel
def grouped(a_desc, b_desc, c_desc, ends, count, groups, steps, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
            OUTSIDE: tl.constexpr):
    """Tiles of groups of BM-aligned rows, group after group. OUTSIDE: a number is stored beside the loop over tiles."""
    first = 0
    for e in range(0, groups):
        end = tl.load(ends + e)
        for t in tl.range(first + tl.program_id(0), end, tl.num_programs(0)):
            acc = tl.zeros((BM, BN), tl.float32)
            for k in range(0, steps):
                a = a_desc.load([t * BM, k * BK])
                b = b_desc.load([e, 0, k * BK]).reshape(BN, BK)
                acc = tl.dot(a, b.T, acc)
            c_desc.store([t * BM, 0], acc.to(c_desc.dtype))
        first = end
        if OUTSIDE:
            tl.atomic_add(count, 1)


@tilejit.kernel
def deeper(a_desc, b_desc, c_desc, tiles, steps, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Three loops around the product's: halves of the columns, pairs of tiles, the tiles of a pair."""
    for half in range(2):
        for pair in range(tl.program_id(0), (tiles + 1) // 2, tl.num_programs(0)):
            for t in range(2 * pair, tl.minimum(2 * pair + 2, tiles)):
                acc = tl.zeros((BM, BN), tl.float32)
                for k in range(steps):
                    acc = tl.dot(a_desc.load([t * BM, k * BK]), b_desc.load([half * BN, k * BK]).T, acc)
                c_desc.store([t * BM, half * BN], acc.to(c_desc.dtype))


def run_grouped(target, programs=2, outside=False, check=False, **options):
    """Groups of ROWS rows, in tiles of 64: the kernel, its result and the exact one."""
    tiles = [tilejit.cdiv(rows, 64) for rows in ROWS]
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((64 * sum(tiles), 192)).astype(BF16), rng.standard_normal((len(ROWS), 64, 192)).astype(BF16)
    out, ends, count = np.full((len(a), 64), np.nan, BF16), np.cumsum(tiles, dtype=np.int32), np.zeros(1, np.int32)
    args = desc(a, (64, 64)), desc(b, (1, 64, 64)), desc(out, (64, 64)), ends, count, len(ROWS), 3, 64, 64, 64, outside
    with tilejit.knobs(target=target):
        if check:
            tilejit.check(grouped, (programs,), *args, seeds=range(2), **options).check()
            out[:] = np.nan
        compiled = grouped[(programs,)](*args, **options)
    of = np.repeat(np.arange(len(ROWS)), 64 * np.array(tiles))
    exact = np.einsum("mk,mnk->mn", a.astype(np.float32), b.astype(np.float32)[of])
    assert rel_error(out, exact) < 4e-3
    return compiled


@pytest.mark.parametrize("target", ["evaluator", "emulator"])
@pytest.mark.parametrize("options", [{}, dict(num_consumer_groups=3), dict(num_consumer_groups=1), dict(num_stages=2),
                                     dict(programs=5)], ids=str)
def test_turns_go_on_over_outer_loops(options, target):
    """Groups of any number of tiles, none included: whose turn it is runs on from one group to the next."""
    compiled = run_grouped(target, **options)
    if target == "emulator":
        turns = in_turn("for t in tl.range(first") in compiled.report()
        assert turns == (options.get("num_consumer_groups") != 1)


@pytest.mark.one_schedule                # it explores them itself
@pytest.mark.parametrize("groups", [2, 3])
def test_schedules(groups):
    run_grouped("emulator", check=True, num_consumer_groups=groups)


@pytest.mark.parametrize("programs", [1, 2, 3])
def test_two_loops_around(programs):
    tiles, rng = 7, np.random.default_rng(0)
    a, b = rng.standard_normal((tiles * 64, 128)).astype(BF16), rng.standard_normal((128, 128)).astype(BF16)
    out = np.full((tiles * 64, 128), np.nan, BF16)
    with tilejit.knobs(target="emulator"):
        compiled = deeper[(programs,)](desc(a, (64, 64)), desc(b, (64, 64)), desc(out, (64, 64)), tiles, 2, 64, 64, 64)
    assert in_turn("for t in range(2") in compiled.report()
    assert rel_error(out, a.astype(np.float32) @ b.astype(np.float32).T) < 4e-3


def test_why_not():
    """Every group runs the outer loops, so those may not store; the reason is the outermost loop's. A role that stores goes
    from tile to tile by itself."""
    reason = "carries values from tile to tile"
    assert reason in run_grouped("emulator", outside=True).report()
    with pytest.raises(tilejit.CompilationError, match=f"num_consumer_groups=2: .*{reason}"):
        run_grouped("emulator", outside=True, num_consumer_groups=2)
    report = run_grouped("emulator", store_role=True).report()
    assert "no store role: ping-pong groups of consumers take a loop that is in another one" in report
