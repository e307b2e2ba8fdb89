"""Every configuration of the products that a heuristic can pick: assembles without a remark, runs without a finding.

`benchmarks/family.py` lists them. The default run takes a sample: of every tile of every family one configuration to
assemble (which one: by a hash of the tile's name), and of every family two to run; `-m slow` takes all.
"""
from __future__ import annotations

import importlib.util
import re
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from tilejit import kernels as kernels_module
from tilejit.emulator import Sanitizer
from tilejit.runtime import ptxas

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "family.py"
spec = importlib.util.spec_from_file_location("family", PATH)
assert spec is not None and spec.loader is not None
family: Any = importlib.util.module_from_spec(spec)
sys.modules["family"] = family
spec.loader.exec_module(family)

CONFIGURATIONS = family.configurations()


def sample(groups: dict[Any, list[Any]], each: int) -> list[Any]:
    """Some of every group, picked by the group's name."""
    out = []
    for name, members in groups.items():
        start = zlib.crc32(repr(name).encode())
        out += [members[(start + i * len(members) // each) % len(members)] for i in range(min(each, len(members)))]
    return out


def grouped(key: Any) -> dict[Any, list[Any]]:
    """The configurations by a key."""
    groups: dict[Any, list[Any]] = {}
    for c in CONFIGURATIONS:
        groups.setdefault(key(c), []).append(c)
    return groups


def tile(c: Any) -> str:
    """The tile of a configuration; small ones and those whose K is divided stand for all of their width."""
    name = str(c.name.split()[0])
    every = c.family not in ("matmul", "streamk") or c.family == "matmul" and name in map(str, family.planning.LARGE)
    return name if every else re.sub(r"x\d+", "", name)


TILES = grouped(lambda c: (c.family, tile(c), "scaled" in c.name, "ctas" in c.name, "streamed" in c.name,
                           "turned" in c.name))
ASSEMBLED = sample(TILES, 1)
RUN = sample(grouped(lambda c: c.family), 2)


def kernels(configuration: Any, launch: Any) -> list[Any]:
    """The kernels that a configuration launches; launch(entry, grid, arguments) is done for each."""
    found = []

    def launched(entry: Any, grid: Any, flat: tuple) -> None:
        found.append(entry.compiled)
        launch(entry, grid, flat)

    with family.launches_replaced(launched):
        configuration.run()
    assert found, "no launch"
    return found


def within_budgets(kernel: Any) -> None:
    """No more registers at the launch, or of all roles, than a multiprocessor has; no remark of the assembler."""
    threads, resources = kernel.metadata.num_threads, kernel.resources
    assert not resources.messages, [str(m) for m in resources.messages]
    assert (resources.spill_stores, resources.spill_loads, resources.stack) == (0, 0, 0)
    assert resources.registers <= 65536 // threads // 8 * 8
    roles = [int(b) - int(a) + 1 for a, b in re.findall(r"---- role \w+: warps (\d+)\.\.(\d+)", kernel.ptx)]
    few = [w for w in roles if w % 4]
    assert sum(few) <= 4                             # producer and stores are parts of one warpgroup
    warps = [w for w in roles if w % 4 == 0] + [4] * bool(few)
    registers = [int(n) for n in re.findall(r"setmaxnreg\.\w+\.sync\.aligned\.u32 (\d+)", kernel.ptx)]
    assert not registers or len(warps) == len(registers)
    assert sum(32 * w * r for w, r in zip(warps, registers)) <= 65536


def sanitized(entry: Any, grid: Any, flat: tuple) -> None:
    """Launch in the emulator; a finding is an error."""
    entry.run(grid, flat, listener=Sanitizer()).check()


@pytest.mark.skipif(ptxas.find_ptxas() is None, reason="needs ptxas")
@pytest.mark.parametrize("configuration", ASSEMBLED, ids=str)
def test_assembles(configuration: Any) -> None:
    for kernel in kernels(configuration, lambda *_: None):
        within_budgets(kernel)


@pytest.mark.one_schedule
@pytest.mark.parametrize("configuration", RUN, ids=str)
def test_runs_clean(configuration: Any) -> None:
    kernels(configuration, sanitized)


@pytest.mark.slow
@pytest.mark.skipif(ptxas.find_ptxas() is None, reason="needs ptxas")
@pytest.mark.parametrize("group", TILES.values(), ids=lambda group: f"{group[0]} and alike")
def test_every_one_assembles(group: Any) -> None:
    for configuration in group:
        print(configuration)                         # the last one is the one that fails
        for kernel in kernels(configuration, lambda *_: None):
            within_budgets(kernel)


@pytest.mark.slow
@pytest.mark.one_schedule
@pytest.mark.parametrize("group", TILES.values(), ids=lambda group: f"{group[0]} and alike")
def test_every_one_runs_clean(group: Any) -> None:
    for configuration in group:
        print(configuration)
        kernels(configuration, sanitized)


@pytest.mark.parametrize("dtype", [family.BF16, family.F32])
@pytest.mark.parametrize("columns", [8191, 9000, 20001])
def test_uneven_rows_assemble(columns: int, dtype: Any) -> None:
    """Rows of normalisations, of which every element has an address and a mask of its own."""
    x, w = family.matrix(1, columns, dtype=dtype), family.matrix(columns, dtype=dtype)
    found: list[Any] = []
    with family.launches_replaced(lambda entry, grid, flat: found.append(entry.compiled)):
        kernels_module.rmsnorm(x, w)
        kernels_module.layernorm(x, w, w)
        kernels_module.softmax(x)
    for kernel in found:
        if kernel.resources is not None:
            within_budgets(kernel)


def test_every_tile_of_every_table_is_there() -> None:
    """A tile that is added to a heuristic's table is a new configuration."""
    named = {(c.family, c.name.split()[0]) for c in CONFIGURATIONS}
    tables = {"matmul": family.TILES,
              "streamk": (*family.planning.LARGE, *family.planning.SMALL, *family.planning.LONG, *family.SHARED),
              "batched": family.BATCHED, "fused": family.fused.TILES,
              "scaled": family.planning.PROMOTED, "mixed": family.planning.WIDENED[128],
              "grouped": sum(family.planning.GROUPED.values(), ())}
    for name, tiles in tables.items():
        assert {(name, str(t) if name in ("matmul", "streamk", "batched") else f"{t.m}x{t.n}") for t in tiles} <= named
    assert {("gated", f"{t.m}x{t.n // 2}") for t in family.fused.GATED_TILES} <= named


def test_the_budgets_can_be_broken() -> None:
    """Spills, remarks and too many registers are errors."""
    from types import SimpleNamespace as Fake

    def kernel(ptx: str = "", threads: int = 384, **resources: Any) -> Any:
        found = dict(messages=(), spill_stores=0, spill_loads=0, stack=0, registers=168) | resources
        return Fake(metadata=Fake(num_threads=threads), resources=Fake(**found), ptx=ptx)

    roles = "// ---- role a: warps 0..7 ---\nsetmaxnreg.inc.sync.aligned.u32 {};\n// ---- role b: warps 8..11 ---\n" \
            "setmaxnreg.dec.sync.aligned.u32 40;\n"
    within_budgets(kernel(roles.format(232)))
    for bad in (kernel(spill_loads=4), kernel(messages=("C7510",)), kernel(registers=176), kernel(roles.format(240))):
        with pytest.raises(AssertionError):
            within_budgets(bad)
