"""Conformance of the tile language, name by name and type by type, in the evaluator and the emulator against numpy.

A kernel of every group of rows of `table.py` and element type; its text is made here. Expressions for types that a row
does not have must be refused with an error of ours, or be what numpy says all the same.
"""
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from table import ALL, ELEMENTWISE, FOLDS, MOVES, NEAR, Row

import tilejit
import tilejit.language as tl
from tilejit.frontend import Param, build
from tilejit.ir import numeric
from tilejit.ir import types as T
from tilejit.ir.verify import verify

GROUPS = {"ELEMENTWISE": ELEMENTWISE, "MOVES": MOVES, "FOLDS": FOLDS}
SHAPES = {"ELEMENTWISE": ((256,), (4, 32), (1,)), "MOVES": ((8, 16),), "FOLDS": ((8, 16),)}
#: Every group with every type that it has rows for, in one of its shapes or two.
CASES = [(group, shape, t) for group, shapes in SHAPES.items() for i, t in enumerate(ALL)
         for shape in dict.fromkeys((shapes[0], shapes[i % len(shapes)])) if any(t in r.dtypes for r in GROUPS[group])]


def values(t: T.DType, shape: tuple[int, ...], seed: int, row_low: float | None, row_high: float | None) -> np.ndarray:
    """Numbers of a type: small ones, or of a range."""
    rng = np.random.default_rng(seed)
    if t.family == "bool":
        return rng.random(shape) < 0.5
    low = (0 if not t.is_float and not t.is_signed else -9) if row_low is None else row_low
    high = 9 if row_high is None else row_high
    if not t.is_float:
        return rng.integers(int(np.ceil(low)), int(high), shape, endpoint=True).astype(numeric.np_dtype(t))
    if row_low is None:
        return numeric.round_to(rng.integers(-36, 37, shape) / 4, t)
    return numeric.round_to(rng.uniform(low, high, shape), t)


def kernel_of(text: str, folder) -> tilejit.Kernel:
    path = folder / "made.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("made", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.made


def text_of(rows: list[Row], shape: tuple[int, ...], results: list[tuple[int, ...]]) -> str:
    """A kernel that stores every row's result; a row's operands are those of its range."""
    ranges = list(dict.fromkeys((r.low, r.high) for r in rows))
    names = [f"x{i}{v}" for i in range(len(ranges)) for v in "abc"]
    lines = ["import tilejit", "import tilejit.language as tl", "", "", "@tilejit.kernel",
             f"def made({', '.join([*(f'o{i}' for i in range(len(rows))), 'mask', *names])}):",
             f"    at = tl.reshape(tl.arange(0, {int(np.prod(shape))}), {shape})", "    m = tl.load(mask + at)"]
    for i, row in enumerate(rows):
        k = ranges.index((row.low, row.high))
        lines += [f"    {v} = tl.load(x{k}{v} + at)" for v in "abc"]
        lines += [f"    r = {row.text}"]
        n = int(np.prod(results[i]))
        to = f" + tl.reshape(tl.arange(0, {n}), {results[i]})" if results[i] else ""
        lines += [f"    tl.store(o{i}{to}, r)"]
    return "\n".join(lines) + "\n"


def expected(row: Row, t: T.DType, operands: dict[str, np.ndarray]) -> np.ndarray:
    """What numpy makes of a row, rounded once."""
    given = [operands[n].astype(np.float64) if t.is_float and n != "m" else operands[n] for n in row.operands]
    with np.errstate(all="ignore"):
        out = np.asarray(row.numpy(*given))
    to = row.of(t)
    return numeric.round_to(out, to) if to.is_float else out.astype(numeric.np_dtype(to))


@pytest.mark.parametrize(("group", "shape", "t"), CASES, ids=str)
def test_names(group, shape, t, tmp_path):
    """Every row for this type: the evaluator and the emulator give what numpy does."""
    rows = [row for row in GROUPS[group] if t in row.dtypes]
    ranges = list(dict.fromkeys((r.low, r.high) for r in rows))
    inputs = {f"x{i}{v}": values(t, shape, 3 * i + j, *both) for i, both in enumerate(ranges) for j, v in enumerate("abc")}
    mask = np.random.default_rng(5).random(shape) < 0.5
    want = []
    for row in rows:
        k = ranges.index((row.low, row.high))
        want.append(expected(row, t, {"m": mask, **{v: inputs[f"x{k}{v}"] for v in "abc"}}))
    kernel = kernel_of(text_of(rows, shape, [w.shape for w in want]), tmp_path)
    for target in ("evaluator", "emulator"):
        got = [np.zeros(w.shape or 1, w.dtype) for w in want]
        with tilejit.knobs(target=target):
            kernel[(1,)](*got, mask, *inputs.values(), num_warps=2)
        for row, w, g in zip(rows, want, got):
            where = f"{row.text} of {t} in the {target}"
            if row.near and w.dtype.kind not in "iub":
                np.testing.assert_allclose(g.astype(np.float64), w.astype(np.float64), NEAR[row.of(t)], 1e-6, err_msg=where)
            else:
                np.testing.assert_array_equal(g, w, err_msg=where)


@pytest.mark.parametrize("t", ALL, ids=str)
def test_other_types_are_refused_or_built(t, tmp_path):
    """An expression of a type that its row does not have is refused at the author's line, or it makes sense to tile IR."""
    for group, row in [(group, row) for group, rows in GROUPS.items() for row in rows if t not in row.dtypes]:
        kernel = kernel_of(text_of([row], SHAPES[group][0], [()]).replace("tl.store(o0, r)", "pass"), tmp_path)
        types = {n: T.Ptr(T.int32 if n == "o0" else T.int1 if n == "mask" else t) for n in kernel.source.signature.parameters}
        try:
            verify(build(kernel.source, {n: Param(p) for n, p in types.items()}, {"num_warps": 2, "num_stages": 1}))
        except tilejit.CompilationError as e:
            assert "made.py:" in str(e), f"{row.text} of {t}: {e}"


@tilejit.kernel
def random_numbers(out, normal, seed):
    at = tl.arange(0, 64)
    low, none = at.to(tl.uint32), tl.zeros((64,), tl.uint32)
    bits, *_ = tl.philox_impl(low, none, none, none, none + seed, none)
    first, second, *_ = tl.rand4x(seed, at)
    tl.store(out + at, tl.uint_to_uniform_float(bits))
    tl.store(out + 64 + at, first)
    n, _ = tl.pair_uniform_to_normal(first, second)
    tl.store(normal + at, n)
    tl.store(normal + 64 + at, tl.randn4x(seed, at)[0])
    tl.static_assert(isinstance(low.type, tl.block_type))
    tl.static_print("compiled for", seed.dtype)


def test_random_numbers_are_made_of_each_other(capsys):
    for target in ("evaluator", "emulator"):
        out, normal = np.zeros((2, 64), np.float32), np.zeros((2, 64), np.float32)
        with tilejit.knobs(target=target):
            random_numbers[(1,)](out, normal, 7)
        assert np.array_equal(out[0], out[1]) and (0 <= out).all() and (out < 1).all() and len(set(out[0])) > 60
        assert np.array_equal(normal[0], normal[1]) and abs(normal.mean()) < 1 and normal.std() > 0.5
    assert "compiled for int32" in capsys.readouterr().out


@tilejit.kernel
def turned(x, y, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.swizzle2d(tl.program_id(0) // N, tl.program_id(0) % N, M, N, 2)
    block = tl.load_tensor_descriptor(x, [i * 8, j * 16])
    tl.store_tensor_descriptor(y, [i * 8, j * 16], block + tl.program_id(0))


def test_blocks_in_groups_of_rows():
    """Programs take the blocks of two rows of blocks at a time, column by column."""
    order = np.array([[0, 2, 4], [1, 3, 5], [6, 7, 8]], np.int32)
    x = np.zeros((24, 48), np.int32)
    for target in ("evaluator", "emulator"):
        y = np.zeros_like(x)
        with tilejit.knobs(target=target):
            turned[(9,)](*(tilejit.TensorDescriptor.from_tensor(v, [8, 16]) for v in (x, y)), 3, 3)
        assert np.array_equal(y, np.kron(order, np.ones((8, 16), np.int32)))


def test_every_name_is_tested():
    """Every function of the tile language is named in some test."""
    words = {word for p in Path(__file__).parents[1].rglob("*.py") for word in re.findall(r"\w+", p.read_text())}
    functions = {n for n in dir(tl) if not n.startswith("_") and callable(getattr(tl, n))}
    assert functions - words == set()
