"""A function that launches kernels as an operator of torch: checked, with a gradient, exported and loaded again.

Needs: torch
"""
import tempfile
from pathlib import Path

import torch

import tilejit
import tilejit.language as tl

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@tilejit.kernel
def square_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, at < n)
    tl.store(out + at, v * v, at < n)


@tilejit.kernel
def square_gradient_kernel(grad, x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, at < n) * tl.load(grad + at, at < n), at < n)


@tilejit.torch_op("example::square")
def square(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    square_kernel[(tilejit.cdiv(x.numel(), 128),)](x, out, x.numel(), BLOCK=128)
    return out


@tilejit.torch_op("example::square_gradient")
def square_gradient(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    square_gradient_kernel[(tilejit.cdiv(x.numel(), 128),)](grad.contiguous(), x, out, x.numel(), BLOCK=128)
    return out


square.register_autograd(lambda ctx, grad: square_gradient(grad, *ctx.saved_tensors),
                         setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


@tilejit.torch_op("example::square_", mutates=["x"])
def square_(x: torch.Tensor) -> None:
    square_kernel[(tilejit.cdiv(x.numel(), 128),)](x, x, x.numel(), BLOCK=128)


class Model(torch.nn.Module):
    def forward(self, x):
        return square(x) + 1


def main():
    x = torch.randn(300, device=DEVICE)
    for op, args in ((square, (x.clone().requires_grad_(),)), (square_gradient, (x, x)), (square_, (x.clone(),))):
        torch.library.opcheck(op.overload, args)

    asked = x.clone().requires_grad_()
    square(asked).sum().backward()
    torch.testing.assert_close(asked.grad, 2 * x)

    program = torch.export.export(Model(), (x,), dynamic_shapes={"x": {0: torch.export.Dim("n", min=2)}})
    with tempfile.TemporaryDirectory() as folder:
        torch.export.save(program, Path(folder, "model.pt2"))
        again = torch.export.load(Path(folder, "model.pt2")).module()
    torch.testing.assert_close(again(x[:77]), x[:77] ** 2 + 1)
    print("three operators: opcheck is clean, the gradient is right, an exported program comes back from a file")


if __name__ == "__main__":
    main()
