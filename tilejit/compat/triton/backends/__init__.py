from __future__ import annotations

from types import SimpleNamespace

from tilejit.compat.triton.runtime import driver as compiler

backends = {"nvidia": SimpleNamespace(driver=compiler.CudaDriver)}

__all__ = ["backends", "compiler"]
