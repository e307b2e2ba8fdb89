"""Every ready kernel after scheduling, run by the IR evaluator: roles, rings and barriers give what tile IR gives."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from test_schedules import LAUNCHES, matching

import tilejit
from tilejit.ir import walk
from tilejit.ir.evaluate import EvaluationError, evaluate
from tilejit.ir.verify import verify
from tilejit.runtime.compile import schedule, tile_ir
from tilejit.runtime.launch import EvaluatorEntry, host_arrays, host_memory


def named(entry: EvaluatorEntry, flat: tuple) -> dict[str, Any]:
    """The arguments by name, as the evaluator takes them."""
    from tilejit.runtime.launch import _as_numpy

    names = {a.name for a in entry.fn.body.args}
    return {n: _as_numpy(flat[i]) for n, i in entry.at.items() if n in names}


@pytest.fixture
def scheduled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Launches run before and after scheduling and must agree; the scheduled functions."""
    found: list[Any] = []
    plain = EvaluatorEntry.launch

    def launch(entry: EvaluatorEntry, grid: tuple[int, int, int], flat: tuple, stream: Any) -> None:
        memory, arrays = host_memory(flat), host_arrays({n: flat[i] for n, i in entry.at.items()})
        before = [m.copy() for m in memory]
        plain(entry, grid, flat, stream)
        want = {n: a.copy() for n, a in arrays.items()}
        for m, b in zip(memory, before):
            m[...] = b
        k = entry.compiled
        fn = schedule(tile_ir(k.kernel, k.args, k.options))
        verify(fn)
        evaluate(fn, grid, named(entry, flat))
        for n, a in arrays.items():
            matching(f"{k.name}: {n}", a, want[n])
        found.append((fn, grid, named(entry, flat)))

    monkeypatch.setattr(EvaluatorEntry, "launch", launch)
    monkeypatch.setattr(tilejit, "multiprocessors", lambda *_: 2)
    with tilejit.knobs(target="evaluator"):
        yield found


#: It rounds by an author's PTX, which only the emulator runs.
WITH_PTX = {"quantise"}


@pytest.mark.parametrize("name", [n for n in LAUNCHES if n not in WITH_PTX])
def test_every_kernel(scheduled: list[Any], name: str) -> None:
    LAUNCHES[name]()
    assert scheduled


def test_what_is_never_filled_is_found(scheduled: list[Any]) -> None:
    """Twins: without its announcements a ring is waited for for ever, without its copies it is read empty."""
    LAUNCHES["matmul"]()
    fn, grid, args = scheduled[-1]
    for name, text in (("tma_load", "read before it is filled"), ("mbar_expect", "every role waits")):
        gone = [(op.parent, op) for op in walk(fn.body) if op.name == name]
        kept = [(block, list(block.ops)) for block, _ in gone]
        for block, op in gone:
            block.ops.remove(op)
        with pytest.raises(EvaluationError, match=text):
            evaluate(fn, grid, {n: x.copy() if isinstance(x, np.ndarray) else x for n, x in args.items()})
        for block, ops in reversed(kept):
            block.ops = ops
