"""An independent check of assigned layouts: can every thread make each element from what it holds?

For an op that moves elements, its numpy meaning is applied to element numbers, so it says itself which element
of which operand each result element is; the same thread must hold that element.
"""
import numpy as np

from tilejit.ir import walk
from tilejit.ir.types import Tile

FREE = {"dot", "desc_store", "convert"}          # these may take any layout
LEAVES = {"const", "arange", "splat", "desc_load"}


def numbers(t):
    return np.arange(t.numel).reshape(t.shape)


def held(t, w, lane):
    """Row-major numbers of the elements that a thread holds, by register."""
    return numbers(t)[tuple(t.layout.table()[w, lane].T)] if t.shape else np.zeros(t.layout.num_registers, int)


def sources(op):
    """For each result: an array of (operand, element number) pairs, one for each result element."""
    tiles = [v.type for v in op.operands]
    if op.name == "join":
        made = np.stack([numbers(t) + i * 2**32 for i, t in enumerate(tiles)], -1)
        return [made]
    if op.name == "split":
        return [numbers(tiles[0])[..., i] for i in (0, 1)]
    return [np.asarray(op.define.evaluate(None, op, numbers(tiles[0])))]


def check(fn):
    """Assert that every tile has a layout that its op can be carried out in."""
    warps = fn.attrs["num_warps"]
    in_place = set()
    for op in walk(fn.body):
        for v in (*op.operands, *op.results):
            t = v.type
            if not isinstance(t, Tile):
                continue
            if t.layout is None:
                assert v.op.name in ("desc_load", "trans"), f"{op} has no layout"
                in_place.add(v)
                continue
            assert t.layout.shape == t.shape and t.layout.is_surjective(), op
            assert t.layout.in_size("lane") == 32 and t.layout.in_size("warp") == warps
        _op(op, warps)
    for op in walk(fn.body):
        for v in set(op.operands) & in_place:
            assert op.name in ("dot", "trans"), f"{op} reads a block that has no layout"


def _op(op, warps):
    if op.name in FREE | LEAVES or op.regions and op.name not in ("reduce", "scan"):
        return
    tiles = [v.type for v in op.operands if isinstance(v.type, Tile)]
    results = [v.type for v in op.results if isinstance(v.type, Tile)]
    if not tiles or any(t.layout is None for t in tiles + results):
        return
    if "elementwise" in op.define.traits or op.name == "scan":
        assert len({t.layout for t in tiles + results}) == 1, op
    elif op.name == "reduce":
        assert len({t.layout for t in tiles}) == 1, op
        for r in results:
            assert r.layout == tiles[0].layout.reduce(op.attrs["axis"]), op
    elif "shape" in op.define.traits:
        for result, source in zip(results, sources(op)):
            for w in range(warps):
                for lane in (0, 1, 2, 5, 11, 31):
                    mine = {x + i * 2**32 for i, t in enumerate(tiles) for x in held(t, w, lane).tolist()}
                    need = source.reshape(-1)[held(result, w, lane)]
                    assert set(need.tolist()) <= mine, f"{op}: thread {w}.{lane} lacks elements"
