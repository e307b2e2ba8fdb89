"""The least and the greatest that integers of a function can be."""
from __future__ import annotations

from tilejit.ir.core import Block, Op, Value, const_of
from tilejit.ir.types import DType, elem_of


def bounds(v: Value, depth: int = 10, known: dict[tuple[Value, int], tuple[int, int]] | None = None) -> tuple[int, int]:
    """The least and the greatest that any element of an integer value can be; sums and products that may wrap can be
    anything of their type."""
    known = {} if known is None else known
    if (v, depth) in known:
        return known[v, depth]
    e = elem_of(v.type)
    assert type(e) is DType
    lo, hi = (0, 1) if e.family == "bool" else (-(1 << e.bits - 1), (1 << e.bits - 1) - 1) if e.is_signed \
        else (0, (1 << e.bits) - 1)
    found = lo, hi
    if depth:
        found = _range_of(v.op, depth - 1, found, known) if isinstance(v.op, Op) else _of_counter(v, depth, found)
    known[v, depth] = found if lo <= found[0] and found[1] <= hi else (lo, hi)
    return known[v, depth]


def _range_of(op: Op, depth: int, whole: tuple[int, int], known: dict[tuple[Value, int], tuple[int, int]],
              ) -> tuple[int, int]:
    """What an op gives if nothing wraps; `whole`: what is known of any value of its type."""
    def of(at: int) -> tuple[int, int]:
        t = elem_of(op.operands[at].type)
        return bounds(op.operands[at], depth, known) if type(t) is DType and t.family != "float" else whole

    name, hi = op.name, whole[1]
    if name == "const":
        return (int(op.attrs["value"]),) * 2
    if name == "arange":
        return op.attrs["start"], op.attrs["end"] - 1
    if name in ("program_id", "num_programs") or name == "checked" and op.attrs.get("nonnegative"):
        return 0, hi
    if name in ("cast", "checked") or op.define.traits & {"shape", "identity"}:
        sides = [of(i) for i in range(len(op.operands))]
        return min(s[0] for s in sides), max(s[1] for s in sides)
    if name in ("add", "sub", "mul"):
        ends = [x + y if name == "add" else x - y if name == "sub" else x * y for x in of(0) for y in of(1)]
        return min(ends), max(ends)
    if name in ("minimum", "maximum"):
        pick = min if name == "minimum" else max
        (a, b), (c, d) = of(0), of(1)
        return pick(a, c), pick(b, d)
    return _of_bits(name, of(0), of(1), whole) if len(op.operands) == 2 else whole


def _of_counter(v: Value, depth: int, whole: tuple[int, int]) -> tuple[int, int]:
    """What a loop's counter is, from one end to before the other, up or down; nothing is known of other arguments."""
    loop = v.op.parent if isinstance(v.op, Block) else None
    if loop is None or loop.name != "for" or v.index:
        return whole
    start, end, step = (bounds(x, depth - 1) for x in loop.operands[:3])
    if (const_of(loop.operands[2]) or 0) < 0:
        return min(start[1], end[0] + 1), start[1]
    return (start[0], max(start[0], end[1] - 1)) if step[0] > 0 else whole


def _of_bits(name: str, a: tuple[int, int], b: tuple[int, int], whole: tuple[int, int]) -> tuple[int, int]:
    """Quotients towards zero, remainders with the dividend's sign, shifts that floor, common bits, either's bits."""
    if name == "and":
        ends = [y for x, y in (a, b) if x >= 0]
        return (0, min(ends)) if ends else whole
    if name in ("or", "xor"):
        return (0, (1 << max(a[1], b[1]).bit_length()) - 1) if min(a[0], b[0]) >= 0 else whole
    if name == "shr":
        return (0, a[1] >> min(max(b[0], 0), 63)) if a[0] >= 0 else whole
    if name == "irem":  # x % 0 is x
        most = a[1] if b[0] <= 0 else min(a[1], b[1] - 1)
        return (0, most) if a[0] >= 0 else whole
    if name == "idiv":  # x // 0 has all bits set
        return (0, a[1] // b[0]) if a[0] >= 0 and b[0] > 0 else whole
    return whole


def nonnegative(v: Value) -> bool:
    """True if every element of an integer value is provably >= 0, without assuming that sums do not wrap."""
    return bounds(v)[0] >= 0
