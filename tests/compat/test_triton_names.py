"""`tilejit.compat.triton`: programs written for Triton run with tilejit in its place."""
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilejit.language as tl

HERE = Path(__file__).parent


def adder(triton, **options):
    import triton.language as tl

    @triton.jit(**options)
    def add(x, out, n, K: tl.constexpr = 1):
        i = tl.program_id(0) * 64 + tl.arange(0, 64)
        tl.store(out + i, tl.load(x + i, mask=i < n) + K, mask=i < n)

    return add


def launch(kernel, **kwargs):
    x, out = np.arange(100, dtype=np.int32), np.zeros(100, np.int32)
    made = kernel[(2,)](x, out, 100, **kwargs)
    return x, out, made


@pytest.mark.parametrize("arguments", [["script_for_triton.py", "a", "-b"], ["-m", "script_for_triton", "a", "-b"]])
def test_a_script_runs_unchanged(arguments):
    done = subprocess.run([sys.executable, "-m", "tilejit.compat.triton", *arguments], cwd=HERE, text=True,
                          capture_output=True, env={**__import__("os").environ, "PYTHONPATH": str(HERE.parents[1])})
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["ran", "tilejit.compat.triton", "a", "-b"]


def test_names_lead_to_one_object(triton):
    import triton.language as tl
    from triton.language import core
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction
    from triton.tools.tensor_descriptor import TensorDescriptor

    import tilejit

    assert tl.float32 is core.float32 is tilejit.language.float32 and tl.load is tilejit.language.load
    assert TensorDescriptor is tilejit.TensorDescriptor and JITFunction is triton.JITFunction
    from triton.language.extra.cuda import gdc, utils

    assert utils.num_warps is tl.extra.cuda.num_warps and gdc.gdc_wait is tl.extra.cuda.gdc_wait
    from triton.backends.nvidia.compiler import min_dot_size

    assert min_dot_size(driver.active.get_current_target())(tl.float16, tl.float16) == (1, 1, 16)
    assert not isinstance(driver.active, triton.backends.compiler.BaseBackend)
    assert triton.backends.compiler.GPUTarget is triton.runtime.driver.driver.active.get_current_target().__class__
    assert driver.active.get_current_target().arch == 90 and driver.active is triton.runtime.driver.active
    with pytest.raises(ModuleNotFoundError, match="triton.experimental"):
        __import__("triton.experimental")
    with pytest.raises(AttributeError, match="'triton.language' has no attribute 'lode'"):
        tl.lode  # noqa: B018


def test_compiled_kernels_have_tritons_attributes(triton):
    named = launch(adder(triton, repr=lambda s: f"add_{s.constants['K']}"))[2]
    assert named.name == named.metadata.name == "add_1"
    add = adder(triton)
    x, out, made = launch(add)
    assert (out == x + 1).all()
    assert made.n_regs > 0 and made.n_spills == 0 and made.metadata.shared == made.metadata["shared"] == 0
    assert ".entry" in made.asm["ptx"] and set(made.asm) >= {"ttir", "ttgir", "cubin"}
    out[:] = 0
    made[(2,)](x, out, 100)
    assert (out == x + 1).all()
    assert [p.is_constexpr for p in add.params] == [False, False, False, True] and add.arg_names == ["x", "out", "n", "K"]
    warm = add.warmup(x, out, 100, K=5, grid=(1,))
    assert warm.metadata.num_warps == 4 and len(add.device_caches[0][0]) == 2


def test_a_kernels_text_can_be_replaced(triton):
    add = adder(triton)
    key = add.cache_key
    add.fast = None                       # a launcher of the old text
    add._unsafe_update_src(add.src.replace("+ K", "* 3"))
    x, out, _ = launch(add)
    assert (out == 3 * x).all() and add.cache_key != key and add.fast == add._slowly


def test_hooks_fire(triton):
    seen = []
    add = adder(triton, launch_metadata=lambda grid, kernel, args: {"flops": grid[0] * args["n"]})
    add.add_pre_run_hook(lambda *args, **kwargs: seen.append("run"))
    runtime = triton.knobs.runtime
    enter, leave = (lambda m: seen.append(m.get()["flops"])), (lambda m: seen.append(m.get()["name"]))
    with runtime.scope():
        runtime.jit_cache_hook = lambda **k: seen.append(k["compile"]["num_warps"])
        runtime.jit_post_compile_hook = lambda **k: seen.append(k["fn"].name.rsplit(".", 1)[-1])
        runtime.launch_enter_hook.add(enter)
        runtime.launch_exit_hook.add(leave)
        try:
            launch(add, num_warps=2)
            launch(add, num_warps=2)
        finally:
            runtime.launch_enter_hook.remove(enter)
            runtime.launch_exit_hook.remove(leave)
    assert seen == ["run", 2, "add", 200, "add", "run", 200, "add"]
    assert runtime.jit_cache_hook is None


def test_hooks_fire_from_where_they_were(triton):
    seen, JITFunction = [], triton.runtime.jit.JITFunction
    assert JITFunction.cache_hook is None and JITFunction.compiled_hook is None
    JITFunction.cache_hook = lambda **k: seen.append(k["compile"]["num_warps"])
    JITFunction.compiled_hook = lambda **k: seen.append(k["fn"].name.rsplit(".", 1)[-1])
    try:
        launch(adder(triton), num_warps=2)
    finally:
        JITFunction.cache_hook = JITFunction.compiled_hook = None
    assert seen == [2, "add"]


def test_hooks_of_launches_are_those_of_tilejit(triton):
    """A function in the place of the chain, a scope that ends, kernels that are not Triton's; nothing stays behind."""
    import tilejit

    @tilejit.kernel
    def plain(out):
        tl.store(out + tl.arange(0, 16), 1)

    seen, runtime, add = [], triton.knobs.runtime, adder(triton)
    with runtime.scope():
        runtime.launch_exit_hook = lambda m: seen.append(m.get()["function"].metadata.shared)
        assert len(tilejit.hooks.active) == 1
        launch(add)
        plain[(1,)](np.zeros(16, np.int32))
        runtime.launch_exit_hook = None
        launch(add)
        runtime.launch_enter_hook = lambda m: seen.append(m.get()["stream"])
    launch(add)
    assert seen == [0, 0] and not tilejit.hooks.active


def test_unknown_options_are_refused_and_tritons_own_accepted(triton):
    add = adder(triton)
    x, out, _ = launch(add, warp_size=32, num_stages=3)
    assert (out == x + 1).all()
    with pytest.raises(KeyError, match="num_warp was specified but unrecognised"):
        launch(add, num_warp=4)


def test_arguments_of_another_element_type(triton):
    torch = pytest.importorskip("torch")
    import triton.language as tl

    x, out = torch.full((64,), -2, dtype=torch.int16), torch.zeros(64, dtype=torch.int32)
    adder(triton)[(1,)](triton.reinterpret(x, tl.uint16), out, 64)
    assert (out == 65535).all()


def test_names_of_default_values_are_not_the_kernels(triton):
    """A global that a default value was computed from may change: the default was taken when the kernel was made."""
    import triton.language as tl

    global START
    START = 3

    @triton.jit
    def fill(out, K: tl.constexpr = START):
        tl.store(out + tl.arange(0, 16), K)

    out = np.zeros(16, np.int32)
    fill[(1,)](out)
    START = 4
    fill[(1,)](out)
    assert (out == 3).all()
    with pytest.raises(OverflowError, match="does not fit 64 bits"):
        fill[(1,)](2 ** 64)


def test_a_text_that_other_kernels_use_is_replaced_for_them_too(triton):
    import triton.language as tl

    @triton.jit
    def one():
        return 1

    @triton.jit
    def fill(out, F: tl.constexpr):
        tl.store(out + tl.arange(0, 16), F())

    out = np.zeros(16, np.int32)
    fill[(1,)](out, one)
    one._unsafe_update_src(one.src.replace("1", "7"))
    fill[(1,)](out, one)
    assert (out == 7).all()


def test_kernels_are_compiled_ahead(triton):
    """By what a hook was told in another process, and by threads."""
    from concurrent.futures import ThreadPoolExecutor

    add, told = adder(triton), []
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.jit_cache_hook = lambda **k: told.append(k["compile"]["specialization_data"])
        first = add.warmup("*i32", "*i32", 100, grid=(1,))
        add.device_caches[0][0].clear()
        assert add.preload(told[0]).hash == first.hash
        launch(add)
        assert len(told) == 2
        with pytest.raises(RuntimeError, match="Specialization data is for"):
            adder(triton, noinline=True).preload(told[0].replace("add", "sub"))
        with ThreadPoolExecutor(2) as pool, triton.AsyncCompileMode(pool):
            made = [add.warmup("*i32", "*i32", 100, K=k, grid=(1,)) for k in (2, 3)]
        assert [m.result().metadata.num_warps for m in made] == [4, 4]


def test_no_warp_specialisation_asked_for_is_not_one_forbidden(triton):
    """Triton's default of `tl.range`, written out: the scheduler may give loads a role of their own."""
    import triton.language as tl

    @triton.jit
    def multiply(a, b, c, K, SPECIALIZE: tl.constexpr):
        acc = tl.zeros((128, 128), tl.float32)
        for k in tl.range(0, K, 64, warp_specialize=SPECIALIZE):
            acc = tl.dot(a.load([0, k]), b.load([k, 0]), acc)
        c.store([0, 0], acc.to(tl.bfloat16))

    import tilejit

    kernel = tilejit.kernel(multiply.fn) if hasattr(multiply, "fn") else multiply
    blocks = "desc<bf16[128x64]>", "desc<bf16[64x128]>", "desc<bf16[128x128]>"
    for asked in (False, True, None):
        assert "producer warp" in kernel.compile(*blocks, "int32", SPECIALIZE=asked, num_warps=8).report()


def test_errors_say_their_place_in_tritons_way_too(triton):
    import triton.language as tl

    @triton.jit
    def wrong(x):
        y = 1
        tl.static_assert(y == 2, "two")

    @triton.jit
    def refused(x):
        tl.arange(0, 5.5)

    with pytest.raises(triton.compiler.errors.CompileTimeAssertionFailure, match="at 3:4:\ndef wrong") as failed:
        wrong[(1,)](np.zeros(1, np.float32))
    assert failed.value.__cause__ is None and str(failed.value).endswith("static_assert failed: two")
    with pytest.raises(triton.CompilationError, match="at 2:4:") as failed:
        triton.compile(triton.compiler.ASTSource(refused, {"x": "*fp32"}))
    assert str(failed.value.__cause__) == failed.value.message
    with pytest.raises(triton.OutOfResources, match="threads, Required: 4096"):
        launch(adder(triton), num_warps=128)


def test_too_much_shared_memory_is_out_of_resources(triton):
    """What tuners of other programs catch, with what is needed and what there is."""
    import triton.language as tl

    @triton.jit
    def picked(x, out, N: tl.constexpr):
        at = tl.arange(0, N)
        tl.store(out + at, tl.gather(tl.cumsum(tl.load(x + at), 0), N - 1 - at, 0))

    x = np.zeros(1 << 16, np.float32)
    with pytest.raises(triton.runtime.errors.OutOfResources, match="out of resource: shared memory, Required") as caught:
        picked[(1,)](x, x.copy(), x.size)
    assert caught.value.required > caught.value.limit and "bytes" in str(caught.value.__cause__)


def test_what_would_change_a_kernel_is_refused(triton):
    from tilejit.errors import LaunchError

    add = adder(triton)
    with pytest.raises(LaunchError, match="ir_override: Triton's IR cannot take the place"):
        launch(add, ir_override="add.ttgir")
    with pytest.raises(LaunchError, match="extern_libs: mine: bitcode cannot be linked"):
        launch(add, extern_libs={"mine": "/somewhere/mine.bc", "libdevice": "libdevice.10.bc"})
    x, out, _ = launch(add, extern_libs={"libdevice": "libdevice.10.bc"})
    assert np.array_equal(out, x + 1)


def test_libraries_and_subnormals_are_part_of_a_kernels_key(triton):
    import triton.language as tl

    @triton.jit
    def power(x):
        at = x + tl.arange(0, 16)
        tl.store(at, tl.math.exp2(tl.load(at)))

    asked = []

    def hook(*, compile, **_):
        asked.append(compile["extern_libs"])

    x = np.full(16, -127, np.float32)
    triton.knobs.runtime.jit_cache_hook = hook
    try:
        for options, result in (({}, 0), ({"extern_libs": {"libdevice": "a.bc"}}, 0), ({"extern_libs": {}}, 0),
                                ({"enable_reflect_ftz": False}, 2.0 ** -127)):
            for _ in range(2):
                x[:] = -127
                power[(1,)](x, **options)
                assert (x == np.float32(result)).all()
    finally:
        triton.knobs.runtime.jit_cache_hook = None
    assert asked == [(), (("libdevice", "a.bc"),), ()]


def test_settings(triton, monkeypatch):
    """Of the environment until they are set, and then in the environment too; of a program's own groups as well."""
    import triton.knobs as knobs

    class Own(knobs.base_knobs):
        size = knobs.env_int("OWN_SIZE", 3)
        on = knobs.env_opt_bool("OWN_ON")

    own = Own()
    assert own.knobs == {"size": 3, "on": None}
    monkeypatch.setenv("OWN_SIZE", "5")
    with own.scope():
        own.on = True
        assert own.knobs == {"size": 5, "on": True} and __import__("os").environ["OWN_ON"] == "1"
        own.on = knobs.env
        assert own.on is True
    assert own.on is None
    monkeypatch.setenv("OWN_SIZE", "many")
    with pytest.raises(RuntimeError, match="Unable to use OWN_SIZE=many"):
        own.size  # noqa: B018


def test_options_from_settings(triton):
    """Fusion of products and sums, and the chip."""
    import triton.language as tl

    @triton.jit
    def fused(x):
        i = tl.arange(0, 64)
        tl.store(x + i, tl.load(x + i) * 1.5 + 1.0)

    def compiled():
        return fused.warmup(np.zeros(64, np.float32), grid=(1,))

    assert "fma" in compiled().asm["ptx"] and compiled().metadata.arch == "sm_90a"
    with triton.knobs.language.scope(), triton.knobs.runtime.scope():
        triton.knobs.language.default_fp_fusion = False
        triton.knobs.runtime.override_arch = "sm80"
        assert "fma" not in compiled().asm["ptx"] and compiled().metadata.arch == "sm_80"


def test_constants_of_the_host_have_operators(triton):
    three = triton.language.constexpr(3)
    assert (three + 4).value == (4 + three).value == 7 and (7 - three).value == 4 and (three * three).value == 9
    assert (2 ** three).value == 8 and (-three).value == -3 and (three < 5) and not (three >= 5) and three == 3
    assert triton.language.constexpr((5, 6))[three - 2].value == 6 and list(range(three)) == [0, 1, 2]


def test_helpers_of_the_host_are_tritons(triton):
    assert [triton.next_power_of_2(n) for n in (-5, -1, 0, 1, 2, 3, 1025)] == [0, 0, 0, 1, 2, 4, 2048]
    assert [triton.cdiv(*x) for x in ((5, 3), (-5, 3), (0, 4))] == [2, -1, 0]


def test_questions_about_the_chip(triton):
    import triton.language as tl
    from triton.language import target_info

    @triton.jit
    def chosen(out):
        if target_info.cuda_capability_geq(9, 0) and target_info.is_cuda() and not target_info.is_hip_cdna4():
            tl.store(out, 1)
        else:
            tl.store(out, 2)

    out = np.zeros(1, np.int32)
    chosen[(1,)](out)
    assert out[0] == 1


def test_functions_of_cudas_library_by_symbol(triton):
    """As authors declare them; what is of another library cannot be linked."""
    import triton.language as tl
    from triton.language import core

    kinds = {n: core.dtype(n) for n in ("fp32", "fp64")}

    @core.extern
    def power(x, y, _semantic=None):
        return core.extern_elementwise("libdevice", "", [x, y], {
            (kinds["fp32"],) * 2: ("__nv_powf", kinds["fp32"]), (kinds["fp64"],) * 2: ("__nv_pow", kinds["fp64"])},
            is_pure=True, _semantic=_semantic)

    @core.extern
    def other(x, _semantic=None):
        return core.extern_elementwise("mine", "", [x], {(kinds["fp32"],): ("mine_f", kinds["fp32"])}, is_pure=True,
                                       _semantic=_semantic)

    @triton.jit
    def apply(x, out, WHICH: tl.constexpr):
        i = tl.arange(0, 32)
        v = tl.load(x + i)
        tl.store(out + i, power(v, 2.0) if WHICH else other(v))

    x, out = np.linspace(0.5, 3, 32, dtype=np.float32), np.zeros(32, np.float32)
    apply[(1,)](x, out, True)
    np.testing.assert_allclose(out, x * x, rtol=1e-6)
    with pytest.raises(triton.CompilationError, match="mine_f: bitcode cannot be linked"):
        apply[(1,)](x, out, False)


def test_runs_of_rows(triton):
    """One descriptor for all runs: nothing outside of a run is read or written."""
    import triton.language as tl
    from triton.tools.ragged_tma import atomic_add_ragged, create_ragged_descriptor, load_ragged, store_ragged

    class Rows(np.ndarray):
        """An array with the members of a tensor."""

        dim = property(lambda self: lambda: self.ndim)
        stride = property(lambda self: lambda d: self.strides[d] // self.itemsize)

    @triton.jit
    def move(X, Y, x_at, x_rows, y_at, y_rows, ADD: tl.constexpr):
        data = load_ragged(X, x_at, x_rows, [0, 0])
        if ADD:
            atomic_add_ragged(Y, y_at, y_rows, [0, 0], data)
        else:
            store_ragged(Y, y_at, y_rows, [0, 0], data)

    x = np.arange(60 * 16, dtype=np.float32).reshape(60, 16).view(Rows)
    for add in (False, True):
        y = np.ones((60, 16), np.float32).view(Rows)
        move[(1,)](create_ragged_descriptor(x, [16, 16]), create_ragged_descriptor(y, [16, 16]), 10, 9, 30, 12, add)
        want = np.ones((60, 16), np.float32)
        want[30:39] = x[10:19] + add
        want[39:42] = add
        np.testing.assert_array_equal(y, want)
    with pytest.raises(ValueError, match="ragged descriptor: expected"):
        create_ragged_descriptor(x, [16, 16], ragged_dim=1)


def test_sizes_of_blocks_are_checked(triton):
    from triton._utils import canonicalize_dtype, validate_block_shape

    assert validate_block_shape([4, 8]) == 32 and canonicalize_dtype(triton.language.float16) == "fp16"
    with pytest.raises(ValueError, match="Shape element 1 must be a power of 2"):
        validate_block_shape([4, 3])


def test_functions_in_processes_of_their_own(triton):
    from tilejit.compat.triton._processes import run_in_process

    assert isinstance(run_in_process(int, ("many",)).exc, ValueError)
    assert run_in_process(__import__("os").write, (2, b"said")).driver_stderr_output == "said"


def test_types_by_the_texts_of_signatures(triton):
    import triton.language as tl

    assert tl.str_to_ty("*kfp16", None) == tl.pointer_type(tl.float16, const=True) and tl.str_to_ty("u8", None) is tl.uint8
    assert tl.str_to_ty("u1", None) is tl.str_to_ty("i1", None) is tl.int1 and tl.str_to_ty("fp8e4b8", None) is tl.float8e4b8
    assert tl.str_to_ty(("*i64", "constexpr"), 3) == tl.tuple_type([tl.pointer_type(tl.int64), tl.constexpr_type(3)])
    desc = tl.str_to_ty("tensordesc<bf16[16, 32]>", None)
    assert isinstance(desc, tl.tensor_descriptor_type) and desc.block_type == tl.block_type(tl.bfloat16, (16, 32))
    assert desc.shape_type == tl.tuple_type([tl.int32] * 2) and str(desc) == "tensor_descriptor<<[16, 32], bf16>>"
    assert tl.void.is_void() and not tl.void.is_int() and not tl.void.is_floating()


def test_types_in_kernels(triton):
    import triton.language as tl
    from triton.tools.tensor_descriptor import TensorDescriptor

    @triton.jit
    def kernel(out, desc, t, T: tl.constexpr):
        KIND: tl.constexpr = tl.dtype.KIND
        tl.static_assert(isinstance(desc.type, tl.tensor_descriptor_type))
        tl.static_assert(desc.type.block_type == T and desc.block_type == T and desc.type.block_type.is_block())
        tl.static_assert(desc.dtype.kind() == KIND.FLOATING and out.dtype.element_ty.kind() == KIND.INTEGRAL)
        tl.static_assert(tl.int1.kind() == tl.dtype.KIND.BOOLEAN)
        tl.static_assert(t[1].type == t.type[1] and t[2].type == t.type[2] and t[1].type != t[2].type)
        tl.static_assert(t[0].type == tl.int32)
        tl.store(out, t[0])

    d = TensorDescriptor.from_tensor(np.zeros((16, 32), np.float16), [16, 32])
    out = np.zeros(1, np.int32)
    kernel[(1,)](out, d, (7, "name", None), tl.block_type(tl.float16, (16, 32)))
    assert out == [7]


class Point(__import__("typing").NamedTuple):
    x: str
    y: str


def test_signatures_of_what_is_compiled(triton):
    import triton.language as tl

    @triton.jit
    def kernel(d, p, q):
        d.store([0, 0], d.load([0, 0]) + (p.x + p.y).to(tl.float16))

    types = {"d": "tensordesc<fp16[32,64]>", "p": Point("i32", "fp64"), "q": ("*fp32", "i64")}
    made = triton.compile(triton.compiler.ASTSource(fn=kernel, signature=types, constexprs={}))
    assert "(%d: desc<fp16[32x64]>" in made.asm["ttir"] and "%p_0: int32, %p_1: fp64, %q_0: ptr<fp32>" in made.asm["ttir"]
    with pytest.raises(triton.CompilationError, match="kernel.ttgir: Triton's IR cannot be compiled"):
        triton.compile("kernel.ttgir")


def test_sizes_of_descriptors_blocks(triton):
    from triton.tools.tensor_descriptor import TensorDescriptor

    with pytest.raises(ValueError, match="Shape element 0 must be a power of 2"):
        TensorDescriptor.from_tensor(np.zeros(128, np.float32), [31])
