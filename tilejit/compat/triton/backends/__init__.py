from __future__ import annotations

from types import SimpleNamespace

from tilejit.compat.triton.runtime.driver import CudaDriver

backends = {"nvidia": SimpleNamespace(driver=CudaDriver)}
