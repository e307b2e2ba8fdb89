"""The numba-compiled virtual machine: one program that executes any decoded PTX kernel."""
