"""The passes between the frontend and the scheduler."""
from __future__ import annotations

from collections.abc import Callable

from tilejit.ir.core import Function, listed
from tilejit.ir.verify import verify
from tilejit.passes.assumptions import check_signs
from tilejit.passes.carried_bases import carry_bases
from tilejit.passes.chunks import chunk
from tilejit.passes.contract import contract
from tilejit.passes.divide_k import divide_k
from tilejit.passes.flatten import flatten
from tilejit.passes.folds import merge_folds
from tilejit.passes.in_step import keep_in_step
from tilejit.passes.late_sums import late_sums
from tilejit.passes.load_ahead import load_ahead
from tilejit.passes.lower_desc import lower_desc
from tilejit.passes.merge_programs import merge_programs
from tilejit.passes.narrow_masks import narrow_masks
from tilejit.passes.odd_rows import move_odd_rows
from tilejit.passes.order import order_accesses
from tilejit.passes.pointer_tma import raise_pointers
from tilejit.passes.products import legalise
from tilejit.passes.rows import find_rows
from tilejit.passes.simplify import simplify
from tilejit.passes.sink import sink
from tilejit.passes.split_masks import split_masks
from tilejit.passes.totals import shrink_totals
from tilejit.passes.unroll import unroll
from tilejit.passes.walked_rows import whole_rows


def layouts(fn: Function) -> Function:
    from tilejit.passes.copies import mark_ahead, mark_copies
    from tilejit.passes.layouts import assign_layouts

    return mark_ahead(mark_copies(assign_layouts(fn) or fn))


#: (name, pass) in order. Descriptors are lowered after one round of simplify, which folds their strides.
PIPELINE: tuple[tuple[str, Callable[[Function], Function]], ...] = (
    ("simplify", simplify),
    ("walked_rows", whole_rows),
    ("merge_programs", merge_programs),
    ("products", legalise),
    ("flatten", flatten),
    ("assumptions", check_signs),
    ("pointer_tma", raise_pointers),
    ("lower_desc", lower_desc),
    ("odd_rows", move_odd_rows),
    ("rows", find_rows),
    ("simplify2", simplify),
    ("contract", contract),
    ("late_sums", late_sums),
    ("split_masks", split_masks),
    ("unroll", unroll),
    ("divide_k", divide_k),
    ("chunks", chunk),
    ("totals", shrink_totals),
    ("layouts", layouts),
    ("carried_bases", carry_bases),
    ("load_ahead", load_ahead),
    ("folds", merge_folds),
    ("order", order_accesses),
    ("sink", sink),
    ("narrow_masks", narrow_masks),
    ("in_step", keep_in_step),
)


def _contents(fn: Function) -> list[tuple]:
    """All that a pass may change: ops in order, operands and attributes, where blocks end."""
    return [(op, op.parent, *op.operands, *op.attrs.items()) for op in listed(fn.body)]


def run(fn: Function, stage: Callable[[str, Function], Function] | None = None) -> Function:
    """Run every pass, verifying before the first and after the last."""
    verify(fn)
    simplified: list[tuple] = []
    for name, step in PIPELINE:
        if step is not simplify:
            fn = step(fn)
        elif _contents(fn) != simplified:  # else nothing has changed since it ran
            fn = step(fn)
            simplified = _contents(fn)
        if stage is not None:
            fn = stage(name, fn)
            verify(fn)
    if stage is None:
        verify(fn)
    return fn
