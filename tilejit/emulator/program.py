"""A loaded program and its launches: clusters by index. When one only spins the next is admitted beside it, as many
as a GPU holds."""
from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilejit.emulator import (  # noqa: F401  (executors)
    bulk,
    cache,
    copies,
    cp_async,
    mbarrier,
    printing,
    sync,
    tensor_core,
    tma,
)
from tilejit.emulator.deadlock import deadlock
from tilejit.emulator.decode import Address, External, decode
from tilejit.emulator.events import Listener, fan_out
from tilejit.emulator.execute import EXECUTE
from tilejit.emulator.machine import AsyncOp, Cluster, Stop, Tools
from tilejit.emulator.policy import POLICIES, make_policy
from tilejit.emulator.report import Finding, Report
from tilejit.emulator.vm import codes as k
from tilejit.errors import EmulatorError
from tilejit.ptx import text

RESIDENT = 132
#: Turns without progress after which a launch counts as livelocked.
LIVELOCK_ROUNDS = 200
#: Steps after which another cluster gets its turn: polling with barriers in between does not look idle.
TURNS = 4000


class Program:
    """`entry` names the kernel if there are several. Raises EmulatorError, naming line and instruction, for text that
    is not supported."""

    def __init__(self, ptx_text: str, entry: str | None = None):
        cache.load_machine()
        self.source = ptx_text
        self.module = text.parse(ptx_text)
        self.decoded = decode(self.module, entry)
        self.entry = self.decoded.entry
        self.registers = [name for name, _ in self.entry.registers]
        self.sink = len(self.registers) + 1
        self.roles = _roles(self.entry.comments)
        self._operands: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def line(self, pc: int) -> int:
        ins = self.entry.instructions
        return ins[pc].line if pc < len(ins) else 0

    def loc(self, pc: int) -> tuple[str, int] | None:
        ins = self.entry.instructions
        return ins[pc].loc if pc < len(ins) else None

    def text(self, pc: int) -> str:
        ins = self.entry.instructions
        return ins[pc].text if pc < len(ins) else "(end of the kernel)"

    def role(self, warp: int) -> str:
        """The role of a warp, by the kernel's `role NAME: warps A..B` comments."""
        return next((name for name, first, last in self.roles if first <= warp <= last), "")

    def operand_registers(self, pc: int, ext: External) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Indices of registers that an External reads, writes, and both; without a wgmma's accumulator."""
        if pc not in self._operands:
            reads: list[int] = []
            writes: list[int] = []
            for kind, operand in zip(ext.form.operands.replace("?", ""), ext.operands):
                write = kind in "dp"
                if kind == "i" or write and ext.form.name.startswith("wgmma"):
                    continue
                regs = (operand,) if isinstance(operand, int) else operand
                if isinstance(operand, Address):
                    regs = (operand.base, *operand.coords)
                (writes if write else reads).extend(reg for reg in regs if not isinstance(reg, str))
            self._operands[pc] = (np.array(reads, np.int64), np.array(writes, np.int64),
                                  np.array(reads + writes, np.int64))
        return self._operands[pc]

    def entry_registers(self, threads: int) -> int:
        """Registers a thread at entry, as ptxas assumes: 65536 over the most threads, multiple of 8."""
        directives = self.entry.directives
        if "maxnreg" in directives:
            return directives["maxnreg"][0]
        most = _product(directives.get("maxntid", directives.get("reqntid", (threads,))))
        return min(256, 65536 // max(most, 1) // 8 * 8)

    def barrier_name(self, pc: int, offset: int) -> str:
        line = self.line(pc)
        for at in (line, line - 1):
            comment = self.entry.comments.get(at, "")
            if comment and " " not in comment.strip():
                return comment.strip()
        return f"mbarrier {offset:#x}"

    def launch(self, grid: Sequence[int], block: int | Sequence[int], params: Sequence[bytes],
               shared_bytes: int = 0, cluster: Sequence[int] = (1, 1, 1), memory: Sequence[np.ndarray] = (),
               policy: str = "round_robin", seed: int = 0, listener: Listener | Sequence[Listener] | None = None,
               progress: Callable[[int, int], None] | None = None) -> Report:
        """Run the kernel over a grid."""
        return Launch(self, _three(grid), block, params, shared_bytes, _three(cluster), memory, policy, seed,
                      fan_out(listener)).run(progress)


class Launch:
    def __init__(self, program: Program, grid: tuple[int, int, int], block: int | Sequence[int],
                 params: Sequence[bytes], shared_bytes: int, cluster: tuple[int, int, int],
                 memory: Sequence[np.ndarray], policy: str, seed: int, listener: Listener | None):
        self.program, self.grid, self.seed = program, grid, seed
        self.block = _three((block,) if isinstance(block, int) else block)
        self.threads = self.block[0] * self.block[1] * self.block[2]
        self.warps = -(-self.threads // 32)
        self.shared_bytes = shared_bytes
        fixed = program.entry.directives.get("reqnctapercluster")
        self.cluster = _three(fixed) if fixed else cluster
        if policy not in POLICIES:
            raise EmulatorError(f"no policy {policy!r}; there are {POLICIES}")
        self.policy = make_policy(policy, seed, program, self.warps, _product(self.cluster))
        self.listener = listener
        self.explicit_cluster = bool(fixed) or self.cluster != (1, 1, 1)
        self.memory = list(memory)
        from tilejit.emulator.vm.run import run

        self.tools = Tools(run, EXECUTE, deadlock, sync.warp_exited)
        self.report = Report()
        self.last_wgmma: dict[tuple[int, int], AsyncOp] = {}
        self.ops = 0
        self._check()
        self.params, self.params_size = self._params(params)
        self.const_bank = np.frombuffer(program.decoded.const_bank or b"\0", np.uint8)
        self.ranges = self._ranges()
        d = program.decoded
        self.entry_registers = program.entry_registers(self.threads)
        rng = np.random.default_rng(seed)
        template = np.full((self.warps, d.registers, 32), 0x7FF7DEAD7FA7DEAD, np.int64)
        for i, (_, kind) in enumerate(program.entry.registers):
            if kind == "pred":
                template[:, i] = rng.integers(0, 2, 32)
            elif kind in ("b16", "u16", "s16", "f16", "bf16"):
                template[:, i] = 0x7FAD
            elif not kind.endswith("64"):
                template[:, i] = 0x7FA7DEAD
        template[:, len(program.entry.registers):] = 0
        for reg, value in d.constants.items():
            template[:, reg] = value
        self.template = template

    def _check(self) -> None:
        if any(g % c for g, c in zip(self.grid, self.cluster)):
            raise EmulatorError(f"the grid {self.grid} is not a multiple of the cluster {self.cluster}")
        directives = self.program.entry.directives
        if "maxntid" in directives and self.threads > _product(directives["maxntid"]):
            raise EmulatorError(f"{self.threads} threads exceed .maxntid {directives['maxntid']}")
        if "reqntid" in directives and self.threads != _product(directives["reqntid"]):
            raise EmulatorError(f"{self.threads} threads differ from .reqntid {directives['reqntid']}")
        if not 1 <= self.threads <= 1024:
            raise EmulatorError(f"{self.threads} threads a CTA are not 1 to 1024")
        if self.shared_bytes + self.program.decoded.static_shared > 232448:
            raise EmulatorError(f"{self.shared_bytes} bytes of shared memory exceed 232448")

    def _params(self, params: Sequence[bytes]) -> tuple[np.ndarray, int]:
        declared = self.program.entry.params
        if len(params) != len(declared):
            raise EmulatorError(f"{len(params)} parameters given, the kernel has {len(declared)}")
        size = declared[-1].offset + declared[-1].size if declared else 0
        bank = np.zeros(size + 64, np.uint8)
        for p, data in zip(declared, params):
            if len(data) != p.size:
                raise EmulatorError(f"parameter {p.name} has {p.size} bytes, {len(data)} given")
            bank[p.offset:p.offset + p.size] = np.frombuffer(bytes(data), np.uint8)
        return bank, size

    def _ranges(self) -> np.ndarray:
        rows = []
        variables = self.program.decoded.variables
        for a in [*self.memory, *([variables] if variables.size else [])]:
            low, high = np.lib.array_utils.byte_bounds(a)
            rows.append((low, high, 0 if a.flags.writeable else 1))
        return np.array(rows or [(0, 0, 1)], np.int64)

    def next_op(self) -> int:
        self.ops += 1
        return self.ops

    # -- what a cluster asks for --
    def register_file(self, warps: int) -> np.ndarray:
        if warps == self.warps:
            return self.template.copy()
        return np.tile(self.template, (warps // self.warps, 1, 1))

    def live_lanes(self, warp: int) -> int:
        left = self.threads - 32 * warp
        return (1 << min(left, 32)) - 1

    def fill_specials(self, c: Cluster) -> None:
        """Special registers, and the addresses of shared memory, with the CTA's rank above the offset (ptxas adds
        SR_CgaCtaId << 24 to the address of every shared variable)."""
        ranks = np.arange(c.warps)[:, None] // self.warps
        for reg, offset in self.program.decoded.own.items():
            c.regs[:, reg] = offset + (ranks << k.RANK_SHIFT)
        per_cluster = tuple(g // s for g, s in zip(self.grid, self.cluster))
        lane = np.arange(32)
        for reg, name in self.program.decoded.specials.items():
            for warp in range(c.warps):
                cta, index = c.agent(warp)
                c.regs[warp, reg] = self._special(name, cta, index, lane, c, per_cluster)

    def _special(self, name: str, cta: int, warp: int, lane: np.ndarray, c: Cluster,
                 per_cluster: tuple[int, ...]) -> Any:
        head, _, axis = name[1:].partition(".")
        a = "xyz".index(axis) if axis else 0
        bx, by, _ = self.block
        thread = warp * 32 + lane
        at = _unflatten(cta, self.grid)
        if head == "tid":
            return (thread % bx, thread // bx % by, thread // (bx * by))[a]
        if head == "ntid":
            return self.block[a]
        if head == "ctaid":
            return at[a]
        if head == "nctaid":
            return self.grid[a]
        if head == "clusterid":
            return at[a] // self.cluster[a]
        if head == "nclusterid":
            return per_cluster[a]
        if head == "cluster_ctaid":
            return at[a] % self.cluster[a]
        if head == "cluster_nctaid":
            return self.cluster[a]
        values = {"laneid": lane, "warpid": warp, "nwarpid": self.warps, "smid": cta % RESIDENT,
                  "nsmid": RESIDENT, "gridid": 0, "lanemask_eq": 1 << lane, "lanemask_lt": (1 << lane) - 1,
                  "lanemask_le": (2 << lane) - 1, "lanemask_gt": 0xFFFFFFFF & ~((2 << lane) - 1),
                  "lanemask_ge": 0xFFFFFFFF & ~((1 << lane) - 1), "cluster_ctarank": c.ctas.index(cta),
                  "cluster_nctarank": len(c.ctas),
                  "is_explicit_cluster": int(self.explicit_cluster),
                  "dynamic_smem_size": self.shared_bytes,
                  "total_smem_size": self.shared_bytes + self.program.decoded.static_shared}
        return values[head]

    # -- the run --
    def clusters(self) -> list[list[int]]:
        gx, gy, gz = self.grid
        cx, cy, cz = self.cluster
        return [[x + dx + gx * (y + dy + gy * (z + dz)) for dz in range(cz) for dy in range(cy) for dx in range(cx)]
                for z in range(0, gz, cz) for y in range(0, gy, cy) for x in range(0, gx, cx)]

    def run(self, progress: Callable[[int, int], None] | None) -> Report:
        todo = self.clusters()
        total, done = len(todo), 0
        rng = random.Random(self.seed)
        if self.listener is not None:
            self.listener.program = self.program
            self.listener.launch_begin(self.program, self.grid, self.threads, self.cluster, self.seed)
        todo.reverse()
        active: list[Cluster] = []
        current = 0
        idle = turns = 0
        stopped: Finding | None = None
        try:
            while todo or active:
                if not active:
                    active.append(Cluster(self, todo.pop(), rng))
                    current = 0
                c = active[current]
                turns += 1
                if not c.step():
                    turns = 0
                    self._finish(c)
                    active.pop(current)
                    current = 0
                    done += 1
                    idle = 0
                    if progress is not None:
                        progress(done, total)
                elif c.idle_rounds > len(c.runnable) or turns > TURNS:
                    # What they poll for may need many operations in flight.
                    idle = 0 if turns > TURNS or c.moved else idle + 1
                    c.idle_rounds, c.moved, turns = 0, False, 0
                    if todo and len(active) < RESIDENT:
                        active.append(Cluster(self, todo.pop(), rng))
                        current = len(active) - 1
                    else:
                        current = (current + 1) % len(active)
                    if idle > LIVELOCK_ROUNDS:
                        warp = c.runnable[0] if c.runnable else 0
                        pc = int(c.splits[warp, 0, 0])
                        raise Stop(c.finding("livelock", "warps only spin and nothing changes", pc, tuple(c.runnable)))
                elif c.idle_rounds == 0:
                    idle = 0
            self.report.finished = True
        except Stop as stop:
            stopped = stop.finding
            self.report.findings.append(stopped)
            for c in active:
                self._count(c)
        if self.listener is not None:
            self.listener.launch_end(stopped)
            self.report.findings += self.listener.findings
        return self.report

    def _finish(self, c: Cluster) -> None:
        if self.listener is not None:
            self.listener.cluster_end(list(c.ctas))
        self._count(c)
        self.report.ctas += len(c.ctas)

    def _count(self, c: Cluster) -> None:
        self.report.instructions += int(c.st[k.ST_EXECUTED])
        self.report.cycles += int(c.st[k.ST_CLOCK])


def _three(values: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*(int(v) for v in values), 1, 1)[:3]
    return x, y, z


def _product(values: Sequence[int]) -> int:
    return int(np.prod(values))


def _unflatten(index: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    x, y = grid[0], grid[1]
    return index % x, index // x % y, index // (x * y)


def _roles(comments: dict[int, str]) -> list[tuple[str, int, int]]:
    import re

    out = []
    for comment in comments.values():
        m = re.search(r"role (\w+): warps (\d+)\.\.(\d+)", comment)
        if m:
            out.append((m.group(1), int(m.group(2)), int(m.group(3))))
    return out
