"""From parsed PTX to rows of the virtual machine."""
from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilejit.emulator import cfg
from tilejit.emulator.vm import codes as k
from tilejit.errors import EmulatorError
from tilejit.ptx import isa
from tilejit.ptx.text import (
    TYPE_BYTES,
    Entry,
    FloatImm,
    Imm,
    Instruction,
    Mem,
    Module,
    Not,
    Operand,
    Pair,
    Reg,
    Special,
    Sym,
    Variable,
    Vec,
)

#: Shared memory starts here: the first kilobyte belongs to the system on sm_90.
SHARED_BASE = 1024

_AXES = [f"%{n}.{a}" for n in ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid",
                               "cluster_nctaid") for a in "xyz"]
SPECIALS = frozenset(_AXES) | {
    "%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid", "%lanemask_eq", "%lanemask_lt",
    "%lanemask_le", "%lanemask_gt", "%lanemask_ge", "%cluster_ctarank", "%cluster_nctarank",
    "%is_explicit_cluster", "%dynamic_smem_size", "%total_smem_size", "%tid", "%ntid"}
CLOCKS = {"%clock": 32, "%clock64": 64, "%clock_hi": 32, "%globaltimer": 64, "%globaltimer_lo": 32,
          "%globaltimer_hi": 32}


@dataclass(frozen=True)
class Address:
    base: int
    offset: int
    coords: tuple[int, ...] = ()


@dataclass(frozen=True)
class External:
    """An instruction that Python carries out."""

    form: isa.Form
    mods: dict[str, str]
    operands: tuple[Any, ...]


@dataclass
class Decoded:
    """`constants`, `own` (offsets in shared memory, to which every CTA adds its rank) and `specials` fill hidden
    registers."""

    entry: Entry
    code: np.ndarray
    pool: np.ndarray
    externals: dict[int, External]
    registers: int
    constants: dict[int, int]
    own: dict[int, int]
    specials: dict[int, str]
    static_shared: int
    shared_offsets: dict[str, int]
    local_bytes: int
    const_bank: bytes
    #: the module's .global variables; they last as long as the program
    variables: np.ndarray
    loops: bool = False


Handler = Callable[["Decoder", Instruction, isa.Form, dict[str, str]], None]
HANDLERS: dict[str, Handler] = {}


def decodes(*names: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler
    return register


def width_of(kind: str) -> int:
    return 1 if kind == "pred" else 8 * TYPE_BYTES.get(kind, 4)


@dataclass
class Decoder:
    module: Module
    entry: Entry
    rows: list[list[int]] = field(default_factory=list)
    pool: list[int] = field(default_factory=list)
    externals: dict[int, External] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(self.entry.registers)
        self.zero, self.sink, self.carry = n, n + 1, n + 2
        self.next = n + 3
        self.constants: dict[int, int] = {}
        self.own: dict[int, int] = {}
        self.interned: dict[object, int] = {("const", 0): self.zero}
        self.specials: dict[int, str] = {}
        self.params = {p.name: p.offset for p in self.entry.params}
        self.symbols: dict[str, int] = {}
        self.local_bytes = 0
        self.static_shared = 0
        self.const_bank = bytearray()
        self.variables = np.zeros(0, np.uint8)
        self.spaces: dict[str, int] = {}
        self.place_variables()

    def place_variables(self) -> None:
        variables = list(self.module.variables.values()) + list(self.entry.variables.values())
        top = SHARED_BASE
        for v in variables:
            if v.space == "shared" and not v.external:
                top = -(-top // v.align) * v.align
                self.symbols[v.name], self.spaces[v.name] = top, k.SHARED
                top += v.size
        for v in variables:
            if v.space == "shared" and v.external:
                top = -(-top // v.align) * v.align
                self.symbols[v.name], self.spaces[v.name] = top, k.SHARED
            elif v.space == "local":
                self.local_bytes = -(-self.local_bytes // v.align) * v.align
                self.symbols[v.name], self.spaces[v.name] = self.local_bytes, k.LOCAL
                self.local_bytes += v.size
            elif v.space == "const":
                self.const_bank += bytes(-len(self.const_bank) % v.align)
                self.symbols[v.name], self.spaces[v.name] = len(self.const_bank), k.CONST
                self.const_bank += v.data.ljust(v.size, b"\0")
        self.place_global([v for v in variables if v.space == "global"])
        self.static_shared = top - SHARED_BASE
        self.local_bytes = -(-self.local_bytes // 16) * 16

    def place_global(self, variables: list[Variable]) -> None:
        offsets, end = [], 0
        for v in variables:
            offsets.append(-(-end // v.align) * v.align)
            end = offsets[-1] + v.size
        room = np.zeros(end + 255, np.uint8)
        skip = -room.ctypes.data % 256
        self.variables = room[skip:skip + end]
        for v, at in zip(variables, offsets):
            self.symbols[v.name], self.spaces[v.name] = self.variables.ctypes.data + at, k.GLOBAL
            self.variables[at:at + len(v.data)] = np.frombuffer(v.data, np.uint8)

    # -- operands --
    def hidden(self, key: object) -> int:
        if key not in self.interned:
            self.interned[key] = self.next
            self.next += 1
        return self.interned[key]

    def constant(self, value: int) -> int:
        value &= (1 << 64) - 1
        reg = self.hidden(("const", value))
        self.constants[reg] = value - (1 << 64) if value >> 63 else value
        return reg

    def own_address(self, offset: int) -> int:
        reg = self.hidden(("own", offset))
        self.own[reg] = offset
        return reg

    def source(self, operand: Operand, kind: str = "b64") -> int:
        if isinstance(operand, Reg):
            return operand.index
        if isinstance(operand, Imm):
            return self.constant(operand.value & ((1 << width_of(kind)) - 1))
        if isinstance(operand, FloatImm):
            return self.constant(self.float_bits(operand, kind))
        if isinstance(operand, Special):
            if operand.name not in SPECIALS:
                raise EmulatorError(f"unknown special register {operand.name}")
            reg = self.hidden(operand.name)
            self.specials[reg] = operand.name
            return reg
        if isinstance(operand, Sym):
            if operand.name == "_":
                return self.sink
            if operand.name in self.params:
                return self.constant(self.params[operand.name])
            if operand.name in self.symbols:
                if self.spaces[operand.name] == k.SHARED:
                    return self.own_address(self.symbols[operand.name])
                return self.constant(self.symbols[operand.name])
            raise EmulatorError(f"unknown name {operand.name}")
        raise EmulatorError(f"unexpected operand {operand}")

    def float_bits(self, operand: FloatImm, kind: str) -> int:
        if kind in ("f64", "b64", "u64", "s64"):
            if operand.kind == "f32":
                value = struct.unpack("<f", operand.bits.to_bytes(4, "little"))[0]
                return int.from_bytes(struct.pack("<d", value), "little")
            return operand.bits
        if operand.kind == "f32":
            return operand.bits
        value = struct.unpack("<d", operand.bits.to_bytes(8, "little"))[0]
        return int(np.array(value, np.float64).astype(np.float32).view(np.uint32))

    def dest(self, operand: Operand) -> int:
        if isinstance(operand, Reg):
            return operand.index
        if operand == Sym("_"):
            return self.sink
        raise EmulatorError(f"{operand} cannot be a destination")

    def pair(self, operand: Operand) -> tuple[int, int]:
        """The registers of `d|p`."""
        if isinstance(operand, Pair):
            return self.dest(operand.first), self.dest(operand.second)
        return self.dest(operand), self.sink

    def predicate(self, operand: Operand) -> tuple[int, int]:
        if isinstance(operand, Not):
            return self.source(operand.operand, "pred"), k.NEGATED
        return self.source(operand, "pred"), 0

    def address(self, operand: Operand) -> Address:
        if not isinstance(operand, Mem):
            raise EmulatorError(f"expected an address, found {operand}")
        return Address(self.source(operand.base), operand.offset,
                       tuple(self.source(c, "b32") for c in operand.coords))

    def space(self, name: str, base: Operand) -> int:
        if isinstance(base, Mem):
            base = base.base
        if not name:
            if isinstance(base, Sym) and base.name in self.spaces:
                return self.spaces[base.name]
            return k.GENERIC
        if isinstance(base, Sym) and self.spaces.get(base.name) == k.CONST:
            return k.CONST
        return {"global": k.GLOBAL, "param": k.PARAM, "local": k.LOCAL, "const": k.CONST}.get(
            name.split("::")[0], k.SHARED)

    def group(self, operand: Operand, kind: str = "b32") -> tuple[int, int]:
        items = operand.items if isinstance(operand, Vec) else (operand,)
        start = len(self.pool)
        self.pool += [self.source(i, kind) for i in items]
        return start, len(items)

    # -- rows --
    def row(self, op: int, d: int | None = None, a: int | None = None, b: int | None = None,
            c: int | None = None, e: int | None = None, sub: int = 0, fmt: int = 0, flags: int = 0,
            imm: int = 0, target: int = 0, reconv: int = 0, pool: tuple[int, int] = (0, 0)) -> None:
        reads_e = op == k.INT
        self.rows.append([
            op, -1, 0, self.sink if d is None else d, self.zero if a is None else a,
            self.zero if b is None else b, self.zero if c is None else c,
            (self.zero if reads_e else self.sink) if e is None else e,
            sub, fmt, flags, imm, target, reconv, *pool])

    def external(self, ins: Instruction, form: isa.Form, mods: dict[str, str], traced: bool = False) -> None:
        kinds = form.operands.replace("?", "")
        operands: list[Any] = []
        for kind, operand in zip(kinds, ins.operands):
            if kind in "mt":
                operands.append(self.address(operand))
            elif kind == "i":
                if not isinstance(operand, Imm):
                    raise EmulatorError(f"expected a literal, found {operand}")
                operands.append(operand.value)
            elif isinstance(operand, Vec):
                operands.append(tuple(self.source(i) for i in operand.items))
            elif isinstance(operand, Pair):
                operands.append(self.pair(operand))
            elif isinstance(operand, Not):
                operands.append(("not", self.source(operand.operand, "pred")))
            elif kind in "dp":
                operands.append(self.dest(operand))
            else:
                operands.append(self.source(operand))
        self.externals[len(self.rows)] = External(form, mods, tuple(operands))
        self.row(k.TRACED if traced else k.EXTERNAL)


def decode(module: Module, name: str | None) -> Decoded:
    """The entry (the only one if name is None). Raises EmulatorError naming line and instruction."""
    from tilejit.emulator import handlers, handlers_memory  # noqa: F401  (register the handlers)

    if name is None:
        if len(module.entries) != 1:
            raise EmulatorError(f"the module has entries {sorted(module.entries)}: name one")
        name = next(iter(module.entries))
    if name not in module.entries:
        raise EmulatorError(f"no entry {name}; the module has {sorted(module.entries)}")
    entry = module.entries[name]
    d = Decoder(module, entry)
    for ins in entry.instructions:
        _decode_one(d, ins)
    d.row(k.RET)  # falling off the end
    _branches(d, entry)
    code = np.array(d.rows, np.int64).reshape(-1, k.WIDTH)
    return Decoded(entry, code, np.array(d.pool or [0], np.int32), d.externals, d.next, d.constants, d.own,
                   d.specials, d.static_shared, d.symbols, d.local_bytes, bytes(d.const_bank), d.variables)


def _decode_one(d: Decoder, ins: Instruction) -> None:
    found = isa.lookup(ins.opcode)
    if found is None:
        raise EmulatorError(f"PTX line {ins.line}: unknown or unsupported instruction {ins.text!r}")
    form, mods = found
    least, most = isa.operand_counts(form)
    if not least <= len(ins.operands) <= most:
        raise EmulatorError(f"PTX line {ins.line}: {ins.opcode} takes {least} to {most} operands: {ins.text!r}")
    handler = HANDLERS.get(form.name)
    if handler is None:
        raise EmulatorError(f"PTX line {ins.line}: {form.name} is not supported by the emulator: {ins.text!r}")
    try:
        handler(d, ins, form, mods)
    except EmulatorError as error:
        raise EmulatorError(f"PTX line {ins.line}: {error}, in {ins.text!r}") from None
    d.rows[-1][k.GUARD] = ins.guard
    d.rows[-1][k.NEG] = int(ins.negated)


def _branches(d: Decoder, entry: Entry) -> None:
    targets: dict[int, tuple[int, ...]] = {}
    exits, falls = set(), set()
    for pc, row in enumerate(d.rows):
        if row[k.OP] == k.BRA:
            targets[pc] = (row[k.TARGET],)
        elif row[k.OP] == k.BRX:
            targets[pc] = tuple(d.pool[row[k.POOL]:row[k.POOL] + row[k.COUNT]])
        elif row[k.OP] in (k.RET, k.TRAP):
            exits.add(pc)
        if row[k.GUARD] >= 0 and (pc in targets or pc in exits):
            falls.add(pc)
    meet = cfg.reconvergence(len(d.rows), targets, exits, falls)
    for pc in targets:
        d.rows[pc][k.RECONV] = meet[pc]
