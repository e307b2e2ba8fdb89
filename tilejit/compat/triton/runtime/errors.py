from __future__ import annotations

from tilejit.errors import AssemblyError as PTXASError
from tilejit.errors import AutotuneError
from tilejit.errors import TileJitError as TritonError


class AutotunerError(AutotuneError):
    def __str__(self) -> str:
        return f"Autotuner error: {super().__str__()}"


class OutOfResources(TritonError):
    def __init__(self, required: int, limit: int, name: str):
        self.required, self.limit, self.name = required, limit, name
        super().__init__(f"out of resource: {name}, Required: {required}, Hardware limit: {limit}. Reducing block "
                         "sizes or `num_stages` may help.")

    def __reduce__(self) -> tuple:
        return type(self), (self.required, self.limit, self.name)


class InterpreterError(TritonError):
    """Triton's interpreter failed; tilejit has an emulator instead, and never raises this."""


class IntelGPUError(TritonError):
    """Of another back end; never raised."""


__all__ = ["AutotunerError", "InterpreterError", "IntelGPUError", "OutOfResources", "PTXASError",
           "TritonError"]
