"""Tensor maps that a program writes: where they lie, how they are written, and when copies may use them."""
from __future__ import annotations

from typing import NamedTuple

from tilejit.ir import Block, Function, Op, Value, edges, enclosing, listed, walk
from tilejit.ir.types import Buffer, Desc
from tilejit.ptx.emit import Emitter, emits

#: Words of places that are taken, one for the CTAs of each multiprocessor; more than any chip has.
_WORDS = 256
_MAP = 128
#: Where a map of an empty tensor points to: zeros, NaN of any type, and what may be written.
_EMPTY = "tensor_maps_empty"
_ELEMENT = {"uint8": 0, "uint16": 1, "uint32": 2, "int32": 3, "uint64": 4, "int64": 5, "fp16": 6, "fp32": 7, "fp64": 9,
            "bf16": 10, "tf32": 11, "int8": 0, "int1": 0, "fp8e4nv": 0, "fp8e5": 0, "int16": 1}
_SWIZZLE = {0: 0, 32: 1, 64: 2, 128: 3}


class Form(NamedTuple):
    """What is fixed of a map: the box and swizzle, and whether it is written through."""

    box: tuple[int, ...]
    swizzle: int
    stored: bool


class Written:
    """The maps of a function's `write_desc`s. Descriptors that meet in loops and branches have the same forms."""

    def __init__(self, e: Emitter):
        self.same = _meeting(e.fn)
        self.forms: dict[Value, list[Form]] = {}
        self.first: dict[Op, int] = {}  # the number of its first map in a place
        self.groups: dict[Op, int] = {}
        self.maps: list[tuple[Op, Form]] = []
        made = [op for op in listed(e.fn.body) if op.name == "write_desc"]
        roots = {self.root(op.result) for op in made}
        for op in walk(e.fn.body):
            if "tensor_map" in op.define.traits:
                desc = _desc(op)
                if self.root(desc) in roots and (form := form_of(e, op, desc)) not in self.of(desc):
                    self.forms.setdefault(self.root(desc), []).append(form)
        for op in made:
            self.first[op], self.groups[op] = len(self.maps), _groups(op)
            self.maps += [(op, form) for _ in range(self.groups[op]) for form in self.of(op.result)]

    def root(self, v: Value) -> Value:
        while self.same.get(v, v) is not v:
            v = self.same[v]
        return v

    def of(self, desc: Value) -> list[Form]:
        return self.forms.get(self.root(desc), [])

    def place(self, e: Emitter) -> str:
        number = e.p.new("b32", "ld.shared.u32", f"[{e.smem}+{self.at(e.fn)}]")
        return e.p.new("b64", "mad.wide.u32", number, _MAP * len(self.maps), e.p.new("b64", "mov.u64", "tensor_maps"))

    @staticmethod
    def at(fn: Function) -> int:
        return next(int(op.attrs["offset"]) for op in fn.body.ops if op.name == "tensor_maps")


def _desc(op: Op) -> Value:
    return next(v for v in op.operands if isinstance(v.type, Desc))


def _meeting(fn: Function) -> dict[Value, Value]:
    same: dict[Value, Value] = {}

    def root(v: Value) -> Value:
        while same.get(v, v) is not v:
            v = same[v]
        return v

    for op in walk(fn.body):
        for edge in edges(op):
            if isinstance(edge.result.type, Desc):
                for v in edge.values:
                    same[root(v)] = root(edge.result)
    return same


def _groups(op: Op) -> int:
    for outer in enclosing(op):
        if outer.name == "roles":
            inside = [i for i, region in enumerate(outer.regions) if _within(op, region)]
            return int(outer.attrs["groups"][inside[0]])
    return 1


def _within(op: Op, block: Block) -> bool:
    return any(x is op for x in listed(block))


def form_of(e: Emitter, op: Op, desc: Value) -> Form:
    from tilejit.ptx.tma import box_of

    buffer = next(v.type for v in op.operands if isinstance(v.type, Buffer))
    return Form(box_of(e, op, desc, buffer), buffer.swizzle, "write" in op.define.effects)


def is_written(e: Emitter, op: Op) -> bool:
    return e.written is not None and bool(e.written.of(_desc(op)))


def written_map(e: Emitter, op: Op) -> str:
    assert e.written is not None
    desc = _desc(op)
    at = _MAP * e.written.of(desc).index(form_of(e, op, desc))
    return e.p.new("b64", "add.u64", e.scalar(desc), at) if at else e.scalar(desc)


@emits("tensor_maps")
def _tensor_maps(e: Emitter, op: Op) -> None:
    """Done where roles start and at the end."""


def take_place(e: Emitter) -> None:
    if not any(op.name == "tensor_maps" for op in e.fn.body.ops):
        return
    w = e.written = Written(e)
    e.version = max(e.version, (8, 3))
    p, each = e.p, _each(e)
    p.header += [f".global .align 4 .b8 tensor_maps_taken[{4 * _WORDS}];",
                 f".global .align {_MAP} .b8 tensor_maps[{_MAP * max(1, len(w.maps)) * each * _WORDS}];",
                 f".global .align 16 .b8 {_EMPTY}[48] = {{{', '.join(['0'] * 16 + ['255'] * 16 + ['0'] * 16)}}};"]
    p.banner("a place for tensor maps")
    done, again, search = p.label("place_taken"), p.label("place_again"), p.label("place_search")
    p("bra", done, pred=p.new("pred", "setp.ne.u32", e.role.tid, 0))
    word, bit = p.new("b32", "mov.u32", "%smid"), p.reg("b32")
    p("and.b32", word, word, _WORDS - 1)
    p("bra", search)
    p.place(again)
    p("add.u32", word, word, 1)
    p("and.b32", word, word, _WORDS - 1)
    p.place(search)
    where = p.new("b64", "mad.wide.u32", word, 4, p.new("b64", "mov.u64", "tensor_maps_taken"))
    free = p.new("b32", "not.b32", p.new("b32", "ld.relaxed.gpu.global.u32", f"[{where}]"))
    free = p.new("b32", "and.b32", free, (1 << each) - 1)
    p("bra", again, pred=p.new("pred", "setp.eq.u32", free, 0))
    p("and.b32", bit, free, p.new("b32", "neg.s32", free))
    had = p.new("b32", "atom.acquire.gpu.global.or.b32", f"[{where}]", bit)
    p("bra", search, pred=p.new("pred", "setp.ne.u32", p.new("b32", "and.b32", had, bit), 0))
    number = p.new("b32", "mad.lo.u32", word, each, p.new("b32", "bfind.u32", bit))
    p("st.shared.u32", f"[{e.smem}+{w.at(e.fn)}]", number)
    place, zero = w.place(e), p.new("b32", "mov.u32", 0)
    for i, (op, form) in enumerate(w.maps):
        _fixed(e, op, form, place, _MAP * i, zero)
    p.place(done)
    p("bar.sync", 0)


def _each(e: Emitter) -> int:
    shared, threads = e.fn.attrs["shared_bytes"], e.fn.attrs["num_threads"]
    most = max(1, min(32, 2048 // threads, (e.target.shared_bytes + 1024) // (shared + 1024)))
    return 1 << (most - 1).bit_length()


def _fixed(e: Emitter, op: Op, form: Form, place: str, at: int, zero: str) -> None:
    t = op.result.desc
    for i in range(0, _MAP, 16):
        e.p("st.global.v4.u32", f"[{place}+{at + i}]", f"{{{', '.join([zero] * 4)}}}")

    def put(field: str, *values: object) -> None:
        e.p(f"tensormap.replace.tile.{field}.global.b1024.b32", f"[{place}+{at}]", *values)

    put("rank", len(form.box) - 1)
    for i, n in enumerate(reversed(form.box)):
        put("box_dim", i, n)
        put("element_stride", i, 1)
    put("elemtype", _ELEMENT[(t.held if form.stored else t.elem).name])
    put("swizzle_mode", _SWIZZLE[form.swizzle])
    put("fill_mode", int(op.attrs["padding"] == "nan"))


@emits("write_desc")
def _write_desc(e: Emitter, op: Op) -> None:
    """An empty tensor has one element elsewhere."""
    p, w = e.p, e.written
    assert w is not None
    forms = w.of(op.result)
    if not forms:
        return
    mine = w.place(e)
    first = _MAP * w.first[op]
    mine = p.new("b64", "add.u64", mine, first) if first else mine
    if w.groups[op] > 1:
        mine = p.new("b64", "mad.wide.u32", e.role.group, _MAP * len(forms), mine)
    if any(form.stored for form in forms):
        p("cp.async.bulk.wait_group", 0)
    written = p.label("desc_written")
    if not e.alone:
        e.sync()
        p("bra", written, pred=p.new("pred", "setp.ne.u32", e.role.tid, 0))
    _replace(e, op, forms, mine)
    p("fence.proxy.tensormap::generic.release.gpu")
    if not e.alone:
        p.place(written)
        e.sync()
    result = p.new("b64", "cvta.global.u64", mine)
    for i in range(len(forms)):
        p("fence.proxy.tensormap::generic.acquire.gpu", f"[{result}+{_MAP * i}]", _MAP)
    e.set(op.result, result)


def _replace(e: Emitter, op: Op, forms: list[Form], mine: str) -> None:
    p, rank = e.p, len(op.result.desc.block_shape)
    base, *dims = (e.scalar(v) for v in op.operands)
    sizes = [_narrow(e, v, r) for v, r in zip(op.operands[1:1 + rank], dims)]
    least = sizes[0]
    for s in sizes[1:]:
        least = p.new("b32", "min.s32", least, s)
    empty = p.new("pred", "setp.lt.s32", least, 1)
    sizes = [p.new("b32", "selp.b32", 1, s, empty) for s in sizes]
    strides = [p.new("b64", "mul.lo.u64", s, op.result.desc.elem.bytes) for s in dims[rank:-1]]
    nowhere = p.new("b64", "cvta.global.u64", p.new("b64", "mov.u64", _EMPTY))
    nan = op.attrs["padding"] == "nan"
    for i, form in enumerate(forms):
        other = p.new("b64", "add.u64", nowhere, 32 if form.stored else 16 if nan else 0)
        address = p.new("b64", "selp.b64", other, base, empty)
        at = f"[{mine}+{_MAP * i}]"
        p("tensormap.replace.tile.global_address.global.b1024.b64", at, address)
        for d, s in enumerate(reversed(sizes)):
            p("tensormap.replace.tile.global_dim.global.b1024.b32", at, d, s)
        for d, s in enumerate(reversed(strides)):
            p("tensormap.replace.tile.global_stride.global.b1024.b64", at, d, s)


def _narrow(e: Emitter, v: Value, register: str) -> str:
    if v.dtype.bits == 32:
        return register
    return e.p.new("b32", "cvt.u32.u64", e.p.new("b64", "min.s64", register, 2 ** 31 - 1))


def give_back(e: Emitter) -> None:
    if e.written is None:
        return
    p, each = e.p, _each(e)
    p("barrier.sync", 0)  # lanes of roles of one thread may still be on their way
    other = p.new("pred", "setp.ne.u32", e.role.tid, 0)
    end = p.label("place_free")
    p("bra", end, pred=other)
    number = p.new("b32", "ld.shared.u32", f"[{e.smem}+{e.written.at(e.fn)}]")
    word = p.new("b32", "shr.u32", number, each.bit_length() - 1)
    where = p.new("b64", "mad.wide.u32", word, 4, p.new("b64", "mov.u64", "tensor_maps_taken"))
    bit = p.new("b32", "shl.b32", 1, p.new("b32", "and.b32", number, each - 1))
    p("red.release.gpu.global.and.b32", f"[{where}]", p.new("b32", "not.b32", bit))
    p.place(end)
