"""Bugs of warps together: named barriers, aligned instructions, register budgets, clusters."""
from __future__ import annotations

from collections.abc import Iterator

from ptx_edit import Ptx
from registry import after_init, plants


# -- named barriers and warps -----------------------------------------------------------------------------
@plants("shared-race", "slot-read-early", "slot-overwritten", "proxy-fence", "uninitialised-shared",
        "barrier-uninitialised", "barrier-overlapped", "barrier-init-race")
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
        yield p.sub(ins, r"inc\.(.*) \d+$", r"dec.\1 24")


# -- clusters ---------------------------------------------------------------------------------------------
@plants("peer-exited", "exit-in-flight")
def exit_before_peer(p: Ptx) -> Iterator[Ptx]:
    """A CTA ends while its peer uses its shared memory."""
    arrives, waits = (p.find(rf"barrier\.cluster\.{what}") for what in ("arrive", "wait"))
    if len(arrives) > 1:
        yield p.drop(arrives[-1]).drop(waits[-1])


@plants("barrier-cluster", "deadlock", "peer-exited", "exit-in-flight", "barrier-init-race", "barrier-uninitialised")
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


def masked(p: Ptx, mask: int) -> Iterator[Ptx]:
    """The kernel with another multicast mask."""
    for ins in p.find(r"cp\.async\.bulk\.\S+multicast"):
        if (value := p.previous(r"mov\.u16 \S+, 3$", ins)) is not None:
            yield p.sub(value, "3$", str(mask))


@plants("deadlock", "tx-bytes", "slot-read-early")
def multicast_misses_a_cta(p: Ptx) -> Iterator[Ptx]:
    """A multicast leaves a CTA of the cluster out."""
    yield from masked(p, 1)


@plants("multicast")
def multicast_outside_the_cluster(p: Ptx) -> Iterator[Ptx]:
    """A multicast names a CTA that is not there."""
    yield from masked(p, 7)
