"""The kinds of findings, one table: a stable name and what it means (docs are generated from it)."""
from __future__ import annotations

DEADLOCK = "deadlock"
LIVELOCK = "livelock"
SLOT_READ_EARLY = "slot-read-early"
SLOT_OVERWRITTEN = "slot-overwritten"
PROXY_FENCE = "proxy-fence"
SHARED_RACE = "shared-race"
WGMMA_REGISTERS = "wgmma-registers"
WGMMA_FENCE = "wgmma-fence"
TX_BYTES = "tx-bytes"
BARRIER_UNINITIALISED = "barrier-uninitialised"
BARRIER_INIT_RACE = "barrier-init-race"
BARRIER_LIVE = "barrier-live"
BARRIER_OVERLAPPED = "barrier-overlapped"
BARRIER_UNDERFLOW = "barrier-underflow"
BARRIER_OVERFLOW = "barrier-overflow"
BARRIER_COUNT = "barrier-count"
BARRIER_REMOTE = "barrier-remote"
BARRIER_PARTICIPANTS = "barrier-participants"
BARRIER_CLUSTER = "barrier-cluster"
DIVERGENT = "divergent"
OUT_OF_BOUNDS = "out-of-bounds"
MISALIGNED = "misaligned"
DESCRIPTOR = "descriptor"
OPERANDS = "operands"
MULTICAST = "multicast"
NO_CLUSTER = "no-cluster"
UNINITIALISED_SHARED = "uninitialised-shared"
UNINITIALISED_REGISTER = "uninitialised-register"
SETMAXNREG = "setmaxnreg"
REGISTER_BUDGET = "register-budget"
PEER_EXITED = "peer-exited"
EXIT_IN_FLIGHT = "exit-in-flight"
GLOBAL_RACE = "global-race"
MAP_FENCE = "map-fence"
STALE_MAP = "stale-map"
MAP_IN_USE = "map-in-use"
TMA_BESIDE = "tma-beside"
VPRINTF = "vprintf"
TRAP = "trap"
ASSERTION = "assertion"

#: Kind -> what it means. The machine finds some of them with no sanitizer (`MACHINE`).
KINDS: dict[str, str] = {
    DEADLOCK: "every warp waits and nothing is in flight",
    LIVELOCK: "warps only spin and nothing changes",
    SLOT_READ_EARLY: "shared memory is read with nothing that orders the read after the copy that fills it",
    SLOT_OVERWRITTEN: "shared memory is written while a copy, a wgmma or a warp may still use what was there",
    PROXY_FENCE: "generic writes (st, atom, cp.async, mbarrier.init) meet TMA or wgmma without fence.proxy.async",
    SHARED_RACE: "two warps touch the same shared bytes, one of them writes, and nothing orders them",
    WGMMA_REGISTERS: "registers of a wgmma are touched before the wait_group that completes it",
    WGMMA_FENCE: "a wgmma uses registers touched, or shared memory waited for, after the warp's last wgmma.fence",
    TX_BYTES: "the bytes that a phase of an mbarrier expects are not the bytes of the copies issued to it",
    BARRIER_UNINITIALISED: "an mbarrier is used before its init or after its inval",
    BARRIER_INIT_RACE: "an mbarrier is used by a warp that nothing orders after its init",
    BARRIER_LIVE: "mbarrier.init on a live mbarrier, or mbarrier.inval where there is none",
    BARRIER_OVERLAPPED: "an ordinary access or a copy touches the bytes of a live mbarrier",
    BARRIER_UNDERFLOW: "more arrivals than a phase of an mbarrier expects",
    BARRIER_OVERFLOW: "the transaction count of an mbarrier leaves its range",
    BARRIER_COUNT: "a count or number that a barrier cannot have, or different counts in one round",
    BARRIER_REMOTE: "something that only the owning CTA may do with an mbarrier",
    BARRIER_PARTICIPANTS: "a named barrier gets a warp twice, or is left with arrivals that nobody completes",
    BARRIER_CLUSTER: "barrier.cluster.wait without an arrive",
    DIVERGENT: "an .aligned instruction, or one whose member mask names absent lanes, runs on a part of the warp",
    OUT_OF_BOUNDS: "an access outside of shared memory, of the arrays of the launch, or to a read-only one",
    MISALIGNED: "an address that is not a multiple of what the instruction asks for",
    DESCRIPTOR: "a tensor map or matrix descriptor that is invalid, does not fit, or differs between warps",
    OPERANDS: "a vector operand with a wrong number of registers",
    MULTICAST: "a multicast mask names CTAs outside of the cluster",
    NO_CLUSTER: "an operation that needs a launch with clusters in one that has none",
    UNINITIALISED_SHARED: "shared bytes are read that nothing has written",
    UNINITIALISED_REGISTER: "a register is read that nothing has written",
    SETMAXNREG: "setmaxnreg with a count out of range or in the wrong direction",
    REGISTER_BUDGET: "a warp's wgmmas in flight own more registers a thread than its setmaxnreg leaves it",
    PEER_EXITED: "shared memory of another CTA of the cluster is used when that CTA may have exited",
    EXIT_IN_FLIGHT: "a CTA may exit while a copy or wgmma uses its shared memory: nothing in it waits for that",
    MAP_FENCE: "a written tensor map is used without fence.proxy.tensormap: the writer's release, the user's acquire",
    MAP_IN_USE: "a tensor map is written while a copy that uses it may not have read it yet",
    STALE_MAP: "a tensor map has been written since its CTA fetched it, and not been acquired since",
    GLOBAL_RACE: "a CTA reads or writes global bytes that another one writes, not both atomically, and unordered",
    TMA_BESIDE: "a TMA store or reduction through a tensor whose rows end within 16 bytes, which it writes whole",
    VPRINTF: "a call of vprintf whose format or values are not where they must be",
    TRAP: "the kernel executed a trap",
    ASSERTION: "an assertion of the kernel does not hold",
}

#: What the machine itself reports, without a sanitizer.
MACHINE = frozenset({DEADLOCK, LIVELOCK, BARRIER_UNINITIALISED, BARRIER_UNDERFLOW, BARRIER_OVERFLOW, BARRIER_COUNT,
                     BARRIER_REMOTE, BARRIER_PARTICIPANTS, BARRIER_CLUSTER, DIVERGENT, OUT_OF_BOUNDS, MISALIGNED,
                     DESCRIPTOR, OPERANDS, MULTICAST, NO_CLUSTER, SETMAXNREG, PEER_EXITED, VPRINTF, TRAP, ASSERTION,
                     STALE_MAP})
