"""Products that no instruction computes become ones that some instruction does."""
from __future__ import annotations

from collections.abc import Callable
from math import prod

from tilejit.errors import ClusterError, CompilationError
from tilejit.ir import (
    Builder,
    Function,
    Op,
    Value,
    beside,
    const_of,
    divides_k,
    erase,
    listed,
    product_warps,
    replace,
    uses,
)
from tilejit.ir.numeric import PARTS
from tilejit.ir.target import product_unit, target_of
from tilejit.ir.types import DTYPES, DType, Tile, bf16, fp32, int32

#: 32-bit registers of a thread that the sums of a wgmma may take.
MOST_SUMS = 208


def legalise(fn: Function) -> Function:
    if fn.attrs.get("enable_fp_fusion", True) and not divides_k(fn):
        _accumulate(fn)
    room = target_of(fn).shared_bytes
    return legal(fn, lambda op: needs(op) <= room or not postponed(op))


def postponed(dot: Op) -> bool:
    """Whether it is taken apart behind `chunks`, if its operands do not fit."""
    return bool({"promote", "precision"} & dot.attrs.keys())


def needs(op: Op) -> int:
    """Bytes of shared memory that the operands of a product take, all their parts together."""
    kind, pairs = PARTS.get(op.attrs.get("precision", ""), (_elem(op.operands[0]).name, ((0, 0),)))
    return sum(prod(_shape(v)) for v in op.operands[:2]) * DTYPES[kind].bytes * (1 + max(max(p) for p in pairs))


def legal(fn: Function, which: Callable[[Op], bool]) -> Function:
    for op in [op for op in listed(fn.body) if op.name == "dot" and which(op)]:
        at = op.block.ops.index(op)
        b = Builder(op.block, at, op.loc)
        result = _product(fn, op, b)
        if result is not op.result:
            result.name = result.name or op.result.name
            replace(fn.body, {op.result: result})
            op.block.ops.remove(op)
    return fn


def _accumulate(fn: Function) -> None:
    table = uses(fn.body)
    for op in [op for op in listed(fn.body) if op.name == "add" and isinstance(op.result.type, Tile)]:
        for at, v in enumerate(op.operands):
            dot, other = v.op, op.operands[1 - at]
            if isinstance(dot, Op) and dot.name == "dot" and dot.parent is op.parent and len(table[v]) == 1 \
                    and const_of(dot.operands[2]) == 0 and "promote" not in dot.attrs:
                new = beside(op)("dot", *dot.operands[:2], other, **dot.attrs)
                new.name = op.result.name
                replace(fn.body, {op.result: new})
                table[new] = table.pop(op.result, [])
                erase({op, dot}, op.block)
                break


def _product(fn: Function, op: Op, b: Builder) -> Value:
    x, y, acc = op.operands
    elem = _elem(x)
    if len(_shape(x)) == 3 and _shape(x)[0] == 1:
        x1, y1, acc1 = (b("reshape", v, shape=_shape(v)[1:]) for v in op.operands)
        return b("reshape", _dot(fn, b, op, x1, y1, acc1), shape=_shape(acc))
    if elem.is_fp8() and target_of(fn).sm < 89:
        raise CompilationError(f"dot: {target_of(fn).name} has no tensor cores for {elem}; use fp16, or "
                               "target=\"sm_90a\"", op.loc)
    if "promote" in op.attrs:
        return _promoted(fn, op, b)
    if elem == fp32 and op.attrs.get("precision") in PARTS:
        return _by_parts(fn, op, b)
    if elem == fp32 and op.attrs.get("precision") == "ieee":
        return b("dot_fma", x, y, acc)
    if _shape(x)[-1] * elem.bytes < (32 if elem.bits == 64 else 16):
        return _dot(fn, b, op, _interleaved(b, x, True), _interleaved(b, y, False), acc)
    return op.result


def _dot(fn: Function, b: Builder, like: Op, x: Value, y: Value, acc: Value, **attrs: object) -> Value:
    kept = {k: v for k, v in {**like.attrs, **attrs}.items() if v is not None}
    made = b.op("dot", x, y, acc, **kept)
    made.result.name = like.result.name
    found = _product(fn, made, b)
    if found is not made.result:
        assert b.at is not None
        b.block.ops.remove(made)
        b.at -= 1
    return found


def _by_parts(fn: Function, op: Op, b: Builder) -> Value:
    """The products of parts, the small ones summed from zero."""
    x, y, acc = op.operands
    name, pairs = PARTS[op.attrs["precision"]]
    elem, count = DTYPES[name], 1 + max(max(p) for p in pairs)
    xs, ys = (_parts(b, v, elem, count) for v in (x, y))
    zero = b.const(0.0, Tile(_shape(acc), fp32))
    small = zero
    precision = "tf32" if elem.bits == 32 else None
    for i, j in pairs[:-1]:
        small = _dot(fn, b, op, xs[i], ys[j], small, precision=precision)
    bad = b("cmp", small, small, pred="ne")
    total = b("add", acc, b("select", bad, zero, small))
    return _dot(fn, b, op, xs[0], ys[0], total, precision=precision)


def _parts(b: Builder, v: Value, elem: DType, count: int) -> list[Value]:
    """fp32 numbers as sums of `count` parts, the largest first; parts of tf32 are fp32 without the bits that tensor
    cores ignore.
    """
    shape, parts = _shape(v), []
    for i in range(count):
        if elem == bf16:
            part = b("cast", v, dtype=bf16)
            wide = b("cast", part, dtype=fp32)
        else:
            mask = b.const(-8192, Tile(shape, int32))  # 0xffffe000
            part = wide = b("bitcast", b("and", b("bitcast", v, dtype=int32), mask), dtype=fp32)
        parts.append(part)
        if i + 1 < count:
            v = b("sub", v, wide)
    return parts


def _promoted(fn: Function, op: Op, b: Builder) -> Value:
    x, _, acc = op.operands
    each, depth = op.attrs["promote"], op.attrs.get("depth", _shape(x)[-1])
    zero = b.const(0.0, Tile(_shape(acc), fp32))
    total = acc
    for first in range(0, depth, each):
        part = _dot(fn, b, op, x, op.operands[1], zero, promote=None, begin=first or None,
                    depth=min(each, depth - first))
        total = b("add", total, part)
    return total


def _interleaved(b: Builder, v: Value, last: bool) -> Value:
    """Twice as long along K, the last dimension or the one before: a zero after every element."""
    shape = _shape(v)
    zero = b.const(0, Tile(shape, _elem(v)))
    pairs = b("join", v, zero)
    if last:
        return b("reshape", pairs, shape=(*shape[:-1], 2 * shape[-1]))
    rank = len(shape)
    return b("reshape", b("trans", pairs, order=(*range(rank - 1), rank, rank - 1)),
             shape=(*shape[:-2], 2 * shape[-2], shape[-1]))


def _shape(v: Value) -> tuple[int, ...]:
    return v.tile.shape


def _elem(v: Value) -> DType:
    assert isinstance(v.type, Tile) and isinstance(v.type.elem, DType)
    return v.type.elem


def choose_units(fn: Function) -> None:
    """Mark the products that mma.sync computes: those that wgmma cannot, or all where there is none."""
    for op in listed(fn.body):
        if op.name != "dot":
            continue
        x, c = op.operands[0], op.result
        warps, ctas = product_warps(fn), fn.attrs.get("num_ctas", 1)
        *batch, m, k = _shape(x)
        n = _shape(c)[-1]
        if divides_k(fn):
            k //= ctas
        sums = m * n // (32 * warps)
        unit = "mma" if batch or sums > MOST_SUMS else product_unit(target_of(fn), warps, m, n, k, _elem(x).bits // 8)
        if unit == "wgmma":
            continue
        op.attrs["unit"] = unit
        if warps % 3 == 0:
            raise CompilationError(f"dot: num_warps={fn.attrs['num_warps']} needs wgmma: 64 rows or more for each "
                                   f"of three warpgroups, found a {c.type}", op.loc)
        if ctas > 1:
            raise ClusterError(f"dot: num_ctas={ctas} needs wgmma, which does not divide a {c.type} and a K of {k} "
                                   f"over {warps} warps", op.loc)
        if sums > MOST_SUMS:
            fn.say("local_memory", f"dot at {op.place}: {c.type} takes {sums} registers a thread, some of which are "
                   f"kept in local memory: use more warps than {warps} or a smaller tile", op.place, registers=sums)
