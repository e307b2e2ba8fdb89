"""The tile IR: values, ops, blocks and functions, in SSA form with nested regions."""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, KeysView, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from tilejit.errors import Loc
from tilejit.ir.report import Record
from tilejit.ir.table import OPS, OpDef
from tilejit.ir.types import Barrier, Buffer, Desc, DType, Ptr, Tile, Type, elem_of, fp32, uint32
from tilejit.records import dataclass

if TYPE_CHECKING:
    from tilejit.layout.linear import LinearLayout


class Value:
    """A result of an op or an argument of a block, named after the user's variable if there is one."""

    __slots__ = ("type", "op", "index", "name")

    def __init__(self, type: Type, op: Op | Block | None = None, index: int = 0, name: str = ""):
        self.type, self.op, self.index, self.name = type, op, index, name

    def __repr__(self) -> str:
        return f"%{self.name or '_'}: {self.type}"

    @property
    def maker(self) -> Op:
        assert type(self.op) is Op, self
        return self.op

    @property
    def owner(self) -> Op | None:
        op = self.op
        return op.parent if type(op) is Block else op  # type: ignore[return-value]

    @property
    def home(self) -> Block | None:
        return self.op.parent if isinstance(self.op, Op) else self.op

    @property
    def tile(self) -> Tile:
        assert type(self.type) is Tile, self
        return self.type

    @property
    def layout(self) -> LinearLayout:
        assert type(self.type) is Tile and self.type.layout is not None, self
        return self.type.layout

    @property
    def dtype(self) -> DType:
        elem = elem_of(self.type)
        assert type(elem) is DType, self
        return elem

    @property
    def buffer(self) -> Buffer:
        assert isinstance(self.type, Buffer), self
        return self.type

    @property
    def barrier(self) -> Barrier:
        assert isinstance(self.type, Barrier), self
        return self.type

    @property
    def desc(self) -> Desc:
        assert isinstance(self.type, Desc), self
        return self.type


class Op:
    """One operation: `name` is a key of `OPS` and `define` its row there; attrs are plain printable data."""

    __slots__ = ("name", "define", "operands", "attrs", "regions", "results", "loc", "parent")

    def __init__(self, name: str, operands: Sequence[Value], attrs: dict[str, Any] | None = None,
                 regions: list[Block] | None = None, result_types: list[Type] | None = None,
                 loc: Loc | None = None):
        self.name, self.operands = name, list(operands)
        self.attrs: dict[str, Any] = dict(attrs) if attrs else {}
        self.define: OpDef = OPS[name]
        self.regions: list[Block] = list(regions) if regions else []
        for r in self.regions:
            r.parent = self
        self.loc = loc
        self.parent: Block | None = None
        if result_types is None:
            result_types = self.define.infer(self) or []
        self.results = [Value(t, self, i) for i, t in enumerate(result_types)]

    @property
    def result(self) -> Value:
        (result,) = self.results
        return result

    def add_results(self, types: Iterable[Type], names: Iterable[str] = ()) -> list[Value]:
        given, first = [*names], len(self.results)
        new = [Value(t, self, first + i, given[i] if given else "") for i, t in enumerate(types)]
        self.results += new
        return new

    @property
    def block(self) -> Block:
        assert self.parent is not None, self
        return self.parent

    @property
    def place(self) -> str:
        return self.loc.short() if self.loc else "?"

    def __repr__(self) -> str:
        res = ", ".join(map(repr, self.results))
        return f"<{res} = {self.name} {self.attrs}>"


class Block:
    """A list of ops with arguments; the last op of a region's block is its terminator."""

    __slots__ = ("args", "ops", "parent")

    def __init__(self, arg_types: list[Type] | tuple[Type, ...] = (), names: list[str] | None = None):
        self.args = [Value(t, self, i, names[i] if names else "") for i, t in enumerate(arg_types)]
        self.ops: list[Op] = []
        self.parent: Op | None = None

    def add_arg(self, type: Type, name: str = "") -> Value:
        self.args.append(Value(type, self, len(self.args), name))
        return self.args[-1]

    @property
    def terminator(self) -> Op:
        return self.ops[-1]


class Function:
    """A kernel: `body.args` are its parameters, `arg_attrs[i]` what is known of each (`divisible`: 16, `nonnegative`:
    true)."""

    __slots__ = ("name", "body", "arg_attrs", "attrs", "loc")

    def __init__(self, name: str, arg_types: list[Type], arg_names: list[str],
                 arg_attrs: list[dict[str, Any]] | None = None, attrs: dict[str, Any] | None = None,
                 loc: Loc | None = None):
        self.name, self.loc = name, loc
        self.body = Block(arg_types, arg_names)
        self.arg_attrs = arg_attrs or [{} for _ in arg_types]
        self.attrs: dict[str, Any] = dict(attrs or {})

    def say(self, kind: str, text: str, at: str = "", **numbers: int | str | bool) -> None:
        self.attrs.setdefault("report", []).append(Record(kind, text, at, **numbers))

    def __str__(self) -> str:
        from tilejit.ir.text import print_function

        return print_function(self)


class Builder:
    """Appends ops to a block, at its end or at `at`, with the current source location."""

    def __init__(self, block: Block, at: int | None = None, loc: Loc | None = None):
        self.block, self.at, self.loc = block, at, loc

    def insert(self, op: Op) -> Op:
        op.parent = self.block
        if self.at is None:
            self.block.ops.append(op)
        else:
            self.block.ops.insert(self.at, op)
            self.at += 1
        return op

    def op(self, name: str, /, *operands: Value, regions: list[Block] | None = None,
           result_types: list[Type] | None = None, **attrs: Any) -> Op:
        return self.insert(Op(name, operands, attrs, regions, result_types, self.loc))

    def __call__(self, name: str, /, *operands: Value, **attrs: Any) -> Value:
        return self.insert(Op(name, operands, attrs, loc=self.loc)).result

    def const(self, value: int | float | bool, type: Type) -> Value:
        return self("const", value=value, type=type)

    def tf32(self, x: Value) -> Value:
        """fp32 as TMA rounds it to tf32: nearest, ties to even; infinities and NaNs stay."""
        bits = self("bitcast", x, dtype=uint32)
        numbers = (self.const(n, bits.type) for n in (13, 1, 0xFFF, 0xFFFFE000, 0x7F800000))
        thirteen, one, half, kept, exponent = numbers
        odd = self("and", self("shr", bits, thirteen), one)
        rounded = self("and", self("add", bits, self("add", odd, half)), kept)
        special = self("cmp", self("and", bits, exponent), exponent, pred="eq")
        return self("bitcast", self("select", special, bits, rounded), dtype=fp32)

    def branch(self, condition: Value, *ways: Callable[[Builder], Iterable[Value]]) -> list[Value]:
        """An `if`, each of whose ways writes its region."""
        regions = [Block(), Block()]
        for region, way in zip(regions, (*ways, lambda b: ())):
            inner = Builder(region, loc=self.loc)
            inner.op("yield", *way(inner))
        return self.op("if", condition, regions=regions).results


def beside(op: Op, behind: bool = False) -> Builder:
    return Builder(op.block, op.block.ops.index(op) + behind, op.loc)


@dataclass(frozen=True)
class Edge:
    """One way of values through control flow."""

    index: int
    init: Value | None
    args: tuple[Value, ...]
    ends: tuple[Value, ...]
    result: Value

    @property
    def sources(self) -> tuple[Value, ...]:
        return self.ends if self.init is None else (self.init, *self.ends)

    @property
    def values(self) -> tuple[Value, ...]:
        return (*self.sources, *self.args, self.result)


def edges(op: Op) -> list[Edge]:
    return [_edge(op, i) for i in range(len(op.results))] if op.define.carries else []


def edge_of(v: Value) -> tuple[Op, Edge] | None:
    if isinstance(v.op, Op):
        return (v.op, _edge(v.op, v.index)) if v.op.define.carries else None
    owner = v.op.parent if v.op is not None else None
    if owner is None or not owner.define.carries or v.index < _leading(owner):
        return None
    return owner, _edge(owner, v.index - _leading(owner))


def edge_at(op: Op, index: int) -> tuple[Op, Edge] | None:
    owner = op
    if "terminator" in op.define.traits and op.parent is not None and op.parent.parent is not None:
        owner = op.parent.parent
    i = index - op.define.fixed
    return (owner, _edge(owner, i)) if owner.define.carries and 0 <= i < len(owner.results) else None


def reached(values: Iterable[Value], sources: Callable[[Value], Iterable[Value]]) -> KeysView[Value]:
    found, work = dict.fromkeys(values), [*values]
    while work:
        for v in sources(work.pop()):
            if v not in found:
                found[v] = None
                work.append(v)
    return found.keys()


def needed(ops: Iterable[Op], among: Collection[Op]) -> set[Op]:
    found, work = set(ops), [*ops]
    while work:
        more = {v.op for v in read(work.pop()) if isinstance(v.op, Op) and v.op in among} - found
        found |= more
        work += more
    return found


def controls(op: Op) -> list[Value]:
    ends = [op, *(region.terminator for region in op.regions)] if op.define.carries else []
    return [v for end in ends for v in end.operands[:end.define.fixed]]


def keep_edges(op: Op, kept: Sequence[int]) -> None:
    def cut(values: list[Value], first: int) -> list[Value]:
        return [*values[:first], *(values[first + i] for i in kept)]

    leading = _leading(op)
    for region in op.regions:
        end = region.terminator
        if end.operands:
            end.operands = cut(end.operands, end.define.fixed)
        if region.args:
            region.args = cut(region.args, leading)
    if op.define.variadic:
        op.operands = cut(op.operands, op.define.fixed)
    op.results = cut(op.results, 0)
    for values in (op.results, *(region.args for region in op.regions)):
        for i, v in enumerate(values):
            v.index = i


def _leading(op: Op) -> int:
    return int(op.name == "for")


def _edge(op: Op, i: int) -> Edge:
    first = op.define.fixed + i
    ends = [region.terminator for region in op.regions]
    at = _leading(op) + i
    return Edge(i, op.operands[first] if op.define.variadic else None,
                tuple([region.args[at] for region in op.regions if region.args]),
                tuple([end.operands[end.define.fixed + i] for end in ends if end.operands]), op.results[i])


def walk(block: Block) -> Iterator[Op]:
    rest: list[Iterator[Op]] = [iter([*block.ops])]
    while rest:
        for op in rest[-1]:
            yield op
            if op.regions:
                rest.append(chain.from_iterable([*region.ops] for region in op.regions))
                break
        else:
            rest.pop()


def listed(block: Block) -> list[Op]:
    out: list[Op] = []
    done = 0
    for i, op in enumerate(block.ops, 1):
        if op.regions:
            out += block.ops[done:i]
            done = i
            for region in op.regions:
                out += listed(region)
    return out + block.ops[done:]


def blocks(block: Block) -> Iterator[Block]:
    yield block
    for op in block.ops:
        for region in op.regions:
            yield from blocks(region)


def whole(op: Op) -> list[Op]:
    out = [op]
    for region in op.regions:
        out += listed(region)
    return out


def read(op: Op) -> list[Value]:
    return [v for x in whole(op) for v in x.operands]


def uses(block: Block) -> dict[Value, list[tuple[Op, int]]]:
    table: dict[Value, list[tuple[Op, int]]] = {}
    for op in listed(block):
        for i, v in enumerate(op.operands):
            if v in table:
                table[v] += [(op, i)]
            else:
                table[v] = [(op, i)]
    return table


def replace(block: Block, mapping: dict[Value, Value]) -> None:
    def final(v: Value) -> Value:
        while v in mapping:
            v = mapping[v]
        return v

    for op in listed(block) if mapping else ():
        if not mapping.keys().isdisjoint(op.operands):
            op.operands = [final(v) for v in op.operands]


def erase(ops: set[Op], block: Block) -> None:
    block.ops = [op for op in block.ops if op not in ops]
    for op in block.ops:
        for region in op.regions:
            erase(ops, region)


def clone_op(op: Op, mapping: dict[Value, Value], keep: Callable[[Op], bool] | None = None) -> Op:
    """A copy with operands mapped; its results and region arguments are added to `mapping`."""
    new = Op(op.name, [mapping.get(v, v) for v in op.operands], op.attrs,
             [clone_block(r, mapping, keep) for r in op.regions] if op.regions else None,
             [r.type for r in op.results], op.loc)
    for old, res in zip(op.results, new.results):
        res.name = old.name
        mapping[old] = res
    return new


def clone_block(block: Block, mapping: dict[Value, Value],
                keep: Callable[[Op], bool] | None = None) -> Block:
    new = Block([a.type for a in block.args], [a.name for a in block.args])
    mapping.update(zip(block.args, new.args))
    for op in block.ops:
        if keep is None or keep(op):
            copy = clone_op(op, mapping, keep)
            copy.parent = new
            new.ops.append(copy)
    return new


def of_size(op: Op, t: Tile) -> dict[str, Any]:
    """An op's attributes where it makes a part of its result, of type t."""
    attrs = {"shape": t.shape, "type": t}
    return {k: attrs.get(k, v) for k, v in op.attrs.items()}


def computes(op: Op) -> tuple:
    """Equal for pure ops that do the same to the same operands. 1, 1.0, -0.0 and 0.0 differ."""
    operands = sorted(op.operands, key=id) if "commutative" in op.define.traits else op.operands
    attrs = [(k, v if isinstance(v, (str, DType, Ptr, Tile)) else repr(v)) for k, v in sorted(op.attrs.items())] \
        if op.attrs else ()
    types = op.results[0].type if len(op.results) == 1 else tuple([r.type for r in op.results])
    return op.name, *operands, *attrs, types


def total_warps(fn: Function) -> int:
    return int(fn.attrs["num_warps"]) * int(fn.attrs.get("num_ctas", 1))


def divides_k(fn: Function) -> bool:
    return fn.attrs.get("num_ctas", 1) > 1 and fn.attrs.get("cluster_split") == "K"


def product_warps(fn: Function) -> int:
    return fn.attrs["num_warps"] if divides_k(fn) else total_warps(fn)


def enclosing(op: Op) -> Iterator[Op]:
    block = op.parent
    while block is not None and block.parent is not None:
        yield block.parent
        block = block.parent.parent


def loop_around(op: Op) -> Op | None:
    at = op.parent.parent if op.parent is not None else None
    while at is not None and "loop" not in at.define.traits:
        at = at.parent.parent if at.parent is not None else None
    return at


def inside(block: Block, op: Op) -> Op | None:
    at: Op | None = op
    while at is not None and at.parent is not block:
        at = at.parent.parent if at.parent is not None else None
    return at


def made_in(v: Value, block: Block) -> bool:
    at = v.home
    while at is not None and at is not block:
        at = at.parent.parent if at.parent is not None else None
    return at is not None


def const_of(v: Value) -> Any:
    return v.op.attrs["value"] if type(v.op) is Op and v.op.name == "const" else None
