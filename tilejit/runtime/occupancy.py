"""How many programs run at the same time, and grids all of whose programs must (cooperative launches)."""
from __future__ import annotations

from tilejit.errors import LaunchError
from tilejit.ir.target import target_named
from tilejit.ptx.metadata import KernelMetadata

#: A multiprocessor's threads, blocks and registers (CUDA programming guide, "Technical Specifications per Compute
#: Capability", 9.0); shared memory of a block takes 1 KiB more, of what a block may use and 1 KiB.
THREADS, BLOCKS, REGISTERS, RESERVED = 2048, 32, 65536, 1024


def resident(meta: KernelMetadata, registers: int, multiprocessors: int = 132) -> int:
    """Programs that fit a GPU's multiprocessors at once, computed from what each takes (registers: a thread). Registers
    are given out to warps in units of 256. A GPU's driver knows better (`LoadedKernel.resident`)."""
    warps = -(-meta.num_threads // 32)
    shared = target_named(meta.target).shared_bytes + RESERVED
    per = min(THREADS // (32 * warps), BLOCKS, shared // (meta.shared_bytes + RESERVED),
              REGISTERS // (warps * (-(-max(1, registers) * 32 // 256) * 256)))
    return per * multiprocessors // meta.cluster[0]


def check_room(name: str, grid: tuple[int, int, int], room: int, threads: int, shared: int, ctas: int) -> None:
    """Raises LaunchError for a cooperative grid of more programs than there is room for at once."""
    programs = grid[0] * grid[1] * grid[2]
    if programs > room:
        cluster = f" of {ctas} CTAs" if ctas > 1 else ""
        raise LaunchError(
            f"{name}: launch_cooperative_grid needs all programs of the grid on the GPU at once: {programs} were "
            f"asked for, there is room for {room}{cluster} ({threads} threads and {shared} bytes of "
            f"shared memory each): launch at most {room}, each of which takes several blocks")
