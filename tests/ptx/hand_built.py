"""Kernels built op by op with layouts set by hand: run in the evaluator and, as PTX, in the emulator.

`Kernel` is a builder with loads and stores of whole tiles; `Kernel.run` says what both make of the inputs.
"""

import numpy as np

from tilejit.ir import Builder, Function
from tilejit.ir.core import Block
from tilejit.ir.evaluate import evaluate
from tilejit.ir.numeric import np_dtype
from tilejit.ir.types import Ptr, Tile, int32
from tilejit.ir.verify import verify
from tilejit.layout.named import blocked
from tilejit.ptx.emit import emit
from tilejit.ptx.metadata import PointerParam
from tilejit.runtime import ptxas
from tilejit.schedule.allocate import allocate


class Kernel(Builder):
    """A kernel under construction over `arrays` (name -> (array, element type)) and scalars (name -> same)."""

    def __init__(self, num_warps=1, scalars=None, **arrays):
        self.arrays = {name: a for name, (a, _) in arrays.items()}
        self.scalars = {name: a for name, (a, _) in (scalars or {}).items()}
        types = [Ptr(t) for _, t in arrays.values()] + [t for _, t in (scalars or {}).values()]
        names = [*arrays, *(scalars or {})]
        self.fn = Function("test", types, names, attrs={
            "num_warps": num_warps, "num_stages": 1, "num_threads": 32 * num_warps})
        super().__init__(self.fn.body)
        self.args = dict(zip(names, self.fn.body.args))
        self.num_warps = num_warps

    # -- building ---------------------------------------------------------------------------------
    def tile(self, name, *operands, layout, **attrs):
        """An op whose one result has `layout`."""
        v = self(name, *operands, **attrs)
        v.type = v.type.with_layout(layout)
        return v

    def layout(self, shape, vector=1):
        return blocked(tuple(shape), self.num_warps, vector)

    def index(self, layout):
        """The row-major number of every element."""
        n = int(np.prod(layout.shape))
        flat = self.tile("arange", layout=layout.reshape((n,)), start=0, end=n)
        return self.tile("reshape", flat, layout=layout, shape=layout.shape)

    def pointers(self, name, layout):
        base = self.tile("splat", self.args[name], layout=layout, shape=layout.shape)
        return self("ptr_add", base, self.index(layout))

    def load(self, name, layout, **attrs):
        return self("load", self.pointers(name, layout), **attrs)

    def store(self, name, value, **attrs):
        """Store a tile at consecutive addresses, or a scalar at the first."""
        if isinstance(value.type, Tile):
            self.op("store", self.pointers(name, value.type.layout), value, **attrs)
        else:
            self.op("store", self.args[name], value, **attrs)

    def convert(self, v, layout):
        return self.tile("convert", v, layout=layout)

    def int(self, value, t=int32):
        return self.const(value, t)

    def inside(self, block):
        """Build in a region from now on; returns the block that was current."""
        before, self.block = self.block, block
        return before

    def region(self, types, build):
        """A block whose ops are what `build(*args)` makes."""
        block = Block(types)
        before = self.inside(block)
        build(*block.args)
        self.inside(before)
        return block

    def fold(self, name, operands, combine, **attrs):
        """A reduce or scan whose region is `combine(left.., right..) -> values`."""
        elems = [v.type.elem for v in operands]

        def body(*args):
            self.op("yield", *combine(*args))

        op = self.op(name, *operands, regions=[self.region(elems * 2, body)], **attrs)
        for r in op.results:
            if isinstance(r.type, Tile):
                layout = operands[0].type.layout
                r.type = r.type.with_layout(layout.reduce(attrs["axis"]) if name == "reduce" else layout)
        return op.results

    # -- running ----------------------------------------------------------------------------------
    def ptx(self):
        """The kernel's text and metadata."""
        if not self.fn.body.ops or self.fn.body.terminator.name != "return":
            self.op("return")
            verify(self.fn)
            allocate(self.fn)
        return emit(self.fn)

    def run(self, grid=1, assemble=True, **launch):
        """(what the evaluator wrote, what the emulator wrote): array name -> array."""
        from tilejit.emulator import Program

        text, meta = self.ptx()
        if assemble and ptxas.find_ptxas():
            ptxas.assemble(text)
        meant = {n: a.copy() for n, a in self.arrays.items()}
        evaluate(self.fn, grid, {**meant, **self.scalars})
        made = {n: a.copy() for n, a in self.arrays.items()}
        params = []
        for p in meta.params:
            if isinstance(p, PointerParam):
                params.append(made[p.arg].ctypes.data.to_bytes(8, "little"))
            else:
                t = next(a.type for a in self.fn.body.args if a.name == p.expr[1])
                params.append(np.asarray(self.scalars[p.expr[1]], np_dtype(t)).tobytes())
        report = Program(text).launch((grid,), meta.num_threads, params, meta.shared_bytes,
                                      memory=list(made.values()), **launch)
        report.check()
        return meant, made


def different(meant, made):
    """Indices of the elements whose bits differ (NaNs are all alike)."""
    kind = f"u{meant.dtype.itemsize}"
    unlike = meant.ravel().view(kind) != made.ravel().view(kind)
    if meant.dtype.kind not in "iub":
        unlike &= ~(np.isnan(meant.ravel()) & np.isnan(made.ravel()))
    return np.nonzero(unlike)[0]


def same(meant, made):
    """Assert that arrays of equal names have the same bits; shows the first three differences of each."""
    bad = {}
    for name in meant:
        at = different(meant[name], made[name])
        if at.size:
            bad[name] = (at.size, [(int(i), meant[name].ravel()[i], made[name].ravel()[i]) for i in at[:3]])
    assert not bad, f"name -> count, (index, meant, made): {bad}"
