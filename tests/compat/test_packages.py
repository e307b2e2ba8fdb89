"""What kernels of packages do that Triton takes, though its documentation does not say so."""
import numpy as np
import pytest

import tilejit
import tilejit.language as tl
from tilejit.compat.triton import _alias, testing
from tilejit.compat.triton._C import libtriton
from tilejit.compat.triton.language.core import get_int_dtype
from tilejit.compat.triton.language.standard import _log2
from tilejit.compat.triton.runtime import cache
from tilejit.compat.triton.runtime.jit import JITFunction
from tilejit.compat.triton.tools import get_sass
from tilejit.errors import CompilationError, EmulatorError
from tilejit.frontend.functions import constexpr_function
from tilejit.runtime.ptxas import find_tool


class Address:
    """An address and an element type, as packages make them for views that torch does not have."""

    def __init__(self, array, offset=0):
        self.array, self.offset, self.dtype = array, offset, tl.float32

    def data_ptr(self):
        return self.array.ctypes.data + 4 * self.offset


@tilejit.kernel
def copy(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i))


@tilejit.kernel
def copy_back(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x - i))


def test_addresses_with_a_type_are_arrays():
    x, out = np.arange(40, dtype=np.float32), np.zeros(32, np.float32)
    copy[(1,)](Address(x, 8), out, N=32)
    assert (out == x[8:]).all()


def test_kernels_reach_a_views_whole_storage():
    torch = pytest.importorskip("torch")
    whole, out = torch.arange(64.), torch.zeros(32)
    copy_back[(1,)](whole[31:32], out, N=32)
    assert torch.equal(out, whole[:32].flip(0))
    with pytest.raises(EmulatorError, match="out-of-bounds"):
        copy_back[(1,)](whole[30:31], out, N=32)


def test_compiled_kernels_take_their_arguments_without_constants():
    def kernel(x, N: tl.constexpr, out):
        tl.store(out + tl.arange(0, N), tl.load(x + tl.arange(0, N)) + 1)

    x, out, more = np.arange(16, dtype=np.int32), np.zeros(16, np.int32), np.zeros(16, np.int32)
    compiled = JITFunction(kernel)[(1,)](x, 16, out)
    compiled[(1,)](x, more)
    assert (out == x + 1).all() and (more == out).all()


def test_names_that_no_parameter_has_may_stay_unspecialised():
    def kernel(x, n):
        tl.store(x, n)

    made = JITFunction(kernel, do_not_specialize=["m", "n", 7])
    out = np.zeros(1, np.int32)
    made[(1,)](out, 1)
    assert out[0] == 1 and made.plain == {"n"}


@tl.constexpr
def wider(dtype):
    return tl.float64 if dtype.is_floating() else tl.int64


@tilejit.kernel
def least(dtype):
    return tl.full([], 7, dtype.value)


@tilejit.kernel
def with_constants(x, out, extra, steps, N: tl.constexpr):
    wide: tl.constexpr = wider(x.type.element_ty)
    some: tl.constexpr = steps * 2                      # a hint: this one is known at run time only
    value = tl.load(x + tl.arange(0, N)).to(wide) + some + least(x.dtype.element_ty)
    if extra:
        value += tl.load(extra)
    tl.store(out + tl.arange(0, N), value)


def test_constants_that_hold_functions_types_and_run_time_values():
    x, extra, out = np.arange(16, dtype=np.int32), np.full(1, 100, np.int64), np.zeros(16, np.int64)
    with_constants[(1,)](x, out, extra, 5, N=16)
    assert (out == x + 117).all()
    with_constants[(1,)](x, out, None, 5, N=16)
    assert (out == x + 17).all()


@tilejit.kernel
def where_present(x, out):
    tl.store(out, x.to(tl.int1).to(tl.int32))


def test_a_pointer_is_true_unless_it_is_null():
    out = np.zeros(1, np.int32)
    where_present[(1,)](np.ones(1, np.float32), out)
    assert out[0] == 1


def test_marked_constants_compute_on_the_host():
    a = tl.constexpr(6)
    assert (a + 1).value == 7 and (2 - a).value == -4 and (a / 4).value == 1.5 and (2 ** a).value == 64
    assert 5 < a <= 6 and a == 6 and not a != 6 and -a == -6 and range(10)[a] == 6 and {a: 1}[6] == 1
    assert tl.constexpr((3, 4))[1] == 4 and tl.constexpr(len)("abc") == 3
    assert isinstance(a * 2, tl.constexpr) and not tl.constexpr(0)
    assert _log2(64) == 6


def test_integer_types_by_width():
    assert get_int_dtype(16, False) == tl.uint16 and get_int_dtype(1, True) == tl.int1
    with pytest.raises(ValueError, match="bitwidth 24"):
        get_int_dtype(24, True)


@tilejit.kernel
def both_transposed(a, b, c, S: tl.constexpr):
    i = tl.arange(0, S)[:, None] * S + tl.arange(0, S)[None, :]
    tl.store(c + i, tl.dot(tl.load(a + i), tl.load(b + i), trans_a=True, trans_b=True))


def test_products_of_transposed_operands():
    a, b = (np.random.default_rng(s).standard_normal((32, 32)).astype(np.float16) for s in (1, 2))
    c = np.zeros((32, 32), np.float32)
    both_transposed[(1,)](a, b, c, S=32)
    np.testing.assert_allclose(c, a.T.astype(np.float32) @ b.T.astype(np.float32), rtol=1e-3, atol=1e-2)


@tilejit.kernel
def asks_for_what_is_not_there(x):
    tl.store(x, tl.sum(tl.arange(0, 16), 0, no_brakes=True))


def test_a_keyword_that_is_not_there_is_named_as_it_was_written():
    with pytest.raises(tilejit.CompilationError, match="unexpected keyword argument 'no_brakes'"):
        asks_for_what_is_not_there[(1,)](np.zeros(1, np.int32))


def test_cublas_under_tritons_name():
    torch = pytest.importorskip("torch")
    a, b, d, c = torch.randn(8, 5), torch.randn(7, 5), torch.randn(8, 7), torch.empty(8, 7)
    handle = libtriton.nvidia.cublas.CublasLt(torch.empty(64, dtype=torch.int8))
    handle.matmul(a, b, c)
    torch.testing.assert_close(c, a @ b.T)
    handle.gemm(a, b, d, c, 2.0, 3.0)
    torch.testing.assert_close(c, 2 * a @ b.T + 3 * d)


def test_peaks_of_a_gpu():
    per_clock = 132 * 1e-3                              # multiprocessors, and kHz of 1 GHz in tera
    assert testing.get_max_tensorcore_tflops(tl.float16, 10 ** 6) == pytest.approx(4096 * per_clock)
    assert testing.get_max_simd_tflops(tl.float32, 10 ** 6) == pytest.approx(256 * per_clock)
    with pytest.raises(RuntimeError, match="not supported"):
        testing.get_max_simd_tflops(tl.int8, 10 ** 6)


@tilejit.kernel
def row_under_a_mask(x, out, N: tl.constexpr):
    rows, columns = tl.arange(0, 4)[:, None], tl.arange(0, N)[None, :]
    tl.store(out + rows * N + columns, tl.load(x + columns, mask=columns < rows * 4, other=-rows.to(tl.float32)))


def test_pointers_masks_and_others_of_a_load_are_broadcast():
    x, out = np.arange(16, dtype=np.float32), np.zeros((4, 16), np.float32)
    row_under_a_mask[(1,)](x, out, N=16)
    i, j = np.indices((4, 16))
    assert (out == np.where(j < i * 4, x, -i)).all()


def around_it(factor):
    @JITFunction
    def kernel(out):
        tl.store(out, factor)
    return kernel


def test_texts_and_surroundings_of_kernels():
    kernel = around_it(5)
    assert kernel.get_capture_scope()["factor"] == 5 and kernel.get_capture_scope()["np"] is np
    assert kernel.file_name == __file__ and not kernel.is_gluon()
    lines = open(__file__).read().split("\n")
    assert lines[kernel.starting_line_number - 1].strip() == kernel.raw_src[0].strip() == "@JITFunction"
    assert lines[kernel.def_file_line_number - 1][kernel.def_file_col_number:] == "def kernel(out):"


@tilejit.kernel
def scalars_as_tiles(x, out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    known = n > 0
    keep = (i < n) & known[:, None]                             # Triton makes one element of a number
    for k in range(0, n, step=2):
        tl.store(out + i, tl.load(x + i) + k.to(get_int_dtype(bitwidth=x.dtype.element_ty.primitive_bitwidth,
                                                              signed=True)), mask=keep)


def test_indexed_numbers_keywords_of_range_and_integer_types_in_kernels():
    x, out = np.arange(32, dtype=np.int16), np.zeros(32, np.int16)
    scalars_as_tiles[(1,)](x, out, 7, N=32)
    assert (out == np.where(np.arange(32) < 7, x + 6, 0)).all()


@tilejit.kernel
def addresses_in_assembly(x, out):
    at = tl.inline_asm_elementwise("add.u64 $0, $1, 4;", "=l, l", [x + tl.arange(0, 32)], dtype=x.dtype, is_pure=True,
                                   pack=1)
    tl.inline_asm_elementwise("{ .reg .u32 %t; st.global.b32 [$1], 7; }", "=r, l", [out + 32], dtype=out.dtype,
                              is_pure=False, pack=1)       # the result is a dummy
    tl.store(out + tl.arange(0, 32), tl.load(at))


def test_results_of_assembly_that_are_addresses():
    x, out = np.arange(33, dtype=np.int32), np.zeros(33, np.int32)
    addresses_in_assembly[(1,)](x, out)
    assert (out == [*x[1:], 7]).all()


def test_functions_of_authors_get_constants_marked(triton):
    from triton.language import core

    @core.extern
    def load(ptr, suffix: core.constexpr, _semantic=None):
        form = {"b32": "r"}[suffix.value]
        return inner(ptr, suffix.value, form, _semantic=_semantic)

    @core.extern
    def inner(ptr, suffix, form, _semantic=None):
        return core.inline_asm_elementwise(f"ld.global.{suffix} $0, [$1];", f"={form},l", [ptr], dtype=core.int32,
                                           is_pure=False, pack=1, _semantic=_semantic)

    @triton.jit
    def kernel(x, out):
        i = core.arange(0, 32)
        core.store(out + i, load(x + i, "b32"))

    x, out = np.arange(32, dtype=np.int32), np.zeros(32, np.int32)
    kernel[(1,)](x, out)
    assert (out == x).all()


def test_constants_are_freed_of_their_mark(triton):
    from triton.language import core

    @triton.jit
    def kernel(out, kind: core.constexpr):
        kind = core._unwrap_if_constexpr(kind)
        value = core._unwrap_if_constexpr(core.load(out)).to(kind)
        core.store(out, value.to(core.float32))

    out = np.full(1, 2.75, np.float32)
    kernel[(1,)](out, core.int32)
    assert out[0] == 2
    assert core._unwrap_if_constexpr([core.constexpr(3), (core.constexpr("a"), 1)]) == [3, ("a", 1)]


@tilejit.kernel
def unpacks_some(out):
    i, j = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tl.store(out + 2 * i + j, 2 * i + j)


def test_functions_of_constants_may_be_marked_twice():
    assert constexpr_function(get_int_dtype) is get_int_dtype


def test_values_that_no_name_is_left_for():
    out = np.full(4, -1, np.int32)
    unpacks_some[(2, 2)](out)
    assert out.tolist() == [0, 1, 2, 3]
    assert any("3 values are unpacked into 2 names" in line for line in unpacks_some.compile(out).report_lines)


@tilejit.kernel
def weighted(mean, weight, other, more):
    total = weight + more
    return mean + (other - mean) * tl.where(total == 0.0, 0.0, more / total), total


@tilejit.kernel
def numbers_as_scalars(x, out, n, m, target, N: tl.constexpr):
    offset = 0
    i = tl.arange(0, N)
    at = i[:, None] + offset[None, :]                           # of one element in its second dimension
    tl.store(out + at, tl.load(x + at), mask=at + offset[None, :] >= target)
    mean, weight = tl.reduce((tl.load(x + i).to(tl.float32), i < 1), 0, weighted)
    tl.store(out + N, mean + weight + ((n > 0) + (m > 0)))      # booleans are of one bit


def test_numbers_are_scalars_and_booleans_of_one_bit():
    x = np.arange(3, 35, dtype=np.int32)
    for n, m in ((2, 2), (2, 0)):
        out = np.zeros(33, np.int32)
        numbers_as_scalars[(1,)](x, out, n, m, target=2, N=32)
        assert (out == [0, 0, *x[2:], 3 + 1 + (m == 0)]).all()


def test_compiled_parameters_may_have_names_of_options(triton):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    @triton.jit
    def kernel(target, num_warps):
        triton.language.store(target, num_warps)

    source = ASTSource(kernel, {"target": "*fp32", "num_warps": "i32"})
    assert ".target sm_90a" in triton.compile(source, GPUTarget("cuda", 90, 32)).asm["ptx"]


@tilejit.kernel
def methods_of_operators(x, out, N: tl.constexpr):
    v = tl.load(x + tl.arange(0, N))
    low = v.__lshift__(4).__rshift__(4).to(tl.int32)
    tl.store(out + tl.arange(0, N), tl.where(v.__lt__(0).__not__(), low.__rsub__(N).__neg__(), low.__invert__()))
    tl.store(out + N, (5).__add__(tl.sum(v.to(tl.int32))))


def test_operators_are_methods_too():
    x, out = np.arange(-16, 16, dtype=np.int8), np.zeros(33, np.int32)
    methods_of_operators[(1,)](x, out, N=32)
    low = (x << 4 >> 4).astype(np.int32)
    assert (out == [*np.where(x >= 0, low - 32, ~low), 5 + x.sum()]).all()


def test_libdevice_has_the_places_that_it_had_in_triton_2(triton):
    import triton.language as tl
    from triton.language.libdevice import fast_dividef

    @triton.jit
    def kernel(x):
        at = x + tl.arange(0, 4)
        tl.store(at, fast_dividef(tl.math.pow(tl.load(at), 2.0), tl.libdevice.fast_expf(0.0)))

    x = np.arange(4, dtype=np.float32)
    kernel[(1,)](x)
    np.testing.assert_allclose(x, [0, 1, 4, 9], rtol=1e-6)


def test_parts_of_triton_for_other_gpus_are_named_as_lacking(triton):
    import triton.language as tl

    @triton.jit
    def kernel(x):
        tl.store(x, tl.extra.hip.libdevice.round(tl.load(x)))

    with pytest.raises(CompilationError, match="Triton has 'hip', tilejit does not have it"):
        kernel[(1,)](np.zeros(1, np.float32))


def test_modules_that_packages_import():
    assert testing.runtime.driver.active and cache.default_cache_dir()
    with pytest.raises(ModuleNotFoundError, match="tilejit has no Gluon"):
        _alias._finder.find_spec("triton.experimental")
    made = copy.compile("*fp32", "*fp32", N=32)
    if made.cubin is not None and find_tool("nvdisasm"):
        assert "LDG" in get_sass(made.cubin)
