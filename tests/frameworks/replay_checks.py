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
        assert state.launches == at + 4, "one forward; rows, keys and the sums' rounding backward"
    assert sorted(set(counted)) == ["forward", "gradients"] and len(counted) == 2, counted
    at, repeat = state.launches, kernels.softmax.bind(asked)
    assert not repeat().requires_grad and repeat() is repeat() and state.launches == at + 4


def main() -> None:
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
