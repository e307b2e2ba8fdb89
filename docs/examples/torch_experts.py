"""A mixture of experts by grouped products, forward and backward, in one graph of torch.compile.

Needs: torch
"""
import torch
import torch.nn.functional as F
from torch import nn

from tilejit import kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOKENS, WIDTH, HIDDEN, EXPERTS, CHOSEN = (4096, 1024, 2048, 8, 2) if DEVICE == "cuda" else (20, 32, 40, 4, 2)


class Experts(nn.Module):
    """Each token goes to the CHOSEN experts that a router finds likeliest: gated feed-forward networks."""

    def __init__(self):
        super().__init__()

        def weight(*shape):
            return nn.Parameter((torch.randn(shape, device=DEVICE) / shape[-2] ** 0.5).to(torch.bfloat16))

        self.router = weight(WIDTH, EXPERTS)
        self.up, self.down = weight(EXPERTS, WIDTH, 2 * HIDDEN), weight(EXPERTS, HIDDEN, WIDTH)

    def routed(self, x):
        """Weights of the chosen experts, and which those are."""
        return torch.softmax(kernels.matmul(x, self.router, out_dtype=torch.float32), -1).topk(CHOSEN)

    def forward(self, x):
        weights, experts = self.routed(x)
        experts, order = experts.flatten().sort(stable=True)  # tokens of one expert are rows side by side
        token = order // CHOSEN
        offsets = torch.searchsorted(experts, torch.arange(EXPERTS + 1, device=x.device), out_int32=True)
        gate, up = kernels.grouped_matmul(x[token], self.up, offsets).chunk(2, -1)
        y = kernels.grouped_matmul(kernels.glu(gate, up), self.down, offsets)
        return torch.zeros_like(x).index_add(0, token, y * weights.flatten()[order, None].to(y.dtype))

    def one_by_one(self, x):
        """The same, expert by expert, by torch."""
        weights, experts = self.routed(x)
        out = torch.zeros_like(x)
        for e in range(EXPERTS):
            token, place = (experts == e).nonzero(as_tuple=True)
            gate, up = (x[token] @ self.up[e]).chunk(2, -1)
            y = (F.silu(gate) * up) @ self.down[e]
            out = out.index_add(0, token, y * weights[token, place, None].to(y.dtype))
        return out


def main():
    torch.manual_seed(0)
    model = Experts()
    x = torch.randn(TOKENS, WIDTH, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    grad = torch.randn_like(x)
    inputs = [x, *model.parameters()]
    expected = model.one_by_one(x)
    wanted = torch.autograd.grad(expected, inputs, grad)
    found = torch.compile(model, fullgraph=True, backend="inductor" if DEVICE == "cuda" else "aot_eager")(x)
    for ours, theirs in zip((found, *torch.autograd.grad(found, inputs, grad)), (expected, *wanted)):
        error = (ours.float() - theirs.float()).norm() / theirs.float().norm()
        assert ours.shape == theirs.shape and error < 0.02, error
    print(f"{EXPERTS} experts, {TOKENS} tokens: forward and {len(inputs)} gradients equal torch's, expert by expert")


if __name__ == "__main__":
    main()
