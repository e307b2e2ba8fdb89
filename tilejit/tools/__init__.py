"""Helpers around kernels; `tensor_descriptor` has the host descriptor under Triton's module name."""
