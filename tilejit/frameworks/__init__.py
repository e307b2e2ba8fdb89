"""Kernels inside other people's programs: operators of torch, calls in JAX programs."""
