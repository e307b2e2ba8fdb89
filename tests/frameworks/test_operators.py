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
HALF = torch.float16
SAMPLES = {
    "matmul": lambda t: [(t(16, 32, dtype=HALF), t(32, 16, dtype=HALF)),
                         (t(16, 32, dtype=HALF), t(32, 16, dtype=HALF), t(16, dtype=HALF), "relu")],
    "attention": lambda t: [(t(1, 2, 64, 64, dtype=HALF), t(1, 2, 64, 64, dtype=HALF), t(1, 2, 64, 64, dtype=HALF), True)],
    "column_sum": lambda t: [(t(16, 32), t(32))],
    "glu_gradient": lambda t: [(t(16, 32), t(16, 32), t(16, 32), "silu")],
    "activation_gradient": lambda t: [(t(16, 32, dtype=HALF), t(16, 32, dtype=HALF), "gelu")],
}
_PLAIN = {"float": 0.5, "bool": True, "int": 4, "SymInt": 4}


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


def check(name, place):
    op = OPERATORS[name]

    def tensor(*shape, dtype=torch.float32):
        return torch.randn(shape, device=place).to(dtype)

    short = name.split("::")[1]
    for args in SAMPLES[short](tensor) if short in SAMPLES else [guessed(op, tensor)]:
        if op.backward is not None:                    # masks have none
            names = [a.name for a in op.overload._schema.arguments]
            args = tuple(a.requires_grad_() if isinstance(a, torch.Tensor) and n != "mask" else a
                         for n, a in zip(names, args))
        torch.library.opcheck(op.overload, args)


def test_the_registry():
    assert len(OPERATORS) > 10 and {"tilejit::softmax", "tilejit::matmul", "tilejit::rmsnorm_gradient"} <= set(OPERATORS)
    assert all(isinstance(op, TorchOp) for op in OPERATORS.values())
    assert {n.split("::")[1] for n in OPERATORS} >= set(SAMPLES), "samples of operators that are gone"


@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck(name, place):
    check(name, place)


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck_on_the_gpu(name, place):
    check(name, place)


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
