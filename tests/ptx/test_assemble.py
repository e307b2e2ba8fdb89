"""ptxas takes what is emitted: no spills, no stack, no C75xx remark."""
import ml_dtypes
import numpy as np
import pytest

import tilejit
from tilejit.kernels.add import add_kernel
from tilejit.kernels.planning import LARGE as TILES
from tilejit.kernels.product.plain import matmul_kernel
from tilejit.kernels.rows.norms import long_norm_kernel, norm_kernel
from tilejit.kernels.rows.softmax import long_softmax_kernel, softmax_kernel
from tilejit.kernels.way import Way
from tilejit.runtime import ptxas

pytestmark = [pytest.mark.one_schedule,        # nothing is launched
              pytest.mark.skipif(ptxas.find_ptxas() is None, reason="no ptxas: install the extra `ptxas`")]

DTYPES = ["fp32", "fp16", "bf16"]
NUMPY = {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp8e4nv": ml_dtypes.float8_e4m3fn,
         "fp8e5": ml_dtypes.float8_e5m2}
WGMMA = {"bf16": "bf16.bf16", "fp16": "f16.f16", "fp8e4nv": "e4m3.e4m3", "fp8e5": "e5m2.e5m2", "fp32": "tf32.tf32"}


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Compile every time: nothing from disk."""
    monkeypatch.setenv("TILEJIT_CACHE", "0")


def clean(k):
    """The kernel, if ptxas had nothing to say of it."""
    r = k.resources
    assert (r.spill_stores, r.spill_loads, r.stack) == (0, 0, 0), f"{k.name}: {r}"
    assert r.messages == (), f"{k.name}: {r.messages}"
    assert k.cubin and k.cubin[:4] == b"\x7fELF" and not k.from_cache
    return k


def descriptor(dtype, rows, columns, block):
    """A descriptor of a matrix in host memory: compiling looks at its type and alignment only."""
    memory = np.zeros(rows * columns * np.dtype(NUMPY[dtype]).itemsize + 16, np.uint8)
    start = -memory.ctypes.data % 16
    matrix = memory[start:memory.size - 16 + start].view(NUMPY[dtype]).reshape(rows, columns)
    return tilejit.TensorDescriptor(matrix, (rows, columns), (columns, 1), block)


def compile_matmul(dtype, tiles, a_rows=True, b_rows=False, bias=None, activation=None, out=None, size=256, **options):
    bk = tiles.k_bytes // np.dtype(NUMPY[dtype]).itemsize
    out = out or ("bf16" if dtype.startswith("fp8") else dtype)
    return matmul_kernel.compile(
        descriptor(dtype, size, size, (tiles.m, bk) if a_rows else (bk, tiles.m)),
        descriptor(dtype, size, size, (bk, tiles.n) if b_rows else (tiles.n, bk)),
        descriptor(out, size, size, (tiles.m, tiles.n)), bias, size, size, size, BM=tiles.m, BN=tiles.n, BK=bk, GROUP=8,
        A_ROWS=a_rows, B_ROWS=b_rows, ACTIVATION=activation, **tiles.options(), **options)


@pytest.mark.parametrize("n", [1 << 20, 1000003])
@pytest.mark.parametrize("dtype", DTYPES)
def test_add(dtype, n):
    k = clean(add_kernel.compile(*[f"*{dtype}"] * 3, n, BLOCK=1024))
    wide = ".v4" in k.ptx
    assert wide == (n % 16 == 0 or dtype not in ("fp32", "fp64")), "of 16 bits also where the mask ends among elements"


@pytest.mark.parametrize("block, warps", [(64, 4), (1024, 4), (4096, 8), (16384, 16)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax(dtype, block, warps):
    clean(softmax_kernel.compile(f"*{dtype}", f"*{dtype}", block, block, block, BLOCK=block, num_warps=warps))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_norms(dtype, affine):
    p = f"*{dtype}"
    w = p if affine else None
    for centred in (False, True):
        clean(norm_kernel.compile(p, w, w if centred else None, p, 4095, 4096, 4096, 1e-5, centred, BLOCK=4096, num_warps=8))


def test_long_rows():
    p = "*bf16"
    clean(long_softmax_kernel.compile(p, p, 40000, 40000, 40000, BLOCK=8192, num_warps=8))
    for centred in (False, True):
        clean(long_norm_kernel.compile(p, p, None, p, 40000, 40000, 40000, 1e-5, centred, BLOCK=8192, num_warps=8))


@pytest.mark.parametrize("tiles", TILES, ids=str)
@pytest.mark.parametrize("dtype", list(NUMPY))
def test_matmul(dtype, tiles):
    """The TMA + wgmma form, specialised, with the register split of its number of warpgroups."""
    k = clean(compile_matmul(dtype, tiles))
    assert f".{WGMMA[dtype]} " in k.ptx and "cp.async.bulk.tensor.2d" in k.ptx
    assert ("setmaxnreg.inc" in k.ptx and "setmaxnreg.dec" in k.ptx)
    assert "specialised" in k.report()


@pytest.mark.parametrize("a_rows, b_rows", [(True, True), (False, False), (False, True)])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("tiles", [TILES[0], *(t for t in TILES if t.columns)], ids=str)
def test_matmul_majors(tiles, dtype, a_rows, b_rows):
    k = clean(compile_matmul(dtype, tiles, a_rows, b_rows))
    assert "wgmma" in k.ptx and "through registers" not in k.report()


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("tiles", [TILES[1], *(t for t in TILES if t.columns and t.roomy(2))], ids=str)
def test_matmul_epilogue(tiles, activation):
    clean(compile_matmul("bf16", tiles, bias="*bf16", activation=activation))


@pytest.mark.parametrize("a_rows, b_rows", [(True, False), (True, True), (False, False)])
@pytest.mark.parametrize("dtype", ["bf16", "fp32", "fp8e4nv"])
def test_matmul_without_tma(dtype, a_rows, b_rows):
    """Row strides that are no multiple of 16 bytes: pointer loads, said in the report."""
    k = clean(compile_matmul(dtype, Way(64, 64, 8, k_bytes=64), a_rows, b_rows, size=255))
    assert "cp.async.bulk.tensor" not in k.ptx and "pointer" in k.report()


def test_roles_set_their_own_registers():
    """One limit for all threads and registers that move between roles exclude each other."""
    with pytest.raises(tilejit.CompilationError, match="maxnreg=128 conflicts with the kernel's roles"):
        compile_matmul("bf16", TILES[0], maxnreg=128)


def test_ptx_is_for_people():
    """Roles and barriers go by their names, and `.loc` names the user's file and line."""
    ptx = compile_matmul("bf16", TILES[0]).ptx
    assert ".target sm_90a" in ptx and ".loc" in ptx and "plain.py" in ptx
    for name in ("role producer", "role consumer", "a_b.full[3]", "a_b.empty[0]"):
        assert any("//" in line and name in line for line in ptx.splitlines()), name


@tilejit.kernel
def long_arithmetic(x, y, n, BLOCK: tilejit.language.constexpr):
    """Logarithms and exponentials of 32 elements a thread: one after another, or all at once in as many registers."""
    tl = tilejit.language
    row = tl.program_id(0).to(tl.int64) * n
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        a = tl.load(x + row + at, mask=at < n, other=float("-inf")).to(tl.float32)
        b = tl.load(y + row + at, mask=at < n, other=float("-inf")).to(tl.float32)
        most = tl.max(tl.maximum(a, b), axis=0)
        p, q = tl.exp(a - most), tl.exp(b - most)
        m = 0.5 * p + 0.5 * q
        tl.store(x + row + at, p * tl.log(p) + q * tl.log(q) - m * tl.log(m), mask=at < n)


def test_registers_are_weighed_against_warps():
    """Asked for room for one program only, ptxas takes more registers than half the warps can have."""
    k = clean(long_arithmetic.compile("*bf16", "*bf16", 65536, BLOCK=4096, num_warps=4))
    assert k.resources.registers <= 128
