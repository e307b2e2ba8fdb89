"""Bugs of data on their way: slots, wgmma, stores, global memory, registers."""
from __future__ import annotations

import re
from collections.abc import Iterator

from ptx_edit import Ptx
from registry import LOAD, after_init, constant, plants


# -- slots and buffers ------------------------------------------------------------------------------------
@plants("slot-overwritten", "slot-read-early", "uninitialised-shared")
def wrong_slot(p: Ptx) -> Iterator[Ptx]:
    """The data of stage 0 are used in every stage."""
    for ins in p.find(r"mad\.lo\.u32 %r\d+, %r\d+, (8192|16384|32768|49152), %r\d+"):
        if p.find(rf"mad\.lo\.u32 %r\d+, {ins.text.split()[2]} 8, "):         # it counts barriers, too: a stage
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
    seen = set()
    for ins in p.find(r"st\.shared|stmatrix"):
        if (place := re.search(r"\[.*?\]", ins.text).group()) not in seen:      # type: ignore[union-attr]
            seen.add(place)             # of later ones the old contents are there: wrong, but nothing is unordered
            yield p.drop(ins)


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
    for ins in p.find(r"st\.global")[:1]:
        yield p.sub(ins, r"\[(%\w+)(?:\+0)?\]", r"[\1+1048576]")


@plants("out-of-bounds")
def shared_out_of_bounds(p: Ptx) -> Iterator[Ptx]:
    """A shared access past the end."""
    for ins in p.find(r"(ld|st)\.shared|stmatrix")[:4]:
        yield p.sub(ins, r"\[(%\w+)(?:\+\d+)?\]", r"[\1+262144]")


@plants("global-race")
def two_ctas_one_tile(p: Ptx) -> Iterator[Ptx]:
    """Every CTA does the work of CTA 0."""
    if "%ctaid.x" in p.text:
        yield Ptx(p.text.replace("%ctaid.x", "0"))


@plants("uninitialised-register")
def drop_first_value(p: Ptx) -> Iterator[Ptx]:
    """A register is used that nothing has set."""
    for ins in p.find(r"mov\.u32 (%r\d+), (0|%tid\.x)$"):
        register = ins.text.split()[-2].rstrip(",")
        uses = [i for i in p.entry.instructions if re.search(rf"{register}\b", i.text)]
        if uses[0] is ins and len(uses) > 1:
            yield p.drop(ins)


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
