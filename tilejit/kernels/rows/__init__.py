"""Row kernels: what reads rows of matrices, or single elements, and is bound by memory; forward and backward."""
