from __future__ import annotations

from tilejit.errors import AssemblyError as PTXASError
from tilejit.errors import AutotuneError, TileJitError


class AutotunerError(AutotuneError):
    def __str__(self) -> str:
        return f"Autotuner error: {super().__str__()}"


class OutOfResources(TileJitError):
    def __init__(self, required: int, limit: int, name: str):
        self.required, self.limit, self.name = required, limit, name
        super().__init__(f"out of resource: {name}, Required: {required}, Hardware limit: {limit}. Reducing block "
                         "sizes or `num_stages` may help.")

    def __reduce__(self) -> tuple:
        return type(self), (self.required, self.limit, self.name)


class InterpreterError(TileJitError):
    """Triton's interpreter failed; tilejit has an emulator instead, and never raises this."""


class IntelGPUError(TileJitError):
    """Of another back end; never raised."""


__all__ = ["AutotunerError", "InterpreterError", "IntelGPUError", "OutOfResources", "PTXASError"]
