"""The kinds of protocol bugs that are planted, and the findings that name each of them rightly.

A mutation looks for its sites in any kernel's text and yields one mutant a site. `kinds` are the findings that are
right: one of them must be among what is found.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ptx_edit import Ptx

from tilejit.ptx.text import Instruction


@dataclass(frozen=True)
class Mutation:
    """A kind of bug: `plant(text)` yields the mutants of a kernel."""

    name: str
    kinds: frozenset[str]
    plant: Callable[[Ptx], Iterator[Ptx]]


MUTATIONS: dict[str, Mutation] = {}


def plants(*kinds: str) -> Callable[[Callable[[Ptx], Iterator[Ptx]]], Callable[[Ptx], Iterator[Ptx]]]:
    """Register a mutation under its function's name, with the kinds of findings that name it."""
    def register(plant: Callable[[Ptx], Iterator[Ptx]]) -> Callable[[Ptx], Iterator[Ptx]]:
        name = plant.__name__.replace("_", "-")
        MUTATIONS[name] = Mutation(name, frozenset(kinds), plant)
        return plant
    return register


INIT, ARRIVE = r"mbarrier\.init", r"mbarrier\.arrive\.(?!expect|noC)"
LOAD = r"cp\.async\.bulk\.(tensor\.\dd\.)?shared::cluster"
STORE = r"cp\.async\.bulk\.(tensor\.\dd\.)?global"


def constant(ins: Instruction) -> int:
    """The last operand, a number."""
    return int(ins.text.split()[-1])


def passing(p: Ptx, ins: Instruction) -> Ptx:
    """A wait that never waits."""
    return p.sub(ins, r"mbarrier\.try_wait\S+ (%\w+), .*", r"setp.eq.u32 \1, 0, 0")


def base(ins: Instruction) -> str:
    """The register of an instruction's (last) address."""
    return re.findall(r"\[(%\w+)", ins.text)[-1]


def after_init(p: Ptx) -> int:
    """The line of the last mbarrier.init."""
    return max((i.line for i in p.find(INIT)), default=0)


# -- waiting for barriers ---------------------------------------------------------------------------------
@plants("slot-read-early")
def drop_full_wait(p: Ptx) -> Iterator[Ptx]:
    """A consumer does not wait for its slot's copy."""
    for ins in p.waits("full"):
        yield passing(p, ins)


@plants("slot-overwritten")
def drop_empty_wait(p: Ptx) -> Iterator[Ptx]:
    """The producer does not wait until its slot is given back."""
    for ins in p.waits("empty"):
        yield passing(p, ins)


def flipped(p: Ptx, ins: Instruction) -> Ptx:
    parity = ins.text.split(", ")[-1]
    if parity.isdigit():
        return p.sub(ins, r"\d+$", str(1 - int(parity)))
    changed = p.open.sub(ins, rf"{parity}$", "%zr0")
    return changed.put(Instruction(*ins[:-1], ins.text.replace(parity, "%zr0")),
                       f"xor.b32 %zr0, {parity}, 1; {ins.text.replace(parity, '%zr0')};")


@plants("deadlock", "slot-read-early")
def flip_full_parity(p: Ptx) -> Iterator[Ptx]:
    """A consumer waits for the other phase."""
    for ins in p.waits("full"):
        yield flipped(p, ins)


@plants("deadlock", "slot-overwritten")
def flip_empty_parity(p: Ptx) -> Iterator[Ptx]:
    """The producer waits for the other phase."""
    for ins in p.waits("empty"):
        yield flipped(p, ins)


@plants("deadlock")
def flip_order_parity(p: Ptx) -> Iterator[Ptx]:
    """A warpgroup waits for the wrong turn."""
    for ins in p.waits("order"):
        yield flipped(p, ins)


@plants("deadlock", "slot-read-early", "slot-overwritten")
def keep_parity_at_wrap(p: Ptx) -> Iterator[Ptx]:
    """The parity does not change when the ring starts again."""
    for ins in p.find(r"xor\.b32 (%r\d+), \1, 1"):
        if ins.guard >= 0:
            yield p.drop(ins)
    for ins in p.find(r"selp\.b32 %r\d+, 1, 0, %p\d+"):
        if (flip := p.next(r"xor\.b32", ins)) is not None and re.search(r"%r\d+", ins.text).group() in flip.text:  # type: ignore[union-attr]
            yield p.sub(ins, ", 1, 0,", ", 0, 0,")


@plants("deadlock", "tx-bytes", "slot-read-early", "slot-overwritten", "barrier-underflow")
def wrong_stage_barrier(p: Ptx) -> Iterator[Ptx]:
    """A barrier of stage 0 is used in every stage."""
    for ins in p.find(r"mad\.lo\.u32 %r\d+, %r\d+, 8, %r\d+"):
        if p.next(r"mbarrier\.(try_wait|arrive)", ins) is not None and ins.line > after_init(p):
            yield p.sub(ins, r"(%r\d+), %r\d+, 8", r"\1, 0, 8")


# -- arriving ---------------------------------------------------------------------------------------------
@plants("barrier-underflow", "slot-overwritten", "slot-read-early", "deadlock")
def arrive_twice(p: Ptx) -> Iterator[Ptx]:
    """An arrival too many."""
    for ins in p.find(ARRIVE):
        yield p.after(ins, f"{ins.text};")


@plants("deadlock")
def drop_arrive(p: Ptx) -> Iterator[Ptx]:
    """An arrival is missing."""
    for ins in p.find(ARRIVE):
        yield p.drop(ins)


@plants("deadlock")
def skip_arrive_in_one_warp(p: Ptx) -> Iterator[Ptx]:
    """The last warps of those that arrive do not."""
    for ins in p.find(ARRIVE):
        guard, _, rest = ins.text.rpartition("mbarrier")
        last = {64: 32, 384: 256}.get(p.entry.directives["maxntid"][0])
        if last is None:
            continue
        text = f"mov.u32 %zr0, %tid.x; setp.lt.u32 %zp0, %zr0, {last};"
        if guard.strip():
            text += f" and.pred %zp0, %zp0, {guard.split()[0][1:]};"
        yield p.open.put(ins, f"{text} @%zp0 {guard.split()[1] if len(guard.split()) > 1 else ''}mbarrier{rest};")


@plants("slot-overwritten")
def release_slot_early(p: Ptx) -> Iterator[Ptx]:
    """The slot of this iteration is given back instead of the last one's, which is not in use any more."""
    for ins in p.find(ARRIVE):
        wait = p.previous(r"wgmma\.wait_group\S* 1", ins)
        full = p.previous(r"mbarrier\.try_wait", ins)
        if wait is None or full is None or p.use(full) != "full" or ins.line - wait.line > 20 or p.use(ins) != "empty":
            continue
        mapped = p.previous(r"mapa", ins)
        if mapped is not None and ins.line - mapped.line < 3:
            yield p.sub(mapped, r"(u32 %r\d+), %r\d+", rf"\1, {base(full)}")
        else:
            yield p.sub(ins, r"\[%r\d+", f"[{base(full)}")


@plants("deadlock")
def count_too_high(p: Ptx) -> Iterator[Ptx]:
    """A barrier waits for one arrival more than come."""
    seen = set()
    for ins in p.find(INIT):
        if (kind := (p.use(ins), constant(ins))) not in seen:
            seen.add(kind)
            yield p.sub(ins, r"\d+$", str(constant(ins) + 1))


@plants("barrier-underflow", "slot-overwritten", "slot-read-early")
def count_too_low(p: Ptx) -> Iterator[Ptx]:
    """A barrier's phase ends before the last arrival."""
    seen = set()
    for ins in p.find(INIT):
        if constant(ins) > 1 and p.use(ins) != "order" and (kind := p.use(ins)) not in seen:
            seen.add(kind)
            yield p.sub(ins, r"\d+$", str(constant(ins) - 1))


# -- transaction bytes ------------------------------------------------------------------------------------
EXPECT = r"mbarrier\.arrive\.expect_tx"


@plants("tx-bytes", "deadlock", "slot-read-early")
def expect_too_few_bytes(p: Ptx) -> Iterator[Ptx]:
    """expect_tx is half of what is copied."""
    for ins in p.find(EXPECT):
        yield p.sub(ins, r"\d+$", str(constant(ins) // 2))


@plants("tx-bytes", "deadlock")
def expect_too_many_bytes(p: Ptx) -> Iterator[Ptx]:
    """expect_tx is 16 bytes more than what is copied."""
    for ins in p.find(EXPECT):
        yield p.sub(ins, r"\d+$", str(constant(ins) + 16))


@plants("tx-bytes", "deadlock", "slot-read-early")
def arrive_without_expect(p: Ptx) -> Iterator[Ptx]:
    """The phase may end before the copy."""
    for ins in p.find(EXPECT):
        yield p.sub(ins, r"\.expect_tx(.*), \d+$", r"\1")


@plants("deadlock")
def expect_without_arrive(p: Ptx) -> Iterator[Ptx]:
    """The bytes are expected, but nobody arrives."""
    for ins in p.find(EXPECT):
        yield p.sub(ins, r"mbarrier\.arrive\.expect_tx(.*) _, ", r"mbarrier.expect_tx.relaxed.cta\1 ")


@plants("deadlock", "tx-bytes")
def drop_copy(p: Ptx) -> Iterator[Ptx]:
    """A copy is missing."""
    for ins in p.find(LOAD):
        yield p.drop(ins)


@plants("tx-bytes", "barrier-overflow", "slot-overwritten", "deadlock")
def copy_twice(p: Ptx) -> Iterator[Ptx]:
    """A copy too many."""
    for ins in p.find(LOAD):
        yield p.after(ins, f"{ins.text};")


@plants("barrier-underflow", "tx-bytes", "slot-overwritten", "barrier-overflow")
def produce_in_every_lane(p: Ptx) -> Iterator[Ptx]:
    """No lane is elected: all of them produce."""
    for ins in p.find("elect"):
        if (skip := p.next("bra", ins)) is not None:
            yield p.drop(skip)


# -- slots and buffers ------------------------------------------------------------------------------------
@plants("slot-overwritten", "slot-read-early", "uninitialised-shared")
def wrong_slot(p: Ptx) -> Iterator[Ptx]:
    """The data of stage 0 are used in every stage."""
    for ins in p.find(r"mad\.lo\.u32 %r\d+, %r\d+, (8192|16384|32768|49152), %r\d+"):
        if p.next(r"cp\.async\.bulk|wgmma\.mma|\{|setp\.ne\.u32 sp", ins) is not None and "%r36" not in ins.text:
            yield p.sub(ins, r"(%r\d+), %r\d+, (\d+)", r"\1, 0, \2")


@plants("slot-overwritten", "slot-read-early", "shared-race")
def overlap_buffers(p: Ptx) -> Iterator[Ptx]:
    """The buffer of the result lies in the last slot."""
    for ins in p.find(r"add\.u32 (%r42, %r42, \d{6}|%r\d+, %r6, 49152)$"):
        yield p.sub(ins, r"\d+$", str(constant(ins) - 8192))


@plants("barrier-overlapped")
def barrier_in_buffer(p: Ptx) -> Iterator[Ptx]:
    """The barriers lie in a buffer."""
    for ins in p.find(r"add\.u32 %r2, %r1, \d{6}$"):
        yield p.sub(ins, r"\d+$", "0")
    if "[%r2+1024], 64" in p.text:
        yield Ptx(p.text.replace("%r2+1024", "%r2+128"))


@plants("misaligned")
def shift_copy(p: Ptx) -> Iterator[Ptx]:
    """A copy's shared address is 8 bytes off."""
    for ins in p.find(LOAD):
        yield p.sub(ins, r"\[(%\w+)(?:\+0)?\]", r"[\1+8]")


# -- barriers' lives --------------------------------------------------------------------------------------
@plants("barrier-uninitialised")
def drop_init(p: Ptx) -> Iterator[Ptx]:
    """A barrier is used that nobody has initialised."""
    seen = set()
    for ins in p.find(INIT):
        if p.use(ins) not in seen:
            seen.add(p.use(ins))
            yield p.drop(ins)


@plants("barrier-uninitialised")
def use_after_inval(p: Ptx) -> Iterator[Ptx]:
    """A barrier is invalidated while it is in use."""
    seen = set()
    for ins in p.find(INIT):
        if p.use(ins) not in seen:
            seen.add(p.use(ins))
            yield p.after(ins, ins.text.replace(".init.", ".inval.").rsplit(",", 1)[0] + ";")


@plants("barrier-live")
def init_twice(p: Ptx) -> Iterator[Ptx]:
    """A live barrier is initialised again."""
    for ins in p.find(INIT)[:1]:
        yield p.after(ins, f"{ins.text};")


@plants("barrier-live", "barrier-overlapped")
def drop_inval(p: Ptx) -> Iterator[Ptx]:
    """A barrier's bytes become data while it is live."""
    for ins in p.find(r"mbarrier\.inval"):
        yield p.drop(ins)


@plants("barrier-init-race", "barrier-uninitialised")
def drop_sync_after_init(p: Ptx) -> Iterator[Ptx]:
    """Other warps do not wait for the initialisation."""
    init = after_init(p)
    sync = next((i for i in p.find(r"bar\.sync|barrier\.cluster\.arrive", init)), None)
    if init and sync is not None:
        wait = p.next(r"barrier\.cluster\.wait", sync) if "cluster" in sync.text else None
        yield p.drop(sync) if wait is None else p.drop(sync).drop(wait)


@plants("proxy-fence", "barrier-init-race")
def drop_fences_after_init(p: Ptx) -> Iterator[Ptx]:
    """Copies may not see the initialised barrier."""
    changed = p
    for ins in p.find(r"fence\.(mbarrier_init|proxy)"):
        if after_init(p) < ins.line < after_init(p) + 6:
            changed = changed.drop(ins)
    if changed is not p:
        yield changed


# -- wgmma ------------------------------------------------------------------------------------------------
@plants("wgmma-registers")
def read_accumulator_early(p: Ptx) -> Iterator[Ptx]:
    """The last wgmma may still run when its sums are used."""
    for ins in p.find(r"wgmma\.wait_group\S* 0"):
        yield p.drop(ins)


@plants("slot-overwritten")
def wait_for_fewer_wgmma(p: Ptx) -> Iterator[Ptx]:
    """A slot is given back while a wgmma reads it."""
    for ins in p.find(r"wgmma\.wait_group\S* 1"):
        yield p.sub(ins, r"1$", "2")


@plants("wgmma-registers", "slot-overwritten")
def drop_wgmma_commit(p: Ptx) -> Iterator[Ptx]:
    """wait_group does not know of the wgmmas."""
    for ins in p.find(r"wgmma\.commit_group"):
        yield p.drop(ins)


@plants("wgmma-fence")
def drop_wgmma_fence(p: Ptx) -> Iterator[Ptx]:
    """A wgmma may not see what its registers were before."""
    for ins in p.find(r"wgmma\.fence"):
        yield p.drop(ins)


@plants("wgmma-registers")
def touch_accumulator_in_flight(p: Ptx) -> Iterator[Ptx]:
    """A register of the accumulator is written while a wgmma adds to it."""
    for ins in p.find(r"wgmma\.commit_group"):
        yield p.before(ins, "mov.f32 %f4, 0f00000000;")


# -- the result's way out ---------------------------------------------------------------------------------
@plants("proxy-fence")
def drop_proxy_fence(p: Ptx) -> Iterator[Ptx]:
    """TMA may not see what the threads wrote."""
    for ins in p.find(r"fence\.proxy\.async"):
        if not after_init(p) < ins.line < after_init(p) + 6:
            yield p.drop(ins)


@plants("slot-overwritten")
def drop_wait_read(p: Ptx) -> Iterator[Ptx]:
    """The buffer is written while TMA reads it."""
    for ins in p.find(r"cp\.async\.bulk\.wait_group\.read"):
        yield p.drop(ins)


@plants("slot-overwritten")
def wait_read_of_fewer(p: Ptx) -> Iterator[Ptx]:
    """wait_group.read leaves one group too many."""
    for ins in p.find(r"cp\.async\.bulk\.wait_group\.read"):
        yield p.sub(ins, r"\d+$", str(constant(ins) + 1))


@plants("slot-overwritten", "exit-in-flight")
def drop_bulk_commit(p: Ptx) -> Iterator[Ptx]:
    """wait_group does not know of the store."""
    for ins in p.find(r"cp\.async\.bulk\.commit_group"):
        yield p.drop(ins)


@plants("exit-in-flight")
def exit_before_stores_read(p: Ptx) -> Iterator[Ptx]:
    """The CTA ends while a store reads its shared memory."""
    for ins in p.find(r"cp\.async\.bulk\.wait_group 0"):
        yield p.drop(ins)


@plants("uninitialised-shared")
def drop_shared_store(p: Ptx) -> Iterator[Ptx]:
    """A part of the buffer is never written."""
    for ins in p.find(r"st\.shared|stmatrix"):
        yield p.drop(ins)


# -- named barriers and warps -----------------------------------------------------------------------------
@plants("shared-race", "slot-read-early", "slot-overwritten", "proxy-fence", "uninitialised-shared")
def drop_bar_sync(p: Ptx) -> Iterator[Ptx]:
    """Warps do not wait for each other."""
    init = after_init(p)
    for ins in p.find(r"bar\.sync"):
        if not init or ins is not p.find(r"bar\.sync|barrier\.cluster\.arrive", init)[0]:
            yield p.drop(ins)


@plants("deadlock", "barrier-count", "barrier-participants")
def bar_waits_for_more(p: Ptx) -> Iterator[Ptx]:
    """A named barrier waits for a warp more than there are."""
    for ins in p.find(r"bar\.sync \S+, 128"):
        yield p.sub(ins, r"128$", "160")


@plants("shared-race", "slot-read-early", "slot-overwritten", "proxy-fence", "barrier-participants", "barrier-count")
def bar_waits_for_fewer(p: Ptx) -> Iterator[Ptx]:
    """A named barrier opens before the last warp has come."""
    for ins in p.find(r"bar\.sync \S+, 128"):
        yield p.sub(ins, r"128$", "96")


@plants("divergent")
def half_a_warp(p: Ptx) -> Iterator[Ptx]:
    """An .aligned instruction runs on half of the lanes."""
    seen = set()
    for ins in p.find(r"wgmma\.(fence|commit|wait)|stmatrix|bar\.sync|setmaxnreg|barrier\.cluster\.\w+.*aligned"):
        if ins.opcode not in seen:
            seen.add(ins.opcode)
            yield p.open.put(ins, f"mov.u32 %zr0, %laneid; setp.lt.u32 %zp0, %zr0, 16; @%zp0 {ins.text};")


@plants("deadlock", "setmaxnreg")
def too_many_registers(p: Ptx) -> Iterator[Ptx]:
    """The warpgroups ask for more registers than a multiprocessor has."""
    for ins in p.find(r"setmaxnreg\.inc"):
        yield p.sub(ins, r"\d+$", "248")
    for ins in p.find(r"setmaxnreg\.dec"):
        yield p.drop(ins)


@plants("setmaxnreg")
def wrong_direction_of_registers(p: Ptx) -> Iterator[Ptx]:
    """setmaxnreg.inc to fewer, .dec to more registers."""
    for ins in p.find(r"setmaxnreg\.inc"):
        yield p.sub(ins, r"\d+$", "24")
    for ins in p.find(r"setmaxnreg\.dec"):
        yield p.sub(ins, r"\d+$", "240")


@plants("register-budget")
def too_few_registers(p: Ptx) -> Iterator[Ptx]:
    """The consumers keep fewer registers than their accumulators take."""
    for ins in p.find(r"setmaxnreg\.inc"):
        yield p.sub(ins, r"inc\.(.*) \d+$", r"dec.\1 64")


# -- clusters ---------------------------------------------------------------------------------------------
@plants("peer-exited")
def exit_before_peer(p: Ptx) -> Iterator[Ptx]:
    """A CTA ends while its peer uses its shared memory."""
    arrives, waits = (p.find(rf"barrier\.cluster\.{what}") for what in ("arrive", "wait"))
    if len(arrives) > 1:
        yield p.drop(arrives[-1]).drop(waits[-1])


@plants("barrier-cluster", "deadlock", "peer-exited", "barrier-init-race", "barrier-uninitialised")
def cluster_arrive_without_wait(p: Ptx) -> Iterator[Ptx]:
    """barrier.cluster.arrive and nothing that waits."""
    for ins in p.find(r"barrier\.cluster\.wait"):
        yield p.drop(ins)


@plants("barrier-cluster")
def cluster_wait_without_arrive(p: Ptx) -> Iterator[Ptx]:
    """barrier.cluster.wait with nothing to wait for."""
    for ins in p.find(r"barrier\.cluster\.arrive"):
        yield p.drop(ins)


@plants("deadlock", "barrier-underflow", "slot-overwritten", "tx-bytes")
def wrong_peer(p: Ptx) -> Iterator[Ptx]:
    """The arrival or copy meant for another CTA goes to CTA 0."""
    for ins in p.find("mapa"):
        yield p.sub(ins, r"%\w+$", "0")


@plants("deadlock", "tx-bytes", "slot-read-early")
def multicast_misses_a_cta(p: Ptx) -> Iterator[Ptx]:
    """A multicast leaves a CTA of the cluster out."""
    if ".multicast::cluster " in p.text:
        yield Ptx(re.sub(r"mov\.u16 mh, 3;", "mov.u16 mh, 1;", p.text))


@plants("multicast")
def multicast_outside_the_cluster(p: Ptx) -> Iterator[Ptx]:
    """A multicast names a CTA that is not there."""
    if ".multicast::cluster " in p.text:
        yield Ptx(re.sub(r"mov\.u16 mh, 3;", "mov.u16 mh, 7;", p.text))


# -- global memory and registers --------------------------------------------------------------------------
@plants("out-of-bounds", "global-race")
def unmask_store(p: Ptx) -> Iterator[Ptx]:
    """Lanes past the end store too."""
    for ins in p.find(r"st\.global"):
        if ins.guard >= 0:
            yield p.sub(ins, r"^@!?%\w+ ", "")


@plants("out-of-bounds")
def store_out_of_bounds(p: Ptx) -> Iterator[Ptx]:
    """A store past the end of the array."""
    for ins in p.find(r"st\.global"):
        yield p.sub(ins, r"\[(%\w+)(?:\+0)?\]", r"[\1+1048576]")


@plants("out-of-bounds")
def shared_out_of_bounds(p: Ptx) -> Iterator[Ptx]:
    """A shared access past the end."""
    for ins in p.find(r"(ld|st)\.shared|stmatrix")[:4]:
        yield p.sub(ins, r"\[(%\w+)(?:\+\d+)?\]", r"[\1+262144]")


@plants("global-race")
def two_ctas_one_tile(p: Ptx) -> Iterator[Ptx]:
    """Every CTA does the work of CTA 0."""
    yield Ptx(p.text.replace("%ctaid.x", "0"))


@plants("uninitialised-register")
def drop_first_value(p: Ptx) -> Iterator[Ptx]:
    """A register is used that nothing has set."""
    yield from (p.drop(ins) for ins in p.find(r"mov\.u32 %r\d+, (0|%tid\.x)$|shfl\.sync\.idx")[:4])


# -- cp.async ---------------------------------------------------------------------------------------------
CP = r"cp\.async\.(?!bulk)"


@plants("slot-read-early")
def drop_cp_wait(p: Ptx) -> Iterator[Ptx]:
    """A thread reads before its cp.async has landed."""
    for ins in p.find(CP + "wait_group"):
        yield p.drop(ins)
        yield p.sub(ins, r"\d+$", str(constant(ins) + 1))


@plants("slot-read-early")
def drop_cp_commit(p: Ptx) -> Iterator[Ptx]:
    """wait_group does not know of the cp.async."""
    for ins in p.find(CP + "commit_group"):
        yield p.drop(ins)


@plants("uninitialised-shared")
def drop_cp(p: Ptx) -> Iterator[Ptx]:
    """A cp.async is missing."""
    for ins in p.find(CP + "c[ag]"):
        yield p.drop(ins)


@plants("slot-overwritten", "slot-read-early", "shared-race")
def one_stage_for_all(p: Ptx) -> Iterator[Ptx]:
    """cp.async writes the slot that is read."""
    for ins in p.find(r"xor\.b32 %r\d+, %r\d+, 2048"):
        yield p.sub(ins, "2048$", "0")
