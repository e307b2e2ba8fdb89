"""`cluster_fold`: every CTA tells all CTAs what it has, and all fold it in the same order."""
from __future__ import annotations

from tilejit.ir import Op
from tilejit.ir.scratch import fold_bytes, sent_bytes
from tilejit.ir.types import Scalar, Tile, elem_of
from tilejit.layout.clusters import within
from tilejit.layout.linear import LinearLayout
from tilejit.ptx.emit import Emitter, emits, reg_class
from tilejit.ptx.exchange import STORE, Barriers
from tilejit.ptx.reduce import combined

_ONE = LinearLayout.from_bases({"register": (), "lane": ((),) * 5, "warp": ()}, ())


@emits("cluster_fold")
def _cluster_fold(e: Emitter, op: Op) -> None:
    """A fold reached once has no last round to wait for and gives nothing back."""
    *values, buffer, full, free, parity = op.operands
    e.version = max(e.version, (8, 1))  # st.async
    p, ctas = e.p, op.attrs["ctas"]
    t = values[0].type
    layout = within(t.layout, ctas) if isinstance(t, Tile) and t.layout is not None else _ONE
    count = t.numel if isinstance(t, Tile) else 1
    barriers = Barriers(e, full, free, 1)
    phase = e.scalar(parity)
    if not e.folds:
        barriers.wait_free(e, 0, p.new("b32", "xor.b32", phase, 1))
    barriers.expect(e, 0, sum(count * ctas * sent_bytes(elem_of(v.type)) for v in values))
    scratch = p.new("b32", "add.u32", e.private, buffer.maker.attrs["offset"])
    place = e.bit_sum(_places(e, layout))
    starts = [sum(fold_bytes(v.type, ctas) for v in values[:i]) for i in range(len(values))]
    addresses = [p.new("b32", "mad.lo.u32", place, sent_bytes(elem_of(v.type)), scratch) for v in values]
    if e.folds[:1] == [op]:
        p("barrier.cluster.wait.acquire")  # their barriers are initialised
    target, known, sends = _target(e, layout, ctas)
    for rest in range(ctas >> known):
        rank = p.new("b32", "or.b32", target, rest << known) if rest else target
        there = barriers.of(e, rank)
        for v, address, start in zip(values, addresses, starts):
            size = sent_bytes(elem_of(v.type))
            here = p.new("b32", "mad.lo.u32", e.rank, count * size, address)
            remote = p.new("b32", "mapa.shared::cluster.u32", here, rank)
            words = [word(e, elem_of(v.type), r) for r in e.get(v)]
            vec = min(len(words), 16 // size)
            for i in range(0, len(words), vec):
                p(f"{STORE}{suffix(elem_of(v.type), vec)}", f"[{remote}+{start + i * size}]", _list(words[i:i + vec]),
                  barriers.full_at(there, 0), pred=sends)
    barriers.wait_full(e, 0, phase)
    columns = []
    for cta in range(ctas):
        column = []
        for v, address, start in zip(values, addresses, starts):
            elem, size, n = elem_of(v.type), sent_bytes(elem_of(v.type)), len(e.get(v))
            vec, words = min(n, 16 // size), p.regs(word_class(elem_of(v.type)), n)
            for i in range(0, n, vec):
                p(f"ld.shared{suffix(elem, vec)}", _list(words[i:i + vec]),
                  f"[{address}+{start + (cta * count + i) * size}]")
            column.append([element(e, elem, w) for w in words])
        columns.append(list(map(list, zip(*column))))
    while len(columns) > 1:
        folded = iter(combined(e, op, [ab for x, y in zip(columns[::2], columns[1::2]) for ab in zip(x, y)]))
        columns = [[next(folded) for _ in columns[0]] for _ in columns[1::2]]
    if not e.folds:
        barriers.release(e, 0, ctas)
    for i, r in enumerate(op.results):
        e.set(r, [regs[i] for regs in columns[0]])


def _places(e: Emitter, layout: LinearLayout) -> list[tuple[str, list[int]]]:
    count, out = layout.num_registers, []
    for name, src in (("lane", e.role.lane), ("warp", e.role.local_warp or e.role.warp)):
        bases = []
        for b in layout.bases_of(name):
            bases.append(count if any(b) else 0)
            count *= 2 if any(b) else 1
        out.append((src, bases))
    return out


def _target(e: Emitter, layout: LinearLayout, ctas: int) -> tuple[str, int, str | None]:
    p, bits, known = e.p, [], 0
    masks = []
    for name, src in (("lane", e.role.lane), ("warp", e.role.local_warp or e.role.warp)):
        bases, mask = [], 0
        for i in range(5 if name == "lane" else e.role.warp_bits):
            row = layout.bases_of(name)
            copy = i >= len(row) or not any(row[i])
            takes = copy and 1 << known < ctas
            bases.append(1 << known if takes else 0)
            known += takes
            mask |= (copy and not takes) << i
        bits.append((src, bases))
        masks.append((src, mask))
    rests = [p.new("b32", "and.b32", src, mask) for src, mask in masks if mask]
    sends = None
    if rests:
        both = rests[0] if len(rests) == 1 else p.new("b32", "or.b32", *rests)
        sends = p.new("pred", "setp.eq.u32", both, 0)
    return e.bit_sum(bits), known, sends


def word_class(elem: Scalar) -> str:
    cls = reg_class(elem)
    return "b32" if cls in ("pred", "b16") else cls


def suffix(elem: Scalar, vec: int) -> str:
    kind = {"f32": "f32", "f64": "f64", "b64": "b64"}.get(word_class(elem), "b32")
    return (f".v{vec}" if vec > 1 else "") + f".{kind}"


def _list(regs: list[str]) -> str:
    return regs[0] if len(regs) == 1 else "{" + ", ".join(regs) + "}"


def word(e: Emitter, elem: Scalar, reg: str) -> str:
    cls = reg_class(elem)
    if cls == "pred":
        return e.p.new("b32", "selp.b32", 1, 0, reg)
    return e.p.new("b32", "cvt.u32.u16", reg) if cls == "b16" else reg


def element(e: Emitter, elem: Scalar, sent: str) -> str:
    cls = reg_class(elem)
    if cls == "pred":
        return e.p.new("pred", "setp.ne.b32", sent, 0)
    return e.p.new("b16", "cvt.u16.u32", sent) if cls == "b16" else sent
