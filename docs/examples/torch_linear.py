"""`torch.nn.Linear` by tilejit's product, forward and backward, in 16 bits or by the fp8 recipe.

Needs: torch
"""
import torch
from torch import nn

from tilejit import kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, WIDTH, STEPS = (4096, 1024, 100) if DEVICE == "cuda" else (48, 64, 12)


class Linear(nn.Linear):
    """recipe: None, or "fp8": activations and weights in e4m3, gradients in e5m2, a scale each. activation: None,
    "relu", "gelu" or "silu", computed before the result is stored."""

    def __init__(self, inputs, outputs, bias=True, activation=None, recipe=None):
        super().__init__(inputs, outputs, bias, device=DEVICE, dtype=torch.bfloat16)
        self.activation, self.recipe = activation, recipe

    def forward(self, x):
        y = kernels.matmul(x.flatten(0, -2), self.weight.T, self.bias, self.activation, recipe=self.recipe)
        return y.unflatten(0, x.shape[:-1])


def trained(recipe):
    """Losses of a small network that learns another one's results."""
    torch.manual_seed(0)
    teacher = nn.Linear(WIDTH, WIDTH, device=DEVICE, dtype=torch.bfloat16)
    model = nn.Sequential(Linear(WIDTH, 2 * WIDTH, activation="gelu", recipe=recipe),
                          Linear(2 * WIDTH, WIDTH, recipe=recipe))
    optimiser, losses = torch.optim.Adam(model.parameters(), lr=3e-3), []
    step = torch.compile(model, fullgraph=True, backend="inductor" if DEVICE == "cuda" else "aot_eager")
    for _ in range(STEPS):
        x = torch.randn(ROWS // 16, 16, WIDTH, device=DEVICE, dtype=torch.bfloat16)
        loss = (step(x) - teacher(x).detach()).float().square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def main():
    plain, narrow = trained(None), trained("fp8")
    assert plain[-1] < 0.7 * plain[0] and abs(narrow[-1] / plain[-1] - 1) < 0.1, (plain, narrow)
    print(f"loss after {STEPS} steps: {plain[0]:.3f} -> {plain[-1]:.3f} in bf16, {narrow[-1]:.3f} in fp8")


if __name__ == "__main__":
    main()
