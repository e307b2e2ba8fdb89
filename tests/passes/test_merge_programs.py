"""Small programs are merged, several a CTA: as right as one a CTA, wherever that is possible at all."""
import re

import ml_dtypes
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.errors import CompilationError
from tilejit.ir.text import parse_function
from tilejit.ir.verify import verify
from tilejit.passes.merge_programs import merge_programs
from tilejit.runtime import launch

BF = ml_dtypes.bfloat16


@tilejit.kernel
def softmax(x, out, columns, pitch, BLOCK: tl.constexpr):
    """One row a program."""
    at = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * pitch + at, mask=at < columns, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + tl.program_id(0) * pitch + at, (e / tl.sum(e, axis=0)).to(out.dtype.element_ty), mask=at < columns)


@tilejit.kernel
def picked(x, index, w, out, last, BLOCK: tl.constexpr):
    """A row that an array names (int64), times weights of all programs, its running sum, and the number of programs;
    along the second axis of the grid halves of rows."""
    at = tl.arange(0, BLOCK)
    row, half = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first = tl.multiple_of(tl.load(index + row) * (2 * BLOCK) + half * BLOCK, 16)
    v = tl.load(tl.multiple_of(x + first, 16) + tl.max_contiguous(tl.multiple_of(at, BLOCK), BLOCK)) * tl.load(w + at)
    tl.store(out + row * (2 * BLOCK) + half * BLOCK + at, tl.cumsum(v, 0))
    tl.store(last + half * 24 + row, tl.num_programs(0))


@tilejit.kernel
def outer(x, y, out, SIZE: tl.constexpr):
    """y = x x^T of each program's row, through its transpose, and halves of the row joined, in place."""
    at = tl.arange(0, SIZE)
    v = tl.load(x + tl.program_id(0) * SIZE + at)
    square = tl.trans(v[:, None] * (v + 1)[None, :])
    tl.store(out + tl.program_id(0) * SIZE * SIZE + at[:, None] * SIZE + at[None, :], square)
    left, right = tl.split(tl.reshape(v, [SIZE // 2, 2]))
    tl.store(y + tl.program_id(0) * SIZE + at, tl.reshape(tl.join(right, left), [SIZE]))


@tilejit.kernel
def divergent(x, out, HOW: tl.constexpr):
    """What programs do each for themselves."""
    i, at = tl.program_id(0), tl.arange(0, 64)
    if HOW == "same loop":
        total = tl.zeros([64], tl.float32)
        for k in range(0, tl.num_programs(1)):
            total += tl.load(x + k * 64 + at)
        tl.store(out + i * 64 + at, total)
    elif HOW == "loop":
        total = tl.zeros([64], tl.float32)
        for k in range(0, i):
            total += tl.load(x + k * 64 + at)
        tl.store(out + i * 64 + at, total)
    elif HOW == "atomic":
        tl.atomic_add(out + i * 64 + at, tl.load(x + i * 64 + at))
    elif HOW == "one address":
        tl.store(out + at, tl.load(x + i * 64 + at))
    elif HOW == "branch":
        if i > 2:
            tl.store(out + i * 64 + at, tl.load(x + i * 64 + at))
    elif HOW == "barrier":
        tl.debug_barrier()
        tl.store(out + i * 64 + at, 0.0)
    elif HOW == "size":
        tl.store(out + i * 96 + tl.arange(0, 96), tl.load(x + i * 96 + tl.arange(0, 96)))
    else:
        tl.store(out + at, tl.load(x + at))


def run(how: str, kernel, grid, *args, **options):
    with tilejit.knobs(target=how):
        return kernel[grid](*args, **options)


@pytest.mark.parametrize("how", ["evaluator", "emulator"])
@pytest.mark.parametrize("columns, programs, warps", [(64, 32, 4), (50, 8, 1), (1000, 2, 8), (3, 128, 2)])
def test_rows(how, columns, programs, warps):
    rng = np.random.default_rng(columns)
    x = rng.standard_normal((2 * programs + 3, columns)).astype(BF)
    out = np.full((2 * programs + 5, columns), 7, BF)
    made = run(how, softmax, (len(x),), x, out, columns, columns, BLOCK=tilejit.next_power_of_2(columns),
               num_warps=warps, programs_per_cta=programs)
    v = x.astype(np.float64)
    want = np.exp(v - v.max(1, keepdims=True))
    want /= want.sum(1, keepdims=True)
    assert np.linalg.norm(out[:len(x)] - want) < 4e-3 * np.linalg.norm(want) and (out[len(x):] == 7).all()
    assert made.metadata.programs == programs and made.metadata.num_threads == 32 * max(4, warps)
    assert f"{programs} programs are one CTA" in made.report()


@pytest.mark.parametrize("how", ["evaluator", "emulator"])
def test_what_arrays_name_and_what_all_share(how):
    rng = np.random.default_rng(0)
    x, index = rng.integers(-9, 9, (40, 64)).astype(np.float32), rng.permutation(40)[:19]
    w, out, last = np.arange(32, dtype=np.float32), np.zeros((19, 64), np.float32), np.zeros((2, 24), np.int32)
    made = run(how, picked, (19, 2), x, index, w, out, last, BLOCK=32, programs_per_cta=8)
    want = np.cumsum(x[index].reshape(19, 2, 32) * w, 2).reshape(19, 64)
    assert (out == want).all() and (last == [[19] * 19 + [0] * 5] * 2).all() and made.metadata.programs == 8


@pytest.mark.parametrize("how", ["evaluator", "emulator"])
def test_shapes(how):
    x = np.random.default_rng(1).integers(-9, 9, (11, 8)).astype(np.float32)
    y, out = x.copy(), np.zeros((11, 8, 8), np.float32)
    run(how, outer, (11,), y, y, out, SIZE=8, programs_per_cta=4)
    assert (out == (x[:, :, None] * (x + 1)[:, None]).transpose(0, 2, 1)).all()
    assert (y == x.reshape(11, 4, 2)[:, :, ::-1].reshape(11, 8)).all()


@pytest.mark.parametrize("how, why", [
    ("loop", "for is done by each program"), ("atomic", "atomic_rmw is done by each program"),
    ("one address", "all programs store at one address"), ("branch", "if is done by each program"),
    ("barrier", "debug_barrier is done by each program"), ("size", "sizes are no powers of two"),
    ("none", "programs do not ask for their number")])
def test_what_stays_alone(how, why):
    with pytest.raises(CompilationError, match=f"programs_per_cta=4: {why}"):
        divergent.compile("*fp32", "*fp32", HOW=how, programs_per_cta=4)
    assert divergent.compile("*fp32", "*fp32", HOW=how).metadata.mergeable == 1


def test_a_loop_that_is_the_same_in_all_programs():
    x, out = np.arange(64, dtype=np.float32), np.zeros((5, 64), np.float32)
    run("emulator", divergent, (5,), x, out, HOW="same loop", programs_per_cta=2)
    assert (out == x).all()


def test_options():
    assert softmax.compile("*bf16", "*bf16", 64, 64, BLOCK=64).metadata.mergeable == 32
    assert softmax.compile("*bf16", "*bf16", 64, 64, BLOCK=64, programs_per_cta=1).metadata.mergeable == 1
    assert softmax.compile("*fp32", "*fp32", 64, 64, BLOCK=64).metadata.mergeable == 16, "4 KB"
    several = picked.compile("*fp32", "*int64", "*fp32", "*fp32", "*int32", BLOCK=32)
    assert several.metadata.mergeable == 16, "136 bytes a program: a power of 2"
    assert softmax.compile("*bf16", "*bf16", 2048, 2048, BLOCK=2048).metadata.mergeable == 1
    wide = softmax.compile("*bf16", "*bf16", 1024, 1024, BLOCK=1024, num_warps=1)
    assert wide.metadata.mergeable == 1 and "stays in shared memory" in wide.report(), "rows that are copied as a whole"
    with pytest.raises(CompilationError, match="power of 2 up to 128"):
        softmax.compile("*bf16", "*bf16", 64, 64, BLOCK=64, programs_per_cta=3)
    with pytest.raises(CompilationError, match="wait for one another"):
        softmax.compile("*bf16", "*bf16", 64, 64, BLOCK=64, programs_per_cta=2, num_ctas=2)


def test_text():
    fn = merge_programs(parse_function("""kernel @k(%x: ptr<fp32>) {num_warps=1, programs_per_cta=4} {
  %i = program_id {axis=0} : int32
  %r = arange {start=0, end=16} : int32[16]
  %p = ptr_add %x, %i : ptr<fp32>
  %b = splat %p {shape=(16,)} : ptr<fp32>[16]
  %q = ptr_add %b, %r : ptr<fp32>[16]
  %v = load %q {cache="", evict="", volatile=false} : fp32[16]
  store %q, %v {cache="", evict=""}
  return
}
"""))
    verify(fn)
    lines = [line.split(" : ")[-1] for line in str(fn).splitlines() if re.match(r"  %[ivq] =", line)]
    assert lines == ["int32[4]", "ptr<fp32>[4x16]", "fp32[4x16]"] and fn.attrs["programs"] == fn.attrs["num_warps"] == 4


def test_grids_of_many_programs(monkeypatch):
    """They are merged without being asked; fewer are not."""
    monkeypatch.setattr(launch, "MANY", 100)
    threads = []
    plain = launch.EmulatorEntry.launch
    monkeypatch.setattr(launch.EmulatorEntry, "launch", lambda self, grid, *rest: (
        threads.append((grid[0], self.compiled.metadata.programs)), plain(self, grid, *rest)))
    x = np.random.default_rng(2).standard_normal((120, 16)).astype(np.float32)
    found = []
    for n in (99, 120, 100, 7):
        out = np.zeros_like(x)
        made = run("emulator", softmax, (n,), x, out, 16, 16, BLOCK=16)
        assert np.allclose(out[:n].sum(1), 1) and not out[n:].any()
        found.append(made)
    assert threads == [(99, 1), (120, 64), (100, 64), (7, 1)]
    assert all(m is found[0] for m in found) and "64 programs are one CTA" in softmax.report()
