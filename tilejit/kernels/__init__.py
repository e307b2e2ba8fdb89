"""Ready kernels, written in the tile language, each with a host function that takes arrays."""
from tilejit.kernels.add import add
from tilejit.kernels.attention import attention
from tilejit.kernels.batched import batched_matmul
from tilejit.kernels.fused import fused_matmul, gated_matmul, swiglu
from tilejit.kernels.grouped import grouped_matmul, masked_grouped_matmul
from tilejit.kernels.matmul import matmul, matmul_kernel
from tilejit.kernels.matmul_gradient import matmul as _  # noqa: F401  (gives matmul its gradient)
from tilejit.kernels.mixed import weight_only_matmul
from tilejit.kernels.rows.gates import glu, relu_squared
from tilejit.kernels.rows.norm_gradients import add_layernorm, add_rmsnorm, layernorm, rmsnorm
from tilejit.kernels.rows.softmax import log_softmax, softmax
from tilejit.kernels.scaled import matmul_blockscaled
from tilejit.kernels.streamk import matmul_streamk

__all__ = ["add", "add_layernorm", "add_rmsnorm", "attention", "batched_matmul", "fused_matmul", "gated_matmul",
           "glu", "grouped_matmul", "layernorm", "log_softmax", "masked_grouped_matmul", "matmul", "matmul_blockscaled",
           "matmul_kernel", "matmul_streamk", "relu_squared", "rmsnorm", "softmax", "swiglu", "weight_only_matmul"]
