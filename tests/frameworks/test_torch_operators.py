"""Every operator that tilejit registers passes torch's own checks (`opcheck`): found by the registry, so that new ones
are checked too. On a GPU the same on CUDA tensors. Needs torch."""
from __future__ import annotations

import importlib
import pkgutil

import pytest

torch = pytest.importorskip("torch")

import tilejit  # noqa: E402
import tilejit.kernels  # noqa: E402
import tilejit.language as tl  # noqa: E402
from tilejit.frameworks.torch_op import TorchOp, operators  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

for _module in pkgutil.walk_packages(tilejit.kernels.__path__, "tilejit.kernels."):
    importlib.import_module(_module.name)
OPERATORS = {n: op for n, op in operators().items() if n.startswith("tilejit::")}

#: Arguments of operators for which those that follow from the schema (`guessed`) are no call: name -> shapes of the
#: tensors (float16 where a dtype is named), and other arguments.
HALF, E4M3 = torch.float16, torch.float8_e4m3fn
#: What follows q, k, v and sinks in attention's operators: no other arrays, causal.
ATTENTION = (*[None] * 7, [], [], [-1, 0, -1, -1, -1, -1, *[0] * 7], [0.125, 0.0, 0.0])
SAMPLES = {
    "matmul": lambda t: [(t(16, 32, dtype=HALF), t(32, 16, dtype=HALF)),
                         (t(16, 32, dtype=HALF), t(32, 16, dtype=HALF), t(16, dtype=HALF), "relu")],
    "matmul_streamk": lambda t: [(t(16, 32, dtype=HALF), t(32, 16, dtype=HALF), t(16, dtype=HALF), "gelu")],
    "batched_matmul": lambda t: [(t(3, 16, 32, dtype=HALF), t(1, 32, 16, dtype=HALF), t(16, dtype=HALF), "silu")],
    "fused_matmul": lambda t: [(t(16, 32, dtype=HALF), t(32, 16, dtype=HALF), None, t(1), t(16, dtype=HALF), "relu",
                                t(16, 16, dtype=HALF))],
    "gated_matmul": lambda t: [(t(16, 32, dtype=HALF), t(2, 16, 32, dtype=HALF).mT)],
    "swiglu": lambda t: [(t(16, 32, dtype=HALF), t(32, 32, dtype=HALF).T, None, None, None, t(16, 16, dtype=HALF))],
    "gated_gradient": lambda t: [(t(16, 16, dtype=HALF), t(16, 32, dtype=HALF), t(2, 16, 32, dtype=HALF).mT,
                                  t(2, 16, dtype=HALF), True, wanted, wanted, "gelu") for wanted in (True, False)],
    **{name: lambda t, a=a, sizes=sizes: [(t(*a, 32, dtype=HALF), t(2, 32, 16, dtype=HALF), int32(t, *sizes))]
       for name, a, sizes in (("grouped_matmul", (16,), (0, 5, 16)), ("masked_grouped_matmul", (2, 8), (8, 8)))},
    "grouped_gradient": lambda t: [
        (t(16, 16, dtype=HALF), t(16, 32, dtype=HALF), t(2, 32, 16, dtype=HALF), True, True, int32(t, 0, 5, 16)),
        (t(2, 8, 16, dtype=HALF), t(2, 8, 32, dtype=HALF), t(2, 32, 16, dtype=HALF), True, False, None, int32(t, 8, 8))],
    "matmul_blockscaled": lambda t: [(t(16, 32, dtype=E4M3), t(16, 32, dtype=E4M3).T, t(16, 1), t(1, 1))],
    "weight_only_matmul": lambda t: [(t(16, 64, dtype=HALF), number(t, 100, 16, 64).to(torch.int8), t(16))],
    "product_gradient": lambda t: [(t(16, 24, dtype=HALF), t(16, 32, dtype=HALF), t(32, 24, dtype=HALF), t(24, dtype=HALF), None,
                                    True, wanted, wanted) for wanted in (True, False)],
    "attention": lambda t: [(*[t(1, 8, 2, 64, dtype=HALF) for _ in range(3)], t(2), *ATTENTION)],
    "attention_gradient": lambda t: [(t(1, 8, 2, 64, dtype=HALF), t(1, 2, 8), t(1, 8, 2, 64, dtype=HALF), t(1, 2, 8),
                                      *[t(1, 8, 2, 64, dtype=HALF) for _ in range(3)], t(2), *ATTENTION)],
    "latent_attention": lambda t: [(t(1, 1, 2, 576, dtype=HALF), t(1, 16, 576, dtype=HALF), None, None, 512, False, 0.04)],
    "column_sum": lambda t: [(t(16, 32), t(32))],
    "glu_gradient": lambda t: [(t(16, 32), t(16, 32), t(16, 32), "silu")],
    "cross_entropy_forward": lambda t: [(t(16, 32), number(t, 32, 16)), (t(16, 32), number(t, 32, 16), None, -100, 0.1, 0.1, 5.0, "sum")],
    "cross_entropy_gradient": lambda t: [(t(), t(16, 32), number(t, 32, 16), None, t(16), t(), -100, 0.1, 0.1, 5.0, "mean")],
    "cross_entropy_": lambda t: [(t(16, 32), number(t, 32, 16))],
    "linear_cross_entropy_forward": lambda t: [(t(16, 32), t(24, 32), number(t, 24, 16), -100, 0.0, 0.0, 0.0, "mean", 0, True, True)],
    "linear_cross_entropy_gradient": lambda t: [(t(), t(16, 32), t(24, 32), t(24, 32), True)],
    "kl_divergence_gradient": lambda t: [(t(16), t(16, 32), t(16, 32), True)],
    "js_divergence_gradient": lambda t: [(t(16), t(16, 32), t(16, 32), 0.5)],
    "embedding": lambda t: [(t(16, 32), number(t, 16, 3, 5))],
    "embedding_gradient": lambda t: [(t(15, 32).view(3, 5, 32), t(16, 32), number(t, 16, 3, 5), None, True)],
    "add_rmsnorm_gradient": lambda t: [(*[t(16, 32) for _ in "abc"], t(32), None, 1e-5, 0.0, True, False)],
    "group_norm": lambda t: [(t(4, 8, 6), 2, t(8), t(8))],
    "group_norm_gradient": lambda t: [(t(4, 8, 6), t(4, 8, 6), 2, t(8), None, 1e-5)],
    "adamw_": lambda t: [([t(16, 32), t(5)], [t(16, 32), t(5)], [t(16, 32), t(5)], [t(16, 32) ** 2, t(5) ** 2], 1)],
    "clip_factor": lambda t: [([t(16, 32), t(5)], 1.0)], "scale_all_": lambda t: [([t(16, 32), t(5)], t(1))],
    "quantise": lambda t: [(t(16, 32), "row", torch.int8), (t(16, 32), "tensor", torch.float8_e4m3fn)],
    "dequantise": lambda t: [(number(t, 100, 16, 32).to(torch.int8), t(16, 1), torch.float32)],
    "rope": lambda t: [(t(2, 8, 3, 16), t(8, 4), t(8, 4))],
    "rope_gradient": lambda t: [(t(2, 8, 3, 16), t(8, 4), t(8, 4), number(t, 8, 2, 8), True)],
    "sort_gradient": lambda t: [(t(16, 32), t(16, 32), t(16, 32).argsort(-1))],
    "topk_gradient": lambda t: [(t(16, 5), t(16, 32), t(16, 32).argsort(-1)[:, :5].contiguous())],
    "sum_gradient": lambda t: [(t(16), t(16, 32))], "mean_gradient": lambda t: [(t(16), t(16, 32))],
}
#: Arguments of which there is no gradient.
WITHOUT = ("mask", "cos", "sin", "target", "scale_a", "scale_b")
#: Operators that go through tables of addresses, which the evaluator cannot follow.
LISTS = ("adamw_", "clip_factor", "scale_all_")
#: Calls that reach operators which nobody calls themselves; the arguments are those of the call.
REACHED = {
    ("attention", "attention_gradient"): lambda t: tilejit.kernels.attention(
        *[t(1, 64, 2, 32, dtype=HALF).requires_grad_() for _ in range(3)], causal=True).sum().backward(),
}
_PLAIN = {"float": 0.5, "bool": True, "int": 4, "SymInt": 4}


def number(t, limit, *shape):
    """Integers below a limit."""
    return torch.randint(0, limit, shape, device=t(1).device)


def int32(t, *values):
    return torch.tensor(values, dtype=torch.int32, device=t(1).device)


def guessed(op, t):
    """A call by the schema: matrices of 16 x 32, vectors of 32 for weights, defaults where there are any."""
    args = []
    for a in op.overload._schema.arguments:
        kind = str(a.type)
        if kind.startswith("Tensor") or kind == "Optional[Tensor]":
            args.append(t(32) if a.name in ("weight", "bias", "w", "b") else t(16, 32))
        elif a.has_default_value():
            args.append(a.default_value)
        else:
            args.append(_PLAIN[kind])
    return tuple(args)


@pytest.fixture
def place(request):
    torch._dynamo.reset()
    torch.manual_seed(0)
    if request.node.get_closest_marker("gpu"):
        yield "cuda"
    else:
        with tilejit.knobs(target="evaluator"):
            yield "cpu"


def reached(names, short, t, monkeypatch):
    """The arguments that an operator is given by such a call, without what they are computed from."""
    seen, real = {}, TorchOp.__call__

    def noted(self, *args, **kwargs):
        seen.setdefault(self.short, args)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(TorchOp, "__call__", noted)
    REACHED[names](t)
    monkeypatch.undo()
    return tuple(x.detach().clone() if isinstance(x, torch.Tensor) else x for x in seen[short])


def check(name, place, monkeypatch):
    op = OPERATORS[name]

    def tensor(*shape, dtype=torch.float32):
        return torch.randn(shape, device=place).to(dtype)

    short = name.split("::")[1]
    through = next((names for names in REACHED if short in names), None)
    samples = [reached(through, short, tensor, monkeypatch)] if through else \
        SAMPLES[short](tensor) if short in SAMPLES else [guessed(op, tensor)]
    for args in samples:
        if op.backward is not None:                    # masks have none
            names = [a.name for a in op.overload._schema.arguments]
            args = tuple(a.requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point()
                         and n not in WITHOUT else a
                         for n, a in zip(names, args))
        with tilejit.knobs(**({"target": "emulator"} if place == "cpu" and short in LISTS else {})):
            of_fp8 = any(isinstance(x, torch.Tensor) and x.dtype == E4M3 for x in args)  # which torch does not compare
            torch.library.opcheck(op.overload, args, test_utils="test_faketensor" if of_fp8 else "ALL")


def test_the_registry():
    assert len(OPERATORS) > 10 and {"tilejit::softmax", "tilejit::matmul", "tilejit::rmsnorm_gradient"} <= set(OPERATORS)
    assert all(isinstance(op, TorchOp) for op in OPERATORS.values())
    assert {n.split("::")[1] for n in OPERATORS} >= {*SAMPLES, *[n for names in REACHED for n in names]}, "samples of operators that are gone"


@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck(name, place, monkeypatch):
    check(name, place, monkeypatch)


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck_on_the_gpu(name, place, monkeypatch):
    check(name, place, monkeypatch)


@tilejit.kernel
def scale_kernel(x, out, factor, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) * factor, at < n)


tuned_kernel = tilejit.autotune([tilejit.Config({"BLOCK": b}) for b in (32, 128)], key=["n"])(scale_kernel)


def launches(x):
    out, again = torch.empty_like(x), torch.empty_like(x)
    scale_kernel[(tilejit.cdiv(x.numel(), 64),)](x, out, 3.0, x.numel(), BLOCK=64)
    tuned_kernel[lambda m: (tilejit.cdiv(x.numel(), m["BLOCK"]),)](out, again, 2.0, x.numel())
    return again


def test_opcheck_of_launches(place):
    """Operators that launches become in compiled programs."""
    calls = []

    def backend(module, inputs):
        def run(*args):
            for node in module.graph.nodes:
                if "tilejit." in str(node.target):
                    calls.append(node.target)
            return module(*args)
        return run

    x = torch.randn(100, device=place)
    assert torch.equal(torch.compile(launches, backend=backend, fullgraph=True)(x), 6 * x)
    assert len(calls) == 2
    for op, grids in zip(calls, ([2, 1, 1], [4, 1, 1, 1, 1, 1])):
        torch.library.opcheck(getattr(op, "default", op), (x, torch.empty_like(x), 3.0, 100, grids))


class Model(torch.nn.Module):
    """An operator, and a launch in the program itself."""

    def forward(self, x):
        return launches(tilejit.kernels.softmax(x)) + 1


def expected(x):
    return 6 * torch.softmax(x, -1) + 1


def exported(place):
    x = torch.randn(40, 30, device=place)
    rows = torch.export.Dim("rows", min=2, max=1000)
    return torch.export.export(Model(), (x,), dynamic_shapes={"x": {0: rows}}), x


def test_an_exported_program_comes_back_from_a_file(place, tmp_path):
    program, x = exported(place)
    torch.export.save(program, tmp_path / "program.pt2")
    again = torch.export.load(tmp_path / "program.pt2").module()
    for rows in (40, 7):
        assert torch.allclose(again(x[:rows]), expected(x[:rows]), atol=1e-5)


@pytest.mark.slow
def test_aotinductor(place, tmp_path, monkeypatch):
    """A compiled package calls the operators; at another size too."""
    monkeypatch.setenv("TILEJIT_TARGET", "evaluator")                  # its calls come without this thread's settings
    program, x = exported(place)
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "package.pt2"))
    run = torch._inductor.aoti_load_package(path)
    for rows in (40, 7):
        assert torch.allclose(run(x[:rows]), expected(x[:rows]), atol=1e-5)
