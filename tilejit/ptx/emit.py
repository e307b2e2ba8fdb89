"""Tile IR -> PTX: walks a scheduled function and calls one emitter per op."""
from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from tilejit.errors import CompilationError
from tilejit.ir import Block, Function, Op, Value, enclosing, listed, uses
from tilejit.ir.target import target_of
from tilejit.ir.types import Desc, DType, Pending, Ptr, Tile, Type, elem_of, uint64
from tilejit.layout.linear import LinearLayout
from tilejit.ptx.build import Ptx
from tilejit.ptx.metadata import KernelMetadata, Param, PointerParam, ScalarParam
from tilejit.ptx.places import renamed, repeated, source_layout
from tilejit.ptx.steps import Steps, counts
from tilejit.records import dataclass, field

if TYPE_CHECKING:
    from tilejit.ptx.tensor_maps import Written

EMITTERS: dict[str, Callable[[Emitter, Op], None]] = {}


def emits(*names: str) -> Callable[[Callable[[Emitter, Op], None]], Callable[[Emitter, Op], None]]:
    def register(fn: Callable[[Emitter, Op], None]) -> Callable[[Emitter, Op], None]:
        for n in names:
            assert n not in EMITTERS, f"two emitters for {n}"
            EMITTERS[n] = fn
        return fn
    return register


@lru_cache
def reg_class(t: DType | Ptr) -> str:
    if isinstance(t, Ptr):
        return "b64"
    if t.family == "bool":
        return "pred"
    if t.family == "float":
        return {8: "b16", 16: "b16", 32: "f32", 64: "f64"}[t.bits]
    return {8: "b16", 16: "b16", 32: "b32", 64: "b64"}[t.bits]


def held(t: Type) -> DType | Ptr:
    """What registers hold of a value: elements, or the address of a descriptor's tensor maps."""
    return uint64 if isinstance(t, Desc) else elem_of(t)


@dataclass
class Known:
    """Constants of a thread that have registers."""

    coords: dict[tuple[LinearLayout, int], str] = field(default_factory=dict)
    addresses: dict[tuple, str] = field(default_factory=dict)  # thread parts of shared addresses
    owners: dict[LinearLayout, str | None] = field(default_factory=dict)
    mark: int | None = None  # where in the lines more of them go; None: where they are used

    def copy(self) -> Known:
        return Known(dict(self.coords), dict(self.addresses), dict(self.owners), self.mark)


@dataclass
class Role:
    """The warps that run the code being emitted, and registers that identify a thread among them."""

    name: str
    warps: int
    barrier: str  # named barrier of role_sync, a number or a register; 0 is the whole CTA's
    warpgroup_barrier: str  # that of its first warpgroup; the others follow
    lane: str = ""  # %laneid-like, 0..31
    warp: str = ""  # warp index within the role; warp-uniform
    tid: str = ""  # thread index within the role
    local_warp: str = ""  # warp index within the role in this CTA; `warp` counts those of CTAs before it
    group: str = "0"  # which group of the role; the three above are within the group
    by_thread: bool = False  # places of elements are computed from `tid`, not from `lane` and `warp`
    #: registers (class, name) that loads from slots have written in this block since the last arrival
    reads: list[tuple[str, str]] = field(default_factory=list)
    known: Known = field(default_factory=lambda: Known())

    @property
    def warp_bits(self) -> int:
        return (self.warps - 1).bit_length()


class _Values(dict[Value, list[str]]):
    """The registers of values; those of an `arange` are made again where they have been given up (`Emitter.anew`)."""

    def __init__(self, e: Emitter):
        self.e = e

    def __missing__(self, v: Value) -> list[str]:
        if v.op not in self.e.indices:
            raise KeyError(v)
        EMITTERS[v.op.name](self.e, v.op)
        return self[v]


class Emitter:
    """State of one emission: the PTX, where every value lives, the current role."""

    def __init__(self, fn: Function):
        self.fn, self.p, self.uses = fn, Ptx(), uses(fn.body)
        self.values: dict[Value, list[str]] = _Values(self)
        self.steps = Steps()  # which registers of addresses are sums of others
        self.run: dict[Value, Op] = {}  # elementwise values that are still to be computed; see runs.py
        self.params: dict[Param, str] = {}
        self.maps: dict[Param, str] = {}  # tensor map -> register with its generic address
        self.views: dict[Value, str] = {}  # view of a ring's slot -> its shared address
        self.exits: list[Op] = []  # see `kernel.early_exits`
        self.folds: list[Op] = []  # over CTAs: the first one awaits all of them, the last one tells them
        self.shifts: dict[Value, str] = {}  # view of an unaligned row -> how far behind 16 bytes it begins
        self.matrices: dict[tuple[Op, int], str] = {}  # product, operand -> register with the slot's descriptor
        self.wanted: dict[Value, Collection[int] | None] = {}  # see `asked`
        self.packed: dict[tuple[str, ...], str] = {}  # elements made together -> the register of all
        self.aliases: dict[Value, Value] = {}  # descriptor query -> the value it repeats
        self.fed = {loop for op in listed(fn.body) if op.name == "dot_async" and isinstance(op.operands[0].type, Tile)
                    for loop in enclosing(op)}  # loops and branches with products that have operands in registers
        self.indices: list[Op] = []  # `arange` ops of the blocks around what is emitted
        self.role = Role("all", fn.attrs["num_warps"], "0", "1")
        self.version = (8, 0)  # of the PTX ISA
        self.target = target_of(fn)
        self.smem = ""  # register: shared base address, 1024-byte aligned
        self.few: str | None = None  # predicate: the launch may begin early
        self.rank = ""  # register: index of the CTA in its cluster, if that has several
        self.written: Written | None = None  # tensor maps that the program writes
        self.alone = False  # one thread runs what is emitted (`elect`)
        self.private = ""  # register: what private buffers and scratch are counted from; see `roles`

    @cached_property
    def negations(self) -> set[Value]:
        from tilejit.ptx.arith import negations

        return negations(self.fn)

    # -- values --
    def get(self, v: Value) -> list[str]:
        return self.values[v]

    def scalar(self, v: Value) -> str:
        (r,) = self.values[v]
        return r

    def set(self, v: Value, regs: list[str] | str) -> None:
        self.values[v] = [regs] if type(regs) is str else regs  # type: ignore[assignment]

    def fresh(self, t: Type) -> list[str]:
        return self.p.regs(reg_class(held(t)), self.count(t))

    def spread(self, v: Value, roots: Mapping[int, str]) -> list[str]:
        cls, asked = reg_class(elem_of(v.type)), self.asked(v)
        made: dict[Hashable, str] = {}

        def further(register: str, scalar: Value, bit: int, sign: str) -> str:
            if (scalar, bit) not in made:
                made[scalar, bit] = self.p.new(cls, f"shl.{cls}", self.scalar(scalar), bit)
            if (register, scalar, bit, sign) not in made:
                made[register, scalar, bit, sign] = self.p.new(cls, f"{sign}.s{cls[1:]}", register, made[scalar, bit])
            return made[register, scalar, bit, sign]

        out = []
        for i, (root, (number, multiples)) in enumerate(zip(self.steps.roots(v), self.steps.apart(v))):
            if asked is not None and i not in asked:
                out.append("")
                continue
            register = roots[root]
            for scalar, n in multiples:  # bit by bit: many registers have their first additions in common
                for bit in reversed(range(abs(n).bit_length())):
                    if abs(n) >> bit & 1:
                        register = further(register, scalar, bit, "add" if n > 0 else "sub")
            if number and (register, number) not in made:
                made[register, number] = self.p.new(cls, f"add.s{cls[1:]}", register, number)
            out.append(made[register, number] if number else register)
        return out

    def asked(self, v: Value) -> Collection[int] | None:
        """The registers of numbers and addresses that users ask for, one a vector, run or root; None: all."""
        if v not in self.wanted:
            found = [self._asked(op, i) for op, i in self.uses.get(v, ())]
            self.wanted[v] = None if None in found else set().union(*found)  # type: ignore[arg-type]
        return self.wanted[v]

    def _asked(self, op: Op, i: int) -> Iterable[int] | None:
        name, attrs = op.name, op.attrs
        if "runs" in attrs or attrs.get("vec", 1) > 1 and op.define.operands[i] == "ptr":
            return range(0, self.count(op.operands[i].type), attrs.get("runs") or attrs["vec"])
        if "as_asked" not in op.define.traits or not counts(op.result):
            return None
        if self.steps.by_roots(op):
            return self.steps.roots(op.result)
        further = self.asked(op.result)
        if further is None or name not in ("expand_dims", "broadcast"):
            return further
        source = repeated(op) if name == "broadcast" else renamed(source_layout(op), op.result.layout, op)
        return [source[j] for j in further]

    def count(self, t: Type) -> int:
        kind = type(t)  # (compared, not asked: emitters come here for every op)
        if kind is Pending:
            t = t.tile  # type: ignore[union-attr]
        elif kind is not Tile:
            return 1
        if t.layout is None:  # type: ignore[union-attr]
            raise CompilationError(f"tile {t} reached the emitter without a layout")
        return t.layout.num_registers  # type: ignore[union-attr]

    # -- threads --
    def thread_coord(self, layout: LinearLayout, dim: int) -> str:
        """This thread's part of coordinate `dim` (xor/or it with the register's constant part)."""
        key = (layout, dim)
        coords = self.role.known.coords
        if key not in coords:
            coords[key] = self.hoist(lambda: self.bit_sum(
                [(self.role.lane, [b[dim] for b in layout.bases_of("lane")]),
                 (self.role.warp, [b[dim] for b in layout.bases_of("warp")])]))
        return coords[key]

    def owner(self, layout: LinearLayout) -> str | None:
        """Predicate: this thread is the first of those that hold the same elements; None if all differ."""
        owners = self.role.known.owners
        if layout not in owners:
            local = self.role.local_warp and layout.in_bits("warp") == self.role.warp_bits
            masks = [(src, sum(1 << i for i, b in enumerate(layout.bases_of(name)) if not any(b)))
                     for name, src in (("lane", self.role.lane),
                                       ("warp", self.role.local_warp if local else self.role.warp))]
            masks = [(src, m) for src, m in masks if m]

            def make() -> str:
                bits = [self.p.new("b32", "and.b32", src, m) for src, m in masks]
                both = bits[0] if len(bits) == 1 else self.p.new("b32", "or.b32", *bits)
                return self.p.new("pred", "setp.eq.u32", both, 0)

            owners[layout] = self.hoist(make) if masks else None
        return owners[layout]

    def hoist(self, make: Callable[[], str]) -> str:
        known = self.role.known
        if known.mark is None:
            return make()
        lines, self.p.lines = self.p.lines, []
        result = make()
        new, self.p.lines = self.p.lines, lines
        lines[known.mark:known.mark] = new
        known.mark += len(new)
        return result

    def anew(self) -> None:
        """From here to the block's end, thread constants are made again where used: ptxas would keep and spill them."""
        self.role.known = Known()
        for op in self.indices:
            self.values.pop(op.result, None)

    def ahead(self, inner: list[Op]) -> None:
        for op in self.indices:
            if any(op.result in x.operands for x in inner):
                self.get(op.result)
        self.role.known.mark = len(self.p.lines)

    def bit_sum(self, parts: list[tuple[str, list[int]]]) -> str:
        """Xor over parts (register, bases) of bases[i] for every set bit i of the register."""
        p, terms, role = self.p, [], self.role
        if role.by_thread and [src for src, _ in parts] == [role.lane, role.warp]:
            lanes, warps = (bases for _, bases in parts)
            parts = [(role.tid, [*lanes, *[0] * (5 - len(lanes)), *warps])]
        for src, bases in parts:
            i = 0
            while i < len(bases):
                if bases[i] == 0:
                    i += 1
                    continue
                j = i + 1
                while j < len(bases) and bases[j] == bases[j - 1] * 2:
                    j += 1
                if bases[i] & (bases[i] - 1):
                    j = i + 1  # not a power of two: its multiples may carry, one bit at a time
                    bit = p.new("b32", "bfe.u32", src, i, 1)
                    terms.append(p.new("b32", "mul.lo.u32", bit, bases[i]))
                else:
                    bits = p.new("b32", "bfe.u32", src, i, j - i)
                    shift = bases[i].bit_length() - 1
                    terms.append(p.new("b32", "shl.b32", bits, shift) if shift else bits)
                i = j
        if not terms:
            return p.new("b32", "mov.b32", 0)
        total = terms[0]
        for t in terms[1:]:
            total = p.new("b32", "xor.b32", total, t)
        return total

    def sync(self) -> None:
        """All threads of the role meet, unless they just have."""
        lines, nothing = self.p.lines, ("    //", "    .loc", "    mov.")
        last = next((x for x in reversed(lines) if "\n" in x or not x.startswith(nothing)), "")
        if self.role.warps == 1:
            self.p("bar.warp.sync", -1)
        elif self.role.barrier == "0":
            self.p("bar.sync", 0)
        else:
            self.p("bar.sync", self.role.barrier, 32 * self.role.warps)
        if last == lines[-1]:
            lines.pop()

    def warpgroup(self) -> str:
        return self.p.new("b32", "shr.u32", self.role.local_warp or self.role.warp, 2)

    def warpgroup_sync(self) -> None:
        self.p("bar.sync", self.p.new("b32", "add.u32", self.warpgroup(), self.role.warpgroup_barrier), 128)

    # -- parameters --
    def param(self, param: Param) -> str:
        return self.params.setdefault(param, f"param_{len(self.params)}")

    # -- walking --
    def block(self, block: Block) -> None:
        from tilejit.ptx import runs

        around, outer, reads = self.role.known, [*self.indices], self.role.reads
        self.role.reads = []
        have = {v: self.values[v] for op in outer for v in op.results if v in self.values}
        if around.mark is None:
            self.role.known = around.copy()
        for op in block.ops:
            if runs.step(self, op):
                continue
            self.at(op)
            if op.name not in EMITTERS:
                raise CompilationError(f"no PTX emitter for op {op.name}", op.loc)
            if op.regions and self.role.known.mark is None:
                self.ahead([x for region in op.regions for x in listed(region)])
            EMITTERS[op.name](self, op)
            if op in self.fed:
                self.anew()
        if self.run:
            runs.finish(self)
        self.role.known, self.indices, self.role.reads = around, outer, reads
        for op in outer:
            self.values.pop(op.results[0], None)
        self.values.update(have)

    def at(self, op: Op) -> None:
        if op.loc is not None:
            self.p.loc(op.loc.file, op.loc.line)
        shown = [r for r in op.results if type(r.type) in (Tile, Pending)]
        effects = op.define.effects
        if shown or effects and ("shared_write" in effects or "write" in effects):
            names = ", ".join([r.name or "_" for r in shown]) if shown[1:] else shown[0].name or "_" if shown else ""
            what = f"{names} = {op.name} : {shown[0].type}" if shown else op.name
            self.p.comment(f"{what}    {op.loc.short()}" if op.loc else what)


def param_decl(name: str, param: Param) -> str:
    if isinstance(param, PointerParam):
        return f".param .u64 {name}"
    if isinstance(param, ScalarParam):
        cls = {"int1": "u8", "int8": "u8", "uint8": "u8", "fp8e4b15": "u8", "fp8e4nv": "u8", "fp8e5": "u8",
               "int16": "u16", "uint16": "u16", "fp16": "b16", "bf16": "b16", "fp32": "f32", "fp64": "f64",
               "int64": "u64", "uint64": "u64"}
        return f".param .{cls.get(param.dtype, 'u32')} {name}"
    return f".param .align 64 .b8 {name}[128]"


def emitters() -> dict[str, Callable[[Emitter, Op], None]]:
    from tilejit.ptx import (  # noqa: F401
        arith,
        assembly,
        async_copy,
        block,
        cluster_barrier,
        cluster_fold,
        control,
        convert,
        exchange,
        fma,
        indexed,
        kernel,
        map,
        memory,
        mma,
        odd_rows,
        print,
        reduce,
        scan,
        shape,
        store,
        swap,
        tensor_maps,
        tma,
        wgmma,
    )

    return EMITTERS


def emit(fn: Function) -> tuple[str, KernelMetadata]:
    from tilejit.ptx import kernel

    emitters()
    e = Emitter(fn)
    kernel.prologue(e)
    e.block(fn.body)
    return kernel.finish(e)
