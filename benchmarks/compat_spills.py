"""For compat.py --spills: what the assembler says of each kernel that a case launches. Nothing is run, and no GPU is
needed: launches only compile, by tilejit for the evaluator, by Triton under a driver that stands for a Hopper GPU's."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: case -> kernel -> (registers, bytes of spill stores and loads, bytes of stack) a thread of each of its variants
Found = dict[str, list[tuple[int, int, int]]]


def _noted(found: Found, name: str, resources: Any) -> None:
    figures = (resources.registers, resources.spill_stores + resources.spill_loads, resources.stack)
    if figures not in found.setdefault(name, []):
        found[name].append(figures)


@contextmanager
def ours(found: Found) -> Iterator[None]:
    """Launches through tilejit's shim note what they compiled."""
    from unittest.mock import patch

    import tilejit
    from tilejit.runtime.launch import EvaluatorEntry

    def launch(self: Any, grid: Any, flat: tuple, stream: Any) -> None:
        _noted(found, self.compiled.name, self.compiled.resources)

    with patch.object(EvaluatorEntry, "launch", launch), tilejit.knobs(target="evaluator"):
        yield


class _Hopper:
    """What Triton asks a driver when it compiles."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    class utils:
        """Facts of an H200."""

        @staticmethod
        def get_device_properties(device: int = 0) -> dict[str, int]:
            return {"max_shared_mem": 232448, "multiprocessor_count": 132, "max_num_regs": 65536, "warpSize": 32,
                    "sm_clock_rate": 1980000, "mem_clock_rate": 3201000, "mem_bus_width": 6144}


def hopper() -> None:
    """Triton asks a driver that stands for a Hopper GPU's: packages do too when they are imported, and choose their
    configurations by what it says."""
    import triton

    triton.runtime.driver.set_active(_Hopper())


@contextmanager
def theirs(found: Found) -> Iterator[None]:
    """Launches through Triton note what they compiled, its PTX assembled by the assembler that ours is assembled by."""
    from unittest.mock import patch

    import triton

    from tilejit.runtime.ptxas import assemble

    hopper()
    kind = triton.runtime.jit.JITFunction
    run = kind.run
    assembled: dict[int, Any] = {}

    def compiled(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        made = run(self, *args, grid=grid, warmup=True, **kwargs)
        if id(made) not in assembled:
            assembled[id(made)] = (made, assemble(made.asm["ptx"], "sm_90a")[1])
        _noted(found, made.metadata.name, assembled[id(made)][1])
        return made

    with patch.object(kind, "run", compiled):
        yield


def table(rows: list[dict[str, Any]], theirs: list[dict[str, Any]] | None) -> None:
    """Kernel by kernel: the most spilled by any variant of a case, ours and theirs; kernels that spill nowhere are only
    counted."""
    peer = {(r["case"], k): v for r in theirs or () for k, v in r["resources"].items()}

    def most(variants: Any, i: int) -> int:
        return max((v[i] for v in variants or ()), default=0)

    print(f"\n{'case':34} {'kernel':46} {'bytes':>7} {'stack':>6} {'regs':>4} {'Triton':>8} {'stack':>6}")
    count, worse = 0, 0
    for r in rows:
        for k, v in r["resources"].items():
            count += 1
            other = peer.get((r["case"], k))
            if not (most(v, 1) or most(v, 2) or most(other, 1)):
                continue
            worse += most(v, 1) > most(other, 1)
            print(f"{r['case']:34} {k:46} {most(v, 1):7} {most(v, 2):6} {most(v, 0):4} "
                  + (f"{most(other, 1):8} {most(other, 2):6}" if other else f"{'-':>8} {'-':>6}"))
    total = [sum(most(v, 1) for x in y or () for v in x["resources"].values()) for y in (rows, theirs)]
    print(f"\n{count} kernels of {len(rows)} cases; {total[0]} bytes of spills, Triton {total[1]}; "
          f"{worse} spill more than Triton's")
