"""A transformer block of tilejit's operators under torch.compile, forward and backward.

Needs: torch

Every call is one operator in torch's graph (`fullgraph=True`: nothing falls out of it), with a gradient by a second
kernel. On a GPU the CUDA graphs of `mode="reduce-overhead"` work too; without one the emulator runs the kernels.
"""
import torch

from tilejit import kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOKENS, WIDTH, HEADS, HIDDEN = (512, 1024, 16, 4096) if DEVICE == "cuda" else (32, 64, 2, 128)


def block(x, norm1, w_qkv, w_out, norm2, w_up, w_down):
    """Attention and a feed-forward network, each behind a norm and with a residual."""
    qkv = kernels.matmul(kernels.rmsnorm(x, norm1), w_qkv).view(1, TOKENS, 3, HEADS, WIDTH // HEADS)
    seen = kernels.attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], causal=True)
    x = x + kernels.matmul(seen.view(TOKENS, WIDTH), w_out)
    return x + kernels.matmul(kernels.matmul(kernels.rmsnorm(x, norm2), w_up, activation="silu"), w_down)


def main():
    torch.manual_seed(0)

    def weight(*shape):
        return (torch.randn(shape, device=DEVICE) / shape[0] ** 0.5).to(torch.float16).requires_grad_()

    inputs = [weight(TOKENS, WIDTH), *[torch.ones(WIDTH, device=DEVICE, dtype=torch.float16, requires_grad=True)],
              weight(WIDTH, 3 * WIDTH), weight(WIDTH, WIDTH),
              torch.ones(WIDTH, device=DEVICE, dtype=torch.float16, requires_grad=True),
              weight(WIDTH, HIDDEN), weight(HIDDEN, WIDTH)]
    expected = block(*inputs)
    grad = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, inputs, grad)

    compiled = torch.compile(block, fullgraph=True, backend="inductor" if DEVICE == "cuda" else "aot_eager")
    found = compiled(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
    for ours, theirs in zip(torch.autograd.grad(found, inputs, grad), wanted):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)
    print(f"a block of {TOKENS} tokens, compiled: forward and {len(inputs)} gradients equal eager ones")


if __name__ == "__main__":
    main()
