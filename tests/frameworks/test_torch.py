"""Kernels inside torch's compiled and exported programs, and operators made of them. Needs torch (the `torch` extra)."""
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tilejit  # noqa: E402
import tilejit.language as tl  # noqa: E402
from tilejit.errors import LaunchError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def emulated():
    torch._dynamo.reset()
    with tilejit.knobs(target="emulator"):
        yield


@pytest.fixture(params=["eager", "aot_eager"])
def backend(request):
    return request.param


@tilejit.kernel
def scale_kernel(x, out, factor, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) * factor, at < n)


@tilejit.kernel
def block_kernel(x, out, factor, DTYPE: tl.constexpr, SIDE: tl.constexpr):
    row = tl.program_id(0) * SIDE
    out.store([row, 0], (x.load([row, 0]) * factor).to(DTYPE))


@tilejit.kernel
def twice(v):
    return v + v


@tilejit.kernel
def apply_kernel(x, out, n, FN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, FN(tl.load(x + at, at < n)), at < n)


tuned_kernel = tilejit.autotune([tilejit.Config({"BLOCK": b}) for b in (32, 128)], key=["n"])(scale_kernel)
chosen_kernel = tilejit.heuristics({"BLOCK": lambda a: tilejit.next_power_of_2(max(16, a["n"] // 3))})(scale_kernel)


def scaled(x, factor=3.0, kernel=scale_kernel, **given):
    out = torch.empty_like(x)
    kernel[lambda meta: (tilejit.cdiv(x.numel(), meta["BLOCK"]),)](x, out, factor, x.numel(), **given)
    return out


def by_blocks(x):
    out = torch.empty_like(x)
    src = tilejit.TensorDescriptor.from_tensor(x, [16, 32])
    dst = tilejit.TensorDescriptor(out, out.shape, out.stride(), [16, 32])
    block_kernel[(x.shape[0] // 16,)](src, dst, 3.0, DTYPE=tl.float32, SIDE=16)
    return out


def applied(x):
    out = torch.empty_like(x)
    apply_kernel[(tilejit.cdiv(x.numel(), 64),)](x, out, x.numel(), FN=twice, BLOCK=64, num_warps=2)
    return out * 1.5


PROGRAMS = {
    "plain": lambda x: scaled(x * 1, BLOCK=64) + 0,
    "tuned": lambda x: scaled(x, kernel=tuned_kernel),
    "heuristics": lambda x: scaled(x, kernel=chosen_kernel),
    "partial": lambda x: scaled(x, kernel=scale_kernel.partial(BLOCK=64, num_warps=2)),
    "blocks": by_blocks,
    "kernel as argument": applied,
    "twice": lambda x: scaled(scaled(x, 1.5, BLOCK=64), 2.0, BLOCK=32),
}


@pytest.mark.parametrize("program, backend, dynamic", [
    *[(p, "aot_eager", d) for p in PROGRAMS for d in (None, True)], ("plain", "eager", None), ("tuned", "eager", True)])
def test_compiled(program, backend, dynamic):
    """No graph break, and another shape afterwards."""
    compiled = torch.compile(PROGRAMS[program], backend=backend, fullgraph=True, dynamic=dynamic)
    for rows in (16, 48):
        x = torch.randn(rows, 32)
        assert torch.equal(compiled(x), 3 * x), rows


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("program", ["plain", "tuned", "blocks", "twice"])
def test_exported(program, strict):
    class Module(torch.nn.Module):
        def forward(self, x):
            return PROGRAMS[program](x)

    x = torch.randn(32, 32)
    exported = torch.export.export(Module(), (x,), strict=strict)
    assert torch.equal(exported.module()(x), 3 * x)
    assert any("tilejit." in str(n.target) for n in exported.graph.nodes)


def test_only_what_is_written_is_declared_changed():
    """The program's input is not copied for a launch that reads it."""
    seen = []

    def backend(module, inputs):
        seen.extend(str(getattr(n.target, "default", n.target)._schema) for n in module.graph.nodes if "tilejit" in str(n.target))
        return module

    torch.compile(lambda x: scaled(x, BLOCK=64), backend=backend, fullgraph=True)(torch.randn(64))
    assert len(seen) == 1 and "(Tensor x, Tensor(out!) out, float factor, SymInt n, SymInt[] grid_) -> ()" in seen[0], seen


def test_programs_of_triton(backend):
    """The same through Triton's names: plain, tuned, and with heuristics above both."""
    import tilejit.compat.triton as triton

    def body(x, out, factor, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, at < n) * factor, at < n)

    plain = triton.jit(body)
    tuned = triton.autotune([triton.Config({"BLOCK": b}) for b in (32, 128)], key=["n"])(triton.jit(body))
    chosen = triton.heuristics({"factor": lambda a: 3.0})(tuned)
    x = torch.randn(300)
    grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)

    def program(x):
        first, second, third = (torch.empty_like(x) for _ in range(3))
        plain[grid](x, first, 3.0, x.numel(), BLOCK=64, num_warps=2)
        tuned[grid](x, second, 3.0, x.numel())
        chosen[grid](x, third, n=x.numel())
        return first + 0, second + 0, third + 0

    for found in torch.compile(program, backend=backend, fullgraph=True)(x):
        assert torch.equal(found, 3 * x)


def test_inside_autograd_functions(backend):
    """The usual way to a gradient: kernels in the forward and the backward of an autograd.Function."""
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return scaled(x, BLOCK=64)

        @staticmethod
        def backward(ctx, grad):
            return scaled(grad.contiguous(), BLOCK=64)

    x = torch.randn(100, requires_grad=True)
    torch.compile(lambda x: (Scale.apply(x * 2) + 1).sum(), backend=backend, fullgraph=True)(x).backward()
    assert torch.equal(x.grad, torch.full((100,), 6.0))


def test_what_no_operator_takes():
    def program(x):
        scale_kernel[(1,)](x, x, {"a": 1}, 3, BLOCK=16)

    with pytest.raises(Exception, match="a dict cannot be an argument of a kernel"):
        torch.compile(program, backend="eager", fullgraph=True)(torch.randn(3))


@tilejit.torch_op("tilejit_tests::scale")
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return scaled(x, factor, BLOCK=64)


def _remember(ctx, inputs, output):
    ctx.factor = inputs[1]


scale.register_autograd(lambda ctx, grad: (scale(grad.contiguous(), ctx.factor), None), setup_context=_remember)


@tilejit.torch_op("tilejit_tests::scale_", mutates=["x"])
def scale_(x: torch.Tensor, factor: float) -> None:
    scale_kernel[(tilejit.cdiv(x.numel(), 64),)](x, x, factor, x.numel(), BLOCK=64)


@tilejit.torch_op("tilejit_tests::plain", "(Tensor x) -> Tensor")
def without_gradient(x):
    return scaled(x, BLOCK=64)


def test_operators_pass_opcheck():
    x = torch.randn(100)
    for args in ((x, 3.0), (x.clone().requires_grad_(), 3.0)):
        torch.library.opcheck(scale.overload, args)
    torch.library.opcheck(scale_.overload, (x, 3.0))
    torch.library.opcheck(without_gradient.overload, (x,))


def test_operators_run_as_functions_where_torch_need_not_know(monkeypatch):
    x = torch.randn(100)
    monkeypatch.setattr(type(scale), "define", None)
    assert torch.equal(scale(x, 3.0), 3 * x)
    with torch.no_grad():
        assert torch.equal(scale(x.clone().requires_grad_(), 3.0), 3 * x)


def test_gradients_of_operators(backend):
    x = torch.randn(100, requires_grad=True)
    for f in (scale, torch.compile(scale, backend=backend, fullgraph=True)):
        x.grad = None
        f(x, 2.0).sum().backward()
        assert torch.equal(x.grad, torch.full((100,), 2.0))
    changed = torch.compile(lambda x: scale_(y := x + 0, 2.0) or y, backend=backend, fullgraph=True)
    assert torch.equal(changed(x.detach()), 2 * x.detach())
    with pytest.raises(LaunchError, match="has no gradient: give it one"):
        without_gradient(x).sum().backward()
    with pytest.raises(LaunchError, match="return new arrays"):
        scale_.register_autograd(lambda ctx: None)


def test_the_newest_gradient_counts():
    """Also for an operator whose node was made before, and whose calls are replayed; graphs that are there keep theirs."""
    @tilejit.torch_op("tilejit_tests::replayed_scale", "(Tensor x, float factor=1.0) -> Tensor", replay=True)
    def twice(x, factor=1.0):
        return scaled(x, 2.0, BLOCK=64)

    x = torch.randn(100, requires_grad=True)
    found = []
    for slope in (2.0, 3.0):
        twice.register_autograd(lambda ctx, grad, slope=slope: (grad * slope, None))
        for _ in range(3):
            found.append((slope, twice(x)))
    for slope, y in found:
        assert torch.equal(y.detach(), 2 * x.detach())
        assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.full((100,), slope))


def test_operators_in_exported_programs_and_under_vmap():
    class Module(torch.nn.Module):
        def forward(self, x):
            return scale(x, 3.0)

    x = torch.randn(4, 32)
    exported = torch.export.export(Module(), (x,), dynamic_shapes={"x": {0: torch.export.Dim("rows")}})
    assert any("tilejit_tests.scale" in str(n.target) for n in exported.graph.nodes)
    assert torch.equal(exported.module()(x[:3]), 3 * x[:3])
    assert torch.equal(torch.vmap(lambda r: scale(r, 3.0))(x), 3 * x)


def test_errors_of_definitions():
    with pytest.raises(LaunchError, match="expected a name like"):
        tilejit.torch_op("scale", "(Tensor x) -> Tensor")(lambda x: x)
    with pytest.raises(LaunchError, match="annotate it, or give a schema"):
        @tilejit.torch_op("tilejit_tests::untyped")
        def untyped(x):
            return x


def test_a_gradient_is_a_node_and_a_mode_sees_the_operator():
    """Calls that want a gradient do not go through the dispatcher, unless somebody listens to that."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from tilejit import kernels

    class Listening(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            heard.append(str(func))
            return func(*args, **(kwargs or {}))

    heard = []
    x = torch.randn(3, 40, requires_grad=True)
    y = kernels.softmax(x)
    assert type(y.grad_fn).__name__ == "softmaxBackward"
    weights = torch.randn_like(y)
    y.backward(weights)
    want = torch.autograd.grad(torch.softmax(x, 1), x, weights)[0]
    torch.testing.assert_close(x.grad, want)
    with Listening():
        seen = kernels.softmax(x)
        plain = kernels.softmax(x.detach())
    assert sum("tilejit.softmax" in name for name in heard) == 2 and seen.requires_grad and not plain.requires_grad
    again = torch.autograd.grad(seen, x, weights)[0]
    torch.testing.assert_close(again, want)
    with pytest.raises((TypeError, RuntimeError)):
        kernels.softmax(x, x, x)


def test_gradients_of_gradients_go_through_nodes():
    from tilejit import kernels

    x = torch.randn(8, 16, requires_grad=True)
    w = torch.randn(16, 8, requires_grad=True)
    first = torch.autograd.grad(kernels.matmul(x, w).square().sum(), x, create_graph=True)[0]
    second = torch.autograd.grad(first.sum(), w)[0]
    wanted = torch.autograd.grad(torch.autograd.grad((x @ w).square().sum(), x, create_graph=True)[0].sum(), w)[0]
    torch.testing.assert_close(second, wanted, rtol=2e-2, atol=0.2)
