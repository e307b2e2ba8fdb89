"""Kernels of clusters whose PTX was changed, explored under the sanitizer: what a planted bug is found as."""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import tilejit
from tilejit.emulator import Exploration, Sanitizer, explore
from tilejit.emulator.policy import POLICIES
from tilejit.runtime.launch import EmulatorEntry, host_memory

#: A change of PTX text, knowing the offsets of barriers in shared memory by their names.
Edit = Callable[[str, dict[str, str]], str]


def explored(kernel: tilejit.Kernel, grid: int, args: tuple, constants: dict[str, Any], out: np.ndarray, edit: Edit,
             seeds: int) -> Exploration:
    """The launch with edited PTX under every policy with so many seeds. An edit that finds nothing to change fails."""
    build = kernel.compile(*args, **constants)
    names = dict(re.findall(r"// ((?:\w+\.)?\w+\[0\])\s+mbarrier\.init\S+ \[\S+\+(\d+)\]", build.ptx))
    text = edit(build.ptx, names)
    assert text != build.ptx or edit is unchanged
    plan, flat = kernel._bound(args, constants)
    entry = EmulatorEntry(replace(build, ptx=text), plan.at, flat)
    return explore("k", lambda policy, seed, listener: entry.run((grid, 1, 1), flat, policy=policy, seed=seed,
                                                                 listener=listener),
                   host_memory(flat), {"out": out}, POLICIES, range(seeds), Sanitizer, 0.0)


def unchanged(text: str, names: dict[str, str]) -> str:
    """No edit: the kernel is right."""
    return text


def no_wait(which: str) -> Edit:
    """Nobody waits at a barrier."""
    def edit(text: str, names: dict[str, str]) -> str:
        wait = rf"mbarrier\.try_wait\S+ (%\w+), \[\S+\+{names[which]}\], %\w+;"
        return re.sub(wait, r"setp.eq.u32 \1, 0, 0;", text)
    return edit
