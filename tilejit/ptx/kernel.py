"""The frame of a kernel: parameters, thread ids, barrier initialisation, roles, and the entry header."""
from __future__ import annotations

import re

from tilejit.errors import CompilationError, Loc
from tilejit.ir import Block, Op, Value, listed, loop_around
from tilejit.ir.registers import small_loads
from tilejit.ir.target import Target
from tilejit.ir.types import Barrier, Buffer, Desc, DType, Ptr, Tile, int32
from tilejit.ptx.emit import Emitter, Role, emits, param_decl, reg_class
from tilejit.ptx.isa import required_sm
from tilejit.ptx.metadata import (
    ALL,
    FEW,
    PROGRAMS,
    WISH,
    Expr,
    KernelMetadata,
    PointerParam,
    ScalarParam,
    TensorMapParam,
)
from tilejit.ptx.tensor_maps import give_back, is_written, take_place, written_map

#: ld.param type by tilejit dtype; 8-bit values widen into .b16 registers.
_LD = {"int8": "s8", "uint8": "u8", "fp8e4b15": "u8", "fp8e4nv": "u8", "fp8e5": "u8", "int16": "s16", "uint16": "u16",
       "fp16": "b16", "bf16": "b16", "fp32": "f32", "fp64": "f64", "int32": "s32", "uint32": "u32",
       "int64": "s64", "uint64": "u64"}
#: Named barriers of a CTA; the last ones order the products of warpgroups (ping-pong).
NAMED_BARRIERS = 16
#: Threads of programs that are told of room for 12 warps where loops load.
FEW_THREADS = 128
#: Loads of 4 bytes and less of a trip, from which on there is room for 24 warps.
MANY = 8


def prologue(e: Emitter) -> None:
    p, role = e.p, e.role
    role.tid = p.new("b32", "mov.u32", "%tid.x")
    role.lane = p.new("b32", "and.b32", role.tid, 31)
    warp = p.new("b32", "shr.u32", role.tid, 5)
    # The shuffle tells ptxas that the value is the same in the whole warp.
    role.warp = p.new("b32", "shfl.sync.idx.b32", warp, 0, 31, -1)
    roles = any(op.name == "roles" for op in e.fn.body.ops)
    role.by_thread = not roles and e.fn.attrs.get("num_ctas", 1) == 1
    if e.fn.attrs.get("num_ctas", 1) > 1:
        e.rank = p.new("b32", "mov.u32", "%cluster_ctarank")
        if not roles:
            count_warps(e)
    role.known.mark = len(p.lines)
    if e.fn.attrs.get("shared_bytes", 0):
        raw = p.new("b32", "mov.u32", "smem")
        up = p.new("b32", "add.u32", raw, 1023)
        e.smem = e.private = p.new("b32", "and.b32", up, -1024)
        name_buffers(e)
    for arg in e.fn.body.args:
        if arg in e.uses and not isinstance(arg.type, Desc):
            e.set(arg, load_param(e, arg))
    take_place(e)
    for op in listed(e.fn.body):
        if "tensor_map" in op.define.traits:
            if not is_written(e, op):
                tensor_map(e, op)
        elif "query" in op.define.traits:
            desc_query(e, op)
    if e.fn.attrs.get("dependent_launch"):
        if e.fn.attrs["dependent_launch"] == "few":
            x, y, z = (p.new("b32", "mov.u32", f"%nctaid.{d}") for d in "xyz")
            ctas = p.new("b32", "mul.lo.u32", p.new("b32", "mul.lo.u32", x, y), z)
            e.few = p.new("pred", "setp.le.u32", ctas, FEW)
        p("griddepcontrol.launch_dependents", pred=e.few)
    e.exits = [] if roles or e.rank else early_exits(e.fn.body)
    if not e.exits:
        init_barriers(e)


def early_exits(block: Block) -> list[Op]:
    """Branches, one in the other, by which programs that have nothing to do end first: barriers are initialised behind
    them."""
    at = next((i for i, op in enumerate(block.ops) if op.regions), 0)
    op, others = block.ops[at], block.ops[:at] + block.ops[at + 1:]
    if op.name != "if" or op.results or any(x.define.effects - {"sync", "control"} for x in block.ops[:at]) or any(
            x.regions or any(isinstance(v.type, Barrier) for v in x.operands) for x in others):
        return []
    goes_on = [region for region in op.regions if len(region.ops) > 1]
    return [op, *early_exits(goes_on[0])] if len(goes_on) == 1 else []


def count_warps(e: Emitter) -> None:
    e.role.local_warp = e.role.warp
    e.role.warp = e.p.new("b32", "mad.lo.u32", e.rank, 1 << e.role.warp_bits, e.role.warp)


def name_buffers(e: Emitter) -> None:
    for op in e.fn.body.ops:
        if op.name == "alloc" and not op.attrs.get("private"):
            buffer = op.attrs["type"]
            assert isinstance(buffer, Buffer)
            size = buffer.slots * buffer.slot_stride
            e.p.comment(f"shared {op.attrs['offset']}+{size}: {op.attrs['name']} {buffer.slots}x{buffer.slot_stride}")


def load_param(e: Emitter, arg: Value) -> str:
    t = arg.type
    if isinstance(t, Ptr):
        return e.p.new("b64", "ld.param.u64", f"[{e.param(PointerParam(arg.name))}]")
    assert isinstance(t, DType), t
    return load_scalar(e, ScalarParam(("arg", arg.name), t.name), t)


def load_scalar(e: Emitter, param: ScalarParam, t: DType) -> str:
    name = f"[{e.param(param)}]"
    if t.family == "bool":
        byte = e.p.new("b16", "ld.param.u8", name)
        return e.p.new("pred", "setp.ne.u16", byte, 0)
    return e.p.new(reg_class(t), f"ld.param.{_LD[t.name]}", name)


def expr_of(v: Value) -> Expr:
    if not isinstance(v.op, Op):
        return ("arg", v.name)
    op = v.op
    if op.name == "const":
        return ("const", op.attrs["value"])
    if op.name == "cast":
        return expr_of(op.operands[0])
    if "query" in op.define.traits and op.define.host:
        return (op.define.host, op.operands[0].name, op.attrs["dim"])
    if op.define.host:
        return (op.define.host, *(expr_of(x) for x in op.operands))
    raise CompilationError(f"descriptor depends on {op.name}, which the host cannot compute", op.loc)


def desc_geometry(desc: Value) -> tuple[str, tuple[Expr, ...], tuple[Expr, ...], str]:
    t = desc.desc
    rank = len(t.block_shape)
    if isinstance(desc.op, Op):
        base, *dims = desc.op.operands
        if isinstance(base.op, Op) and base.op.name == "desc_base":
            base = base.op.operands[0]
        if isinstance(base.op, Op):
            raise CompilationError("the base of a descriptor must be a kernel argument", desc.op.loc)
        return (base.name, tuple(map(expr_of, dims[:rank])), tuple(map(expr_of, dims[rank:])),
                desc.op.attrs["padding"])
    return (desc.name, tuple(("shape", desc.name, i) for i in range(rank)),
            tuple(("stride", desc.name, i) for i in range(rank)), "desc")


def tensor_map(e: Emitter, op: Op) -> str:
    from tilejit.ptx.tma import box_of

    desc = next(v for v in op.operands if isinstance(v.type, Desc))
    if is_written(e, op):
        return written_map(e, op)
    buffer = next(v.type for v in op.operands if isinstance(v.type, Buffer))
    base, shape, strides, fill = desc_geometry(desc)
    stored = "write" in op.define.effects
    param = TensorMapParam(base, shape, strides, box_of(e, op, desc, buffer),
                           (desc.desc.held if stored else desc.desc.elem).name, buffer.swizzle, fill,
                           isinstance(desc.op, Op), stored)
    if param not in e.maps:
        name = e.param(param)
        reg = e.p.new("b64", "mov.b64", name)
        e.maps[param] = e.p.new("b64", "cvta.param.u64", reg)
    return e.maps[param]


def desc_query(e: Emitter, op: Op) -> None:
    desc = op.operands[0]
    if isinstance(desc.op, Op):
        rank = len(desc.desc.block_shape)
        index = {"desc_base": 0, "desc_shape": 1, "desc_stride": 1 + rank}[op.name] + op.attrs.get("dim", 0)
        e.aliases[op.result] = desc.op.operands[index]
    elif op.name == "desc_base":
        e.set(op.result, e.p.new("b64", "ld.param.u64", f"[{e.param(PointerParam(desc.name))}]"))
    else:
        expr = (op.name.removeprefix("desc_"), desc.name, op.attrs["dim"])
        t = op.result.type
        assert isinstance(t, DType)
        e.set(op.result, load_scalar(e, ScalarParam(expr, t.name), t))


@emits("desc_base", "desc_shape", "desc_stride")
def _desc_query(e: Emitter, op: Op) -> None:
    if op.result in e.aliases:
        source = e.aliases[op.result]
        regs = e.get(source)
        if isinstance(source.type, DType) and source.type != op.result.type:
            regs = [e.p.new("b64", "cvt.s64.s32", regs[0]) if op.result.dtype.bits == 64
                    else e.p.new("b32", "cvt.u32.u64", regs[0])]
        e.set(op.result, regs)


@emits("make_desc")
def _make_desc(e: Emitter, op: Op) -> None:
    """The host encodes the tensor map."""


def init_barriers(e: Emitter) -> None:
    p = e.p
    ops = [op for op in e.fn.body.ops if op.name == "barriers"]
    if not ops:
        return
    p.banner("mbarriers")
    other = p.new("pred", "setp.ne.u32", e.role.tid, 0)
    skip = p.label("init_done")
    p("bra", skip, pred=other)
    for op in ops:
        t = op.attrs["type"]
        assert isinstance(t, Barrier)
        for s in range(t.slots):
            p.comment(f"{op.attrs['name']}[{s}]")
            p("mbarrier.init.shared::cta.b64", f"[{e.smem}+{op.attrs['offset'] + 8 * s}]", t.count)
    if e.target.hopper:
        p("fence.mbarrier_init.release.cluster")
    for param in e.maps.values():
        p("prefetch.tensormap", f"[{param}]")
    p.place(skip)
    e.folds = _folds(e)
    if e.rank and not e.folds:
        cluster_sync(e)
        return
    p("bar.sync", 0)
    if e.folds:  # the first fold waits: what comes before concerns this CTA only
        p("barrier.cluster.arrive.relaxed")


def _folds(e: Emitter) -> list[Op]:
    """The folds over CTAs, if they are all that a kernel does in other CTAs."""
    ops = [op for op in listed(e.fn.body) if op.name in ("roles", "debug_barrier") or "multicast" in op.attrs
           or "sync" in op.define.effects
           and (op.attrs.get("ctas", 1) > 1 or op.name.startswith("cluster_")) and "fills" not in op.define.traits]
    return ops if all(op.name == "cluster_fold" and op.parent is e.fn.body for op in ops) else []


def cluster_sync(e: Emitter) -> None:
    e.p("barrier.cluster.arrive.release")
    e.p("barrier.cluster.wait.acquire")


@emits("alloc", "barriers", "reuse")
def _static(e: Emitter, op: Op) -> None:
    """Uses read the op's `offset`."""


def _unit(e: Emitter) -> str:
    return "cluster" if e.rank else "cta"


@emits("program_id")
def _program_id(e: Emitter, op: Op) -> None:
    e.set(op.result, e.p.new("b32", "mov.u32", f"%{_unit(e)}id.{'xyz'[op.attrs['axis']]}"))


@emits("num_programs")
def _num_programs(e: Emitter, op: Op) -> None:
    many = e.fn.attrs.get("programs", 1) > 1 or e.fn.attrs.get("walks")
    if op.attrs["axis"] == 0 and many and not op.attrs.get("ctas"):
        e.set(op.result, load_scalar(e, ScalarParam(PROGRAMS, "int32"), int32))
        return
    e.set(op.result, e.p.new("b32", "mov.u32", f"%n{_unit(e)}id.{'xyz'[op.attrs['axis']]}"))


@emits("role_sync")
def _role_sync(e: Emitter, op: Op) -> None:
    e.sync()


@emits("order_begin", "order_end")
def _order_begin(e: Emitter, op: Op) -> None:
    groups, begins = op.attrs["groups"], op.name == "order_begin"
    skip = e.p.label(op.name)
    e.p("bra", skip, pred=e.p.new("pred", "setp.ne.u32", e.warpgroup(), groups - 1 if begins else 0))
    e.p("bar.arrive" if begins else "bar.sync", NAMED_BARRIERS - groups, 256)
    e.p.place(skip)


@emits("order_wait", "order_arrive")
def _order(e: Emitter, op: Op) -> None:
    p, groups = e.p, op.attrs["groups"]
    number = p.new("b32", "add.u32", e.warpgroup(), NAMED_BARRIERS - groups + (op.name == "order_arrive"))
    if op.name == "order_wait":
        p("bar.sync", number, 256)
        return
    beyond = p.new("pred", "setp.eq.u32", number, NAMED_BARRIERS)
    p("bar.arrive", p.new("b32", "selp.b32", NAMED_BARRIERS - groups, number, beyond), 256)


@emits("order_stay")
def _order_stay(e: Emitter, op: Op) -> None:
    # ptxas moved turns' ends down behind exponentials, and waits up, but moves nothing past a branch, which only the
    # last index would not take. (Round a trap it made producers spill.)
    e.p("brkpt", pred=e.p.new("pred", "setp.eq.s32", e.scalar(op.block.args[0]), 0x7fffffff))


@emits("launch_wait")
def _launch_wait(e: Emitter, op: Op) -> None:
    e.p("griddepcontrol.wait", pred=e.few)


@emits("elect")
def _elect(e: Emitter, op: Op) -> None:
    p = e.p
    skip, join = p.label("not_elected"), p.label("elect_join")
    if op.operands:
        p("bra", skip, pred=f"!{e.scalar(op.operands[0])}")
    other = p.new("pred", "setp.ne.u32", e.role.local_warp or e.role.warp, 0)
    p("bra", skip, pred=other)
    won = p.reg("pred")
    p("elect.sync", f"_|{won}", -1)
    p("bra", join, pred=f"!{won}")
    alone, e.alone = e.alone, True
    e.block(op.regions[0])
    e.alone = alone
    p.place(join)
    p("bar.warp.sync", -1)
    p.place(skip)


@emits("roles")
def _roles(e: Emitter, op: Op) -> None:
    p, outer = e.p, e.role
    first, barrier, end, beyond = 0, 1, p.label("roles_end"), ""
    starts = [sum(op.attrs["warps"][:i]) for i in range(len(op.regions))]
    for i, (name, warps, groups, regs) in enumerate(zip(*(op.attrs[k] for k in ("names", "warps", "groups",
                                                                                "registers")))):
        total = e.fn.attrs["num_threads"] // 32
        last, after = i == len(op.regions) - 1, first + warps
        nxt = ""
        if first % 4 == 0:
            section = next((x for x in starts[i + 1:] if x % 4 == 0), total)
            if section < total:
                beyond = p.label("role")
                p("bra", beyond, pred=p.new("pred", "setp.ge.u32", outer.warp, section))
        p.banner(f"role {name}: warps {first}..{after - 1}"
                 + (f", {groups} ping-pong groups" if groups > 1 and i == 0 else ""))
        if regs and first % 4 == 0:
            launch = e.fn.attrs["launch_registers"]
            p(f"setmaxnreg.{'inc' if regs > launch else 'dec'}.sync.aligned.u32", regs)
        if after < section:
            nxt = p.label("role")
            p("bra", nxt, pred=p.new("pred", "setp.ge.u32", outer.warp, after))
        e.role = Role(name, warps // groups, str(barrier), str(barrier + groups), outer.lane, outer.warp, outer.tid)
        if first:
            e.role.warp = p.new("b32", "sub.u32", outer.warp, first)
            e.role.tid = p.new("b32", "sub.u32", outer.tid, 32 * first)
        if groups > 1:
            _enter_group(e, op, barrier, warps // groups)
        if e.rank and i == 0:  # the consumers compute on tiles
            count_warps(e)
        e.role.known.mark = len(p.lines)
        e.block(op.regions[i])
        e.private = e.smem
        if not last:
            p("bra", end)
        if nxt or not last:
            p.place(nxt or beyond)
        first += warps
        barrier += groups + warps // 4
    e.role = outer
    p.place(end)
    if e.rank:
        cluster_sync(e)  # nobody leaves while others may still copy to it or arrive at its barriers


def _enter_group(e: Emitter, op: Op, barrier: int, warps: int) -> None:
    p, role = e.p, e.role
    role.group = p.new("b32", "shr.u32", role.warp, warps.bit_length() - 1)
    role.warp = p.new("b32", "and.b32", role.warp, warps - 1)
    role.tid = p.new("b32", "and.b32", role.tid, 32 * warps - 1)
    if warps >= 4:
        role.barrier = p.new("b32", "add.u32", role.group, barrier)
        role.warpgroup_barrier = p.new("b32", "mad.lo.u32", role.group, warps // 4, role.warpgroup_barrier)
    if op.attrs.get("private_bytes"):
        e.private = p.new("b32", "mad.lo.u32", role.group, op.attrs["private_bytes"], e.smem)


@emits("group_index")
def _group_index(e: Emitter, op: Op) -> None:
    e.set(op.result, e.role.group if e.role.group != "0" else e.p.new("b32", "mov.b32", 0))


@emits("warpgroup_index")
def _warpgroup_index(e: Emitter, op: Op) -> None:
    e.set(op.result, e.warpgroup())


@emits("return")
def _return(e: Emitter, op: Op) -> None:
    if e.rank and e.role.local_warp and not e.folds:  # as after roles; all that folds sent here has come
        cluster_sync(e)
    give_back(e)
    e.p("ret")


def _resident(e: Emitter, threads: int, shared: int) -> list[str]:
    """Programs a multiprocessor shall have room for, as a directive."""
    registers = e.fn.attrs.get("resident_registers")
    if registers and shared and not e.fn.attrs.get("maxnreg"):
        room = min(e.target.shared_bytes // (shared + 1024), 2048 // threads, 65536 // (registers * threads))
        return [f".minnctapersm {max(1, room)}{ALL}"]
    if any(op.name == "roles" for op in e.fn.body.ops):
        return [".minnctapersm 1"]
    ops = listed(e.fn.body) if threads <= FEW_THREADS and not e.fn.attrs.get("maxnreg") else []
    waits = any(op.name in ("dot_async", "dot_mma") for op in ops) and any(
        op.name == "load" and isinstance(op.result.type, Tile) and loop_around(op) is not None
        for op in ops)
    small = any(op.name == "load" and small_loads(op) >= MANY and loop_around(op) is not None for op in ops)
    return [f".minnctapersm {(384 if waits else 768) // threads}{WISH}"] if waits or small else []


def _drop_warp(e: Emitter) -> None:
    """The assembler cannot."""
    warp, lines = e.role.warp, e.p.lines
    if e.role.by_thread and len(re.findall(rf"{warp}\b", "\n".join(lines))) == 1:
        del lines[next(i for i, line in enumerate(lines) if f" {warp}, " in line)]


def finish(e: Emitter) -> tuple[str, KernelMetadata]:
    _drop_warp(e)
    attrs = e.fn.attrs
    threads = attrs["num_threads"]
    name, ctas = e.fn.name, attrs.get("num_ctas", 1)
    cluster = [".explicitcluster", f".reqnctapercluster {ctas}, 1, 1"] if ctas > 1 else []
    params = tuple(e.params)
    shared = attrs.get("shared_bytes", 0)
    shared += 1023 if shared else 0  # the base is rounded up to 1024 bytes
    directives = [f".maxntid {threads}, 1, 1", *_resident(e, threads, shared), *cluster]
    if attrs.get("maxnreg"):
        directives.append(f".maxnreg {attrs['maxnreg']}")
    target = e.target
    check_instructions(e, target)
    text = e.p.text(name, [param_decl(n, p) for p, n in e.params.items()], directives,
                    target.name, f"{e.version[0]}.{e.version[1]}",
                    [".extern .shared .align 1024 .b8 smem[];"] if shared else [])
    return text, KernelMetadata(name, params, threads, shared, attrs["num_warps"], attrs["num_stages"],
                                (ctas, 1, 1), target.name, e.fn.attrs.get("dependent_launch", False),
                                bool(attrs.get("launch_cooperative_grid")), attrs.get("programs", 1),
                                attrs.get("mergeable", 1), attrs.get("spanned"), attrs.get("walks", 0))


def check_instructions(e: Emitter, target: Target) -> None:
    """Raise CompilationError, at the user's line, for the first instruction that the target does not have."""
    if target.hopper:
        return  # the newest target: the table has nothing above it
    loc = None
    files = {str(i): file for file, i in e.p.files.items()}
    for line in e.p.lines:
        words = line.split()
        if words[0] == ".loc":
            loc = Loc(files[words[1]], int(words[2]))
        elif line.startswith("    ") and words[0][0] not in "/{}.":
            opcode = words[words[0].startswith("@")].rstrip(";")
            needed = required_sm(opcode)
            if needed > target.sm:
                raise CompilationError(f"{opcode} needs sm_{needed}, the kernel is compiled for {target.name}", loc)
