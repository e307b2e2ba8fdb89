from __future__ import annotations

from tilejit.kernels._operator import gradient
from tilejit.kernels.batched import batched_matmul
from tilejit.kernels.matmul_gradient import OF, RELU, product_gradient
from tilejit.kernels.streamk import matmul_streamk

for _op in (batched_matmul, matmul_streamk):
    gradient(_op, *OF, only=RELU)(product_gradient)
