"""Bugs of mbarriers: waiting, arriving, transaction bytes, life and death."""
from __future__ import annotations

import re
from collections.abc import Iterator

from ptx_edit import Ptx
from registry import ARRIVE, EXPECT, INIT, LOAD, after_init, base, constant, inits, plants

from tilejit.ptx.text import Instruction


def passing(p: Ptx, ins: Instruction) -> Ptx:
    """A wait that never waits."""
    return p.sub(ins, r"mbarrier\.try_wait\S+ (%\w+), .*", r"setp.eq.u32 \1, 0, 0")


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


@plants("uninitialised-shared")
def drop_staged_wait(p: Ptx) -> Iterator[Ptx]:
    """A slot is stored before it is filled."""
    for ins in p.waits("staged"):
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
    bases = {base(i) for i in p.find(r"mbarrier\.(try_wait|arrive)")}
    for ins in p.find(r"mad\.lo\.u32 %r\d+, %r\d+, 8, %r\d+"):
        if ins.text.split()[1].rstrip(",") in bases:
            yield p.sub(ins, r"(%r\d+), %r\d+, 8", r"\1, 0, 8")


# -- arriving ---------------------------------------------------------------------------------------------
@plants("barrier-underflow", "slot-overwritten", "slot-read-early", "deadlock")
def arrive_twice(p: Ptx) -> Iterator[Ptx]:
    """An arrival too many."""
    for ins in p.find(ARRIVE):
        if p.use(ins) == "order" and "// order[" in p.text:
            continue                    # groups that follow each other too soon cost time, and most often only that
        yield p.after(ins, f"{ins.text};")


@plants("deadlock")
def drop_arrive(p: Ptx) -> Iterator[Ptx]:
    """An arrival is missing."""
    for ins in p.find(ARRIVE):
        yield p.drop(ins)


@plants("deadlock")
def skip_arrive_in_one_warp(p: Ptx) -> Iterator[Ptx]:
    """The last warps of those that arrive do not."""
    last = {64: 32, 384: 256}.get(p.entry.directives["maxntid"][0])
    if found := re.search(r"role consumer: warps (\d+)\.\.(\d+)", p.text):
        first, end = map(int, found.groups())
        last = 16 * (first + end + 1) if end - first > 3 else None
    for ins in p.find(ARRIVE) if last else ():
        guard, _, rest = ins.text.rpartition("mbarrier")
        text = f"mov.u32 %zr0, %tid.x; setp.lt.u32 %zp0, %zr0, {last};"
        if guard.strip():
            text += f" and.pred %zp0, %zp0, {guard.split()[0][1:]};"
        yield p.open.put(ins, f"{text} @%zp0 {guard.split()[1] if len(guard.split()) > 1 else ''}mbarrier{rest};")


@plants("slot-overwritten")
def release_slot_early(p: Ptx) -> Iterator[Ptx]:
    """A slot is given back when its wgmmas are issued, one iteration early."""
    releases = [i for i in p.find(ARRIVE) if p.use(i) == "empty"]
    if not p.find("wgmma") or p.find("mapa"):
        return
    changed = p.open
    for ins in releases:
        changed = changed.drop(ins)
    for commit in p.find(r"wgmma\.commit_group"):
        full = p.previous(r"mbarrier\.try_wait", commit)
        assert full is not None and p.use(full) == "full"
        address = re.sub(r".*\[%\w+", "[" + base(full), releases[0].text)
        changed = changed.after(commit, "mov.u32 %zr0, %tid.x; and.b32 %zr0, %zr0, 127; setp.eq.u32 %zp0, %zr0, 0; "
                                f"@%zp0 mbarrier.arrive.shared::cta.b64 _, {address};")
    yield changed


@plants("deadlock", "barrier-underflow", "slot-overwritten")
def release_wrong_slot(p: Ptx) -> Iterator[Ptx]:
    """The slot of this iteration is given back in place of the last one's."""
    for ins in p.find(ARRIVE):
        wait, end = p.previous(r"wgmma\.wait_group\S* 1", ins), p.previous(r"wgmma\.wait_group\S* 0", ins)
        full = p.previous(r"mbarrier\.try_wait", ins)
        if wait is None or full is None or end is not None and end.line > wait.line or p.use(ins) != "empty":
            continue
        mapped = p.previous(r"mapa", ins)
        if mapped is not None and mapped.line > wait.line:
            yield p.sub(mapped, r"(u32 %r\d+), %r\d+", rf"\1, {base(full)}")
        else:
            yield p.sub(ins, r"\[%r\d+", f"[{base(full)}")


@plants("deadlock")
def count_too_high(p: Ptx) -> Iterator[Ptx]:
    """A barrier waits for one arrival more than come."""
    for ins in inits(p):
        yield p.sub(ins, r"\d+$", str(constant(ins) + 1))


@plants("barrier-underflow", "slot-overwritten", "slot-read-early")
def count_too_low(p: Ptx) -> Iterator[Ptx]:
    """A barrier's phase ends before the last arrival."""
    for ins in inits(p):
        if constant(ins) > 1 and p.use(ins) != "order":
            yield p.sub(ins, r"\d+$", str(constant(ins) - 1))


# -- transaction bytes ------------------------------------------------------------------------------------

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


# -- barriers' lives --------------------------------------------------------------------------------------
@plants("barrier-uninitialised")
def drop_init(p: Ptx) -> Iterator[Ptx]:
    """A barrier is used that nobody has initialised."""
    for ins in inits(p):
        yield p.drop(ins)


@plants("barrier-uninitialised")
def use_after_inval(p: Ptx) -> Iterator[Ptx]:
    """A barrier is invalidated while it is in use."""
    for ins in inits(p):
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


