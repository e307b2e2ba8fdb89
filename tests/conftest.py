"""What every test gets: a cache of its own, gpu tests left out where there is no GPU, and a look at every kernel
that it compiles.

A kernel that a test compiles (or takes from the cache) is assembled where ptxas is there; spills, a stack frame and
every C75xx remark fail that test, unless it names them:

    @pytest.mark.remarks("spills", "stack", reason="every thread holds a pointer per element")
"""
from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest


def cuda_device() -> bool:
    """Whether the driver is installed and sees a device. (ctypes: collecting tests must not load the bindings.)"""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects what this machine cannot run."""
    if not any(item.get_closest_marker("gpu") for item in items) or cuda_device():
        return
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    config.hook.pytest_deselected(items=gpu)
    items[:] = [item for item in items if not item.get_closest_marker("gpu")]


def remarks_of(resources: Any) -> set[str]:
    """What the assembler's log says against a kernel: `spills`, `stack` and the codes of its messages."""
    found = {m.code for m in resources.messages}
    if resources.spill_stores or resources.spill_loads:
        found.add("spills")
    if resources.stack:
        found.add("stack")
    return found


@pytest.fixture(autouse=True)
def assembled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The kernels that the test compiled so far; at its end all of them must be free of remarks it does not name."""
    from tilejit.runtime.compile import CompiledKernel

    kernels: list[Any] = []
    construct = CompiledKernel.__init__

    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        kernels.append(self)

    monkeypatch.setattr(CompiledKernel, "__init__", noted)
    yield kernels
    named = {name for mark in request.node.iter_markers("remarks") for name in mark.args}
    bad = [f"{k.name}: {sorted(found)} {[str(m) for m in k.resources.messages]} {k.resources}"
           for k in kernels if k.resources is not None and (found := remarks_of(k.resources) - named)]
    if bad:
        pytest.fail("ptxas had remarks on kernels of this test:\n" + "\n".join(bad), pytrace=False)
