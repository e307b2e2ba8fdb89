from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count

from tilejit.emulator.events import WarpId
from tilejit.emulator.timeline import Arrive, Drain, Gate, Op, Ran, Recorder, Start, Wait, stages


@dataclass(frozen=True)
class Rates:
    """In clocks. Hopper's peak is 4096 flops a clock at 16 bits: a m64nNk16 takes N/2 clocks."""

    instruction: int = 2  # clocks a warp takes for an instruction
    macs: int = 2048  # 16-bit multiply-adds a clock
    copy_bytes: int = 64  # bytes a clock through the TMA unit, each way
    copy_latency: int = 600  # from the last byte's turn in the TMA unit to its arrival
    barrier: int = 20  # from the last arrival to the first instruction after the wait

    def product(self, op: Op) -> int:
        return max(1, op.macs * op.width // (16 * self.macs))


@dataclass(frozen=True)
class Span:
    """From clock `start` to `end`."""

    cta: int
    lane: int | str
    start: int
    end: int
    kind: str
    name: str
    stage: int = -1
    line: int = 0
    source: tuple[str, int] | None = None


@dataclass
class _Warp:
    at: int = 0
    clock: int = 0
    products: set[int] = field(default_factory=set)  # wgmmas that it has not yet waited for
    multiplies: bool = False
    mode: str = "run"


class Replay:
    def __init__(self, recorder: Recorder, rates: Rates):
        self.r, self.rates = recorder, rates
        self.spans: list[Span] = []
        self.warps = {w: _Warp() for w in recorder.warps}
        self.left = dict(recorder.needs)
        self.gates: dict[Gate, int] = {}  # latest contribution so far
        self.sleepers: dict[Gate, list[WarpId]] = {}
        self.free: dict[tuple[int, str], int] = {}  # (cta, unit) -> clock
        self.ends: dict[int, tuple[int, int]] = {}  # op -> (source read, done)
        self.starving: dict[int, list[WarpId]] = {}  # op that has not started -> warps that drain it
        self.copies: dict[Gate, list[tuple[int, int, Op]]] = {}
        self.slots = stages(recorder.names, recorder.filled)
        self.heap: list[tuple[int, int, WarpId]] = []
        self.order = count()
        groups: dict[WarpId, WarpId] = {w: WarpId(w.cta, w.warp // 4 * 4) for w in self.warps}
        self.multipliers = {groups[WarpId(o.cta, o.warp)] for o in recorder.ops.values() if o.kind == "wgmma"}
        for w, state in self.warps.items():
            state.multiplies = groups[w] in self.multipliers
            self._push(w)

    def run(self) -> list[Span]:
        while self.heap:
            _, _, warp = heapq.heappop(self.heap)
            state, actions = self.warps[warp], self.r.warps[warp]
            if state.at == len(actions):
                continue
            action = actions[state.at]
            if isinstance(action, Wait):
                if self._closed(action.gate):
                    self.sleepers.setdefault(action.gate, []).append(warp)
                    continue
                self._pass(warp, state, action)
            elif isinstance(action, Drain):
                missing = [o for o in action.ops if o not in self.ends]
                if missing:
                    self.starving.setdefault(missing[0], []).append(warp)
                    continue
                self._drained(warp, state, action)
            else:
                self._do(warp, state, action)
            state.at += 1
            self._push(warp)
        self._bundle()
        self._stuck()
        return sorted(merged(self.spans), key=lambda s: (s.cta, str(s.lane), s.start, s.end))

    # -- warps --
    def _push(self, warp: WarpId) -> None:
        heapq.heappush(self.heap, (self.warps[warp].clock, next(self.order), warp))

    def _span(self, warp: WarpId, start: int, end: int, kind: str, name: str, stage: int, pc: int) -> None:
        if end > start:
            p = self.r.program
            self.spans.append(Span(warp.cta, warp.warp, start, end, kind, name, stage,
                                   p.line(pc) if pc >= 0 else 0, p.loc(pc) if pc >= 0 else None))

    def _do(self, warp: WarpId, state: _Warp, action: Ran | Start | Arrive) -> None:
        if isinstance(action, Ran):
            start, state.clock = state.clock, state.clock + action.instructions * self.rates.instruction
            self._span(warp, start, state.clock, state.mode, state.mode, -1, action.pc)
        elif isinstance(action, Arrive):
            self._contribute(action.gate, state.clock)
        else:
            self._start(action.op, self.r.ops[action.op], state.clock)
            if self.r.ops[action.op].kind == "wgmma":
                group = warp.warp // 4 * 4
                for w in range(group, group + 4):
                    self.warps[WarpId(warp.cta, w)].products.add(action.op)

    def _pass(self, warp: WarpId, state: _Warp, action: Wait) -> None:
        gate = action.gate
        opened = self.gates.get(gate)
        if opened is not None and opened + self.rates.barrier > state.clock:
            end = opened + self.rates.barrier
            self._span(warp, state.clock, end, "wait", *self._named(gate), action.pc)
            state.clock = end
        if (gate.cta, gate.place) in self.r.filled:  # data of the next tile: the epilogue is over
            state.mode = "run"

    def _drained(self, warp: WarpId, state: _Warp, action: Drain) -> None:
        end = max((self.ends[o][0 if action.read_only else 1] for o in action.ops), default=0)
        if end > state.clock:
            name = {"wgmma": "wgmma", "bulk": "stores", "cp_async": "cp.async"}[action.kind]
            self._span(warp, state.clock, end, "wait", name, -1, action.pc)
            state.clock = end
        if action.kind == "wgmma":
            state.products.difference_update(action.ops)
            if not state.products:
                state.mode = "epilogue"

    def _stuck(self) -> None:
        """Warps that never went on wait to the end."""
        end = max((s.end for s in self.spans), default=0) + 200
        for warp, wait in self.r.blocked.items():
            if warp in self.warps:
                name, stage = self._named(wait.gate)
                self._span(warp, self.warps[warp].clock, end, "wait", f"{name}, for ever", stage, wait.pc)

    # -- gates and units --
    def _named(self, gate: Gate) -> tuple[str, int]:
        at = gate.cta, gate.place
        plain = "cluster barrier" if gate.kind == "cluster" else \
            f"{gate.kind} {gate.place:#x}" if gate.kind == "mbarrier" else f"{gate.kind} {gate.place}"
        return self.r.names.get(at) or plain, self.slots.get(at, -1)

    def _closed(self, gate: Gate) -> bool:
        return gate.phase >= 0 and self.left.get(gate, 0) > 0

    def _contribute(self, gate: Gate, clock: int) -> None:
        self.left[gate] -= 1
        self.gates[gate] = max(self.gates.get(gate, 0), clock)
        if not self.left[gate]:
            for warp in self.sleepers.pop(gate, []):
                self._push(warp)

    def _unit(self, cta: int, unit: str, clock: int, lasts: int) -> tuple[int, int]:
        start = max(clock, self.free.get((cta, unit), 0))
        self.free[cta, unit] = start + lasts
        return start, start + lasts

    def _start(self, number: int, op: Op, clock: int) -> None:
        p, rates = self.r.program, self.rates
        stage = self.slots.get(op.slot, -1) if op.slot is not None else -1
        if op.kind == "wgmma":
            start, read = self._unit(op.cta, "tensor core", clock, rates.product(op))
            end, lane, kind = read, "tensor core", "product"
        else:
            lane = "store" if op.kind.endswith(("store", "reduce")) else "load"
            _, read = self._unit(op.cta, lane, clock, -(-op.bytes // rates.copy_bytes))
            start, end, kind = clock, read + rates.copy_latency, "copy"
        self.ends[number] = read, end
        for gate in dict.fromkeys(op.gates):  # a multicast copy fills slots of several CTAs
            self.copies.setdefault(gate, []).append((start, end, op))
        if not op.gates:
            name = f"{op.kind} {op.bytes} bytes" if op.bytes else op.kind
            self.spans.append(Span(op.cta, lane, start, end, kind, name, stage, p.line(op.pc), p.loc(op.pc)))
        for gate in op.gates:
            self._contribute(gate, end)
        for warp in self.starving.pop(number, []):
            self._push(warp)

    def _bundle(self) -> None:
        p = self.r.program
        for gate, parts in self.copies.items():
            pc, total = parts[0][2].pc, sum(op.bytes for _, _, op in parts)
            name, stage = self._named(gate)
            start, end = min(s for s, _, _ in parts), max(e for _, e, _ in parts)
            name = f"{name} phase {gate.phase}: {total} bytes"
            self.spans.append(Span(gate.cta, "load", start, end, "copy", name, stage, p.line(pc), p.loc(pc)))


def merged(spans: list[Span]) -> list[Span]:
    out: list[Span] = []
    last: dict[tuple[int, int | str], int] = {}
    for s in sorted(spans, key=lambda s: (s.start, s.end)):
        lane = s.cta, s.lane
        old = out[last[lane]] if lane in last and s.kind in ("run", "epilogue", "product") else None
        if old and old.end == s.start and (old.kind, old.stage) == (s.kind, s.stage):
            out[last[lane]] = Span(s.cta, s.lane, old.start, s.end, s.kind, old.name, s.stage, old.line, old.source)
            continue
        last[lane] = len(out)
        out.append(s)
    return out
