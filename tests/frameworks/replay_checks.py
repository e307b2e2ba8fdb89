"""Replays with torch's own tensors over the stub driver, in a process of its own: they lie on the CPU and say that they
are on GPU 0. `test_torch_replays.py` runs it."""
from __future__ import annotations

import sys
from pathlib import Path

import torch

torch.Tensor.get_device = lambda self: 0
torch._C._cuda_getCurrentRawStream = lambda index: 0x77
torch.cuda.is_initialized = lambda: True
torch.cuda.current_device = lambda: 0
torch.cuda.device_count = lambda: 1
torch._C._dynamo.guards._empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cpu
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "runtime"))

from stub_driver import expect, parameter, state  # noqa: E402

import tilejit  # noqa: E402
from tilejit import kernels  # noqa: E402
from tilejit.frameworks.torch_op import operators  # noqa: E402
from tilejit.kernels.add import add_kernel  # noqa: E402

runs: list[str] = []


def times(fn, launches, count=4, parameters=4):
    """How often the function itself ran in so many calls, each of which launched so often; and the results, to which
    the last launch was told to write."""
    before, results = len(runs), []
    expect([8] * parameters)
    for _ in range(count):
        at = state.launches
        results.append(fn())
        assert state.launches == at + launches, (state.launches - at, launches)
        told = [int.from_bytes(parameter(i, 8), "little") for i in range(parameters)]
        assert results[-1].data_ptr() in told, (hex(results[-1].data_ptr()), list(map(hex, told)))
    expect([])
    return len(runs) - before, results


@tilejit.replayed
def by_torch(x, how):
    runs.append(how)
    n = x.numel()
    y = {"view": lambda: x.view(-1)[8:].t(), "sum": lambda: x + 1, "copy": lambda: x.t().contiguous(),
         "same": lambda: x.contiguous(), "item": lambda: x if x.sum().item() else x}[how]()
    out = torch.empty_like(x) if how != "same" else x.new_zeros(n)
    add_kernel[(1,)](y, x, out, 100, BLOCK=128)
    return out


def graded() -> None:
    """Attention with a gradient: forward and backward are replayed, below autograd; bound it is launches alone."""
    counted = []
    q = torch.randn(1, 128, 4, 64, dtype=torch.float16)
    asked = q.clone().requires_grad_()
    kernels.attention(asked, q, q).backward(q)
    module = sys.modules["tilejit.kernels.attention.function"]

    def counts(name, fn):
        def counting(*args, **kwargs):
            counted.append(name)
            return fn(*args, **kwargs)
        return counting

    for name in ("forward", "gradients"):
        setattr(module, name, counts(name, getattr(module, name)))
    for _ in range(4):
        at = state.launches
        kernels.attention(asked, q, q).backward(q)
        assert state.launches == at + 3, "one forward; rows and keys backward"
    assert sorted(set(counted)) == ["forward", "gradients"] and len(counted) == 2, counted
    at, repeat = state.launches, kernels.softmax.bind(asked)
    assert not repeat().requires_grad and repeat() is repeat() and state.launches == at + 4


def graded_products() -> None:
    """Gradients of products are replayed, too, views of their arguments and parts of results included."""
    def leaf(*shape):
        return torch.randn(shape, dtype=torch.float16).requires_grad_()

    sizes = torch.tensor([0, 5, 64], dtype=torch.int32)
    for launches, fn, inputs in (
            (5, lambda a, b, c: kernels.matmul(a, b, c, "silu"), (leaf(64, 64), leaf(64, 128), leaf(128))),
            (2, kernels.batched_matmul, (leaf(3, 64, 64), leaf(1, 64, 128))),
            (5, lambda a, b: kernels.gated_matmul(a, b.mT), (leaf(64, 64), leaf(2, 128, 64))),
            (2, lambda a, b: kernels.grouped_matmul(a, b, sizes), (leaf(64, 64), leaf(2, 64, 128)))):
        for _ in range(4):
            y = fn(*inputs)
            at = state.launches
            assert all(g.shape == x.shape for g, x in zip(torch.autograd.grad(y, inputs, torch.ones_like(y)), inputs))
            assert state.launches == at + launches
    refused = {n: op.run.calls.refused for n, op in operators().items() if n.endswith(("product_gradient", "ed_gradient"))}
    assert len(refused) >= 3 and not any(refused.values()), refused


def described() -> None:
    """Descriptors of tensors that follow each other, equal or not, have their own facts."""
    from tilejit import TensorDescriptor

    a = torch.zeros(64, 64, dtype=torch.float16)
    others = [a, a.clone(), a.t()[:32].t(), a[:, :32], a.float(), a.clone().requires_grad_(), a.view(-1)[4:-4],
              torch.zeros(64, 64, dtype=torch.float16, device="meta"), torch.nn.Parameter(a), a[:32]]
    for t in [x for x in others for _ in range(70)] + others * 3:
        for block in ([16, 16], (16, 16), (32, 16)):
            if t.dim() == 1:
                block = block[:1]
            d = TensorDescriptor.from_tensor(t, block)
            assert d.base is t and d.address == t.data_ptr() and d.block_shape == tuple(block)
            assert (d.shape, d.strides, str(d.dtype)) == (tuple(t.shape), t.stride(), {2: "fp16", 4: "fp32"}[
                t.element_size()])
            assert d.facts.aligned == (t.data_ptr() % 16 == 0)
    for block in (16, [[16], 16]):
        try:
            TensorDescriptor.from_tensor(a, block)
        except tilejit.LaunchError as error:
            assert "block_shape must be integers" in str(error)
        else:
            raise AssertionError("such blocks are refused")


def launched() -> None:
    """A launcher's tensors may be other ones, of other ranks, one and the same, or ask for gradients; those of other
    dtypes are another kernel's."""
    def add(*tensors, count):
        loads = state.loads
        expect([8, 8, 8, 4])
        k = add_kernel[(1,)](*tensors, 100, BLOCK=128)
        expect([])
        told = [int.from_bytes(parameter(i, 8), "little") for i in range(3)]
        named = [p.arg for p in k.metadata.params if hasattr(p, "arg")]
        assert told == [dict(zip(("x", "y", "out"), tensors))[n].data_ptr() for n in named]
        assert state.loads == loads + count, (state.loads, loads)
        return k

    x = torch.zeros(4, 64)
    odd = torch.zeros(300)[1:]
    first = [add(x, x.clone(), x.clone(), count=i == 0) for i in range(4)][0]
    for t in (x, x.view(-1), x.clone().requires_grad_(), torch.zeros(2, 2, 100), torch.nn.Parameter(x)):
        for tensors in ((t, x, x), (x, t, x), (t, t, t), (x, x.clone(), t)):
            assert add(*tensors, count=0) is first
    for n, other in enumerate((x.half(), odd, x.int())):
        found = [add(other, x.clone(), x, count=i == 0) for i in range(4)]
        assert len({*map(id, found)}) == 1 and found[0] is not first, n
    assert add(x, x.clone(), x, count=0) is first


def rows_of_one() -> None:
    """The distance of a dimension of one is no fact of a call; that of others is."""
    x = torch.randn(4, 64)
    for y in (x[:1], x[::2][:1], x[1:2]):
        for z, strides in ((y, y.stride()), (y.as_strided((1, 64), (1000, 1)), (1000, 1))):
            assert z.stride() == strides and times(lambda: kernels.softmax(z), 1)[1][-1].shape == (1, 64)
    tables = [known.__globals__["_table"] for known in kernels.softmax.calls.values()]
    assert sum((1, 64) in key for table in tables for key in table) == 1


def main() -> None:
    launched()
    described()
    rows_of_one()
    x = torch.randn(16, 16)
    for how, expected in (("view", 2), ("sum", 4), ("copy", 4), ("same", 2), ("item", 4)):
        found, results = times(lambda: by_torch(x, how), 1)
        assert found == expected, (how, found, by_torch.calls.refused)
        assert len({r.data_ptr() for r in results}) == 4 and all(r.shape == results[0].shape for r in results)
    assert all("torch" in why for why in by_torch.calls.refused)
    assert times(lambda: by_torch(torch.nn.Parameter(x, requires_grad=False), "same"), 1)[0] == 2
    wanted = torch.randn(16, 16, requires_grad=True)
    assert times(lambda: by_torch(wanted, "same"), 1)[0] == 4, "a gradient is asked for"
    with torch.no_grad():
        assert times(lambda: by_torch(wanted, "same"), 1)[0] <= 2
    _, results = times(lambda: kernels.softmax(x), 1)
    assert [r.shape for r in results] == [x.shape] * 4 and not results[-1].requires_grad
    _, results = times(lambda: kernels.softmax(wanted), 1)
    assert all(r.requires_grad and type(r.grad_fn).__name__ == "softmaxBackward" for r in results)
    with torch.inference_mode():
        assert kernels.softmax(x).is_inference()
    graded()
    graded_products()
    from torch.utils._python_dispatch import TorchDispatchMode

    class Listening(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            heard.append(str(func))
            return func(*args, **(kwargs or {}))

    heard: list[str] = []
    with Listening():
        kernels.softmax(x)
    assert any("tilejit.softmax" in h for h in heard)


if __name__ == "__main__":
    main()
