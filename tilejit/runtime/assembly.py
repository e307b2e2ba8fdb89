"""Inline assembly for the evaluator: a kernel around it, run in the emulator."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilejit.ir import Builder, Function, Op
from tilejit.ir.numeric import np_dtype
from tilejit.ir.types import DType, Ptr, elem_of, int32, uint64


def run_assembly(op: Op, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    from tilejit import passes
    from tilejit.emulator import Program
    from tilejit.ptx.emit import emit
    from tilejit.runtime.compile import schedule

    shape = arrays[0].shape if arrays else ()
    count, block = int(np.prod(shape, dtype=int)), 32 * op.attrs["pack"]
    padded = -(-count // block) * block

    def plain(t: Any) -> DType:
        return t if isinstance(t, DType) else uint64

    ins = [plain(elem_of(v.type)) for v in op.operands]
    outs = [plain(elem_of(r.type)) for r in op.results]
    memory = [np.resize(np.ascontiguousarray(a).reshape(-1), padded) for a in arrays]
    memory += [np.zeros(padded, np_dtype(t)) for t in outs]
    fn = Function("assembly", [Ptr(t) for t in (*ins, *outs)], [f"p{i}" for i in range(len(memory))],
                  attrs={"num_warps": 1, "num_stages": 1})
    b = Builder(fn.body)
    start = b("mul", b("program_id", axis=0), b.const(block, int32))
    at = b("add", b("splat", start, shape=(block,)), b("arange", start=0, end=block))
    places = [b("ptr_add", b("splat", p, shape=(block,)), at) for p in fn.body.args]
    values = [b("load", p) for p in places[:len(ins)]]
    results = b.op(op.name, *values, **op.attrs).results
    for place, r in zip(places[len(ins):], results):
        b.op("store", place, r if ins else b("splat", r, shape=(block,)))
    b.op("return")
    text, meta = emit(schedule(passes.run(fn)))
    by_name = {f"p{i}": m for i, m in enumerate(memory)}
    params = [by_name[p.arg].ctypes.data.to_bytes(8, "little") for p in meta.params]  # type: ignore[union-attr]
    Program(text).launch((padded // block,), meta.num_threads, params, meta.shared_bytes, memory=memory).check()
    return [m[:count].reshape(shape) for m in memory[len(ins):]]
