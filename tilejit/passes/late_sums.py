"""Sums along rows of a product's results that a loop only carries stay four apart until the loop is over."""
from __future__ import annotations

from tilejit.ir import Builder, Function, Op, Value, beside, const_of, edges, uses, walk
from tilejit.ir.core import clone_block
from tilejit.ir.dead import drop_dead
from tilejit.ir.target import target_of
from tilejit.ir.types import DType, Tile, int32

LANES, COLUMNS = 4, 8
#: Rows of a warp's part of a product.
ROWS = 16


def late_sums(fn: Function) -> Function:
    """Let loops carry such sums by threads, in place; returns the function."""
    made: dict[Value, Value] = {}  # a sum behind a loop -> what it is the sum of
    for loop in [op for op in walk(fn.body) if op.name == "for"]:
        table = uses(fn.body)
        for edge in edges(loop):
            arg, end = edge.args[0], edge.ends[0]
            fold = _fold(arg, end, loop, table)
            if fold is not None and edge.init is not None:
                _carry_apart(fn, loop, edge.index, fold, made)
    if made:
        drop_dead(fn)
    return fn


def _fold(arg: Value, end: Value, loop: Op, table: dict[Value, list[tuple[Op, int]]]) -> Op | None:
    """The sum along rows of a product that is all that a loop adds to what it carries, if nothing else reads that."""
    op = end.op
    if not isinstance(arg.type, Tile) or not isinstance(op, Op) or op.name not in ("add", "fma") \
            or [user for user, _ in table.get(arg, ())] != [op] or len(table[end]) != 1:
        return None
    added = [v for v in (op.operands if op.name == "add" else op.operands[2:]) if v is not arg]
    fold = added[0].op if len(added) == 1 else None
    if not isinstance(fold, Op) or fold.name != "reduce" or len(fold.operands) != 1 or len(table[fold.result]) != 1:
        return None
    (whole,), body = fold.operands, fold.regions[0].ops
    shape = whole.type.shape if isinstance(whole.type, Tile) else ()
    plain = [x.name for x in body] == ["add", "yield"] and fold.attrs["axis"] == 1 and not fold.attrs.get("ctas")
    elem = arg.type.elem
    fits = len(shape) == 2 and shape[1] % COLUMNS == 0 and isinstance(elem, DType) and elem.is_float
    return fold if plain and fits and fold.parent is op.parent and _of_product(whole, loop) else None


def _of_product(v: Value, loop: Op) -> bool:
    """Whether a tile is made of a product's results in the loop, element by element."""
    seen, todo = {v}, [v]
    while todo:
        op = todo.pop().op
        if not isinstance(op, Op) or op.parent is not loop.regions[0]:
            continue
        if op.name == "dot":
            return True
        if "elementwise" in op.define.traits:
            more = [x for x in op.operands if isinstance(x.type, Tile) and x not in seen]
            seen.update(more)
            todo += more
    return False


def _carry_apart(fn: Function, loop: Op, index: int, fold: Op, made: dict[Value, Value]) -> None:
    """Let the loop carry four sums a row, for each warpgroup that has columns of its own, and sum them behind it."""
    edge = edges(loop)[index]
    arg, end, init, result = edge.args[0], edge.ends[0], loop.operands[3 + index], edge.result
    op = end.maker
    rows, columns = fold.operands[0].tile.shape
    groups = ROWS * fn.attrs.get("num_warps", 1) // rows if target_of(fn).hopper else 1
    if groups < 2 or groups & (groups - 1) or columns % (COLUMNS * groups):
        groups = 1
    lanes = groups * LANES
    apart = Tile((rows, lanes), arg.tile.elem)

    def summed(v: Value, axis: int, b: Builder) -> Value:
        return b.op("reduce", v, axis=axis, regions=[clone_block(fold.regions[0], {})]).result

    def spread(v: Value, b: Builder) -> Value:
        return b("broadcast", b("expand_dims", v, axis=1), shape=apart.shape)

    arg.type = result.type = apart
    b = beside(op)
    each = (groups, columns // COLUMNS // groups) if groups > 1 else (columns // COLUMNS,)
    split = b("reshape", fold.operands[0], shape=(rows, *each, LANES, 2))
    part = summed(summed(split, len(each) + 2, b), len(each), b)
    if groups > 1:
        part = b("reshape", part, shape=apart.shape)
    mapping = {fold.result: part, **{v: spread(v, b) for v in op.operands if v is not arg and v is not fold.result}}
    new = b(op.name, *(mapping.get(v, v) for v in op.operands))
    new.name = end.name
    op.block.ops = [x for x in op.block.ops if x not in (op, fold)]
    body = loop.regions[0]
    body.terminator.operands[index] = new

    b = beside(loop)
    if init in made:
        begin = made[init]
    elif const_of(init) == 0:
        begin = b.const(0, apart)
    else:
        first = b("cmp", b("broadcast", b("expand_dims", b("arange", start=0, end=lanes), axis=0), shape=apart.shape),
                  b.const(0, Tile(apart.shape, int32)), pred="eq")
        begin = b("select", first, spread(init, b), b.const(0, apart))
    loop.operands[3 + index] = begin
    b = beside(loop, behind=True)
    whole = summed(result, 1, b)
    whole.name = result.name
    fn.say("late_sums", f"sum at {fold.place}: {lanes} threads add up what they have of a row, and meet behind the "
           "loop", fold.place)
    for user in [x for x in walk(fn.body) if result in x.operands and x is not whole.op]:
        user.operands = [whole if v is result else v for v in user.operands]
    made[whole] = result
