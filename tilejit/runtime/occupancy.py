"""How many programs run at once, and grids all of whose programs must (cooperative launches)."""
from __future__ import annotations

from tilejit.errors import LaunchError
from tilejit.ir.target import target_named
from tilejit.ptx.metadata import KernelMetadata


def resident(meta: KernelMetadata, registers: int, multiprocessors: int = 132) -> int:
    """Programs that fit a GPU at once (registers: a thread). A driver knows better (`LoadedKernel.resident`)."""
    per = target_named(meta.target).programs(meta.num_threads, registers, meta.shared_bytes)
    return per * multiprocessors // meta.cluster[0]


def check_room(name: str, grid: tuple[int, int, int], room: int, threads: int, shared: int, ctas: int) -> None:
    """Raises LaunchError for a cooperative grid of more programs than there is room for."""
    programs = grid[0] * grid[1] * grid[2]
    if programs > room:
        cluster = f" of {ctas} CTAs" if ctas > 1 else ""
        raise LaunchError(
            f"{name}: launch_cooperative_grid needs all programs of the grid on the GPU at once: {programs} were "
            f"asked for, there is room for {room}{cluster} ({threads} threads and {shared} bytes of "
            f"shared memory each): launch at most {room}, each of which takes several blocks")
