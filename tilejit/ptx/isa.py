"""The instruction table: one row for every instruction form that tilejit emits or its emulator runs."""
from __future__ import annotations

import re
from functools import cached_property, lru_cache

from tilejit.records import dataclass

_SPACES = "param|param::entry|shared|shared::cta|shared::cluster|global|local|const"
_SHARED = "shared|shared::cta|shared::cluster"
_CACHE = "ca|cg|cs|cv|lu|cop|wb|wt"
_EVICT = "L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate"
_PREFETCH = "L2::64B|L2::128B|L2::256B"
_SCOPE = "cta|cluster|gpu|sys"
_SEM = "relaxed|acquire|release|acq_rel"
_ORDERS = (f"[scope:{_SCOPE}][sem:{_SEM}]", f"[sem:{_SEM}][scope:{_SCOPE}]")
_INT = "u16|u32|u64|s16|s32|s64"
_BITS = "b16|b32|b64"
_HALF = "f16|f16x2|bf16|bf16x2"
_ALL = "b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64"
_CVT = "u8|u16|u32|u64|s8|s16|s32|s64|f16|bf16|f32|f64"
_ROUND = "rn|rz|rm|rp"
_COMPARE = "eq|ne|lt|le|gt|ge|lo|ls|hi|hs|equ|neu|ltu|leu|gtu|geu|num|nan"
_REDUCE = "add|min|max|inc|dec|and|or|xor"
_BULK = "mbarrier::complete_tx::bytes"


_SLOT = re.compile(r"<(\w+):([^>]*)>|\[(\w+):([^\]]*)\]")


@dataclass(frozen=True)
class Form:
    """One instruction form."""

    syntax: str
    operands: str
    aligned: bool = False
    blocking: bool = False
    asynchronous: bool = False
    min_sm: int = 70

    @cached_property
    def name(self) -> str:
        """The mnemonic with the fixed modifiers."""
        return _SLOT.sub("", self.syntax)


FORMS: tuple[Form, ...] = (
    # -- integer arithmetic
    Form("add[sat:sat]<type:u16|u32|u64|s16|s32|s64|u16x2|s16x2>", "daa"),
    Form("sub[sat:sat]<type:u16|u32|u64|s16|s32|s64>", "daa"),
    Form("add.cc<type:u32|s32|u64|s64>", "daa"),
    Form("addc[cc:cc]<type:u32|s32|u64|s64>", "daa"),
    Form("sub.cc<type:u32|s32|u64|s64>", "daa"),
    Form("subc[cc:cc]<type:u32|s32|u64|s64>", "daa"),
    Form(f"mul<part:lo|hi|wide><type:{_INT}>", "daa"),
    Form(f"mad<part:lo|hi|wide>[sat:sat]<type:{_INT}>", "daaa"),
    Form(f"div<type:{_INT}>", "daa"),
    Form(f"rem<type:{_INT}>", "daa"),
    Form("abs<type:s16|s32|s64>", "da"),
    Form("neg<type:s16|s32|s64>", "da"),
    Form(f"min[relu:relu]<type:{_INT}|u16x2|s16x2>", "daa"),
    Form(f"max[relu:relu]<type:{_INT}|u16x2|s16x2>", "daa"),
    Form("sad<type:u16|u32|u64|s16|s32|s64>", "daaa"),
    Form("popc<type:b32|b64>", "da"),
    Form("clz<type:b32|b64>", "da"),
    Form("bfind[shiftamt:shiftamt]<type:u32|u64|s32|s64>", "da"),
    Form("brev<type:b32|b64>", "da"),
    Form("bfe<type:u32|u64|s32|s64>", "daaa"),
    Form("bfi<type:b32|b64>", "daaaa"),
    Form("bmsk<mode:clamp|wrap><type:b32>", "daa"),
    Form("szext<mode:clamp|wrap><type:u32|s32>", "daa"),
    Form("dp4a<atype:u32|s32><btype:u32|s32>", "daaa", min_sm=61),
    Form("prmt<type:b32>[mode:f4e|b4e|rc8|ecl|ecr|rc16]", "daaa"),
    # -- logic, shifts, moves, selection
    Form("and<type:pred|b16|b32|b64>", "daa"),
    Form("or<type:pred|b16|b32|b64>", "daa"),
    Form("xor<type:pred|b16|b32|b64>", "daa"),
    Form("not<type:pred|b16|b32|b64>", "da"),
    Form("cnot<type:b16|b32|b64>", "da"),
    Form("lop3<type:b32>", "daaai"),
    Form("shl<type:b16|b32|b64>", "daa"),
    Form(f"shr<type:{_BITS}|{_INT}>", "daa"),
    Form("shf<dir:l|r><mode:clamp|wrap><type:b32>", "daaa"),
    Form(f"mov<type:pred|{_ALL}|b128>", "da"),
    Form(f"selp<type:{_BITS}|{_INT}|f32|f64>", "daaq"),
    Form(f"slct<type:{_BITS}|{_INT}|f32|f64><ctype:s32|f32>", "daaa"),
    Form(f"setp<cmp:{_COMPARE}>[bool:and|or|xor][ftz:ftz]<type:{_BITS}|{_INT}|f16|bf16|f32|f64>", "paaq?"),
    Form(f"setp<cmp:{_COMPARE}>[bool:and|or|xor][ftz:ftz]<type:f16x2|bf16x2>", "paaq?"),
    Form(f"set<cmp:{_COMPARE}>[bool:and|or|xor][ftz:ftz]<dtype:u32|s32|f32><type:{_BITS}|{_INT}|f16|bf16|f32|f64>",
         "daaq?"),
    Form(f"cvta[to:to]<space:{_SPACES}><type:u32|u64>", "da"),
    Form(f"isspacep<space:{_SPACES}>", "pa"),
    # -- floating arithmetic
    Form(f"add[rnd:{_ROUND}][ftz:ftz][sat:sat]<type:f32|f64>", "daa"),
    Form(f"sub[rnd:{_ROUND}][ftz:ftz][sat:sat]<type:f32|f64>", "daa"),
    Form(f"mul[rnd:{_ROUND}][ftz:ftz][sat:sat]<type:f32|f64>", "daa"),
    Form(f"fma<rnd:{_ROUND}>[ftz:ftz][sat:sat]<type:f32|f64>", "daaa"),
    Form(f"mad[rnd:{_ROUND}][ftz:ftz][sat:sat]<type:f32|f64>", "daaa"),
    Form(f"add[rnd:rn][ftz:ftz][sat:sat]<type:{_HALF}>", "daa", min_sm=80),
    Form(f"sub[rnd:rn][ftz:ftz][sat:sat]<type:{_HALF}>", "daa", min_sm=80),
    Form(f"mul[rnd:rn][ftz:ftz][sat:sat]<type:{_HALF}>", "daa", min_sm=80),
    Form(f"fma<rnd:rn>[ftz:ftz][sat:sat][relu:relu]<type:{_HALF}>", "daaa", min_sm=80),
    Form(f"div<rnd:{_ROUND}|full|approx>[ftz:ftz]<type:f32|f64>", "daa"),
    Form(f"rcp<rnd:{_ROUND}|approx>[ftz:ftz]<type:f32|f64>", "da"),
    Form(f"sqrt<rnd:{_ROUND}|approx>[ftz:ftz]<type:f32|f64>", "da"),
    Form("rsqrt<rnd:approx>[ftz:ftz]<type:f32|f64>", "da"),
    Form("sin<rnd:approx>[ftz:ftz]<type:f32>", "da"),
    Form("cos<rnd:approx>[ftz:ftz]<type:f32>", "da"),
    Form("lg2<rnd:approx>[ftz:ftz]<type:f32>", "da"),
    Form("ex2<rnd:approx>[ftz:ftz]<type:f32|f16|f16x2|bf16|bf16x2>", "da"),
    Form("tanh<rnd:approx><type:f32|f16|f16x2|bf16|bf16x2>", "da", min_sm=75),
    Form(f"abs[ftz:ftz]<type:f32|f64|{_HALF}>", "da"),
    Form(f"neg[ftz:ftz]<type:f32|f64|{_HALF}>", "da"),
    Form(f"min[ftz:ftz][nan:NaN][xorsign:xorsign][abs:abs]<type:f32|f64|{_HALF}>", "daa"),
    Form(f"max[ftz:ftz][nan:NaN][xorsign:xorsign][abs:abs]<type:f32|f64|{_HALF}>", "daa"),
    Form("copysign<type:f32|f64>", "daa"),
    Form("testp<test:finite|infinite|number|notanumber|normal|subnormal><type:f32|f64>", "pa"),
    # -- conversion
    Form("cvt[rnd:rn|rz|rm|rp|rna|rni|rzi|rmi|rpi][ftz:ftz][relu:relu][satf:satfinite][sat:sat]"
         f"<dtype:{_CVT}|f16x2|bf16x2|tf32|e4m3x2|e5m2x2><type:{_CVT}|f16x2|e4m3x2|e5m2x2>", "daa?"),
    Form("cvt<rnd:rn|rz|rna>[relu:relu][satf:satfinite]<dtype:f16x2|bf16x2|tf32><type:f32>", "daa?", min_sm=80),
    Form("cvt<rnd:rn><satf:satfinite>[relu:relu]<dtype:e4m3x2|e5m2x2><type:f32|f16x2>", "daa?", min_sm=89),
    Form("cvt.pack.sat<dtype:u16|s16><type:s32>", "daa"),
    # -- memory
    Form(f"ld[sem:weak|volatile|relaxed|acquire][scope:{_SCOPE}][space:{_SPACES}][cache:{_CACHE}]"
         f"[evict:{_EVICT}][l2evict:L2::evict_last|L2::evict_normal|L2::evict_first][hint:L2::cache_hint]"
         f"[prefetch:{_PREFETCH}][vec:v2|v4|v8]<type:{_ALL}|b128>", "dma?"),
    Form(f"ld.global[cache:{_CACHE}].nc[evict:{_EVICT}][l2evict:L2::evict_last|L2::evict_first]"
         f"[hint:L2::cache_hint][prefetch:{_PREFETCH}][vec:v2|v4|v8]<type:{_ALL}|b128>", "dma?"),
    Form(f"st[sem:weak|volatile|relaxed|release][scope:{_SCOPE}][space:{_SPACES}][cache:{_CACHE}]"
         f"[evict:{_EVICT}][hint:L2::cache_hint][vec:v2|v4|v8]<type:{_ALL}|b128>", "maa?"),
    Form(f"atom[sem:{_SEM}][scope:{_SCOPE}][space:global|{_SHARED}]<op:exch|{_REDUCE}>[noftz:noftz]"
         f"[hint:L2::cache_hint][vec:v2|v4|v8]<type:b32|b64|u32|u64|s32|s64|f32|f64|f16|f16x2|bf16|bf16x2|b128>", "dmaa?"),
    Form(f"atom[sem:{_SEM}][scope:{_SCOPE}][space:global|{_SHARED}].cas[hint:L2::cache_hint]"
         "<type:b16|b32|b64|u32|u64|s32|s64|b128>", "dmaaa?"),
    # ptxas takes the three in these orders as well
    *(Form(f"atom[space:global|{_SHARED}]{order}<op:exch|{_REDUCE}>[noftz:noftz]"
           "<type:b32|b64|u32|u64|s32|s64|f32|f64|f16|f16x2|bf16|bf16x2|b128>", "dma")
      for order in _ORDERS),
    *(Form(f"atom[space:global|{_SHARED}]{order}.cas<type:b16|b32|b64|u32|u64|s32|s64|b128>", "dmaa")
      for order in _ORDERS),
    Form(f"red[sem:relaxed|release][scope:{_SCOPE}][space:global|{_SHARED}]<op:{_REDUCE}>[noftz:noftz]"
         "[hint:L2::cache_hint][vec:v2|v4|v8]<type:b32|b64|u32|u64|s32|s64|f32|f64|f16|f16x2|bf16|bf16x2>", "maa?"),
    Form("prefetch[space:global|local]<level:L1|L2>", "m"),
    Form("prefetch.global<level:L2::evict_last|L2::evict_normal>", "m"),
    Form("prefetchu.L1", "m"),
    Form("prefetch[space:param|const].tensormap", "m", min_sm=90),
    Form("discard[space:global].L2", "mi", min_sm=80),
    Form("applypriority[space:global].L2::evict_normal", "mi", min_sm=80),
    Form("createpolicy.fractional<first:L2::evict_first|L2::evict_last|L2::evict_normal|L2::evict_unchanged>"
         "[second:L2::evict_first|L2::evict_unchanged].b64", "da?", min_sm=80),
    Form("ldmatrix.sync.aligned.m8n8<num:x1|x2|x4>[trans:trans][space:shared|shared::cta].b16", "dm", aligned=True, min_sm=75),
    Form("stmatrix.sync.aligned.m8n8<num:x1|x2|x4>[trans:trans][space:shared|shared::cta].b16", "ma", aligned=True, min_sm=90),
    Form("mapa[space:shared::cluster]<type:u32|u64>", "daa", min_sm=90),
    Form("getctarank[space:shared::cluster]<type:u32|u64>", "da", min_sm=90),
    Form("st.async[sem:weak][space:shared::cluster]." + _BULK + "[vec:v2|v4]<type:b32|b64|u32|u64|s32|s64|f32|f64>",
         "mam", asynchronous=True, min_sm=90),
    Form("red.async[sem:relaxed][scope:cluster][space:shared::cluster]." + _BULK +
         "<op:add|min|max|inc|dec|and|or|xor><type:u32|s32|u64|b32>", "mam", asynchronous=True, min_sm=90),
    # -- asynchronous copies
    Form(f"cp.async<cache:ca|cg><dst:shared|shared::cta>.global[hint:L2::cache_hint][prefetch:{_PREFETCH}]",
         "mmia?a?", asynchronous=True, min_sm=80),
    Form("cp.async.commit_group", "", min_sm=80),
    Form("cp.async.wait_group", "i", blocking=True, min_sm=80),
    Form("cp.async.wait_all", "", blocking=True, min_sm=80),
    Form("cp.async.mbarrier.arrive[noinc:noinc][space:shared|shared::cta].b64", "m", asynchronous=True, min_sm=80),
    Form("cp.async.bulk<dst:shared::cluster|shared::cta>.global." + _BULK +
         "[multicast:multicast::cluster][hint:L2::cache_hint]", "mmama?a?", asynchronous=True, min_sm=90),
    Form("cp.async.bulk.shared::cluster.shared::cta." + _BULK, "mmam", asynchronous=True, min_sm=90),
    Form("cp.async.bulk.global.shared::cta.bulk_group[hint:L2::cache_hint]", "mmaa?", asynchronous=True, min_sm=90),
    Form("cp.reduce.async.bulk.global.shared::cta.bulk_group[hint:L2::cache_hint]"
         f"<op:{_REDUCE}>[noftz:noftz]<type:f16|bf16|b32|u32|s32|b64|u64|s64|f32|f64>", "mmaa?", asynchronous=True, min_sm=90),
    Form("cp.reduce.async.bulk.shared::cluster.shared::cta." + _BULK +
         f"<op:{_REDUCE}><type:b32|u32|s32|b64|u64|s64>", "mmam", asynchronous=True, min_sm=90),
    Form("cp.async.bulk.prefetch.L2.global[hint:L2::cache_hint]", "maa?", min_sm=90),
    Form("cp.async.bulk.tensor<dim:1d|2d|3d|4d|5d><dst:shared::cluster|shared::cta>.global[mode:tile]." + _BULK +
         "[multicast:multicast::cluster][hint:L2::cache_hint]", "mtma?a?", asynchronous=True, min_sm=90),
    Form("cp.async.bulk.tensor<dim:1d|2d|3d|4d|5d>.global.shared::cta[mode:tile].bulk_group[hint:L2::cache_hint]",
         "tma?", asynchronous=True, min_sm=90),
    Form("cp.reduce.async.bulk.tensor<dim:1d|2d|3d|4d|5d>.global.shared::cta"
         f"<op:{_REDUCE}>[mode:tile].bulk_group[hint:L2::cache_hint]", "tma?", asynchronous=True, min_sm=90),
    Form("cp.async.bulk.prefetch.tensor<dim:1d|2d|3d|4d|5d>.L2.global[mode:tile][hint:L2::cache_hint]", "ta?",
         min_sm=90),
    Form("cp.async.bulk.commit_group", "", min_sm=90),
    Form("cp.async.bulk.wait_group[read:read]", "i", blocking=True, min_sm=90),
    Form("tensormap.replace.tile<field:global_address|rank|box_dim|global_dim|global_stride|element_stride|"
         "elemtype|interleave_layout|swizzle_mode|fill_mode>[space:global|shared::cta].b1024<type:b32|b64>", "maa?",
         min_sm=90),
    Form("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release"
         f"<scope:{_SCOPE}>.sync.aligned", "mmi", aligned=True, min_sm=90),
    # -- barriers
    Form("bar[warp:cta].sync", "aa?", aligned=True, blocking=True),
    Form("bar[warp:cta].arrive", "aa", aligned=True),
    Form("bar[warp:cta].red.popc.u32", "daaq?", aligned=True, blocking=True),
    Form("bar[warp:cta].red<op:and|or>.pred", "paaq?", aligned=True, blocking=True),
    Form("barrier[warp:cta].sync[aligned:aligned]", "aa?", blocking=True),
    Form("barrier[warp:cta].arrive[aligned:aligned]", "aa"),
    Form("bar.warp.sync", "a", blocking=True),
    Form("barrier.cluster.arrive[sem:release|relaxed][aligned:aligned]", "", min_sm=90),
    Form("barrier.cluster.wait[sem:acquire][aligned:aligned]", "", blocking=True, min_sm=90),
    Form(f"mbarrier.init[space:{_SHARED}].b64", "ma", min_sm=80),
    Form(f"mbarrier.inval[space:{_SHARED}].b64", "m", min_sm=80),
    Form(f"mbarrier.arrive[sem:release|relaxed][scope:cta|cluster][space:{_SHARED}].b64", "dma?", min_sm=80),
    Form(f"mbarrier.arrive.noComplete[sem:release][scope:cta][space:{_SHARED}].b64", "dma", min_sm=80),
    Form(f"mbarrier.arrive.expect_tx[sem:release|relaxed][scope:cta|cluster][space:{_SHARED}].b64", "dma", min_sm=90),
    Form(f"mbarrier.arrive_drop[sem:release|relaxed][scope:cta|cluster][space:{_SHARED}].b64", "dma?", min_sm=80),
    Form(f"mbarrier.arrive_drop.expect_tx[sem:release|relaxed][scope:cta|cluster][space:{_SHARED}].b64", "dma",
         min_sm=90),
    Form(f"mbarrier.expect_tx[sem:relaxed][scope:cta|cluster][space:{_SHARED}].b64", "ma", min_sm=90),
    Form(f"mbarrier.complete_tx[sem:relaxed][scope:cta|cluster][space:{_SHARED}].b64", "ma", min_sm=90),
    Form("mbarrier.test_wait[sem:acquire|relaxed][scope:cta|cluster][space:shared|shared::cta].b64", "pma", min_sm=80),
    Form("mbarrier.test_wait.parity[sem:acquire|relaxed][scope:cta|cluster][space:shared|shared::cta].b64", "pma",
         min_sm=80),
    Form("mbarrier.try_wait[sem:acquire|relaxed][scope:cta|cluster][space:shared|shared::cta].b64", "pmaa?",
         blocking=True, min_sm=90),
    Form("mbarrier.try_wait.parity[sem:acquire|relaxed][scope:cta|cluster][space:shared|shared::cta].b64", "pmaa?",
         blocking=True, min_sm=90),
    Form("mbarrier.pending_count.b64", "da", min_sm=80),
    # -- fences
    Form("membar<level:cta|gl|sys>", ""),
    Form("membar.proxy<kind:alias|async>", "", min_sm=75),
    Form(f"fence[sem:sc|acq_rel|acquire|release]<scope:{_SCOPE}>", ""),
    Form("fence.mbarrier_init.release.cluster", "", min_sm=90),
    Form("fence.proxy<kind:alias|async|async.global|async.shared::cta|async.shared::cluster>", "", min_sm=90),
    Form(f"fence.proxy.tensormap::generic.acquire<scope:{_SCOPE}>", "mi", min_sm=90),
    Form(f"fence.proxy.tensormap::generic.release<scope:{_SCOPE}>", "", min_sm=90),
    # -- warp communication
    Form("shfl.sync<mode:up|down|bfly|idx>.b32", "daaaa"),
    Form("vote.sync<mode:all|any|uni>.pred", "pqa"),
    Form("vote.sync.ballot.b32", "dqa"),
    Form("match.any.sync<type:b32|b64>", "daa"),
    Form("match.all.sync<type:b32|b64>", "daa"),
    Form("activemask.b32", "d"),
    Form("redux.sync<op:add|min|max><type:u32|s32>", "daa", min_sm=80),
    Form("redux.sync<op:and|or|xor><type:b32>", "daa", min_sm=80),
    Form("elect.sync", "da", min_sm=90),
    # -- matrix products
    Form("wgmma.fence.sync.aligned", "", aligned=True, min_sm=90),
    Form("wgmma.commit_group.sync.aligned", "", aligned=True, min_sm=90),
    Form("wgmma.wait_group.sync.aligned", "i", aligned=True, blocking=True, min_sm=90),
    Form("wgmma.mma_async.sync.aligned<shape:m64n\\d+k\\d+><dtype:f32|f16><atype:f16|bf16|tf32|e4m3|e5m2>"
         "<btype:f16|bf16|tf32|e4m3|e5m2>", "daaqiii?i?", aligned=True, asynchronous=True, min_sm=90),
    Form("wgmma.mma_async.sync.aligned<shape:m64n\\d+k\\d+><dtype:s32><atype:s8|u8><btype:s8|u8>[satf:satfinite]",
         "daaq", aligned=True, asynchronous=True, min_sm=90),
    Form("mma.sync.aligned<shape:m16n8k8|m16n8k16|m16n8k32|m16n8k4|m8n8k4><alayout:row><blayout:col>[satf:satfinite]"
         "<dtype:f32|f16|s32|f64><atype:f16|bf16|tf32|e4m3|e5m2|s8|u8|f64><btype:f16|bf16|tf32|e4m3|e5m2|s8|u8|f64>"
         "<ctype:f32|f16|s32|f64>", "daaa", aligned=True, min_sm=80),
    # -- control
    Form("bra[uni:uni]", "l"),
    Form("brx.idx[uni:uni]", "al"),
    Form("ret[uni:uni]", ""),
    Form("exit", ""),
    Form("call.uni", "dla"),
    Form("call", "la"),
    Form("trap", ""),
    Form("brkpt", ""),
    Form("nanosleep.u32", "a", min_sm=70),
    Form("pmevent", "i"),
    Form("setmaxnreg<dir:inc|dec>.sync.aligned.u32", "i", aligned=True, blocking=True, min_sm=90),
    Form("griddepcontrol<action:launch_dependents|wait>", "", min_sm=90),
)


@lru_cache(maxsize=None)  # on first use: most programs need few of the forms
def _pattern(form: Form) -> re.Pattern[str]:
    out, at = "", 0
    for m in _SLOT.finditer(form.syntax):
        out += re.escape(form.syntax[at:m.start()])
        name, choices = m.group(1) or m.group(3), m.group(2) or m.group(4)
        group = rf"\.(?P<{name}>{choices})(?![\w:])"
        out += group if m.group(1) else f"(?:{group})?"
        at = m.end()
    return re.compile(out + re.escape(form.syntax[at:]) + "$")


@lru_cache(maxsize=None)
def lookup(opcode: str) -> tuple[Form, dict[str, str]] | None:
    """The row that an opcode such as `ld.global.v4.f32` matches, and its modifiers by slot; None if none."""
    root = opcode.split(".", 1)[0]
    for form in FORMS:
        if form.syntax.startswith(root):
            m = _pattern(form).match(opcode)
            if m:
                return form, {k: v for k, v in m.groupdict().items() if v}
    return None


def operand_counts(form: Form) -> tuple[int, int]:
    required = len(re.findall(r"\w(?!\?)", form.operands))
    return required, len(re.findall(r"\w", form.operands))


#: Modifiers younger than their form (PTX ISA, target notes): -> compute capability times ten.
_LATER: dict[tuple[str, str, str], int] = {
    **{(name, "type", t): 90 for name in ("add", "sub", "mul", "setp", "set", "atom", "red") for t in ("bf16", "bf16x2")},
    **{(name, "scope", "cluster"): 90 for name in ("ld", "st", "atom", "red", "fence", "mbarrier")},
    **{(name, "vec", v): 90 for name in ("atom", "red") for v in ("v2", "v4", "v8")},
    **{("ex2", "type", t): 90 for t in ("bf16", "bf16x2")}, **{("tanh", "type", t): 90 for t in ("bf16", "bf16x2")},
    **{("cvt", slot, t): 89 for slot in ("type", "dtype") for t in ("e4m3x2", "e5m2x2")},
    **{("mma", slot, t): 89 for slot in ("atype", "btype") for t in ("e4m3", "e5m2")},
    ("mbarrier", "sem", "relaxed"): 90,
}


@lru_cache(maxsize=None)
def required_sm(opcode: str) -> int:
    """The least compute capability, times ten. Raises KeyError for an opcode not in the table."""
    found = lookup(opcode)
    if found is None:
        raise KeyError(f"{opcode} is not in the instruction table")
    form, modifiers = found
    root = opcode.split(".", 1)[0]
    later = [_LATER.get((root, slot, value), 0) for slot, value in modifiers.items()]
    if root == "cvt" and _bf16_conversion(modifiers):
        later.append(90)
    if any(value == "shared::cluster" for value in modifiers.values()):
        later.append(90)
    return max(form.min_sm, *later, 0)


def _bf16_conversion(modifiers: dict[str, str]) -> bool:
    """Whether a cvt with bf16 came with sm_90."""
    sides = (modifiers.get("type"), modifiers.get("dtype"))
    return "bf16" in sides and "f32" not in sides
